package devpg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Errors that Start wraps, for errors.Is.
var (
	// ErrNoBinaries: no directory with both initdb and postgres was found.
	ErrNoBinaries = errors.New("no Postgres server programs found")
	// ErrVersion: the data was made by a major version that is not installed.
	ErrVersion = errors.New("the data is of another Postgres major version")
	// ErrLocked: another process uses the data directory.
	ErrLocked = errors.New("the data directory is in use")
)

const (
	// superuser owns the cluster and the database of the same name.
	superuser = "loopd"
	// port only names the socket file; no TCP port is opened.
	port = "5432"
	// Sockets live in a fresh socketParent/socketPrefix* each. The parent is fixed because a socket's path is limited to 107 bytes (104
	// on macOS), which a user's own temporary directory may exceed.
	socketParent = "/tmp"
	socketPrefix = "loopd-pg-"
	// readyPoll is how often a starting server is tried. A start takes 0.1 s and up.
	readyPoll = 20 * time.Millisecond
	// stopGrace is what a fast shutdown may take: it rolls back every transaction
	// and writes a checkpoint. Afterwards the server is told to quit at once.
	stopGrace = 20 * time.Second
)

// Config says where the server keeps its data and how it runs.
type Config struct {
	// DataDir is made if it is absent; see DefaultDataDir. Required.
	DataDir string
	// BinDir holds initdb and postgres. Empty means the newest installed ones that
	// fit the data.
	BinDir string
	// Settings are extra server settings, such as fsync=off for tests.
	Settings map[string]string
	// Log receives one line per start and stop. Nil discards them.
	Log *slog.Logger
}

// Server is a running Postgres. Its methods may be called concurrently.
type Server struct {
	dir    *directory
	log    *slog.Logger
	socket string // directory of the Unix socket
	cmd    *exec.Cmd

	stopping atomic.Bool
	done     chan struct{}
	err      error // why the server ended; written before done is closed

	stop    sync.Once
	stopErr error
}

// Start runs a Postgres on cfg.DataDir and returns once it accepts connections
// and has a database named loopd. The first start on a directory makes the
// cluster, which takes some seconds. Cancelling ctx abandons the start; it has
// no effect on a server that Start has returned.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	own, err := currentOwner()
	if err != nil {
		return nil, err
	}
	return start(ctx, cfg, own)
}

func start(ctx context.Context, cfg Config, own owner) (*Server, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := openDirectory(cfg.DataDir, own)
	if err != nil {
		return nil, err
	}
	s, err := launch(ctx, cfg, dir)
	if err != nil {
		return nil, errors.Join(err, dir.close())
	}
	return s, nil
}

func launch(ctx context.Context, cfg Config, dir *directory) (*Server, error) {
	bin, err := findBinaries(ctx, cfg.BinDir, dir)
	if err != nil {
		return nil, err
	}
	if err := dir.reapLeftovers(ctx, cfg.Log); err != nil {
		return nil, err
	}
	if err := dir.dropStaleSocket(); err != nil {
		return nil, err
	}
	// Who runs the server without fsync has no use for a synced initdb either.
	if err := dir.initialise(ctx, bin, cfg.Settings["fsync"] != "off"); err != nil {
		return nil, err
	}
	s := &Server{dir: dir, log: cfg.Log, done: make(chan struct{})}
	if err := s.spawn(bin, cfg.Settings); err != nil {
		return nil, err
	}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.halt(ctx))
	}
	s.log.InfoContext(ctx, "postgres started", "version", bin.version, "data", dir.data(), "url", s.URL())
	return s, nil
}

