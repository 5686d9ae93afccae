package engine

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/loopd/loopd/internal/label"
	"github.com/loopd/loopd/internal/loop"
)

// metrics counts what the journal says, at the moment it is committed, so that
// Prometheus and SQL agree; observe.go and tally.go do it. Labels come from the agent
// registry, the price book and the closed sets of package loop, through package label;
// a tool that the model made up counts as "_unknown". No label ever holds a run or a
// word of the model's, and a tenant only if the operator listed it.
type metrics struct {
	labels *label.Set
	guards []loop.GuardInfo // all there are

	finished    *prometheus.CounterVec
	ofTenant    *prometheus.CounterVec
	cost        *prometheus.HistogramVec
	iterations  *prometheus.HistogramVec
	duration    *prometheus.HistogramVec
	queueWait   *prometheus.HistogramVec
	phases      *prometheus.CounterVec
	active      *active
	evaluations *prometheus.CounterVec
	trips       *prometheus.CounterVec
	breaches    *prometheus.CounterVec
	checks      *prometheus.CounterVec
	spent       *prometheus.CounterVec
	tenantSpent *prometheus.CounterVec
	purposes    *prometheus.CounterVec
	unpriced    *prometheus.CounterVec
	tokens      *prometheus.CounterVec
	iterTotal   *prometheus.CounterVec
	toolCalls   *prometheus.CounterVec
	toolTime    *prometheus.HistogramVec
	approvals   *prometheus.CounterVec
	approvalAge *prometheus.HistogramVec
	requests    *prometheus.CounterVec
	modelTime   *prometheus.HistogramVec
	firstToken  *prometheus.HistogramVec
	backoff     *prometheus.CounterVec
	boundUsed   *prometheus.HistogramVec
	fallbacks   *prometheus.CounterVec
	context     *prometheus.HistogramVec
	compacted   *prometheus.CounterVec
	leases      *prometheus.CounterVec
	recovered   *prometheus.CounterVec
	panics      *prometheus.CounterVec
	workSlots   *prometheus.GaugeVec
}

// factory makes metrics with loopd's prefix, each histogram in both forms.
type factory struct{ promauto.Factory }

func (f factory) counter(name, help string, labels ...string) *prometheus.CounterVec {
	return f.NewCounterVec(prometheus.CounterOpts{Name: "loopd_" + name, Help: help}, labels)
}

func (f factory) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return f.NewHistogramVec(prometheus.HistogramOpts{
		Name: "loopd_" + name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
	}, labels)
}

// newMetrics makes and registers them all. A nil reg counts for nobody.
func newMetrics(reg prometheus.Registerer, labels *label.Set) *metrics {
	if labels == nil {
		labels = label.NewSet(nil, nil)
	}
	f := factory{promauto.With(reg)}
	m := &metrics{labels: labels, guards: loop.Guards(), active: newActive()}
	m.ofRuns(f)
	m.ofMoney(f)
	m.ofModels(f)
	m.ofTools(f)
	m.ofWorker(f)
	if reg != nil {
		reg.MustRegister(m.active)
	}
	return m
}

func (m *metrics) ofRuns(f factory) {
	m.finished = f.counter("runs_finished_total", "Runs that ended, by the one reason why.", "agent", "stop_reason")
	m.ofTenant = f.counter("tenant_runs_finished_total", "Runs that ended, by tenant: those that are listed, the rest together.", "tenant", "outcome")
	// Every count up to the usual cap of 12, then the ceilings.
	m.iterations = f.histogram("run_iterations", "Iterations of a whole run.",
		[]float64{1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50}, "agent", "outcome")
	m.duration = f.histogram("run_duration_seconds", "Time from a run's creation to its end, waits included.",
		[]float64{.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640, 1800, 3600}, "agent", "outcome")
	// An idle system starts a run in milliseconds; ten seconds is the objective, a minute an alert.
	m.queueWait = f.histogram("queue_wait_seconds", "Time from a run's creation until a worker took it.",
		[]float64{.05, .1, .25, .5, 1, 2, 5, 10, 30, 60, 120, 300, 900}, "priority")
	m.phases = f.counter("run_phase_seconds_total", "Where the time of runs goes: queue, llm, tool, approval (any wait for a person), backoff (any wait for a provider), persist, other.", "agent", "phase")
	m.iterTotal = f.counter("iterations_total", "Iterations, as they happen.", "agent")
	m.evaluations = f.counter("guard_evaluations_total", "Times that guards were asked, by what they said: pass, warn (the model is told) or trip.", "guard", "verdict")
	m.trips = f.counter("guard_trips_total", "Guard verdicts that changed a run.", "guard", "action", "agent")
	m.breaches = f.counter("guard_breaches_total", "Limits that were passed although guarded. Must stay 0.", "guard")
	m.checks = f.counter("output_checks_total", "Checks of final answers by a part of the output contract: passed, failed, or unchecked when nobody could say.", "part", "outcome")
	// 0.6 is where transcripts are made shorter, 0.8 where runs wrap up.
	m.context = f.histogram("context_used_ratio", "Share of the model's context window that an iteration used.",
		[]float64{.1, .2, .3, .4, .5, .6, .7, .8, .9, .95, 1}, "agent")
	m.compacted = f.counter("compactions_total", "Tries to make a transcript shorter.", "method", "outcome")
	m.breaches.WithLabelValues("cost") // an alert on its increase needs the zero before the first
}

