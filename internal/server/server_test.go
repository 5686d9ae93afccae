package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
	"github.com/loopd/loopd/internal/postgres/pgtest"
	"github.com/loopd/loopd/internal/server"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m, postgres.Migrate)) }

const (
	tenant = "default"
	model  = "acme/large-1"

	fallback = "acme/backup-1"
)

// world is one loopd without workers: a server on real sockets before a database of
// its own.
type world struct {
	t        *testing.T
	store    *postgres.Store
	server   *server.Server
	registry *prometheus.Registry
	agents   loopdv1.AgentServiceClient
	runs     loopdv1.RunServiceClient
	tools    loopdv1.ToolServiceClient
	inbox    loopdv1.ApprovalServiceClient
	policies loopdv1.PolicyServiceClient
	budgets  loopdv1.BudgetServiceClient
	guards   loopdv1.GuardServiceClient
	conn     *grpc.ClientConn
	url      string // of the HTTP port
	database string // its URL
	logs     *syncBuffer

	sent chan sentCall // what CallTool was asked to send; room for what a test needs
}

// sentCall is a call that left for a tool.
type sentCall struct {
	Run       loop.RunRef
	Tool      string
	Version   int64
	Args, Key string
	Cancelled bool // the context that it was sent with
}

// callTool answers with the arguments, as a tool that took 5 ms.
func (w *world) callTool(ctx context.Context, run loop.RunRef, spec loop.ToolSpec, args, key string) loop.ToolReply {
	w.sent <- sentCall{Run: run, Tool: spec.Name, Version: spec.Version, Args: args, Key: key, Cancelled: ctx.Err() != nil}
	return loop.ToolReply{Outcome: loop.OutcomeOK, Content: args, Status: http.StatusOK, Bytes: int64(len(args)), Duration: 5 * time.Millisecond}
}

func setup(t *testing.T, tweaks ...func(*server.Config)) *world {
	t.Helper()
	return setupOn(t, pgtest.URL(t), tweaks...)
}

// setupOn makes a world on a database that others may share: another replica.
func setupOn(t *testing.T, database string, tweaks ...func(*server.Config)) *world {
	t.Helper()
	store, err := postgres.Open(t.Context(), postgres.Config{URL: database})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	w := &world{t: t, store: store, database: database, registry: prometheus.NewRegistry(), logs: &syncBuffer{}, sent: make(chan sentCall, 64)}
	config := server.Config{
		Store: store, Prices: prices, Models: models, ProviderKnown: func(name string) bool { return name == "acme" },
		ValidateTool: func(spec loop.ToolSpec) []string {
			if spec.HTTP != nil && strings.Contains(spec.HTTP.URL, "forbidden") {
				return []string{"http.url: the network is not allowed: use another"}
			}
			return nil
		},
		ValidateRule: rule, ValidateAssertion: assertion, ValidateArguments: arguments, Builtin: builtin, ImportOpenAPI: importOpenAPI, ListMCPTools: listMCPTools, CallTool: w.callTool,
		// Nobody drives runs here, and the machine may be busy: what is shed has tests of its own.
		Shed: server.Shed{QueueAge: time.Hour, PoolWait: -1},
		Log:  slog.New(slog.NewJSONHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug})), Registerer: w.registry,
	}
	for _, tweak := range tweaks {
		tweak(&config)
	}
	if w.server, err = server.New(config); err != nil {
		t.Fatal(err)
	}
	w.serve()
	return w
}

