package anthropic_test

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/providertest"
)

// textAnswer is the smallest whole stream.
const textAnswer = `data: {"type":"message_start","message":{"id":"msg_1","model":"m","usage":{"input_tokens":3,"output_tokens":1}}}

data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"ok"}}

data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}

data: {"type":"message_stop"}

`

// answering is a server that always sends the stream.
func answering(t *testing.T, stream string) *providertest.Server {
	t.Helper()
	return providertest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		if _, err := w.Write([]byte(stream)); err != nil {
			t.Errorf("server: %v", err)
		}
	}))
}

// sent returns the request that the adapter makes of req.
func sent(t *testing.T, req loop.ModelRequest) providertest.Request {
	t.Helper()
	server := answering(t, textAnswer)
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
	temperature := 0.5
	return loop.ModelRequest{
		Model:        "claude-sonnet-4-5",
		Instructions: "Be brief.",
		Tools: []loop.ToolSpec{
			{Name: "add", Description: "adds", Schema: json.RawMessage(`{"type":"object"}`)},
			{Name: "mul", Schema: json.RawMessage(`{"type":"object","properties":{}}`)},
		},
		Messages: []loop.Message{
			user(loop.TextPart("2 and 3?")),
			{
				Role:  loop.RoleAssistant,
				Parts: []loop.Part{call("c1-1", "toolu_a", "add", `{"a": 2}`), call("c1-2", "toolu_b", "mul", `{}`)},
				Native: &loop.Native{Wire: "anthropic", JSON: json.RawMessage(
					`[{"type":"thinking","thinking":"hm","signature":"s=="},{"type":"tool_use","id":"toolu_a","name":"add","input":{"a":20000000000000000001}},{"type":"tool_use","id":"toolu_b","name":"mul","input":{}}]`)},
			},
			user(result("c1-1", "toolu_a", loop.OutcomeOK, "5")),
			user(loop.TextPart("Do not repeat yourself.")),
			user(result("c1-2", "toolu_b", loop.OutcomePermanent, "no such number")),
		},
		MaxOutputTokens: 512,
		ToolsAllowed:    true,
		Temperature:     &temperature,
		CacheKey:        "run-1",
	}
}

const transcriptTail = `"tools":[{"name":"add","description":"adds","input_schema":{"type":"object"}},` +
	`{"name":"mul","input_schema":{"type":"object","properties":{}},"cache_control":{"type":"ephemeral"}}],` +
	`"system":[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],` +
	`"messages":[{"role":"user","content":[{"type":"text","text":"2 and 3?","cache_control":{"type":"ephemeral"}}]},` +
	`{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s=="},{"type":"tool_use","id":"toolu_a","name":"add","input":{"a":20000000000000000001}},{"type":"tool_use","id":"toolu_b","name":"mul","input":{}}]},` +
	`{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_a","content":"5"},` +
	`{"type":"tool_result","tool_use_id":"toolu_b","content":"no such number","is_error":true},` +
	`{"type":"text","text":"Do not repeat yourself.","cache_control":{"type":"ephemeral"}}]}]}`

func TestRequest(t *testing.T) {
	t.Parallel()
	r := sent(t, transcript())
	want := `{"model":"claude-sonnet-4-5","max_tokens":512,"temperature":0.5,"stream":true,` + transcriptTail
	if diff := cmp.Diff(want, string(r.Body)); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if r.Path != "/v1/messages" || r.Header.Get("X-Api-Key") != "test-key-123" || r.Header.Get("Anthropic-Version") != "2023-06-01" {
		t.Errorf("sent to %s with %v", r.Path, r.Header)
	}
}

func TestWrapUpKeepsTools(t *testing.T) {
	t.Parallel()
	req := transcript()
	req.ToolsAllowed = false
	want := `{"model":"claude-sonnet-4-5","max_tokens":512,"temperature":0.5,"stream":true,"tool_choice":{"type":"none"},` + transcriptTail
	if diff := cmp.Diff(want, string(sent(t, req).Body)); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}

	req.Tools = nil
	if body := string(sent(t, req).Body); strings.Contains(body, "tool_choice") {
		t.Errorf("tool_choice without tools is refused by the API: %s", body)
	}
}

func TestAtMostFourBreakpoints(t *testing.T) {
	t.Parallel()
	req := transcript()
	var messages []loop.Message
	for range 6 {
		messages = append(messages, req.Messages...)
	}
	req.Messages = messages
	if n := strings.Count(string(sent(t, req).Body), "cache_control"); n != 4 {
		t.Errorf("%d breakpoints, want 4", n)
	}
}

// TestRepeatedCallIDs: the API wants an id once in a request, but gateways count
// from zero in every answer.
func TestRepeatedCallIDs(t *testing.T) {
	t.Parallel()
	req := transcript()
	again := loop.Message{
		Role:   loop.RoleAssistant,
		Parts:  []loop.Part{call("c2-1", "toolu_a", "add", `{}`)},
		Native: &loop.Native{Wire: "anthropic", JSON: json.RawMessage(`[{"type":"text","text":"so"},{"type":"tool_use","id":"toolu_a","name":"add","input":{},"caller":{"type":"direct"}}]`)},
	}
	req.Messages = append(req.Messages, again, user(result("c2-1", "toolu_a", loop.OutcomeOK, "6")))
	body := string(sent(t, req).Body)
	for _, want := range []string{
		`[{"type":"text","text":"so"},{"type":"tool_use","id":"c2-1","name":"add","input":{},"caller":{"type":"direct"}}]`,
		`{"type":"tool_result","tool_use_id":"c2-1","content":"6"`,
		`{"type":"tool_result","tool_use_id":"toolu_a","content":"5"`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is not in %s", want, body)
		}
	}
}

