package engine

import (
	"context"
	"errors"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// commitPatience is how long one try may take, also once the run's own context
// has ended: a drain or a cancel must not lose the last fact.
const commitPatience = 5 * time.Second

// outagePatience is how long the journal may fail while the worker's lease is
// renewed all the same. Outages of a minute must end no run; whatever fails for
// longer is no outage but this run, and counts as a recovery.
const outagePatience = 2 * time.Minute

// batch is what the owner wants to commit.
type batch struct {
	bodies  []loop.Body
	results []loop.FullResult // that belong to them
	intent  bool
	release bool
}

// commit folds events into the state and makes them durable. The state runs
// ahead for the moment of the commit; if the write is refused it is thrown away.
//
// A database that is away for a while ends no run: the write is tried until it
// is in, or until the lease is lost.
func (o *owner) commit(ctx context.Context, b batch) error {
	out := Batch{Intent: b.intent, Release: b.release, SignalsSeen: o.seen, Results: b.results}
	at := o.clock.now()
	for _, body := range b.bodies {
		ev := loop.Event{Seq: o.state.Seq() + 1, At: at, Epoch: o.lease.Epoch, Body: body}
		if err := o.state.Apply(ev); err != nil {
			return err
		}
		out.Events = append(out.Events, ev)
		o.involve(&out, body)
	}
	out.Head, out.Calls = o.state.Head(), o.state.TakeChangedCalls()
	out.Results = append(out.Results, o.state.TakeFullResults()...)
	if err := o.append(ctx, out); err != nil {
		return err
	}
	o.e.metrics.observe(o.state, out.Events)
	o.logTrips(ctx, out.Events)
	return nil
}

// append writes until it is written, refused, or no longer allowed.
func (o *owner) append(ctx context.Context, out Batch) error {
	return o.patiently(ctx, func(ctx context.Context) error { return o.e.cfg.Journal.Append(ctx, o.lease, out) })
}

// patiently asks the journal until it answers, or there is no point any more. It
// asks at least once, unless the lease is lost.
func (o *owner) patiently(ctx context.Context, ask func(context.Context) error) error {
	began := time.Now()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		if errors.Is(context.Cause(ctx), loop.ErrLeaseLost) {
			return errLeaseLost
		}
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitPatience)
		err := ask(attempt)
		cancel()
		if err == nil || isAnswer(err) || ctx.Err() != nil || time.Since(began) > outagePatience {
			return err
		}
		o.log.WarnContext(ctx, "the journal does not answer, will try again", "error", err)
		sleep(ctx, wait)
	}
}

// isAnswer reports whether the journal would say the same again.
func isAnswer(err error) bool {
	for _, answer := range []error{
		loop.ErrLeaseLost, loop.ErrSignalled, loop.ErrRefused, loop.ErrUnknownKind, loop.ErrNotFound, loop.ErrImpossible,
	} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
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
