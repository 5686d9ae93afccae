package openai_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/openai"
	"github.com/loopd/loopd/internal/provider/providertest"
)

// iterations is the transcript of a run after n iterations, with ids and
// sequence numbers as the core gives them.
func iterations(n int) []loop.Message {
	messages := []loop.Message{user(
		loop.TextPart("What is it?"), media(loop.PartImage, loop.Media{Type: "image/png", Data: bytes.Repeat([]byte("png"), 1000)}),
	)}
	for i := range n {
		id, args := fmt.Sprintf("c%d-1", i+1), fmt.Sprintf(`{"page": %d}`, i)
		native := fmt.Sprintf(`{"role":"assistant","content":null,"tool_calls":[{"id":"call_%d","type":"function","function":{"name":"read","arguments":%q}}]}`, i, args)
		messages = append(messages,
			loop.Message{
				Role: loop.RoleAssistant, Parts: []loop.Part{call(id, fmt.Sprintf("call_%d", i), "read", args)},
				Native: &loop.Native{Wire: "openai", JSON: json.RawMessage(native)},
			},
			user(result(id, fmt.Sprintf("call_%d", i), loop.OutcomeOK, strings.Repeat("text ", 400))),
		)
	}
	for i := range messages {
		messages[i].Seq = int64(i + 1)
	}
	return messages
}

// TestPrefix: the request of an iteration is the beginning of the next one's,
// with a memo and without, for every profile.
func TestPrefix(t *testing.T) {
	t.Parallel()
	for _, p := range openai.Profiles() {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			p.Images = openai.MediaData // each takes the picture, for this test
			config := openai.Config{APIKey: providertest.Key, BaseURL: "https://example.com/v1", Profile: p}
			req := transcript()
			req.Provider, req.Memo = "p", &loop.Memo{}
			plain := req
			plain.Memo = nil
			var before string
			for n := range 6 {
				req.Messages, plain.Messages = iterations(n), iterations(n)
				body := sentWith(t, config, req).body
				if fresh := sentWith(t, config, plain).body; body != fresh {
					t.Fatalf("iteration %d (-without +with memo):\n%s", n+1, cmp.Diff(fresh, body))
				}
				if !strings.HasPrefix(body, before) {
					t.Fatalf("iteration %d changes the prefix:\n%s\n%s", n+1, before, body)
				}
				before = strings.TrimSuffix(body, "]}")
			}
		})
	}
}

// TestMemoNudge: a guard's text joins the newest results, which are encoded again.
func TestMemoNudge(t *testing.T) {
	t.Parallel()
	c := openai.Config{APIKey: providertest.Key, Profile: named(t, "mistral")}
	req := transcript()
	req.Memo = &loop.Memo{}
	req.Messages = iterations(3)
	before := sentWith(t, c, req).body
	nudge := user(loop.TextPart("Do not repeat yourself."))
	nudge.Seq = 99
	req.Messages = append(req.Messages, nudge)
	after := sentWith(t, c, req).body
	if !strings.HasPrefix(after, strings.TrimSuffix(before, "]}")) || !strings.HasSuffix(after, `{"role":"assistant","content":"I have read the results."},{"role":"user","content":"Do not repeat yourself."}]}`) {
		t.Errorf("request is %s", after)
	}
}

// TestResultsFollowCalls: each call has one result, in the order of the calls,
// whatever the order and number of results, with a memo too.
func TestResultsFollowCalls(t *testing.T) {
	t.Parallel()
	tail := []loop.Message{
		{Role: loop.RoleAssistant, Parts: []loop.Part{call("c9-1", "a", "add", `{}`), call("c9-2", "b", "add", `{}`), call("c9-3", "", "add", `{}`)}},
		user(result("c1-7", "z", loop.OutcomeOK, "nobody asked"), result("c9-2", "b", loop.OutcomeOK, "2"), loop.TextPart("Go on.")),
		user(result("c9-2", "b", loop.OutcomeOK, "2 again"), result("c9-1", "a", loop.OutcomeOK, "1")),
	}
	want := `{"role":"tool","tool_call_id":"c9-1","content":"1"},{"role":"tool","tool_call_id":"c9-2","content":"2"},` +
		`{"role":"tool","tool_call_id":"c9-3","content":"The result of this call is not known: it may or may not have run."},{"role":"user","content":"Go on."}]}`
	for i := range tail {
		tail[i].Seq = int64(50 + i)
	}
	req := transcript()
	req.Memo = &loop.Memo{}
	for _, n := range []int{2, 3} { // the second request finds the calls in the memo
		req.Messages = append(iterations(2), tail[:n]...)
		body := string(sent(t, req).Body)
		if n == len(tail) && !strings.HasSuffix(body, want) {
			t.Errorf("request is %s", body)
		}
	}
	req.Messages = []loop.Message{user(result("c1-1", "a", loop.OutcomeOK, "nobody asked"), loop.TextPart("hi"))}
	if body := string(sent(t, req).Body); strings.Contains(body, "nobody") {
		t.Errorf("request is %s", body)
	}
}

