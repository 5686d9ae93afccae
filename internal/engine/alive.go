package engine

import (
	"fmt"
	"sync/atomic"
	"time"
)

// aliveGap is the longest time between two beats of a loop that works: each waits for
// seconds, and a database that does not answer is given up after seconds.
const aliveGap = time.Minute

// pulse is the sign of life of a loop. Its zero value has not begun.
type pulse struct{ last atomic.Int64 }

// beat says that the loop is alive now.
func (p *pulse) beat() { p.last.Store(time.Now().UnixNano()) }

// rest says that the loop has ended as it should.
func (p *pulse) rest() { p.last.Store(0) }

// silent is how long it has been since the last beat, 0 before the first
// and at rest.
func (p *pulse) silent() time.Duration {
	if last := p.last.Load(); last != 0 {
		return time.Since(time.Unix(0, last))
	}
	return 0
}

// Alive reports what has stopped working in this process for good: a loop of the
// supervisor that has not come round for a minute. A database that is away is no such
// thing. Whoever gets an error should start the process anew.
func (e *Engine) Alive() error {
	for _, loop := range []struct {
		name string
		p    *pulse
	}{{"claims runs", &e.claims}, {"renews the lease", &e.sup.renewals}} {
		if d := loop.p.silent(); d > aliveGap {
			return fmt.Errorf("the loop that %s has not come round for %s", loop.name, d.Round(time.Second))
		}
	}
	return nil
}

// Leased reports whether the worker's lease is good: without it nothing is claimed.
func (e *Engine) Leased() bool { return e.sup.trusted() }

// Circuits are the states of the circuits, by provider: "closed", "open" or "half_open".
func (e *Engine) Circuits() map[string]string {
	states := map[string]string{}
	for provider, lane := range e.lanes {
		states[provider] = lane.State()
	}
	return states
}
