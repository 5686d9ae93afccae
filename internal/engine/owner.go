package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/loopd/loopd/internal/engine/traffic"
	"github.com/loopd/loopd/internal/loop"
)

// owner drives one run under one lease. Only its goroutine touches the State.
type owner struct {
	e        *Engine
	lease    loop.Lease
	state    *loop.State
	log      *slog.Logger
	stop     context.CancelCauseFunc
	draining <-chan struct{}

	poked   chan struct{} // signals may wait
	pending bool          // signals do wait, or may
	waiting []loop.Signal // read, not yet taken
	seen    int64         // id of the newest signal taken
	held    *Batch        // folded, not yet written; see hold
	spans   *spans
	tally   *tally

	clock   clock
	asked   map[string]bool // calls that policies have been asked about
	place   place           // in the queue of the provider
	retryOf loop.ErrorClass // of the failure that the next model call tries again
	memo    loop.Memo       // what the adapter keeps for memoOf
	memoOf  memoKey
}

func newOwner(e *Engine, l loop.Lease, stop context.CancelCauseFunc, draining <-chan struct{}) *owner {
	return &owner{
		e: e, lease: l, stop: stop, draining: draining, poked: make(chan struct{}, 1), asked: map[string]bool{}, clock: clockOf(l), tally: newTally(e.metrics),
		log: e.cfg.Log.With("run", l.Run.ID, "epoch", l.Epoch),
	}
}

// poke tells the owner to look for signals.
func (o *owner) poke() {
	select {
	case o.poked <- struct{}{}:
	default:
	}
}

// drive takes the run as far as it goes under this lease: to its end, to a wait,
// or to the drain. It is the loop that the design describes.
func (o *owner) drive(ctx context.Context) error {
	if err := o.takeOver(ctx); err != nil {
		return err
	}
	defer func() { o.spans.end(o.state) }()
	defer o.place.leave(traffic.End{})
	for {
		if err := o.takeSignals(ctx); err != nil {
			return err
		}
		next := o.state.Next(o.clock.now())
		if _, waits := next.(loop.Suspend); o.isDraining() && !waits {
			return o.handBack(ctx)
		}
		released, err := o.perform(ctx, next)
		if errors.Is(err, loop.ErrSignalled) { // nothing was written, so nothing was released
			released, err = false, o.load(ctx) // the state holds an intent that was not written
		}
		if err != nil || released {
			return err
		}
	}
}

// takeOver reads the run and takes it over. This and handBack are no part of drive for
// their size: drive lies on the stack of all who wait for a model.
func (o *owner) takeOver(ctx context.Context) error {
	if err := o.load(ctx); err != nil {
		return err
	}
	o.log = o.log.With("tenant", o.lease.Run.Tenant, "agent", o.state.Spec().Agent, "trace_id", traceID(o.lease.Run, o.state.Spec().Traceparent).String())
	if err := o.begin(ctx); err != nil {
		return err
	}
	o.spans = o.e.startSpans(ctx, o.state)
	return nil
}

// handBack gives the run to another worker, as this one ends.
func (o *owner) handBack(ctx context.Context) error {
	return o.commit(ctx, batch{bodies: []loop.Body{loop.Suspended{Reason: loop.WaitDrain}}, release: true})
}

// begin takes the run over in its journal. Whether the workers that went silent on it
// are dead or were cut off is asked now, as nobody can tell later.
func (o *owner) begin(ctx context.Context) error {
	claimed := loop.Claimed{Attempt: o.state.Attempts() + 1, Worker: o.e.cfg.Worker, Recovered: o.state.InAttempt(), Leased: o.lease.ClaimedAt}
	if silent := o.state.Silent(); len(silent) > 0 {
		err := o.patiently(ctx, func(ctx context.Context) (err error) {
			claimed.Returned, err = o.e.cfg.Leases.Returned(ctx, silent)
			return err
		})
		if err != nil {
			return fmt.Errorf("look for lost workers: %w", err)
		}
	}
	if claimed.Recovered {
		o.e.metrics.recovered.WithLabelValues("lost_worker").Inc()
	}
	return o.commit(ctx, batch{bodies: []loop.Body{claimed}})
}

