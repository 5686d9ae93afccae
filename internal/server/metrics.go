package server

import (
	"fmt"
	"net/http"
	"strings"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/label"
	"github.com/loopd/loopd/internal/loop"
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
	results     *prometheus.CounterVec
	wrongTrips  *prometheus.CounterVec

	grpc    *grpcprom.ServerMetrics
	http    *prometheus.CounterVec
	latency *prometheus.HistogramVec

	labels *label.Set
}

func newMetrics(reg prometheus.Registerer, labels *label.Set) (*metrics, error) {
	if labels == nil {
		labels = label.NewSet(nil, nil)
	}
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
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loopd_results_submitted_total", Help: "Results of tools that callers run themselves, by what became of them: accepted, repeated or refused.",
		}, []string{"status"}),
		wrongTrips: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loopd_guard_false_positives_total", Help: "Trips that people reported as wrong, by guard. One that is taken back stays counted.",
		}, []string{"guard"}),
		grpc: grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram()),
		http: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "http_requests_total", Help: "Requests to the HTTP port, by method and status.",
		}, []string{"code", "method"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "http_request_duration_seconds", Help: "Time of requests to the HTTP port. Event streams are as long as somebody reads them.", Buckets: prometheus.DefBuckets,
		}, []string{"code", "method"}),
		labels: labels,
	}
	for _, result := range []string{idempotencyNew, idempotencyReplayed, idempotencyMismatch} {
		m.idempotency.WithLabelValues(result) // a rate needs the zero before the first
	}
	for _, g := range loop.Guards() {
		m.wrongTrips.WithLabelValues(g.Name)
	}
	for _, c := range []prometheus.Collector{m.runsStarted, m.idempotency, m.streams, m.resumes, m.slow, m.shed, m.results, m.wrongTrips, m.grpc, m.http, m.latency} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register the server's metrics: %w", err)
		}
	}
	return m, nil
}

// runStarted counts a run of an agent that exists.
func (m *metrics) runStarted(agent, source string) {
	m.runsStarted.WithLabelValues(m.labels.Agents.Of(agent), source).Inc()
}

// instrument counts and times what the HTTP port serves.
func (m *metrics) instrument(next http.Handler) http.Handler {
	return promhttp.InstrumentHandlerDuration(m.latency, promhttp.InstrumentHandlerCounter(m.http, next))
}

// falsePositive counts a trip that was wrong. A guard of an old journal, which the
// table does not have any more, is one of the others.
func (m *metrics) falsePositive(guard string) {
	if _, known := loop.GuardNamed(guard); !known {
		guard = label.Other
	}
	m.wrongTrips.WithLabelValues(guard).Inc()
}

// statusLabel is what became of a result, as a label.
func statusLabel(s loopdv1.ToolResultStatus_Status) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "STATUS_"))
}
