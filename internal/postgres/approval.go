package postgres

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// ApprovalState is where an approval stands.
type ApprovalState string

// The states of an approval. Of a question, approved means answered, and denied
// that the answer was no result.
const (
	ApprovalPending   ApprovalState = "PENDING"
	ApprovalApproved  ApprovalState = "APPROVED"
	ApprovalDenied    ApprovalState = "DENIED"
	ApprovalExpired   ApprovalState = "EXPIRED"   // nobody decided in time
	ApprovalCancelled ApprovalState = "CANCELLED" // the call was given up first
)

// ApprovalKind is what a person is asked for.
type ApprovalKind string

// The kinds of approvals.
const (
	KindApprove ApprovalKind = "APPROVE" // to let a call be sent: see Decide
	KindAnswer  ApprovalKind = "ANSWER"  // to answer a question: see SubmitResult
)

// ApprovalRow is one entry of the inbox.
type ApprovalRow struct {
	Run          loop.RunRef
	Agent        string // resource name, "agents/{agent}"
	AgentVersion int64
	Kind         ApprovalKind
	State        ApprovalState
	// Call shows a decision at once, while the worker of the run has still to take it.
	Call loop.CallHead
}

// ApprovalFilter chooses approvals of a tenant. The zero value of a field chooses
// all.
type ApprovalFilter struct {
	State    ApprovalState
	Agent    string // resource name, "agents/{agent}"
	Tool     string // its name
	Run      string // run id
	PageSize int    // less than 1 is 1
	After    ApprovalCursor
}

// ApprovalCursor is a place in a list of approvals. The zero value is the start, and
// what follows the last page. It belongs to the filter that it came from.
type ApprovalCursor struct {
	At            time.Time // the deadline of those that wait, else when it was asked
	RunID, CallID string
}

// The ends of all lists.
const (
	firstID = "00000000-0000-0000-0000-000000000000"
	lastID  = "ffffffff-ffff-ffff-ffff-ffffffffffff"
)

// lastTime is later than anything.
func lastTime() time.Time { return time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC) }

// ListApprovals returns a page of approvals: of those that wait the earliest
// deadline first, otherwise the newest first.
func (s *Store) ListApprovals(ctx context.Context, tenant string, filter ApprovalFilter) (list []ApprovalRow, next ApprovalCursor, err error) {
	filter.PageSize = max(filter.PageSize, 1)
	rows, err := s.approvals(ctx, tenant, filter)
	if err != nil {
		return nil, ApprovalCursor{}, wrap("list approvals", err)
	}
	if len(rows) > filter.PageSize {
		rows = rows[:filter.PageSize]
		next = cursorOf(filter, rows[filter.PageSize-1])
	}
	for _, row := range rows {
		approval, err := readApproval(row)
		if err != nil {
			return nil, ApprovalCursor{}, err
		}
		list = append(list, approval)
	}
	return list, next, nil
}

// approvals reads one more than a page. Each list has an index of its own; a run has
// few calls, so that its list is cut here.
func (s *Store) approvals(ctx context.Context, tenant string, filter ApprovalFilter) ([]db.Approval, error) {
	after, size := filter.After, int32(filter.PageSize+1)
	switch {
	case filter.Run != "":
		rows, err := s.q.ListRunApprovals(ctx, db.ListRunApprovalsParams{TenantID: tenant, RunID: filter.Run})
		return filter.page(rows), err
	case filter.State == ApprovalPending:
		if after == (ApprovalCursor{}) {
			after.RunID = firstID
		}
		return s.q.ListWaitingApprovals(ctx, db.ListWaitingApprovalsParams{
			TenantID: tenant, AfterUntil: after.At, AfterRun: after.RunID, AfterCall: after.CallID,
			Agent: filter.Agent, Tool: filter.Tool, PageSize: size,
		})
	}
	if after == (ApprovalCursor{}) {
		after = ApprovalCursor{At: lastTime(), RunID: lastID}
	}
	return s.q.ListAskedApprovals(ctx, db.ListAskedApprovalsParams{
		TenantID: tenant, BeforeAsked: after.At, BeforeRun: after.RunID, BeforeCall: after.CallID,
		Approval: string(filter.State), Agent: filter.Agent, Tool: filter.Tool, PageSize: size,
	})
}

