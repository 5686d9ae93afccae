package responses_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/providertest"
	"github.com/loopd/loopd/internal/provider/responses"
)

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

// sentBy returns the request that a client makes of req. BaseURL is filled in.
func sentBy(t *testing.T, c responses.Config, req loop.ModelRequest) providertest.Request {
	t.Helper()
	server := answering(t, http.StatusOK, whole(`"status":"completed"`, okMessage))
	c.BaseURL = server.URL + "/v1/"
	if _, err := responses.New(c).Generate(t.Context(), req); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	return server.Last(t)
}

func sent(t *testing.T, req loop.ModelRequest) string {
	t.Helper()
	return string(sentBy(t, responses.Config{APIKey: providertest.Key}, req).Body)
}

func user(parts ...loop.Part) loop.Message { return loop.Message{Role: loop.RoleUser, Parts: parts} }

func result(id, providerID string, outcome loop.Outcome, content string) loop.Part {
	return loop.Part{Kind: loop.PartToolResult, Result: &loop.ToolResult{CallID: id, ProviderID: providerID, Outcome: outcome, Content: content}}
}

func call(id, providerID, name, args string) loop.Part {
	return loop.Part{Kind: loop.PartToolCall, Call: &loop.ToolCall{ID: id, ProviderID: providerID, Name: name, Args: args}}
}

// native is an assistant message with stored items.
func native(items string, parts ...loop.Part) loop.Message {
	return loop.Message{
		Role: loop.RoleAssistant, Parts: parts, Native: &loop.Native{Wire: "openai_responses", JSON: json.RawMessage("[" + items + "]")},
	}
}

// transcript has reasoning with two parallel calls, and their results in two
// messages with a guard's nudge between them.
func transcript() loop.ModelRequest {
	return loop.ModelRequest{
		Provider:     "openai",
		Model:        "gpt-test",
		Instructions: "Be brief.",
		Tools: []loop.ToolSpec{
			{Name: "add", Description: "adds", Schema: json.RawMessage(`{"type":"object"}`)},
			{Name: "mul"},
		},
		Messages: []loop.Message{
			user(loop.TextPart("2 and 3?")),
			native(`{"type":"reasoning","summary":[],"encrypted_content":"gAAA"},`+
				`{"type":"function_call","status":"completed","arguments":"{\"a\": 2}","call_id":"call_a","name":"add"},`+
				`{"type":"function_call","status":"completed","arguments":"{}","call_id":"call_b","name":"mul"}`,
				call("c1-1", "call_a", "add", `{"a": 2}`), call("c1-2", "call_b", "mul", `{}`)),
			user(result("c1-1", "call_a", loop.OutcomeOK, "5")),
			user(loop.TextPart("Do not repeat yourself.")),
			user(result("c1-2", "call_b", loop.OutcomePermanent, "no such number")),
		},
		MaxOutputTokens: 512,
		ToolsAllowed:    true,
		CacheKey:        "run-1",
	}
}

const (
	head = `{"model":"gpt-test","instructions":"Be brief.",` +
		`"tools":[{"type":"function","name":"add","description":"adds","parameters":{"type":"object"},"strict":false},` +
		`{"type":"function","name":"mul","parameters":{"type":"object","properties":{}},"strict":false}],`
	tail = `"max_output_tokens":512,"include":["reasoning.encrypted_content"],"store":false,"stream":true,"prompt_cache_key":"run-1",` +
		`"input":[{"role":"user","content":[{"type":"input_text","text":"2 and 3?"}]},` +
		`{"type":"reasoning","summary":[],"encrypted_content":"gAAA"},` +
		`{"type":"function_call","status":"completed","arguments":"{\"a\": 2}","call_id":"call_a","name":"add"},` +
		`{"type":"function_call","status":"completed","arguments":"{}","call_id":"call_b","name":"mul"},` +
		`{"type":"function_call_output","call_id":"call_a","output":"5"},` +
		`{"type":"function_call_output","call_id":"call_b","output":"no such number"},` +
		`{"role":"user","content":[{"type":"input_text","text":"Do not repeat yourself."}]}]}`
)

