package postgres

import (
	"testing"
	"time"

	"github.com/loopd/loopd/internal/postgres/pgtest"
)

// BenchmarkQueryUsage adds up parts of 1,000,000 model calls, of 100,000 runs of 20
// agents, which are spread evenly over 30 days. Half of them asked for a tool call,
// one in twenty of which failed.
func BenchmarkQueryUsage(b *testing.B) {
	s, err := Open(b.Context(), Config{URL: pgtest.URL(b), MaxConns: 2})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	fillUsage(b, s)
	end := at(0).Truncate(24 * time.Hour)
	for _, c := range []struct {
		name string
		days int
		by   []string
	}{
		{"day by agent", 1, []string{"agent"}},
		{"day by hour", 1, []string{"hour"}},
		{"day by agent and hour", 1, []string{"agent", "hour"}},
		{"day by tool", 1, []string{"tool"}},
		{"day by team, stop reason and model", 1, []string{"label:team", "stop_reason", "model"}},
		{"week by agent and day", 7, []string{"agent", "day"}},
		{"month by agent", 30, []string{"agent"}},
		{"month by agent and day", 30, []string{"agent", "day"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				_, rows, _, err := s.QueryUsage(b.Context(), tenant, UsageQuery{
					From: end.AddDate(0, 0, -c.days), To: end, Zone: "Europe/Berlin", GroupBy: c.by, Limit: 1000,
				})
				if err != nil || len(rows) == 0 {
					b.Fatalf("%d rows, %v", len(rows), err)
				}
			}
		})
	}
}

func fillUsage(b *testing.B, s *Store) {
	b.Helper()
	for _, query := range []string{
		`INSERT INTO runs (tenant_id, run_id, agent, agent_version, input, limits, labels, source, has_output_schema, created_at,
			next_seq, state, phase, stop, ended_at)
		 SELECT 'acme', ('01900000-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid, 'agents/a' || n % 20, 1, '""', '{}',
			json_build_object('team', 'team ' || n % 7), '', false, '2026-10-31'::timestamptz + n * interval '25.92 s',
			50, CASE WHEN n % 5 = 0 THEN 'STOPPED' ELSE 'SUCCEEDED' END, '',
			('{"reason":"COMPLETED","message":"' || repeat('evidence ', 100) || '"}')::json, now()
		 FROM generate_series(0, 99999) n`,
		`INSERT INTO holds (tenant_id, run_id, call, amount_pico, state, settled_pico, opened_at, settled_at, model, price_version,
			input_uncached, cache_read, output, saved_pico, iteration, tools)
		 SELECT tenant_id, run_id, c, 2000000000, 'settled', 1000000000 + c, created_at, created_at + c * interval '2 s', 'acme/m' || c % 3, '1',
			200, 4000, 120, 1000, CASE WHEN c % 2 = 0 THEN c END, CASE WHEN c % 2 = 0 THEN ARRAY['get_order'] END
		 FROM runs, generate_series(1, 10) AS c ORDER BY created_at, c`,
		`INSERT INTO tool_calls (tenant_id, run_id, call_id, ordinal, tool, call, iteration, args_sha256, effect, state, outcome, attempt,
			idem_key, result, cut, bytes)
		 SELECT tenant_id, run_id, 'c' || call || '-1', call, 'get_order', '{}', call, '', 'READ_ONLY',
			CASE WHEN (call + extract(epoch FROM settled_at)::bigint) % 20 = 0 THEN 'FAILED' ELSE 'SUCCEEDED' END, 'ok', 1, 'k', '""', false, 0
		 FROM holds WHERE iteration IS NOT NULL`,
		"VACUUM ANALYZE",
	} {
		conn, err := s.pool.Acquire(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if _, err = conn.Exec(b.Context(), "SET statement_timeout = 0; SET lock_timeout = 0"); err == nil {
			_, err = conn.Exec(b.Context(), query)
		}
		conn.Release()
		if err != nil {
			b.Fatalf("%s: %v", query, err)
		}
	}
}