// serve starts all parts and ends them with the test.
func (w *world) serve() {
	grpcListener, httpListener := listen(w.t), listen(w.t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	parts := w.server.Parts(grpcListener, httpListener)
	for _, part := range parts {
		go func() { ended <- part(ctx) }()
	}
	w.t.Cleanup(func() {
		grace, stop := context.WithTimeout(context.Background(), 10*time.Second)
		defer stop()
		if err := w.server.Shutdown(grace); err != nil {
			w.t.Errorf("shut down: %v", err)
		}
		cancel()
		for range parts {
			if err := <-ended; err != nil {
				w.t.Errorf("a part of the server failed: %v", err)
			}
		}
	})
	conn, err := grpc.NewClient(grpcListener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	w.conn, w.agents, w.runs = conn, loopdv1.NewAgentServiceClient(conn), loopdv1.NewRunServiceClient(conn)
	w.tools, w.inbox, w.policies = loopdv1.NewToolServiceClient(conn), loopdv1.NewApprovalServiceClient(conn), loopdv1.NewPolicyServiceClient(conn)
	w.budgets = loopdv1.NewBudgetServiceClient(conn)
	w.guards = loopdv1.NewGuardServiceClient(conn)
	w.url = "http://" + httpListener.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func models() []string { return []string{"acme/large-1", "acme/small-1", "other/large-1"} }

func prices(ref string) (loop.Price, error) {
	reads, ok := map[string][]loop.PartKind{
		model: {loop.PartImage, loop.PartDocument}, fallback: {loop.PartImage}, "acme/reader-1": nil,
	}[ref]
	if !ok {
		return loop.Price{}, errors.New("it is not in the price book")
	}
	rates := loop.Rates{
		Input: loop.MicroUSD, CacheRead: loop.MicroUSD, CacheWrite5m: loop.MicroUSD, CacheWrite1h: loop.MicroUSD,
		Output: 5 * loop.MicroUSD, Reasoning: 5 * loop.MicroUSD,
	}
	return loop.Price{Model: ref, Version: "test", Rates: rates, Window: 200_000, MaxOutput: 8192, Reads: reads}, nil
}

// The functions that cmd/loopd brings from other packages, as far as the server's tests
// need them.

func rule(expr string) error {
	if strings.Contains(expr, "args.") {
		return nil
	}
	return fmt.Errorf("%q: undeclared reference", expr)
}

func arguments(_ loop.ToolSpec, args string) string {
	var given struct{ Order *int }
	if err := json.Unmarshal([]byte(args), &given); err != nil || given.Order == nil {
		return "arguments.order: required, but missing"
	}
	return ""
}

func builtin(name loop.Builtin, outputSchema json.RawMessage) (loop.ToolSpec, error) {
	switch {
	case name == loop.BuiltinMemoryPut:
		return loop.ToolSpec{}, errors.New("there is no memory here")
	case name == loop.BuiltinFinish && outputSchema != nil:
		return loop.ToolSpec{Description: "Ends.", Schema: outputSchema, Effect: loop.ReadOnly}, nil
	}
	return loop.ToolSpec{Description: "loopd's own.", Schema: json.RawMessage(`{"type":"object","properties":{"question":{"type":"string"}}}`), Effect: loop.ReadOnly}, nil
}

func importOpenAPI(doc []byte, baseURL, prefix string) ([]loop.ToolSpec, []string, error) {
	if !bytes.HasPrefix(doc, []byte("openapi:")) {
		return nil, nil, errors.New("openapi: is missing")
	}
	schema := json.RawMessage(`{"type":"object"}`)
	return []loop.ToolSpec{
		{Name: prefix + "getOrder", Effect: loop.ReadOnly, Schema: schema, HTTP: &loop.HTTPSpec{Method: "GET", URL: baseURL + "/orders/{id}", Query: map[string]string{}}},
		{Name: prefix + "payBack", Effect: loop.Irreversible, Schema: schema, HTTP: &loop.HTTPSpec{
			Method: "POST", URL: baseURL + "/refunds", Body: "json", BodyTemplate: json.RawMessage(`{"order":"{id}"}`),
		}},
		{Name: prefix + "tooLong", Schema: schema, HTTP: &loop.HTTPSpec{Method: "GET", URL: baseURL + "/" + strings.Repeat("x", 2048)}},
	}, []string{"set the secret SHOP_TOKEN"}, nil
}

func listMCPTools(_ context.Context, at loop.MCPSpec) ([]server.MCPTool, error) {
	if strings.Contains(at.URL, "away") {
		return nil, errors.New("connection refused")
	}
	at.Tool, at.Hash = "echo/v1", strings.Repeat("ab", 32)
	return []server.MCPTool{{
		Tool:      loop.ToolSpec{Name: "echo_v1", Description: "Echoes.", Schema: json.RawMessage(`{"type":"object"}`), Effect: loop.ReadOnly, MCP: &at},
		Suggested: loop.ReadOnly, Untrusted: true, Annotations: json.RawMessage(`{"readOnlyHint":true}`),
	}}, nil
}

// support is the definition of an agent with a tool that needs approval.
func support() *loopdv1.AgentSpec {
	return &loopdv1.AgentSpec{
		Model: model, Instructions: "Help.",
		Tools: []*loopdv1.Tool{
			{Name: "refund", Description: "Pays back.", Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "POST", Url: "https://shop.example/refund"}}},
			{Name: "get_order", Effect: loopdv1.Effect_EFFECT_READ_ONLY, InputSchema: object(map[string]any{"type": "object"}),
				Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "GET", Url: "https://shop.example/order"}}},
		},
		Labels: map[string]string{"team": "support", "tier": "1"},
	}
}

func object(m map[string]any) *structpb.Struct {
	s, err := structpb.NewStruct(m)
	if err != nil {
		panic(err)
	}
	return s
}

// agent creates an agent and returns its name.
func (w *world) agent(id string, spec *loopdv1.AgentSpec) string {
	w.t.Helper()
	agent, err := w.agents.CreateAgent(w.t.Context(), &loopdv1.CreateAgentRequest{AgentId: id, Agent: &loopdv1.Agent{Spec: spec}})
	if err != nil {
		w.t.Fatalf("create agent %s: %v", id, err)
	}
	return agent.GetName()
}

// run creates an agent and a run of it.
func (w *world) run() *loopdv1.Run {
	w.t.Helper()
	agent := w.agent("support", support())
	run, err := w.runs.CreateRun(w.t.Context(), &loopdv1.CreateRunRequest{Agent: agent, Input: "Where is my order?"})
	if err != nil {
		w.t.Fatalf("create run: %v", err)
	}
	return run
}

