package traffic

import (
	"fmt"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

const (
	// tripCount failures within tripSpan open the circuit.
	tripCount = 5
	tripSpan  = time.Minute
	// firstPause is how long the circuit then stays open. It doubles with every
	// probe that fails, up to longestPause: three tries of one call then outlast
	// an outage of 30 + 60 + 120 s.
	firstPause   = 30 * time.Second
	longestPause = 5 * time.Minute
	// quotaPause is how long an empty account keeps the circuit open: until
	// people have paid, and the probe that finds out is free.
	quotaPause = 5 * time.Minute
)

// The states of a circuit, as State names them.
const (
	closed   = "closed"
	halfOpen = "half_open"
	open     = "open"
)

// verdict is what the end of a request says about the provider.
type verdict int

const (
	silent   verdict = iota // nothing: loopd ended it itself
	alive                   // it answers, if only to refuse this one request
	answered                // it works
	failing                 // it does not work
	unpaid                  // it will not work until somebody pays
)

// judge is the table in the package comment.
func judge(class loop.ErrorClass) verdict {
	switch class {
	case "":
		return answered
	case loop.ErrorServer, loop.ErrorTimeout, loop.ErrorMidStream, loop.ErrorNotStarted:
		return failing
	case loop.ErrorQuota:
		return unpaid
	case loop.ErrorThrottle, loop.ErrorContext, loop.ErrorRequest, loop.ErrorAuth, loop.ErrorTextLoop:
		return alive
	}
	return silent
}

// circuit stops requests to a provider that does not work. Results count only
// in the era in which their request left: an era ends whenever the state
// changes, so what hung since before an outage does not reopen the circuit
// after it.
type circuit struct {
	state string
	era   uint64
	until time.Time     // while open
	pause time.Duration // of the last opening
	quota bool          // opened for lack of money

	last   loop.ErrorClass // the failure that opened it
	lastAt time.Time

	answers  uint64             // in this era
	failures [tripCount]failure // the last ones of this era, a ring
	next     int                // where the oldest stands
}

// failure is when one was, and how many answers there had been by then.
type failure struct {
	at      time.Time
	answers uint64
}

// now brings the state up to date: an open circuit half-opens by itself.
func (c *circuit) now(now time.Time) string {
	if c.state == open && !now.Before(c.until) {
		c.enter(halfOpen)
	}
	return c.state
}

func (c *circuit) enter(state string) {
	c.state = state
	c.era++
	c.answers, c.failures, c.next = 0, [tripCount]failure{}, 0
}

// record takes in the end of a request that left in the given era. It reports
// whether that closed the circuit.
func (c *circuit) record(class loop.ErrorClass, era uint64, now time.Time) (recovered bool) {
	v := judge(class)
	state := c.now(now)
	switch {
	case v == unpaid: // no request can work, whenever this one left
		c.quota = true
		c.open(class, quotaPause, now)
	case era != c.era:
	case state == closed && v == answered:
		c.answers++
	case state == closed && v == failing && c.trips(now):
		c.quota = false
		c.open(class, firstPause, now)
	case state == halfOpen && v == failing:
		pause := min(2*c.pause, longestPause)
		if c.quota {
			pause = quotaPause
		}
		c.open(class, pause, now)
	case state == halfOpen && (v == answered || v == alive && !c.quota):
		c.enter(closed)
		return true
	}
	return false
}

// trips counts a failure and reports whether it is one too many: the fifth
// within a minute, unless more requests than that were answered meanwhile. With
// hundreds of runs a few failures a minute are normal.
func (c *circuit) trips(now time.Time) bool {
	c.failures[c.next] = failure{now, c.answers}
	c.next = (c.next + 1) % tripCount
	oldest := c.failures[c.next]
	return !oldest.at.IsZero() && now.Sub(oldest.at) <= tripSpan && c.answers-oldest.answers <= tripCount
}

func (c *circuit) open(class loop.ErrorClass, pause time.Duration, now time.Time) {
	c.enter(open)
	c.pause, c.until = pause, now.Add(pause)
	c.last, c.lastAt = class, now
}

// refusal is the error to answer with while the circuit is open, else nil.
func (c *circuit) refusal(now time.Time) *loop.ModelError {
	if c.now(now) != open {
		return nil
	}
	e := &loop.ModelError{Class: loop.ErrorNotStarted, Code: loop.CodeCircuitOpen, RetryAfter: c.until.Sub(now)}
	why := "too many requests to this provider failed"
	if c.quota {
		e.Class = loop.ErrorQuota
		why = "the account at this provider has no credit left or reached its spend cap; add credit or raise the cap"
	}
	e.Message = fmt.Sprintf("nothing was sent: %s; the last failure was %s at %s, the next try is allowed at %s",
		why, c.last, c.lastAt.UTC().Format(time.RFC3339), c.until.UTC().Format(time.RFC3339))
	return e
}
