package devpg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// childEnv names the data directory that a helper process runs a server on.
const childEnv = "DEVPG_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		runChild(dir)
		return
	}
	os.Exit(m.Run())
}

// runChild is loopd about to be killed: it starts a server, writes a row, says so
// and waits for its end.
func runChild(dir string) {
	ctx := context.Background()
	s, err := Start(ctx, testConfig(dir))
	if err == nil {
		err = execute(ctx, s.URL(), "CREATE TABLE note (text text); INSERT INTO note VALUES ('kept')")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready") //nolint:forbidigo // the parent reads it
	<-s.Done()
}

// testConfig keeps full durability off except for what a killed process needs:
// the page cache survives it, so fsync may be off.
func testConfig(dir string) Config {
	return Config{DataDir: dir, Settings: map[string]string{"fsync": "off"}}
}

// tempDir is a data directory to be. It is not under t.TempDir, whose parents
// admit nobody but root when the tests run as root.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "devpg-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "loopd")
}

func mustStart(t *testing.T, dir string) *Server {
	t.Helper()
	s, err := Start(t.Context(), testConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop(context.Background()) })
	return s
}

func mustStop(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Stop(t.Context()); err != nil {
		t.Fatalf("stop: %v", err)
	}
}

func execute(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

func query(t *testing.T, url, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var text string
	if err := conn.QueryRow(t.Context(), sql).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func socketDir(t *testing.T, s *Server) string {
	t.Helper()
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	return u.Query().Get("host")
}

func TestServerKeepsItsDataAndLeavesNothingElse(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	write(t, filepath.Join(dir, "data.init", "base", "1"), "what a killed initdb left")
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}

	s := mustStart(t, dir)
	if exists(t, filepath.Join(dir, "data.init")) {
		t.Error("data.init is still there")
	}
	if err := execute(t.Context(), s.URL(), "CREATE TABLE note (text text); INSERT INTO note VALUES ('kept')"); err != nil {
		t.Fatal(err)
	}
	if got := query(t, s.URL(), "SELECT current_user || ' ' || current_database() || ' ' || current_setting('fsync')"); got != "loopd "+"loopd off" {
		t.Errorf("user, database, fsync = %q", got)
	}
	checkPrivate(t, s, dir)

	_, err := Start(t.Context(), testConfig(dir))
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("process %d runs", os.Getpid())) {
		t.Errorf("second start: %v, want ErrLocked and this process's pid", err)
	}

	socket := socketDir(t, s)
	mustStop(t, s)
	if exists(t, socket) || exists(t, filepath.Join(dir, "url")) {
		t.Error("socket directory or url is still there after Stop")
	}
	<-s.Done()
	if err := s.Err(); err != nil {
		t.Errorf("Err after Stop: %v", err)
	}

	// A pid file that survived a power cut, while its pid went to another program,
	// here this test itself: the server starts, and the test lives to see it.
	write(t, filepath.Join(dir, "data", "postmaster.pid"), fmt.Sprintf("%d\n%s/data\n", os.Getpid(), dir))
	s = mustStart(t, dir)
	if got := query(t, s.URL(), "SELECT text FROM note"); got != "kept" {
		t.Errorf("row after restart = %q", got)
	}
	mustStop(t, s)
}

// checkPrivate: nobody else gets in, and the terminal's Ctrl-C stays out.
func checkPrivate(t *testing.T, s *Server, dir string) {
	t.Helper()
	if got := query(t, s.URL(), "SELECT current_setting('listen_addresses')"); got != "" {
		t.Errorf("listen_addresses = %q", got)
	}
	for path, want := range map[string]fs.FileMode{socketDir(t, s): 0o700 | fs.ModeDir, filepath.Join(dir, "url"): 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("mode of %s = %v, want %v", path, info.Mode(), want)
		}
	}
	published, err := os.ReadFile(filepath.Join(dir, "url"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.URL()+"\n", string(published)); diff != "" {
		t.Errorf("url file (-want +got):\n%s", diff)
	}
	pid := postmaster(filepath.Join(dir, "data"))
	if group, err := syscall.Getpgid(pid); err != nil || group != pid {
		t.Errorf("process group of the server = %d, %v; want its own, %d", group, err, pid)
	}
}

// startChild runs this test binary as a loopd whose server runs on dir and has a row.
func startChild(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), childEnv+"="+dir)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("child said %q, %v", line, err)
	}
	return child
}

