package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/loopd/loopd/internal/loop"
)

var (
	// ErrKeyReused means: the idempotency key was used for another request.
	ErrKeyReused = errors.New("the idempotency key was used for another request")
	// ErrRunFinished means: the run has ended, and an ended run never changes.
	ErrRunFinished = errors.New("the run has ended")
	// ErrRunCancelling means: a cancel was accepted, so that the run is not paused any
	// more, and not resumed.
	ErrRunCancelling = errors.New("the run is being cancelled")
	// ErrNotPaused means: there is nothing to resume from.
	ErrNotPaused = errors.New("the run is not paused")
	// ErrAgentExists means: the agent id is taken, maybe by an archived agent.
	ErrAgentExists = errors.New("the agent id is taken")
	// ErrAgentArchived means: an archived agent takes no changes.
	ErrAgentArchived = errors.New("the agent is archived")
	// ErrVersionNotFound means: the agent has no such version. It is a loop.ErrNotFound too.
	ErrVersionNotFound = fmt.Errorf("agent version %w", loop.ErrNotFound)
	// ErrOverBudget means: a hold does not fit the account's limit, or what the run has
	// drawn from a budget. The guards should have seen this coming; the database refuses
	// it in any case. It is a loop.ErrRefused too.
	ErrOverBudget = fmt.Errorf("the hold does not fit the account's limit: %w", loop.ErrRefused)
	// ErrWrongSeq means: the first event of a batch is not the next of its run. The
	// caller's picture of the journal is broken. It is a loop.ErrRefused too.
	ErrWrongSeq = fmt.Errorf("the batch does not continue the journal: %w", loop.ErrRefused)
	// ErrUnavailable means: Postgres could not be reached, or did not answer in time.
	// Nothing was changed, unless the error is an ErrUnknownOutcome as well.
	ErrUnavailable = errors.New("the database is not available")
	// ErrUnknownOutcome means: the connection broke at commit and the truth could not be
	// read before the context ended. It is an ErrUnavailable too.
	ErrUnknownOutcome = fmt.Errorf("the outcome is unknown: %w", ErrUnavailable)
	// ErrNotWaiting means: the call does not wait for this. See NotWaitingError.
	ErrNotWaiting = errors.New("the call does not wait for it")
	// ErrStaleHash means: the decision is about other arguments than the call has.
	ErrStaleHash = errors.New("the decision is about other arguments")
	// ErrExpired means: the deadline has passed, on the database's clock.
	ErrExpired = errors.New("the deadline has passed")
	// ErrConflict means: another result was accepted for the same attempt of the call.
	ErrConflict = errors.New("another result was accepted before")
	// ErrToolExists means: the tool id is taken, maybe by an archived tool.
	ErrToolExists = errors.New("the tool id is taken")
	// ErrToolArchived means: an archived tool takes no changes.
	ErrToolArchived = errors.New("the tool is archived")
	// ErrToolVersionNotFound means: the tool has no such version. It is a loop.ErrNotFound too.
	ErrToolVersionNotFound = fmt.Errorf("tool version %w", loop.ErrNotFound)
	// ErrPolicyExists means: the policy id is taken, maybe by an archived policy.
	ErrPolicyExists = errors.New("the policy id is taken")
	// ErrPolicyArchived means: an archived policy takes no changes.
	ErrPolicyArchived = errors.New("the policy is archived")
	// ErrPolicyVersionNotFound means: the policy has no such version. It is a loop.ErrNotFound too.
	ErrPolicyVersionNotFound = fmt.Errorf("policy version %w", loop.ErrNotFound)
	// ErrBudgetExists means: the budget id is taken, maybe by an archived budget.
	ErrBudgetExists = errors.New("the budget id is taken")
	// ErrBudgetArchived means: an archived budget takes no changes.
	ErrBudgetArchived = errors.New("the budget is archived")
	// ErrNoteBound means: a note is longer, or there are more of them, than allowed. The
	// text names the bound.
	ErrNoteBound = errors.New("beyond the bounds of notes")
	// ErrSchema means: the database lacks migrations that this program needs.
	ErrSchema = errors.New("the database schema is too old")
)

