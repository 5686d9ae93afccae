package server_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/google/go-cmp/cmp"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// hear takes what people have said to the run, as its worker does.
func (k *worker) hear() []loop.Body {
	k.w.t.Helper()
	signals, err := k.w.store.Signals(k.w.t.Context(), k.lease)
	if err != nil {
		k.w.t.Fatal(err)
	}
	var heard []loop.Body
	for _, s := range signals {
		k.seen = s.ID
		heard = append(heard, s.Body)
		k.append(s.Body)
	}
	return heard
}

// stand has a guard pause the run.
func (k *worker) stand(t loop.Tripped) {
	k.w.t.Helper()
	t.Verdict, t.Until = loop.VerdictPause, time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	k.append(t, loop.Suspended{Reason: loop.WaitRaise, Until: t.Until})
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	w := setup(t)
	name := w.run().GetName()
	k := w.claim()
	for range 2 {
		got := w.rest(http.MethodPost, "/v1/"+name+":pause", `{"reason": "let me look"}`, "Idempotency-Key", `"once"`)
		if got["state"] != "RUN_STATE_RUNNING" {
			t.Errorf("the pause has not happened yet, and answered %v", got)
		}
	}
	if d := cmp.Diff([]loop.Body{loop.PauseRequested{Reason: "let me look"}}, k.hear()); d != "" {
		t.Errorf("the worker hears (-want +got):\n%s", d)
	}
	k.append(loop.Suspended{Reason: loop.WaitPaused, Until: time.Now().Add(time.Hour).UTC()})
	paused, err := w.runs.PauseRun(t.Context(), &loopdv1.PauseRunRequest{Name: name})
	if err != nil || paused.GetState() != loopdv1.RunState_RUN_STATE_PAUSED || paused.GetPhase() != "paused" || paused.GetWaitUntil() == nil || len(paused.GetRequiredActions()) > 0 {
		t.Fatalf("a paused run is paused as %v, %v", paused, err)
	}

	for range 2 {
		w.rest(http.MethodPost, "/v1/"+name+":resume", `{"limits": {"maxIterations": 15, "maxCostUsd": "1.50"}, "input": "Look twice.", "reason": "seen", "requestId": "r1"}`)
	}
	k = w.claim()
	raised := k.state.Limits()
	raised.Iterations, raised.Cost = 15, loop.OneUSD*3/2
	if d := cmp.Diff([]loop.Body{loop.Resumed{Limits: &raised, Input: "Look twice.", Reason: "seen"}}, k.hear()); d != "" {
		t.Errorf("the worker hears (-want +got):\n%s", d)
	}
	run := w.rest(http.MethodGet, "/v1/"+name, "")
	if at(run, "limits", "maxIterations") != 15.0 || at(run, "limits", "maxCostUsd") != "1.5" || at(run, "limits", "maxToolCalls") != 40.0 {
		t.Errorf("the limits in force are %v", run["limits"])
	}
	messages, err := w.runs.ListMessages(t.Context(), &loopdv1.ListMessagesRequest{Parent: name})
	if err != nil || len(messages.GetMessages()) != 2 {
		t.Fatalf("messages: %v, %v", messages, err)
	}
	if last := messages.GetMessages()[1]; last.GetSource() != "user" || last.GetParts()[0].GetText().GetText() != "Look twice." {
		t.Errorf("the model reads %v", last)
	}
	k.finish("Done.")
}

