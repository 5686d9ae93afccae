package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// cutLeases fails renewals as plan says: the n-th after the first takes so long, and
// those after the plan hang for as long as they may.
type cutLeases struct {
	engine.Leases

	plan []time.Duration
	good time.Time // when the last good renewal was sent
	n    int
}

func (c *cutLeases) Renew(ctx context.Context, worker string, ttl time.Duration) error {
	c.n++
	if c.n == 1 {
		c.good = time.Now()
		return c.Leases.Renew(ctx, worker, ttl)
	}
	took := time.Hour
	if c.n-2 < len(c.plan) {
		took = c.plan[c.n-2]
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(took):
		return errCut
	}
}

// However renewals fail, the owners stop 5 s before others may take their runs,
// counted from before the last good one was sent.
func TestOwnersStopBeforeTheLeaseEnds(t *testing.T) {
	t.Parallel()
	for name, plan := range map[string][]time.Duration{
		"refused at once":         {0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"hanging":                 {},
		"slow, then hanging":      {2 * time.Second},
		"slow twice":              {3 * time.Second, 3 * time.Second},
		"refused once, then hang": {0, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				gate := make(chan struct{})
				defer close(gate)
				w.model.Script = []enginetest.Answer{{Text: "done", Gate: gate}}
				w.create(enginetest.Spec())
				leases := &cutLeases{plan: plan}
				w.start(w.worker(), func(cfg *engine.Config) { leases.Leases = cfg.Leases; cfg.Leases = leases })
				stopped := func() bool { return w.counted("loopd_lease_events_total", map[string]string{"event": "lost"}) > 0 }

				w.until("the owner stops", stopped)

				if after := time.Since(leases.good); after < 9*time.Second || after > 10*time.Second+500*time.Millisecond {
					w.Errorf("the owner stopped %s after the last good renewal, want 10 s", after)
				}
			})
		})
	}
}

// A worker that was frozen, and whose row is still there, has lost nothing.
func TestOneFailedRenewalIsMadeUpFor(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		w.model.Script = []enginetest.Answer{{Text: "done", Gate: gate}}
		run := w.create(enginetest.Spec())
		worker := w.worker()
		failures := 0
		worker.BeforeRenew = func() error {
			if len(w.model.Requests()) > 0 && failures < 3 {
				failures++
				return errCut
			}
			return nil
		}
		w.start(worker)
		w.pass(time.Minute)
		close(gate)

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		w.equal("failed renewals", 3, failures)
		w.equal("attempts", 1, w.store.Head(run).Attempts)
	})
}
