package engine_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// What a budget wants of a run that it has no room for.
func TestBudgetWithoutRoom(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		act      loop.Verdict
		amount   loop.USD
		requests int
		answer   string
	}{
		{loop.VerdictFinalTurn, loop.FirstNeed(enginetest.Spec(look)), 2, "the end"}, // paid from what was reserved
		{loop.VerdictStop, loop.FirstNeed(enginetest.Spec(look)), 1, ""},
		{loop.VerdictFinalTurn, 0, 0, ""},
	} {
		t.Run(string(tt.act)+" at "+tt.amount.String(), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				// Without usage the first call costs all that was held for it.
				w.model.Script = []enginetest.Answer{{Calls: []loop.ToolCall{call(look)}, NoUsage: true}, enginetest.Say("done")}
				if err := w.store.SetBudget(w.Context(), "acme", budgetName, tt.amount, tt.act); err != nil {
					w.Fatal(err)
				}
				run := w.create(enginetest.Spec(look))
				w.started()
				w.wantEnd(w.finish(run), loop.StateStopped, loop.AccountBudget, tt.answer)
				w.equal("requests", tt.requests, len(w.model.Requests()))
				w.auditBudget()
				w.equal("trips", 1.0, w.counted("loopd_guard_trips_total", map[string]string{"guard": "account", "action": string(tt.act), "agent": "test"}))
			})
		})
	}
}

// A run that waits for money holds no worker, and goes on when the budget was raised.
func TestBudgetIsWaitedFor(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Say("done")}
		w.setBudget(loop.MilliUSD)
		run := w.create(enginetest.Spec(look))
		w.started()
		h := w.await(run, loop.StatePaused)
		w.equal("phase", "budget", h.Phase)
		w.equal("owner", "", w.store.Owner(run))
		w.pass(time.Hour) // nobody raises it
		w.equal("state", loop.StatePaused, w.store.Head(run).State)
		w.equal("trips", 1, len(bodies[loop.Tripped](w, run)))
		w.setBudget(loop.OneUSD)
		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
	})
}

// Nothing is sent while nobody knows whether there is money for it.
func TestBudgetsCannotBeAsked(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Say("done")}
		run := w.create(enginetest.Spec(look))
		worker := w.worker()
		var up atomic.Bool
		worker.BeforeDraw = func(loop.Lease) error {
			if !up.Load() {
				return errors.New("the accounts cannot be read")
			}
			return nil
		}
		w.start(worker)
		w.pass(time.Minute)
		w.equal("requests", 0, len(w.model.Requests()))
		w.equal("holds", 0, len(bodies[loop.ModelStarted](w, run)))
		up.Store(true)
		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
	})
}
