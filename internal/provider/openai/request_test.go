package openai_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/openai"
	"github.com/loopd/loopd/internal/provider/providertest"
)

const textAnswer = `{"id":"x","model":"m","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"ok"}}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}`

// answering is a server that always sends the body.
func answering(t *testing.T, status int, body string) *providertest.Server {
	t.Helper()
	return providertest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		if _, err := w.Write([]byte(body)); err != nil {
			t.Errorf("server: %v", err)
		}
	}))
}

// sent returns the request that the adapter makes of req for a compatible server.
func sent(t *testing.T, req loop.ModelRequest) providertest.Request {
	t.Helper()
	server := answering(t, http.StatusOK, textAnswer)
	if _, err := newClient(server.URL, providertest.Tuning{}).Generate(t.Context(), req); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	return server.Last(t)
}

func user(parts ...loop.Part) loop.Message { return loop.Message{Role: loop.RoleUser, Parts: parts} }

func result(id, providerID string, outcome loop.Outcome, content string) loop.Part {
	return loop.Part{Kind: loop.PartToolResult, Result: &loop.ToolResult{CallID: id, ProviderID: providerID, Outcome: outcome, Content: content}}
}

func call(id, providerID, name, args string) loop.Part {
	return loop.Part{Kind: loop.PartToolCall, Call: &loop.ToolCall{ID: id, ProviderID: providerID, Name: name, Args: args}}
}

// transcript has two parallel calls, their results in two messages with a guard's
// nudge between them.
func transcript() loop.ModelRequest {
	return loop.ModelRequest{
		Model:        "gpt-test",
		Instructions: "Be brief.",
		Tools: []loop.ToolSpec{
			{Name: "add", Description: "adds", Schema: json.RawMessage(`{"type":"object"}`)},
			{Name: "mul", Schema: json.RawMessage(`{"type":"object","properties":{}}`)},
		},
		Messages: []loop.Message{
			user(loop.TextPart("2 and 3?")),
			{
				Role:  loop.RoleAssistant,
				Parts: []loop.Part{call("c1-1", "call_a", "add", `{"a": 2}`), call("c1-2", "call_b", "mul", `{}`)},
				Native: &loop.Native{Wire: "openai", JSON: json.RawMessage(
					`{"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[{"id":"call_a","type":"function","function":{"name":"add","arguments":"{\"a\": 2}"}},{"id":"call_b","type":"function","function":{"name":"mul","arguments":"{}"}}]}`)},
			},
			user(result("c1-1", "call_a", loop.OutcomeOK, "5")),
			user(loop.TextPart("Do not repeat yourself.")),
			user(result("c1-2", "call_b", loop.OutcomePermanent, "no such number")),
		},
		MaxOutputTokens: 512,
		ToolsAllowed:    true,
		CacheKey:        "run-1",
	}
}

// The parts of the request that transcript makes, with the members of the
// server's dialect between them.
const (
	transcriptHead = `{"model":"gpt-test",` +
		`"tools":[{"type":"function","function":{"name":"add","description":"adds","parameters":{"type":"object"}}},` +
		`{"type":"function","function":{"name":"mul","parameters":{"type":"object","properties":{}}}}],`
	transcriptTail = `,"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"2 and 3?"},` +
		`{"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[{"id":"call_a","type":"function","function":{"name":"add","arguments":"{\"a\": 2}"}},{"id":"call_b","type":"function","function":{"name":"mul","arguments":"{}"}}]},` +
		`{"role":"tool","tool_call_id":"call_a","content":"5"},{"role":"tool","tool_call_id":"call_b","content":"no such number"},` +
		`{"role":"user","content":"Do not repeat yourself."}]}`
)

func TestRequest(t *testing.T) {
	t.Parallel()
	r := sent(t, transcript())
	want := transcriptHead + `"max_tokens":512,"stream":true,"stream_options":{"include_usage":true}` + transcriptTail
	if diff := cmp.Diff(want, string(r.Body)); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if r.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer test-key-123" {
		t.Errorf("sent to %s with %v", r.Path, r.Header)
	}
}

func TestWrapUpKeepsTools(t *testing.T) {
	t.Parallel()
	req := transcript()
	req.ToolsAllowed = false
	want := transcriptHead + `"tool_choice":"none","max_tokens":512,"stream":true,"stream_options":{"include_usage":true}` + transcriptTail
	if diff := cmp.Diff(want, string(sent(t, req).Body)); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}

	req.Tools = nil
	if body := string(sent(t, req).Body); strings.Contains(body, "tool_choice") {
		t.Errorf("tool_choice without tools is refused by servers: %s", body)
	}
}

// roundTripper answers in place of a host that a test must not call.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestVendorDialect: OpenAI itself gets the cache key and the member that its
// reasoning models demand.
func TestVendorDialect(t *testing.T) {
	t.Parallel()
	var address, body string
	client := openai.New(openai.Config{APIKey: "test-key-123", HTTPClient: &http.Client{
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			raw, err := io.ReadAll(r.Body)
			address, body = r.URL.String(), string(raw)
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(textAnswer))}, err
		}),
	}})
	if _, err := client.Generate(t.Context(), transcript()); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	want := transcriptHead + `"max_completion_tokens":512,"stream":true,"stream_options":{"include_usage":true},"prompt_cache_key":"run-1"` + transcriptTail
	if diff := cmp.Diff(want, body); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if address != "https://api.openai.com/v1/chat/completions" {
		t.Errorf("sent to %s", address)
	}
}

