package engine

import (
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// clock is the time that one tenure goes by. Deadlines are the database's: a worker
// that is behind it would find them not yet reached, again and again.
type clock struct{ ahead time.Duration }

// clockOf takes the database's time from the claim, if it is ahead of this process.
func clockOf(l loop.Lease) clock {
	if l.ClaimedAt.IsZero() {
		return clock{}
	}
	return clock{max(0, time.Until(l.ClaimedAt))}
}

// now is the time as Postgres keeps it.
func (c clock) now() time.Time {
	return time.Now().Add(c.ahead).UTC().Truncate(time.Microsecond)
}