// load reads and folds the journal.
func (o *owner) load(ctx context.Context) error {
	var j Journaled
	err := o.patiently(ctx, func(ctx context.Context) (err error) {
		j, err = o.e.cfg.Journal.Load(ctx, o.lease)
		return err
	})
	if err != nil {
		return fmt.Errorf("load journal: %w", err)
	}
	state, err := foldJournal(o.lease.Run, j.Events)
	if err != nil {
		return err
	}
	state.TakeChangedCalls() // their heads were written with their events
	state.TakeFullResults()  // so were these
	o.state, o.waiting = state, j.Signals
	if o.spans != nil {
		o.spans.state = state
	}
	o.tally.begin(state, j.Events[len(j.Events)-1].At)
	return nil
}

// foldJournal folds a journal. One that makes the fold crash cannot be read.
func foldJournal(run loop.RunRef, events []loop.Event) (state *loop.State, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: it makes the fold crash: %v", errUnreadable, p)
		}
	}()
	if state, err = loop.Fold(run, events); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return state, nil
}

// takeSignals turns what waits into events, one commit each. A signal that comes
// too late to change anything is dropped with the next commit.
func (o *owner) takeSignals(ctx context.Context) error {
	select {
	case <-o.poked:
		o.pending = true
	default:
	}
	if o.pending {
		err := o.patiently(ctx, func(ctx context.Context) (err error) {
			o.waiting, err = o.e.cfg.Journal.Signals(ctx, o.lease)
			return err
		})
		if err != nil {
			return fmt.Errorf("read signals: %w", err)
		}
		o.pending = false
	}
	for _, s := range o.waiting {
		if s.ID <= o.seen {
			continue
		}
		o.seen = s.ID
		if !o.state.Accepts(s.Body) {
			o.log.InfoContext(ctx, "a signal came too late and was dropped", "kind", s.Body.Kind())
			continue
		}
		if err := o.commit(ctx, batch{bodies: []loop.Body{s.Body}}); err != nil {
			return err
		}
	}
	o.waiting = nil
	return nil
}

func (o *owner) isDraining() bool {
	select {
	case <-o.draining:
		return true
	default:
		return false
	}
}

// end says in one line how the tenure ended.
func (o *owner) end(ctx context.Context, err error) {
	switch {
	case err == nil:
		h := o.state.Head()
		reason := ""
		if h.Stop != nil {
			reason = string(h.Stop.Reason)
		}
		o.log.InfoContext(ctx, "run released", "state", h.State, "stop_reason", reason,
			"iterations", h.Iterations, "cost_usd", h.Cost.Total().String())
		o.e.metrics.leases.WithLabelValues(leaseReleased).Inc()
	case errors.Is(err, loop.ErrLeaseLost):
		o.log.WarnContext(ctx, "lease lost; the run goes on elsewhere")
		o.e.metrics.leases.WithLabelValues(leaseLost).Inc()
	case errors.Is(err, loop.ErrUnknownKind):
		o.log.WarnContext(ctx, "the run was written by a newer loopd and is left to others", "error", err)
		o.leaveToOthers(ctx)
	case errors.Is(err, loop.ErrCommitsLost):
		o.log.ErrorContext(ctx, "the database lost events of the run; it is left alone until this worker ends, as what was sent since is not in its journal", "error", err)
	case errors.Is(err, errUnreadable):
		o.log.ErrorContext(ctx, "the run's journal is broken; the run is left alone until this worker ends", "error", err)
	default:
		o.log.ErrorContext(ctx, "the run could not be driven", "error", err)
		o.abandon(ctx, err.Error())
	}
}
