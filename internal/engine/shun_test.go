package engine_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// older cannot read one run, to which a newer loopd has written.
type older struct {
	*enginetest.Worker
	run   loop.RunRef
	tries atomic.Int32
}

func (o *older) Load(ctx context.Context, l loop.Lease) (engine.Journaled, error) {
	if l.Run == o.run {
		o.tries.Add(1)
		return engine.Journaled{}, loop.ErrUnknownKind
	}
	return o.Worker.Load(ctx, l)
}

// What an older worker cannot read it gives back at once, and leaves to others for a
// minute; what it can read it drives meanwhile.
func TestWhatANewerLoopdWroteIsLeftToOthers(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		newer := w.create(enginetest.Spec())
		before := w.kinds(newer)
		old := &older{Worker: w.worker(), run: newer}
		w.start(old.Worker, func(c *engine.Config) { c.Journal = old })
		w.until("it was tried", func() bool { return old.tries.Load() > 0 })
		w.pass(time.Second)
		w.equal("owner", "", w.store.Owner(newer))

		w.wantEnd(w.finish(w.create(enginetest.Spec())), loop.StateSucceeded, loop.Completed, "the end")
		w.pass(50 * time.Second)
		w.equal("tries within the minute", int32(1), old.tries.Load())
		w.pass(time.Minute)
		w.equal("tries a minute later", int32(2), old.tries.Load())
		w.equal("journal", before, w.kinds(newer))

		began := time.Now()
		w.started() // a newer one
		w.wantEnd(w.finish(newer), loop.StateSucceeded, loop.Completed, "the end")
		if took := time.Since(began); took > 3*time.Second {
			w.Errorf("the newer worker had it after %s", took)
		}
		w.equal("attempts", 1, w.store.Head(newer).Attempts)
	})
}

// A run that cannot be given back at first is given back later.
func TestLeftToOthersAfterAnOutage(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		run := w.create(enginetest.Spec())
		old := &older{Worker: w.worker(), run: run}
		until := time.Now().Add(30 * time.Second)
		old.BeforeAppend = func(loop.Lease, engine.Batch) error {
			if time.Now().Before(until) {
				return errCut
			}
			return nil
		}
		w.start(old.Worker, func(c *engine.Config) { c.Journal = old })
		w.until("it was tried", func() bool { return old.tries.Load() > 0 })

		w.until("it is given back", func() bool { return w.store.Owner(run) == "" })
		w.equal("given back after the outage", true, !time.Now().Before(until))
	})
}
