package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// SubmitResult gives the result of a call that a client runs, or the answer to a
// question: once for each attempt of the call, before the deadline on the database's
// clock, all in one statement. It is durable when SubmitResult returns; the run's
// worker takes it as a signal. The outcome is loop.OutcomeOK or
// loop.OutcomePermanent.
//
// The same outcome and content again, for the same attempt, change nothing and are
// replayed. The errors are loop.ErrNotFound, ErrRunFinished, ErrExpired, ErrConflict,
// and NotWaitingError if the call is in another state or attempt, or if nobody
// outside gives its result.
func (s *Store) SubmitResult(ctx context.Context, run loop.RunRef, r loop.ResultSubmitted) (replayed bool, err error) {
	attempted := "submit the result of call " + r.CallID + " of run " + run.ID
	if r.Outcome != loop.OutcomeOK && r.Outcome != loop.OutcomePermanent {
		return false, fmt.Errorf("%s: outcome %q: use %q or %q", attempted, r.Outcome, loop.OutcomeOK, loop.OutcomePermanent)
	}
	_, body, err := loop.EncodeBody(r)
	if err != nil {
		return false, fmt.Errorf("%s: %w", attempted, err)
	}
	digest := resultDigest(r)
	var row db.SubmitResultRow
	err = s.inOne(ctx, func(q *db.Queries) (err error) {
		row, err = q.SubmitResult(ctx, db.SubmitResultParams{
			TenantID: run.Tenant, RunID: run.ID, CallID: r.CallID, Attempt: int32(r.Attempt),
			Body: body, Sha256: digest, Outcome: string(r.Outcome),
		})
		return err
	})
	switch {
	case err != nil || row.Accepted:
	case int(row.SubmittedAttempt) == r.Attempt && row.SubmittedSha256 == digest:
		replayed = true
	case int(row.SubmittedAttempt) == r.Attempt && r.Attempt > 0:
		err = ErrConflict
	case row.Ended:
		err = ErrRunFinished
	case row.Expired && loop.CallState(row.State) == loop.CallOffered && row.Owed != "" && int(row.Attempt) == r.Attempt:
		err = ErrExpired
	default:
		err = &NotWaitingError{State: loop.CallState(row.State), Attempt: int(row.Attempt)}
	}
	return replayed, wrap(attempted, err)
}

// resultDigest tells whether two submissions say the same.
func resultDigest(r loop.ResultSubmitted) string {
	sum := sha256.Sum256([]byte(string(r.Outcome) + "\x00" + r.Content))
	return hex.EncodeToString(sum[:])
}