// page sorts and cuts the approvals of one run as SQL does those of all.
func (f ApprovalFilter) page(rows []db.Approval) []db.Approval {
	order := func(a, b ApprovalCursor) int {
		c := cmp.Or(a.At.Compare(b.At), cmp.Compare(a.CallID, b.CallID))
		if f.State != ApprovalPending {
			return -c
		}
		return c
	}
	rows = slices.DeleteFunc(rows, func(row db.Approval) bool {
		return f.State != "" && row.Approval != string(f.State) || f.Agent != "" && row.Agent != f.Agent ||
			f.Tool != "" && row.Tool != f.Tool ||
			f.After != (ApprovalCursor{}) && order(cursorOf(f, row), f.After) <= 0
	})
	slices.SortFunc(rows, func(a, b db.Approval) int { return order(cursorOf(f, a), cursorOf(f, b)) })
	return rows[:min(len(rows), f.PageSize+1)]
}

// cursorOf is the place of a row in the list that the filter chooses.
func cursorOf(f ApprovalFilter, row db.Approval) ApprovalCursor {
	at := row.AskedAt
	if f.State == ApprovalPending {
		at = row.UntilAt
	}
	return ApprovalCursor{At: timeOf(at), RunID: row.RunID, CallID: row.CallID}
}

// GetApproval reads what became of a call that was put before a person. The error
// is loop.ErrNotFound if there is no such call, or if it needed nobody.
func (s *Store) GetApproval(ctx context.Context, run loop.RunRef, callID string) (ApprovalRow, error) {
	row, err := s.q.GetApproval(ctx, db.GetApprovalParams{TenantID: run.Tenant, RunID: run.ID, CallID: callID})
	if err != nil {
		return ApprovalRow{}, wrap("read the approval of call "+callID+" of run "+run.ID, err)
	}
	return readApproval(row)
}

func readApproval(row db.Approval) (ApprovalRow, error) {
	call, err := readCall(db.ToolCall{
		RunID: row.RunID, CallID: row.CallID, Call: row.Call, Iteration: row.Iteration, ArgsSha256: row.ArgsSha256,
		Effect: row.Effect, State: row.State, Outcome: row.Outcome, Attempt: row.Attempt, IdemKey: row.IdemKey,
		Result: row.Result, Cut: row.Cut, Bytes: row.Bytes, StartedAt: row.StartedAt, FinishedAt: row.FinishedAt,
		UntilAt: row.UntilAt, ChildID: row.ChildID, Asked: row.Asked, AskedAt: row.AskedAt,
		DecidedAt: row.DecidedAt, DecidedBy: row.DecidedBy, Decision: row.Decision, Edited: row.Edited,
	})
	if err != nil {
		return ApprovalRow{}, err
	}
	if call.DecidedAt.IsZero() && row.Verdict != nil {
		verdict, err := decisionIn(row.Verdict)
		if err != nil {
			return ApprovalRow{}, fmt.Errorf("verdict on call %s of run %s: %w", row.CallID, row.RunID, err)
		}
		call.DecidedAt, call.DecidedBy, call.Decision = timeOf(row.VerdictAt), verdict.By, verdict.Reason
		call.Edited = verdict.Args
	}
	return ApprovalRow{
		Run: loop.RunRef{Tenant: row.TenantID, ID: row.RunID}, Agent: row.Agent, AgentVersion: row.AgentVersion,
		Kind: ApprovalKind(row.Kind), State: ApprovalState(row.Approval), Call: call,
	}, nil
}

// NotWaitingError says why a call takes no decision, or no result: it is an
// ErrNotWaiting.
type NotWaitingError struct {
	State   loop.CallState // where the call stands
	Attempt int            // of the call
	// Earlier is the decision that counts. Nil: there is none.
	Earlier *loop.ApprovalDecided
}

