package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// fill makes a database in which a plan that reads a whole table shows: ten tenants
// with 200 runs of ten calls each, one of which waits.
func fill(t *testing.T, s *Store) {
	t.Helper()
	for _, query := range []string{
		`INSERT INTO runs (tenant_id, run_id, agent, agent_version, input, limits, labels, source, has_output_schema, created_at,
			next_seq, state, phase, parent_run_id, parent_call_id, root_run_id, depth)
		 SELECT 't' || n % 10, ('01900000-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid, 'agents/support', 1, '""', '{}', '{}', '', false,
			now() - n * interval '1 second', 2, 'QUEUED', '',
			CASE WHEN n > 10 THEN ('01900000-0000-7000-9000-' || lpad(to_hex(n % 10), 12, '0'))::uuid END,
			CASE WHEN n > 10 THEN 'c1-1' END, CASE WHEN n > 10 THEN ('01900000-0000-7000-9000-' || lpad(to_hex(n % 10), 12, '0'))::uuid END,
			CASE WHEN n > 10 THEN 1 ELSE 0 END
		 FROM generate_series(0, 1999) n`,
		`INSERT INTO tool_calls (run_id, tenant_id, call_id, ordinal, tool, call, iteration, args_sha256, effect, state, outcome, attempt,
			idem_key, result, cut, bytes, until_at, asked_at, owed)
		 SELECT r.run_id, r.tenant_id, 'c1-' || n, n::integer, 'issue_refund', '{}', 1, '', '',
			CASE WHEN n > 1 THEN 'SUCCEEDED' ELSE 'AWAITING_APPROVAL' END, '', 1,
			'k', '""', false, 0, now() + interval '1 hour', CASE WHEN n < 4 THEN r.created_at END, ''
		 FROM runs r CROSS JOIN generate_series(1, 10) AS n`,
		`INSERT INTO notes (tenant_id, agent, subject, key, text)
		 SELECT 't' || n % 10, 'agents/support', 'customer ' || n / 100 % 20, 'key ' || n, 'a common word and number ' || n
		 FROM generate_series(1, 20000) n`,
		`INSERT INTO tools (tenant_id, tool_id, display_name, description, labels, latest_version)
		 SELECT 't' || n % 10, 'tool ' || n / 10, '', '', '{}', 5 FROM generate_series(0, 999) n`,
		`INSERT INTO tool_versions (tenant_id, tool_id, version, spec)
		 SELECT tenant_id, tool_id, v, '{}' FROM tools, generate_series(1, 5) v`,
		`INSERT INTO policies (tenant_id, policy_id, tool, latest_version)
		 SELECT 't' || n % 10, 'policy ' || n, 'tool ' || n / 10, 1 FROM generate_series(0, 2999) n`,
		`INSERT INTO holds (tenant_id, run_id, call, amount_pico, state, settled_pico, settled_at)
		 SELECT tenant_id, run_id, n, 1, 'settled', 1, created_at - (n - 1) * interval '1 day' FROM runs, generate_series(1, 10) AS n`,
		`INSERT INTO policy_versions (tenant_id, policy_id, version, body) SELECT tenant_id, policy_id, 1, '{}' FROM policies`,
		`INSERT INTO workers (worker_id, expires_at) VALUES ('w3', 'infinity')`,
		`UPDATE runs SET lease_owner = 'w3', signals = CASE WHEN run_id = '01900000-0000-7000-9000-000000000003' THEN 1 ELSE 0 END WHERE tenant_id = 't3'`,
		// Something in each partition, as a plan reads empty ones whole. Nobody has such runs.
		`SET session_replication_role = replica`,
		`INSERT INTO events (tenant_id, run_id, seq, kind, at, epoch, body)
		 SELECT 't3', p.id, n, 'claimed', now(), 1, '{}' FROM generate_series(1, 1000) n, (
			SELECT from_id AS id FROM journal_partitions UNION ALL (SELECT to_id FROM journal_partitions ORDER BY to_id DESC LIMIT 1)
			UNION ALL SELECT run_id_at('2100-01-01 00:00:00+00') UNION ALL SELECT 'ffffffff-ffff-ffff-ffff-ffffffffffff') p`,
		`RESET session_replication_role`,
		"VACUUM ANALYZE",
	} {
		if _, err := s.pool.Exec(t.Context(), query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
}

// What is listed is found by an index: no statement sorts a tenant's rows, or reads
// those of others. The plans are those of the statements themselves, for known parameters:
// Postgres prefers them, as with LIMIT and optional filters they are the cheaper ones.
func TestListsHaveIndexes(t *testing.T) {
	t.Parallel()
	s := openURL(t, Config{URL: openStore(t).direct, MaxConns: 1})
	fill(t, s)
	run := loop.RunRef{Tenant: "t3", ID: "01900000-0000-7000-9000-000000000003"}
	hourAgo := time.Now().Add(-time.Hour)
	owner := NoteOwner{Tenant: "t3", Agent: "agents/support", Subject: "customer 3"}
	for _, test := range []struct {
		query string
		call  func() (rows int, err error)
		args  []string // in the order of the generated statement
		index []string
		whole bool // it sorts, or counts
	}{
		{
			"ListWaitingApprovals", func() (int, error) {
				l, _, err := s.ListApprovals(t.Context(), "t3", ApprovalFilter{State: ApprovalPending, PageSize: 10})
				return len(l), err
			},
			[]string{"t3", "0001-01-01", firstID, "", "", "", "10"}, []string{"tool_calls_inbox", "runs_pkey"}, false,
		},
		{
			"ListAskedApprovals", func() (int, error) {
				l, _, err := s.ListApprovals(t.Context(), "t3", ApprovalFilter{PageSize: 10})
				return len(l), err
			},
			[]string{"t3", "9999-01-01", lastID, "", "", "", "", "10"}, []string{"tool_calls_asked", "runs_pkey"}, false,
		},
		{
			"ListRunApprovals", func() (int, error) {
				l, _, err := s.ListApprovals(t.Context(), "t3", ApprovalFilter{Run: run.ID, PageSize: 10})
				return len(l), err
			},
			[]string{"t3", run.ID}, []string{"tool_calls_pkey", "runs_pkey"}, false,
		},
		{
			"ListWaitingCalls", func() (int, error) {
				l, _, err := s.ListWaitingCalls(t.Context(), "t3", CallFilter{PageSize: 10})
				return len(l), err
			},
			[]string{"t3", firstID, "0", "{}", "", "10"}, []string{"tool_calls_waiting", "runs_pkey"}, false,
		},
		{
			"ListSignalledRuns", func() (int, error) { l, err := s.Signalled(t.Context(), "w3"); return len(l), err },
			[]string{"w3"}, []string{"runs_signalled"}, false,
		},
		{
			"CountWaitingCalls", func() (int, error) { l, err := s.CountWaitingCalls(t.Context()); return len(l), err },
			nil, []string{"tool_calls_waiting"}, true,
		},
		{
			"ListChildRuns", func() (int, error) {
				l, err := s.ListRuns(t.Context(), "t3", RunFilter{Parent: run.ID}, RunCursor{}, 10)
				return len(l), err
			},
			[]string{"t3", run.ID, "9999-01-01", lastID, "", "{}", "10"}, []string{"runs_children"}, false,
		},
		{
			"SearchNotes", func() (int, error) { l, err := s.SearchNotes(t.Context(), owner, "common"); return len(l), err },
			[]string{"t3", owner.Agent, owner.Subject, "common", "20"}, []string{"notes_pkey"}, true,
		},
		{
			"GetTool", func() (int, error) { _, err := s.GetTool(t.Context(), "t3", "tool 3", 2); return 1, err },
			[]string{"t3", "tool 3", "2"}, []string{"tools_pkey", "tool_versions_pkey"}, false,
		},
		{
			"ListTools", func() (int, error) { l, err := s.ListTools(t.Context(), "t3", "tool 3", 10, false); return len(l), err },
			[]string{"t3", "tool 3", "false", "10"}, []string{"tools_pkey", "tool_versions_pkey"}, false,
		},
		{
			"ListToolPolicies", func() (int, error) { l, err := s.Policies(t.Context(), "t3", "tool 3"); return len(l), err },
			[]string{"t3", "tool 3"}, []string{"policies_tool", "policy_versions_pkey"}, false,
		},
		{
			"QueryUsage", func() (int, error) {
				_, l, _, err := s.QueryUsage(t.Context(), "t3", UsageQuery{From: hourAgo, To: hourAgo.Add(time.Hour), Zone: "UTC", GroupBy: []string{"agent"}, Limit: 10})
				return len(l), err
			},
			[]string{"0", "12", "{agent}", "UTC", "t3", hourAgo.Format(time.RFC3339), hourAgo.Add(time.Hour).Format(time.RFC3339), "", "", "{}", "{}", "{}", "0"}, []string{"holds_settled", "runs_pkey"}, true,
		},
	} {
		t.Run(test.query, func(t *testing.T) {
			if rows, err := test.call(); err != nil || rows == 0 {
				t.Fatalf("found %d, %v: the plan would prove nothing", rows, err)
			}
			plan := planOf(t, s, test.query, test.args)
			for _, index := range test.index {
				if !strings.Contains(plan, " "+index+" ") && !strings.Contains(plan, " "+index+"\n") {
					t.Errorf("the plan does not use %s", index)
				}
			}
			if strings.Contains(plan, "Seq Scan") && !test.whole || strings.Contains(plan, "Seq Scan on notes") {
				t.Error("the plan reads a whole table")
			}
			if strings.Contains(plan, "Sort Key") && !test.whole && !strings.Contains(plan, "Incremental Sort") {
				t.Error("the plan sorts")
			}
			if t.Failed() {
				t.Log(plan)
			}
		})
	}
}

// planOf explains a statement that the store has prepared on its only connection.
func planOf(t *testing.T, s *Store, query string, args []string) string {
	t.Helper()
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), "SET plan_cache_mode = force_custom_plan"); err != nil {
		t.Fatal(err)
	}
	var name string
	var types []string
	const prepared = "SELECT name, parameter_types::text[] FROM pg_prepared_statements WHERE statement LIKE '-- name: ' || $1 || ' :%'"
	if err := conn.QueryRow(t.Context(), prepared, query).Scan(&name, &types); err != nil {
		t.Fatal(err)
	}
	if len(types) != len(args) {
		t.Fatalf("%s has parameters of the types %v, the test gives %d", query, types, len(args))
	}
	list := make([]string, len(args))
	for i, arg := range args {
		list[i] = fmt.Sprintf("'%s'::%s", arg, types[i])
	}
	explain := "EXPLAIN EXECUTE " + pgx.Identifier{name}.Sanitize()
	if len(list) > 0 {
		explain += "(" + strings.Join(list, ", ") + ")"
	}
	rows, err := conn.Query(t.Context(), explain)
	if err != nil {
		t.Fatalf("%s: %v", explain, err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n") + "\n"
}

// The statement for groups finds each row by its key, in the order of its arrays, also if
// its plan is made while there is nothing in the tables: the order is that in which
// everybody locks runs, and a plan that begins with the runs would read all that a worker owns.
func TestGroupsAreLookedUpByKey(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	create(t, s)
	renew(t, s, "w1", time.Minute)
	lease := claim(t, s, "w1", 1)[0]
	params, err := appendParams(lease, batch(lease, 2, claimed(lease)), false)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := s.appends.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) // nothing to keep
	if _, err := tx.Exec(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	var queued queuedBatch
	if err := db.New(&queued).AppendGroup(t.Context(), []db.AppendGroupParams{groupParams([]*pending{{params: params}})}).Close(); err != nil {
		t.Fatal(err)
	}
	group := queued.QueuedQueries[0]
	if _, err := tx.Prepare(t.Context(), "a group", group.SQL); err != nil {
		t.Fatal(err)
	}
	nulls := strings.TrimSuffix(strings.Repeat("NULL, ", len(group.Arguments)), ", ") // the plan is for any parameters
	rows, err := tx.Query(t.Context(), `EXPLAIN EXECUTE "a group"(`+nulls+")")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	plan := strings.Join(lines, "\n")
	for _, want := range []string{"Index Scan using runs_pkey on runs r", "Index Cond: ((tenant_id = b.tenant_id) AND (run_id = b.run_id))\n", "Index Scan using holds_pkey", "Index Scan using accounts_pkey", "Index Scan using chunks_pkey"} {
		if !strings.Contains(plan, want) {
			t.Errorf("the plan has no %s", want)
		}
	}
	for _, no := range []string{"Hash Join", "Merge Join", "Seq Scan", "runs_owned", "runs_list", "Sort"} {
		if strings.Contains(plan, no) {
			t.Errorf("the plan has a %s", no)
		}
	}
	if t.Failed() {
		t.Log(plan)
	}
}

// A run's trips are looked for among its own events, also while the planner knows nothing
// of the tables: all trips of its tenant have an index, and would be read.
func TestTripsAreLookedUpByRun(t *testing.T) {
	t.Parallel()
	s := openURL(t, Config{URL: openStore(t).direct, MaxConns: 1})
	run := create(t, s)
	for _, others := range []string{
		`INSERT INTO runs (tenant_id, run_id, agent, agent_version, input, limits, labels, source, has_output_schema, next_seq, state, phase)
		 SELECT r.tenant_id, ('01900000-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid, r.agent, 1, r.input, r.limits, r.labels, '', false, 2, 'QUEUED', ''
		 FROM runs r, generate_series(1, 400) n`,
		`INSERT INTO events (tenant_id, run_id, seq, kind, at, epoch, body)
		 SELECT tenant_id, run_id, n + 1, CASE WHEN n = 40 THEN 'tripped' ELSE 'claimed' END, now(), 1, json_build_object('message', repeat('x', 1000))
		 FROM runs, generate_series(1, 41) AS n`,
	} {
		if _, err := s.pool.Exec(t.Context(), others); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Trips(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	plan := planOf(t, s, "ListTrips", []string{run.Tenant, run.ID})
	if !strings.Contains(plan, "events_first_pkey") || strings.Contains(plan, "_trips") {
		t.Errorf("the plan does not look up the run:\n%s", plan)
	}
}

// queuedBatch keeps a batch instead of sending it.
type queuedBatch struct {
	db.DBTX
	pgx.Batch
}

func (q *queuedBatch) SendBatch(_ context.Context, b *pgx.Batch) pgx.BatchResults {
	q.Batch = *b
	return noResults{}
}

type noResults struct{ pgx.BatchResults }

func (noResults) Close() error { return nil }
