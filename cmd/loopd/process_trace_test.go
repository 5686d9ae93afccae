package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// traces is a collector of spans, over real OTLP.
type traces struct {
	collector.UnimplementedTraceServiceServer
	addr string

	mu    sync.Mutex
	spans []*tracev1.Span
}

func newTraces(t *testing.T) *traces {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, server := &traces{addr: lis.Addr().String()}, grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	return c
}

// Export takes spans.
func (c *traces) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range req.GetResourceSpans() {
		for _, s := range r.GetScopeSpans() {
			c.spans = append(c.spans, s.GetSpans()...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// of lists the spans of a run, in the order of their beginnings.
func (c *traces) of(run string) []*tracev1.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	var spans []*tracev1.Span
	for _, s := range c.spans {
		if attr(s, "loopd.run.id") == strings.TrimPrefix(run, "runs/") {
			spans = append(spans, s)
		}
	}
	slices.SortFunc(spans, func(a, b *tracev1.Span) int { return int(a.GetStartTimeUnixNano()) - int(b.GetStartTimeUnixNano()) })
	return spans
}

// attr is an attribute of a span as text, "" if it has none.
func attr(s *tracev1.Span, key string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() != key {
			continue
		}
		switch v := a.GetValue(); {
		case v.GetStringValue() != "":
			return v.GetStringValue()
		case v.GetArrayValue() != nil:
			return v.GetArrayValue().GetValues()[0].GetStringValue()
		default:
			return fmt.Sprint(v.GetIntValue())
		}
	}
	return ""
}

// payer looks, then pays what a person must approve.
const payer = `
models:
  payer:
    answers:
      - calls: [{name: look, args: {order: "CANARY-ARGUMENTS"}}]
        usage: {input: 100, cache_read: 40, output: 7}
      - calls: [{name: pay, args: {amount: 3}}]
      - text: "CANARY-ANSWER"
`

// A run of two attempts on two processes, as a collector sees it over OTLP: one trace,
// which is the caller's; the calls under their iterations, these under their attempts,
// the second linked to the first; the wait for a person; and the tool was told where it
// is in the trace. What was said is in none of the spans.
func TestTraceOfARun(t *testing.T) {
	t.Parallel()
	const callerTrace, callerSpan = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	var parents sync.Map // the traceparents of this run's calls, by tool
	tools := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if parent := r.Header.Get("Traceparent"); strings.Contains(parent, callerTrace) {
			parents.Store(strings.TrimPrefix(r.URL.Path, "/"), parent)
		}
		fmt.Fprint(w, `{"said": "CANARY-RESULT"}`)
	}))
	t.Cleanup(tools.Close)
	tool := func(name string, effect loopdv1.Effect) *loopdv1.Tool {
		return &loopdv1.Tool{Name: name, Effect: effect, Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "POST", Url: tools.URL + "/" + name}}}
	}
	db, c := pgURL(t), newTraces(t)
	first := start(t, db, payer, "--otlp-endpoint", c.addr)
	first.define("payer", &loopdv1.AgentSpec{Instructions: "CANARY-INSTRUCTIONS", Tools: []*loopdv1.Tool{tool("look", readOnly), tool("pay", irreversible)}})
	run := first.startTraced("00-" + callerTrace + "-" + callerSpan + "-01")
	alone := first.startTraced("") // by a caller who does not trace
	first.until(run, "approval_requested", 1)
	first.until(alone, "approval_requested", 1)
	first.terminate()
	second := start(t, db, payer, "--otlp-endpoint", c.addr)
	for _, name := range []string{run, alone} {
		second.approve(second.approvals(name)[0])
		second.ended(name, succeeded)
	}
	second.terminate()

	spans := c.of(run)
	named := func(name string) (found []*tracev1.Span) {
		for _, s := range spans {
			if s.GetName() == name {
				found = append(found, s)
			}
		}
		return found
	}
	attempts, iterations := named("invoke_agent payer"), named("loopd.iteration")
	if len(attempts) != 2 || len(iterations) != 3 || len(named("chat payer")) != 3 || len(named("execute_tool look")) != 1 || len(named("execute_tool pay")) != 1 || len(named("loopd.approval_wait")) != 1 {
		t.Fatalf("the trace has %d attempts, %d iterations and %v", len(attempts), len(iterations), spans)
	}
	for _, s := range spans {
		if hex.EncodeToString(s.GetTraceId()) != callerTrace {
			t.Errorf("%s is in trace %x", s.GetName(), s.GetTraceId())
		}
		if strings.Contains(s.String(), "CANARY") {
			t.Errorf("content is in %s", s)
		}
	}
	under := func(child, parent *tracev1.Span) {
		t.Helper()
		if string(child.GetParentSpanId()) != string(parent.GetSpanId()) {
			t.Errorf("%s hangs under %x, want %s", child.GetName(), child.GetParentSpanId(), parent.GetName())
		}
	}
	for _, a := range attempts {
		if hex.EncodeToString(a.GetParentSpanId()) != callerSpan {
			t.Errorf("an attempt hangs under %x, not under the caller's span", a.GetParentSpanId())
		}
	}
	if links := attempts[1].GetLinks(); len(links) != 1 || string(links[0].GetSpanId()) != string(attempts[0].GetSpanId()) {
		t.Errorf("the second attempt is linked to %v, want the first, %x", links, attempts[0].GetSpanId())
	}
	under(iterations[0], attempts[0])
	under(iterations[2], attempts[1])
	under(named("chat payer")[0], iterations[0])
	under(named("execute_tool look")[0], iterations[0])
	under(named("loopd.approval_wait")[0], attempts[1])
	chat, wait := named("chat payer")[0], named("loopd.approval_wait")[0]
	for key, want := range map[string]string{
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": "scripted", "gen_ai.request.model": "payer", "gen_ai.usage.input_tokens": "140",
		"gen_ai.usage.cache_read.input_tokens": "40", "gen_ai.usage.output_tokens": "7", "gen_ai.response.finish_reasons": "tool_calls",
	} {
		if got := attr(chat, key); got != want {
			t.Errorf("%s of the chat is %q, want %q", key, got, want)
		}
	}
	if attr(wait, "loopd.approval.decision") != "approved" || wait.GetEndTimeUnixNano() <= wait.GetStartTimeUnixNano() || wait.GetStartTimeUnixNano() > attempts[1].GetStartTimeUnixNano() {
		t.Errorf("the wait for the person is %v", wait)
	}
	for tool, span := range map[string]*tracev1.Span{"look": named("execute_tool look")[0], "pay": named("execute_tool pay")[0]} {
		if got, _ := parents.Load(tool); got != fmt.Sprintf("00-%s-%x-01", callerTrace, span.GetSpanId()) {
			t.Errorf("%s was told %v, want %x", tool, got, span.GetSpanId())
		}
	}
	checkLoneTrace(t, c.of(alone), alone)
}

