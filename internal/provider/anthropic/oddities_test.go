package anthropic_test

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/providertest"
)

// replay answers with a recording and returns what the adapter made of it, with
// the fragments it passed on.
func replay(t *testing.T, name string) (loop.ModelAnswer, []loop.Delta) {
	t.Helper()
	server := providertest.Serve(t, providertest.Load(t, os.DirFS("testdata"), name+".json"))
	req := providertest.Ask()
	var deltas []loop.Delta
	req.Emit = func(d loop.Delta) { deltas = append(deltas, d) }
	answer, err := newClient(server.URL, providertest.Tuning{}).Generate(t.Context(), req)
	if err != nil {
		t.Fatalf("Generate: %v", err)
	}
	return answer, deltas
}

// kinds lists the types of the blocks in the native form.
func kinds(t *testing.T, m loop.Message) []string {
	t.Helper()
	var blocks []struct{ Type string }
	if err := json.Unmarshal(m.Native.JSON, &blocks); err != nil {
		t.Fatalf("native: %v", err)
	}
	var all []string
	for _, b := range blocks {
		all = append(all, b.Type)
	}
	return all
}

// TestDuplicateMessageStart: a proxy repeats the event; nothing is counted or
// written twice.
func TestDuplicateMessageStart(t *testing.T) {
	t.Parallel()
	answer, deltas := replay(t, "duplicate-message-start")
	if text := answer.Message.Text(); text != "Hello, World!" || len(deltas) != 1 {
		t.Errorf("text %q, fragments %v", text, deltas)
	}
	if want := (loop.Usage{InputUncached: 17, Output: 227}); answer.Usage != want {
		t.Errorf("usage %+v, want %+v", answer.Usage, want)
	}

	late := strings.Replace(textAnswer, `data: {"type":"message_delta"`, "data: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"model\":\"m\",\"usage\":{\"input_tokens\":3,\"output_tokens\":1}}}\n\n"+`data: {"type":"message_delta"`, 1)
	answer, err := generate(t, late)
	if err != nil || answer.Message.Text() != "ok" || answer.Usage.Output != 2 {
		t.Errorf("repeated behind a block: %q, %+v, %v", answer.Message.Text(), answer.Usage, err)
	}
}

// TestFallbackModel: the answer names who wrote it, and the marker block of the
// switch goes back with the rest.
func TestFallbackModel(t *testing.T) {
	t.Parallel()
	answer, _ := replay(t, "fallback-model")
	if answer.ResponseModel != "claude-opus-4-8" {
		t.Errorf("answered by %q", answer.ResponseModel)
	}
	if diff := cmp.Diff([]string{"fallback", "text"}, kinds(t, answer.Message)); diff != "" {
		t.Errorf("native blocks (-want +got):\n%s", diff)
	}
}

// TestToolWithoutArguments: no fragment, or an empty one, is the empty object.
func TestToolWithoutArguments(t *testing.T) {
	t.Parallel()
	answer, deltas := replay(t, "tool-no-args-stream")
	if calls := answer.Message.Calls(); len(calls) != 1 || calls[0].Args != "{}" || answer.Finish != loop.FinishToolCalls {
		t.Errorf("calls %+v, finish %q", calls, answer.Finish)
	}
	if !strings.Contains(string(answer.Message.Native.JSON), `"input":{}`) {
		t.Errorf("native is %s", answer.Message.Native.JSON)
	}
	want := loop.Delta{Kind: loop.PartToolCall, Tool: "updateIssueList"}
	if diff := cmp.Diff(want, deltas[len(deltas)-1]); diff != "" {
		t.Errorf("last fragment (-want +got):\n%s", diff)
	}
}

// TestRedactedThinking: encrypted thinking is nobody's text, but goes back.
func TestRedactedThinking(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"redacted-thinking-1", "redacted-thinking-stream"} {
		answer, deltas := replay(t, name)
		if got := kinds(t, answer.Message); got[0] != "redacted_thinking" {
			t.Errorf("%s: native blocks %v", name, got)
		}
		for _, d := range deltas {
			if d.Kind != loop.PartText {
				t.Errorf("%s: fragment %+v", name, d)
			}
		}
	}
}

