package loop

import (
	"fmt"
	"time"
)

// tenure follows who drives the run and for how long: attempts, active time,
// and recoveries that brought nothing.
type tenure struct {
	attempts   int
	since      time.Time // start of the current attempt, zero between attempts
	lastEvent  time.Time
	active     time.Duration // of the attempts that ended
	recoveries int           // in a row without progress
	first      time.Time
	suspended  *Suspended
	left       time.Time // when the run was suspended
}

func (t *tenure) applyClaimed(e Claimed, at time.Time) error {
	if e.Attempt != t.attempts+1 {
		return fmt.Errorf("attempt %d follows %d: %w", e.Attempt, t.attempts, ErrImpossible)
	}
	if !t.since.IsZero() { // the last owner died: it was active until its last word
		t.active += t.lastEvent.Sub(t.since)
	}
	if t.suspended != nil && t.suspended.Reason.ofProvider() {
		t.active += at.Sub(t.left)
	}
	if t.first.IsZero() {
		t.first = at
	}
	if e.Recovered {
		t.recoveries++
	}
	t.attempts, t.since, t.suspended = e.Attempt, at, nil
	return nil
}

func (t *tenure) applySuspended(e Suspended, at time.Time) error {
	if t.since.IsZero() {
		return fmt.Errorf("suspended outside an attempt: %w", ErrImpossible)
	}
	t.active += at.Sub(t.since)
	t.since, t.suspended, t.left = time.Time{}, &e, at
	return nil
}

// elapsed is the run's active time at now. Waiting for a provider is active time,
// with a worker or without one; waiting for people is not.
func (t *tenure) elapsed(now time.Time) time.Duration {
	switch {
	case t.since.IsZero() && t.suspended != nil && t.suspended.Reason.ofProvider():
		return t.active + max(0, now.Sub(t.left))
	case t.since.IsZero():
		return t.active
	}
	return t.active + max(0, now.Sub(t.since))
}
