package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// patience bounds every wait in these tests. Nothing waits for it unless broken.
const patience = 60 * time.Second

// process is a loopd in a process of its own.
type process struct {
	t       testing.TB
	cmd     *exec.Cmd
	out     *syncBuffer
	exited  chan struct{}
	grpc    string
	http    string
	admin   string
	runs    loopdv1.RunServiceClient
	agents  loopdv1.AgentServiceClient
	context context.Context
}

// syncBuffer collects a process's output while the test reads it.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start runs loopd with free ports and waits until it is ready.
func start(t testing.TB, database, script string, args ...string) *process {
	t.Helper()
	return startIn(t, nil, database, script, args...)
}

// startIn is start with variables of the environment, NAME=value.
func startIn(t testing.TB, env []string, database, script string, args ...string) *process {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.yaml")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, out: &syncBuffer{}, exited: make(chan struct{})}
	all := append([]string{
		"serve", "--database-url", database, "--script", path, "--allow-private-tools", "--lease-ttl", "2s", "--drain-grace", "5s",
		"--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0",
		"--shed-pool-wait", "0", "--shed-queue-age", "0", // this machine may be busy
	}, args...)
	p.cmd = exec.Command(os.Args[0], all...)
	p.cmd.Env = append(append(os.Environ(), childEnv+"=1"), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	p.context = ctx
	go func() { _ = p.cmd.Wait(); close(p.exited) }()
	t.Cleanup(func() {
		p.kill()
		cancel()
		if t.Failed() {
			t.Log(p.out.String())
		}
	})
	p.findPorts()
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	p.runs, p.agents = loopdv1.NewRunServiceClient(conn), loopdv1.NewAgentServiceClient(conn)
	if _, err := p.runs.ListRuns(ctx, &loopdv1.ListRunsRequest{}); err != nil {
		t.Fatalf("loopd does not answer: %v\n%s", err, p.out)
	}
	return p
}

// findPorts reads from the log where the process listens. Ports that were free a
// moment ago may be another test's by now.
func (p *process) findPorts() {
	p.t.Helper()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		for line := range strings.Lines(p.out.String()) {
			var says struct{ Msg, HTTP, GRPC, Admin string }
			if json.Unmarshal([]byte(line), &says) == nil && says.Msg == "loopd serves" {
				p.http, p.grpc, p.admin = says.HTTP, says.GRPC, says.Admin
				return
			}
		}
		select {
		case <-look.C:
		case <-p.exited:
			p.t.Fatalf("loopd does not start:\n%s", p.out)
		case <-p.context.Done():
			p.t.Fatalf("loopd does not serve:\n%s", p.out)
		}
	}
}

// kill ends the process as a power cut would.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.exited
}

// terminate asks it to end, and returns its exit code.
func (p *process) terminate() int {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Fatal("loopd did not end after SIGTERM")
	}
	return p.cmd.ProcessState.ExitCode()
}

// agent registers an agent on a scripted model of the same name.
func (p *process) agent(name string, tools ...*loopdv1.Tool) {
	p.t.Helper()
	_, err := p.agents.UpdateAgent(p.context, &loopdv1.UpdateAgentRequest{AllowMissing: true, Agent: &loopdv1.Agent{
		Name: "agents/" + name, Spec: &loopdv1.AgentSpec{Model: "scripted/" + name, Tools: tools},
	}})
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) start(agent string) *loopdv1.Run {
	p.t.Helper()
	r, err := p.runs.CreateRun(p.context, &loopdv1.CreateRunRequest{Agent: "agents/" + agent, Input: "go"})
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// wait returns the run once it has ended or waits for a person.
func (p *process) wait(name string) *loopdv1.Run {
	p.t.Helper()
	r, err := p.runs.WaitRun(p.context, &loopdv1.WaitRunRequest{Name: name, Timeout: durationpb.New(patience)})
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// calls lists the run's tool calls.
func (p *process) calls(name string) []*loopdv1.ToolCall {
	p.t.Helper()
	r, err := p.runs.ListToolCalls(p.context, &loopdv1.ListToolCallsRequest{Parent: name})
	if err != nil {
		p.t.Fatal(err)
	}
	return r.GetToolCalls()
}

// toolServer records the idempotency key of every request and answers when told.
type toolServer struct {
	*httptest.Server
	keys    chan string
	release chan struct{}
}

func newToolServer(t testing.TB) *toolServer {
	t.Helper()
	s := &toolServer{keys: make(chan string, 100), release: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.keys <- r.Header.Get("Idempotency-Key")
		select {
		case <-s.release:
		case <-r.Context().Done():
			return
		}
		fmt.Fprint(w, `{"ok": true}`)
	}))
	t.Cleanup(s.Close)
	return s
}

