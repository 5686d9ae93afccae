package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// supervisor starts every goroutine of the engine and knows them all: the lease
// renewer, the listener, one owner per run, and the calls that owners fork. A
// panic in any of them ends that one only.
type supervisor struct {
	e    *Engine
	wake chan struct{} // something may be claimable or signalled

	mu      sync.Mutex
	owners  map[loop.RunRef]*owner
	shunned shunned
	renewed time.Time // when the last good renewal was begun; monotonic
	runs    sync.WaitGroup
	daemons sync.WaitGroup

	draining  chan struct{} // closed when the drain begins
	renewals  pulse
	work      context.Context
	stopWork  context.CancelCauseFunc
	stopHeart context.CancelFunc
}

func newSupervisor(e *Engine) *supervisor {
	return &supervisor{
		e: e, wake: make(chan struct{}, 1), owners: map[loop.RunRef]*owner{}, draining: make(chan struct{}), renewed: time.Now(),
	}
}

// start begins the daemons. Runs outlive ctx: they end by the drain.
func (s *supervisor) start(ctx context.Context) {
	s.work, s.stopWork = context.WithCancelCause(context.WithoutCancel(ctx))
	heart, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stopHeart = stop
	s.daemons.Go(func() { s.renew(heart) })
	s.daemons.Go(func() { s.listen(ctx) })
}

// renew keeps the worker's lease. When no renewal has succeeded for the TTL less
// a third of it, counted from before the request was sent, others may soon take
// the runs: they are dropped here first.
//
// They are this worker's in the database all the same. So before it renews again
// it retires, or nobody would ever drive them. The first renewal that succeeds again
// wakes the claim loop: there is work that could not be had before.
func (s *supervisor) renew(ctx context.Context) {
	defer s.renewals.rest()
	dropped, failed, wait := false, false, s.e.cfg.RenewEvery
	for sleep(ctx, wait) {
		s.renewals.beat()
		began := time.Now()
		err := s.renewOnce(ctx, dropped)
		if err == nil {
			s.e.metrics.leases.WithLabelValues(leaseRenewed).Inc()
			s.renewedAt(began)
			if failed {
				s.nudge()
			}
			dropped, failed, wait = false, false, s.e.cfg.RenewEvery
			continue
		}
		s.e.cfg.Log.WarnContext(ctx, "lease renewal failed", "error", err)
		if !s.trusted() && !dropped {
			s.dropAll()
			dropped = true
		}
		failed, wait = true, s.retryIn(dropped)
	}
}

// retryIn is how long to wait after a renewal that failed: less than between good ones,
// and not past the moment in which the lease cannot be relied on any more.
func (s *supervisor) retryIn(dropped bool) time.Duration {
	soon := s.e.cfg.RenewEvery / 5
	if left := s.trust(); !dropped && left < soon {
		return max(0, left)
	}
	return soon
}

// renewOnce renews. A hanging request is cut when the lease cannot be relied on any
// more. A worker that comes to it too late, having been frozen, may ask briefly: if its
// row is still there, its runs are still its own.
func (s *supervisor) renewOnce(ctx context.Context, dropped bool) error {
	limit := s.e.cfg.RenewEvery
	if !dropped {
		limit = min(limit, max(s.trust(), limit/5))
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if dropped {
		if err := s.e.cfg.Leases.Retire(ctx, s.e.cfg.Worker); err != nil {
			return fmt.Errorf("give back dropped runs: %w", err)
		}
	}
	return s.e.cfg.Leases.Renew(ctx, s.e.cfg.Worker, s.e.cfg.LeaseTTL)
}

// renewedAt notes a good renewal and when it was begun.
func (s *supervisor) renewedAt(began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewed = began
}

// trusted reports whether the worker's lease can still be relied on.
func (s *supervisor) trusted() bool { return s.trust() > 0 }

// trust is for how long the lease can still be relied on: the TTL less a third, on the
// monotonic clock, from before the last good renewal was sent.
func (s *supervisor) trust() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.e.cfg.LeaseTTL - s.e.cfg.LeaseTTL/3 - time.Since(s.renewed)
}

// dropAll stops every owner at once: its lease may be somebody else's by now.
func (s *supervisor) dropAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.owners {
		o.stop(errLeaseLost)
	}
	s.e.metrics.leases.WithLabelValues(leaseExpired).Inc()
}

