package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// judge answers for every rule and policy.
type judge struct {
	reason   string
	approves bool
	err      error
	asked    []string
}

func (j *judge) NeedsApproval(loop.ToolSpec, loop.ToolCall, engine.RuleRun) string { return j.reason }

func (j *judge) Decide(_ context.Context, _ engine.RuleRun, _ loop.ToolSpec, c loop.ToolCall, hash string) (loop.ApprovalDecided, bool, error) {
	j.asked = append(j.asked, c.ID)
	return loop.ApprovalDecided{CallID: c.ID, ArgsHash: hash, Approved: true, By: "policies/small@1"}, j.approves, j.err
}

// A condition that holds puts the call before a person, or before a policy that a
// person wrote.
func TestConditionsAndPolicies(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		judge   *judge
		waits   bool
		by      string
		nobody  bool // nobody can judge
		wantFor string
	}{
		"does not hold":           {judge: &judge{}},
		"holds, a person decides": {judge: &judge{reason: "args.n > 1"}, waits: true, by: "ann", wantFor: "args.n > 1"},
		"holds, a policy decides": {judge: &judge{reason: "args.n > 1", approves: true}, by: "policies/small@1", wantFor: "args.n > 1"},
		"policies cannot be read": {judge: &judge{reason: "args.n > 1", approves: true, err: errors.New("down")}, waits: true, by: "ann", wantFor: "args.n > 1"},
		"nobody can judge":        {judge: &judge{}, nobody: true, waits: true, by: "ann", wantFor: "nobody here can judge the condition args.n > 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				tool := send
				tool.Approval = loop.Approval{Mode: loop.ApprovalWhen, When: "args.n > 1"}
				w.model.Script = []enginetest.Answer{enginetest.Ask(enginetest.Call("send", `{"n":2}`)), enginetest.Say("done")}
				run := w.create(enginetest.Spec(tool))
				w.start(w.worker(), func(c *engine.Config) {
					if !tc.nobody {
						c.Rules, c.Approver = tc.judge, tc.judge
					}
				})
				if tc.waits {
					a := w.await(run, loop.StateRequiresAction).RequiredActions[0]
					w.signal(run, loop.ApprovalDecided{CallID: a.CallID, ArgsHash: a.ArgsHash, Approved: true, By: "ann"})
				}

				w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
				requested, decided := bodies[loop.ApprovalRequested](w, run), bodies[loop.ApprovalDecided](w, run)
				if tc.wantFor == "" {
					w.equal("approvals", 0, len(requested))
					return
				}
				w.equal("reason", tc.wantFor, requested[0].Reason)
				w.equal("decided by", tc.by, decided[0].By)
				if len(tc.judge.asked) > 1 {
					w.Errorf("the policies were asked %d times", len(tc.judge.asked))
				}
			})
		})
	}
}

// A tool that can tell settles what a lost answer left in doubt, once no sender
// can be under way any more.
func TestDoubtIsVerified(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		found  bool
		result string
		least  time.Duration
	}{
		"it took effect": {true, "receipt 7", 0},
		"it did not":     {false, "The call did not take effect and was not repeated.", 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				pay := send
				pay.Verify = "look"
				w.model.Script = []enginetest.Answer{enginetest.Ask(call(pay)), enginetest.Say("done")}
				w.tools.Replies = map[string]func(int) loop.ToolReply{
					"send": func(int) loop.ToolReply { return loop.ToolReply{Outcome: loop.OutcomeUnknown, Content: "reset"} },
					"look": func(int) loop.ToolReply {
						if tc.found {
							return enginetest.OK(`{"took_effect":true,"result":"receipt 7"}`)
						}
						return enginetest.OK(`{"took_effect":false}`)
					},
				}
				run := w.create(enginetest.Spec(pay, look))
				began := time.Now()
				w.started()

				w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
				if took := time.Since(began); took < tc.least || took > tc.least+5*time.Minute {
					w.Errorf("it took %s", took)
				}
				transcript := w.state(run).Transcript()
				w.equal("result", tc.result, transcript[len(transcript)-2].Parts[0].Result.Content)
				sends := 0
				for _, s := range w.tools.Sent() {
					if s.Tool == "send" {
						sends++
					}
				}
				w.equal("sends of what changes the world", 1, sends)
			})
		})
	}
}

// Waiting for a change costs no model call and no worker.
func TestWaitWatchesATool(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		status, wait := look, enginetest.Tool("wait", loop.ReadOnly)
		status.Pollable, status.HTTP, wait.Builtin = true, &loop.HTTPSpec{Method: "GET", URL: "http://x"}, loop.BuiltinWait
		w.model.Script = []enginetest.Answer{
			enginetest.Ask(enginetest.Call("wait", `{"tool":"look","every_seconds":300,"seconds":7200}`)), enginetest.Say("done"),
		}
		w.tools.Replies = map[string]func(int) loop.ToolReply{"look": func(n int) loop.ToolReply {
			if n < 3 {
				return enginetest.OK("pending")
			}
			return enginetest.OK("delivered")
		}}
		run := w.create(enginetest.Spec(status, wait))
		w.started()
		w.until("the run waits", func() bool { return w.store.Head(run).Phase == string(loop.WaitTimer) })
		w.equal("owner while it waits", "", w.store.Owner(run))

		h := w.finish(run)

		w.wantEnd(h, loop.StateSucceeded, loop.Completed, "done")
		w.equal("model calls", 2, h.ModelCalls)
		w.equal("looks", 4, len(w.tools.Sent()))
		transcript := w.state(run).Transcript()
		w.equal("result", "delivered", transcript[2].Parts[0].Result.Content)
	})
}

// A cancel goes down the tree first, and what the children cost comes up.
func TestCancelGoesDownTheTree(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		team := enginetest.Tool("team", loop.Idempotent)
		team.Child = &loop.ChildSpec{Spec: enginetest.Spec()}
		w.model.Script = []enginetest.Answer{enginetest.Ask(enginetest.Call("team", `{"input":"slow"}`))}
		w.model.ByInput = map[string][]enginetest.Answer{"slow": {{Text: "late", Gate: make(chan struct{})}}}
		run := w.create(enginetest.Spec(team))
		w.started()
		w.until("the child asks", func() bool { return len(w.model.Requests()) == 2 })
		w.signal(run, loop.CancelRequested{By: "ann"})

		w.equal("state", loop.StateCancelled, w.finish(run).State)
		child := w.store.Runs()[1]
		w.equal("state of the child", loop.StateCancelled, w.store.Head(child).State)
		cost := w.store.Head(child).Cost.Total()
		w.equal("cost of both", w.state(run).Price().Cost(enginetest.Usage()).Total()+cost, w.store.Head(run).Cost.Total())
	})
}
