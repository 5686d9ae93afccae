package gemini_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/providertest"
)

// textAnswer is the smallest whole stream.
const textAnswer = `data: {"candidates":[{"content":{"parts":[{"text":"ok"}],"role":"model"},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":1,"totalTokenCount":4}}` + "\n\n"

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

func result(id, providerID, name string, outcome loop.Outcome, content string) loop.Part {
	return loop.Part{Kind: loop.PartToolResult, Result: &loop.ToolResult{CallID: id, ProviderID: providerID, Name: name, Outcome: outcome, Content: content}}
}

func call(id, providerID, name, args string) loop.Part {
	return loop.Part{Kind: loop.PartToolCall, Call: &loop.ToolCall{ID: id, ProviderID: providerID, Name: name, Args: args}}
}

// transcript has two parallel calls, one with an id of the model's and one
// without, and their results in two messages with a guard's nudge between them.
func transcript() loop.ModelRequest {
	temperature := 0.5
	return loop.ModelRequest{
		Model:        "gemini-2.5-pro",
		Instructions: "Be brief.",
		Tools: []loop.ToolSpec{
			{Name: "add", Description: "adds", Schema: json.RawMessage(`{"type":"object","additionalProperties":false}`)},
			{Name: "now"},
		},
		Messages: []loop.Message{
			user(loop.TextPart("2 and 3?")),
			{
				Role:  loop.RoleAssistant,
				Parts: []loop.Part{call("c1-1", "a1", "add", `{"a":2}`), call("c1-2", "", "now", `{}`)},
				Native: &loop.Native{Wire: "gemini", JSON: json.RawMessage(
					`[{"text":"hm","thought":true},{"functionCall":{"name":"add","args":{"a":20000000000000000001},"id":"a1"},"thoughtSignature":"s+/=="},{"functionCall":{"name":"now"},"newMember":1}]`)},
			},
			user(result("c1-1", "a1", "add", loop.OutcomeOK, "5")),
			user(loop.TextPart("Do not repeat yourself.")),
			user(result("c1-2", "", "now", loop.OutcomePermanent, "no clock")),
		},
		MaxOutputTokens: 512,
		ToolsAllowed:    true,
		Temperature:     &temperature,
		CacheKey:        "run-1",
	}
}

const (
	transcriptHead = `{"systemInstruction":{"parts":[{"text":"Be brief."}]},` +
		`"tools":[{"functionDeclarations":[{"name":"add","description":"adds","parametersJsonSchema":{"type":"object","additionalProperties":false}},{"name":"now"}]}],`
	transcriptTail = `"generationConfig":{"candidateCount":1,"maxOutputTokens":512,"temperature":0.5},` +
		`"contents":[{"role":"user","parts":[{"text":"2 and 3?"}]},` +
		`{"role":"model","parts":[{"text":"hm","thought":true},{"functionCall":{"name":"add","args":{"a":20000000000000000001},"id":"a1"},"thoughtSignature":"s+/=="},{"functionCall":{"name":"now"},"newMember":1}]},` +
		`{"role":"user","parts":[{"functionResponse":{"id":"a1","name":"add","response":{"output":"5"}}},` +
		`{"functionResponse":{"name":"now","response":{"error":"no clock"}}},` +
		`{"text":"Do not repeat yourself."}]}]}`
)

func TestRequest(t *testing.T) {
	t.Parallel()
	r := sent(t, transcript())
	if diff := cmp.Diff(transcriptHead+transcriptTail, string(r.Body)); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if r.Path != "/v1beta/models/gemini-2.5-pro:streamGenerateContent" || r.Header.Get("X-Goog-Api-Key") != providertest.Key {
		t.Errorf("sent to %s with %v", r.Path, r.Header)
	}
}

func TestWrapUpKeepsTools(t *testing.T) {
	t.Parallel()
	req := transcript()
	req.ToolsAllowed = false
	want := transcriptHead + `"toolConfig":{"functionCallingConfig":{"mode":"NONE"}},` + transcriptTail
	if diff := cmp.Diff(want, string(sent(t, req).Body)); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}

	req.Tools = nil
	if body := string(sent(t, req).Body); strings.Contains(body, "toolConfig") {
		t.Errorf("toolConfig without tools: %s", body)
	}
}

func TestMedia(t *testing.T) {
	t.Parallel()
	req := providertest.Ask()
	req.Messages = []loop.Message{user(
		loop.TextPart("What is this?"),
		loop.Part{Kind: loop.PartImage, Media: &loop.Media{Type: "image/png", Data: []byte{0xfb, 0xff, 0xfe}}},
		loop.Part{Kind: loop.PartDocument, Media: &loop.Media{Type: "application/pdf", Name: "a.pdf", URL: "gs://bucket/a.pdf"}},
	)}
	want := `"contents":[{"role":"user","parts":[{"inlineData":{"mimeType":"image/png","data":"+//+"}},` +
		`{"fileData":{"mimeType":"application/pdf","fileUri":"gs://bucket/a.pdf"}},{"text":"What is this?"}]}]}`
	if body := string(sent(t, req).Body); !strings.HasSuffix(body, want) {
		t.Errorf("request is %s", body)
	}
}

