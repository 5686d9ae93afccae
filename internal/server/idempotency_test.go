package server_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// TestParallelCreatesWithOneKeyMakeOneRun sends the same request 50 times at once,
// half over gRPC and half over REST.
func TestParallelCreatesWithOneKeyMakeOneRun(t *testing.T) {
	t.Parallel()
	w := setup(t)
	agent := w.agent("support", support())

	const requests = 50
	names, replays := make(chan string, requests), make(chan string, requests)
	var all sync.WaitGroup
	for i := range requests {
		all.Go(func() {
			if i%2 == 0 {
				var header metadata.MD
				run, err := w.runs.CreateRun(t.Context(), &loopdv1.CreateRunRequest{Agent: agent, Input: "x", RequestId: "key-1"}, grpc.Header(&header))
				if err != nil {
					t.Error(err)
				}
				names <- run.GetName()
				replays <- strings.Join(header.Get("idempotency-replayed"), "")
				return
			}
			resp, body := w.do(http.MethodPost, "/v1/runs", `{"agent": "agents/support", "input": "x"}`, "Idempotency-Key", `"key-1"`)
			name, _ := decode(t, body)["name"].(string)
			names <- name
			replays <- resp.Header.Get("Idempotency-Replayed")
		})
	}
	all.Wait()
	close(names)
	close(replays)

	distinct := make(map[string]bool)
	for name := range names {
		distinct[name] = true
	}
	fresh := 0
	for replayed := range replays {
		if replayed != "true" {
			fresh++
		}
	}
	if len(distinct) != 1 || distinct[""] || fresh != 1 {
		t.Errorf("%d names, %d answers not marked as replayed: %v", len(distinct), fresh, distinct)
	}
	if runs, err := w.store.CountRuns(t.Context()); err != nil || runs[loop.StateQueued] != 1 {
		t.Errorf("runs are %v, %v", runs, err)
	}
	for labels, want := range map[string]float64{`result="new"`: 1, `result="replayed"`: requests - 1, `result="mismatch"`: 0} {
		if got := w.metric("loopd_idempotency_total{" + labels + "}"); got != want {
			t.Errorf("loopd_idempotency_total{%s} = %v, want %v", labels, got, want)
		}
	}
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("support", support())
	const body = `{"agent": "agents/support", "input": "x"}`
	first := w.rest(http.MethodPost, "/v1/runs", body, "Idempotency-Key", "k")
	for name, c := range map[string]struct {
		body, header string
		status       int
		reason       string
		field        string
	}{
		"bare":              {body, "k", 200, "", ""},
		"quoted":            {body, `"k"`, 200, "", ""},
		"in the body":       {`{"agent": "agents/support", "input": "x", "requestId": "k"}`, "", 200, "", ""},
		"in both":           {`{"agent": "agents/support", "input": "x", "requestId": "k"}`, `"k"`, 200, "", ""},
		"other members":     {`{"input": "x",   "labels": {}, "agent": "agents/support"}`, "k", 200, "", ""},
		"another request":   {`{"agent": "agents/support", "input": "y"}`, "k", 422, "IDEMPOTENCY_KEY_REUSED", ""},
		"two different":     {`{"agent": "agents/support", "input": "x", "requestId": "j"}`, "k", 400, "FIELD_INVALID", "request_id"},
		"too long":          {body, strings.Repeat("k", 129), 400, "FIELD_INVALID", "Idempotency-Key"},
		"with a space":      {body, "a b", 400, "FIELD_INVALID", "Idempotency-Key"},
		"nothing in quotes": {body, `""`, 400, "FIELD_INVALID", "Idempotency-Key"},
	} {
		headers := []string{"Idempotency-Key", c.header}
		if c.header == "" {
			headers = nil
		}
		resp, answer := w.do(http.MethodPost, "/v1/runs", c.body, headers...)
		got := decode(t, answer)
		if resp.StatusCode != c.status {
			t.Errorf("%s: answered %d %s", name, resp.StatusCode, answer)
			continue
		}
		if c.status == http.StatusOK && (got["name"] != first["name"] || resp.Header.Get("Idempotency-Replayed") != "true") {
			t.Errorf("%s: made another run, or did not say that it is the same: %s", name, answer)
		}
		if c.status != http.StatusOK && (got["reason"] != c.reason || (c.field != "" && at(got, "errors", "0", "field") != c.field)) {
			t.Errorf("%s: answered %s", name, answer)
		}
	}
	_, err := w.runs.CreateRun(t.Context(), &loopdv1.CreateRunRequest{Agent: "agents/support", Input: "z", RequestId: "k"})
	if status.Code(err) != codes.AlreadyExists {
		t.Errorf("over gRPC: %v", err)
	}
	if got := w.metric(`loopd_idempotency_total{result="mismatch"}`); got != 2 {
		t.Errorf("mismatches counted: %v", got)
	}
}

func TestAgentsAreSafeToCreateTwice(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const body = `{"spec": {"model": "acme/large-1"}}`
	for range 2 {
		agent := w.rest(http.MethodPost, "/v1/agents?agent_id=a", body, "Idempotency-Key", "k1")
		if agent["version"] != "1" {
			t.Errorf("created %v", agent)
		}
	}
	for range 2 {
		agent := w.rest(http.MethodPatch, "/v1/agents/a", body, "Idempotency-Key", "k2")
		if agent["version"] != "2" {
			t.Errorf("updated to %v", agent)
		}
	}
}
