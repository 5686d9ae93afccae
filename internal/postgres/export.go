package postgres

import (
	"context"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// ModelCall is a model call as its hold tells it.
type ModelCall struct {
	Call         int // counted from 1 in its run
	Model        string
	Purpose      string // empty: of the conversation
	PriceVersion string
	StartedAt    time.Time
	SettledAt    time.Time // zero: it is in flight
	Hold         loop.USD
	Cost         loop.USD // once it is settled
	Estimated    bool     // charged without reported usage

	InputUncached, CacheRead, CacheWrite, Output, Reasoning int64 // tokens
}

// ModelCalls returns the model calls of a run, in order.
func (s *Store) ModelCalls(ctx context.Context, run loop.RunRef) ([]ModelCall, error) {
	rows, err := s.q.ListModelCalls(ctx, db.ListModelCallsParams{TenantID: run.Tenant, RunID: run.ID})
	if err != nil {
		return nil, wrap("read the model calls of run "+run.ID, err)
	}
	calls := make([]ModelCall, len(rows))
	for i, row := range rows {
		calls[i] = ModelCall{
			Call: int(row.Call), Model: row.Model, Purpose: row.Purpose, PriceVersion: row.PriceVersion,
			StartedAt: row.OpenedAt.UTC(), SettledAt: timeOf(row.SettledAt), Hold: loop.USD(row.AmountPico), Estimated: row.Estimated,
			InputUncached: row.InputUncached, CacheRead: row.CacheRead, CacheWrite: row.CacheWrite5m + row.CacheWrite1h,
			Output: row.Output, Reasoning: row.Reasoning,
		}
		if row.SettledPico != nil {
			calls[i].Cost = loop.USD(*row.SettledPico)
		}
	}
	return calls, nil
}

// EachFullResult hands over the results of a run's tool calls of which the model was
// shown a part, one at a time, as together they may be large.
func (s *Store) EachFullResult(ctx context.Context, run loop.RunRef, take func(loop.FullResult) error) error {
	attempted := "read the full results of run " + run.ID
	keys, err := s.q.ListResultKeys(ctx, db.ListResultKeysParams{TenantID: run.Tenant, RunID: run.ID})
	if err != nil {
		return wrap(attempted, err)
	}
	for _, key := range keys {
		column, err := s.q.GetResultOf(ctx, db.GetResultOfParams{TenantID: run.Tenant, RunID: run.ID, CallID: key.CallID, Attempt: key.Attempt})
		if err != nil {
			return wrap(attempted, err)
		}
		full := loop.FullResult{CallID: key.CallID, Attempt: int(key.Attempt)}
		if err := decode("text", column, &full.Text); err != nil {
			return err
		}
		if err := take(full); err != nil {
			return err
		}
	}
	return nil
}

// EachAttachment hands over the data of a run's attachments, by their index in
// loop.Spec.Attachments.
func (s *Store) EachAttachment(ctx context.Context, run loop.RunRef, take func(index int, data []byte) error) error {
	rows, err := s.q.ListAttachments(ctx, db.ListAttachmentsParams{TenantID: run.Tenant, RunID: run.ID})
	if err != nil {
		return wrap("read the attachments of run "+run.ID, err)
	}
	for _, row := range rows {
		if err := take(int(row.Place), row.Data); err != nil {
			return err
		}
	}
	return nil
}