// TestAGuardsPause: a run goes on only under what it requires.
func TestAGuardsPause(t *testing.T) {
	t.Parallel()
	w := setup(t)
	name := w.run().GetName()
	k := w.claim()
	k.stand(loop.Tripped{Guard: "cost", Reason: loop.CostBudget, Field: "max_cost_usd", Observed: "0.98 USD spent", Message: "the next call could pass the budget"})

	for _, path := range []string{"/v1/" + name + ":wait", "/v1/" + name} {
		run := w.rest(http.MethodGet, path, "")
		if run["state"] != "RUN_STATE_REQUIRES_ACTION" || run["phase"] != "waiting" {
			t.Errorf("%s: the run is %v, %v", path, run["state"], run["phase"])
		}
		action, _ := at(run, "requiredActions", "0").(map[string]any)
		if action["deadline"] == nil {
			t.Errorf("%s: no deadline", path)
		}
		delete(action, "deadline")
		want := map[string]any{"kind": "KIND_RAISE", "guard": "cost", "limitField": "max_cost_usd", "observed": "0.98 USD spent", "reason": "the next call could pass the budget"}
		for member, value := range action { // REST shows empty members too
			if value == "" || value == 0.0 || value == false {
				delete(action, member)
			}
		}
		if d := cmp.Diff(want, action); d != "" {
			t.Errorf("%s: required (-want +got):\n%s", path, d)
		}
	}
	if got := w.rest(http.MethodPost, "/v1/"+name+":pause", ""); got["state"] != "RUN_STATE_REQUIRES_ACTION" {
		t.Errorf("a pause on top changes the run to %v", got["state"])
	}
	for what, c := range map[string]struct {
		body          string
		status        int
		reason, field string
		says          string
	}{
		"unchanged":         {`{}`, 409, "LIMIT_NOT_RAISED", "", "observed: 0.98 USD spent): raise max_cost_usd above the 1 in force"},
		"the same":          {`{"limits": {"maxCostUsd": "1"}}`, 409, "LIMIT_NOT_RAISED", "", "raise max_cost_usd"},
		"another":           {`{"limits": {"maxIterations": 15}}`, 409, "LIMIT_NOT_RAISED", "", "raise max_cost_usd"},
		"words":             {`{"input": "go on"}`, 409, "LIMIT_NOT_RAISED", "", "raise max_cost_usd"},
		"lower":             {`{"limits": {"maxCostUsd": "0.99"}}`, 400, "FIELD_INVALID", "limits.max_cost_usd", "0.99 is below the 1 in force"},
		"another one lower": {`{"limits": {"maxCostUsd": "2", "maxToolCalls": 4}}`, 400, "FIELD_INVALID", "limits.max_tool_calls", "4 is below the 40 in force"},
		"above the ceiling": {`{"limits": {"maxCostUsd": "50.01"}}`, 400, "LIMIT_ABOVE_CEILING", "limits.max_cost_usd", "ceiling 50 USD"},
		"no amount":         {`{"limits": {"maxCostUsd": "1,5"}}`, 400, "FIELD_INVALID", "limits.max_cost_usd", `"1,5"`},
		"no such limit":     {`{"limits": {"maxCost": "2"}}`, 400, "BODY_INVALID", "", `"maxCost"`},
		"too many words":    {`{"input": "` + strings.Repeat("x", 200_001) + `"}`, 400, "FIELD_INVALID", "input", ""},
	} {
		resp, body := w.do(http.MethodPost, "/v1/"+name+":resume", c.body)
		p := decode(t, body)
		detail, _ := p["detail"].(string)
		if resp.StatusCode != c.status || p["reason"] != c.reason || !strings.Contains(detail, c.says) {
			t.Errorf("%s: answered %d %s", what, resp.StatusCode, body)
		}
		if c.field != "" && at(p, "errors", "0", "field") != c.field {
			t.Errorf("%s: the first field is %v, want %s", what, at(p, "errors", "0", "field"), c.field)
		}
	}
	_, err := w.runs.ResumeRun(t.Context(), &loopdv1.ResumeRunRequest{Name: name})
	info := errorInfo(t, err, codes.FailedPrecondition)
	want := map[string]string{"run": name, "guard": "cost", "field": "limits.max_cost_usd", "in_force": "1", "observed": "0.98 USD spent"}
	if d := cmp.Diff(want, info.GetMetadata()); d != "" || info.GetReason() != "LIMIT_NOT_RAISED" {
		t.Errorf("%s (-want +got):\n%s", info.GetReason(), d)
	}

	if _, err := w.runs.ResumeRun(t.Context(), &loopdv1.ResumeRunRequest{Name: name, Limits: &loopdv1.Limits{MaxCostUsd: new("2")}}); err != nil {
		t.Fatal(err)
	}
	k = w.claim()
	k.hear()
	if got := k.state.Limits().Cost; got != 2*loop.OneUSD {
		t.Errorf("the limit in force is %s", got)
	}
	k.finish("Done.")
}

// errorInfo reads the reason of a refusal over gRPC.
func errorInfo(t *testing.T, err error, code codes.Code) *errdetails.ErrorInfo {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != code {
		t.Fatalf("got %v, want %s", err, code)
	}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	t.Fatalf("no reason in %v", err)
	return nil
}

