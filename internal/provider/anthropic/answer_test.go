package anthropic_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/providertest"
)

const start = `data: {"type":"message_start","message":{"id":"msg_1","model":"m","usage":{"input_tokens":30,"cache_read_input_tokens":20,` +
	`"cache_creation_input_tokens":12,"cache_creation":{"ephemeral_5m_input_tokens":2,"ephemeral_1h_input_tokens":10},"output_tokens":1}}}` + "\n\n"

// ending is the end of a stream.
func ending(reason, usage string) string {
	return fmt.Sprintf("data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":%s},\"usage\":%s}\n\ndata: {\"type\":\"message_stop\"}\n\n", reason, usage)
}

func toolUse(index int, args string) string {
	return fmt.Sprintf("data: {\"type\":\"content_block_start\",\"index\":%d,\"content_block\":{\"type\":\"tool_use\",\"id\":\"toolu_%d\",\"name\":\"write\",\"input\":{}}}\n\n"+
		"data: {\"type\":\"content_block_delta\",\"index\":%d,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":%q}}\n\n", index, index, index, args)
}

func generate(t *testing.T, stream string) (loop.ModelAnswer, error) {
	t.Helper()
	return newClient(answering(t, stream).URL, providertest.Tuning{}).Generate(t.Context(), providertest.Ask())
}

func TestStopReasons(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, blocks, reason string
		want                 loop.Finish
	}{
		{"end", "", `"end_turn"`, loop.FinishDone},
		{"context window", "", `"model_context_window_exceeded"`, loop.FinishContext},
		{"new word", "", `"compaction"`, loop.FinishUnknown},
		{"none", "", `null`, loop.FinishUnknown},
		{"tool_use without a call", "", `"tool_use"`, loop.FinishUnknown},
		{"end with a whole call", toolUse(0, `{"a":1}`), `"end_turn"`, loop.FinishToolCalls},
		{"call that is cut", toolUse(0, `{"a":1}`) + toolUse(1, `{"text":"half`), `"max_tokens"`, loop.FinishTruncated},
		{"cut call in disguise", toolUse(0, `{"text":"half`), `"tool_use"`, loop.FinishTruncated},
		{"wrong but whole arguments", toolUse(0, `{"a" 1}`), `"tool_use"`, loop.FinishToolCalls},
		{"refused with a call", toolUse(0, `{}`), `"refusal"`, loop.FinishRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			answer, err := generate(t, start+c.blocks+ending(c.reason, `{"output_tokens":9}`))
			if err != nil || answer.Finish != c.want {
				t.Errorf("finish %q, error %v; want %q", answer.Finish, err, c.want)
			}
		})
	}
}

// TestCutArguments: the exact text is kept for people, the history gets an object.
func TestCutArguments(t *testing.T) {
	t.Parallel()
	answer, err := generate(t, start+toolUse(0, `{"text":"half`)+ending(`"max_tokens"`, `{"output_tokens":9}`))
	if err != nil {
		t.Fatalf("Generate: %v", err)
	}
	want := []loop.ToolCall{{ProviderID: "toolu_0", Name: "write", Args: `{"text":"half`}}
	if diff := cmp.Diff(want, answer.Message.Calls()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if native := string(answer.Message.Native.JSON); native != `[{"type":"tool_use","id":"toolu_0","name":"write","input":{}}]` {
		t.Errorf("native is %s", native)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	begun := loop.Usage{InputUncached: 30, CacheRead: 20, CacheWrite5m: 2, CacheWrite1h: 10, Output: 1}
	done := begun
	done.Output, done.Reasoning = 5, 4
	for _, c := range []struct {
		name, stream string
		want         loop.Usage
		missing      bool
	}{
		{"complete", start + ending(`"end_turn"`, `{"output_tokens":9,"output_tokens_details":{"thinking_tokens":4}}`), done, false},
		{"the end reports none", start + ending(`"end_turn"`, `null`), begun, true},
		{"no report at all", strings.ReplaceAll(textAnswer, "usage", "other"), loop.Usage{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			answer, err := generate(t, c.stream)
			if err != nil || answer.Usage != c.want || answer.UsageMissing != c.missing {
				t.Errorf("got %+v, missing %v, error %v; want %+v, %v", answer.Usage, answer.UsageMissing, err, c.want, c.missing)
			}
		})
	}
	t.Run("cut stream", func(t *testing.T) {
		t.Parallel()
		_, err := generate(t, start)
		e, ok := errors.AsType[*loop.ModelError](err)
		if !ok || e.Class != loop.ErrorMidStream || e.Usage != begun {
			t.Errorf("got %+v, want mid_stream with %+v", err, begun)
		}
	})
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   loop.ErrorClass
	}{
		{"monthly cap", 429, `{"type":"error","error":{"type":"rate_limit_error","message":"no","details":{"error_code":"enforced_spend_limit_reached"}}}`, loop.ErrorQuota},
		{"no credit", 400, `{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API."}}`, loop.ErrorQuota},
		{"own limit", 400, `{"type":"error","error":{"type":"invalid_request_error","message":"You have reached your specified API usage limits."}}`, loop.ErrorQuota},
		{"answer does not fit", 400, `{"type":"error","error":{"type":"invalid_request_error","message":"input length and max_tokens exceed context limit: 1 + 2 > 2"}}`, loop.ErrorContext},
		{"overloaded before the start", 200, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n", loop.ErrorThrottle},
		{"overloaded after the start", 200, start + "data: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n", loop.ErrorMidStream},
		{"delta of no block", 200, start + "data: {\"type\":\"content_block_delta\",\"index\":3,\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\n" + ending(`"end_turn"`, `{}`), loop.ErrorMidStream},
		{"key in the answer", 401, `{"error":{"message":"test-key-123 is not valid"}}`, loop.ErrorAuth},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := providertest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				if _, err := w.Write([]byte(c.body)); err != nil {
					t.Errorf("server: %v", err)
				}
			}))
			_, err := newClient(server.URL, providertest.Tuning{}).Generate(t.Context(), providertest.Ask())
			e, ok := errors.AsType[*loop.ModelError](err)
			if !ok || e.Class != c.want {
				t.Fatalf("got %v, want class %q", err, c.want)
			}
			if strings.Contains(e.Error(), "test-key-123") {
				t.Errorf("the key is in the error: %v", e)
			}
		})
	}
}
