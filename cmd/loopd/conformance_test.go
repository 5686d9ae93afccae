package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
	"github.com/loopd/loopd/internal/postgres/pgtest"
)

// realStore is Postgres behind the ports that the engine uses.
type realStore struct{ ports }

func (s realStore) CreateRun(ctx context.Context, run loop.RunRef, spec loop.Spec) error {
	_, _, err := s.store.CreateRun(ctx, run, spec, postgres.Idempotency{})
	return err
}

func (s realStore) Signal(ctx context.Context, run loop.RunRef, body loop.Body) error {
	switch b := body.(type) {
	case loop.PauseRequested:
		return s.store.Pause(ctx, run, b, postgres.Idempotency{})
	case loop.Resumed:
		return s.store.Resume(ctx, run, func(postgres.Run) (loop.Resumed, error) { return b, nil }, postgres.Idempotency{})
	}
	return s.store.Signal(ctx, run, body, postgres.Idempotency{})
}

func (s realStore) SetBudget(ctx context.Context, tenant, name string, amount loop.USD, act loop.Verdict) error {
	b := postgres.Budget{Name: name, Window: postgres.WindowTotal, TimeZone: "UTC", Amount: amount, Act: act}
	_, err := s.store.CreateBudget(ctx, tenant, b, postgres.BudgetAuthor{}, postgres.Idempotency{})
	if !errors.Is(err, postgres.ErrBudgetExists) {
		return err
	}
	_, err = s.store.ChangeBudget(ctx, tenant, name, postgres.BudgetAuthor{}, postgres.Idempotency{}, func(postgres.Budget) (postgres.BudgetTerms, error) {
		return b.Terms(), nil
	})
	return err
}

func (s realStore) Standing(ctx context.Context, tenant, name string) (spent, held loop.USD, err error) {
	status, err := s.store.GetBudget(ctx, tenant, name)
	if err != nil {
		return 0, 0, err
	}
	return status.Current.Committed, status.Current.Held, nil
}

// TestPostgresConforms runs the suite that keeps the engine's fake honest on the
// real thing.
func TestPostgresConforms(t *testing.T) {
	enginetest.Conformance(t, func(t *testing.T) enginetest.Store {
		t.Helper()
		s, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.URL(t), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return realStore{ports{s}}
	})
}
