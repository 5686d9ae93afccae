package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// addFull adds the whole text of a result of which the model was shown a part.
func addFull(p *db.AppendEventsParams, full loop.FullResult) error {
	var text []byte
	if err := encode(&text, full.Text); err != nil {
		return err
	}
	p.FullCalls = append(p.FullCalls, full.CallID)
	p.FullAttempts = append(p.FullAttempts, int32(full.Attempt))
	p.FullTexts = append(p.FullTexts, string(text))
	return nil
}

// FullResult returns what a tool call brought, all that loopd read of it, with the
// call's head. The error is loop.ErrNotFound if the run has no such call; a call that
// has no result yet has an empty one.
func (s *Store) FullResult(ctx context.Context, run loop.RunRef, callID string) (text string, call loop.CallHead, err error) {
	attempted := "read the result of call " + callID + " of run " + run.ID
	row, err := s.q.GetToolCall(ctx, db.GetToolCallParams{TenantID: run.Tenant, RunID: run.ID, CallID: callID})
	if err != nil {
		return "", loop.CallHead{}, wrap(attempted, err)
	}
	if call, err = readWhole(row.ToolCall, row.Kind, row.Body); err != nil {
		return "", loop.CallHead{}, err
	}
	full, err := s.q.GetFullResult(ctx, db.GetFullResultParams{TenantID: run.Tenant, RunID: run.ID, CallID: callID})
	if errors.Is(err, pgx.ErrNoRows) { // it was short enough for the model
		return call.Result, call, nil
	}
	if err != nil {
		return "", loop.CallHead{}, wrap(attempted, err)
	}
	return text, call, decode("text", full, &text)
}