// next is the key of the next request that reached the server.
func (s *toolServer) next(t testing.TB) string {
	t.Helper()
	select {
	case k := <-s.keys:
		return k
	case <-time.After(patience):
		t.Fatal("no tool call arrived")
		return ""
	}
}

func (s *toolServer) tool(name string, effect loopdv1.Effect) *loopdv1.Tool {
	schema, _ := structpb.NewStruct(map[string]any{"type": "object"})
	return &loopdv1.Tool{
		Name: name, InputSchema: schema, Effect: effect,
		Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "POST", Url: s.URL}},
	}
}

const callThenAnswer = `
models:
  worker:
    answers:
      - calls: [{name: act, args: {n: 1}}]
      - text: "done"
`

// A worker dies in the middle of a side effect: the run goes on elsewhere, the
// call is in doubt, nobody sends it again, and a person's word ends the doubt.
func TestKillInSideEffect(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newToolServer(t)
	first := start(t, db, callThenAnswer)
	first.agent("worker", tools.tool("act", loopdv1.Effect_EFFECT_SIDE_EFFECT))
	run := first.start("worker")
	tools.next(t)
	first.kill()
	close(tools.release)

	second := start(t, db, callThenAnswer)
	got := second.wait(run.GetName())
	if got.GetState() != loopdv1.RunState_RUN_STATE_REQUIRES_ACTION {
		t.Fatalf("state is %s, want REQUIRES_ACTION", got.GetState())
	}
	call := second.calls(run.GetName())[0]
	if call.GetState() != loopdv1.ToolCallState_TOOL_CALL_STATE_IN_DOUBT {
		t.Fatalf("call is %s, want IN_DOUBT", call.GetState())
	}
	_, err := second.runs.ResolveToolCall(second.context, &loopdv1.ResolveToolCallRequest{
		Name: call.GetName(), Resolution: loopdv1.Resolution_RESOLUTION_SUCCEEDED, Result: `{"ok": true}`,
	})
	if err != nil {
		t.Fatal(err)
	}
	got = second.waitEnd(run.GetName())
	if got.GetState() != loopdv1.RunState_RUN_STATE_SUCCEEDED || got.GetAnswer() != "done" || got.GetAttempts() < 2 {
		t.Errorf("run ended as %s %q after %d attempts", got.GetState(), got.GetAnswer(), got.GetAttempts())
	}
	if n := len(tools.keys); n != 0 {
		t.Errorf("the side effect was sent %d more times", n)
	}
}

// waitEnd waits until the run is terminal, past any wait for a person.
func (p *process) waitEnd(name string) *loopdv1.Run {
	p.t.Helper()
	stream, err := p.runs.StreamEvents(p.context, &loopdv1.StreamEventsRequest{Parent: name})
	if err != nil {
		p.t.Fatal(err)
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			p.t.Fatal(err)
		}
		if m.GetEnd() != nil {
			return p.wait(name)
		}
	}
}

// The same with a tool that only reads: it is sent again, with the same key.
func TestKillInReadOnlyCall(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newToolServer(t)
	first := start(t, db, callThenAnswer)
	first.agent("worker", tools.tool("act", loopdv1.Effect_EFFECT_READ_ONLY))
	run := first.start("worker")
	key := tools.next(t)
	first.kill()
	close(tools.release)

	second := start(t, db, callThenAnswer)
	if again := tools.next(t); again != key || key == "" {
		t.Errorf("the second send has key %q, the first had %q", again, key)
	}
	if got := second.waitEnd(run.GetName()); got.GetState() != loopdv1.RunState_RUN_STATE_SUCCEEDED {
		t.Errorf("run ended as %s: %s", got.GetState(), got.GetStop().GetMessage())
	}
	if call := second.calls(run.GetName())[0]; call.GetAttempt() != 2 {
		t.Errorf("the call has %d attempts, want 2", call.GetAttempt())
	}
}

// SIGTERM hands a run over: the other replica goes on, and no attempt counts as
// lost. A call in flight ends first.
func TestDrainHandsOver(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newToolServer(t)
	first := start(t, db, callThenAnswer)
	first.agent("worker", tools.tool("act", loopdv1.Effect_EFFECT_SIDE_EFFECT))
	run := first.start("worker")
	tools.next(t)
	done := make(chan int, 1)
	go func() { done <- first.terminate() }()
	close(tools.release)
	if code := <-done; code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
	second := start(t, db, callThenAnswer)
	got := second.waitEnd(run.GetName())
	if got.GetState() != loopdv1.RunState_RUN_STATE_SUCCEEDED {
		t.Errorf("run ended as %s: %s", got.GetState(), got.GetStop().GetMessage())
	}
	if n := len(tools.keys); n != 0 {
		t.Errorf("the side effect was sent %d more times", n)
	}
}

