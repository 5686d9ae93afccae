package server

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// maxAgentLabels bounds the series of the agent label: the first that many agents
// of a process have their own, the rest share one.
const maxAgentLabels = 25

// maxToolLabels is the same for tools. A call that waits for a person is of a tool that
// its agent has, so no model chooses the label.
const maxToolLabels = 60

// What a person decided.
const (
	decisionApproved = "approved"
	decisionEdited   = "edited"
	decisionDenied   = "denied"
	decisionAnswered = "answered"
)

// What became of a request that carried a request id.
const (
	idempotencyNew      = "new"
	idempotencyReplayed = "replayed"
	idempotencyMismatch = "mismatch"
)

// metrics counts what comes through the doors.
type metrics struct {
	runsStarted *prometheus.CounterVec
	idempotency *prometheus.CounterVec
	streams     prometheus.Gauge
	resumes     prometheus.Counter
	slow        prometheus.Counter
	shed        *prometheus.CounterVec
	approvals   *prometheus.CounterVec
	approvalAge *prometheus.HistogramVec
	results     *prometheus.CounterVec
	wrongTrips  *prometheus.CounterVec

	agents, tools labels
}

// labels are the values of a label, bounded in number.
type labels struct {
	most int

	mu    sync.Mutex
	known map[string]bool // that have their own series
}

// of is the label's value for a name: the name itself, or "_other".
func (l *labels) of(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.known[name] && len(l.known) >= l.most {
		return "_other"
	}
	if l.known == nil {
		l.known = make(map[string]bool)
	}
	l.known[name] = true
	return name
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		runsStarted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loopd_runs_started_total", Help: "Runs created, by agent and by the door they came through.",
		}, []string{"agent", "source"}),
		idempotency: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loopd_idempotency_total", Help: "Requests with a request id, by what became of them: new, replayed or mismatch.",
		}, []string{"result"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "loopd_sse_streams", Help: "Event streams that are open.",
		}),
		resumes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loopd_sse_resumes_total", Help: "Event streams that went on after an event the client already had.",
		}),
		slow: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loopd_sse_slow_readers_total", Help: "Event streams that were cut because nobody read them. They can go on where they were.",
		}),
		shed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loopd_shed_requests_total", Help: "Requests that were refused because of load, by what was asked (create or read) and why (queue_age, pool_wait or tenant_queue).",
		}, []string{"call", "why"}),
		approvals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loopd_approvals_decided_total", Help: "Approvals that people decided, by tool and decision: approved, edited, denied or answered.",
		}, []string{"tool", "decision"}),
		approvalAge: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "loopd_approval_wait_seconds", Help: "How long calls waited for the person who decided, by decision.",
			// From somebody who watches to somebody who comes back after the weekend.
			Buckets: []float64{5, 15, 30, 60, 120, 300, 600, 1800, 3600, 14400, 43200, 86400, 259200},
		}, []string{"decision"}),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loopd_results_submitted_total", Help: "Results of tools that callers run themselves, by what became of them: accepted, repeated or refused.",
		}, []string{"status"}),
		wrongTrips: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loopd_guard_false_positives_total", Help: "Trips that people reported as wrong, by guard. One that is taken back stays counted.",
		}, []string{"guard"}),
		agents: labels{most: maxAgentLabels}, tools: labels{most: maxToolLabels},
	}
	for _, result := range []string{idempotencyNew, idempotencyReplayed, idempotencyMismatch} {
		m.idempotency.WithLabelValues(result) // a rate needs the zero before the first
	}
	for _, g := range loop.Guards() {
		m.wrongTrips.WithLabelValues(g.Name)
	}
	for _, c := range []prometheus.Collector{m.runsStarted, m.idempotency, m.streams, m.resumes, m.slow, m.shed, m.approvals, m.approvalAge, m.results, m.wrongTrips} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register the server's metrics: %w", err)
		}
	}
	return m, nil
}

// runStarted counts a run of an agent that exists.
func (m *metrics) runStarted(agent, source string) {
	m.runsStarted.WithLabelValues(m.agents.of(agent), source).Inc()
}

// decided counts what a person decided about a call of a tool, after how long.
func (m *metrics) decided(tool, decision string, waited time.Duration) {
	m.approvals.WithLabelValues(m.tools.of(tool), decision).Inc()
	m.approvalAge.WithLabelValues(decision).Observe(waited.Seconds())
}

// falsePositive counts a trip that was wrong. A guard of an old journal, which the
// table does not have any more, is one of the others.
func (m *metrics) falsePositive(guard string) {
	if _, known := loop.GuardNamed(guard); !known {
		guard = "_other"
	}
	m.wrongTrips.WithLabelValues(guard).Inc()
}

// statusLabel is what became of a result, as a label.
func statusLabel(s loopdv1.ToolResultStatus_Status) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "STATUS_"))
}
