package loop_test

import (
	"strings"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// TestFirstNeed: when accounts have just what admission asks of them, the first model
// call is made, and holds and keeps no more; with one unit less it is not made.
func TestFirstNeed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change  func(*loop.Spec)
		purpose string // of the first call; "-": there is none
		least   loop.USD
	}{
		"with tools":                     {func(*loop.Spec) {}, "", loop.OneUSD / 50},
		"without tools":                  {func(s *loop.Spec) { s.Definition.Tools = nil }, "", loop.MilliUSD},
		"long input":                     {func(s *loop.Spec) { s.Input = strings.Repeat("x", 20_000) }, "", loop.OneUSD / 50},
		"cost turns the answer down":     {func(s *loop.Spec) { s.Limits.Cost = loop.OneUSD / 10 }, "", loop.MilliUSD},
		"cost leaves a wrap-up":          {func(s *loop.Spec) { s.Limits.Cost = loop.OneUSD / 50 }, loop.PurposeWrapUp, loop.MilliUSD},
		"cost leaves nothing":            {func(s *loop.Spec) { s.Limits.Cost = 0 }, "-", 0},
		"one iteration is the wrap-up":   {func(s *loop.Spec) { s.Limits.Iterations = 1 }, loop.PurposeWrapUp, loop.MilliUSD},
		"output of the model is bounded": {func(s *loop.Spec) { s.Price.MaxOutput = 300 }, "", loop.MilliUSD},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := needySpec()
			c.change(&spec)
			got := loop.FirstNeed(spec)
			held, purpose := firstHold(t, spec, got)
			if got != held || purpose != c.purpose || got < c.least {
				t.Errorf("the need is %s USD, want what the first call holds, %s USD, at least %s USD; it is a call for %q, want %q",
					got, held, c.least, purpose, c.purpose)
			}
			if held, purpose := firstHold(t, spec, got-1); purpose == "" {
				t.Errorf("a call that holds %s USD is made with less than the need, %s USD", held, got)
			}
		})
	}
}

func needySpec() loop.Spec {
	return loop.Spec{
		Agent: "agents/test", AgentVersion: 1, Input: "please", Limits: loop.Defaults(),
		Price: loop.Price{
			Model: "sim/one", Version: "test", Window: 200_000,
			Rates: loop.Rates{
				Input: 3 * loop.MicroUSD, CacheRead: 300 * loop.NanoUSD, CacheWrite5m: 3750 * loop.NanoUSD,
				CacheWrite1h: 6 * loop.MicroUSD, Output: 15 * loop.MicroUSD, Reasoning: 15 * loop.MicroUSD,
			},
		},
		Definition: loop.AgentSpec{Model: "sim/one", Instructions: "be good", Tools: tools()},
	}
}

// firstHold drives a run to its first model call for which an account has so much left,
// and says what that holds and keeps, and for what it is.
func firstHold(t *testing.T, spec loop.Spec, free loop.USD) (held loop.USD, purpose string) {
	t.Helper()
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	s, err := loop.Fold(loop.RunRef{Tenant: "t", ID: "r"}, []loop.Event{
		{Seq: 1, At: at, Body: loop.Created{Spec: spec}}, {Seq: 2, At: at, Epoch: 1, Body: loop.Claimed{Attempt: 1, Worker: "w"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		action := s.Next(at)
		if call, ok := action.(loop.CallModel); ok {
			if held := call.Started.Hold + call.Started.Reserve; held <= free {
				return held, call.Started.Purpose
			}
			refused := loop.AccountRefused{Budget: "budgets/b", Limit: free, Act: loop.VerdictStop}
			if err := s.Apply(loop.Event{Seq: s.Seq() + 1, At: at, Epoch: 1, Body: refused}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		record, ok := action.(loop.Record)
		if !ok {
			return 0, "-"
		}
		for _, body := range record.Intent() {
			if err := s.Apply(loop.Event{Seq: s.Seq() + 1, At: at, Epoch: 1, Body: body}); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Fatal("the run does not come to its first call")
	return 0, ""
}