func TestRequest(t *testing.T) {
	t.Parallel()
	r := sentBy(t, responses.Config{APIKey: providertest.Key}, transcript())
	if diff := cmp.Diff(head+tail, string(r.Body)); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if r.Path != "/v1/responses" || r.Header.Get("Authorization") != "Bearer test-key-123" {
		t.Errorf("sent to %s with %v", r.Path, r.Header)
	}
}

func TestWrapUpKeepsTools(t *testing.T) {
	t.Parallel()
	req := transcript()
	req.ToolsAllowed = false
	if diff := cmp.Diff(head+`"tool_choice":"none",`+tail, sent(t, req)); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}

	req.Tools = nil
	if body := sent(t, req); strings.Contains(body, "tool_choice") {
		t.Errorf("tool_choice without tools is refused: %s", body)
	}
}

// TestOptions: what is sent only when it was asked for.
func TestOptions(t *testing.T) {
	t.Parallel()
	half := 0.5
	for _, c := range []struct {
		name   string
		config responses.Config
		change func(*loop.ModelRequest)
		want   string // members after the output limit, up to store
	}{
		{"nothing", responses.Config{}, func(*loop.ModelRequest) {}, `"include":["reasoning.encrypted_content"],`},
		{"temperature", responses.Config{}, func(r *loop.ModelRequest) { r.Temperature = &half }, `"temperature":0.5,"include":["reasoning.encrypted_content"],`},
		{"effort", responses.Config{}, func(r *loop.ModelRequest) { r.Reasoning.Effort = "low" },
			`"reasoning":{"effort":"low"},"include":["reasoning.encrypted_content"],`},
		{"summary", responses.Config{ReasoningSummary: "auto"}, func(r *loop.ModelRequest) { r.Reasoning.Effort = "low" },
			`"reasoning":{"effort":"low","summary":"auto"},"include":["reasoning.encrypted_content"],`},
		{"summary of nothing", responses.Config{ReasoningSummary: "auto"}, func(r *loop.ModelRequest) { r.Reasoning.Effort = "none" },
			`"reasoning":{"effort":"none"},"include":["reasoning.encrypted_content"],`},
		{"summary without effort", responses.Config{ReasoningSummary: "auto"}, func(*loop.ModelRequest) {}, `"include":["reasoning.encrypted_content"],`},
		{"model that does not reason", responses.Config{}, func(r *loop.ModelRequest) { r.Model = "gpt-4o-mini" }, ``},
		{"deployment that does not reason", responses.Config{PlainModels: true}, func(*loop.ModelRequest) {}, ``},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			req := providertest.Ask()
			c.change(&req)
			body := string(sentBy(t, c.config, req).Body)
			want := fmt.Sprintf(`{"model":%q,"max_output_tokens":1024,`, req.Model) + c.want +
				`"store":false,"stream":true,"input":[{"role":"user","content":[{"type":"input_text","text":"hello"}]}]}`
			if diff := cmp.Diff(want, body); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAzure: the key goes into the header that is configured, beside headers of
// the operator, which cannot replace what the package needs.
func TestAzure(t *testing.T) {
	t.Parallel()
	r := sentBy(t, responses.Config{
		APIKey: providertest.Key, KeyHeader: "api-key", Header: http.Header{"X-Team": {"a", "b"}, "Content-Type": {"text/plain"}},
	}, providertest.Ask())
	got := []string{r.Header.Get("Api-Key"), r.Header.Get("Authorization"), strings.Join(r.Header["X-Team"], "+"), r.Header.Get("Content-Type")}
	if diff := cmp.Diff([]string{"test-key-123", "", "a+b", "application/json"}, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config responses.Config
		want   string // in the error; empty = none
	}{
		{responses.Config{APIKey: "k"}, ""},
		{responses.Config{APIKey: "k", BaseURL: "https://r.openai.azure.com/openai/v1", KeyHeader: "api-key", ReasoningSummary: "auto"}, ""},
		{responses.Config{BaseURL: "http://localhost:8000/v1"}, ""},
		{responses.Config{}, "API key is empty"},
		{responses.Config{BaseURL: "https://api.openai.com/v1"}, "API key is empty"},
		{responses.Config{APIKey: "k", KeyHeader: "api-key: x"}, "name alone"},
		{responses.Config{APIKey: "k", ReasoningSummary: "long"}, "auto, concise, detailed"},
		{responses.Config{BaseURL: "localhost:8080"}, "http://"},
	} {
		err := c.config.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q", c.config, err, c.want)
		}
	}
}

// input returns the items that are sent for messages.
func input(t *testing.T, messages ...loop.Message) string {
	t.Helper()
	req := providertest.Ask()
	req.Provider, req.Messages = "openai", messages
	_, items, ok := strings.Cut(sent(t, req), `"input":`)
	if !ok {
		t.Fatal("the request has no input")
	}
	return strings.TrimSuffix(items, "}")
}

func TestAttachments(t *testing.T) {
	t.Parallel()
	attach := func(kind loop.PartKind, m loop.Media) loop.Part { return loop.Part{Kind: kind, Media: &m} }
	got := input(t, user(
		loop.TextPart("Compare."),
		attach(loop.PartImage, loop.Media{Type: "image/png", Data: []byte("png")}),
		attach(loop.PartImage, loop.Media{Type: "image/png", URL: "https://example.com/a.png"}),
		attach(loop.PartDocument, loop.Media{Type: "application/pdf", Name: "a.pdf", Data: []byte("pdf")}),
		attach(loop.PartDocument, loop.Media{Type: "application/pdf", Data: []byte("pdf")}),
		attach(loop.PartDocument, loop.Media{Type: "application/pdf", Name: "b.pdf", URL: "https://example.com/b.pdf"}),
		attach(loop.PartDocument, loop.Media{Type: "text/csv", Name: "c.csv", Data: []byte("x,y")}),
	))
	want := `[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,cG5n"},` +
		`{"type":"input_image","image_url":"https://example.com/a.png"},` +
		`{"type":"input_file","filename":"a.pdf","file_data":"data:application/pdf;base64,cGRm"},` +
		`{"type":"input_file","filename":"document.pdf","file_data":"data:application/pdf;base64,cGRm"},` +
		`{"type":"input_file","file_url":"https://example.com/b.pdf"},` +
		`{"type":"input_text","text":"c.csv\nx,y"},` +
		`{"type":"input_text","text":"Compare."}]}]`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("input (-want +got):\n%s", diff)
	}
}

