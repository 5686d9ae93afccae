package postgres

import (
	"cmp"
	"context"
	"fmt"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// Signal says something to a run: a loop.CancelRequested, loop.ApprovalDecided or
// loop.CallResolved. It does not look at the call, as Decide does; Pause and Resume
// are for those. It is durable when Signal returns; whoever owns the run, now or
// next, takes it. From then on no intent is written that has not seen it.
//
// A cancel shows at once as the state CANCELLING; a second one changes nothing. The
// error is loop.ErrNotFound if there is no such run, and ErrRunFinished if it has
// ended. After ErrUnknownOutcome the caller repeats with the same key: without one
// it is not known whether the signal is there, and a resolution must not count twice.
func (s *Store) Signal(ctx context.Context, run loop.RunRef, body loop.Body, idem Idempotency) error {
	_, cancel := body.(loop.CancelRequested)
	switch body.(type) {
	case loop.CancelRequested, loop.ApprovalDecided, loop.CallResolved:
	default:
		return fmt.Errorf("signal run %s: a %s event is not something to be said from outside", run.ID, body.Kind())
	}
	kind, encoded, err := loop.EncodeBody(body)
	if err != nil {
		return fmt.Errorf("signal run %s: %w", run.ID, err)
	}
	var ended error
	// A second cancel changes nothing, so it may be repeated without a key.
	err = s.inTx(ctx, idem.Key != "" || cancel, func(q *db.Queries) error {
		ended = nil
		state, err := q.LockRun(ctx, db.LockRunParams{TenantID: run.Tenant, RunID: run.ID})
		if err != nil {
			return err
		}
		if _, used, err := idem.once(ctx, q, run.Tenant, run.ID); err != nil || used {
			return err
		}
		if cancel && loop.RunState(state) == loop.StateCancelling {
			return nil
		}
		if loop.RunState(state).Terminal() {
			ended = fmt.Errorf("%w: it is %s", ErrRunFinished, state)
			if cancel && loop.RunState(state) == loop.StateCancelled {
				return nil // as good as an acknowledgement: it has to wait for the standbys, see Confirm
			}
			return ended
		}
		return leaveSignal(ctx, q, run, kind, encoded, cancel)
	})
	return wrap("signal run "+run.ID, cmp.Or(err, ended))
}

// Confirm waits until what was read of a run is safe to acknowledge: what is shown may
// still wait for a synchronous standby, and the commit of a lock waits for it too. The
// error is loop.ErrNotFound if there is no such run.
func (s *Store) Confirm(ctx context.Context, run loop.RunRef) error {
	err := s.inTx(ctx, true, func(q *db.Queries) error {
		_, err := q.LockRun(ctx, db.LockRunParams{TenantID: run.Tenant, RunID: run.ID})
		return err
	})
	return wrap("confirm what was said to run "+run.ID, err)
}

// leaveSignal leaves a signal with a run whose row is locked, and wakes it.
func leaveSignal(ctx context.Context, q *db.Queries, run loop.RunRef, kind string, body []byte, cancel bool) error {
	id, err := q.InsertSignal(ctx, db.InsertSignalParams{TenantID: run.Tenant, RunID: run.ID, Kind: kind, Body: body})
	if err != nil {
		return err
	}
	if err := q.SignalRun(ctx, db.SignalRunParams{TenantID: run.Tenant, RunID: run.ID, Signal: id, Cancel: cancel}); err != nil {
		return err
	}
	return q.NotifyWake(ctx)
}