// TestServerToolsAreNativeOnly: what the provider ran itself is no call of ours.
func TestServerToolsAreNativeOnly(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]string{"server-tool": "bash_code_execution_tool_result", "pause-turn-stream": "web_search_tool_result"} {
		answer, deltas := replay(t, name)
		if calls := answer.Message.Calls(); len(calls) != 0 {
			t.Errorf("%s: calls %+v", name, calls)
		}
		if got := strings.Join(kinds(t, answer.Message), " "); !strings.Contains(got, "server_tool_use") || !strings.Contains(got, kind) {
			t.Errorf("%s: native blocks %s", name, got)
		}
		for _, d := range deltas {
			if d.Kind == loop.PartToolCall {
				t.Errorf("%s: fragment %+v", name, d)
			}
		}
	}
}

// TestBlankTextIsNotSentBack: one model begins with two line breaks, which the API
// refuses in a history.
func TestBlankTextIsNotSentBack(t *testing.T) {
	t.Parallel()
	answer, _ := replay(t, "thinking")
	if diff := cmp.Diff([]string{"thinking", "text"}, kinds(t, answer.Message)); diff != "" {
		t.Errorf("native blocks (-want +got):\n%s", diff)
	}
}

// TestUnknownEvents: new kinds are skipped, whatever their members look like.
func TestUnknownEvents(t *testing.T) {
	t.Parallel()
	odd := "event: vnd\ndata: {\"type\":\"vnd\",\"delta\":\"text\",\"index\":\"a\",\"usage\":7}\n\ndata: {\"type\":\"ping\",\"message\":\"\"}\n\n"
	answer, err := generate(t, strings.Replace(textAnswer, "data: {\"type\":\"content_block_start\"", odd+"data: {\"type\":\"content_block_start\"", 1))
	if err != nil || answer.Message.Text() != "ok" {
		t.Errorf("got %q, %v", answer.Message.Text(), err)
	}
	if _, err := generate(t, strings.Replace(textAnswer, `"index":0`, `"index":"a"`, 1)); err == nil {
		t.Error("a broken event of a known kind passed for whole")
	}
}

// TestDeltas: the fragments of every recorded answer add up to its message.
func TestDeltas(t *testing.T) {
	t.Parallel()
	recordings := os.DirFS("testdata")
	names, err := fs.Glob(recordings, "*.json")
	if err != nil || len(names) == 0 {
		t.Fatalf("list recordings: %v", err)
	}
	for _, file := range names {
		name := strings.TrimSuffix(file, ".json")
		if wants[name].Class != "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, deltas := replay(t, name)
			sum := map[loop.PartKind]string{}
			for _, p := range answer.Message.Parts {
				switch p.Kind {
				case loop.PartToolCall:
					sum[p.Kind] += "\n" + p.Call.Name + " " + strings.TrimPrefix(p.Call.Args, "{}")
				default:
					sum[p.Kind] += p.Text
				}
			}
			got := map[loop.PartKind]string{}
			for _, d := range deltas {
				if d.Tool != "" {
					got[d.Kind] += "\n" + d.Tool + " "
				}
				got[d.Kind] += strings.TrimPrefix(d.Text, "{}")
			}
			for kind, text := range sum {
				if text == "" {
					delete(sum, kind)
				}
			}
			if diff := cmp.Diff(sum, got); diff != "" {
				t.Errorf("fragments (-message +fragments):\n%s", diff)
			}
		})
	}
}

// TestNobodyWatches: Emit is optional.
func TestNobodyWatches(t *testing.T) {
	t.Parallel()
	if _, err := generate(t, start+toolUse(0, `{"a":1}`)+ending(`"refusal"`, `{"output_tokens":9}`)); err != nil {
		t.Errorf("Generate: %v", err)
	}
}

// TestThinksInSilence: a thinking block that is not shown begins, and then nothing
// comes for longer than a stream may otherwise be idle.
func TestThinksInSilence(t *testing.T) {
	t.Parallel()
	const idle = 100 * time.Millisecond
	begin := start + `data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}` + "\n\n"
	end := `data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s=="}}` + "\n\n" + ending(`"end_turn"`, `{"output_tokens":9}`)
	server := providertest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(begin))
		_ = http.NewResponseController(w).Flush()
		<-time.After(3 * idle)
		_, _ = w.Write([]byte(end))
	}))
	answer, err := newClient(server.URL, providertest.Tuning{IdleTimeout: idle}).Generate(t.Context(), providertest.Ask())
	if err != nil || string(answer.Message.Native.JSON) != `[{"type":"thinking","thinking":"","signature":"s=="}]` {
		t.Errorf("got %+v, %v", answer.Message.Native, err)
	}
}
