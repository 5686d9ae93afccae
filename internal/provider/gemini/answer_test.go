package gemini_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/gemini"
	"github.com/loopd/loopd/internal/provider/providertest"
)

func generate(t *testing.T, stream string) (loop.ModelAnswer, error) {
	t.Helper()
	return newClient(answering(t, stream).URL, providertest.Tuning{}).Generate(t.Context(), providertest.Ask())
}

// event is one chunk with the parts.
func event(parts string) string {
	return fmt.Sprintf("data: {\"candidates\":[{\"content\":{\"parts\":[%s],\"role\":\"model\"},\"index\":0}]}\r\n\r\n", parts)
}

// ending is the last chunk.
func ending(reason, usage string) string {
	return fmt.Sprintf("data: {\"candidates\":[{\"finishReason\":%q,\"index\":0}],\"usageMetadata\":%s}\r\n\r\n", reason, usage)
}

const (
	smallUsage = `{"promptTokenCount":3,"candidatesTokenCount":1,"totalTokenCount":4}`
	writeCall  = `{"functionCall":{"name":"write","args":{"a":1}}}`
)

func TestFinishReasons(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		parts, reason string
		want          loop.Finish
	}{
		{`{"text":"x"}`, "STOP", loop.FinishDone},
		{``, "STOP", loop.FinishDone},
		{writeCall, "STOP", loop.FinishToolCalls},
		{`{"functionCall":{"args":{}}}`, "STOP", loop.FinishUnknown},
		{writeCall, "MAX_TOKENS", loop.FinishTruncated},
		{writeCall, "SAFETY", loop.FinishRefused},
		{`{"text":"x"}`, "RECITATION", loop.FinishRefused},
		{``, "BLOCKLIST", loop.FinishRefused},
		{``, "PROHIBITED_CONTENT", loop.FinishRefused},
		{``, "SPII", loop.FinishRefused},
		{``, "LANGUAGE", loop.FinishRefused},
		{``, "IMAGE_SAFETY", loop.FinishRefused},
		{writeCall, "UNEXPECTED_TOOL_CALL", loop.FinishUnknown},
		{writeCall, "TOO_MANY_TOOL_CALLS", loop.FinishUnknown},
		{`{"text":"x"}`, "OTHER", loop.FinishUnknown},
		{`{"text":"x"}`, "NEW_WORD", loop.FinishUnknown},
	} {
		t.Run(c.reason+" "+c.parts, func(t *testing.T) {
			t.Parallel()
			answer, err := generate(t, event(c.parts)+ending(c.reason, smallUsage))
			if err != nil || answer.Finish != c.want || answer.NativeFinish != c.reason {
				t.Errorf("finish %q (%s), error %v; want %q", answer.Finish, answer.NativeFinish, err, c.want)
			}
		})
	}
}

// TestMalformedCall: the tokens are spent, and the same request may succeed.
func TestMalformedCall(t *testing.T) {
	t.Parallel()
	_, err := generate(t, event(`{"text":"I will call"}`)+ending("MALFORMED_FUNCTION_CALL", smallUsage))
	e, ok := errors.AsType[*loop.ModelError](err)
	if !ok || !e.Class.Retryable() || e.Class.Free() {
		t.Fatalf("error is %v", err)
	}
	if diff := cmp.Diff(loop.Usage{InputUncached: 3, Output: 1}, e.Usage); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
}

