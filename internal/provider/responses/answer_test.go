package responses_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/providertest"
	"github.com/loopd/loopd/internal/provider/responses"
)

const (
	created   = `{"type":"response.created","response":{"id":"resp_1","status":"in_progress","output":[],"usage":null,"error":null}}`
	someUsage = `{"input_tokens":3,"output_tokens":1,"total_tokens":4}`
	okMessage = `{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"ok"}]}`
)

// stream writes events.
func stream(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		b.WriteString("data: " + e + "\n\n")
	}
	return b.String()
}

// ended is the last event of a stream; members go into its response.
func ended(members string) string {
	return `{"type":"response.completed","response":{"id":"resp_1","model":"m","usage":` + someUsage + `,` + members + `}}`
}

// done is the end of an item.
func done(index int, item string) string {
	return fmt.Sprintf(`{"type":"response.output_item.done","output_index":%d,"item":%s}`, index, item)
}

// callItem is a function_call item.
func callItem(id, name, args, status string) string {
	return fmt.Sprintf(`{"id":"fc_%s","type":"function_call","status":%q,"arguments":%q,"call_id":%q,"name":%q}`, id, status, args, id, name)
}

// whole is an answer that is not streamed.
func whole(members, output string) string {
	return `{"object":"response","id":"resp_1","model":"m",` + members + `,"usage":` + someUsage + `,"output":[` + output + `]}`
}

func generate(t *testing.T, status int, body string) (loop.ModelAnswer, error) {
	t.Helper()
	return newClient(answering(t, status, body).URL, providertest.Tuning{}).Generate(t.Context(), providertest.Ask())
}

func TestFinish(t *testing.T) {
	t.Parallel()
	const completed = `"status":"completed"`
	call := callItem("1", "add", `{"a":1}`, "completed")
	for _, c := range []struct {
		name, members, output string
		want                  loop.Finish
	}{
		{"completed", completed, okMessage, loop.FinishDone},
		{"nothing in it", completed, ``, loop.FinishDone},
		{"calls", completed, okMessage + "," + call, loop.FinishToolCalls},
		{"call without a status", completed, `{"type":"function_call","arguments":"{}","call_id":"1","name":"add"}`, loop.FinishToolCalls},
		{"call that is not whole", completed, call + "," + callItem("2", "add", `{"a":1}`, "incomplete"), loop.FinishTruncated},
		{"first call that is not whole", completed, callItem("2", "add", `{}`, "in_progress") + "," + call, loop.FinishTruncated},
		{"arguments that stop in the middle", completed, callItem("2", "add", `{"a":`, "completed"), loop.FinishTruncated},
		{"call without a name", completed, callItem("2", "", `{}`, "completed"), loop.FinishUnknown},
		{"message that is not whole", completed, strings.Replace(okMessage, "completed", "incomplete", 1), loop.FinishTruncated},
		{"output limit", `"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}`, call, loop.FinishTruncated},
		{"filter", `"status":"incomplete","incomplete_details":{"reason":"content_filter"}`, call, loop.FinishRefused},
		{"new reason", `"status":"incomplete","incomplete_details":{"reason":"max_tool_calls"}`, call, loop.FinishUnknown},
		{"no reason", `"status":"incomplete","incomplete_details":null`, call, loop.FinishUnknown},
		{"refusal with a call", completed, `{"type":"message","content":[{"type":"refusal","refusal":"no"}]},` + call, loop.FinishRefused},
		{"in progress", `"status":"in_progress"`, call, loop.FinishUnknown},
		{"cancelled", `"status":"cancelled"`, call, loop.FinishUnknown},
		{"no status", `"x":1`, call, loop.FinishUnknown},
		{"approval with a call", completed, call + `,{"type":"mcp_approval_request","id":"mcpr_1","name":"pay","arguments":"{}"}`, loop.FinishUnknown},
		{"computer", completed, `{"type":"computer_call","call_id":"1","action":{}}`, loop.FinishUnknown},
		{"new kind of item", completed, okMessage + `,{"type":"teleport_call","content":"x"}`, loop.FinishUnknown},
		{"server's own tools", completed, `{"type":"web_search_call","id":"ws_1"},{"type":"mcp_list_tools","tools":[]},` + okMessage, loop.FinishDone},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for form, body := range map[string]string{
				"whole":    whole(c.members, c.output),
				"streamed": stream(created, ended(c.members+`,"output":[`+c.output+`]`)),
			} {
				answer, err := generate(t, http.StatusOK, body)
				if err != nil || answer.Finish != c.want {
					t.Errorf("%s: finish %q, error %v; want %q", form, answer.Finish, err, c.want)
				}
			}
		})
	}
}