const manyCalls = `
models:
  worker:
    answers:
      - calls: [{name: act, args: {n: "{{.N}}"}}, {name: nope, args: {}}]
      - calls: [{name: act, args: {n: "{{.N}}"}}]
      - text: "done"
`

// What Prometheus says is what the journal says, to the last token; and the
// rows that a person reads in psql are all there.
func TestMetricsAgreeWithTheJournal(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newToolServer(t)
	close(tools.release)
	p := start(t, db, manyCalls)
	p.agent("worker", tools.tool("act", loopdv1.Effect_EFFECT_READ_ONLY))
	const runs = 10
	names := make([]string, runs)
	for i := range names {
		names[i] = p.start("worker").GetName()
	}
	for _, name := range names {
		if got := p.waitEnd(name); got.GetState() != loopdv1.RunState_RUN_STATE_SUCCEEDED {
			t.Fatalf("%s ended as %s: %s", name, got.GetState(), got.GetStop().GetMessage())
		}
	}
	// A run is counted right after its last commit, which the stream has shown us.
	var metrics map[string]float64
	const last = `loopd_run_duration_seconds_count{agent="worker",outcome="SUCCEEDED"}`
	for deadline := time.Now().Add(patience); metrics[last] != runs; {
		if time.Now().After(deadline) {
			t.Fatalf("%s is %v, want %d", last, metrics[last], runs)
		}
		metrics = scrape(t, "http://"+p.admin+"/metrics")
	}
	pool := connect(t, db)
	for series, query := range map[string]string{
		`loopd_tokens_total{agent="worker",kind="output",model="scripted/worker"}`:      `SELECT sum((body->'usage'->>'output')::bigint)::float8 FROM events WHERE kind = 'model_answered'`,
		`loopd_tokens_total{agent="worker",kind="cache_read",model="scripted/worker"}`:  `SELECT sum((body->'usage'->>'cache_read')::bigint)::float8 FROM events WHERE kind = 'model_answered'`,
		`loopd_tokens_total{agent="worker",kind="cache_write",model="scripted/worker"}`: `SELECT sum((body->'usage'->>'cache_write_5m')::bigint)::float8 FROM events WHERE kind = 'model_answered'`,
		`loopd_cost_usd_total{agent="worker",kind="output",model="scripted/worker"}`:    `SELECT sum((body->'cost'->>'output')::numeric)::float8 FROM events WHERE kind = 'model_answered'`,
		`loopd_tool_calls_total{outcome="ok",tool="act"}`:                               `SELECT count(*)::float8 FROM tool_calls WHERE outcome = 'ok'`,
		`loopd_tool_calls_total{outcome="unknown_tool",tool="_unknown"}`:                `SELECT count(*)::float8 FROM tool_calls WHERE outcome = 'unknown_tool'`,
		`loopd_runs_finished_total{agent="worker",stop_reason="COMPLETED"}`:             `SELECT count(*)::float8 FROM events WHERE kind = 'finished'`,
		`loopd_run_iterations_sum{agent="worker",outcome="SUCCEEDED"}`:                  `SELECT sum(iterations)::float8 FROM runs`,
		`loopd_iterations_total{agent="worker"}`:                                        `SELECT sum(iterations)::float8 FROM runs`,
		`loopd_llm_requests_total{code="ok",model="scripted/worker"}`:                   `SELECT count(*)::float8 FROM events WHERE kind = 'model_answered'`,
		`loopd_runs_started_total{agent="worker",source="grpc"}`:                        `SELECT count(*)::float8 FROM runs`,
	} {
		var want float64
		if err := pool.QueryRow(t.Context(), query).Scan(&want); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		got, ok := metrics[series]
		if !ok || want == 0 || got-want > 1e-9 || want-got > 1e-9 {
			t.Errorf("%s is %v (present: %v), the journal says %v", series, got, ok, want)
		}
	}
	if strings.Contains(p.out.String(), `"input"`) {
		t.Error("the log holds a prompt")
	}
}

// Two replicas share the work of one database.
func TestTwoReplicasShare(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newToolServer(t)
	a := start(t, db, callThenAnswer, "--max-runs", "3")
	b := start(t, db, callThenAnswer, "--max-runs", "3")
	a.agent("worker", tools.tool("act", loopdv1.Effect_EFFECT_READ_ONLY))
	names := make([]string, 6)
	for i := range names {
		names[i] = a.start("worker").GetName()
	}
	for range names {
		tools.next(t) // all six are in their call at once: neither replica has room for more than three
	}
	close(tools.release)
	for _, name := range names {
		if got := b.waitEnd(name); got.GetState() != loopdv1.RunState_RUN_STATE_SUCCEEDED {
			t.Errorf("%s ended as %s", name, got.GetState())
		}
	}
}
