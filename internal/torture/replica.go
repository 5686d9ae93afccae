package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// leaseTTL is what replicas run with: the shorter, the more takeovers in an hour.
const leaseTTL = 2 * time.Second

// replica is one loopd process that is started again whenever it ends.
type replica struct {
	name            string
	binary, dir     string
	http, grpc      string // addresses, the same after each start
	database, model *link
	more            []string // arguments of serve; they win over those before
	conn            *grpc.ClientConn
	runs            loopdv1.RunServiceClient

	mu      sync.Mutex
	process *os.Process // nil: not running
	ordered bool        // its end was our doing
	away    time.Duration
	starts  int
	faults  []string // ends that were not our doing
}

// freePort finds one that nobody listens on now.
func freePort(ctx context.Context) (string, error) {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a port: %w", err)
	}
	defer lis.Close() //nolint:errcheck // it carried nothing
	return lis.Addr().String(), nil
}

func newReplica(ctx context.Context, name, binary, dir string, database, model *link) (*replica, error) {
	r := &replica{name: name, binary: binary, dir: dir, database: database, model: model}
	for _, addr := range []*string{&r.http, &r.grpc} {
		port, err := freePort(ctx)
		if err != nil {
			return nil, err
		}
		*addr = port
	}
	text := fmt.Sprintf("providers:\n  torture: {kind: openai, profile: openai, base_url: \"http://%s/v1\", api_key_env: TORTURE_KEY, prices: openai,"+
		" overrides: {prompt_cache_key: true}}\n", model.addr())
	if err := os.WriteFile(r.file("providers.yaml"), []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("write the providers: %w", err)
	}
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", name, err)
	}
	r.conn, r.runs = conn, loopdv1.NewRunServiceClient(conn)
	return r, nil
}

func (r *replica) file(suffix string) string { return filepath.Join(r.dir, r.name+"-"+suffix) }

// url is the database as this replica sees it, through its link.
func (r *replica) url() string {
	return "postgres://loopd@" + r.database.addr() + "/loopd?sslmode=disable"
}

// keep runs the process until ctx ends, starting it again each time.
func (r *replica) keep(ctx context.Context) {
	for ctx.Err() == nil {
		if err := r.once(ctx); err != nil {
			r.blame("does not start: " + err.Error())
			return
		}
		r.mu.Lock()
		away := r.away
		r.away = 0
		r.mu.Unlock()
		pause(ctx, away+100*time.Millisecond)
	}
}

func (r *replica) blame(fault string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, r.name+" "+fault)
}

func (r *replica) once(ctx context.Context) error {
	log, err := os.OpenFile(r.file("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open its log: %w", err)
	}
	defer log.Close()
	said := &tail{}
	cmd := exec.Command(r.current(), "serve", "--database-url", r.url(), "--providers", r.file("providers.yaml"), "--allow-private-tools", //nolint:noctx // the program under test; it ends by signal
		"--lease-ttl", leaseTTL.String(), "--drain-grace", "5s", "--log-level", "warn",
		"--grpc-addr", r.grpc, "--http-addr", r.http, "--admin-addr", "127.0.0.1:0")
	cmd.Args = append(cmd.Args, r.more...)
	cmd.Env = append(os.Environ(), "TORTURE_KEY=none")
	cmd.Stdout, cmd.Stderr = log, &both{log, said}
	if err := cmd.Start(); err != nil {
		return err
	}
	r.mu.Lock()
	r.process, r.ordered = cmd.Process, false
	r.starts++
	r.mu.Unlock()
	if ctx.Err() != nil {
		_ = cmd.Process.Kill()
	}
	_ = cmd.Wait()
	r.mu.Lock()
	r.process = nil
	ordered := r.ordered
	r.mu.Unlock()
	crashed := bytes.Contains(said.text, []byte("panic:")) || bytes.Contains(said.text, []byte("fatal error:"))
	if crashed || ordered && cmd.ProcessState.ExitCode() > 0 {
		r.blame(fmt.Sprintf("ended with %s: %.300s", cmd.ProcessState, said.text))
	}
	return nil // one that found no database exits too, and is started again
}

// signal sends one to the process. False: it does not run now.
func (r *replica) signal(sig syscall.Signal) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process != nil && r.process.Signal(sig) == nil
}

// end has the process end by a signal, and keeps it away for a while. It returns when
// the process is gone, or kills one that does not go.
func (r *replica) end(ctx context.Context, sig syscall.Signal, away time.Duration) {
	r.mu.Lock()
	process := r.process
	r.ordered, r.away = true, away
	r.mu.Unlock()
	if process == nil || process.Signal(sig) != nil {
		return
	}
	for range 300 { // 30 s: more than drain and shutdown may take
		r.mu.Lock()
		gone := r.process != process
		r.mu.Unlock()
		if gone || !pause(ctx, 100*time.Millisecond) {
			return
		}
	}
	r.blame(fmt.Sprintf("did not end 30 s after %s", sig))
	_ = process.Kill()
}

// tail keeps the last words of a process.
type tail struct{ text []byte }

func (t *tail) add(p []byte) {
	t.text = append(t.text, p...)
	if len(t.text) > 64<<10 {
		t.text = t.text[len(t.text)-32<<10:]
	}
}

// both writes a process's words into its log and keeps the last of them.
type both struct {
	log  *os.File
	last *tail
}

func (b *both) Write(p []byte) (int, error) {
	b.last.add(p)
	return b.log.Write(p)
}