func TestOutputLimitIsConfigurable(t *testing.T) {
	t.Parallel()
	server := answering(t, http.StatusOK, textAnswer)
	client := openai.New(openai.Config{BaseURL: server.URL, OutputLimit: openai.MaxCompletionTokens})
	if _, err := client.Generate(t.Context(), providertest.Ask()); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	r := server.Last(t)
	if !bytes.Contains(r.Body, []byte(`"max_completion_tokens":1024`)) || r.Header.Get("Authorization") != "" {
		t.Errorf("request is %s with %v", r.Body, r.Header)
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config openai.Config
		want   string // in the error; empty = none
	}{
		{openai.Config{APIKey: "k"}, ""},
		{openai.Config{BaseURL: "http://localhost:11434/v1"}, ""},
		{openai.Config{}, "API key is empty"},
		{openai.Config{BaseURL: "https://api.openai.com/v1"}, "API key is empty"},
		{openai.Config{APIKey: "k", OutputLimit: "tokens"}, "max_tokens or max_completion_tokens"},
		{openai.Config{BaseURL: "localhost:8080"}, "http://"},
	} {
		err := c.config.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q", c.config, err, c.want)
		}
	}
}

// follow sends the answer of a recording back with results and returns the request.
func follow(t *testing.T, recording string) (loop.ModelAnswer, string) {
	t.Helper()
	server := providertest.Serve(t, providertest.Load(t, os.DirFS("testdata"), recording+".json"))
	client := newClient(server.URL, providertest.Tuning{})
	req := providertest.Ask()
	answer, err := client.Generate(t.Context(), req)
	if err != nil {
		t.Fatalf("Generate: %v", err)
	}
	if again, err := json.Marshal(answer.Message.Native.JSON); err != nil || string(again) != string(answer.Message.Native.JSON) {
		t.Errorf("the journal's encoder changes the native form (%v):\n%s\n%s", err, answer.Message.Native.JSON, again)
	}
	var results []loop.Part
	for i, p := range answer.Message.Parts {
		if p.Kind == loop.PartToolCall {
			p.Call.ID = "c1-" + string(rune('1'+i)) // the engine numbers calls
			results = append(results, result(p.Call.ID, p.Call.ProviderID, loop.OutcomeOK, "noon"))
		}
	}
	req.Messages = append(req.Messages, answer.Message, user(results...))
	if _, err := client.Generate(t.Context(), req); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	return answer, string(server.Last(t).Body)
}

// TestEmptyIDs: the call and its result get loopd's id, and the signature stays.
func TestEmptyIDs(t *testing.T) {
	t.Parallel()
	_, body := follow(t, "compatible/gemini-empty-tool-id-1")
	for _, want := range []string{
		`"tool_calls":[{"id":"c1-1","type":"function","function":{"name":"get_current_time","arguments":"{}"}}]`,
		`{"role":"tool","tool_call_id":"c1-1","content":"noon"}`,
		`"extra_content":{"google":{"thought":true,"thought_signature":"AVSo`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is not in %s", want, body)
		}
	}
}

// TestReplay: with ids that can be used, the stored form goes back as it is.
func TestReplay(t *testing.T) {
	t.Parallel()
	for _, recording := range []string{
		"openai/chat-parallel-tools-stream-1", "compatible/deepseek-tool-call-1", "compatible/openrouter-missing-arguments",
	} {
		answer, body := follow(t, recording)
		if !strings.Contains(body, string(answer.Message.Native.JSON)) {
			t.Errorf("%s: %s is not in %s", recording, answer.Message.Native.JSON, body)
		}
		for _, c := range answer.Message.Calls() {
			if !strings.Contains(body, `{"role":"tool","tool_call_id":"`+c.ProviderID+`"`) {
				t.Errorf("%s: no result for %s in %s", recording, c.ProviderID, body)
			}
		}
	}
}

// TestReasoningIsReplayed: DeepSeek refuses a history without it.
func TestReasoningIsReplayed(t *testing.T) {
	t.Parallel()
	if _, body := follow(t, "compatible/deepseek-tool-stream"); !strings.Contains(body, `"reasoning_content":"The user`) {
		t.Errorf("request is %s", body)
	}
}

func TestForeignAndEmptyMessages(t *testing.T) {
	t.Parallel()
	req := providertest.Ask()
	req.Messages = []loop.Message{
		user(loop.TextPart("hi")),
		{
			Role:   loop.RoleAssistant,
			Native: &loop.Native{Wire: "anthropic", JSON: json.RawMessage(`[]`)},
			Parts: []loop.Part{
				{Kind: loop.PartReasoning, Text: "secret"}, loop.TextPart("I look."), call("c1-1", "", "look", `{"broken`),
			},
		},
		user(result("c1-1", "", loop.OutcomeInvalidArgs, "bad arguments")),
		{Role: loop.RoleAssistant, Native: &loop.Native{Wire: "openai", JSON: json.RawMessage(`{"role":"assistant","content":null}`)}},
		user(loop.TextPart(" "), loop.TextPart("Go on."), loop.TextPart("Now.")),
	}
	want := `"messages":[{"role":"user","content":"hi"},` +
		`{"role":"assistant","content":"I look.","tool_calls":[{"id":"c1-1","type":"function","function":{"name":"look","arguments":"{}"}}]},` +
		`{"role":"tool","tool_call_id":"c1-1","content":"bad arguments"},` +
		`{"role":"user","content":"Go on.\n\nNow."}]}`
	if body := string(sent(t, req).Body); !strings.Contains(body, want) {
		t.Errorf("request is %s", body)
	}
}