// TestItemsOfTheStream: with a last event that lists nothing, the items that
// ended count, in the order of their indexes.
func TestItemsOfTheStream(t *testing.T) {
	t.Parallel()
	added := `{"type":"response.output_item.added","output_index":2,"item":` + callItem("3", "c", "", "in_progress") + `}`
	first, second := callItem("1", "a", `{"n":20000000000000000001}`, "completed"), callItem("2", "b", "", "completed")
	events := []string{created, done(1, second), done(0, first), ended(`"status":"completed","output":[]`)}
	answer, err := generate(t, http.StatusOK, stream(events...))
	if err != nil {
		t.Fatalf("Generate: %v", err)
	}
	want := []loop.ToolCall{{ProviderID: "1", Name: "a", Args: `{"n":20000000000000000001}`}, {ProviderID: "2", Name: "b", Args: `{}`}}
	if diff := cmp.Diff(want, answer.Message.Calls()); diff != "" || answer.Finish != loop.FinishToolCalls {
		t.Errorf("finish %q, calls (-want +got):\n%s", answer.Finish, diff)
	}
	want1, want2 := strings.Replace(first, `"id":"fc_1",`, "", 1), strings.Replace(second, `"id":"fc_2",`, "", 1)
	if got := string(answer.Message.Native.JSON); got != "["+want1+","+want2+"]" {
		t.Errorf("native is %s", got)
	}

	answer, err = generate(t, http.StatusOK, stream(created, added, events[1], events[2], events[3]))
	if err != nil || answer.Finish != loop.FinishUnknown {
		t.Errorf("an item that never ended: finish %q, error %v", answer.Finish, err)
	}
}

// TestFinalReasoning: what is kept is the item that ended, not the one that began.
func TestFinalReasoning(t *testing.T) {
	t.Parallel()
	server := providertest.Serve(t, providertest.Load(t, os.DirFS("testdata"), "composed/responses-reasoning-stream.json"))
	answer, err := newClient(server.URL, providertest.Tuning{}).Generate(t.Context(), providertest.Ask())
	if err != nil {
		t.Fatalf("Generate: %v", err)
	}
	var body struct {
		Output []struct {
			Encrypted string `json:"encrypted_content"`
		} `json:"output"`
	}
	plain := providertest.Load(t, os.DirFS("testdata"), "openai/responses-reasoning-encrypted.json")
	if err := json.Unmarshal(plain.Response.Body, &body); err != nil {
		t.Fatalf("recording: %v", err)
	}
	if native := string(answer.Message.Native.JSON); !strings.Contains(native, `"encrypted_content":"`+body.Output[0].Encrypted+`"`) {
		t.Errorf("native is %s", native)
	}
}