func TestThinking(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		model     string
		reasoning loop.Reasoning
		want      string // the member, or "" for none
	}{
		{"gemini-2.5-pro", loop.Reasoning{}, ""},
		{"gemini-2.5-pro", loop.Reasoning{Budget: 4000}, `{"thinkingBudget":4000,"includeThoughts":true}`},
		{"gemini-2.5-flash", loop.Reasoning{Effort: "none"}, `{"thinkingBudget":0}`},
		{"gemini-2.5-flash", loop.Reasoning{Effort: "low"}, `{"thinkingBudget":1024,"includeThoughts":true}`},
		{"models/gemini-2.5-flash", loop.Reasoning{Effort: "medium"}, `{"thinkingBudget":8192,"includeThoughts":true}`},
		{"gemini-2.5-flash", loop.Reasoning{Effort: "xhigh"}, `{"thinkingBudget":24576,"includeThoughts":true}`},
		{"gemini-3-flash-preview", loop.Reasoning{Effort: "none"}, `{"thinkingLevel":"MINIMAL"}`},
		{"gemini-3.1-pro-preview", loop.Reasoning{Effort: "minimal"}, `{"thinkingLevel":"LOW","includeThoughts":true}`},
		{"gemini-flash-latest", loop.Reasoning{Effort: "medium"}, `{"thinkingLevel":"MEDIUM","includeThoughts":true}`},
		{"gemini-3-flash-preview", loop.Reasoning{Effort: "xhigh"}, `{"thinkingLevel":"HIGH","includeThoughts":true}`},
		{"gemini-3-flash-preview", loop.Reasoning{Effort: "high", Budget: 9}, `{"thinkingBudget":9,"includeThoughts":true}`},
	} {
		t.Run(fmt.Sprintf("%s %+v", c.model, c.reasoning), func(t *testing.T) {
			t.Parallel()
			req := providertest.Ask()
			req.Model, req.Reasoning = c.model, c.reasoning
			var got struct {
				GenerationConfig struct {
					ThinkingConfig json.RawMessage `json:"thinkingConfig"`
				} `json:"generationConfig"`
			}
			if err := json.Unmarshal(sent(t, req).Body, &got); err != nil {
				t.Fatalf("request: %v", err)
			}
			if diff := cmp.Diff(c.want, string(got.GenerationConfig.ThinkingConfig)); diff != "" {
				t.Errorf("thinkingConfig (-want +got):\n%s", diff)
			}
		})
	}
}

// foreign is a transcript that another wire format and a message with nothing in
// it have left traces in.
func foreign(model string) loop.ModelRequest {
	req := providertest.Ask()
	req.Model = model
	req.Messages = []loop.Message{
		user(loop.TextPart("hi")),
		{
			Role:   loop.RoleAssistant,
			Native: &loop.Native{Wire: "openai", JSON: json.RawMessage(`{}`)},
			Parts: []loop.Part{
				{Kind: loop.PartReasoning, Text: "secret"}, loop.TextPart("I look."),
				call("c1-1", "call_a", "look", `{"broken`), call("c1-2", "call_b", "look", `{"a":1}`),
			},
		},
		user(result("c1-1", "call_a", "look", loop.OutcomeInvalidArgs, "bad arguments"), result("c1-2", "call_b", "look", loop.OutcomeOK, "")),
		{Role: loop.RoleAssistant, Native: &loop.Native{Wire: "gemini", JSON: json.RawMessage(`[]`)}},
		user(loop.TextPart(" "), loop.TextPart("Go on.")),
	}
	return req
}

const foreignTail = `{"functionCall":{"name":"look","args":{"a":1}}}]},` +
	`{"role":"user","parts":[{"functionResponse":{"name":"look","response":{"error":"bad arguments"}}},{"functionResponse":{"name":"look","response":{"output":""}}}]},` +
	`{"role":"user","parts":[{"text":"Go on."}]}]}`

// TestForeignAndEmptyMessages: what another format wrote is rebuilt from parts,
// without its call ids, and a message with nothing in it is left out.
func TestForeignAndEmptyMessages(t *testing.T) {
	t.Parallel()
	want := `"contents":[{"role":"user","parts":[{"text":"hi"}]},` +
		`{"role":"model","parts":[{"text":"I look."},{"functionCall":{"name":"look","args":{}}},` + foreignTail
	if body := string(sent(t, foreign("gemini-2.5-pro")).Body); !strings.HasSuffix(body, want) {
		t.Errorf("request is %s", body)
	}
}