// TestAGuardThatTakesAnInput: guards that look for progress let a run go on when the
// model is told something new.
func TestAGuardThatTakesAnInput(t *testing.T) {
	t.Parallel()
	w := setup(t)
	name := w.run().GetName()
	w.claim().stand(loop.Tripped{Guard: "repeat", Reason: loop.RepeatCall, Field: "max_identical_iterations", Observed: "3 equal iterations", Message: "again"})
	run, err := w.runs.GetRun(t.Context(), &loopdv1.GetRunRequest{Name: name})
	if err != nil || !run.GetRequiredActions()[0].GetTakesInput() {
		t.Fatalf("required is %v, %v", run.GetRequiredActions(), err)
	}
	resp, body := w.do(http.MethodPost, "/v1/"+name+":resume", "")
	if resp.StatusCode != http.StatusConflict || !strings.Contains(string(body), "or give an input") {
		t.Errorf("without an input: %d %s", resp.StatusCode, body)
	}
	w.rest(http.MethodPost, "/v1/"+name+":resume", `{"input": "Ask the warehouse."}`)
	if heard := w.claim().hear(); len(heard) != 1 {
		t.Errorf("the worker hears %v", heard)
	}
}

func TestWhatIsNotPausedIsNotResumed(t *testing.T) {
	t.Parallel()
	w := setup(t)
	name := w.run().GetName()
	resume := func(want ...string) {
		t.Helper()
		resp, body := w.do(http.MethodPost, "/v1/"+name+":resume", `{"limits": {"maxIterations": 20}}`)
		for _, part := range want {
			if resp.StatusCode != http.StatusConflict || !strings.Contains(string(body), part) {
				t.Errorf("answered %d %s, want %q", resp.StatusCode, body, part)
			}
		}
	}
	resume("RUN_NOT_PAUSED", name+" is QUEUED, not paused")
	k := w.claim()
	k.append(loop.Suspended{Reason: loop.WaitApproval, Until: time.Now().Add(time.Hour).UTC()})
	resume("RUN_NOT_PAUSED", "it waits for what its required_actions list", "RUN_STATE_REQUIRES_ACTION")

	w.rest(http.MethodPost, "/v1/"+name+":cancel", "")
	resume("RUN_CANCELLING")
	resp, body := w.do(http.MethodPost, "/v1/"+name+":pause", "")
	if p := decode(t, body); resp.StatusCode != http.StatusConflict || p["reason"] != "RUN_CANCELLING" || at(p, "metadata", "run") != name {
		t.Errorf("a pause of a run that is being cancelled answered %d %s", resp.StatusCode, body)
	}

	// To resume a run that has stopped at its cap would have it die in a minute, if it
	// were let (AssemblyZero 2515): the refusal says what to raise, and where.
	k = w.claim()
	k.append(loop.Finished{State: loop.StateStopped, Stop: loop.Stop{Reason: loop.IterationCap, Guard: "iterations", Observed: "11", Limit: "12", Message: "the run may take 12 iterations"}})
	resume("RUN_FINISHED", "ended as STOPPED, ITERATION_CAP (the run may take 12 iterations)", "create another run, with limits.max_iterations above 12", "STOP_REASON_ITERATION_CAP", `"field":"limits.max_iterations"`)
}

// TestChildRunsSpendWhatTheirParentHolds: no raise of a child goes beyond it.
func TestChildRunsSpendWhatTheirParentHolds(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.run()
	k := w.claim()
	k.answer(loop.FinishToolCalls, toolCall("c1-1", "get_order", `{}`))
	spec := k.state.Spec()
	spec.Parent = &loop.ParentRef{RunID: k.lease.Run.ID, CallID: "c1-1", RootID: k.lease.Run.ID, Depth: 1}
	k.children = []loop.ChildStart{{ID: "0190f5fe-7c00-7a00-8000-00000000000c", Spec: spec}}
	k.append(loop.CallBegun{CallID: "c1-1", Attempt: 1, Key: "k"})
	child := "runs/0190f5fe-7c00-7a00-8000-00000000000c"
	w.claim().stand(loop.Tripped{Guard: "iterations", Reason: loop.IterationCap, Field: "max_iterations", Message: "enough"})

	resp, body := w.do(http.MethodPost, "/v1/"+child+":resume", `{"limits": {"maxIterations": 15, "maxCostUsd": "2"}}`)
	if p := decode(t, body); resp.StatusCode != http.StatusBadRequest || at(p, "errors", "0", "field") != "limits.max_cost_usd" || !strings.Contains(string(body), "its parent holds") {
		t.Errorf("answered %d %s", resp.StatusCode, body)
	}
	w.rest(http.MethodPost, "/v1/"+child+":resume", `{"limits": {"maxIterations": 15}}`)
}
