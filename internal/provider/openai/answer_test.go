package openai_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/providertest"
)

// stream writes choices as the chunks of a stream, with a usage chunk and the end mark.
func stream(choices ...string) string {
	var b strings.Builder
	for _, c := range choices {
		b.WriteString(`data: {"id":"x","model":"m","choices":[` + c + "]}\n\n")
	}
	b.WriteString(`data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}` + "\n\ndata: [DONE]\n\n")
	return b.String()
}

// calls is a choice with fragments of calls.
func calls(fragments string) string {
	return `{"index":0,"delta":{"tool_calls":[` + fragments + `]}}`
}

// end is a choice with a finish reason.
func end(reason string) string { return `{"index":0,"delta":{},"finish_reason":` + reason + `}` }

// modelError is err as every failure of a call is.
func modelError(t *testing.T, err error) *loop.ModelError {
	t.Helper()
	e, ok := errors.AsType[*loop.ModelError](err)
	if !ok {
		t.Fatalf("error is %T (%v), want *loop.ModelError", err, err)
	}
	return e
}

func generate(t *testing.T, status int, body string) (loop.ModelAnswer, error) {
	t.Helper()
	return newClient(answering(t, status, body).URL, providertest.Tuning{}).Generate(t.Context(), providertest.Ask())
}

// TestCallFragments: how servers deviate in streaming calls.
func TestCallFragments(t *testing.T) {
	t.Parallel()
	ab := []loop.ToolCall{{ProviderID: "1", Name: "a", Args: `{"x":1}`}, {ProviderID: "2", Name: "b", Args: `{}`}}
	for _, c := range []struct {
		name   string
		chunks []string
		want   []loop.ToolCall
	}{
		{"by index, interleaved, not from 0", []string{
			calls(`{"index":3,"id":"1","function":{"name":"a","arguments":"{\"x\""}},{"index":7,"id":"2","function":{"name":"b"}}`),
			calls(`{"index":3,"function":{"name":"","arguments":":1}"}}`),
		}, ab},
		{"index 0 for all", []string{
			calls(`{"index":0,"id":"1","function":{"name":"a","arguments":"{\"x\":1}"}}`),
			calls(`{"index":0,"id":"2","function":{"name":"b","arguments":"{}"}}`),
		}, ab},
		{"no index, ids", []string{
			calls(`{"id":"1","function":{"name":"a","arguments":"{\"x\":"}}`),
			calls(`{"function":{"arguments":"1}"}}`),
			calls(`{"id":"2","function":{"name":"b","arguments":null}}`),
		}, ab},
		{"no index, no ids", []string{
			calls(`{"function":{"name":"a","arguments":"{\"x\":1}"}},{"id":"","function":{"name":"a","arguments":"{}"}}`),
		}, []loop.ToolCall{{Name: "a", Args: `{"x":1}`}, {Name: "a", Args: `{}`}}},
		{"arguments as an object", []string{
			calls(`{"index":0,"id":"1","function":{"name":"a","arguments":{"x":1}}},{"index":1,"id":"2","function":{"name":"b","arguments":""}}`),
		}, ab},
		{"id and name again in every piece, another id too", []string{
			calls(`{"index":0,"id":"1","function":{"name":"a","arguments":"{\"x\""}}`),
			calls(`{"index":0,"id":"1","function":{"name":"a","arguments":":1}"}}`),
			calls(`{"index":1,"id":"2","function":{"name":"b","arguments":"{"}}`),
			calls(`{"index":1,"id":"9","function":{"arguments":"}"}}`),
		}, ab},
		{"name in pieces after arguments", []string{
			calls(`{"index":0,"id":"1","function":{"arguments":"{}"}}`),
			calls(`{"index":0,"function":{"name":"get_"}}`),
			calls(`{"index":0,"function":{"name":"time"}}`),
		}, []loop.ToolCall{{ProviderID: "1", Name: "get_time", Args: `{}`}}},
		{"equal ids", []string{
			calls(`{"index":0,"id":"call_0","function":{"name":"a","arguments":"{}"}},{"index":1,"id":"call_0","function":{"name":"b","arguments":"{}"}}`),
		}, []loop.ToolCall{{ProviderID: "call_0", Name: "a", Args: `{}`}, {ProviderID: "call_0", Name: "b", Args: `{}`}}},
		{"20-digit numbers", []string{
			calls(`{"index":0,"id":"1","function":{"name":"a","arguments":"{\"x\": 20000000000000000001}"}}`),
		}, []loop.ToolCall{{ProviderID: "1", Name: "a", Args: `{"x": 20000000000000000001}`}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			answer, err := generate(t, http.StatusOK, stream(append(c.chunks, end(`"tool_calls"`))...))
			if err != nil {
				t.Fatalf("Generate: %v", err)
			}
			if diff := cmp.Diff(c.want, answer.Message.Calls()); diff != "" || answer.Finish != loop.FinishToolCalls {
				t.Errorf("finish %q, calls (-want +got):\n%s", answer.Finish, diff)
			}
		})
	}
}

