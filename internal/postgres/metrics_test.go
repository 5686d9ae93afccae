package postgres

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/loopd/loopd/internal/postgres/pgtest"
)

func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	s := openURL(t, Config{URL: pgtest.URL(t), Registerer: registry})
	create(t, s)
	lease := claimOne(t, s, "w1")
	mustAppend(t, s, lease, batch(lease, 2, claimed(lease)))
	if _, err := s.pool.Exec(t.Context(), "SELECT 1/0"); err == nil {
		t.Fatal("1/0 has a value")
	}

	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names, queries []string
	for _, family := range families {
		names = append(names, family.GetName())
		if family.GetName() != "loopd_db_query_duration_seconds" {
			continue
		}
		for _, metric := range family.GetMetric() {
			queries = append(queries, metric.GetLabel()[0].GetValue())
		}
	}
	for _, want := range []string{"loopd_db_query_duration_seconds", "loopd_db_errors_total", "loopd_db_pool_connections", "loopd_fenced_writes_total"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s among %v", want, names)
		}
	}
	for _, want := range []string{"AppendEvents", "ClaimRuns", "CreateRuns", "RenewWorker", "other"} {
		if !slices.Contains(queries, want) {
			t.Errorf("no query %s among %v", want, queries)
		}
	}
	if i := slices.IndexFunc(queries, func(q string) bool { return strings.ContainsAny(q, " \n") }); i >= 0 {
		t.Errorf("query label %q is no name", queries[i])
	}
	if n := testutil.ToFloat64(s.metrics.errors.WithLabelValues("other")); n != 1 {
		t.Errorf("loopd_db_errors_total{class=other} = %v, want 1", n)
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "lint", problems, []promlint.Problem(nil))
	if _, err := Open(t.Context(), Config{URL: "host=/nonexistent", Registerer: registry}); err == nil {
		t.Error("two stores share a registry")
	}
}
