package engine

import (
	"context"
	"errors"
	"slices"
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

// commit folds events into the state and makes them durable, after what is held back.
// The state runs ahead for the moment of the commit; if the write is refused it is
// thrown away.
//
// A database that is away for a while ends no run: the write is tried until it
// is in, or until the lease is lost.
func (o *owner) commit(ctx context.Context, b batch) error {
	if err := o.flush(ctx); err != nil {
		return err
	}
	out, err := o.fold(b)
	if err != nil {
		return err
	}
	return o.write(ctx, out)
}

// hold folds events into the state and leaves it to the next commit to make them
// durable: the intent that follows shares its transaction, which halves the commits
// of an iteration. Nothing is started or waited for meanwhile. What may not be done
// again, should the worker die in this moment, is not held back but committed.
func (o *owner) hold(ctx context.Context, b batch) error {
	if err := o.flush(ctx); err != nil {
		return err
	}
	out, err := o.fold(b)
	if err == nil {
		o.held = &out
	}
	return err
}

// flush makes durable what is held back.
func (o *owner) flush(ctx context.Context) error {
	if o.held == nil {
		return nil
	}
	out := *o.held
	o.held = nil
	return o.write(ctx, out)
}

// holdsAnswer reports whether the end of a model call is held back.
func (o *owner) holdsAnswer() bool {
	return o.held != nil && slices.ContainsFunc(o.held.Events, func(e loop.Event) bool {
		switch e.Body.(type) {
		case loop.ModelAnswered, loop.ModelFailed:
			return true
		}
		return false
	})
}

// commitIntent commits an intent together with what is held back.
func (o *owner) commitIntent(ctx context.Context, a loop.Action) error {
	return o.commitBehind(ctx, batch{bodies: a.Intent(), intent: true})
}

// commitBehind commits a batch together with what is held back. If both are not
// written, what is held back is written alone: it happened, whatever becomes of what
// was to follow.
func (o *owner) commitBehind(ctx context.Context, b batch) error {
	if o.held == nil {
		return o.commit(ctx, b)
	}
	held := *o.held
	next, err := o.fold(b)
	if err != nil {
		return err
	}
	o.held = nil
	if err := o.write(ctx, held.then(next)); err != nil {
		if !errors.Is(err, loop.ErrLeaseLost) {
			err = errors.Join(err, o.write(ctx, held))
		}
		return err
	}
	return nil
}

// fold applies events to the state and returns what is to be written.
func (o *owner) fold(b batch) (Batch, error) {
	out := Batch{Intent: b.intent, Release: b.release, SignalsSeen: o.seen, Results: b.results}
	out.Events = make([]loop.Event, 0, len(b.bodies))
	at := o.clock.now()
	for _, body := range b.bodies {
		ev := loop.Event{Seq: o.state.Seq() + 1, At: at, Epoch: o.lease.Epoch, Body: body}
		if err := o.state.Apply(ev); err != nil {
			return out, err
		}
		out.Events = append(out.Events, ev)
		o.involve(&out, body)
	}
	out.Head, out.Calls = o.state.Head(), o.state.TakeChangedCalls()
	out.Results = append(out.Results, o.state.TakeFullResults()...)
	return out, nil
}

// write makes a batch durable.
func (o *owner) write(ctx context.Context, out Batch) error {
	began := time.Now()
	if err := o.append(ctx, out); err != nil {
		return err
	}
	o.spans.committed(ctx, out.Events)
	o.tally.committed(o.state, out.Events, time.Since(began))
	o.logTrips(ctx, out.Events)
	return nil
}

// then is the batch with a later one behind it. Of two heads of a call the later counts.
func (b Batch) then(later Batch) Batch {
	both := later
	both.Events = slices.Concat(b.Events, later.Events)
	both.Children = slices.Concat(b.Children, later.Children)
	both.Outgoing = slices.Concat(b.Outgoing, later.Outgoing)
	both.Results = slices.Concat(b.Results, later.Results)
	both.Calls = slices.Clone(b.Calls)
	for _, c := range later.Calls {
		same := func(earlier loop.CallHead) bool { return earlier.Call.ID == c.Call.ID }
		if i := slices.IndexFunc(both.Calls, same); i >= 0 {
			both.Calls[i] = c
			continue
		}
		both.Calls = append(both.Calls, c)
	}
	return both
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
			o.log.InfoContext(ctx, "guard tripped", "guard", t.Guard, "verdict", t.Verdict,
				"reason", t.Reason, "observed", t.Observed, "limit", t.Limit, "iteration", t.Iteration)
		}
	}
}
