package engine

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// shunFor is how long a worker leaves a run to others whose journal it cannot read. In an
// upgrade there are workers that can, and they have it within a poll. If there are none,
// the next look costs one read of the journal a minute.
const shunFor = time.Minute

// shunned are the runs that this worker leaves to others, and until when. There are at
// most as many as it can claim in shunFor.
type shunned map[loop.RunRef]time.Time

// list forgets those whose time is over, and returns the others.
func (s shunned) list(now time.Time) []loop.RunRef {
	maps.DeleteFunc(s, func(_ loop.RunRef, until time.Time) bool { return !until.After(now) })
	return slices.Collect(maps.Keys(s))
}

// shun leaves a run to others for a while.
func (s *supervisor) shun(run loop.RunRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shunned == nil {
		s.shunned = shunned{}
	}
	s.shunned[run] = time.Now().Add(shunFor)
}

// leaveToOthers gives a run back at once to whom a newer loopd has written, and says
// nothing in its journal: what that would mean to the newer one is not known here. It
// tries until it succeeds, the lease is lost, or a drain begins.
func (o *owner) leaveToOthers(ctx context.Context) {
	o.e.sup.shun(o.lease.Run)
	if err := o.flush(ctx); err != nil {
		o.log.WarnContext(ctx, "cannot write what was still to be written of a run that is left to others", "error", err)
	}
	for {
		err := contained(func() error { return o.append(ctx, Batch{Release: true}) })
		if err == nil {
			o.e.metrics.leases.WithLabelValues(leaseReleased).Inc()
			return
		}
		if errors.Is(err, loop.ErrLeaseLost) {
			return
		}
		o.log.WarnContext(ctx, "cannot give the run back, will try again", "error", err)
		if !o.rest(ctx) {
			return
		}
	}
}
