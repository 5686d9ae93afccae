package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/loopd/loopd/internal/postgres/db"
)

// KeepRule says how long the runs of an agent are kept after they ended.
type KeepRule struct {
	Agent string        // resource name, "agents/{agent}"; empty: all agents of the tenant without a rule
	Keep  time.Duration // in whole seconds; 0: for ever
	By    string        // who said so
	At    time.Time     // when, on the database's clock
}

// SetKeepRule puts a rule in force, also for runs that have ended. Its At is ignored.
func (s *Store) SetKeepRule(ctx context.Context, tenant string, rule KeepRule, idem Idempotency) (replayed bool, err error) {
	p := db.SetRetentionParams{TenantID: tenant, Agent: rule.Agent, ChangedBy: printable(rule.By)}
	if rule.Keep != 0 {
		seconds := int64(rule.Keep / time.Second)
		p.KeepSeconds = &seconds
	}
	return s.changeRule(ctx, tenant, rule.Agent, idem, func(q *db.Queries) error { return q.SetRetention(ctx, p) })
}

// UnsetKeepRule takes a rule back. Without one it changes nothing.
func (s *Store) UnsetKeepRule(ctx context.Context, tenant, agent string, idem Idempotency) (replayed bool, err error) {
	return s.changeRule(ctx, tenant, agent, idem, func(q *db.Queries) error {
		return q.UnsetRetention(ctx, db.UnsetRetentionParams{TenantID: tenant, Agent: agent})
	})
}

// changeRule changes a rule, once for each key.
func (s *Store) changeRule(ctx context.Context, tenant, agent string, idem Idempotency, change func(*db.Queries) error) (replayed bool, err error) {
	err = s.inTx(ctx, true, func(q *db.Queries) error {
		_, replayed, err = idem.once(ctx, q, tenant, "retentions/"+agent)
		if err != nil || replayed {
			return err
		}
		return change(q)
	})
	return replayed, wrap("set how long runs are kept", err)
}

// KeepRules returns the rules of a tenant: the one for all agents first, then by agent.
func (s *Store) KeepRules(ctx context.Context, tenant string) ([]KeepRule, error) {
	rows, err := s.q.ListRetentions(ctx, tenant)
	if err != nil {
		return nil, wrap("list how long runs are kept", err)
	}
	rules := make([]KeepRule, len(rows))
	for i, row := range rows {
		rules[i] = KeepRule{Agent: row.Agent, By: row.ChangedBy, At: row.ChangedAt.UTC()}
		if row.KeepSeconds != nil {
			rules[i].Keep = time.Duration(*row.KeepSeconds) * time.Second
		}
	}
	return rules, nil
}

// KeptRuns is what is kept of an agent's runs. Child runs go with the run that began
// their tree and are not counted.
type KeptRuns struct {
	Agent   string        // resource name, "agents/{agent}"
	Keep    time.Duration // the rule that is in force; 0: for ever
	Ended   int64         // runs that have ended and are there
	Expired int64         // those of them that were kept for long enough
	Oldest  time.Time     // when the one of them that ended first did so
}

// KeptRuns tells what is kept of each agent's runs, by agent. otherwise is what holds
// where no rule does, 0 for ever.
func (s *Store) KeptRuns(ctx context.Context, tenant string, otherwise time.Duration) ([]KeptRuns, error) {
	var rows []db.CountExpiredRow
	_, err := s.tryTx(ctx, func(q *db.Queries) error {
		if err := q.PrepareReport(ctx, usageTimeout); err != nil {
			return err
		}
		var err error
		rows, err = q.CountExpired(ctx, db.CountExpiredParams{TenantID: tenant, Otherwise: int64(otherwise / time.Second)})
		return err
	})
	if err != nil {
		return nil, wrap("count the runs that are kept", err)
	}
	kept := make([]KeptRuns, len(rows))
	for i, row := range rows {
		kept[i] = KeptRuns{
			Agent: row.Agent, Keep: time.Duration(row.KeepSeconds) * time.Second,
			Ended: row.Ended, Expired: row.Expired, Oldest: row.Oldest.UTC(),
		}
	}
	return kept, nil
}

// DeletedUsage is what model calls cost whose runs were deleted.
type DeletedUsage struct {
	ModelCalls int64
	Cost       string // exact decimal USD
}

// DeletedUsage adds up what QueryUsage cannot show any more, because the runs were
// deleted. Days are those of UTC and are counted as a whole; labels and states of deleted
// runs are not known, so that those filters do not count.
func (s *Store) DeletedUsage(ctx context.Context, tenant string, q UsageQuery) (DeletedUsage, error) {
	const day = 24 * time.Hour
	row, err := s.q.SumDeletedUsage(ctx, db.SumDeletedUsageParams{
		TenantID: tenant, FirstDay: q.From.UTC().Truncate(day), EndDay: q.To.UTC().Add(day - 1).Truncate(day),
		Agent: q.Agent, Model: printable(q.Model),
	})
	return DeletedUsage{ModelCalls: row.ModelCalls, Cost: row.CostUsd}, wrap("add up the usage of deleted runs", err)
}

// retentionMetrics are what a Retention counts.
type retentionMetrics struct {
	deleted, exported, dropped, failures prometheus.Counter
	age                                  prometheus.Gauge
}

func newRetentionMetrics() *retentionMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return &retentionMetrics{
		deleted:  counter("loopd_retention_runs_deleted_total", "Runs that were deleted after they had been kept for long enough, child runs too."),
		exported: counter("loopd_retention_runs_exported_total", "Runs that were exported before they were deleted."),
		dropped:  counter("loopd_retention_partitions_dropped_total", "Weeks of journals that were dropped as a whole."),
		failures: counter("loopd_retention_failures_total", "Failures of retention: passes that ended early, and exports for which a run is kept."),
		age: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "loopd_retention_oldest_run_age_seconds",
			Help: "Time since the oldest run that is kept ended, as of the last pass of this replica. 0: none has ended.",
		}),
	}
}

// oldest shows how old the oldest run is.
func (m *retentionMetrics) oldest(ended time.Time) {
	if ended.IsZero() {
		m.age.Set(0)
		return
	}
	m.age.Set(max(0, time.Since(ended).Seconds()))
}

func (m *retentionMetrics) register(r prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{m.deleted, m.exported, m.dropped, m.failures, m.age} {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("register the retention metrics: %w", err)
		}
	}
	return nil
}