func TestFinishReasons(t *testing.T) {
	t.Parallel()
	whole := calls(`{"index":0,"id":"1","function":{"name":"a","arguments":"{}"}}`)
	cut := calls(`{"index":1,"id":"2","function":{"name":"b","arguments":"{\"x"}}`)
	for _, c := range []struct {
		name    string
		choices []string
		want    loop.Finish
	}{
		{"stop", []string{end(`"stop"`)}, loop.FinishDone},
		{"stop with whole calls", []string{whole, end(`"stop"`)}, loop.FinishToolCalls},
		{"length", []string{whole, end(`"length"`)}, loop.FinishTruncated},
		{"length in disguise", []string{whole, cut, end(`"tool_calls"`)}, loop.FinishTruncated},
		{"stop after a cut call", []string{cut, end(`"stop"`)}, loop.FinishTruncated},
		{"tool_calls without a call", []string{end(`"tool_calls"`)}, loop.FinishUnknown},
		{"call without a name", []string{calls(`{"index":0,"id":"1","function":{"arguments":"{}"}}`), end(`"tool_calls"`)}, loop.FinishUnknown},
		{"filter", []string{whole, end(`"content_filter"`)}, loop.FinishRefused},
		{"refusal with a call", []string{whole, `{"index":0,"delta":{"refusal":"no"}}`, end(`"tool_calls"`)}, loop.FinishRefused},
		{"new word", []string{end(`"insufficient_system_resource"`)}, loop.FinishUnknown},
		{"end mark without a reason", []string{whole}, loop.FinishUnknown},
		{"reason is not taken back", []string{end(`"stop"`), end(`null`), end(`""`)}, loop.FinishDone},
		{"second choice is ignored", []string{end(`"stop"`), `{"index":1,"delta":{"content":"x"},"finish_reason":"length"}`}, loop.FinishDone},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			answer, err := generate(t, http.StatusOK, stream(c.choices...))
			if err != nil || answer.Finish != c.want {
				t.Errorf("finish %q, error %v; want %q", answer.Finish, err, c.want)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, usage string
		want        loop.Usage
		missing     bool
	}{
		{"none", `null`, loop.Usage{}, true},
		{"no completion", `{"prompt_tokens":3}`, loop.Usage{InputUncached: 3}, true},
		{"cache and reasoning inside", `{"prompt_tokens":100,"completion_tokens":50,"total_tokens":150,"prompt_tokens_details":{"cached_tokens":60,"cache_write_tokens":30},"completion_tokens_details":{"reasoning_tokens":40}}`,
			loop.Usage{InputUncached: 10, CacheRead: 60, CacheWrite5m: 30, Output: 10, Reasoning: 40}, false},
		{"reasoning outside", `{"prompt_tokens":10,"completion_tokens":5,"total_tokens":22,"completion_tokens_details":{"reasoning_tokens":7}}`,
			loop.Usage{InputUncached: 10, Output: 5, Reasoning: 7}, false},
		{"details above the totals", `{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":90},"completion_tokens_details":{"reasoning_tokens":70}}`,
			loop.Usage{CacheRead: 10, Output: 5, Reasoning: 70}, true},
		{"more reasoning than completion, in the total", `{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"completion_tokens_details":{"reasoning_tokens":70}}`,
			loop.Usage{InputUncached: 10, Reasoning: 5}, false},
		{"negative", `{"prompt_tokens":-1,"completion_tokens":-5,"total_tokens":-6}`, loop.Usage{}, true},
		{"counts of other types", `{"prompt_tokens":3.0,"completion_tokens":"5","prompt_tokens_details":{"cached_tokens":null}}`, loop.Usage{InputUncached: 3}, true},
		{"no object", `[1]`, loop.Usage{}, true},
		{"details of another type", `{"prompt_tokens":3,"completion_tokens":1,"prompt_tokens_details":[]}`, loop.Usage{}, true},
		{"other names", `{"prompt_tokens":10,"completion_tokens":5,"prompt_cache_hit_tokens":4}`, loop.Usage{InputUncached: 6, CacheRead: 4, Output: 5}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			answer, err := generate(t, http.StatusOK, `{"choices":[{"index":0,"finish_reason":"stop","message":{"content":"ok"}}],"usage":`+c.usage+`}`)
			if err != nil || answer.Usage != c.want || answer.UsageMissing != c.missing {
				t.Errorf("got %+v, missing %v, error %v; want %+v, %v", answer.Usage, answer.UsageMissing, err, c.want, c.missing)
			}
		})
	}
}