// worker plays the worker that owns a run: what it does is a valid journal.
type worker struct {
	w     *world
	lease loop.Lease
	state *loop.State
	seen  int64 // signals

	children []loop.ChildStart // of the next batch
	results  []loop.FullResult // the same
}

// claim takes the only run that waits.
func (w *world) claim() *worker {
	w.t.Helper()
	const name = "worker-1"
	if err := w.store.Renew(w.t.Context(), name, time.Minute); err != nil {
		w.t.Fatal(err)
	}
	leases, err := w.store.Claim(w.t.Context(), name, 1)
	if err != nil || len(leases) != 1 {
		w.t.Fatalf("claim: got %d leases, %v", len(leases), err)
	}
	events, err := w.store.Events(w.t.Context(), leases[0].Run, 0, 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	state, err := loop.Fold(leases[0].Run, events)
	if err != nil {
		w.t.Fatal(err)
	}
	k := &worker{w: w, lease: leases[0], state: state}
	k.append(loop.Claimed{Attempt: state.Attempts() + 1, Worker: name})
	return k
}

// append writes facts in one batch, as the engine does.
func (k *worker) append(bodies ...loop.Body) {
	k.w.t.Helper()
	batch := postgres.Batch{SignalsSeen: k.seen, Children: k.children, Results: k.results}
	k.children, k.results = nil, nil
	for _, body := range bodies {
		e := loop.Event{Seq: k.state.Seq() + 1, At: time.Now().UTC(), Epoch: k.lease.Epoch, Body: body}
		if err := k.state.Apply(e); err != nil {
			k.w.t.Fatal(err)
		}
		batch.Events = append(batch.Events, e)
		switch body.(type) {
		case loop.Suspended, loop.Finished:
			batch.Release = true
		}
	}
	batch.Head, batch.Calls = k.state.Head(), k.state.TakeChangedCalls()
	if err := k.w.store.Append(k.w.t.Context(), k.lease, batch); err != nil {
		k.w.t.Fatal(err)
	}
}

// answer plays one model call.
func (k *worker) answer(finish loop.Finish, parts ...loop.Part) {
	k.w.t.Helper()
	k.complete(k.begin(), finish, parts...)
}

// begin plays the intent of a model call, and returns its number.
func (k *worker) begin() int {
	k.w.t.Helper()
	call := k.state.Head().ModelCalls + 1
	price, _ := prices(model)
	k.append(loop.ModelStarted{Call: call, Model: model, MaxOutput: 1000, InputBound: 1000, Hold: price.Bound(1000, 1000)})
	return call
}

// complete plays the answer to a model call.
func (k *worker) complete(call int, finish loop.Finish, parts ...loop.Part) {
	k.w.t.Helper()
	price, _ := prices(model)
	usage := loop.Usage{InputUncached: 100, Output: 20}
	k.append(loop.ModelAnswered{
		Call: call, Finish: finish, Usage: usage, Cost: price.Cost(usage),
		Message: loop.Message{Role: loop.RoleAssistant, Source: loop.SourceModel, Parts: parts, Native: &loop.Native{Wire: "acme", JSON: []byte(`{"signature":"s"}`)}},
	})
}

func toolCall(id, name, args string) loop.Part {
	return loop.Part{Kind: loop.PartToolCall, Call: &loop.ToolCall{ID: id, ProviderID: "p-" + id, Name: name, Args: args}}
}

// finish ends the run with an accepted answer.
func (k *worker) finish(answer string) {
	k.w.t.Helper()
	k.answer(loop.FinishDone, loop.TextPart(answer))
	k.append(loop.AnswerAccepted{}, loop.Finished{
		State: loop.StateSucceeded, Stop: loop.Stop{Reason: loop.Completed, Message: "The answer was accepted.", Iteration: 1}, Answer: answer,
	})
}

// do sends a REST request and returns the answer with its body.
func (w *world) do(method, path, body string, headers ...string) (*http.Response, []byte) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp, answer
}

// get sends a REST request that must succeed, and decodes the answer.
func (w *world) rest(method, path, body string, headers ...string) map[string]any {
	w.t.Helper()
	resp, answer := w.do(method, path, body, headers...)
	if resp.StatusCode != http.StatusOK {
		w.t.Fatalf("%s %s answered %d %s", method, path, resp.StatusCode, answer)
	}
	return decode(w.t, answer)
}

func decode(t *testing.T, b []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatalf("answer is no JSON object: %v: %s", err, b)
	}
	return m
}

// at reads a member by its path.
func at(m map[string]any, path ...string) any {
	var v any = m
	for _, p := range path {
		switch x := v.(type) {
		case map[string]any:
			v = x[p]
		case []any:
			var i int
			if _, err := fmt.Sscan(p, &i); err != nil || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

// syncBuffer is a log that many goroutines write.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write appends.
func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String is what was written so far.
func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