// TestParts: signatures may come with the first text, with the last and empty one,
// or with a call. Text without one is joined, everything else stays as it came.
func TestParts(t *testing.T) {
	t.Parallel()
	stream := event(`{"text":"First I ","thought":true}`) + event(`{"text":"think.","thought": true}`) +
		event(`{"text": "Here","thoughtSignature":"a+/="}`) + event(`{"text":" it"}`) + event(`{"text":" is:"}, {"text":""}`) +
		event(`{"executableCode":{"language":"PYTHON","code":"1 < 2"}}`) + event(`{"text":"Yes."}`) +
		event(`{"functionCall":{"id":"f1","name":"pay","args":{"cents": 20000000000000000001, "a":1}},"thoughtSignature":"b=="}, {"functionCall":{"name":"now"}}`) +
		event(`{"functionCall":{"name":"odd","args":[1]}}`) + event(`{"text":"","thoughtSignature":"c=="}`) + ending("STOP", smallUsage)
	answer, err := generate(t, stream)
	if err != nil {
		t.Fatalf("Generate: %v", err)
	}
	wantParts := []loop.Part{
		{Kind: loop.PartReasoning, Text: "First I think."}, loop.TextPart("Here"), loop.TextPart(" it is:"), loop.TextPart("Yes."),
		{Kind: loop.PartToolCall, Call: &loop.ToolCall{ProviderID: "f1", Name: "pay", Args: `{"cents": 20000000000000000001, "a":1}`}},
		{Kind: loop.PartToolCall, Call: &loop.ToolCall{Name: "now", Args: "{}"}},
		{Kind: loop.PartToolCall, Call: &loop.ToolCall{Name: "odd", Args: "[1]"}},
	}
	if diff := cmp.Diff(wantParts, answer.Message.Parts); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
	wantNative := `[{"text":"First I think.","thought":true},{"text":"Here","thoughtSignature":"a+/="},{"text":" it is:"},` +
		`{"executableCode":{"language":"PYTHON","code":"1 \u003c 2"}},{"text":"Yes."},` +
		`{"functionCall":{"id":"f1","name":"pay","args":{"cents":20000000000000000001,"a":1}},"thoughtSignature":"b=="},{"functionCall":{"name":"now"}},` +
		`{"functionCall":{"name":"odd","args":{}}},{"text":"","thoughtSignature":"c=="}]`
	if diff := cmp.Diff(wantNative, string(answer.Message.Native.JSON)); diff != "" {
		t.Errorf("native (-want +got):\n%s", diff)
	}
}

func TestEmit(t *testing.T) {
	t.Parallel()
	stream := event(`{"text":"hm","thought":true}`) + event(`{"text":"a"}`) + event(`{"text":"b"}`) + event(writeCall) + event(`{"text":"","thoughtSignature":"c=="}`) + ending("STOP", smallUsage)
	var got []loop.Delta
	req := providertest.Ask()
	req.Emit = func(d loop.Delta) { got = append(got, d) }
	if _, err := newClient(answering(t, stream).URL, providertest.Tuning{}).Generate(t.Context(), req); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	want := []loop.Delta{
		{Kind: loop.PartReasoning, Text: "hm"}, {Kind: loop.PartText, Text: "a"}, {Kind: loop.PartText, Text: "b"},
		{Kind: loop.PartToolCall, Tool: "write", Text: `{"a":1}`},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("deltas (-want +got):\n%s", diff)
	}
}

// TestCutAfterEveryEvent: a stream that stops between two events looks complete to
// whoever does not wait for the reason.
func TestCutAfterEveryEvent(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"text-stream", "parallel-tools-stream-1", "thinking-tool-stream-1", "vertex-tool-stream-2"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			events := strings.SplitAfter(providertest.Load(t, recordings, name+".json").Response.SSE, "\r\n\r\n")
			for n := range len(events) - 1 {
				answer, err := generate(t, strings.Join(events[:n], ""))
				if e, ok := errors.AsType[*loop.ModelError](err); !ok || e.Class != loop.ErrorMidStream {
					t.Errorf("after %d of %d events: %q, %v", n, len(events)-1, answer.Finish, err)
				}
			}
		})
	}
}

// TestList: without alt=sse the same chunks come as a list, which may be cut too.
func TestList(t *testing.T) {
	t.Parallel()
	list := providertest.Load(t, recordings, "composed-list.json").Text()
	for at := range len(list) {
		if at%97 != 0 && at != len(list)-1 {
			continue
		}
		answer, err := generate(t, list[:at])
		if e, ok := errors.AsType[*loop.ModelError](err); !ok || e.Class != loop.ErrorMidStream {
			t.Errorf("cut at %d of %d: %q, %v", at, len(list), answer.Finish, err)
		}
	}
	if answer, err := generate(t, list); err != nil || answer.Finish != loop.FinishDone {
		t.Errorf("whole: %q, %v", answer.Finish, err)
	}
}