func TestParts(t *testing.T) {
	t.Parallel()
	said := func(phase, text string) string {
		return fmt.Sprintf(`{"type":"message","phase":%s,"content":[{"type":"output_text","text":%q}]}`, phase, text)
	}
	part := func(kind loop.PartKind, text string) loop.Part { return loop.Part{Kind: kind, Text: text} }
	for _, c := range []struct {
		name, output string
		want         []loop.Part
	}{
		{"summaries", `{"type":"reasoning","summary":[{"type":"summary_text","text":"a"},{"type":"summary_text","text":"b"}]}`,
			[]loop.Part{part(loop.PartReasoning, "a\n\nb")}},
		{"plain reasoning", `{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"c"}]}`,
			[]loop.Part{part(loop.PartReasoning, "c")}},
		{"comment beside the answer", said(`"commentary"`, "I look.") + "," + said(`"final_answer"`, "42"),
			[]loop.Part{part(loop.PartReasoning, "I look."), part(loop.PartText, "42")}},
		{"comment alone", said(`"commentary"`, "I look."), []loop.Part{part(loop.PartText, "I look.")}},
		{"no phase", said(`null`, "a") + "," + said(`null`, "b"), []loop.Part{part(loop.PartText, "a"), part(loop.PartText, "b")}},
		{"odd members", `{"type":"message","status":7,"content":[{"type":"output_text","text":"a"},{"type":"output_text","text":[]}]},{"type":"web_search_call","content":"x"}`,
			[]loop.Part{part(loop.PartText, "a")}},
		{"arguments as an object", `{"type":"function_call","call_id":"1","name":"a","arguments":{"x":1}}`,
			[]loop.Part{call("", "1", "a", `{"x":1}`)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			answer, err := generate(t, http.StatusOK, whole(`"status":"completed"`, c.output))
			if err != nil {
				t.Fatalf("Generate: %v", err)
			}
			if diff := cmp.Diff(c.want, answer.Message.Parts); diff != "" {
				t.Errorf("parts (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEmit: fragments come in order, and together they are the parts.
func TestEmit(t *testing.T) {
	t.Parallel()
	const reasoning = `{"type":"reasoning","summary":[{"text":"First."},{"text":"Second."}]}`
	add := callItem("1", "add", `{"a":1}`, "completed")
	delta := func(kind, text string) string {
		return fmt.Sprintf(`{"type":"response.%s.delta","delta":%q}`, kind, text)
	}
	server := answering(t, http.StatusOK, stream(created,
		`{"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning","summary":[]}}`,
		`{"type":"response.reasoning_summary_part.added","summary_index":0}`,
		delta("reasoning_summary_text", "First."),
		`{"type":"response.reasoning_summary_part.added","summary_index":1}`,
		delta("reasoning_summary_text", "Second."),
		done(0, reasoning),
		delta("output_text", "o"), `{"type":"response.web_search_call.searching"}`, delta("output_text", "k"), done(1, okMessage),
		`{"type":"response.output_item.added","output_index":2,"item":`+callItem("1", "add", "", "in_progress")+`}`,
		delta("function_call_arguments", `{"a"`), delta("function_call_arguments", `:1}`), done(2, add),
		delta("refusal", "no"),
		ended(`"status":"completed","output":[]`),
	))
	var got []loop.Delta
	req := providertest.Ask()
	req.Emit = func(d loop.Delta) { got = append(got, d) }
	if _, err := newClient(server.URL, providertest.Tuning{}).Generate(t.Context(), req); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	want := []loop.Delta{
		{Kind: loop.PartReasoning, Text: "First."}, {Kind: loop.PartReasoning, Text: "\n\n"}, {Kind: loop.PartReasoning, Text: "Second."},
		{Kind: loop.PartText, Text: "o"}, {Kind: loop.PartText, Text: "k"},
		{Kind: loop.PartToolCall, Tool: "add"}, {Kind: loop.PartToolCall, Text: `{"a"`}, {Kind: loop.PartToolCall, Text: `:1}`},
		{Kind: loop.PartRefusal, Text: "no"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("deltas (-want +got):\n%s", diff)
	}
}

// TestCutAtEveryEvent: every beginning of every recorded stream that lacks the
// last event is an answer that was cut.
func TestCutAtEveryEvent(t *testing.T) {
	t.Parallel()
	for name, want := range wants {
		x := providertest.Load(t, os.DirFS("testdata"), name+".json")
		if x.Response.SSE == "" || want.Class != "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			events := strings.SplitAfter(x.Response.SSE, "\n\n")
			events = events[:len(events)-1] // what follows the last blank line
			for n := range events {
				_, err := generate(t, http.StatusOK, strings.Join(events[:n], ""))
				if e, ok := errors.AsType[*loop.ModelError](err); !ok || e.Class != loop.ErrorMidStream {
					t.Errorf("after %d of %d events: got %v, want mid_stream", n, len(events), err)
				}
			}
			if answer, err := generate(t, http.StatusOK, x.Response.SSE); err != nil || answer.Finish != want.Finish {
				t.Errorf("the whole stream: finish %q, error %v", answer.Finish, err)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	failed := func(members string) string {
		return `{"type":"response.failed","response":{"status":"failed",` + members + `}}`
	}
	item := done(0, okMessage)
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   loop.ErrorClass
	}{
		{"no money", 429, `{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}`, loop.ErrorQuota},
		{"encrypted content of another key", 400, `{"error":{"message":"The encrypted content could not be verified.","type":"invalid_request_error","code":"invalid_encrypted_content"}}`, loop.ErrorRequest},
		{"failed at the server", 200, stream(created, failed(`"error":{"code":"server_error","message":"sorry"}`)), loop.ErrorServer},
		{"failed for the rate", 200, stream(created, failed(`"error":{"code":"rate_limit_exceeded","message":"slow down"}`)), loop.ErrorThrottle},
		{"failed for the context", 200, stream(created, failed(`"error":{"code":"context_length_exceeded","message":"too long"}`)), loop.ErrorContext},
		{"failed for the prompt", 200, stream(created, failed(`"error":{"code":"invalid_prompt","message":"flagged"}`)), loop.ErrorRequest},
		{"failed for an image", 200, stream(created, failed(`"error":{"code":"failed_to_download_image","message":"gone"}`)), loop.ErrorRequest},
		{"failed for a new reason", 200, stream(created, failed(`"error":{"code":"solar_flare","message":"oh"}`)), loop.ErrorMidStream},
		{"failed for no reason", 200, stream(created, failed(`"error":null`)), loop.ErrorMidStream},
		{"failed after an item", 200, stream(created, item, failed(`"error":{"code":"rate_limit_exceeded","message":"slow down"}`)), loop.ErrorMidStream},
		{"failed with usage", 200, stream(created, failed(`"error":{"code":"rate_limit_exceeded","message":"x"},"usage":`+someUsage)), loop.ErrorMidStream},
		{"error with a type", 200, stream(created, `{"type":"error","error":{"type":"server_error","code":"odd","message":"x"}}`), loop.ErrorServer},
		{"error at the top", 200, stream(created, `{"type":"error","code":"rate_limit_exceeded","message":"x","param":null}`), loop.ErrorThrottle},
		{"error after an item", 200, stream(created, item, `{"type":"error","code":"server_error","message":"x"}`), loop.ErrorMidStream},
		{"error without an event type", 200, stream(`{"error":{"message":"Provider returned error","code":502}}`), loop.ErrorServer},
		{"whole and failed", 200, `{"object":"response","status":"failed","output":[],"error":{"code":"server_error","message":"sorry"}}`, loop.ErrorServer},
		{"object in a 200", 200, `{"error":{"type":"insufficient_quota","message":"no"}}`, loop.ErrorQuota},
		{"only the end mark of another API", 200, "data: [DONE]\n\n", loop.ErrorMidStream},
		{"end without a response", 200, stream(created, `{"type":"response.completed"}`), loop.ErrorMidStream},
		{"item that is no object", 200, whole(`"status":"completed"`, `7`), loop.ErrorMidStream},
		{"key in the answer", 401, `{"error":{"message":"Incorrect API key provided: test-key-123."}}`, loop.ErrorAuth},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := generate(t, c.status, c.body)
			e, ok := errors.AsType[*loop.ModelError](err)
			if !ok || e.Class != c.want || e.Message == "" {
				t.Fatalf("got %v, want class %q", err, c.want)
			}
			if strings.Contains(e.Error(), "test-key-123") {
				t.Errorf("the key is in the error: %v", e)
			}
			if charged := e.Usage.Total() > 0; charged != strings.Contains(c.body, `"usage":{`) {
				t.Errorf("usage is %+v", e.Usage)
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
		{"no output", `{"input_tokens":3}`, loop.Usage{InputUncached: 3}, true},
		{"of another kind", `{"input_tokens":"3"}`, loop.Usage{}, true},
		{"cache and reasoning inside", `{"input_tokens":100,"output_tokens":50,"total_tokens":150,"input_tokens_details":{"cached_tokens":60,"cache_write_tokens":30},"output_tokens_details":{"reasoning_tokens":40}}`,
			loop.Usage{InputUncached: 10, CacheRead: 60, CacheWrite5m: 30, Output: 10, Reasoning: 40}, false},
		{"reasoning outside", `{"input_tokens":10,"output_tokens":5,"total_tokens":22,"output_tokens_details":{"reasoning_tokens":7}}`,
			loop.Usage{InputUncached: 10, Output: 5, Reasoning: 7}, false},
		{"details above the totals", `{"input_tokens":10,"output_tokens":5,"input_tokens_details":{"cached_tokens":90,"cache_write_tokens":90},"output_tokens_details":{"reasoning_tokens":70}}`,
			loop.Usage{CacheRead: 10, Reasoning: 5}, false},
		{"negative", `{"input_tokens":-1,"output_tokens":-5,"total_tokens":-6}`, loop.Usage{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			body := strings.Replace(whole(`"status":"completed"`, okMessage), someUsage, c.usage, 1)
			answer, err := generate(t, http.StatusOK, body)
			if err != nil || answer.Usage != c.want || answer.UsageMissing != c.missing {
				t.Errorf("got %+v, missing %v, error %v; want %+v, %v", answer.Usage, answer.UsageMissing, err, c.want, c.missing)
			}
			if usage, complete := responses.Usage(json.RawMessage(c.usage)); usage != c.want || complete == c.missing {
				t.Errorf("Usage: got %+v, complete %v", usage, complete)
			}
		})
	}
}

// TestRate: what the headers say of the limits is in answers and in errors.
func TestRate(t *testing.T) {
	t.Parallel()
	for _, body := range []string{whole(`"status":"completed"`, okMessage), stream(created)} {
		server := providertest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Ratelimit-Limit-Requests", "5000")
			w.Header().Set("X-Ratelimit-Remaining-Requests", "4999")
			w.Header().Set("X-Ratelimit-Reset-Requests", "12ms")
			if _, err := w.Write([]byte(body)); err != nil {
				t.Errorf("server: %v", err)
			}
		}))
		answer, err := newClient(server.URL, providertest.Tuning{}).Generate(t.Context(), providertest.Ask())
		rate := answer.Rate
		if e, ok := errors.AsType[*loop.ModelError](err); ok {
			rate = e.Rate
		}
		if rate.Requests.Limit != 5000 || rate.Requests.Remaining != 4999 || rate.Requests.Reset.IsZero() {
			t.Errorf("rate is %+v (error %v)", rate, err)
		}
	}
}

// TestThinking: between its first event and its first words a model may be silent
// for longer than the idle timeout, but not in the middle of a message.
func TestThinking(t *testing.T) {
	t.Parallel()
	const message = `{"type":"response.output_item.added","output_index":0,"item":{"type":"message","content":[]}}`
	const thought = `{"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning","summary":[]}}`
	for _, c := range []struct {
		name   string
		before string // the silence
		want   loop.ErrorClass
	}{
		{"after the start", stream(created), ""},
		{"in reasoning", stream(created, thought), ""},
		{"after an item", stream(created, message, done(0, okMessage)), ""},
		{"in a message", stream(created, message), loop.ErrorTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				body, server := io.Pipe()
				client := responses.New(responses.Config{
					APIKey: providertest.Key, FirstByteTimeout: 20 * time.Second, IdleTimeout: time.Second,
					HTTPClient: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
						context.AfterFunc(r.Context(), func() { body.CloseWithError(r.Context().Err()) })
						return &http.Response{StatusCode: http.StatusOK, Body: body, Request: r}, nil
					})},
				})
				var serving sync.WaitGroup
				serving.Go(func() {
					end := stream(ended(`"status":"completed","output":[` + okMessage + `]`))
					for _, text := range []string{c.before, end} {
						if _, err := io.WriteString(server, text); err != nil {
							return // the client has given up
						}
						if text != end {
							<-time.After(30 * time.Second)
						}
					}
				})
				answer, err := client.Generate(t.Context(), providertest.Ask())
				if c.want == "" && (err != nil || answer.Finish != loop.FinishDone) {
					t.Errorf("finish %q, error %v", answer.Finish, err)
				}
				if e, ok := errors.AsType[*loop.ModelError](err); c.want != "" && (!ok || e.Class != c.want) {
					t.Errorf("got %v, want class %q", err, c.want)
				}
				serving.Wait()
			})
		})
	}
}