// TestForeignCallsAreSigned: the third generation refuses a first call without a
// signature, whoever made it.
func TestForeignCallsAreSigned(t *testing.T) {
	t.Parallel()
	want := `{"text":"I look."},{"functionCall":{"name":"look","args":{}},"thoughtSignature":"skip_thought_signature_validator"},` + foreignTail
	if body := string(sent(t, foreign("gemini-3-pro-preview")).Body); !strings.HasSuffix(body, want) {
		t.Errorf("request is %s", body)
	}

	req := providertest.Ask()
	req.Model = "gemini-3-pro-preview"
	req.Messages = append(req.Messages, loop.Message{
		Role: loop.RoleAssistant, Parts: []loop.Part{call("c1-1", "", "now", `{}`)},
		Native: &loop.Native{Wire: "gemini", JSON: json.RawMessage(`[{"functionCall":{"name":"now","args":{}}}]`)}, // by Gemini 2.0
	}, user(result("c1-1", "", "now", loop.OutcomeOK, "noon")))
	if body := string(sent(t, req).Body); !strings.Contains(body, `{"functionCall":{"name":"now","args":{}},"thoughtSignature":"skip_thought_signature_validator"}`) {
		t.Errorf("request is %s", body)
	}
}

// TestReplayIsExact sends recorded answers back and compares with what the
// recorded client sent, and with the bytes that were kept.
func TestReplayIsExact(t *testing.T) {
	t.Parallel()
	for first, second := range map[string]string{
		"tool-stream-1":           "tool-stream-2",
		"parallel-tools-stream-1": "parallel-tools-stream-2",
		"parallel-tools-1":        "parallel-tools-2",
		"thinking-tool-1":         "thinking-tool-2",
		"vertex-tool-stream-1":    "vertex-tool-stream-2",
	} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
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
			if !strings.Contains(string(body), `{"role":"model","parts":`+string(native)+`}`) {
				t.Errorf("the message was not sent back as it came: %s", body)
			}
			recorded := providertest.Load(t, recordings, second+".json").Request.Body
			if diff := cmp.Diff(calls(t, recorded), calls(t, body)); diff != "" {
				t.Errorf("calls (-recorded +sent):\n%s", diff)
			}
		})
	}
}

// calls lists the calls of the first assistant message. The recorded client makes
// up ids where the model gave none, and sends no thoughts back.
func calls(t *testing.T, body []byte) []map[string]any {
	t.Helper()
	var r struct {
		Contents []struct {
			Role  string           `json:"role"`
			Parts []map[string]any `json:"parts"`
		} `json:"contents"`
	}
	if err := json.Unmarshal(body, &r); err != nil {
		t.Fatalf("request: %v", err)
	}
	var all []map[string]any
	for _, p := range r.Contents[1].Parts {
		if call, ok := p["functionCall"].(map[string]any); ok {
			if id, ok := call["id"].(string); ok && len(id) < 3 {
				delete(call, "id")
			}
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		t.Fatal("no call")
	}
	return all
}

// grown is the transcript of a run after n iterations, of one call each.
func grown(n int) loop.ModelRequest {
	req := transcript()
	req.Messages = []loop.Message{user(loop.TextPart("Count."))}
	for i := range n {
		id, text := fmt.Sprintf("c%d-1", i+1), fmt.Sprintf(`{"n": %d, "why": "a < b & c"}`, i)
		req.Messages = append(req.Messages, loop.Message{
			Role: loop.RoleAssistant, Parts: []loop.Part{call(id, id, "add", text)},
			Native: &loop.Native{Wire: "gemini", JSON: json.RawMessage(fmt.Sprintf(
				`[{"functionCall":{"name":"add","args":{"n":%d},"id":%q},"thoughtSignature":%q}]`, i, id, strings.Repeat("Ab+/", 100)))},
		}, user(result(id, id, "add", loop.OutcomeOK, strings.Repeat("the result is 5; ", 60))))
	}
	for i := range req.Messages {
		req.Messages[i].Seq = int64(i + 1)
	}
	return req
}

// TestPrefix: the request of each iteration begins with all of the request before
// it, and a memo changes nothing but the time it takes.
func TestPrefix(t *testing.T) {
	t.Parallel()
	server := answering(t, textAnswer)
	client := newClient(server.URL, providertest.Tuning{})
	body := func(req loop.ModelRequest) []byte {
		if _, err := client.Generate(t.Context(), req); err != nil {
			t.Fatalf("Generate: %v", err)
		}
		return server.Last(t).Body
	}
	memo := &loop.Memo{}
	var before []byte
	for n := range 8 {
		req := grown(n)
		plain := body(req)
		req.Memo = memo
		if diff := cmp.Diff(string(plain), string(body(req))); diff != "" {
			t.Fatalf("iteration %d with a memo (-without +with):\n%s", n, diff)
		}
		if !bytes.HasPrefix(plain, bytes.TrimSuffix(before, []byte("]}"))) {
			t.Errorf("iteration %d does not begin with the bytes of the one before", n)
		}
		before = plain
	}
	if memo.Value == nil {
		t.Error("nothing was kept in the memo")
	}
}
