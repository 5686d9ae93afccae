package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// delivery is one request that reached a tool.
type delivery struct{ tool, key, args string }

// shop serves tools over HTTP and over MCP. Its ledger has every request, written
// before the answer: it is the judge of what loopd sent.
type shop struct {
	*httptest.Server

	mu      sync.Mutex
	ledger  []delivery
	written chan struct{}     // closed when the next row is
	gate    chan struct{}     // until it is closed, nothing is answered
	answers map[string]string // by tool; default {"ok":true}
	about   string            // what the MCP server says of its tools
	breaks  bool              // MCP calls get no answer, and their connections break
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{written: make(chan struct{}), gate: make(chan struct{}), answers: map[string]string{}, about: "acts"}
	close(s.gate)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /http/{tool}", s.serveHTTP)
	mux.HandleFunc("POST /check", s.check)
	mux.HandleFunc("POST /mcp", s.serveMCP)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

// hold keeps back all answers until release.
func (s *shop) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate = make(chan struct{})
}

func (s *shop) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.gate)
}

// take writes a request down, then waits until it may be answered. False: the
// client has gone.
func (s *shop) take(r *http.Request, d delivery) bool {
	s.mu.Lock()
	s.ledger = append(s.ledger, d)
	close(s.written)
	s.written = make(chan struct{})
	gate := s.gate
	s.mu.Unlock()
	select {
	case <-gate:
		return true
	case <-r.Context().Done():
		return false
	}
}

// say sets what a tool answers from now on.
func (s *shop) say(tool, answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[tool] = answer
}

func (s *shop) answer(tool string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.answers[tool], `{"ok":true}`)
}

func (s *shop) serveHTTP(w http.ResponseWriter, r *http.Request) {
	args, _ := io.ReadAll(r.Body)
	tool := r.PathValue("tool")
	if s.take(r, delivery{tool, r.Header.Get("Idempotency-Key"), string(args)}) {
		fmt.Fprint(w, s.answer(tool))
	}
}

// check tells whether a key took effect, which it did if it is in the ledger. The
// fax machine takes orders and loses them.
func (s *shop) check(w http.ResponseWriter, r *http.Request) {
	args, _ := io.ReadAll(r.Body)
	var asked struct{ Key, Tool string }
	_ = json.Unmarshal(args, &asked)
	if !s.take(r, delivery{"check", asked.Key, string(args)}) {
		return
	}
	found := slices.ContainsFunc(s.of(asked.Tool), func(d delivery) bool { return d.key == asked.Key })
	fmt.Fprintf(w, `{"took_effect": %t, "result": {"receipt": %q}}`, found && asked.Tool != "fax", asked.Key)
}

