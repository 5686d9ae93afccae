package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// childPatience is how long a replica may take to serve, and later to end.
const childPatience = 20 * time.Second

// benchChild is a `loopd serve` in a process of its own.
type benchChild struct {
	cmd   *exec.Cmd
	says  *childLog
	conn  *grpc.ClientConn // set once it serves
	cores *controlGroup    // nil: as many as there are
}

// childLog reads the log of a child: where it serves, and its last warnings.
type childLog struct {
	serves chan struct{} // closed once the addresses are known

	mu          sync.Mutex
	grpc, admin string
	rest        []byte   // the beginning of a line
	bad         []string // the last lines that are no information
}

// childLogKeeps is how many bad lines are kept, to say what went wrong.
const childLogKeeps = 10

// Write takes what the child logs.
func (l *childLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		l.line(line)
		l.rest = append(l.rest[:0], rest...)
	}
}

func (l *childLog) line(line []byte) {
	var says struct {
		Level string `json:"level"`
		Msg   string `json:"msg"`
		GRPC  string `json:"grpc"`
		Admin string `json:"admin"`
	}
	if err := json.Unmarshal(line, &says); err != nil || says.Level != "INFO" {
		l.bad = append(l.bad[max(0, len(l.bad)-childLogKeeps+1):], string(line))
		return
	}
	if says.Msg == "loopd serves" && l.grpc == "" {
		l.grpc, l.admin = says.GRPC, says.Admin
		close(l.serves)
	}
}

// complaints are the last lines that are no information.
func (l *childLog) complaints() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.bad, "\n")
}

// benchFleet says how replicas are started.
type benchFleet struct {
	databaseURL, modelURL string
	cores                 float64  // of each replica; 0: no bound
	args                  []string // besides those that every replica gets
}

// with starts n replicas, calls do once all serve, and ends them when it returns.
func (f benchFleet) with(ctx context.Context, n int, do func(ctx context.Context, replicas []*benchChild) error) (err error) {
	var replicas []*benchChild
	defer func() {
		for _, r := range replicas {
			if r.conn != nil {
				_ = r.conn.Close() // nothing left to say
			}
			r.cores.remove()
		}
	}()
	for i := range n {
		r, err := f.replica(i)
		if err != nil {
			return err
		}
		replicas = append(replicas, r)
	}
	run := func(ctx context.Context) error {
		return crowd(ctx, n, 1, func(ctx context.Context, i int) error { return replicas[i].run(ctx) })
	}
	return beside(ctx, run, func(ctx context.Context) error {
		for _, r := range replicas {
			if err := r.connect(ctx); err != nil {
				return err
			}
		}
		return do(ctx, replicas)
	})
}

// replica prepares one. It has an environment of its own, so that nobody's LOOPD_
// variables are measured.
func (f benchFleet) replica(i int) (*benchChild, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	args := append([]string{
		"serve", "--database-url", f.databaseURL, "--openai-base-url", f.modelURL, "--allow-private-tools", "--drain-grace", "100ms",
		"--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0",
	}, f.args...)
	r := &benchChild{cmd: exec.Command(self, args...), says: &childLog{serves: make(chan struct{})}} //nolint:gosec,noctx // itself; run ends it in order
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); !strings.HasPrefix(name, "LOOPD_") || name == childVariable {
			r.cmd.Env = append(r.cmd.Env, variable)
		}
	}
	r.cmd.Env = append(r.cmd.Env, "LOOPD_OPENAI_API_KEY=bench")
	r.cmd.Stdout, r.cmd.Stderr, r.cmd.SysProcAttr = io.Discard, r.says, dieWithParent()
	if f.cores > 0 {
		if r.cores, err = newControlGroup(fmt.Sprintf("loopd-bench-%d-%d", os.Getpid(), i), f.cores); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// childVariable has the tests' program be loopd.
const childVariable = "LOOPD_TEST_CHILD"

// run runs the replica until ctx ends. The thread that forks must live as long as the
// child, which dies with it.
func (r *benchChild) run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := r.cmd.Start(); err != nil {
		return fmt.Errorf("start a replica: %w", err)
	}
	var asked atomic.Bool
	kill := time.AfterFunc(time.Hour, func() { _ = r.cmd.Process.Kill() })
	defer kill.Stop()
	stop := context.AfterFunc(ctx, func() {
		asked.Store(true)
		_ = r.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		kill.Reset(childPatience)
	})
	defer stop()
	err := r.cores.add(r.cmd.Process.Pid)
	if err != nil {
		_ = r.cmd.Process.Kill() // it would be measured without its bound
	}
	ended := r.cmd.Wait()
	if asked.Load() {
		return nil
	}
	return fmt.Errorf("%w: a replica ended by itself: %w, %w\n%s", errBench, err, ended, r.says.complaints())
}

// connect waits until the replica serves.
func (r *benchChild) connect(ctx context.Context) error {
	bounded, stop := context.WithTimeout(ctx, childPatience)
	defer stop()
	if err := arrive(bounded, r.says.serves); err != nil {
		return fmt.Errorf("wait until a replica serves: %w\n%s", err, r.says.complaints())
	}
	var err error
	r.conn, err = grpc.NewClient(r.says.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return fmt.Errorf("connect to a replica: %w", err)
	}
	return nil
}

// cpu is the CPU time that the replica has taken; 0 where it cannot be read.
func (r *benchChild) cpu() time.Duration {
	stat, _ := readProcess(r.cmd.Process.Pid)
	return stat.cpu
}

// get reads a page of the replica's admin port.
func (r *benchChild) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.says.admin+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask a replica for %s: %w", path, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask a replica for %s: %w", path, err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was read, or not
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: a replica answers %s to %s: %w", errBench, resp.Status, path, err)
	}
	return page, nil
}

// metrics reads the replica's series, as written on its page.
func (r *benchChild) metrics(ctx context.Context) (map[string]float64, error) {
	page, err := r.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	series := map[string]float64{}
	lines := bufio.NewScanner(bytes.NewReader(page))
	for lines.Scan() {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if v, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
			series[line[:at]] = v
		}
	}
	return series, nil
}

// acquired is the series of the runs that a replica took.
const acquired = `loopd_lease_events_total{event="acquired"}`

// spread is a connection to all replicas: each call goes to the next one, as behind a load
// balancer. It is safe for concurrent use.
type spread struct {
	replicas []*benchChild
	next     atomic.Uint64
}

func (s *spread) conn() *grpc.ClientConn {
	return s.replicas[s.next.Add(1)%uint64(len(s.replicas))].conn
}

// Invoke calls the next replica.
func (s *spread) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return s.conn().Invoke(ctx, method, args, reply, opts...)
}

// NewStream opens a stream to the next replica.
func (s *spread) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return s.conn().NewStream(ctx, desc, method, opts...)
}
