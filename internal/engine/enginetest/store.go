package enginetest

import (
	"context"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
)

// Store is all that keeps runs: what the engine sees of it, and what the
// server does to it. Conformance says what it must hold.
type Store interface {
	engine.Journal
	engine.Leases
	engine.Accounts

	// CreateRun makes a run that can be claimed at once. Its event 1 is
	// loop.Created with the spec.
	CreateRun(ctx context.Context, run loop.RunRef, spec loop.Spec) error

	// Signal leaves a signal for the run: loop.CancelRequested, loop.PauseRequested,
	// loop.Resumed, loop.ApprovalDecided or loop.CallResolved. A waiting run wakes.
	Signal(ctx context.Context, run loop.RunRef, body loop.Body) error

	// SetBudget makes a budget for all runs of the tenant, for all time, or changes it.
	// Runs that wait for it wake.
	SetBudget(ctx context.Context, tenant, name string, amount loop.USD, act loop.Verdict) error

	// Standing is what runs have spent of a budget, and what they have drawn besides.
	Standing(ctx context.Context, tenant, name string) (spent, held loop.USD, err error)
}
