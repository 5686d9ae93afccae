package engine

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/loopd/loopd/internal/engine/traffic"
	"github.com/loopd/loopd/internal/loop"
)

// quietWait is how long a run waits for its share of a rate limit without a word
// in its journal.
const quietWait = 250 * time.Millisecond

// place is the owner's place in the queue of a provider, if it has one.
type place struct {
	ticket *traffic.Ticket
	lane   *traffic.Lane
}

// leave gives the place up, or back.
func (p *place) leave(end traffic.End) {
	if p.ticket != nil {
		p.ticket.Leave(end)
	}
	*p = place{}
}

// refusal is the error to answer with instead of sending, or nil.
func (p *place) refusal() *loop.ModelError {
	if p.ticket == nil {
		return nil
	}
	return p.ticket.Refusal()
}

// lane is where the request queues. Nil is a provider that this worker does not
// have.
func (o *owner) lane(a loop.CallModel) *traffic.Lane { return o.e.lanes[a.Request.Provider] }

// awaitShare waits until the request may be sent, before anything is held for it.
// A wait worth a word is in the journal; a long one gives the lease back. When
// it has waited, or was woken, it is not ready: Next is to look again, and the
// place in the queue is kept.
func (o *owner) awaitShare(ctx context.Context, a loop.CallModel) (ready, released bool, err error) {
	lane := o.lane(a)
	if o.place.lane != lane {
		o.place.leave(traffic.End{})
	}
	if lane == nil {
		return true, false, nil
	}
	if o.place.ticket == nil {
		o.place = place{lane.Enter(a.Started.InputBound + a.Started.MaxOutput), lane}
	}
	ticket := o.place.ticket
	if !isReadyNow(ticket) || ticket.Refusal() != nil { // it may wait
		if err := o.flush(ctx); err != nil {
			return false, false, err
		}
	}
	if o.isReady(ctx, ticket, quietWait) {
		if refusal := ticket.Refusal(); refusal != nil && refusal.Class != loop.ErrorQuota && (a.Beside() || !o.state.CanFallBack()) {
			return o.awaitCircuit(ctx, a, refusal.RetryAfter)
		}
		return true, false, nil
	}
	if released, err := o.tellWait(ctx, a, earlier(ticket.Until(), a.Deadline)); released || err != nil {
		return false, released, err
	}
	o.isReady(ctx, ticket, time.Until(a.Deadline)) // a ticket that is ready now is found so the next time
	return false, false, context.Cause(ctx)
}

// awaitCircuit waits until the provider may be tried again: nothing was sent, so
// it must not cost the run a try. With another model to ask, that one is asked.
func (o *owner) awaitCircuit(ctx context.Context, a loop.CallModel, wait time.Duration) (ready, released bool, err error) {
	o.place.leave(traffic.End{})
	until := earlier(o.clock.now().Add(wait+time.Millisecond), a.Deadline) // never a wait of nothing
	if released, err := o.tellWait(ctx, a, until); released || err != nil {
		return false, released, err
	}
	o.await(ctx, nil, time.Until(until)) // nothing comes: only the time, or who wants the owner
	return false, false, context.Cause(ctx)
}

// tellWait writes into the journal that the run waits, once, or gives the lease
// back for a long wait.
func (o *owner) tellWait(ctx context.Context, a loop.CallModel, until time.Time) (released bool, err error) {
	switch {
	case time.Until(until) > longSleep:
		o.place.leave(traffic.End{})
		suspended := loop.Suspended{Reason: loop.WaitRate, Until: until}
		return true, o.commit(ctx, batch{bodies: []loop.Body{suspended}, intent: true, release: true})
	case o.state.RateWaiting():
		return false, nil
	}
	return false, o.commit(ctx, batch{bodies: []loop.Body{loop.RateWaited{Provider: a.Request.Provider, Until: until}}})
}

// isReady waits for a ticket, at most so long, and not while a signal, a drain or
// the end of the lease wants the owner.
func (o *owner) isReady(ctx context.Context, ticket *traffic.Ticket, most time.Duration) bool {
	return isReadyNow(ticket) || o.await(ctx, ticket.Ready(), most) // usually at once, without a timer
}

func isReadyNow(ticket *traffic.Ticket) bool {
	select {
	case <-ticket.Ready():
		return true
	default:
		return false
	}
}

// await waits for a channel like isReady.
func (o *owner) await(ctx context.Context, ready <-chan struct{}, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ready:
		return true
	case <-o.poked:
		o.pending = true
	case <-o.draining:
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// endOf tells the lane how a request ended: the class of its failure, which may
// be loopd's own doing, and the failure that it tried again.
func endOf(r modelResult, class, retryOf loop.ErrorClass) traffic.End {
	if r.err == nil {
		end := traffic.End{Sent: true, Rate: r.answer.Rate, RetryOf: retryOf}
		if u := r.answer.Usage; !r.answer.UsageMissing {
			end.Tokens = u.Total() - u.CacheRead // what is read from a cache is not counted
		}
		return end
	}
	me := modelError(r.err)
	return traffic.End{Sent: me.Code != loop.CodeCircuitOpen, RetryOf: retryOf, Class: class, RetryAfter: me.RetryAfter, Rate: me.Rate}
}

// watchLanes shows the state of every lane.
func (m *metrics) watchLanes(reg prometheus.Registerer, lanes map[string]*traffic.Lane) {
	if reg != nil {
		reg.MustRegister(laneCollector{
			lanes:   lanes,
			circuit: prometheus.NewDesc("loopd_provider_circuit_open", "1 while no request is sent to the provider, because it has been failing; 0.5 while one tries.", []string{"provider"}, nil),
			waiting: prometheus.NewDesc("loopd_provider_waiting_requests", "Model calls of this worker that wait for their share of the provider's rate limit.", []string{"provider"}, nil),
		})
	}
}

// laneCollector reads the lanes at each scrape.
type laneCollector struct {
	lanes            map[string]*traffic.Lane
	circuit, waiting *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c laneCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.circuit; ch <- c.waiting }

// Collect implements prometheus.Collector.
func (c laneCollector) Collect(ch chan<- prometheus.Metric) {
	for provider, lane := range c.lanes {
		state := map[string]float64{"open": 1, "half_open": 0.5}[lane.State()]
		ch <- prometheus.MustNewConstMetric(c.circuit, prometheus.GaugeValue, state, provider)
		ch <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(lane.Waiting()), provider)
	}
}