// TestNative: items are kept as they came, but for the ids that a server without
// state cannot look up.
func TestNative(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, item, want string }{
		{"message", `{"id":"msg_1","type":"message","phase":"commentary","content":[{"type":"output_text","annotations":[],"text":"a","x":1.0}]}`,
			`{"type":"message","phase":"commentary","content":[{"type":"output_text","annotations":[],"text":"a","x":1.0}]}`},
		{"call", `{"type":"function_call","id":"fc_1","arguments":"{\"a\":","call_id":"1","name":"add","namespace":"n"}`,
			`{"type":"function_call","arguments":"{\"a\":","call_id":"1","name":"add","namespace":"n"}`},
		{"encrypted reasoning", `{"type":"reasoning","summary":[],"encrypted_content":"gAAA","id":"rs_1"}`, `{"type":"reasoning","summary":[],"encrypted_content":"gAAA"}`},
		{"reasoning in plain text", `{"id":"rs_1","type":"reasoning","content":[{"type":"reasoning_text","text":"x"}]}`,
			`{"id":"rs_1","type":"reasoning","content":[{"type":"reasoning_text","text":"x"}]}`},
		{"the server's own tool", `{"id":"ws_1","type":"web_search_call"}`, `{"id":"ws_1","type":"web_search_call"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			answer, err := generate(t, http.StatusOK, whole(`"status":"completed"`, c.item))
			if err != nil {
				t.Fatalf("Generate: %v", err)
			}
			if diff := cmp.Diff("["+c.want+"]", string(answer.Message.Native.JSON)); diff != "" || answer.Message.Native.Wire != "openai_responses" {
				t.Errorf("wire %q, native (-want +got):\n%s", answer.Message.Native.Wire, diff)
			}
		})
	}
}
