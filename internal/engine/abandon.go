package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/loopd/loopd/internal/loop"
)

// abandon gives a run back that broke down in this worker. The lease does not run out
// while the worker lives, so it tries until it succeeds, the lease is lost, or a drain
// begins, which gives everything back. Until then the run keeps its place among those
// that the worker drives.
func (o *owner) abandon(ctx context.Context, why string) {
	for {
		err := o.giveBack(ctx, why)
		if err == nil || errors.Is(err, loop.ErrLeaseLost) || o.isDraining() {
			return
		}
		if errors.Is(err, loop.ErrUnknownKind) {
			o.leaveToOthers(ctx)
			return
		}
		if errors.Is(err, errUnreadable) {
			o.log.ErrorContext(ctx, "the run is left alone until this worker ends", "error", err)
			return
		}
		o.log.WarnContext(ctx, "cannot give the run back, will try again", "error", err)
		if !o.rest(ctx) {
			return
		}
	}
}

// rest waits a moment; it reports false when the worker shuts down or loses its lease.
func (o *owner) rest(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, o.e.cfg.RenewEvery)
	defer cancel()
	select {
	case <-o.draining:
		return false
	case <-ctx.Done():
		return errors.Is(ctx.Err(), context.DeadlineExceeded)
	}
}

// giveBack says in the journal what broke, and releases the run with it. If the journal
// does not take that either, the run is released without a word, as if the worker had
// died; since it has not registered anew in between, it counts as dead.
func (o *owner) giveBack(ctx context.Context, why string) error {
	said := contained(func() error { return o.confess(ctx, why) })
	if said == nil || errors.Is(said, loop.ErrLeaseLost) || errors.Is(said, errUnreadable) || errors.Is(said, loop.ErrUnknownKind) {
		return said
	}
	o.log.WarnContext(ctx, "cannot write why the run broke down", "error", said)
	if errors.Is(said, errNotBegun) && !o.rest(ctx) { // nobody counts these, so they must not come one upon the other
		return nil
	}
	return contained(func() error { return o.append(ctx, Batch{Release: true}) })
}

// confess writes the end of the attempt. The state in memory may hold what was never
// written, or half an event, so the journal is read anew.
func (o *owner) confess(ctx context.Context, why string) error {
	if err := o.flush(ctx); err != nil {
		o.log.WarnContext(ctx, "cannot write what the last call brought", "error", err)
	}
	if err := o.load(ctx); err != nil {
		return err
	}
	if !o.state.Drives(o.lease.Epoch) { // nothing was begun that could have broken
		return errNotBegun
	}
	o.seen = 0 // of what was taken, the journal has it or will be asked again
	return o.commit(ctx, batch{bodies: o.state.BreakDown(why, o.clock.now()), release: true})
}

// errNotBegun: the attempt is not in the journal, so that it cannot be ended there.
var errNotBegun = errors.New("the attempt did not begin")

// contained calls f and turns its panic into an error.
func contained(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}