// TestOddMembers: members of another type than documented do not cost the answer.
func TestOddMembers(t *testing.T) {
	t.Parallel()
	answer, err := generate(t, http.StatusOK, stream(
		`{"index":0,"delta":{"content":[{"type":"text","text":"o"},{"type":"thinking","thinking":[]}],"reasoning":{"text":"x"},"refusal":false}}`,
		`{"index":0,"delta":{"content":"k"},"finish_reason":"stop"}`,
	))
	if err != nil || answer.Message.Text() != "ok" || answer.Finish != loop.FinishDone {
		t.Errorf("text %q, finish %q, error %v", answer.Message.Text(), answer.Finish, err)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   loop.ErrorClass
	}{
		{"no money", 429, `{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}`, loop.ErrorQuota},
		{"quota that passes", 429, `[{"error":{"code":429,"message":"You exceeded your current quota","status":"RESOURCE_EXHAUSTED"}}]`, loop.ErrorThrottle},
		{"no balance", 402, `{"error":{"message":"Insufficient Balance"}}`, loop.ErrorQuota},
		{"context in words", 400, `{"error":{"message":"This model's maximum prompt length is 131072 but the request contains 200000 tokens."}}`, loop.ErrorContext},
		{"context in a list of details", 422, `{"detail":[{"msg":"the prompt is too long"}]}`, loop.ErrorContext},
		{"key", 400, `[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key."}}]`, loop.ErrorAuth},
		{"object in a 200", 200, `{"error":{"message":"Provider returned error","code":502}}`, loop.ErrorServer},
		{"text in a 200", 200, `{"error":"model is loading"}`, loop.ErrorMidStream},
		{"first event", 200, `data: {"error":{"type":"rate_limit_exceeded","message":"slow down"}}` + "\n\n", loop.ErrorThrottle},
		{"later event", 200, `data: {"choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n" + `data: {"error":{"type":"insufficient_quota","message":"no"}}` + "\n\ndata: [DONE]\n\n", loop.ErrorMidStream},
		{"only the end mark", 200, "data: [DONE]\n\n", loop.ErrorMidStream},
		{"key in the answer", 401, `{"error":{"message":"Incorrect API key provided: test-key-123."}}`, loop.ErrorAuth},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := generate(t, c.status, c.body)
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

// TestSilenceWhileThinking: many servers say at once that an answer has begun,
// and then nothing until their model has thought. Half an answer gets no such
// patience: the suite tries that.
func TestSilenceWhileThinking(t *testing.T) {
	t.Parallel()
	const idle = 50 * time.Millisecond
	server := providertest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		send := func(s string) {
			if _, err := w.Write([]byte(s)); err != nil {
				t.Errorf("server: %v", err)
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Errorf("server: %v", err)
			}
		}
		send(`data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n")
		<-time.After(4 * idle)
		send(stream(`{"index":0,"delta":{"content":"ok"}}`, end(`"stop"`)))
	}))
	client := newClient(server.URL, providertest.Tuning{FirstByteTimeout: time.Minute, IdleTimeout: idle})
	answer, err := client.Generate(t.Context(), providertest.Ask())
	if err != nil || answer.Message.Text() != "ok" {
		t.Errorf("text %q, error %v", answer.Message.Text(), err)
	}
}
