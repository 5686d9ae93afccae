package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// ports makes the store fit the engine's ports. The two packages do not know
// each other, so their batches are equal, but not the same type.
type ports struct{ store *postgres.Store }

func (p ports) Load(ctx context.Context, l loop.Lease) (engine.Journaled, error) {
	loaded, err := p.store.Load(ctx, l)
	return engine.Journaled(loaded), err
}

func (p ports) Append(ctx context.Context, l loop.Lease, b engine.Batch) error {
	if len(b.Events) == 0 {
		return p.store.Release(ctx, l)
	}
	err := p.store.Append(ctx, l, postgres.Batch(b))
	if errors.Is(err, postgres.ErrUnknownOutcome) { // whoever claims the run next reads the truth
		return fmt.Errorf("%w: %w", loop.ErrRefused, err)
	}
	return err
}

func (p ports) Signals(ctx context.Context, l loop.Lease) ([]loop.Signal, error) {
	return p.store.Signals(ctx, l)
}

func (p ports) Draw(ctx context.Context, l loop.Lease, need loop.AccountNeed) (*loop.AccountRefused, error) {
	return p.store.Draw(ctx, l, need)
}

func (p ports) Renew(ctx context.Context, worker string, ttl time.Duration) error {
	return p.store.Renew(ctx, worker, ttl)
}

func (p ports) Claim(ctx context.Context, worker string, room loop.Room) ([]loop.Lease, error) {
	return p.store.ClaimFairly(ctx, worker, room)
}

func (p ports) Signalled(ctx context.Context, worker string) ([]loop.RunRef, error) {
	return p.store.Signalled(ctx, worker)
}

func (p ports) Returned(ctx context.Context, suspects []loop.Suspect) ([]string, error) {
	return p.store.Returned(ctx, suspects)
}

func (p ports) Retire(ctx context.Context, worker string) error { return p.store.Retire(ctx, worker) }

func (p ports) Listen(ctx context.Context, wake func()) error { return p.store.Listen(ctx, wake) }
