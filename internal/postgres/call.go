package postgres

import (
	"context"
	"fmt"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// ToolCalls lists the tool calls of a run in the order in which the model asked. It
// is empty if there is no such run.
func (s *Store) ToolCalls(ctx context.Context, run loop.RunRef) ([]loop.CallHead, error) {
	rows, err := s.q.ListToolCalls(ctx, db.ListToolCallsParams{TenantID: run.Tenant, RunID: run.ID})
	if err != nil {
		return nil, wrap("list tool calls of run "+run.ID, err)
	}
	calls := make([]loop.CallHead, len(rows))
	for i, row := range rows {
		if calls[i], err = readWhole(row.ToolCall, row.Kind, row.Body); err != nil {
			return nil, err
		}
	}
	return calls, nil
}

// RunCall is a tool call outside the list of its run.
type RunCall struct {
	Run   loop.RunRef
	Agent string // resource name, "agents/{agent}"
	Call  loop.CallHead
}

// CallFilter chooses waiting calls of a tenant. The zero value of a field chooses
// all.
type CallFilter struct {
	States   []loop.CallState // of AWAITING_APPROVAL, AWAITING_RESULT and IN_DOUBT
	Tool     string           // its name
	PageSize int              // less than 1 is 1
	After    CallCursor
}

// CallCursor is a place in the list of waiting calls. The zero value is the start,
// and what follows the last page.
type CallCursor struct {
	RunID string
	Place int // of the call in its run, counted from 1
}

// ListWaitingCalls returns a page of the calls, of runs that have not ended, that wait
// for somebody's word or result: in doubt, to be approved, to be run by others. They
// are in the order of their runs' ids.
func (s *Store) ListWaitingCalls(ctx context.Context, tenant string, filter CallFilter) (calls []RunCall, next CallCursor, err error) {
	after, size := filter.After, max(filter.PageSize, 1)
	if after == (CallCursor{}) {
		after.RunID = firstID
	}
	states := make([]string, len(filter.States))
	for i, state := range filter.States {
		states[i] = string(state)
	}
	rows, err := s.q.ListWaitingCalls(ctx, db.ListWaitingCallsParams{
		TenantID: tenant, AfterRun: after.RunID, AfterOrdinal: int32(after.Place),
		States: states, Tool: filter.Tool, PageSize: int32(size + 1),
	})
	if err != nil {
		return nil, CallCursor{}, wrap("list waiting calls", err)
	}
	if len(rows) > size {
		rows = rows[:size]
		last := rows[size-1].ToolCall
		next = CallCursor{RunID: last.RunID, Place: int(last.Ordinal)}
	}
	for _, row := range rows {
		head, err := readCall(row.ToolCall)
		if err != nil {
			return nil, CallCursor{}, err
		}
		calls = append(calls, RunCall{Run: loop.RunRef{Tenant: tenant, ID: row.ToolCall.RunID}, Agent: row.Agent, Call: head})
	}
	return calls, next, nil
}

// CountWaitingCalls counts the waiting calls of all tenants, by state. All three states are
// in the map.
func (s *Store) CountWaitingCalls(ctx context.Context) (map[loop.CallState]int64, error) {
	rows, err := s.q.CountWaitingCalls(ctx)
	if err != nil {
		return nil, wrap("count waiting calls", err)
	}
	counts := map[loop.CallState]int64{loop.CallAwaitingApproval: 0, loop.CallOffered: 0, loop.CallInDoubt: 0}
	for _, row := range rows {
		counts[loop.CallState(row.State)] = row.Calls
	}
	return counts, nil
}

// readWhole is readCall with the result from its event, if that is where it is: an older
// program that gave the call another result has left it in the head. The result is empty
// if retention has taken the journal, and is about to take the head.
func readWhole(row db.ToolCall, kind *string, event []byte) (loop.CallHead, error) {
	c, err := readCall(row)
	if err != nil || kind == nil || c.Result != "" {
		return c, err
	}
	body, err := loop.DecodeBody(*kind, event)
	if err != nil {
		return c, fmt.Errorf("read the result of tool call %s of run %s: %w", row.CallID, row.RunID, err)
	}
	_, c.Result = resultIn(body)
	return c, nil
}

// readCall turns a row into a head. Its result is empty if the row only says where it is.
func readCall(row db.ToolCall) (loop.CallHead, error) {
	c := loop.CallHead{
		Iteration: int(row.Iteration), Effect: loop.Effect(row.Effect), State: loop.CallState(row.State),
		Outcome: loop.Outcome(row.Outcome), Attempt: int(row.Attempt), Key: row.IdemKey, ArgsHash: row.ArgsSha256,
		Cut: row.Cut, Bytes: row.Bytes, StartedAt: timeOf(row.StartedAt), FinishedAt: timeOf(row.FinishedAt),
		Until: timeOf(row.UntilAt), AskedAt: timeOf(row.AskedAt), DecidedAt: timeOf(row.DecidedAt), DecidedBy: row.DecidedBy,
	}
	if row.ChildID != nil {
		c.ChildID = *row.ChildID
	}
	for _, column := range []struct {
		name string
		from []byte
		to   any
	}{
		{"call", row.Call, &c.Call}, {"result", row.Result, &c.Result},
		{"asked", row.Asked, &c.Asked}, {"decision", row.Decision, &c.Decision}, {"edited", row.Edited, &c.Edited},
	} {
		if err := decode(column.name, column.from, column.to); err != nil {
			return loop.CallHead{}, fmt.Errorf("read tool call %s of run %s: %w", row.CallID, row.RunID, err)
		}
	}
	return c, nil
}