// SQLSTATE codes that the store acts on.
const (
	codeUniqueViolation      = "23505"
	codeCheckViolation       = "23514"
	codeSerialization        = "40001"
	codeDeadlock             = "40P01"
	codeLockTimeout          = "55P03"
	codeQueryCanceled        = "57014"
	codeReadOnly             = "25006"
	codeDiskFull             = "53100"
	codeTooManyConnections   = "53300"
	codeUndefinedTable       = "42P01"
	constraintWithinLimit    = "accounts_within_limit"
	constraintWithinDrawn    = "chunks_within_drawn"
	classData                = "22"
	classConstraint          = "23"
	classConnectionException = "08"
	classOperatorIntervened  = "57"
)

// unknownOutcome reports whether the statement that failed with err may have been
// committed: no answer of the server says what became of it. It does not ask
// pgconn.SafeToRetry, which says yes to the "conn closed" of a commit whose reply
// was lost (pgx 5.12.0, see TestUnknownOutcomeOfASignal).
func unknownOutcome(err error) bool {
	if err == nil || errors.Is(err, pgx.ErrNoRows) || errors.Is(err, pgx.ErrTxCommitRollback) {
		return false
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		// A session that is ended from outside may have committed just before.
		return pgErr.SeverityUnlocalized == "FATAL" || pgErr.SeverityUnlocalized == "PANIC"
	}
	return !notConnected(err)
}

// conflicted reports whether the same transaction may well succeed when it is
// repeated at once: it lost against another one.
func conflicted(err error) bool {
	switch sqlState(err) {
	case codeSerialization, codeDeadlock, codeLockTimeout:
		return true
	}
	return false
}

// notConnected reports whether there was no connection to send anything on.
func notConnected(err error) bool {
	_, ok := errors.AsType[*pgconn.ConnectError](err)
	return ok
}

// disconnected reports whether err says that the connection broke or that there
// was none. Nothing of a transaction that had not come to its commit is left.
func disconnected(err error) bool {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.SeverityUnlocalized == "FATAL" || pgErr.SeverityUnlocalized == "PANIC"
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return notConnected(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, pgconn.ErrConnClosed)
}

func sqlState(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// invariant reports whether the database will never take these values.
func invariant(err error) bool {
	code := sqlState(err)
	return code != "" && (code[:2] == classData || code[:2] == classConstraint)
}

// wrap says what was attempted, and sorts err for callers.
func wrap(attempted string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%s: %w", attempted, loop.ErrNotFound)
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && (pgErr.ConstraintName == constraintWithinLimit || pgErr.ConstraintName == constraintWithinDrawn) {
		return fmt.Errorf("%s: %w", attempted, ErrOverBudget)
	}
	if !errors.Is(err, ErrUnavailable) && unavailable(err) {
		return fmt.Errorf("%s: %w: %w", attempted, ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", attempted, err)
}

// unavailable reports whether err says that Postgres is away, overloaded or a
// standby, so that the same request may succeed later.
func unavailable(err error) bool {
	if errors.Is(err, context.Canceled) {
		return false
	}
	switch errorClass(err) {
	case "connection", "timeout", "lock_timeout", "read_only", "resources":
		return true
	}
	return false
}

// errorClass is the label of loopd_db_errors_total: a closed set.
func errorClass(err error) string {
	code := sqlState(err)
	switch code {
	case "":
		if errors.Is(err, context.DeadlineExceeded) {
			return "timeout"
		}
		if errors.Is(err, context.Canceled) {
			return "cancelled"
		}
		if disconnected(err) || errors.Is(err, puddle.ErrClosedPool) { // closed: this process is going away
			return "connection"
		}
		return "other"
	case codeUniqueViolation, codeCheckViolation:
		return "constraint"
	case codeSerialization, codeDeadlock:
		return "conflict"
	case codeLockTimeout:
		return "lock_timeout"
	case codeQueryCanceled:
		return "timeout"
	case codeReadOnly:
		return "read_only"
	case codeDiskFull, codeTooManyConnections:
		return "resources"
	}
	switch code[:2] {
	case classConnectionException, classOperatorIntervened:
		return "connection"
	}
	return "other"
}
