package traffic

import (
	"container/list"
	"sync"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// shareDecay is how fast a lane forgets that requests came close to their
// bounds: by a sixteenth of the difference per answer.
const shareDecay = 1.0 / 16

// Limits of one credential. A zero member is not limited, until the provider's
// headers name a limit; of a configured and a reported limit the smaller holds.
type Limits struct {
	RequestsPerMinute int64
	TokensPerMinute   int64 // read and written together
	Concurrent        int   // requests that are out at once
}

// Lane is what all requests with one credential go through. It is safe for
// concurrent use and starts no goroutines.
type Lane struct {
	concurrent int
	ready      chan struct{} // closed: the Ready of tickets that need not wait

	mu       sync.Mutex
	queue    list.List // of *Ticket, first come first
	out      int       // ready and not left
	probing  bool      // one of them is the probe of a half-open circuit
	requests bucket
	tokens   bucket
	share    float64 // of their bounds that requests lately used, at most 1
	pace     pace
	circuit  circuit
	retries  int         // retry tokens left
	alarm    *time.Timer // calls wake when the first of the queue may go; nil until needed
}

// NewLane makes a lane that has sent nothing yet.
func NewLane(l Limits) *Lane {
	now := time.Now()
	lane := &Lane{
		concurrent: max(l.Concurrent, 0),
		ready:      make(chan struct{}),
		requests:   newBucket(l.RequestsPerMinute, now),
		tokens:     newBucket(l.TokensPerMinute, now),
		share:      1,
		circuit:    circuit{state: closed},
		retries:    retryCapacity,
	}
	close(lane.ready)
	return lane
}

// Enter queues a request that may read and write up to so many tokens. First
// come, first served; a run has at most one ticket, so runs share fairly. While
// the circuit is open the ticket is ready at once, with a Refusal.
func (l *Lane) Enter(tokens int64) *Ticket {
	t := &Ticket{lane: l, bound: float64(max(tokens, 0)), ready: l.ready}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if t.refused = l.circuit.refusal(now); t.refused != nil {
		return t
	}
	if l.queue.Len() == 0 && !l.full(now) && !l.opens(0, 0, l.need(t), now).After(now) {
		l.admit(t)
		return t
	}
	t.ready = make(chan struct{})
	t.place = l.queue.PushBack(t)
	l.serve(now)
	return t
}

// Refusal is the error to answer with instead of queueing a request, nil unless
// the circuit is open. It spares the queue; Ticket.Refusal decides.
func (l *Lane) Refusal() *loop.ModelError {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.circuit.refusal(time.Now())
}

// TakeRetry takes the retry tokens for another try after a failure of the class.
// It is false when they are used up, and for a class that is never tried again.
// While the circuit is not closed it takes nothing: the circuit then rations
// more strictly, and its refusals cost the provider nothing.
func (l *Lane) TakeRetry(class loop.ErrorClass) bool {
	cost := costOfRetry(class)
	if cost == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.circuit.now(time.Now()) != closed {
		return true
	}
	if l.retries < cost {
		return false
	}
	l.retries -= cost
	return true
}

// State of the circuit: "closed", "half_open" or "open".
func (l *Lane) State() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.circuit.now(time.Now())
}

// Waiting is how many tickets are in the queue.
func (l *Lane) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.Len()
}

func waiting(e *list.Element) *Ticket {
	return e.Value.(*Ticket) //nolint:errcheck // the queue holds nothing else
}

// need is how many tokens a ticket reserves.
func (l *Lane) need(t *Ticket) float64 { return t.bound * l.share }

// full reports whether the next request must wait for another to end.
func (l *Lane) full(now time.Time) bool {
	return l.concurrent > 0 && l.out >= l.concurrent ||
		l.pace.full() ||
		l.probing && l.circuit.now(now) == halfOpen
}

// opens says when the limits per minute let a request through that has so many
// requests and tokens before it in the queue.
func (l *Lane) opens(requests, tokens, need float64, now time.Time) time.Time {
	l.requests.refill(now)
	l.tokens.refill(now)
	at := later(l.requests.when(requests, 1), l.tokens.when(tokens, need))
	return later(at, l.pace.until)
}

// serve makes ready whoever may go, in order, and sees to it that it is called
// again when the first of the rest may. An open circuit sends all of them away.
// It must be called after every change.
func (l *Lane) serve(now time.Time) {
	for l.queue.Len() > 0 {
		t := waiting(l.queue.Front())
		if l.circuit.now(now) != open {
			if l.full(now) {
				break // Leave calls
			}
			if at := l.opens(0, 0, l.need(t), now); at.After(now) {
				l.wakeAt(at, now)
				return
			}
			l.admit(t)
		}
		t.refused = l.circuit.refusal(now)
		l.queue.Remove(t.place)
		t.place = nil
		close(t.ready)
	}
	if l.alarm != nil {
		l.alarm.Stop()
	}
}

func (l *Lane) wakeAt(at, now time.Time) {
	if l.alarm == nil {
		l.alarm = time.AfterFunc(at.Sub(now), l.wake)
		return
	}
	l.alarm.Reset(at.Sub(now))
}

func (l *Lane) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serve(time.Now())
}

// admit takes all that the request needs. The buckets were just refilled.
func (l *Lane) admit(t *Ticket) {
	l.out++
	l.pace.out++
	t.request = l.requests.take(1)
	t.tokens = l.tokens.take(l.need(t))
	t.era, t.cut = l.circuit.era, l.pace.cuts
	if l.circuit.state == halfOpen {
		t.probe, l.probing = true, true
	}
}

// settle gives the place back, and corrects what was reserved by what was used.
func (l *Lane) settle(t *Ticket, e End, now time.Time) {
	l.out--
	l.pace.leave(t.cut)
	if t.probe {
		l.probing = false
	}
	l.requests.refill(now)
	l.tokens.refill(now)
	switch {
	case !e.Sent:
		l.requests.give(t.request)
		l.tokens.give(t.tokens)
	case e.Tokens > 0 && t.tokens > 0:
		l.tokens.give(t.tokens - float64(e.Tokens))
	case e.Tokens == 0 && e.Class.Free():
		l.tokens.give(t.tokens)
	}
}

// observe learns from what the provider answered.
func (l *Lane) observe(t *Ticket, e End, now time.Time) {
	l.requests.learn(e.Rate.Requests, now)
	l.tokens.learn(e.Rate.Tokens, now)
	switch e.Class {
	case "":
		l.pace.answered()
		l.retries = min(l.retries+answerRefund+costOfRetry(e.RetryOf), retryCapacity)
		if t.bound > 0 && e.Tokens > 0 {
			used := min(float64(e.Tokens)/t.bound, 1)
			l.share = max(used, l.share+(used-l.share)*shareDecay)
		}
	case loop.ErrorThrottle:
		l.pace.throttled(e.RetryAfter, t.cut, now)
	}
	if l.circuit.record(e.Class, t.era, now) {
		l.pace.cut() // the queue must not fall upon a provider that just came back
	}
}
