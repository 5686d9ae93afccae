package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
	"github.com/loopd/loopd/internal/tool"
)

// journal makes the store fit the engine's ports. The two packages do not know
// each other, so their batches are equal, but not the same type.
type journal struct{ store *postgres.Store }

func (j journal) Load(ctx context.Context, l loop.Lease) (engine.Journaled, error) {
	loaded, err := j.store.Load(ctx, l)
	return engine.Journaled(loaded), err
}

func (j journal) Append(ctx context.Context, l loop.Lease, b engine.Batch) error {
	if len(b.Events) == 0 {
		return j.store.Release(ctx, l)
	}
	err := j.store.Append(ctx, l, postgres.Batch(b))
	switch {
	case errors.Is(err, postgres.ErrUnknownOutcome): // whoever claims the run next reads the truth
		return fmt.Errorf("%w: %w", loop.ErrLeaseLost, err)
	case errors.Is(err, postgres.ErrOverBudget), errors.Is(err, postgres.ErrWrongSeq):
		return fmt.Errorf("%w: %w", loop.ErrRefused, err)
	}
	return err
}

func (j journal) Signals(ctx context.Context, l loop.Lease) ([]loop.Signal, error) {
	return j.store.Signals(ctx, l)
}

func (j journal) Renew(ctx context.Context, worker string, ttl time.Duration) error {
	return j.store.Renew(ctx, worker, ttl)
}

func (j journal) Claim(ctx context.Context, worker string, limit int) ([]loop.Lease, error) {
	return j.store.Claim(ctx, worker, limit)
}

func (j journal) Signalled(ctx context.Context, worker string) ([]loop.RunRef, error) {
	return j.store.Signalled(ctx, worker)
}

func (j journal) Retire(ctx context.Context, worker string) error { return j.store.Retire(ctx, worker) }

func (j journal) Listen(ctx context.Context, wake func()) error { return j.store.Listen(ctx, wake) }

// toolbox makes the tool runner fit the engine's port.
type toolbox struct{ *tool.Runner }

func (t toolbox) Call(ctx context.Context, req engine.ToolRequest) loop.ToolReply {
	return t.Runner.Call(ctx, tool.Request(req))
}
