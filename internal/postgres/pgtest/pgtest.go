// Package pgtest gives each test its own Postgres database, cloned from a
// template that was migrated once per test process.
//
// A test package names its migrations in TestMain,
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m, migrate)) }
//
// and its tests call Pool or URL. The server starts with the first of these calls,
// from the installed programs, without durability, and is gone with the process,
// however that ends. Setting LOOPD_TEST_DATABASE_URL uses the server of that
// connection string instead; its user must be allowed to create databases and to
// end connections to them.
//
// The package imports nothing of loopd but devpg, so that any package can use it
// in its tests.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// setupTimeout bounds a server start with migrations, and each clone. A start
// takes 2 s, a clone 0.05 s; a crowded machine gets much more.
const setupTimeout = 2 * time.Minute

// process is what the tests of this process share. Go offers no other place for
// it: TestMain cannot hand values to tests.
var process struct {
	mu      sync.Mutex
	migrate func(ctx context.Context, url string) error
	cluster *cluster // nil until a test asks for a database
	err     error    // why there will be none
}

// Main runs the tests of a package and returns the exit code for os.Exit. The
// migrate function brings the empty database at url to the schema that the tests
// expect; it is called at most once and must close its connections.
func Main(m *testing.M, migrate func(ctx context.Context, url string) error) int {
	process.mu.Lock()
	process.migrate = migrate
	process.mu.Unlock()

	code := m.Run()

	process.mu.Lock()
	defer process.mu.Unlock()
	if process.cluster == nil {
		return code
	}
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	if err := process.cluster.close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest: clean up:", err)
		return max(code, 1)
	}
	return code
}

// URL is the connection string of a fresh migrated database, the test's own. It
// fails the test if there can be none.
func URL(t testing.TB) string {
	t.Helper()
	// Not t.Context: a test that is interrupted must not spoil the shared server.
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	c, err := shared(ctx)
	if err != nil {
		t.Fatalf("pgtest: start the test server: %v", err)
	}
	url, err := c.clone(ctx)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return url
}

// Pool is a pool of connections to a fresh migrated database, the test's own. It
// is closed when the test ends, which waits until every connection was released.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), URL(t))
	if err != nil {
		t.Fatalf("pgtest: open a pool: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// shared starts the cluster for the first caller. A failure is final: the other
// tests fail at once, with the same reason.
func shared(ctx context.Context) (*cluster, error) {
	process.mu.Lock()
	defer process.mu.Unlock()
	if process.migrate == nil {
		return nil, errors.New("TestMain does not call pgtest.Main: " +
			"add func TestMain(m *testing.M) { os.Exit(pgtest.Main(m, migrate)) }")
	}
	if process.cluster == nil && process.err == nil {
		process.cluster, process.err = newCluster(ctx, process.migrate)
	}
	return process.cluster, process.err
}
