package loop

import (
	"fmt"
	"time"
)

// tenure follows who drives the run and for how long: attempts, active time,
// and attempts that ended badly and brought nothing.
type tenure struct {
	attempts  int
	worker    string    // of the newest attempt
	epoch     int64     // of that one's lease
	leased    time.Time // when that one took it
	since     time.Time // start of the current attempt, zero between attempts
	lastEvent time.Time
	active    time.Duration // of the attempts that ended
	suspects  []Suspect     // in a row without progress; at most maxRecoveries
	doomed    bool          // a claim found so many: the run will be ended, whatever comes
	first     time.Time
	suspended *Suspended
	left      time.Time // when the run was suspended
}

func (t *tenure) applyClaimed(e Claimed, at time.Time, epoch int64) error {
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
		t.addSuspect(t.suspect())
	}
	t.clear(e.Returned)
	t.doomed = len(t.suspects) == maxRecoveries
	t.attempts, t.worker, t.epoch, t.leased, t.since, t.suspended = e.Attempt, e.Worker, epoch, e.Leased, at, nil
	if t.leased.IsZero() {
		t.leased = at
	}
	return nil
}

func (t *tenure) applySuspended(e Suspended, at time.Time) error {
	if t.since.IsZero() {
		return fmt.Errorf("suspended outside an attempt: %w", ErrImpossible)
	}
	if e.Reason == WaitCrash {
		crashed := t.suspect()
		crashed.Crash = e.Note
		t.addSuspect(crashed)
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
