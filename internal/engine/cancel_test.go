package engine_test

import (
	"testing"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

func TestCancelStopsTheModelCall(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{{Calls: []loop.ToolCall{call(look)}, Gate: make(chan struct{})}}
		run := w.create(enginetest.Spec(look))
		w.started()
		w.until("the model is asked", func() bool { return len(w.model.Requests()) == 1 })

		began := time.Now()
		w.signal(run, loop.CancelRequested{By: "ann", Reason: "enough"})

		h := w.finish(run)
		w.wantEnd(h, loop.StateCancelled, loop.Cancelled, "")
		if took := time.Since(began); took > 5*time.Second {
			w.Errorf("the cancel took %s", took)
		}
		w.equal("requests", 1, len(w.model.Requests()))
		w.equal("sends", []string(nil), w.sends())
		failed := bodies[loop.ModelFailed](w, run)[0]
		w.equal("class", loop.ErrorCancelled, failed.Class)
		w.equal("cost: the provider may have worked", bodies[loop.ModelStarted](w, run)[0].Hold, h.Cost.Total())
	})
}

func TestCancelBeforeTheClaimStartsNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		run := w.create(enginetest.Spec())
		w.signal(run, loop.CancelRequested{})
		w.started()

		w.wantEnd(w.finish(run), loop.StateCancelled, loop.Cancelled, "")
		w.equal("requests", 0, len(w.model.Requests()))
	})
}

// A cancel that comes between the decision to start and the commit of the intent.
func TestCancelHoldsTheIntentBack(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(send)), enginetest.Say("done")}
		run := w.create(enginetest.Spec(send))
		worker := w.worker()
		worker.BeforeAppend = func(_ loop.Lease, b engine.Batch) error {
			if holds[loop.CallBegun](b) {
				w.signal(run, loop.CancelRequested{})
			}
			return nil
		}
		w.start(worker)

		w.wantEnd(w.finish(run), loop.StateCancelled, loop.Cancelled, "")
		w.equal("sends", []string(nil), w.sends())
		w.equal("answers", 1, len(bodies[loop.ModelAnswered](w, run)))
		w.equal("begun calls", 0, len(bodies[loop.CallBegun](w, run)))
	})
}

func TestCancelLetsASideEffectEndAsWhatItWas(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		w.tools.Gates = map[string]<-chan struct{}{"send": gate}
		w.model.Script = []enginetest.Answer{enginetest.Ask(enginetest.Call("send", `{"n":1}`), enginetest.Call("send", `{"n":2}`))}
		spec := enginetest.Spec(send)
		spec.Limits.ParallelCalls = 1
		run := w.create(spec)
		w.started()
		w.until("the first is sent", func() bool { return len(w.sends()) == 1 })

		w.signal(run, loop.CancelRequested{})
		w.pass(10 * time.Second)
		if w.store.Head(run).State.Terminal() {
			w.Fatal("the run ended while its call was in flight")
		}
		close(gate)

		w.wantEnd(w.finish(run), loop.StateCancelled, loop.Cancelled, "")
		calls := w.store.Calls(run)
		w.equal("the call in flight", loop.CallSucceeded, calls[0].State)
		w.equal("the call that had to wait", loop.CallNotSent, calls[1].State)
		w.equal("sends", []string{"send/1"}, w.sends())
	})
}

func TestCancelLeavesACallInDoubt(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.tools.Gates = map[string]<-chan struct{}{"send": make(chan struct{})}
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(send))}
		run := w.create(enginetest.Spec(send))
		w.started()
		w.until("it is sent", func() bool { return len(w.sends()) == 1 })

		w.signal(run, loop.CancelRequested{})

		w.wantEnd(w.finish(run), loop.StateCancelled, loop.Cancelled, "")
		w.equal("call", loop.CallInDoubt, w.store.Calls(run)[0].State)
	})
}

func TestCancelGivesUpReads(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.tools.Gates = map[string]<-chan struct{}{"look": make(chan struct{})}
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(look))}
		run := w.create(enginetest.Spec(look))
		w.started()
		w.until("it is sent", func() bool { return len(w.sends()) == 1 })

		began := time.Now()
		w.signal(run, loop.CancelRequested{})

		w.wantEnd(w.finish(run), loop.StateCancelled, loop.Cancelled, "")
		w.equal("call", loop.CallCancelled, w.store.Calls(run)[0].State)
		if took := time.Since(began); took > 5*time.Second {
			w.Errorf("the cancel took %s", took)
		}
	})
}

func TestCancelWakesAWaitingRun(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(wipe))}
		run := w.create(enginetest.Spec(wipe))
		w.started()
		w.await(run, loop.StateRequiresAction)

		w.signal(run, loop.CancelRequested{})

		w.wantEnd(w.finish(run), loop.StateCancelled, loop.Cancelled, "")
		w.equal("call", loop.CallCancelled, w.store.Calls(run)[0].State)
	})
}