// serveMCP does as much of MCP's streamable HTTP as a client of one tool needs.
func (s *shop) serveMCP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct {
			Name      string
			Arguments json.RawMessage
			Meta      map[string]any `json:"_meta"`
		}
	}
	body, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(body, &m)
	var result string
	switch m.Method {
	case "initialize":
		result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"shop","version":"1"}}`
	case "tools/list":
		result = s.definitions()
	case "tools/call":
		key, _ := m.Params.Meta["loopd/idempotency-key"].(string)
		if !s.take(r, delivery{m.Params.Name, key, string(m.Params.Arguments)}) {
			return
		}
		if s.broken() {
			panic(http.ErrAbortHandler)
		}
		result = fmt.Sprintf(`{"content":[{"type":"text","text":%q}]}`, s.answer(m.Params.Name))
	case "server/discover":
		w.WriteHeader(http.StatusBadRequest)
		return
	default: // a notification
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

// mcpTools are the tools of the MCP server.
var mcpTools = []string{"mcp-read-only", "mcp-idempotent", "mcp-side-effect", "mcp-irreversible"}

func (s *shop) definitions() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var tools []string
	for _, name := range mcpTools {
		tools = append(tools, fmt.Sprintf(`{"name":%q,"description":%q,"inputSchema":{"type":"object"}}`, name, s.about))
	}
	return `{"tools":[` + strings.Join(tools, ",") + `]}`
}

// redefine changes what the MCP server says of its tools.
func (s *shop) redefine(about string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.about = about
}

// vanish breaks the connections of MCP calls from now on.
func (s *shop) vanish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.breaks = true
}

func (s *shop) broken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.breaks
}

// of is what the ledger has of one tool.
func (s *shop) of(tool string) []delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.ledger), func(d delivery) bool { return d.tool != tool })
}

// await returns a tool's deliveries once there are n.
func (s *shop) await(t testing.TB, tool string, n int) []delivery {
	t.Helper()
	late := time.After(patience)
	for {
		s.mu.Lock()
		written := s.written
		s.mu.Unlock()
		if rows := s.of(tool); len(rows) >= n {
			return rows
		}
		select {
		case <-written:
		case <-late:
			t.Fatalf("%s was delivered %d times, want %d", tool, len(s.of(tool)), n)
		}
	}
}

// tool is the tool of the ledger's name, as the model knows it under another.
func (s *shop) tool(name, inLedger string, effect loopdv1.Effect) *loopdv1.Tool {
	t := &loopdv1.Tool{Name: name, Effect: effect}
	switch {
	case strings.HasPrefix(inLedger, "mcp-"):
		t.Kind = &loopdv1.Tool_Mcp{Mcp: &loopdv1.McpTool{Url: s.URL + "/mcp", Tool: inLedger}}
	case inLedger == "check":
		t.Kind = &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "POST", Url: s.URL + "/check"}}
	default:
		t.Kind = &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "POST", Url: s.URL + "/http/" + inLedger}}
	}
	return t
}

// builtin is a tool of loopd's own.
func builtin(name string, b loopdv1.Builtin) *loopdv1.Tool {
	return &loopdv1.Tool{Name: name, Kind: &loopdv1.Tool_Builtin{Builtin: b}}
}

// define makes the next version of an agent. Its model is a scripted one, named
// after it unless the spec names another.
func (p *process) define(name string, spec *loopdv1.AgentSpec) {
	p.t.Helper()
	spec.Model = "scripted/" + cmp.Or(spec.GetModel(), name)
	_, err := p.agents.UpdateAgent(p.context, &loopdv1.UpdateAgentRequest{AllowMissing: true, Agent: &loopdv1.Agent{Name: "agents/" + name, Spec: spec}})
	if err != nil {
		p.t.Fatal(err)
	}
}

// ask sends a request to the REST API, which must be granted, and reads the answer.
func (p *process) ask(method, path, body string, answer proto.Message) {
	p.t.Helper()
	status, said := p.rest(method, path, body)
	raw, err := json.Marshal(said)
	if err != nil {
		p.t.Fatal(err)
	}
	if status != http.StatusOK {
		p.t.Fatalf("%s %s: %d %s", method, path, status, raw)
	}
	if err := protojson.Unmarshal(raw, answer); err != nil {
		p.t.Fatalf("%s %s: %v: %s", method, path, err, raw)
	}
}

// refused sends a request that must be refused, with that status and reason.
func (p *process) refused(status int, reason, method, path, body string) map[string]any {
	p.t.Helper()
	got, answer := p.rest(method, path, body)
	if got != status || answer["reason"] != reason {
		p.t.Errorf("%s %s: %d %v, want %d %s", method, path, got, answer, status, reason)
	}
	return answer
}

// approvals lists those that wait for a person, of one run or of all.
func (p *process) approvals(run string) []*loopdv1.Approval {
	p.t.Helper()
	var page loopdv1.ListApprovalsResponse
	p.ask(http.MethodGet, "/v1/approvals?state=APPROVAL_STATE_PENDING&run="+run, "", &page)
	return page.GetApprovals()
}

// approve approves a call, for the arguments that it has.
func (p *process) approve(a *loopdv1.Approval) {
	p.t.Helper()
	p.ask(http.MethodPost, "/v1/"+a.GetName()+":approve", fmt.Sprintf(`{"expectedArgumentsHash": %q}`, a.GetArgumentsSha256()), &loopdv1.Approval{})
}

// resolve says what became of a call in doubt.
func (p *process) resolve(call, resolution string) {
	p.t.Helper()
	p.ask(http.MethodPost, "/v1/"+call+":resolve", fmt.Sprintf(`{"resolution": %q}`, "RESOLUTION_"+resolution), &loopdv1.ToolCall{})
}

// until waits until the run's journal has n events of a kind.
func (p *process) until(run, kind string, n int) {
	p.t.Helper()
	stream, err := p.runs.StreamEvents(p.context, &loopdv1.StreamEventsRequest{Parent: run})
	if err != nil {
		p.t.Fatal(err)
	}
	for n > 0 {
		m, err := stream.Recv()
		if err != nil {
			p.t.Fatalf("%s: waiting for %s: %v", run, kind, err)
		}
		if m.GetEnd() != nil {
			p.t.Fatalf("%s ended as %s without %s", run, m.GetEnd().GetState(), kind)
		}
		if m.GetEvent().GetKind() == kind {
			n--
		}
	}
}

// kinds lists the kinds of the run's events.
func (p *process) kinds(run string) []string {
	p.t.Helper()
	page, err := p.runs.ListEvents(p.context, &loopdv1.ListEventsRequest{Parent: run, PageSize: 1000})
	if err != nil {
		p.t.Fatal(err)
	}
	var kinds []string
	for _, e := range page.GetEvents() {
		kinds = append(kinds, e.GetKind())
	}
	return kinds
}

// ended waits for the run's end, which must be in that state.
func (p *process) ended(run string, want loopdv1.RunState) *loopdv1.Run {
	p.t.Helper()
	got := p.waitEnd(run)
	if got.GetState() != want {
		p.t.Errorf("%s (%s) ended as %s, want %s: %s", run, got.GetAgent(), got.GetState(), want, got.GetStop().GetMessage())
	}
	return got
}

// doubted waits until the run waits for a person's word about its only call in
// doubt, and returns that call.
func (p *process) doubted(run string) *loopdv1.ToolCall {
	p.t.Helper()
	got := p.wait(run)
	actions := got.GetRequiredActions()
	if len(actions) != 1 || actions[0].GetKind() != loopdv1.RequiredAction_KIND_RESOLVE {
		p.t.Fatalf("%s is %s with the actions %v, want one KIND_RESOLVE", run, got.GetState(), actions)
	}
	for _, call := range p.calls(run) {
		if call.GetName() == actions[0].GetToolCall() && call.GetState() == loopdv1.ToolCallState_TOOL_CALL_STATE_IN_DOUBT {
			return call
		}
	}
	p.t.Fatalf("%s has no call in doubt", run)
	return nil
}

// results are what the model reads of the run's calls, by id.
func (p *process) results(run string) map[string]string {
	p.t.Helper()
	results := map[string]string{}
	for _, call := range p.calls(run) {
		results[call.GetName()[strings.LastIndex(call.GetName(), "/")+1:]] = call.GetResult()
	}
	return results
}

// sameKey reports whether there are n deliveries, all with one key.
func sameKey(rows []delivery, n int) bool {
	keys := map[string]bool{}
	for _, d := range rows {
		keys[d.key] = true
	}
	return len(rows) == n && len(keys) == 1 && !slices.Contains(slices.Collect(maps.Keys(keys)), "")
}
