package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/loopd/loopd/internal/devpg"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// historyOptions are the flags of `loopd bench history`.
type historyOptions struct {
	runs, samples int
	binDir        string
}

func benchHistoryCommand(env Env) *cobra.Command {
	var o historyOptions
	cmd := &cobra.Command{
		Use: "history", Short: "Measure what many finished runs in the database cost those who list, get, claim and create", Args: cobra.NoArgs,
		Long: "Measures medians of the statements that people and workers wait for, on an empty database and then on\n" +
			"one with so many finished runs of three months, made up in SQL. The server does not sync, so that the\n" +
			"figures show the work and not the disk.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.runs < 1 || o.samples < 1 {
				return usagef("--runs %d and --samples %d: use at least 1 of each", o.runs, o.samples)
			}
			return o.bench(cmd.Context(), env)
		},
	}
	cmd.Flags().IntVar(&o.runs, "runs", 1_000_000, "finished runs to make up, of 100 agents")
	cmd.Flags().IntVar(&o.samples, "samples", 300, "measure each statement so often")
	cmd.Flags().StringVar(&o.binDir, "pg-bindir", env.Getenv("LOOPD_PG_BINDIR"), "Postgres binaries to use [LOOPD_PG_BINDIR]")
	return cmd
}

// bench measures before and after, on a server of its own.
func (o historyOptions) bench(ctx context.Context, env Env) (err error) {
	dir, err := os.MkdirTemp("", "loopd-bench-")
	if err != nil {
		return fmt.Errorf("make a directory for Postgres: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// Root's server runs as another user, who must get to its data.
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // nobody can list it, and the data in it is its owner's
		return fmt.Errorf("open the directory for Postgres: %w", err)
	}
	pg, err := devpg.Start(ctx, devpg.Config{DataDir: dir, BinDir: o.binDir, Settings: map[string]string{
		"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "shared_buffers": "512MB", "max_wal_size": "16GB", "checkpoint_timeout": "30min",
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.Stop(context.WithoutCancel(ctx))) }()
	if err := postgres.Migrate(ctx, pg.URL()); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	store, err := postgres.Open(ctx, postgres.Config{URL: pg.URL()})
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	defer store.Close()
	before, err := o.measure(ctx, store)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := o.makeHistory(ctx, pg.URL()); err != nil {
		return err
	}
	fmt.Fprintf(env.Stderr, "made %d runs in %s\n", o.runs, time.Since(began).Round(time.Second))
	after, err := o.measure(ctx, store)
	if err != nil {
		return err
	}
	rows := [][]string{{"STATEMENT", "EMPTY MS", strconv.Itoa(o.runs) + " RUNS MS", "RATIO"}}
	for i, b := range before {
		ms := func(d time.Duration) string { return strconv.FormatFloat(d.Seconds()*1000, 'f', 2, 64) }
		rows = append(rows, []string{b.name, ms(b.median), ms(after[i].median), strconv.FormatFloat(float64(after[i].median)/float64(b.median), 'f', 2, 64)})
	}
	return indentedTable(env.Stdout, "", rows)
}

// historyFigure is the median time of a statement.
type historyFigure struct {
	name   string
	median time.Duration
}

// historyTenant is whose runs are measured: all of them.
const historyTenant = "bench"

// measure times each statement in turns with the others. The runs that it makes are
// claimed and released, so that the next claim finds one.
func (o historyOptions) measure(ctx context.Context, store *postgres.Store) ([]historyFigure, error) {
	m := &historyMeter{store: store, worker: uuid.NewString()}
	if err := store.Renew(ctx, m.worker, time.Hour); err != nil {
		return nil, err
	}
	spec := loop.Spec{
		Agent: "agents/a7", AgentVersion: 1, Input: "Where is my order?", Limits: loop.Defaults(),
		Definition: loop.AgentSpec{Model: "scripted/bench"}, Labels: map[string]string{"team": "care"}, Source: "grpc",
	}
	statements := []struct {
		name string
		do   func() error
	}{
		{"create", func() (err error) { return m.create(ctx, spec) }},
		{"claim", func() error { return m.claim(ctx) }},
		{"append", func() error { return m.finish(ctx) }},
		{"get", func() error { _, err := store.GetRun(ctx, m.run); return err }},
		{"journal", func() error { _, err := store.Journal(ctx, m.run); return err }},
		{"list", func() error { return m.list(ctx, postgres.RunFilter{}) }},
		{"list of an agent", func() error { return m.list(ctx, postgres.RunFilter{Agent: "agents/a7"}) }},
		{"list of failed", func() error { return m.list(ctx, postgres.RunFilter{States: []loop.RunState{loop.StateFailed}}) }},
		{"list of live", func() error {
			return m.list(ctx, postgres.RunFilter{States: []loop.RunState{loop.StateQueued, loop.StateRunning}})
		}},
		{"list of rare", func() error { return m.list(ctx, postgres.RunFilter{States: []loop.RunState{loop.StateCancelled}}) }},
		{"usage of an hour", func() error {
			now := time.Now()
			_, _, _, err := store.QueryUsage(ctx, historyTenant, postgres.UsageQuery{From: now.Add(-time.Hour), To: now, Zone: "UTC", GroupBy: []string{"agent"}, Limit: 50})
			return err
		}},
		{"count of live", func() error { _, err := store.CountRuns(ctx); return err }},
	}
	times := make([][]time.Duration, len(statements))
	for range o.samples {
		for i, s := range statements {
			began := time.Now()
			if err := s.do(); err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			times[i] = append(times[i], time.Since(began))
		}
	}
	figures := make([]historyFigure, len(statements))
	for i, s := range statements {
		slices.Sort(times[i])
		figures[i] = historyFigure{s.name, times[i][len(times[i])/2]}
	}
	return figures, nil
}

// historyMeter drives one run after the other.
type historyMeter struct {
	store  *postgres.Store
	worker string
	run    loop.RunRef
	lease  loop.Lease
}

func (m *historyMeter) create(ctx context.Context, spec loop.Spec) error {
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("make a run id: %w", err)
	}
	m.run = loop.RunRef{Tenant: historyTenant, ID: id.String()}
	_, _, err = m.store.CreateRun(ctx, m.run, spec, postgres.Idempotency{Method: "CreateRun", Key: id.String(), Fingerprint: id[:]})
	return err
}

func (m *historyMeter) claim(ctx context.Context) error {
	leases, err := m.store.Claim(ctx, m.worker, 1)
	if err == nil && len(leases) != 1 {
		err = fmt.Errorf("%d runs were claimed, want one", len(leases))
	}
	if err == nil {
		m.lease = leases[0]
	}
	return err
}

func (m *historyMeter) finish(ctx context.Context) error {
	now := time.Now().UTC()
	stop := loop.Stop{Reason: loop.Completed, Message: "Done."}
	return m.store.Append(ctx, m.lease, postgres.Batch{
		Events: []loop.Event{{Seq: 2, At: now, Epoch: m.lease.Epoch, Body: loop.Finished{State: loop.StateSucceeded, Stop: stop}}},
		Head:   loop.Head{State: loop.StateSucceeded, StartedAt: now, EndedAt: now, Stop: &stop},
	})
}

func (m *historyMeter) list(ctx context.Context, filter postgres.RunFilter) error {
	_, err := m.store.ListRuns(ctx, historyTenant, filter, postgres.RunCursor{}, 51)
	return err
}

// makeHistory makes up finished runs: 3 events, a tool call, 2 model calls and a key each,
// over 90 days. One in 50 failed, one in 100,000 was cancelled.
func (o historyOptions) makeHistory(ctx context.Context, url string) (err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	const made = `CREATE TEMP TABLE made AS SELECT n, at, (left(run_id_at(at)::text, 13) || '-7' || lpad(to_hex(n % 4096), 3, '0') || '-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id
		 FROM generate_series(1, $1::bigint) n, LATERAL (SELECT now() - interval '90 days' * (1 - n::double precision / $1::bigint) - interval '2 hours' AS at) t`
	if _, err := conn.Exec(ctx, strings.ReplaceAll(made, "$1::bigint", strconv.Itoa(o.runs))); err != nil {
		return fmt.Errorf("make up runs: %w", err)
	}
	for _, statement := range []string{
		`SET session_replication_role = replica`, // what is made up refers to what there is
		`INSERT INTO runs (tenant_id, run_id, agent, agent_version, input, limits, labels, source, has_output_schema, created_at, next_seq, state, phase,
			iterations, model_calls, tool_calls, attempts, cost_pico, answer, stop, started_at, ended_at)
		 SELECT 'bench', id, 'agents/a' || n % 100, 1, '"Where is my order?"', '{}', '{"team":"care"}', 'grpc', false, at, 4,
			CASE WHEN n % 100000 = 0 THEN 'CANCELLED' WHEN n % 50 = 0 THEN 'FAILED' ELSE 'SUCCEEDED' END, '', 2, 2, 1, 1, 400000000,
			to_json(repeat('An answer. ', 20)), '{"reason":"COMPLETED"}', at, at + interval '20 seconds' FROM made`,
		`INSERT INTO events (tenant_id, run_id, seq, kind, at, epoch, body)
		 SELECT 'bench', id, s, (ARRAY['created','claimed','finished'])[s], at, 1, to_json(repeat('x', 200)) FROM made, generate_series(1, 3) s`,
		`INSERT INTO tool_calls (tenant_id, run_id, call_id, ordinal, tool, call, iteration, args_sha256, effect, state, outcome, attempt, idem_key, result, cut, bytes, started_at, finished_at)
		 SELECT 'bench', id, 'c1-1', 1, 'lookup', '{}', 1, '', 'READ_ONLY', 'SUCCEEDED', 'ok', 1, 'k', to_json(repeat('y', 200)), false, 200, at, at FROM made`,
		`INSERT INTO holds (tenant_id, run_id, call, amount_pico, state, settled_pico, opened_at, settled_at, model, iteration, tools)
		 SELECT 'bench', id, c, 1000000000, 'settled', 200000000, at, at + c * interval '5 seconds', 'scripted/bench', c, '{lookup}' FROM made, generate_series(1, 2) c`,
		`INSERT INTO accounts (tenant_id, account, limit_pico) SELECT 'bench', 'run:' || id, 1000000000000 FROM made`,
		`INSERT INTO idempotency (tenant_id, method, key, fingerprint, resource, created_at) SELECT 'bench', 'CreateRun', id::text, '\x00', id::text, at FROM made`,
		`VACUUM ANALYZE`,
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("make up runs: %.60s: %w", statement, err)
		}
	}
	return nil
}