func (m *metrics) ofMoney(f factory) {
	// A good run costs cents; the incident cost 4,200 USD. The buckets tell 0.20 from 1 and 1 from 100.
	m.cost = f.histogram("run_cost_usd", "Cost of a whole run in USD.",
		[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25, 100}, "agent", "outcome")
	m.spent = f.counter("cost_usd_total", "Money spent on models in USD.", "agent", "model", "kind")
	m.tenantSpent = f.counter("tenant_cost_usd_total", "Money spent on models in USD, by tenant: those that are listed, the rest together.", "tenant")
	m.purposes = f.counter("purpose_cost_usd_total", "Money spent on models in USD, by what the call was for: work, wrap_up, judge or summary.", "agent", "purpose")
	m.unpriced = f.counter("unpriced_calls_total", "Model calls whose cost is not known: refused for want of a price, or charged at their hold because the provider did not say what they used.", "model")
	m.tokens = f.counter("tokens_total", "Tokens, in disjoint kinds.", "agent", "model", "kind")
}

func (m *metrics) ofModels(f factory) {
	m.requests = f.counter("llm_requests_total", "Requests to models, by how they ended.", "model", "code")
	m.modelTime = f.histogram("llm_request_duration_seconds", "Time of one model request.",
		[]float64{.25, .5, 1, 2, 3, 5, 8, 12, 20, 30, 45, 60, 120, 300}, "model")
	m.firstToken = f.histogram("llm_ttft_seconds", "Time until the first fragment of an answer that is streamed.",
		[]float64{.1, .2, .3, .5, .75, 1, 1.5, 2, 3, 5, 10, 30}, "model")
	m.backoff = f.counter("llm_backoff_seconds_total", "Time that runs waited because of a provider: after its errors, or for their share of its rate limit.", "provider")
	// Above 1 is a breach. Bounds by bytes are used to about a quarter, anchored ones to nearly all.
	m.boundUsed = f.histogram("llm_bound_used_ratio", "What a model call really took of its upper bound: of the hold, or of the input bound.",
		[]float64{.02, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, 1}, "model", "of")
	m.fallbacks = f.counter("llm_fallbacks_total", "Runs that went on with another model.", "from", "to", "class")
}

func (m *metrics) ofTools(f factory) {
	m.toolCalls = f.counter("tool_calls_total", "Tool calls that have their result.", "tool", "outcome")
	m.toolTime = f.histogram("tool_duration_seconds", "Time of one tool call.",
		[]float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}, "tool")
	m.approvals = f.counter("approvals_total", "Calls that waited for a person, by what was decided: approved, edited, denied or answered; policy, if a policy approved; expired or cancelled, if nobody decided.", "tool", "decision")
	// From somebody who watches to somebody who comes back after the weekend.
	m.approvalAge = f.histogram("approval_wait_seconds", "How long calls waited for a person, by decision.",
		[]float64{5, 15, 30, 60, 120, 300, 600, 1800, 3600, 14400, 43200, 86400, 259200}, "decision")
}

func (m *metrics) ofWorker(f factory) {
	m.leases = f.counter("lease_events_total", "What happened to leases.", "event")
	m.recovered = f.counter("runs_recovered_total", "Runs taken over from a lost worker.", "cause")
	m.panics = f.counter("panics_total", "Panics contained.", "where")
	m.workSlots = f.NewGaugeVec(prometheus.GaugeOpts{Name: "loopd_worker_slots", Help: "Runs that this worker drives and could drive."}, []string{"state"})
	for _, event := range []string{leaseAcquired, leaseRenewed, leaseLost, leaseExpired, leaseReleased} {
		m.leases.WithLabelValues(event)
	}
	m.recovered.WithLabelValues("lost_worker") // rare ones too: an alert on an increase needs the zero before it
	for _, where := range []string{"run", "call", "check"} {
		m.panics.WithLabelValues(where)
	}
}

// What happens to leases.
const (
	leaseAcquired = "acquired"
	leaseRenewed  = "renewed"
	leaseLost     = "lost"    // of one run, to another worker
	leaseExpired  = "expired" // of the worker, with all its runs
	leaseReleased = "released"
)

func (m *metrics) slots(used, all int) {
	m.workSlots.WithLabelValues("used").Set(float64(used))
	m.workSlots.WithLabelValues("free").Set(float64(all - used))
}
