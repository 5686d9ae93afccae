package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// scrapeTimeout bounds the counting for one scrape.
const scrapeTimeout = 2 * time.Second

// census shows how things stand in the whole database, at each scrape. One worker of
// all does it, so that twenty replicas do not count the same rows twenty times: take
// the max over replicas.
type census struct {
	take     func(context.Context) (postgres.Census, bool, error)
	runCap   loop.USD // of a run that sets none
	desc     map[string]*prometheus.Desc
	failures prometheus.Counter
}

func newCensus(store *postgres.Store, worker string) *census {
	c := &census{
		take:   func(ctx context.Context) (postgres.Census, bool, error) { return store.Census(ctx, worker) },
		runCap: loop.Defaults().Cost, desc: map[string]*prometheus.Desc{},
	}
	for _, d := range []struct {
		name, help string
		labels     []string
	}{
		{"runs", "Runs in each live state.", []string{"state"}},
		{"tool_calls_waiting", "Tool calls of live runs that wait for an approval, a result, or the truth about a doubt.", []string{"state"}},
		{"queue_depth", "Runs that a worker could take now.", []string{"priority"}},
		{"queue_oldest_age_seconds", "How long the first run in the queue has been waiting.", nil},
		{"approvals_pending", "Calls that wait for a person.", nil},
		{"approval_oldest_pending_seconds", "How long the first call has been waiting for a person.", nil},
		{"approval_pending_used_ratio", "Share of its time, until it expires, that the most pressing call has been waiting for a person.", nil},
		{"budget_usd", "Money: run_default is the cap of a run that sets none, daily and monthly are the budgets of whole tenants, reserved is held for calls in flight.", []string{"scope"}},
	} {
		c.desc[d.name] = prometheus.NewDesc("loopd_"+d.name, d.help+" In the whole database; shown by one worker.", d.labels, nil)
	}
	c.failures = prometheus.NewCounter(prometheus.CounterOpts{Name: "loopd_census_failures_total", Help: "Scrapes at which the database could not be counted."})
	return c
}

// Describe implements prometheus.Collector.
func (c *census) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.desc {
		ch <- d
	}
	c.failures.Describe(ch)
}

// Collect implements prometheus.Collector. A database that does not answer costs the
// scrape these gauges, and nothing else of it.
func (c *census) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	now, mine, err := c.take(ctx)
	if err != nil {
		c.failures.Inc()
	}
	c.failures.Collect(ch)
	if err != nil || !mine {
		return
	}
	gauge := func(name string, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.desc[name], prometheus.GaugeValue, value, labels...)
	}
	for state, n := range now.Runs {
		gauge("runs", float64(n), string(state))
	}
	for state, n := range now.Calls {
		gauge("tool_calls_waiting", float64(n), string(state))
	}
	for priority, n := range now.Queue {
		gauge("queue_depth", float64(n), strings.ToLower(string(priority)))
	}
	gauge("queue_oldest_age_seconds", now.QueueOldest.Seconds())
	gauge("approvals_pending", float64(now.Approvals))
	gauge("approval_oldest_pending_seconds", now.ApprovalOldest.Seconds())
	gauge("approval_pending_used_ratio", now.ApprovalUsed)
	gauge("budget_usd", c.runCap.Float(), "run_default")
	gauge("budget_usd", now.Daily.Float(), "daily")
	gauge("budget_usd", now.Monthly.Float(), "monthly")
	gauge("budget_usd", now.Held.Float(), "reserved")
}

// about shows what this process is: its build, its configuration, the schema that it
// finds, and whether it is on its way out. Changes of these are what on-call people ask
// about first.
type about struct {
	build, config, schema, draining *prometheus.Desc
	version, hash                   string
	drains                          func() bool
	schemaVersion                   func(context.Context) (int64, error)
}

func newAbout(c config, drains func() bool, store *postgres.Store) about {
	return about{
		build:    prometheus.NewDesc("loopd_build_info", "1, labelled with the version of this process.", []string{"version", "go_version"}, nil),
		config:   prometheus.NewDesc("loopd_config_info", "1, labelled with a hash of the configuration of this process, without its secrets.", []string{"hash"}, nil),
		schema:   prometheus.NewDesc("loopd_schema_version", "Number of the newest migration that the database has.", nil, nil),
		draining: prometheus.NewDesc("loopd_draining", "1 while this process hands its runs over to end.", nil, nil),
		version:  buildVersion(), hash: c.hash(), drains: drains, schemaVersion: store.SchemaVersion,
	}
}

// buildVersion is the version, and the commit it was built from where that is known, so
// that two builds between releases are told apart.
func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return version + "+" + s.Value[:min(12, len(s.Value))]
			}
		}
	}
	return version
}

// Describe implements prometheus.Collector.
func (a about) Describe(ch chan<- *prometheus.Desc) {
	ch <- a.build
	ch <- a.config
	ch <- a.schema
	ch <- a.draining
}

// Collect implements prometheus.Collector.
func (a about) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(a.build, prometheus.GaugeValue, 1, a.version, runtime.Version())
	ch <- prometheus.MustNewConstMetric(a.config, prometheus.GaugeValue, 1, a.hash)
	draining := 0.0
	if a.drains() {
		draining = 1
	}
	ch <- prometheus.MustNewConstMetric(a.draining, prometheus.GaugeValue, draining)
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	if v, err := a.schemaVersion(ctx); err == nil {
		ch <- prometheus.MustNewConstMetric(a.schema, prometheus.GaugeValue, float64(v))
	}
}
