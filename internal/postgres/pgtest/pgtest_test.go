package pgtest

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/loopd/loopd/internal/devpg"
)

// migrations counts how often this process migrated a template.
var migrations atomic.Int64

// childEnv makes this test binary one whose TestMain does not call Main.
const childEnv = "PGTEST_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "no main" {
		os.Exit(m.Run())
	}
	os.Exit(Main(m, migrate))
}

// migrate leaves its connection open, as a careless one would.
func migrate(ctx context.Context, url string) error {
	migrations.Add(1)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE TABLE note (text text)")
	return err
}

func TestEachTestHasItsOwnMigratedDatabase(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := Pool(t)
			if _, err := pool.Exec(t.Context(), "INSERT INTO note VALUES ($1)", name); err != nil {
				t.Fatal(err)
			}
			var got string
			if err := pool.QueryRow(t.Context(), "SELECT string_agg(text, ',') FROM note").Scan(&got); err != nil {
				t.Fatal(err)
			}
			if got != name {
				t.Errorf("notes = %q, want only %q", got, name)
			}
			if n := migrations.Load(); n != 1 {
				t.Errorf("migrated %d times, want once", n)
			}
		})
	}
}

// A process that has run its tests leaves nothing: no files of its own server, no
// databases on a server that it was given. The child runs TestPrintDatabase, in
// both ways.
func TestMainCleansUp(t *testing.T) {
	t.Parallel()
	t.Run("given server", func(t *testing.T) {
		t.Parallel()
		given := URL(t)
		u := printed(t, runChild(t, "LOOPD_TEST_DATABASE_URL="+given), "url")
		if !sameServer(t, u, given) {
			t.Fatalf("the child's database is %s, not on the given server %s", u, given)
		}
		conn, err := pgx.Connect(t.Context(), given)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		name := filepath.Base(must(url.Parse(u)).Path)
		prefix := name[:strings.LastIndex(name, "_")]
		var left int
		const query = "SELECT count(*) FROM pg_database WHERE starts_with(datname, $1)"
		if err := conn.QueryRow(t.Context(), query, prefix).Scan(&left); err != nil {
			t.Fatal(err)
		}
		if left != 0 {
			t.Errorf("the child left %d databases named %s*", left, prefix)
		}
	})
	t.Run("own server", func(t *testing.T) {
		t.Parallel()
		data := printed(t, runChild(t, "LOOPD_TEST_DATABASE_URL="), "data")
		dir := filepath.Dir(data)
		if !strings.HasPrefix(dir, filepath.Join(tempParent, tempPrefix)) {
			t.Errorf("the child's server ran in %s", dir)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", dir, err)
		}
	})
}

func sameServer(t *testing.T, a, b string) bool {
	t.Helper()
	configA, configB := must(pgx.ParseConfig(a)), must(pgx.ParseConfig(b))
	return configA.Host == configB.Host && configA.Port == configB.Port
}

// printed finds what TestPrintDatabase said about key.
func printed(t *testing.T, out, key string) string {
	t.Helper()
	for line := range strings.Lines(out) {
		if _, value, ok := strings.Cut(line, key+" = "); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no %q in: %s", key, out)
	return ""
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestPrintDatabase tests the settings of the server, and prints where it is for
// TestMainCleansUp.
func TestPrintDatabase(t *testing.T) {
	t.Parallel()
	url := URL(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var settings, dir string
	const query = `SELECT string_agg(name || '=' || setting, ' ' ORDER BY name), current_setting('data_directory')
		FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'max_connections', 'synchronous_commit')`
	if err := conn.QueryRow(t.Context(), query).Scan(&settings, &dir); err != nil {
		t.Fatal(err)
	}
	const want = "fsync=off full_page_writes=off max_connections=200 synchronous_commit=off"
	if os.Getenv("LOOPD_TEST_DATABASE_URL") == "" && settings != want {
		t.Errorf("settings = %q, want %q", settings, want)
	}
	t.Logf("url = %s", url)
	t.Logf("data = %s", dir)
}

func TestWithoutMain(t *testing.T) {
	t.Parallel()
	if os.Getenv(childEnv) != "" {
		URL(t)
		return
	}
	cmd := childCommand(t, "TestWithoutMain", childEnv+"=no main")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "TestMain does not call pgtest.Main") {
		t.Errorf("child: %v: %s", err, out)
	}
}

func runChild(t *testing.T, env string) string {
	t.Helper()
	out, err := childCommand(t, "TestPrintDatabase", env).CombinedOutput()
	if err != nil {
		t.Fatalf("child: %v: %s", err, out)
	}
	return string(out)
}

func childCommand(t *testing.T, test, env string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), env)
	return cmd
}

func TestSweepRemovesOnlyWhatWasAbandoned(t *testing.T) {
	t.Parallel()
	parent, err := os.MkdirTemp(tempParent, "pgtest-sweep-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o711); err != nil {
		t.Fatal(err)
	}
	makeDir := func(name string, age time.Duration) string {
		t.Helper()
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o711); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(dir, then, then); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	// The running server is real: this fails if devpg locks another way.
	running := makeDir(tempPrefix+"running", 0)
	server, err := devpg.Start(t.Context(), devpg.Config{DataDir: running, Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop(context.Background())
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(running, old, old); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{
		running:                                  true,
		makeDir(tempPrefix+"young", time.Minute): true,
		makeDir(tempPrefix+"abandoned", 2*time.Hour):   false,
		makeDir("not-a-loopd-pgtest-dir", 2*time.Hour): true,
	}

	sweep(parent, time.Hour)

	for dir, keep := range want {
		if _, err := os.Stat(dir); (err == nil) != keep {
			t.Errorf("%s: kept = %v, want %v", dir, err == nil, keep)
		}
	}
}
