package tool

import (
	"sync"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

const (
	// tripCount failures in a row within tripSpan open the breaker of a tool; it
	// stays open for openSpan, and then lets one call through to find out.
	tripCount = 5
	tripSpan  = time.Minute
	openSpan  = 30 * time.Second
	// probeWait is what a call is told that meets the one that finds out.
	probeWait = time.Second
	// maxBreakers bounds the memory of breakers. Above it, those that are not
	// open are forgotten.
	maxBreakers = 4096
)

// The states of a breaker, as Breakers names them.
const (
	breakerClosed   = "closed"
	breakerHalfOpen = "half_open"
	breakerOpen     = "open"
)

// breakerKey is what a breaker is for: a tool at a host. All versions of a tool
// share it, and no two tenants do.
type breakerKey struct{ tenant, tool, host string }

// breakers stop calls to tools that do not work. Safe for concurrent use.
//
// It is no sony/gobreaker: that does not say when it closes, which the model is
// to be told, and it keeps its one probe's place when the probe never left.
type breakers struct {
	mu sync.Mutex
	by map[breakerKey]*breaker
}

// breaker counts the failures of one tool. A call counts only in the era in
// which it left: what hung since before an outage does not reopen the breaker
// after it. An era ends when the state changes.
type breaker struct {
	era      int
	failures [tripCount]time.Time // since the last success, a ring
	next     int                  // where the oldest stands
	until    time.Time            // open until then, half open after; zero: closed
	probing  bool
}

// pass is the right to send one call.
type pass struct {
	key   breakerKey
	era   int
	probe bool
}

func newBreakers() *breakers { return &breakers{by: map[breakerKey]*breaker{}} }

// enter asks whether a call may be sent, and if not, for how long.
func (bs *breakers) enter(key breakerKey, now time.Time) (p pass, wait time.Duration, ok bool) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b := bs.by[key]
	if b == nil {
		bs.forget(now)
		b = &breaker{}
		bs.by[key] = b
	}
	switch state := b.state(now); {
	case state == breakerOpen:
		return pass{}, b.until.Sub(now), false
	case state == breakerHalfOpen && b.probing:
		return pass{}, probeWait, false
	case state == breakerHalfOpen:
		b.probing = true
	}
	return pass{key: key, era: b.era, probe: b.probing}, 0, true
}

// leave takes in what came of a call.
func (bs *breakers) leave(p pass, v verdict, now time.Time) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b := bs.by[p.key]
	if b == nil || b.era != p.era {
		return
	}
	if p.probe {
		b.probing = false
	}
	switch {
	case v == works:
		if p.probe {
			b.era++
		}
		b.until, b.failures = time.Time{}, [tripCount]time.Time{}
	case v == fails && (p.probe || b.trips(now)):
		*b = breaker{era: b.era + 1, until: now.Add(openSpan)}
	}
}

// trips notes a failure and reports whether it is one too many.
func (b *breaker) trips(now time.Time) bool {
	b.failures[b.next] = now
	b.next = (b.next + 1) % tripCount
	oldest := b.failures[b.next]
	return !oldest.IsZero() && now.Sub(oldest) < tripSpan
}

func (b *breaker) state(now time.Time) string {
	switch {
	case b.until.IsZero():
		return breakerClosed
	case now.Before(b.until):
		return breakerOpen
	}
	return breakerHalfOpen
}

// forget makes room, if there is need, by what matters least: all that is not open.
func (bs *breakers) forget(now time.Time) {
	if len(bs.by) < maxBreakers {
		return
	}
	for key, b := range bs.by {
		if b.state(now) != breakerOpen {
			delete(bs.by, key)
		}
	}
}

// verdict is what a call says about its tool.
type verdict int

const (
	silent verdict = iota // nothing: it never got there, or was given up
	works                 // it answers, if only to refuse this one call
	fails
)

// judge reads an outcome. Retryable failures are silent, because whoever calls
// waits and tries again, as the tool asks; the last one of them is no worse.
func judge(reply loop.ToolReply) verdict {
	switch reply.Outcome {
	case loop.OutcomeTimeout, loop.OutcomeUnknown:
		return fails
	case loop.OutcomeOK:
		return works
	case loop.OutcomePermanent:
		switch {
		case reply.Status >= 500:
			return fails
		case reply.Status > 0:
			return works
		}
	}
	return silent
}

// Breakers says which state the breaker of each tool is in: "closed", "open" or
// "half_open". Keys are the tool's name and its host, as in "get_order@shop.example";
// where tenants have such a tool each, the worst state counts. Tools that were not
// called lately may be missing.
func (r *Runner) Breakers() map[string]string {
	rank := map[string]int{breakerClosed: 1, breakerHalfOpen: 2, breakerOpen: 3}
	now := time.Now()
	r.breakers.mu.Lock()
	defer r.breakers.mu.Unlock()
	states := map[string]string{}
	for key, b := range r.breakers.by {
		name := key.tool + "@" + key.host
		if state := b.state(now); rank[state] > rank[states[name]] {
			states[name] = state
		}
	}
	return states
}
