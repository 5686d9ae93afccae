package enginetest

import (
	"context"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
)

// Store is all that keeps runs: what the engine sees of it, and the two things
// that the server does to it. Conformance says what it must hold.
type Store interface {
	engine.Journal
	engine.Leases

	// CreateRun makes a run that can be claimed at once. Its event 1 is
	// loop.Created with the spec.
	CreateRun(ctx context.Context, run loop.RunRef, spec loop.Spec) error

	// Signal leaves a signal for the run: loop.CancelRequested, loop.PauseRequested,
	// loop.Resumed, loop.ApprovalDecided or loop.CallResolved. A waiting run wakes.
	Signal(ctx context.Context, run loop.RunRef, body loop.Body) error
}
