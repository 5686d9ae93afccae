package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/tool"
)

func TestMain(m *testing.M) {
	if os.Getenv("MCP_TEST_SERVER") != "" { // this process is the command of a stdio test
		serveCommand()
		return
	}
	goleak.VerifyTestMain(m)
}

// message is what the hand-made server reads of a request.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
		Meta      map[string]any  `json:"_meta"`
		RequestID json.RawMessage `json:"requestId"`
	} `json:"params"`
}

// result frames a tool result as the answer to m.
func (m message) result(result string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

func (m message) failure(code int, text string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`, m.ID, code, text)
}

func (m message) text(text string) string {
	return m.result(fmt.Sprintf(`{"content":[{"type":"text","text":%q}]}`, text))
}

// fake is an MCP server that does what the protocol says, and with a call what a
// test says. Its ledger is written before it answers.
type fake struct {
	*httptest.Server

	call   func(w http.ResponseWriter, r *http.Request, m message)
	resume func(w http.ResponseWriter, r *http.Request)
	tools  string // the tools of its list, as JSON

	mu        sync.Mutex
	calls     []message
	methods   []string // of all messages, and of requests that are not POST
	headers   []http.Header
	opened    int
	forgotten map[string]bool
}

// newFake starts a server with a tool "act" that answers as call does.
func newFake(t *testing.T, call func(w http.ResponseWriter, r *http.Request, m message)) *fake {
	t.Helper()
	f := &fake{call: call, tools: `[{"name":"act","description":"acts","inputSchema":{"type":"object"}}]`, forgotten: map[string]bool{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(func() { f.CloseClientConnections(); f.Close() })
	return f
}

// ServeHTTP implements http.Handler.
func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodGet && r.Header.Get("Last-Event-ID") != "":
		f.note("RESUME")
		f.resume(w, r)
		return
	case r.Method != http.MethodPost:
		f.note(r.Method)
		if r.Method == http.MethodGet {
			<-r.Context().Done() // a server that never begins to answer must not hold up anybody
		}
		return
	}
	var m message
	body, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(body, &m)
	f.note(m.Method)
	if id := r.Header.Get("Mcp-Session-Id"); f.forgot(id) {
		if m.Method == "tools/call" {
			f.record(m, r)
		}
		http.Error(w, "no such session", http.StatusNotFound)
		return
	}
	switch m.Method {
	case "initialize":
		f.mu.Lock()
		f.opened++
		w.Header().Set("Mcp-Session-Id", fmt.Sprintf("s%d", f.opened))
		f.mu.Unlock()
		answer(w, m.result(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"fake","version":"1"}}`))
	case "tools/list":
		f.mu.Lock()
		tools := f.tools
		f.mu.Unlock()
		answer(w, m.result(`{"tools":`+tools+`}`))
	case "tools/call":
		f.record(m, r)
		f.call(w, r, m)
	case "server/discover":
		http.Error(w, "what?", http.StatusBadRequest)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func (f *fake) note(method string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.methods = append(f.methods, method)
}

func (f *fake) record(m message, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, m)
	f.headers = append(f.headers, r.Header.Clone())
}

func (f *fake) forgot(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.forgotten[id]
}

func (f *fake) forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgotten[id] = true
}

func (f *fake) redefine(tools string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tools = tools
}

func (f *fake) ledger() []message {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]message(nil), f.calls...)
}

// count is how many messages of a method came.
func (f *fake) count(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, m := range f.methods {
		if m == method {
			n++
		}
	}
	return n
}

func answer(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, body)
}

// stream begins a stream of events and sends some.
func stream(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range events {
		_, _ = io.WriteString(w, e+"\n\n")
	}
	_ = http.NewResponseController(w).Flush()
}

// reset breaks the connection with RST.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// newClient makes a client that may dial loopback.
func newClient(t *testing.T, adjust func(*Config)) *Client {
	t.Helper()
	transport := &http.Transport{}
	cfg := Config{Transport: transport}
	if adjust != nil {
		adjust(&cfg)
	}
	c := New(cfg)
	t.Cleanup(func() {
		c.Close()
		cfg.Transport.CloseIdleConnections()
	})
	return c
}

// request is a call of the tool "act" at a URL.
func request(url string, effect loop.Effect) tool.Request {
	return tool.Request{
		Run: loop.RunRef{Tenant: "t1", ID: "r1"},
		Spec: loop.ToolSpec{
			Name: "act", Effect: effect, Timeout: 30 * time.Second,
			MCP: &loop.MCPSpec{URL: url, Tool: "act"},
		},
		Call:    loop.ToolCall{ID: "c1-1", Name: "act", Args: `{"n":12345678901234567890}`},
		Key:     "loopd:r1:c1-1",
		Attempt: 1,
	}
}

// kindOf is the kind of problem that a reply reports.
func kindOf(t *testing.T, reply loop.ToolReply) string {
	t.Helper()
	var said map[string]problemNote
	if err := json.Unmarshal([]byte(reply.Content), &said); err != nil {
		t.Fatalf("a failed call must say why in JSON, got %q: %v", reply.Content, err)
	}
	return said["error"].Kind
}

// await polls until what is true.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(10 * time.Second)
	for !holds() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

// serve starts a server of the official SDK: with sessions, as all had them before
// July 2026, or without.
func serve(t *testing.T, s *sdk.Server, stateless bool) string {
	t.Helper()
	server := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{Stateless: stateless}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.URL
}

func newServer() *sdk.Server {
	return sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, nil)
}

// respond is a handler that returns a result.
func respond(result *sdk.CallToolResult) sdk.ToolHandler {
	return func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return result, nil }
}

var anyObject = json.RawMessage(`{"type":"object"}`)

// serveCommand is a server on standard input and output. Its tool "env" shows its
// environment, "child" starts a process and says which, and "die" ends it.
func serveCommand() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var m message
		if json.Unmarshal(bytes.TrimSpace(in.Bytes()), &m) != nil || m.ID == nil {
			continue
		}
		reply := m.failure(-32601, "no such method")
		switch m.Method {
		case "initialize":
			reply = m.result(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"command","version":"1"}}`)
		case "tools/list":
			reply = m.result(`{"tools":[{"name":"env","inputSchema":{"type":"object"}},{"name":"child","inputSchema":{"type":"object"}},` +
				`{"name":"exact","inputSchema":{"type":"object"}},{"name":"die","inputSchema":{"type":"object"}}]}`)
		case "tools/call":
			reply = commandTool(m)
		}
		_, _ = io.WriteString(os.Stdout, reply+"\n")
	}
}

func commandTool(m message) string {
	switch m.Params.Name {
	case "env":
		return m.text(strings.Join(os.Environ(), "\n"))
	case "exact":
		return m.result(`{"content":[],"structuredContent":{"id":12345678901234567890}}`)
	case "child":
		child, err := os.StartProcess("/bin/sleep", []string{"sleep", "600"}, &os.ProcAttr{})
		if err != nil {
			return m.failure(-32603, err.Error())
		}
		return m.text(fmt.Sprint(child.Pid))
	}
	os.Exit(3)
	return ""
}
