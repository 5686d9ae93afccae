package server

import (
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// maxAgentLabels bounds the series of the agent label: the first that many agents
// of a process have their own, the rest share one.
const maxAgentLabels = 25

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

	mu     sync.Mutex
	agents map[string]bool // that have their own label
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
		agents: make(map[string]bool),
	}
	for _, result := range []string{idempotencyNew, idempotencyReplayed, idempotencyMismatch} {
		m.idempotency.WithLabelValues(result) // a rate needs the zero before the first
	}
	for _, c := range []prometheus.Collector{m.runsStarted, m.idempotency, m.streams, m.resumes} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register the server's metrics: %w", err)
		}
	}
	return m, nil
}

// runStarted counts a run of an agent that exists.
func (m *metrics) runStarted(agent, source string) {
	m.runsStarted.WithLabelValues(m.agentLabel(agent), source).Inc()
}

func (m *metrics) agentLabel(agent string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.agents[agent] && len(m.agents) >= maxAgentLabels {
		return "_other"
	}
	m.agents[agent] = true
	return agent
}
