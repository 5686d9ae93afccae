package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// Pause has a run pause at its next boundary. It is durable when Pause returns; the
// run is loop.StatePaused when it has happened. A run that is paused already, or that
// a guard has paused, stays as it is.
//
// The errors are loop.ErrNotFound, ErrRunFinished and ErrRunCancelling.
func (s *Store) Pause(ctx context.Context, run loop.RunRef, p loop.PauseRequested, idem Idempotency) error {
	err := s.holdBack(ctx, run, idem, true, func(_ Run, paused bool) (loop.Body, error) {
		if paused {
			return nil, nil //nolint:nilnil // nothing is left to say
		}
		return p, nil
	})
	return wrap("pause run "+run.ID, err)
}

// Resume ends a pause, also one that is asked for and has not happened yet. resume
// makes the word of the run as it stands, its limits and required actions included,
// or refuses with an error that Resume returns; it may be called more than once. It
// is durable when Resume returns.
//
// The errors are loop.ErrNotFound, ErrRunFinished, ErrRunCancelling and ErrNotPaused.
// After ErrUnknownOutcome the caller repeats with the same key.
func (s *Store) Resume(ctx context.Context, run loop.RunRef, resume func(Run) (loop.Resumed, error), idem Idempotency) error {
	err := s.holdBack(ctx, run, idem, idem.Key != "", func(standing Run, paused bool) (loop.Body, error) {
		if !paused {
			return nil, fmt.Errorf("%w: it is %s", ErrNotPaused, standing.Head.State)
		}
		return resume(standing)
	})
	return wrap("resume run "+run.ID, err)
}

// holdBack leaves with a run what say makes of it: nil says nothing. What people have
// said before, and the run's worker has not heard yet, counts as if it were heard.
func (s *Store) holdBack(ctx context.Context, run loop.RunRef, idem Idempotency, repeatable bool, say func(run Run, paused bool) (loop.Body, error)) error {
	return s.inTx(ctx, repeatable, func(q *db.Queries) error {
		if _, err := q.LockRun(ctx, db.LockRunParams{TenantID: run.Tenant, RunID: run.ID}); err != nil {
			return err
		}
		if _, used, err := idem.once(ctx, q, run.Tenant, run.ID); err != nil || used {
			return err
		}
		standing, paused, err := standingOf(ctx, q, run)
		if err != nil {
			return err
		}
		switch state := standing.Head.State; {
		case state.Terminal():
			return fmt.Errorf("%w: it is %s", ErrRunFinished, state)
		case state == loop.StateCancelling:
			return ErrRunCancelling
		}
		body, err := say(standing, paused)
		if err != nil || body == nil {
			return err
		}
		kind, encoded, err := loop.EncodeBody(body)
		if err != nil {
			return err
		}
		return leaveSignal(ctx, q, run, kind, encoded, false)
	})
}

// standingOf reads a run whose row is locked, and whether it is paused.
func standingOf(ctx context.Context, q *db.Queries, run loop.RunRef) (Run, bool, error) {
	row, err := q.GetRun(ctx, db.GetRunParams{TenantID: run.Tenant, RunID: run.ID})
	if err != nil {
		return Run{}, false, err
	}
	standing, err := readRun(row)
	if err != nil {
		return Run{}, false, err
	}
	signals, err := q.ListSignals(ctx, db.ListSignalsParams{TenantID: run.Tenant, RunID: run.ID})
	if err != nil {
		return Run{}, false, err
	}
	paused := isPaused(standing.Head)
	for _, signal := range signals {
		body, err := loop.DecodeBody(signal.Kind, signal.Body)
		if err != nil {
			return Run{}, false, fmt.Errorf("signal %d: %w", signal.ID, err)
		}
		switch b := body.(type) {
		case loop.PauseRequested:
			paused = true
		case loop.Resumed:
			paused, standing.Head.RequiredActions = false, nil
			if b.Limits != nil {
				standing.Limits = *b.Limits
			}
		}
	}
	return standing, paused, nil
}

// isPaused reads from a head whether its run is held back. It goes by the phase,
// which a worker that only takes a signal leaves alone, and not by the state.
func isPaused(h loop.Head) bool {
	return h.Phase == string(loop.WaitPaused) || h.Phase == string(loop.WaitBudget) ||
		slices.ContainsFunc(h.RequiredActions, func(a loop.RequiredAction) bool { return a.Kind == loop.RequireRaise })
}

// setLimits puts raised limits into force: for readers, and for the account that is
// the last line behind the guards.
func setLimits(p *db.AppendEventsParams, limits *loop.Limits) error {
	if limits == nil {
		return nil
	}
	cost := int64(limits.Cost)
	p.LimitPico = &cost
	return encode(&p.Limits, limits)
}
