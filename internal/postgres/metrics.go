package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/loopd/loopd/internal/loop"
)

// metrics are what the store counts.
type metrics struct {
	duration *prometheus.HistogramVec
	errors   *prometheus.CounterVec
	fenced   prometheus.Counter
	lost     prometheus.Counter
	draws    *prometheus.CounterVec
	warnings *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "loopd_db_query_duration_seconds",
			Help: "Time of database statements as seen by loopd, by name of the query.",
			// Half a millisecond is a local read; 5 s is the statement timeout.
			Buckets: []float64{.0005, .001, .002, .005, .01, .025, .05, .1, .25, 1, 5},
		}, []string{"query"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loopd_db_errors_total",
			Help: "Failed database statements, by class of the error.",
		}, []string{"class"}),
		fenced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loopd_fenced_writes_total",
			Help: "Appends that were refused because the lease was lost: the fence at work.",
		}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loopd_db_lost_commits_total",
			Help: "Appends that found the database behind what it had acknowledged: a failover lost commits. Somebody must look.",
		}),
		draws: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loopd_budget_draws_total",
			Help: "Model calls of runs under budgets, by whether what the run had drawn was enough, more was drawn, or a budget had no room.",
		}, []string{"outcome"}),
		warnings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loopd_budget_thresholds_total",
			Help: "Thresholds that budgets reached, once in each of their windows, in percent.",
		}, []string{"percent"}),
	}
}

// drew counts a draw that was committed.
func (m *metrics) drew(refused *loop.AccountRefused, warned []int16) {
	outcome := "drawn"
	if refused != nil {
		outcome = "refused"
	}
	m.draws.WithLabelValues(outcome).Inc()
	for _, percent := range warned {
		m.warnings.WithLabelValues(strconv.Itoa(int(percent))).Inc()
	}
}

func (m *metrics) register(r prometheus.Registerer, pool *pgxpool.Pool) error {
	for _, c := range []prometheus.Collector{m.duration, m.errors, m.fenced, m.lost, m.draws, m.warnings, poolCollector{pool}} {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("register the database metrics: %w", err)
		}
	}
	return nil
}

// poolCollector reads the pool when it is scraped.
type poolCollector struct{ pool *pgxpool.Pool }

func poolDesc() *prometheus.Desc {
	return prometheus.NewDesc("loopd_db_pool_connections", "Connections of the main pool, by state.", []string{"state"}, nil)
}

func (c poolCollector) Describe(out chan<- *prometheus.Desc) { out <- poolDesc() }

func (c poolCollector) Collect(out chan<- prometheus.Metric) {
	stat, desc := c.pool.Stat(), poolDesc()
	for state, n := range map[string]int32{
		"used": stat.AcquiredConns(), "idle": stat.IdleConns(), "opening": stat.ConstructingConns(), "max": stat.MaxConns(),
	} {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), state)
	}
}

// tracer times every statement under the name that it has in queries/*.sql. The
// names are constants of this program, so the label is bounded.
type tracer struct {
	metrics  *metrics
	readOnly func() // called when the server refuses a write as a standby does
	gate     *gate  // of the pool, if it has one
	gates    *gates // of all pools
}

type traceKey struct{}

type traced struct {
	query string
	start time.Time
}

// TraceQueryStart begins to time a statement.
func (t *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, traceKey{}, traced{queryName(data.SQL), time.Now()})
}

// TraceQueryEnd ends it.
func (t *tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	t.end(ctx, data.Err)
}

// TraceBatchStart begins to time a batch. Batches of loopd repeat one statement.
func (t *tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	name := "other"
	if len(data.Batch.QueuedQueries) > 0 {
		name = queryName(data.Batch.QueuedQueries[0].SQL)
	}
	return context.WithValue(ctx, traceKey{}, traced{name, time.Now()})
}

// TraceBatchQuery does nothing: a batch is timed as a whole.
func (t *tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd ends a batch.
func (t *tracer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	t.end(ctx, data.Err)
}

func (t *tracer) end(ctx context.Context, err error) {
	began, ok := ctx.Value(traceKey{}).(traced)
	if !ok {
		return
	}
	t.metrics.duration.WithLabelValues(began.query).Observe(time.Since(began.start).Seconds())
	if err != nil {
		t.metrics.errors.WithLabelValues(errorClass(err)).Inc()
		if sqlState(err) == codeReadOnly {
			t.readOnly()
		}
	}
}

// queryName finds the name that sqlc puts before every statement.
func queryName(sql string) string {
	rest, ok := strings.CutPrefix(sql, "-- name: ")
	if !ok {
		return "other"
	}
	name, _, _ := strings.Cut(rest, " ")
	return name
}
