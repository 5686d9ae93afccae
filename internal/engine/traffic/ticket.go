package traffic

import (
	"container/list"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// End is how a request ended.
type End struct {
	// Sent: the request went out. All else is read only then.
	Sent bool
	// Tokens is what the provider counts: read, uncached, and written. 0 is
	// unknown: what was reserved then counts, or nothing if the class is free.
	Tokens int64
	// Class of the failure; empty: answered.
	Class loop.ErrorClass
	// RetryAfter is what the provider asked for; 0: it did not say.
	RetryAfter time.Duration
	// Rate is what the headers of the response said.
	Rate loop.RateReport
	// RetryOf is the class of the failure that this request tried again, whose
	// retry tokens an answer gives back; empty: a first try.
	RetryOf loop.ErrorClass
}

// Ticket is a request's place in a Lane: in the queue until Ready, then among
// those that are out, until Leave. Its methods may be called at the same time.
type Ticket struct {
	lane  *Lane
	bound float64
	ready chan struct{}

	// The rest belongs to the lane's lock.
	place   *list.Element    // in the queue; nil once out of it
	refused *loop.ModelError // the circuit opened before its time came
	left    bool
	probe   bool    // sent to find out whether the circuit may close
	request float64 // taken of the requests of the minute
	tokens  float64 // taken of the tokens of the minute
	era     uint64  // of the circuit, when it became ready
	cut     uint64  // of the pace, likewise
}

// Ready is closed when the request's time has come: ask Refusal, then send it.
// It is never closed for a ticket that left before.
func (t *Ticket) Ready() <-chan struct{} { return t.ready }

// Refusal is the error to answer with instead of sending, nil if the request may
// be sent. Ask once Ready: the circuit may have opened while the ticket waited,
// which ends the wait of the whole queue.
func (t *Ticket) Refusal() *loop.ModelError {
	t.lane.mu.Lock()
	defer t.lane.mu.Unlock()
	if t.refused != nil {
		return t.refused
	}
	return t.lane.circuit.refusal(time.Now())
}

// Until estimates when the ticket becomes ready, by the limits per minute and
// the blocks of the provider. It is zero if that is now, or depends on another
// request ending.
func (t *Ticket) Until() time.Time {
	l := t.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.place == nil {
		return time.Time{}
	}
	now := time.Now()
	requests, tokens := 0.0, 0.0
	for e := l.queue.Front(); e != t.place; e = e.Next() {
		requests++
		tokens += l.need(waiting(e))
	}
	at := l.opens(requests, tokens, l.need(t), now)
	if !at.After(now) {
		return time.Time{}
	}
	return at
}

// Leave gives the place back and says how the request ended. It must be called
// once for every ticket, also for one that gave up before Ready; more is
// harmless.
func (t *Ticket) Leave(e End) {
	l := t.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.left {
		return
	}
	t.left = true
	now := time.Now()
	switch {
	case t.place != nil:
		l.queue.Remove(t.place)
		t.place = nil
	case t.refused == nil:
		l.settle(t, e, now)
		if e.Sent {
			l.observe(t, e, now)
		}
	}
	l.serve(now)
}