// listen turns notifications into wakes and reconnects when the connection ends.
func (s *supervisor) listen(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.e.cfg.Leases.Listen(ctx, s.nudge); err != nil && ctx.Err() == nil {
			s.e.cfg.Log.WarnContext(ctx, "listening failed; polling until it works again", "error", err)
		}
		sleep(ctx, s.e.cfg.PollEvery)
	}
}

// nudge wakes the claim loop.
func (s *supervisor) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// free is the number of runs that this worker could still take.
func (s *supervisor) free() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, s.e.cfg.MaxRuns-len(s.owners))
}

// room is what this worker could still take, and whose runs it drives.
func (s *supervisor) room() loop.Room {
	s.mu.Lock()
	defer s.mu.Unlock()
	driven := make(map[string]int)
	for run := range s.owners {
		driven[run.Tenant]++
	}
	return loop.Room{
		Free: max(0, s.e.cfg.MaxRuns-len(s.owners)), PerTenant: s.e.cfg.TenantRuns, Driven: driven, Skip: s.shunned.list(time.Now()),
	}
}

// poke tells owners that signals wait for their runs.
func (s *supervisor) poke(refs []loop.RunRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range refs {
		if o := s.owners[r]; o != nil {
			o.poke()
		}
	}
}

// own starts the goroutine that owns a claimed run.
func (s *supervisor) own(l loop.Lease) {
	ctx, stop := context.WithCancelCause(s.work)
	o := newOwner(s.e, l, stop, s.draining)
	s.mu.Lock()
	s.owners[l.Run] = o
	s.e.metrics.slots(len(s.owners), s.e.cfg.MaxRuns)
	s.mu.Unlock()
	s.runs.Go(func() {
		defer s.disown(o)
		defer s.contain(ctx, o)
		o.end(ctx, o.drive(ctx))
	})
}

// disown forgets an owner that is done. The run may have a new one here already:
// the lease was lost, and won again.
func (s *supervisor) disown(o *owner) {
	o.stop(nil)
	s.e.metrics.active.drop(o.tally)
	s.mu.Lock()
	// Only then may runs have been left for want of room.
	wasFull := len(s.owners) >= s.e.cfg.MaxRuns || s.e.cfg.TenantRuns > 0
	if s.owners[o.lease.Run] == o {
		delete(s.owners, o.lease.Run)
	}
	s.e.metrics.slots(len(s.owners), s.e.cfg.MaxRuns)
	s.mu.Unlock()
	if wasFull {
		s.nudge()
	}
}

// contain turns a panic of an owner into the loss of one attempt. The run goes back,
// and ends as RECOVERY_EXHAUSTED if it does this again and again.
func (s *supervisor) contain(ctx context.Context, o *owner) {
	p := recover()
	if p == nil {
		return
	}
	s.e.metrics.panics.WithLabelValues("run").Inc()
	s.e.cfg.Log.ErrorContext(ctx, "a run's goroutine panicked", "run", o.lease.Run.ID, "panic", p, "stack", string(debug.Stack()))
	o.abandon(ctx, fmt.Sprintf("panic: %v", p))
}

// fork runs f in a goroutine of its own and hands its result to the channel. A
// panic in f becomes the result of onPanic.
func fork[R any](s *supervisor, results chan<- R, f func() R, onPanic func(any) R) {
	s.runs.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				s.e.metrics.panics.WithLabelValues("call").Inc()
				s.e.cfg.Log.Error("a call's goroutine panicked", "panic", p, "stack", string(debug.Stack()))
				results <- onPanic(p)
			}
		}()
		results <- f()
	})
}

// drain ends the engine in good order. See Engine.Run.
func (s *supervisor) drain() {
	close(s.draining)
	ended := make(chan struct{})
	s.daemons.Go(func() { s.runs.Wait(); close(ended) })
	select {
	case <-ended:
	case <-time.After(s.e.cfg.DrainGrace):
		s.stopWork(errDraining)
		<-ended
	}
	s.stopHeart()
	s.daemons.Wait()
	s.stopWork(errDraining)
	ctx, cancel := context.WithTimeout(context.Background(), commitPatience)
	defer cancel()
	if err := s.e.cfg.Leases.Retire(ctx, s.e.cfg.Worker); err != nil && !errors.Is(err, context.Canceled) {
		s.e.cfg.Log.WarnContext(ctx, "cannot retire; others take over when the lease runs out", "error", err)
	}
}
