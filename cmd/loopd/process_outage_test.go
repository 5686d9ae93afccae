package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/devpg"
	"github.com/loopd/loopd/internal/postgres"
)

// mortal is a Postgres of the test's own, at an address that stays while it dies and
// comes back.
type mortal struct {
	t      *testing.T
	dir    string
	server atomic.Pointer[devpg.Server]
	url    string
}

func newMortal(t *testing.T) *mortal {
	t.Helper()
	// Not under t.TempDir, whose parents admit nobody but root when the tests run as root.
	dir, err := os.MkdirTemp("/tmp", "loopd-mortal-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	m := &mortal{t: t, dir: filepath.Join(dir, "data")}
	m.start()
	t.Cleanup(m.stop)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for client, err := listener.Accept(); err == nil; client, err = listener.Accept() {
			go m.serve(client)
		}
	}()
	c := m.config()
	m.url = fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=disable", c.User, c.Password, listener.Addr(), c.Database)
	if err := postgres.Migrate(t.Context(), m.url); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *mortal) config() *pgx.ConnConfig {
	c, err := pgx.ParseConfig(m.server.Load().URL())
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

// serve leads a client to where the server is now, if it is anywhere.
func (m *mortal) serve(client net.Conn) {
	defer client.Close()
	s := m.server.Load()
	if s == nil {
		return
	}
	c, err := pgx.ParseConfig(s.URL())
	if err != nil {
		return
	}
	server, err := net.Dial("unix", fmt.Sprintf("%s/.s.PGSQL.%d", c.Host, c.Port))
	if err != nil {
		return
	}
	defer server.Close()
	go func() { _, _ = io.Copy(server, client); server.Close() }()
	_, _ = io.Copy(client, server)
}

func (m *mortal) start() {
	m.t.Helper()
	s, err := devpg.Start(m.t.Context(), devpg.Config{DataDir: m.dir, Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		m.t.Fatal(err)
	}
	m.server.Store(s)
}

func (m *mortal) stop() {
	if s := m.server.Swap(nil); s != nil {
		_ = s.Stop(context.Background())
	}
}

// Postgres goes away under a call again and again, each time for longer than the lease:
// the run that was lost each time ends well.
func TestPostgresOutagesEndNoRun(t *testing.T) {
	t.Parallel()
	db, tools := newMortal(t), newToolServer(t)
	p := start(t, db.url, callThenAnswer, "--lease-ttl", "1s")
	p.agent("worker", tools.tool("act", loopdv1.Effect_EFFECT_READ_ONLY))
	run := p.start("worker").GetName()
	tools.next(t)
	const outages = 6
	for range outages {
		lost := strings.Count(p.out.String(), "lease lost") // before: an orderly stop can outlast the lease
		db.stop()
		for look := time.NewTicker(20 * time.Millisecond); strings.Count(p.out.String(), "lease lost") == lost; <-look.C {
			if p.context.Err() != nil {
				t.Fatal("the worker holds on to a run that it cannot renew")
			}
		}
		db.start()
		tools.next(t) // it is driven again
	}
	close(tools.release)

	got := p.waitEnd(run)

	if got.GetState() != loopdv1.RunState_RUN_STATE_SUCCEEDED || got.GetAttempts() <= outages {
		t.Errorf("the run ended as %s after %d attempts: %s", got.GetState(), got.GetAttempts(), got.GetStop().GetMessage())
	}
	holds := 0
	if err := connect(t, db.url).QueryRow(t.Context(), "SELECT count(*) FROM holds WHERE settled_at IS NULL").Scan(&holds); err != nil || holds != 0 {
		t.Errorf("%d holds are open, error %v", holds, err)
	}
}

// What the journal refuses for good, though the database answers, ends the run, with
// each of the attempts explained; others are not held up.
func TestBrokenAttemptsAreExplained(t *testing.T) {
	t.Parallel()
	db := pgURL(t)
	pool := connect(t, db)
	for _, query := range []string{
		`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'this will never do' USING ERRCODE = '23514'; END $$`,
		`CREATE TRIGGER refuse BEFORE INSERT ON events FOR EACH ROW WHEN (NEW.kind = 'call_started') EXECUTE FUNCTION refuse()`,
	} {
		if _, err := pool.Exec(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	tools := newToolServer(t)
	p := start(t, db, callThenAnswer)
	p.agent("worker", tools.tool("act", loopdv1.Effect_EFFECT_SIDE_EFFECT))

	got := p.waitEnd(p.start("worker").GetName())

	if got.GetState() != loopdv1.RunState_RUN_STATE_FAILED || got.GetStop().GetReason() != loopdv1.StopReason_STOP_REASON_RECOVERY_EXHAUSTED {
		t.Fatalf("the run ended as %s: %s", got.GetState(), got.GetStop())
	}
	if n := len(got.GetStop().GetEvidence()); n != 5 {
		t.Errorf("%d attempts are explained, want 5", n)
	}
	for _, e := range got.GetStop().GetEvidence() {
		if !strings.Contains(e.GetNote(), "attempt ") || !strings.Contains(e.GetNote(), "this will never do") {
			t.Errorf("evidence: %q", e.GetNote())
		}
	}
	if n := len(tools.keys); n != 0 {
		t.Errorf("%d calls were sent without an intent", n)
	}
}