// Error says where the call stands.
func (e *NotWaitingError) Error() string {
	switch {
	case e.Earlier != nil && e.Earlier.Approved:
		return "the call was approved before"
	case e.Earlier != nil:
		return "the call was denied before"
	}
	return fmt.Sprintf("%v: it is %s", ErrNotWaiting, e.State)
}

// Unwrap is ErrNotWaiting.
func (e *NotWaitingError) Unwrap() error { return ErrNotWaiting }

// Decide approves or denies a call that waits for it: exactly once, for exactly the
// arguments of the hash, before the deadline on the database's clock, all in one
// statement. It is durable when Decide returns, and shows at once in GetApproval;
// the run's worker takes it as a signal.
//
// A repeated decision, equal in all fields, changes nothing and is replayed; so is one
// whose first try was committed unheard. The
// errors are loop.ErrNotFound, ErrRunFinished, ErrStaleHash, ErrExpired, and
// NotWaitingError with the decision that was made before.
func (s *Store) Decide(ctx context.Context, run loop.RunRef, d loop.ApprovalDecided) (replayed bool, err error) {
	_, body, err := loop.EncodeBody(d)
	if err != nil {
		return false, fmt.Errorf("decide on call %s of run %s: %w", d.CallID, run.ID, err)
	}
	var row db.DecideCallRow
	err = s.inOne(ctx, func(q *db.Queries) (err error) {
		row, err = q.DecideCall(ctx, db.DecideCallParams{
			TenantID: run.Tenant, RunID: run.ID, CallID: d.CallID, Body: body, Approved: d.Approved, ArgsSha256: d.ArgsHash,
		})
		return err
	})
	if err == nil && !row.Accepted {
		replayed, err = whyNotDecided(row, d.CallID, body)
	}
	return replayed, wrap("decide on call "+d.CallID+" of run "+run.ID, err)
}

// whyNotDecided explains why a decision was not accepted.
func whyNotDecided(row db.DecideCallRow, callID string, body []byte) (replayed bool, err error) {
	earlier, err := earlierDecision(row, callID)
	if err != nil {
		return false, err
	}
	if earlier != nil {
		_, before, err := loop.EncodeBody(*earlier)
		if err != nil || bytes.Equal(before, body) {
			return err == nil, err
		}
	}
	switch {
	case earlier != nil:
	case row.Ended:
		return false, ErrRunFinished
	case loop.CallState(row.State) != loop.CallAwaitingApproval:
	case row.Expired:
		return false, ErrExpired
	default:
		return false, ErrStaleHash
	}
	return false, &NotWaitingError{State: loop.CallState(row.State), Attempt: int(row.Attempt), Earlier: earlier}
}

// earlierDecision is the decision that counts for a call: the one in the journal,
// which a policy may have made, or time; else the one that waits to get there. Nil:
// there is none.
func earlierDecision(row db.DecideCallRow, callID string) (*loop.ApprovalDecided, error) {
	if row.VerdictApproved != nil {
		taken := row.DecidedAt == nil || *row.VerdictApproved == (loop.CallState(row.State) != loop.CallDenied)
		if taken {
			d, err := decisionIn(row.Verdict)
			return &d, err
		}
	}
	if row.DecidedAt == nil {
		return nil, nil //nolint:nilnil // as the comment says
	}
	d := loop.ApprovalDecided{
		CallID: callID, ArgsHash: row.ArgsSha256, Approved: loop.CallState(row.State) != loop.CallDenied, By: row.DecidedBy,
	}
	return &d, errors.Join(decode("decision", row.Decision, &d.Reason), decode("edited", row.Edited, &d.Args))
}

// decisionIn reads the decision in the body of a signal.
func decisionIn(body []byte) (loop.ApprovalDecided, error) {
	decoded, err := loop.DecodeBody(loop.ApprovalDecided{}.Kind(), body)
	if err != nil {
		return loop.ApprovalDecided{}, err
	}
	d, ok := decoded.(loop.ApprovalDecided)
	if !ok {
		return loop.ApprovalDecided{}, fmt.Errorf("a %s event is no decision: %w", decoded.Kind(), loop.ErrImpossible)
	}
	return d, nil
}
