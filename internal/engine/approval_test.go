package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// awaitApproval takes a run to the point where its one call waits for approval.
func awaitApproval(w *world) (loop.RunRef, loop.RequiredAction) {
	w.Helper()
	w.model.Script = []enginetest.Answer{enginetest.Ask(call(wipe)), enginetest.Say("done")}
	spec := enginetest.Spec(wipe)
	spec.Limits.WallTime = 48 * time.Hour
	run := w.create(spec)
	w.started()
	h := w.await(run, loop.StateRequiresAction)
	w.equal("owner of a waiting run", "", w.store.Owner(run))
	w.equal("actions", 1, len(h.RequiredActions))
	w.equal("kind", "approve", h.RequiredActions[0].Kind)
	w.equal("sends", []string(nil), w.sends())
	return run, h.RequiredActions[0]
}

func TestApprovedCallIsSentOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		run, a := awaitApproval(w)

		w.signal(run, loop.ApprovalDecided{CallID: a.CallID, ArgsHash: a.ArgsHash, Approved: true, By: "ann"})

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		w.equal("sends", []string{"wipe/1"}, w.sends())
		w.equal("recovered", false, bodies[loop.Claimed](w, run)[1].Recovered)
	})
}

func TestDeniedCallIsNotSent(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		run, a := awaitApproval(w)

		w.signal(run, loop.ApprovalDecided{CallID: a.CallID, ArgsHash: a.ArgsHash, Reason: "too dangerous"})

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		w.equal("sends", []string(nil), w.sends())
		result := w.store.Calls(run)[0].Result
		if !strings.Contains(result, "too dangerous") {
			w.Errorf("the model was told %q", result)
		}
	})
}

func TestApprovalOfOtherArgumentsIsDropped(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		run, a := awaitApproval(w)

		w.signal(run, loop.ApprovalDecided{CallID: a.CallID, ArgsHash: "0000", Approved: true})
		w.until("it was looked at", func() bool { return len(bodies[loop.Suspended](w, run)) == 2 })

		w.equal("state", loop.StateRequiresAction, w.store.Head(run).State)
		w.equal("sends", []string(nil), w.sends())
		w.signal(run, loop.ApprovalDecided{CallID: a.CallID, ArgsHash: a.ArgsHash, Approved: true})
		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
	})
}

func TestApprovalExpires(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		run, a := awaitApproval(w)

		w.pass(time.Until(a.Deadline))

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		w.equal("sends", []string(nil), w.sends())
		w.equal("call", loop.CallDenied, w.store.Calls(run)[0].State)
	})
}

// The decision comes between the decision to wait and the commit of it.
func TestApprovalIsNotMissedWhileSuspending(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(wipe)), enginetest.Say("done")}
		run := w.create(enginetest.Spec(wipe))
		worker := w.worker()
		worker.BeforeAppend = func(_ loop.Lease, b engine.Batch) error {
			if _, ok := b.Events[0].Body.(loop.Suspended); ok {
				a := w.store.Head(run).RequiredActions[0]
				w.signal(run, loop.ApprovalDecided{CallID: a.CallID, ArgsHash: a.ArgsHash, Approved: true})
			}
			return nil
		}
		w.start(worker)

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		w.equal("sends", []string{"wipe/1"}, w.sends())
	})
}

// The calls that need no approval do not wait for the one that does.
func TestApprovalHoldsOnlyItsCall(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(wipe), call(look)), enginetest.Say("done")}
		run := w.create(enginetest.Spec(look, wipe))
		w.started()

		a := w.await(run, loop.StateRequiresAction).RequiredActions[0]
		w.equal("sends", []string{"look/1"}, w.sends())
		w.equal("requests", 1, len(w.model.Requests()))
		w.signal(run, loop.ApprovalDecided{CallID: a.CallID, ArgsHash: a.ArgsHash, Approved: true})

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		w.equal("sends", []string{"look/1", "wipe/1"}, w.sends())
	})
}

func TestCallInDoubtIsResolved(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		resolution loop.Resolution
		state      loop.CallState
		sends      []string
	}{
		{loop.ResolvedSucceeded, loop.CallSucceeded, []string{"send/1"}},
		{loop.ResolvedNotExecuted, loop.CallNotSent, []string{"send/1"}},
		{loop.ResolvedRetry, loop.CallSucceeded, []string{"send/1", "send/2"}},
	} {
		t.Run(string(tc.resolution), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				w.model.Script = []enginetest.Answer{enginetest.Ask(call(send)), enginetest.Say("done")}
				w.tools.Replies = map[string]func(int) loop.ToolReply{"send": func(n int) loop.ToolReply {
					if n == 0 {
						return loop.ToolReply{Outcome: loop.OutcomeUnknown, Content: "the connection broke"}
					}
					return enginetest.OK("sent")
				}}
				run := w.create(enginetest.Spec(send))
				w.started()
				a := w.await(run, loop.StateRequiresAction).RequiredActions[0]
				w.equal("kind", "resolve", a.Kind)

				w.signal(run, loop.CallResolved{CallID: a.CallID, Resolution: tc.resolution, By: "ann"})

				w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
				w.equal("sends", tc.sends, w.sends())
				w.equal("call", tc.state, w.store.Calls(run)[0].State)
				for _, s := range w.tools.Sent() {
					w.equal("key", "loopd:"+run.ID+":"+a.CallID, s.Key)
				}
			})
		})
	}
}

func TestSideEffectWithoutAnAnswerIsInDoubt(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.tools.Gates = map[string]<-chan struct{}{"send": make(chan struct{})}
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(send))}
		run := w.create(enginetest.Spec(send))
		w.started()

		w.await(run, loop.StateRequiresAction)

		w.equal("call", loop.CallInDoubt, w.store.Calls(run)[0].State)
		w.equal("sends", []string{"send/1"}, w.sends())
		w.equal("requests", 1, len(w.model.Requests()))
	})
}