func TestErrorInsideStream(t *testing.T) {
	t.Parallel()
	unavailable := `data: {"error":{"code":503,"message":"overloaded","status":"UNAVAILABLE"}}` + "\n\n"
	daily := `data: {"error":{"code":429,"message":"quota","status":"RESOURCE_EXHAUSTED","details":[{"violations":[{"quotaId":"GenerateRequestsPerDayPerProjectPerModel"}]},{"retryDelay":"7.5s"}]}}` + "\n\n"
	for _, c := range []struct {
		name, stream string
		class        loop.ErrorClass
	}{
		{"before the answer", unavailable, loop.ErrorThrottle},
		{"daily quota before the answer", daily, loop.ErrorQuota},
		{"in the answer", event(`{"text":"x"}`) + unavailable, loop.ErrorMidStream},
		{"daily quota in the answer", event(`{"text":"x"}`) + daily, loop.ErrorMidStream},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := generate(t, c.stream)
			if e, ok := errors.AsType[*loop.ModelError](err); !ok || e.Class != c.class {
				t.Errorf("error is %v, want class %q", err, c.class)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, raw string
		want      loop.Usage
		complete  bool
	}{
		{"cached and thoughts", `{"promptTokenCount":100,"cachedContentTokenCount":60,"candidatesTokenCount":7,"thoughtsTokenCount":5,"totalTokenCount":112}`,
			loop.Usage{InputUncached: 40, CacheRead: 60, Output: 7, Reasoning: 5}, true},
		{"results of Google's tools", `{"promptTokenCount":10,"toolUsePromptTokenCount":30,"candidatesTokenCount":2,"totalTokenCount":42}`,
			loop.Usage{InputUncached: 40, Output: 2}, true},
		{"no output", `{"promptTokenCount":10,"totalTokenCount":10}`, loop.Usage{InputUncached: 10}, true},
		{"output that is named nowhere", `{"promptTokenCount":10,"candidatesTokenCount":2,"totalTokenCount":20}`,
			loop.Usage{InputUncached: 10, Output: 2, Reasoning: 8}, true},
		{"more cached than there is", `{"promptTokenCount":10,"cachedContentTokenCount":12,"candidatesTokenCount":1}`,
			loop.Usage{CacheRead: 10, Output: 1}, true},
		{"below zero", `{"promptTokenCount":-1,"candidatesTokenCount":1}`, loop.Usage{Output: 1}, true},
		{"no prompt", `{"candidatesTokenCount":2}`, loop.Usage{Output: 2}, false},
		{"prompt only", `{"promptTokenCount":5}`, loop.Usage{InputUncached: 5}, false},
		{"Vertex AI's first", `{"trafficType":"ON_DEMAND"}`, loop.Usage{}, false},
		{"no object", `7`, loop.Usage{}, false},
		{"nothing", ``, loop.Usage{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, complete := gemini.Usage([]byte(c.raw))
			if diff := cmp.Diff(c.want, got); diff != "" || complete != c.complete {
				t.Errorf("complete %v, want %v (-want +got):\n%s", complete, c.complete, diff)
			}
		})
	}
}

// TestUsageOfTheMiddleIsNoUsage: counts grow along the stream, so that one which
// came before the end says too little.
func TestUsageOfTheMiddleIsNoUsage(t *testing.T) {
	t.Parallel()
	begin := `data: {"candidates":[{"content":{"parts":[{"text":"x"}]}}],"usageMetadata":` + smallUsage + "}\n\n"
	answer, err := generate(t, begin+`data: {"candidates":[{"finishReason":"STOP"}]}`+"\n\n")
	if err != nil || !answer.UsageMissing {
		t.Errorf("usage missing: %v, error %v", answer.UsageMissing, err)
	}

	_, err = generate(t, begin)
	e, ok := errors.AsType[*loop.ModelError](err)
	if diff := cmp.Diff(loop.Usage{InputUncached: 3, Output: 1}, e.Usage); !ok || diff != "" {
		t.Errorf("usage of a cut answer (-want +got):\n%s", diff)
	}
}
