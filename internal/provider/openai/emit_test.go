package openai_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/providertest"
)

// emitted returns what a watcher of the answer is told.
func emitted(t *testing.T, body string) []loop.Delta {
	t.Helper()
	var deltas []loop.Delta
	req := providertest.Ask()
	req.Emit = func(d loop.Delta) { deltas = append(deltas, d) }
	if _, err := newClient(answering(t, http.StatusOK, body).URL, providertest.Tuning{}).Generate(t.Context(), req); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	return deltas
}

func TestEmit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, body string
		want       []loop.Delta
	}{
		{"text, reasoning and refusal", stream(
			`{"index":0,"delta":{"role":"assistant","content":"","reasoning_content":"h"}}`,
			`{"index":0,"delta":{"content":null,"reasoning":"m"}}`,
			`{"index":0,"delta":{"content":"o"}}`, `{"index":0,"delta":{"content":"k","refusal":"no"}}`, end(`"stop"`),
		), []loop.Delta{
			{Kind: loop.PartReasoning, Text: "h"}, {Kind: loop.PartReasoning, Text: "m"},
			{Kind: loop.PartText, Text: "o"}, {Kind: loop.PartText, Text: "k"}, {Kind: loop.PartRefusal, Text: "no"},
		}},
		{"the same reasoning under two names", stream(
			`{"index":0,"delta":{"reasoning_content":"h","reasoning":"h"}}`, end(`"stop"`),
		), []loop.Delta{{Kind: loop.PartReasoning, Text: "h"}}},
		{"thinking in content", stream(
			`{"index":0,"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"h"}]}]}}`,
			`{"index":0,"delta":{"content":"k"}}`, end(`"stop"`),
		), []loop.Delta{{Kind: loop.PartReasoning, Text: "h"}, {Kind: loop.PartText, Text: "k"}}},
		{"calls, the name with the first arguments", stream(
			calls(`{"index":0,"id":"1","function":{"name":"a","arguments":""}}`),
			calls(`{"index":0,"function":{"arguments":"{\"x\""}}`),
			calls(`{"index":0,"function":{"arguments":":1}"}}`),
			calls(`{"index":1,"id":"2","function":{"name":"b","arguments":""}}`),
			calls(`{"index":2,"id":"3","function":{"name":"c","arguments":"{}"}}`), end(`"tool_calls"`),
		), []loop.Delta{
			{Kind: loop.PartToolCall, Tool: "a", Text: `{"x"`}, {Kind: loop.PartToolCall, Text: ":1}"},
			{Kind: loop.PartToolCall, Tool: "b"}, {Kind: loop.PartToolCall, Tool: "c", Text: "{}"},
		}},
		{"a name in pieces after arguments", stream(
			calls(`{"index":0,"id":"1","function":{"arguments":"{}"}}`),
			calls(`{"index":0,"function":{"name":"get_"}}`), calls(`{"index":0,"function":{"name":"time"}}`), end(`"tool_calls"`),
		), []loop.Delta{{Kind: loop.PartToolCall, Tool: "get_time", Text: "{}"}}},
		{"a whole answer", textAnswer, []loop.Delta{{Kind: loop.PartText, Text: "ok"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, emitted(t, c.body)); diff != "" {
				t.Errorf("deltas (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEmitIsTheAnswer: of every recorded stream, the fragments make the parts.
func TestEmitIsTheAnswer(t *testing.T) {
	t.Parallel()
	for name, want := range wants {
		if want.Class != "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var text, args strings.Builder
			var tools []string
			req := providertest.Ask()
			req.Emit = func(d loop.Delta) {
				switch d.Kind {
				case loop.PartText:
					text.WriteString(d.Text)
				case loop.PartToolCall:
					args.WriteString(d.Text)
					if d.Tool != "" {
						tools = append(tools, d.Tool)
					}
				}
			}
			answer, err := newClient(recorded(t, name).URL, providertest.Tuning{}).Generate(t.Context(), req)
			if err != nil {
				t.Fatalf("Generate: %v", err)
			}
			var wantArgs strings.Builder
			var wantTools []string
			for _, c := range answer.Message.Calls() {
				wantArgs.WriteString(c.Args)
				wantTools = append(wantTools, c.Name)
			}
			if text.String() != answer.Message.Text() {
				t.Errorf("emitted %q, answered %q", text.String(), answer.Message.Text())
			}
			// A call without arguments has an empty object in the answer.
			if diff := cmp.Diff(wantTools, tools); diff != "" || strings.ReplaceAll(args.String(), "{}", "") != strings.ReplaceAll(wantArgs.String(), "{}", "") {
				t.Errorf("arguments %q, want %q; tools (-want +got):\n%s", args.String(), wantArgs.String(), diff)
			}
		})
	}
}

// TestRate: what the headers say is in the answer, and in the error of one that broke.
func TestRate(t *testing.T) {
	t.Parallel()
	cut := `data: {"choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n"
	for _, body := range []string{textAnswer, cut} {
		server := providertest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Ratelimit-Limit-Requests", "60")
			w.Header().Set("X-Ratelimit-Remaining-Requests", "59")
			w.Header().Set("X-Ratelimit-Reset-Requests", "1s")
			if _, err := w.Write([]byte(body)); err != nil {
				t.Errorf("server: %v", err)
			}
		}))
		answer, err := newClient(server.URL, providertest.Tuning{}).Generate(t.Context(), providertest.Ask())
		rate := answer.Rate
		if body == cut {
			rate = modelError(t, err).Rate
		}
		if rate.Requests.Limit != 60 || rate.Requests.Remaining != 59 || time.Until(rate.Requests.Reset) > time.Second {
			t.Errorf("rate is %+v (error %v)", rate, err)
		}
	}
}