// spawn starts the server process and the goroutine that waits for it.
func (s *Server) spawn(bin binaries, settings map[string]string) error {
	if err := s.makeSocketDir(); err != nil {
		return err
	}
	log, err := os.OpenFile(s.dir.logFile(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return errors.Join(fmt.Errorf("open the log of postgres: %w", err), os.RemoveAll(s.socket))
	}
	defer log.Close() // the child has its own copy

	s.cmd = exec.Command(bin.path("postgres"), serverArgs(s.dir.data(), s.socket, settings)...) //nolint:noctx // it ends by signal, in order, never by a context
	s.cmd.Stdout, s.cmd.Stderr = log, log
	// SIGINT is the fast shutdown: should loopd die, the server ends cleanly.
	s.dir.owner.prepare(s.cmd, bin, syscall.SIGINT)

	started := make(chan error)
	// This is the only goroutine of the package. The kernel sends the parent death
	// signal when the *thread* that forked ends, not the process, so the fork must
	// happen on a thread that lives as long as the child: locked here, never
	// unlocked, and gone with this goroutine once the child has ended.
	go func() {
		runtime.LockOSThread()
		err := s.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		s.err = s.ended(s.cmd.Wait())
		close(s.done)
	}()
	if err := <-started; err != nil {
		return errors.Join(fmt.Errorf("start postgres as user %s: %w", s.dir.owner.name, err), os.RemoveAll(s.socket))
	}
	return nil
}

func (s *Server) makeSocketDir() error {
	socket, err := os.MkdirTemp(socketParent, socketPrefix) // mode 0700
	if err != nil {
		return fmt.Errorf("make the socket directory: %w", err)
	}
	if err := os.Chown(socket, s.dir.owner.uid, s.dir.owner.gid); err != nil {
		return errors.Join(fmt.Errorf("hand over the socket directory: %w", err), os.RemoveAll(socket))
	}
	s.socket = socket
	return nil
}

// serverArgs puts the settings that keep the server private last, where they win.
// The order "-D data" right after the program is what runsIn looks for.
func serverArgs(data, socket string, settings map[string]string) []string {
	args := []string{"-D", data}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return append(args, "-p", port, "-k", socket, "-c", "listen_addresses=", "-c", "unix_socket_permissions=0700")
}

// open waits until the server accepts connections, makes the database, and
// publishes the connection string.
func (s *Server) open(ctx context.Context) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)

	var exists bool
	const query = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)"
	if err := conn.QueryRow(ctx, query, superuser).Scan(&exists); err != nil {
		return fmt.Errorf("look for database %s: %w", superuser, err)
	}
	if !exists {
		if _, err := conn.Exec(ctx, "CREATE DATABASE "+superuser); err != nil {
			return fmt.Errorf("create database %s: %w", superuser, err)
		}
	}
	return s.dir.writeURL(s.URL())
}

// connect tries until the server answers, ends, or ctx does. A server that
// recovers from a crash may take long; only the caller knows how long is too long.
func (s *Server) connect(ctx context.Context) (*pgx.Conn, error) {
	const cannotConnectNow = "57P03" // SQLSTATE while the server starts or recovers
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.connString("postgres"))
		if err == nil {
			return conn, nil
		}
		if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && refusal.Code != cannotConnectNow {
			return nil, fmt.Errorf("connect to the started postgres: %w", err)
		}
		select {
		case <-s.done:
			return nil, s.err
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for postgres to accept connections: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// URL is the connection string of the database loopd, good for pgx and psql.
func (s *Server) URL() string { return s.connString(superuser) }

func (s *Server) connString(database string) string {
	query := url.Values{"host": {s.socket}, "port": {port}}
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Path: "/" + database, RawQuery: query.Encode()}
	return u.String()
}

// Done is closed when the server process has ended, asked to or not.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err is nil while the server runs and after a clean Stop; otherwise it says how
// the server ended.
func (s *Server) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// ended turns the exit of the server process into the error that Err reports.
func (s *Server) ended(exit error) error {
	switch {
	case exit == nil && s.stopping.Load():
		return nil
	case exit == nil:
		return errors.New("postgres ended without being asked to")
	default:
		return fmt.Errorf("postgres ended: %w; last words in %s: %s", exit, s.dir.logFile(), s.dir.lastWords())
	}
}

// Stop ends the server by a fast shutdown (open transactions are rolled back),
// releases the data directory and removes the socket. After 20 s, or when ctx
// is done, the server is told to quit at once; the next Start then recovers. Stop
// returns how the server ended; further calls return the same.
func (s *Server) Stop(ctx context.Context) error {
	s.stop.Do(func() {
		s.stopErr = errors.Join(s.halt(ctx), s.err, s.dir.close())
		s.log.InfoContext(ctx, "postgres stopped", "data", s.dir.data())
	})
	return s.stopErr
}

// halt ends the process and removes what points to it. How the process ended is in s.err.
func (s *Server) halt(ctx context.Context) error {
	s.stopping.Store(true)
	s.signal(syscall.SIGINT)
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-s.done:
	case <-grace.C:
		s.signal(syscall.SIGQUIT)
	case <-ctx.Done():
		s.signal(syscall.SIGQUIT)
	}
	// Bounded: 5 s after SIGQUIT the server kills what is left of its own children.
	<-s.done
	return errors.Join(s.dir.removeURL(), os.RemoveAll(s.socket))
}

// signal ignores the one error there can be: the process has already ended.
func (s *Server) signal(sig os.Signal) { _ = s.cmd.Process.Signal(sig) }