// TestForeignAndEmptyMessages: what another format wrote is rebuilt from parts,
// and a message with nothing in it is left out.
func TestForeignAndEmptyMessages(t *testing.T) {
	t.Parallel()
	req := providertest.Ask()
	req.Messages = []loop.Message{
		user(loop.TextPart("hi")),
		{
			Role:   loop.RoleAssistant,
			Native: &loop.Native{Wire: "openai", JSON: json.RawMessage(`{}`)},
			Parts: []loop.Part{
				{Kind: loop.PartReasoning, Text: "secret"}, loop.TextPart("I look."), call("c1-1", "", "look", `{"broken`),
			},
		},
		user(result("c1-1", "", loop.OutcomeInvalidArgs, "bad arguments")),
		{Role: loop.RoleAssistant, Native: &loop.Native{Wire: "anthropic", JSON: json.RawMessage(`[]`)}},
		user(loop.TextPart(" "), loop.TextPart("Go on.")),
	}
	want := `"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]},` +
		`{"role":"assistant","content":[{"type":"text","text":"I look."},{"type":"tool_use","id":"c1-1","name":"look","input":{}}]},` +
		`{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1-1","content":"bad arguments","is_error":true,"cache_control":{"type":"ephemeral"}}]},` +
		`{"role":"user","content":[{"type":"text","text":"Go on.","cache_control":{"type":"ephemeral"}}]}]}`
	if body := string(sent(t, req).Body); !strings.HasSuffix(body, want) {
		t.Errorf("request is %s", body)
	}
}

// TestReplayIsExact sends recorded answers back and compares with what the
// recorded client sent, and with the bytes that were kept.
func TestReplayIsExact(t *testing.T) {
	t.Parallel()
	for first, second := range map[string]string{
		"thinking-roundtrip-stream-1": "thinking-roundtrip-stream-2",
		"redacted-thinking-1":         "redacted-thinking-2",
		"parallel-tools-stream-1":     "parallel-tools-stream-2",
	} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			recordings := os.DirFS("testdata")
			server := providertest.Serve(t, providertest.Load(t, recordings, first+".json"))
			client := newClient(server.URL, providertest.Tuning{})
			req := providertest.Ask()
			answer, err := client.Generate(t.Context(), req)
			if err != nil {
				t.Fatalf("Generate: %v", err)
			}
			native := answer.Message.Native.JSON
			if again, err := json.Marshal(native); err != nil || string(again) != string(native) {
				t.Errorf("the journal's encoder changes the native form (%v):\n%s\n%s", err, native, again)
			}
			req.Messages = append(req.Messages, answer.Message, user(loop.TextPart("go on")))
			if _, err := client.Generate(t.Context(), req); err != nil {
				t.Fatalf("Generate: %v", err)
			}
			body := server.Last(t).Body
			if !strings.Contains(string(body), `{"role":"assistant","content":`+string(native)+`}`) {
				t.Errorf("the message was not sent back as it came: %s", body)
			}
			recorded := providertest.Load(t, recordings, second+".json").Request.Body
			if diff := cmp.Diff(assistantContent(t, recorded), assistantContent(t, body)); diff != "" {
				t.Errorf("assistant content (-recorded +sent):\n%s", diff)
			}
		})
	}
}

// assistantContent is the content of the first assistant message, without what a
// client may add to it.
func assistantContent(t *testing.T, body []byte) []map[string]any {
	t.Helper()
	var r struct {
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
	}
	if err := json.Unmarshal(body, &r); err != nil {
		t.Fatalf("request: %v", err)
	}
	for _, m := range r.Messages {
		if m.Role != "assistant" {
			continue
		}
		var blocks []map[string]any
		if err := json.Unmarshal(m.Content, &blocks); err != nil {
			t.Fatalf("content: %v", err)
		}
		for _, b := range blocks {
			delete(b, "cache_control")
			delete(b, "caller")
		}
		return blocks
	}
	t.Fatal("no assistant message")
	return nil
}

// TestPausedIsSentBackUnchanged: the request then ends with the assistant message.
func TestPausedIsSentBackUnchanged(t *testing.T) {
	t.Parallel()
	server := providertest.Serve(t, providertest.Load(t, os.DirFS("testdata"), "pause-turn-stream.json"))
	client := newClient(server.URL, providertest.Tuning{})
	req := providertest.Ask()
	answer, err := client.Generate(t.Context(), req)
	if err != nil {
		t.Fatalf("Generate: %v", err)
	}
	req.Messages = append(req.Messages, answer.Message)
	if _, err := client.Generate(t.Context(), req); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	body, native := string(server.Last(t).Body), string(answer.Message.Native.JSON)
	if !strings.HasSuffix(body, `{"role":"assistant","content":`+native+`}]}`) {
		t.Errorf("the request does not end with the paused message: %.200s", body[max(0, len(body)-200):])
	}
	for _, kind := range []string{"server_tool_use", "web_search_tool_result", "thinking"} {
		if !strings.Contains(native, `"type":"`+kind+`"`) {
			t.Errorf("%s blocks are lost", kind)
		}
	}
}
