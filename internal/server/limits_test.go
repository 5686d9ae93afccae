package server_test

import (
	"net/http"
	"strings"
	"testing"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// TestCountInputIsALimitLikeAnyOther: the request's word goes before the agent's, also
// when it is no, and the run shows what holds.
func TestCountInputIsALimitLikeAnyOther(t *testing.T) {
	t.Parallel()
	w := setup(t)
	spec := support()
	w.agent("plain", spec)
	spec.Limits = &loopdv1.Limits{CountInput: new(true)}
	w.agent("counting", spec)
	for name, test := range map[string]struct {
		agent, limits string
		want          bool
	}{
		"nobody asks":             {"plain", `{}`, false},
		"the request asks":        {"plain", `{"countInput": true}`, true},
		"the agent asks":          {"counting", `{"maxIterations": 5}`, true},
		"the request declines it": {"counting", `{"countInput": false}`, false},
	} {
		run := w.rest(http.MethodPost, "/v1/runs", `{"agent": "agents/`+test.agent+`", "input": "x", "limits": `+test.limits+`}`)
		if shown := at(run, "limits", "countInput"); shown != test.want {
			t.Errorf("%s: the run shows %v, want %t", name, shown, test.want)
		}
		pinned, err := w.store.GetSpec(t.Context(), loop.RunRef{Tenant: tenant, ID: strings.TrimPrefix(run["name"].(string), "runs/")})
		if err != nil {
			t.Fatal(err)
		}
		if pinned.Limits.CountInput != test.want {
			t.Errorf("%s: the worker gets %t, want %t", name, pinned.Limits.CountInput, test.want)
		}
	}
}

// TestProgressLimits: each limit of the guards that look for progress reaches the
// worker, and the run shows it.
func TestProgressLimits(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("plain", support())
	for field, of := range map[string]func(loop.Limits) int{
		"maxSameCallIterations":       func(l loop.Limits) int { return l.SameCallIters },
		"maxCycles":                   func(l loop.Limits) int { return l.Cycles },
		"maxFrequentRepeats":          func(l loop.Limits) int { return l.FrequentRepeats },
		"maxNearDuplicates":           func(l loop.Limits) int { return l.NearDuplicates },
		"maxIterationsWithoutNovelty": func(l loop.Limits) int { return l.NoveltyIters },
		"maxCallFailures":             func(l loop.Limits) int { return l.CallFailures },
		"maxToolFailures":             func(l loop.Limits) int { return l.ToolFailures },
		"maxMonologueAnswers":         func(l loop.Limits) int { return l.Monologue },
	} {
		run := w.rest(http.MethodPost, "/v1/runs", `{"agent": "agents/plain", "input": "x", "limits": {"`+field+`": 4}}`)
		pinned, err := w.store.GetSpec(t.Context(), loop.RunRef{Tenant: tenant, ID: strings.TrimPrefix(run["name"].(string), "runs/")})
		if err != nil {
			t.Fatal(err)
		}
		if got, shown := of(pinned.Limits), at(run, "limits", field); got != 4 || shown != 4.0 {
			t.Errorf("%s: the worker gets %d, the run shows %v, want 4", field, got, shown)
		}
	}
}