// TestReusedIDs: some gateways begin to count calls anew in every answer. Each
// result follows its own call.
func TestReusedIDs(t *testing.T) {
	t.Parallel()
	req := transcript()
	req.Messages = []loop.Message{
		user(loop.TextPart("go")),
		{Role: loop.RoleAssistant, Parts: []loop.Part{call("c1-1", "call_0", "add", `{}`)}},
		user(result("c1-1", "call_0", loop.OutcomeOK, "first")),
		{Role: loop.RoleAssistant, Parts: []loop.Part{call("c2-1", "call_0", "mul", `{}`)}},
		user(result("c2-1", "call_0", loop.OutcomeOK, "second")),
	}
	want := `{"role":"user","content":"go"},` +
		`{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"add","arguments":"{}"}}]},{"role":"tool","tool_call_id":"call_0","content":"first"},` +
		`{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"mul","arguments":"{}"}}]},{"role":"tool","tool_call_id":"call_0","content":"second"}]}`
	if body := string(sent(t, req).Body); !strings.HasSuffix(body, want) {
		t.Errorf("request is %s", body)
	}
}

// TestMalformedArguments: they are kept as the model wrote them, and sent as an empty object.
func TestMalformedArguments(t *testing.T) {
	t.Parallel()
	for _, args := range []string{`[1]`, `"x"`, `7`, `{"a":1}{"b":2}`, `{'a':1}`, `null`} {
		quoted, err := json.Marshal(args)
		if err != nil {
			t.Fatalf("Marshal: %v", err)
		}
		answer, err := generate(t, http.StatusOK, stream(calls(`{"index":0,"id":"1","function":{"name":"a","arguments":`+string(quoted)+`}}`), end(`"tool_calls"`)))
		if err != nil || answer.Finish != loop.FinishToolCalls || answer.Message.Calls()[0].Args != args {
			t.Errorf("%s: finish %q, calls %v, error %v", args, answer.Finish, answer.Message.Calls(), err)
		}
		req := transcript()
		answer.Message.Parts[0].Call.ID = "c1-1"
		req.Messages = []loop.Message{user(loop.TextPart("go")), answer.Message, user(result("c1-1", "1", loop.OutcomeInvalidArgs, "no object"))}
		if body := string(sent(t, req).Body); !strings.Contains(body, `"function":{"name":"a","arguments":"{}"}`) {
			t.Errorf("%s: request is %s", args, body)
		}
	}
}

// TestThinkingIsReplayed: content that came as a list goes back as one.
func TestThinkingIsReplayed(t *testing.T) {
	t.Parallel()
	answer, err := generate(t, http.StatusOK, stream(
		`{"index":0,"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"h"}]}]}}`,
		`{"index":0,"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"m"}]}]}}`,
		`{"index":0,"delta":{"content":"o"}}`, `{"index":0,"delta":{"content":"k"}}`, end(`"stop"`),
	))
	want := `{"role":"assistant","content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"ok"}]}`
	if err != nil || answer.Message.Text() != "ok" || string(answer.Message.Native.JSON) != want {
		t.Errorf("text %q, native %s, error %v", answer.Message.Text(), answer.Message.Native.JSON, err)
	}
}

// TestReasoningDetailsAreJoined: they come in fragments and go back as the
// entries that they are fragments of.
func TestReasoningDetailsAreJoined(t *testing.T) {
	t.Parallel()
	answer, err := generate(t, http.StatusOK, stream(
		`{"index":0,"delta":{"reasoning":"h","reasoning_details":[{"type":"reasoning.text","text":"h","index":0,"format":null}]}}`,
		`{"index":0,"delta":{"reasoning":"m","reasoning_details":[{"type":"reasoning.text","text":"m","index":0}]}}`,
		`{"index":0,"delta":{"reasoning_details":[{"type":"reasoning.text","signature":"s","index":0,"format":"f"}]}}`,
		`{"index":0,"delta":{"reasoning_details":[{"type":"reasoning.summary","summary":"x","index":1},{"type":"reasoning.encrypted","data":"e","index":2},{"type":"reasoning.encrypted","data":"e","index":2},7]}}`,
		`{"index":0,"delta":{"content":"ok"},"finish_reason":"stop"}`,
	))
	want := `"reasoning_details":[{"type":"reasoning.text","text":"hm","index":0,"format":"f","signature":"s"},` +
		`{"type":"reasoning.summary","summary":"x","index":1},{"type":"reasoning.encrypted","data":"e","index":2},{"type":"reasoning.encrypted","data":"e","index":2},7]`
	if err != nil || !strings.Contains(string(answer.Message.Native.JSON), want) {
		t.Errorf("native is %s, error %v", answer.Message.Native.JSON, err)
	}
}

// recorded serves a recording.
func recorded(t *testing.T, name string) *providertest.Server {
	t.Helper()
	return providertest.Serve(t, providertest.Load(t, os.DirFS("testdata"), name+".json"))
}