// TestReplay: what is changed in stored items, and what is not.
func TestReplay(t *testing.T) {
	t.Parallel()
	const (
		thought = `{"type":"reasoning","summary":[],"encrypted_content":"gAAA"}`
		said    = `{"type":"message","phase":"commentary","status":"completed","content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"a\u003cb"}],"role":"assistant"}`
	)
	long := strings.Repeat("x", 65)
	fc := func(callID, args string) string {
		return fmt.Sprintf(`{"type":"function_call","call_id":%q,"name":"add","arguments":%s}`, callID, args)
	}
	by := func(model string, m loop.Message) loop.Message {
		m.Model = model
		return m
	}
	for _, c := range []struct {
		name string
		m    loop.Message
		want string
	}{
		{"as it was", native(thought + "," + said), thought + "," + said},
		{"by the same model", by("openai/test-model", native(thought+","+said)), thought + "," + said},
		{"reasoning of another model", by("azure/test-model", native(thought+","+said)), said},
		{"reasoning that nothing follows", native(said + "," + thought), said},
		{"reasoning alone", native(thought), ``},
		{"reasoning that only a server could look up", native(`{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"x"}]},` + said), said},
		{"reasoning in plain text", native(`{"id":"rs_1","type":"reasoning","content":[{"type":"reasoning_text","text":"x"}]},` + said),
			`{"id":"rs_1","type":"reasoning","content":[{"type":"reasoning_text","text":"x"}]},` + said},
		{"message with nothing in it", native(`{"id":"msg_1","type":"message","content":[],"role":"assistant"}`), ``},
		{"the server's own tools", native(`{"id":"ws_1","type":"web_search_call","status":"completed"},` + said), `{"id":"ws_1","type":"web_search_call","status":"completed"},` + said},
		{"good call", native(fc("call_1", `"{\"a\":1}"`), call("c1-1", "call_1", "add", `{"a":1}`)), fc("call_1", `"{\"a\":1}"`)},
		{"empty id", native(fc("", `"{}"`), call("c1-1", "", "add", `{}`)), fc("c1-1", `"{}"`)},
		{"no id", native(`{"type":"function_call","name":"add","arguments":"{}"}`, call("c1-1", "", "add", `{}`)),
			`{"type":"function_call","name":"add","arguments":"{}","call_id":"c1-1"}`},
		{"long id", native(fc(long, `"{}"`), call("c1-1", long, "add", `{}`)), fc("c1-1", `"{}"`)},
		{"equal ids", native(fc("0", `"{}"`)+","+fc("0", `"{}"`), call("c1-1", "0", "add", `{}`), call("c1-2", "0", "add", `{}`)),
			fc("c1-1", `"{}"`) + "," + fc("c1-2", `"{}"`)},
		{"cut arguments", native(fc("call_1", `"{\"a\":"`), call("c1-1", "call_1", "add", `{"a":`)), fc("call_1", `"{}"`)},
		{"arguments as an object", native(fc("call_1", `{"a":1}`), call("c1-1", "call_1", "add", `{"a":1}`)), fc("call_1", `"{\"a\":1}"`)},
		{"of another wire format", loop.Message{
			Role: loop.RoleAssistant, Native: &loop.Native{Wire: "anthropic", JSON: json.RawMessage(`[]`)},
			Parts: []loop.Part{{Kind: loop.PartReasoning, Text: "secret"}, loop.TextPart("I look."), loop.TextPart(""), call("c1-1", "", "look", `{"broken`)},
		}, `{"role":"assistant","content":"I look."},{"type":"function_call","call_id":"c1-1","name":"look","arguments":"{}"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			messages := []loop.Message{c.m}
			want := c.want
			for _, made := range c.m.Calls() {
				messages = append(messages, user(result(made.ID, made.ProviderID, loop.OutcomeOK, "1")))
				id := made.ProviderID
				if strings.Contains(want, made.ID) {
					id = made.ID
				}
				want += fmt.Sprintf(`,{"type":"function_call_output","call_id":%q,"output":"1"}`, id)
			}
			if diff := cmp.Diff("["+want+"]", input(t, messages...)); diff != "" {
				t.Errorf("input (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRepeatedIDs: an id may come again in a later message, where it is exchanged
// in the call and in its result.
func TestRepeatedIDs(t *testing.T) {
	t.Parallel()
	again := func(id string) loop.Message {
		return native(`{"type":"function_call","call_id":"call_0","name":"add","arguments":"{}"}`, call(id, "call_0", "add", `{}`))
	}
	got := input(t, again("c1-1"), user(result("c1-1", "call_0", loop.OutcomeOK, "1")), again("c2-1"), user(result("c2-1", "call_0", loop.OutcomeOK, "2")))
	want := `[{"type":"function_call","call_id":"call_0","name":"add","arguments":"{}"},{"type":"function_call_output","call_id":"call_0","output":"1"},` +
		`{"type":"function_call","call_id":"c2-1","name":"add","arguments":"{}"},{"type":"function_call_output","call_id":"c2-1","output":"2"}]`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("input (-want +got):\n%s", diff)
	}
}

// TestRecordedSecondRequest: the answer of a recorded first request, sent back
// with results, makes the items that the recording's author sent, except that
// loopd keeps the status of calls and has the instructions in a member of their own.
func TestRecordedSecondRequest(t *testing.T) {
	t.Parallel()
	recordings := os.DirFS("testdata")
	server := providertest.Serve(t, providertest.Load(t, recordings, "openai/responses-parallel-1.json"))
	client := newClient(server.URL, providertest.Tuning{})
	req := providertest.Ask()
	req.Messages = []loop.Message{user(loop.TextPart("Add and multiply the number 2 and 3"))}
	answer, err := client.Generate(t.Context(), req)
	if err != nil {
		t.Fatalf("Generate: %v", err)
	}
	if stored, err := json.Marshal(answer.Message.Native.JSON); err != nil || string(stored) != string(answer.Message.Native.JSON) {
		t.Errorf("the journal's encoder changes the native form (%v):\n%s\n%s", err, answer.Message.Native.JSON, stored)
	}
	for i, p := range answer.Message.Parts {
		p.Call.ID = fmt.Sprintf("c1-%d", i+1) // the engine numbers calls
	}
	calls := answer.Message.Calls()
	req.Messages = append(req.Messages, answer.Message, user(
		result("c1-1", calls[0].ProviderID, loop.OutcomeOK, "5"), result("c1-2", calls[1].ProviderID, loop.OutcomeOK, "6")))
	if _, err := client.Generate(t.Context(), req); err != nil {
		t.Fatalf("Generate: %v", err)
	}

	want := inputOf(t, providertest.Load(t, recordings, "openai/responses-parallel-2.json").Request.Body)
	if want[0]["role"] != "system" {
		t.Fatalf("the recording begins with %v", want[0])
	}
	want = want[1:]
	for _, it := range want {
		if it["type"] == "function_call" {
			it["status"] = "completed"
		}
	}
	if diff := cmp.Diff(want, inputOf(t, server.Last(t).Body)); diff != "" {
		t.Errorf("items (-recorded +sent):\n%s", diff)
	}
}

func inputOf(t *testing.T, body []byte) []map[string]any {
	t.Helper()
	var r struct {
		Input []map[string]any `json:"input"`
	}
	if err := json.Unmarshal(body, &r); err != nil {
		t.Fatalf("request: %v", err)
	}
	return r.Input
}

// conversation is a transcript with n iterations of two calls each. Sequence
// numbers are as the fold sets them.
func conversation(n int) []loop.Message {
	messages := []loop.Message{user(loop.TextPart("Go."))}
	for i := range n {
		a, b := fmt.Sprintf("call_%d_a", i), fmt.Sprintf("call_%d_b", i)
		if i%5 == 4 {
			b = a // a server that repeats ids
		}
		items := fmt.Sprintf(`{"type":"reasoning","summary":[],"encrypted_content":%q},`, strings.Repeat("gAAA", 256)) +
			`{"type":"function_call","status":"completed","arguments":"{\"q\":1}","call_id":"` + a + `","name":"find"},` +
			`{"type":"function_call","status":"completed","arguments":"{\"q\":2}","call_id":"` + b + `","name":"find"}`
		first, second := fmt.Sprintf("c%d-1", i), fmt.Sprintf("c%d-2", i)
		messages = append(messages,
			native(items, call(first, a, "find", `{"q":1}`), call(second, b, "find", `{"q":2}`)),
			user(result(first, a, loop.OutcomeOK, strings.Repeat("found ", 300)), result(second, b, loop.OutcomeOK, "nothing")))
	}
	for i := range messages {
		messages[i].Seq = int64(i + 1)
	}
	return messages
}

// TestPrefix: each request begins with the bytes of the one before, and the memo
// changes none of them.
func TestPrefix(t *testing.T) {
	t.Parallel()
	all := conversation(12)
	memo := &loop.Memo{}
	before := ""
	for n := 1; n <= len(all); n += 2 {
		req := transcript()
		req.Messages = all[:n]
		plain := sent(t, req)
		req.Memo = memo
		if with := sent(t, req); with != plain {
			t.Fatalf("%d messages: the memo changes the request:\n%s\n%s", n, plain, with)
		}
		if !strings.HasPrefix(plain, before) {
			t.Fatalf("%d messages: the request does not begin as the one before:\n%s\n%s", n, before, plain)
		}
		before = strings.TrimSuffix(plain, "]}")
	}
}
