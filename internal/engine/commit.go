package engine

import (
	"context"
	"errors"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// commitPatience is how long a commit is tried once the run's own context has
// ended: a drain or a cancel must not lose the last fact.
const commitPatience = 5 * time.Second

// batch is what the owner wants to commit.
type batch struct {
	bodies  []loop.Body
	intent  bool
	release bool
}

// commit folds events into the state and makes them durable. The state runs
// ahead for the moment of the commit; if the write is refused it is thrown away.
//
// A database that is away for a while ends no run: the write is tried until it
// is in, or until the lease is lost.
func (o *owner) commit(ctx context.Context, b batch) error {
	out := Batch{Intent: b.intent, Release: b.release, SignalsSeen: o.seen}
	now := time.Now().UTC().Truncate(time.Microsecond) // what Postgres keeps
	for _, body := range b.bodies {
		ev := loop.Event{Seq: o.state.Seq() + 1, At: now, Epoch: o.lease.Epoch, Body: body}
		if err := o.state.Apply(ev); err != nil {
			return err
		}
		out.Events = append(out.Events, ev)
	}
	out.Head, out.Calls = o.state.Head(), o.state.TakeChangedCalls()
	if err := o.append(ctx, out); err != nil {
		return err
	}
	o.e.metrics.observe(o.state, out.Events)
	o.logTrips(ctx, out.Events)
	return nil
}

// append writes until it is written, refused, or no longer allowed.
func (o *owner) append(ctx context.Context, out Batch) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		if errors.Is(context.Cause(ctx), loop.ErrLeaseLost) {
			return errLeaseLost
		}
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitPatience)
		err := o.e.cfg.Journal.Append(attempt, o.lease, out)
		cancel()
		switch {
		case err == nil, errors.Is(err, loop.ErrLeaseLost), errors.Is(err, loop.ErrSignalled), errors.Is(err, loop.ErrRefused):
			return err
		case ctx.Err() != nil:
			return err
		}
		o.log.WarnContext(ctx, "cannot write to the journal, will try again", "error", err)
		sleep(ctx, wait)
	}
}

// logTrips says in one line what a guard did.
func (o *owner) logTrips(ctx context.Context, events []loop.Event) {
	for _, e := range events {
		if t, ok := e.Body.(loop.Tripped); ok {
			o.log.InfoContext(ctx, "guard tripped", "agent", o.state.Spec().Agent, "guard", t.Guard, "verdict", t.Verdict,
				"reason", t.Reason, "observed", t.Observed, "limit", t.Limit, "iteration", t.Iteration)
		}
	}
}