func kill(t *testing.T, child *exec.Cmd) {
	t.Helper()
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // "signal: killed"
}

func TestStartRecoversAfterKill(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	child := startChild(t, dir)
	published, err := os.ReadFile(filepath.Join(dir, "url"))
	if err != nil {
		t.Fatal(err)
	}

	// loopd is killed.
	kill(t, child)
	s := mustStart(t, dir)
	if got := query(t, s.URL(), "SELECT text FROM note"); got != "kept" {
		t.Errorf("row after loopd was killed = %q", got)
	}
	old, err := url.Parse(strings.TrimSpace(string(published)))
	if err != nil {
		t.Fatal(err)
	}
	if exists(t, old.Query().Get("host")) {
		t.Error("the killed loopd's socket directory is still there")
	}

	// Postgres is killed.
	if err := syscall.Kill(postmaster(filepath.Join(dir, "data")), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Err after a kill: %v", err)
	}
	if err := s.Stop(t.Context()); err == nil {
		t.Error("Stop after a kill: no error")
	}
	s = mustStart(t, dir)
	if got := query(t, s.URL(), "SELECT text FROM note"); got != "kept" {
		t.Errorf("row after postgres was killed = %q", got)
	}
	mustStop(t, s)
}

// A server that did not hear of loopd's death is ended by the next start.
func TestReapEndsALeftoverServer(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	s := mustStart(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()

	if err := s.dir.reapLeftovers(ctx, s.log); err != nil {
		t.Fatal(err)
	}

	<-s.Done() // reaped
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "without being asked") {
		t.Errorf("Err of a server that somebody else ended: %v", err)
	}
	if left, err := clusterProcesses(s.dir.data()); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestOtherMajorVersionIsRefusedAndUntouched(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ version, want string }{
		"old":     {"9.6\n", "was made by Postgres 9, but there is only Postgres "},
		"newer":   {"99\n", "install Postgres 99"},
		"garbage": {"tampered", `says "tampered"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tempDir(t)
			version, row := filepath.Join(dir, "data", "PG_VERSION"), filepath.Join(dir, "data", "base", "1")
			write(t, version, test.version)
			write(t, row, "precious")

			_, err := Start(t.Context(), testConfig(dir))

			if !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Start: %v, want ErrVersion with %q", err, test.want)
			}
			for path, want := range map[string]string{version: test.version, row: "precious"} {
				if got, err := os.ReadFile(path); string(got) != want {
					t.Errorf("%s = %q, %v; want %q", path, got, err, want)
				}
			}
			// A refused directory is free again.
			if _, err := Start(t.Context(), testConfig(dir)); errors.Is(err, ErrLocked) {
				t.Errorf("second start: %v", err)
			}
		})
	}
}

func TestNoBinaries(t *testing.T) {
	t.Parallel()
	cfg := testConfig(tempDir(t))
	cfg.BinDir = t.TempDir()

	_, err := Start(t.Context(), cfg)

	if !errors.Is(err, ErrNoBinaries) {
		t.Fatalf("Start: %v, want ErrNoBinaries", err)
	}
	for _, want := range []string{cfg.BinDir, "apt install", "dnf install", "brew install", "LOOPD_PG_BINDIR", "LOOPD_DATABASE_URL"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %q: %v", want, err)
		}
	}
}

func TestStartSaysWhyPostgresRefused(t *testing.T) {
	t.Parallel()
	cfg := testConfig(tempDir(t))
	cfg.Settings["max_connections"] = "none"

	_, err := Start(t.Context(), cfg)

	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "max_connections": "none"`) {
		t.Errorf("Start: %v, want the server's own words", err)
	}
}

func TestCancelledStartLeavesTheDirectoryUsable(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	why := errors.New("changed my mind")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)

	if _, err := Start(ctx, testConfig(dir)); !errors.Is(err, why) {
		t.Errorf("Start: %v, want the cause", err)
	}
	d, err := openDirectory(dir, must(currentOwner()))
	if err != nil {
		t.Fatal(err)
	}
	bin, err := findBinaries(t.Context(), "", d)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.initialise(ctx, bin, false); !errors.Is(err, why) {
		t.Errorf("initialise: %v, want the cause", err)
	}
	if major, err := d.major(); major != 0 || err != nil {
		t.Errorf("a cancelled initdb left a cluster of version %d, %v", major, err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