// checkLoneTrace checks the trace of a run that nobody else traced: its first attempt is
// the root, and the trace's id is the run's.
func checkLoneTrace(t *testing.T, spans []*tracev1.Span, run string) {
	t.Helper()
	var roots, attempts []*tracev1.Span
	for _, s := range spans {
		if hex.EncodeToString(s.GetTraceId()) != strings.ReplaceAll(strings.TrimPrefix(run, "runs/"), "-", "") {
			t.Errorf("%s of a run without a caller is in trace %x", s.GetName(), s.GetTraceId())
		}
		if len(s.GetParentSpanId()) == 0 {
			roots = append(roots, s)
		}
		if s.GetName() == "invoke_agent payer" {
			attempts = append(attempts, s)
		}
	}
	if len(roots) != 1 || len(attempts) != 2 || roots[0] != attempts[0] || string(attempts[1].GetParentSpanId()) != string(roots[0].GetSpanId()) {
		t.Errorf("%d roots and %d attempts of a run without a caller: %v", len(roots), len(attempts), spans)
	}
}

// Whoever wants content in traces says so, and gets it without credentials.
func TestContentInTracesIsRedacted(t *testing.T) {
	t.Parallel()
	db, c, tools := pgURL(t), newTraces(t), newShop(t)
	tools.say("look", `{"said": "CANARY-RESULT", "auth": "Bearer abcdefgh12345678"}`)
	p := startIn(t, []string{captureVariable + "=SPAN_ONLY"}, db, payer, "--otlp-endpoint", c.addr)
	p.define("payer", &loopdv1.AgentSpec{Instructions: "CANARY-INSTRUCTIONS", Tools: []*loopdv1.Tool{tools.tool("look", "look", readOnly), tools.tool("pay", "pay", readOnly)}})
	run := p.start("payer").GetName()
	p.ended(run, succeeded)
	p.terminate()
	all := fmt.Sprint(c.of(run))
	for _, want := range []string{"CANARY-INSTRUCTIONS", "CANARY-ARGUMENTS", "CANARY-RESULT", "CANARY-ANSWER", "[redacted]"} {
		if !strings.Contains(all, want) {
			t.Errorf("%s is in no span", want)
		}
	}
	if strings.Contains(all, "abcdefgh12345678") {
		t.Error("a credential is in a span")
	}
}

// startTraced creates a run of the payer over REST, with or without a traceparent.
func (p *process) startTraced(traceparent string) string {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.context, http.MethodPost, "http://"+p.http+"/v1/runs", strings.NewReader(`{"agent": "agents/payer", "input": "CANARY-INPUT"}`))
	if err != nil {
		p.t.Fatal(err)
	}
	if traceparent != "" {
		req.Header.Set("Traceparent", traceparent)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	var run loopdv1.Run
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		p.t.Fatalf("create a run: %d %s %v", resp.StatusCode, body, err)
	}
	if err := protojson.Unmarshal(body, &run); err != nil {
		p.t.Fatal(err)
	}
	return run.GetName()
}
