package loop

import (
	"errors"
	"fmt"
)

var (
	// ErrUnknownKind means: a journal holds an event that this version does not know.
	ErrUnknownKind = errors.New("written by a newer version of loopd")
	// ErrImpossible means: an event cannot follow the ones before it. The journal or
	// the program is broken; the run must not go on.
	ErrImpossible = errors.New("event cannot follow")
	// ErrLeaseLost means: another worker owns the run. Stop at once and write nothing.
	ErrLeaseLost = errors.New("lease lost")
	// ErrSignalled means: a signal arrived for the run since the state was folded, so
	// the intent was not written. Take the signal and ask Next again.
	ErrSignalled = errors.New("a signal is waiting")
	// ErrRefused means: the journal will never take these events: they break an
	// invariant of the database. The run must not go on in this attempt.
	ErrRefused = errors.New("the journal refused the events")
	// ErrCommitsLost means: the journal is shorter than it has said before. A failover to
	// a standby that lagged behind does that. What was sent meanwhile is known to nobody
	// else, so the run must not go on by itself. It is an ErrRefused too.
	ErrCommitsLost = fmt.Errorf("the database has lost commits that it had acknowledged: %w", ErrRefused)
	// ErrNotFound means: no such run, agent or call for this tenant.
	ErrNotFound = errors.New("not found")
)
