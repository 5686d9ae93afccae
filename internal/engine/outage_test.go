package engine_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// deaf hears of nothing, as a worker whose listener has lost its connection.
type deaf struct{ *enginetest.Worker }

func (deaf) Listen(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return ctx.Err()
}

// Once the database is back, what was dropped is claimed with the first renewal, and not
// only when it is time to look for work.
func TestTheEndOfAnOutageWakes(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(send)), {Text: "done", Gate: gate}}
		run := w.create(enginetest.Spec(send))
		worker := w.worker()
		w.start(worker, func(c *engine.Config) { c.Leases, c.PollEvery = deaf{worker}, time.Hour })
		w.until("the model is asked again", func() bool { return len(w.model.Requests()) == 2 })

		w.store.SetDown(true)
		w.pass(time.Minute)
		w.store.SetDown(false)
		close(gate)
		began := time.Now()

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		if took := time.Since(began); took > 5*time.Second {
			w.Errorf("it took %s after the outage", took)
		}
	})
}

// A claim that looks at fewer runs than wait is followed by the next one at once: there is
// room, and nobody says again that they wait.
func TestClaimsGoOnWhileRunsAreLeft(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.store.MostClaimed = 10
		w.model.Script = []enginetest.Answer{enginetest.Say("done")}
		var runs []loop.RunRef
		for range 95 {
			runs = append(runs, w.create(enginetest.Spec()))
		}
		worker := w.worker()
		began := time.Now()
		w.start(worker, func(c *engine.Config) { c.Leases, c.PollEvery = deaf{worker}, time.Hour })
		w.until("all runs have ended", func() bool {
			return !slices.ContainsFunc(runs, func(run loop.RunRef) bool { return !w.store.Head(run).State.Terminal() })
		})
		if took := time.Since(began); took > time.Minute {
			w.Errorf("it took %s", took)
		}
	})
}
