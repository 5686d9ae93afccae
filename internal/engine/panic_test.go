package engine_test

import (
	"sync/atomic"
	"testing"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

func TestPanicOfAModelFailsItsRun(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{{Panic: true}}
		run := w.create(enginetest.Spec())
		w.started()

		w.wantEnd(w.finish(run), loop.StateFailed, loop.InternalError, "")
		w.equal("panics", 1.0, w.counted("loopd_panics_total", map[string]string{"where": "call"}))
	})
}

func TestPanicOfAToolIsItsResult(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		crash := func(int) loop.ToolReply { panic("the tool's adapter crashed") }
		w.tools.Replies = map[string]func(int) loop.ToolReply{"look": crash, "send": crash}
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(look), call(send)), enginetest.Say("done")}
		run := w.create(enginetest.Spec(look, send))
		w.started()

		a := w.await(run, loop.StateRequiresAction).RequiredActions
		calls := w.store.Calls(run)
		w.equal("the read", loop.CallFailed, calls[0].State)
		w.equal("the side effect may have happened", loop.CallInDoubt, calls[1].State)
		w.signal(run, loop.CallResolved{CallID: a[0].CallID, Resolution: loop.ResolvedNotExecuted})

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		w.equal("panics", 2.0, w.counted("loopd_panics_total", map[string]string{"where": "call"}))
	})
}

func TestPanicOfAnOwnerEndsThatAttemptOnly(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Say("done")}
		once, always := w.create(enginetest.Spec()), w.create(enginetest.Spec())
		var crashed atomic.Bool
		worker := w.worker()
		worker.BeforeAppend = func(l loop.Lease, b engine.Batch) error {
			if len(b.Events) == 0 || b.Events[0].Body.Kind() != "model_started" {
				return nil
			}
			if l.Run == always || !crashed.Swap(true) {
				panic("the journal's adapter crashed")
			}
			return nil
		}
		w.start(worker)

		w.wantEnd(w.finish(once), loop.StateSucceeded, loop.Completed, "done")
		w.equal("attempts", 2, w.store.Head(once).Attempts)
		w.wantEnd(w.finish(always), loop.StateFailed, loop.RecoveryExhausted, "")
		w.equal("panics", 6.0, w.counted("loopd_panics_total", map[string]string{"where": "run"}))
	})
}

// Not even the release works. The process lives, and whoever comes after it takes
// the run.
func TestPanicInEveryAppendIsContained(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Say("done")}
		poison := w.create(enginetest.Spec())
		worker := w.worker()
		worker.BeforeAppend = func(l loop.Lease, _ engine.Batch) error {
			if l.Run == poison {
				panic("the journal's adapter crashed")
			}
			return nil
		}
		w.start(worker)
		fine := w.create(enginetest.Spec())

		w.wantEnd(w.finish(fine), loop.StateSucceeded, loop.Completed, "done")
		worker.Drain()
		w.engines.Wait()
		w.started()
		w.wantEnd(w.finish(poison), loop.StateSucceeded, loop.Completed, "done")
	})
}
