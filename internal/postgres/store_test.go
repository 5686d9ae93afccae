package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/pgtest"
)

const tenant = "acme"

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m, Migrate)) }

// openStore opens a store on a database of the test's own.
func openStore(t *testing.T) *Store {
	t.Helper()
	return openURL(t, Config{URL: pgtest.URL(t), MaxConns: 8})
}

func openURL(t *testing.T, cfg Config) *Store {
	t.Helper()
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

var runCount atomic.Int64

// newRef names a run that does not exist yet; later ones sort behind.
func newRef() loop.RunRef {
	return loop.RunRef{Tenant: tenant, ID: fmt.Sprintf("01900000-0000-7000-8000-%012x", runCount.Add(1))}
}

func spec() loop.Spec {
	limits := loop.Defaults()
	limits.Cost = 100 * loop.MilliUSD
	return loop.Spec{
		Agent: "agents/support", AgentVersion: 3, Input: "Where is order ORD-4892?", Limits: limits,
		Definition: loop.AgentSpec{Model: "scripted/demo", Tools: []loop.ToolSpec{{
			Name: "get_order", Schema: []byte(`{"type":"object"}`), Effect: loop.ReadOnly, Timeout: time.Second,
		}}},
		Labels: map[string]string{"team": "care"}, Source: "rest",
	}
}

func create(t *testing.T, s *Store) loop.RunRef {
	t.Helper()
	ref := newRef()
	if _, _, err := s.CreateRun(t.Context(), ref, spec(), Idempotency{}); err != nil {
		t.Fatal(err)
	}
	return ref
}

// claimOne renews the worker and claims the single run that waits.
func claimOne(t *testing.T, s *Store, worker string) loop.Lease {
	t.Helper()
	renew(t, s, worker, time.Minute)
	leases := claim(t, s, worker, 10)
	if len(leases) != 1 {
		t.Fatalf("%s claimed %d runs, want 1", worker, len(leases))
	}
	return leases[0]
}

func renew(t *testing.T, s *Store, worker string, ttl time.Duration) {
	t.Helper()
	if err := s.Renew(t.Context(), worker, ttl); err != nil {
		t.Fatal(err)
	}
}

func claim(t *testing.T, s *Store, worker string, limit int) []loop.Lease {
	t.Helper()
	leases, err := s.Claim(t.Context(), worker, limit)
	if err != nil {
		t.Fatal(err)
	}
	return leases
}

// at is a time of the test's story, to the microsecond as Postgres keeps it.
func at(seconds int) time.Time { return time.Date(2026, 11, 30, 12, 0, seconds, 123456000, time.UTC) }

// batch numbers events from seq.
func batch(lease loop.Lease, seq int64, bodies ...loop.Body) Batch {
	b := Batch{Head: loop.Head{State: loop.StateRunning, Phase: "model", Attempts: 1, StartedAt: at(1)}}
	for i, body := range bodies {
		b.Events = append(b.Events, loop.Event{Seq: seq + int64(i), At: at(int(seq) + i), Epoch: lease.Epoch, Body: body})
	}
	return b
}

func mustAppend(t *testing.T, s *Store, lease loop.Lease, b Batch) {
	t.Helper()
	if err := s.Append(t.Context(), lease, b); err != nil {
		t.Fatal(err)
	}
}

func claimed(lease loop.Lease) loop.Body { return loop.Claimed{Attempt: 1, Worker: lease.Owner} }

// lastSeq fails the test unless the run's journal is 1..n without gaps and its row
// agrees.
func lastSeq(t *testing.T, s *Store, ref loop.RunRef) int64 {
	t.Helper()
	journal, err := s.Load(t.Context(), loop.Lease{Run: ref})
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range journal.Events {
		if e.Seq != int64(i+1) {
			t.Fatalf("event %d of the journal has seq %d", i+1, e.Seq)
		}
	}
	run := getRun(t, s, ref)
	if run.LastSeq != int64(len(journal.Events)) {
		t.Fatalf("the run's row says %d events, the journal has %d", run.LastSeq, len(journal.Events))
	}
	return run.LastSeq
}

func getRun(t *testing.T, s *Store, ref loop.RunRef) Run {
	t.Helper()
	run, err := s.GetRun(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func wantErr(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("error = %v, want %v", got, want)
	}
}

func diff(t *testing.T, what string, got, want any, opts ...cmp.Option) {
	t.Helper()
	if d := cmp.Diff(want, got, opts...); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// scalar reads one value with SQL of the test's own.
func scalar[T any](t *testing.T, s *Store, query string, args ...any) T {
	t.Helper()
	var v T
	if err := s.pool.QueryRow(t.Context(), query, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

// emptyDatabase makes a database without a schema beside the test's own.
func emptyDatabase(t *testing.T) string {
	t.Helper()
	pool := pgtest.Pool(t)
	name := "empty_" + fmt.Sprint(runCount.Add(1), "_", os.Getpid())
	if _, err := pool.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	config := pool.Config().ConnConfig
	t.Cleanup(func() {
		// The store of the test is closed by then: cleanups run in reverse.
		conn, err := pgx.ConnectConfig(context.Background(), config)
		if err == nil {
			_, err = conn.Exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)")
			err = errors.Join(err, conn.Close(context.Background()))
		}
		if err != nil {
			t.Error(err)
		}
	})
	return fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s", config.Host, config.Port, config.User, config.Password, name)
}

func TestConcurrentMigratorsTakeTurns(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	s := openURL(t, Config{URL: url})
	wantErr(t, s.Ready(t.Context()), ErrSchema)

	results := make(chan error)
	for range 2 {
		go func() { results <- Migrate(t.Context(), url) }()
	}
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}

	if err := s.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	status, err := MigrationStatus(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	latest, err := latestMigration()
	if err != nil {
		t.Fatal(err)
	}
	if len(status) == 0 || status[len(status)-1].Version != latest {
		t.Fatalf("status = %+v, want it to end with version %d", status, latest)
	}
	if i := slices.IndexFunc(status, func(m Migration) bool { return m.AppliedAt.IsZero() }); i >= 0 {
		t.Errorf("%s is not applied", status[i].File)
	}
}

func TestSessionsAreLimited(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	for _, pool := range []*pgxpool.Pool{s.pool, s.renewal, s.appends} {
		var got string
		const query = `SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings
			WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout')`
		if err := pool.QueryRow(t.Context(), query).Scan(&got); err != nil {
			t.Fatal(err)
		}
		diff(t, "settings", got, "idle_in_transaction_session_timeout=5000 lock_timeout=1000 statement_timeout=5000")
	}
}

func TestOpenRefusesBadURL(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{URL: "postgres://%zz"},
		{URL: "postgres://localhost/x", DirectURL: "postgres://%zz"},
	} {
		if s, err := Open(t.Context(), cfg); err == nil {
			s.Close()
			t.Errorf("Open(%+v) succeeded", cfg)
		}
	}
}

func TestReadyWithoutServer(t *testing.T) {
	t.Parallel()
	s := openURL(t, Config{URL: "host=/nonexistent user=nobody dbname=none"})
	wantErr(t, s.Ready(t.Context()), ErrUnavailable)
	_, _, err := s.CreateRun(t.Context(), newRef(), spec(), Idempotency{})
	wantErr(t, err, ErrUnavailable)
	if errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("nothing was sent, so the outcome is known: %v", err)
	}
}
