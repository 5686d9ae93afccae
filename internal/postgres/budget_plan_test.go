package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// A draw reads the chunks that are due and its own run's, not all that a budget ever had.
func TestDrawsHaveIndexes(t *testing.T) {
	t.Parallel()
	s := openURL(t, Config{URL: openStore(t).direct, MaxConns: 1})
	fill(t, s)
	for _, query := range []string{
		`INSERT INTO holds (tenant_id, run_id, call, amount_pico, state, settled_pico, settled_at)
		 SELECT tenant_id, run_id, n, 10, 'settled', 5, now() FROM runs, generate_series(11, 20) n`,
		`INSERT INTO budgets (tenant_id, budget_id, scope, span, amount_pico) SELECT 't' || n, 'daily', 'TENANT', 'DAY', 1000000 FROM generate_series(0, 9) n`,
		`INSERT INTO budget_accounts (tenant_id, budget_id, starts_at, ends_at, limit_pico)
		 SELECT tenant_id, budget_id, '2026-01-01'::timestamptz + n * interval '1 day', '2026-01-02'::timestamptz + n * interval '1 day', amount_pico
		 FROM budgets, generate_series(0, 5) n`,
		`INSERT INTO chunks (tenant_id, run_id, budget_id, starts_at, call, state)
		 SELECT r.tenant_id, r.run_id, a.budget_id, a.starts_at, 10, CASE WHEN a.starts_at < '2026-01-06' THEN 'folded' WHEN random() < 0.02 THEN 'closed' ELSE 'open' END
		 FROM runs r JOIN budget_accounts a USING (tenant_id)`,
		"VACUUM ANALYZE",
	} {
		if _, err := s.pool.Exec(t.Context(), query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	run := loop.RunRef{Tenant: "t3", ID: "01900000-0000-7000-9000-000000000003"}
	ids, first := []string{"daily"}, []time.Time{time.Date(2026, 1, 6, 0, 0, 0, 0, time.UTC)}
	// The statements are prepared by asking them once.
	if _, err := s.q.GetOpenChunks(t.Context(), db.GetOpenChunksParams{TenantID: run.Tenant, RunID: run.ID}); err != nil {
		t.Fatal(err)
	}
	rows, err := s.q.ListDrawable(t.Context(), db.ListDrawableParams{TenantID: run.Tenant, RunID: run.ID, BudgetIds: ids, Starts: first})
	if err != nil || len(rows) != 1 {
		t.Fatalf("found %d accounts, %v: the plan would prove nothing", len(rows), err)
	}
	if err := s.q.FoldChunks(t.Context(), db.FoldChunksParams{TenantID: run.Tenant, BudgetIds: ids, Starts: first}); err != nil {
		t.Fatal(err)
	}
	for query, args := range map[string][]string{
		"GetOpenChunks": {run.Tenant, run.ID},
		"ListDrawable":  {run.ID, "{daily}", "{2026-01-06}", run.Tenant},
		"FoldChunks":    {run.Tenant, "{daily}", "{2026-01-06}"},
	} {
		plan := planOf(t, s, query, args)
		for _, table := range []string{"chunks", "holds", "runs"} {
			if strings.Contains(plan, "Seq Scan on "+table) {
				t.Errorf("%s reads all of %s:\n%s", query, table, plan)
			}
		}
		if query != "GetOpenChunks" && !strings.Contains(plan, " chunks_live ") {
			t.Errorf("%s does not find the chunks that are due:\n%s", query, plan)
		}
	}
}
