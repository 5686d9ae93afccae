package scripted_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/scripted"
)

const script = `
models:
  looker:
    answers:
      - calls: [{name: get, args: {id: "O-{{.N}}"}}]
      - errors:
          - {class: throttle, status: 429, retry_after: 2s}
        text: "second to {{.Input}}"
        calls: [{name: get, args: '{"broken'}]
    loop_from: 1
    final: {text: "that is all"}
  talker:
    answers: [{text: "a long answer that does not fit", usage: {input: 7, output: 99}}]
`

func client(t *testing.T) *scripted.Client {
	t.Helper()
	s, err := scripted.Parse([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	return scripted.New(s)
}

func ask(said int) loop.ModelRequest {
	req := loop.ModelRequest{Model: "looker", MaxOutputTokens: 100, ToolsAllowed: true, CacheKey: "run-1",
		Messages: []loop.Message{{Role: loop.RoleUser, Parts: []loop.Part{loop.TextPart("hello")}}}}
	for range said {
		req.Messages = append(req.Messages, loop.Message{Role: loop.RoleAssistant, Parts: []loop.Part{loop.TextPart("x")}},
			loop.Message{Role: loop.RoleUser, Parts: []loop.Part{loop.TextPart("y")}})
	}
	return req
}

func TestTheTranscriptSaysWhichAnswerIsNext(t *testing.T) {
	t.Parallel()
	c := client(t)
	for said, want := range map[int]string{0: `{"id":"O-1"}`, 2: `{"id":"O-3"}`, 4: `{"id":"O-5"}`} {
		a, err := c.Generate(t.Context(), ask(said))
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Message.Calls()[0].Args; got != want || a.Finish != loop.FinishToolCalls {
			t.Errorf("after %d answers: args %s, finish %s, want %s", said, got, a.Finish, want)
		}
	}
}

func TestErrorsComeBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	c := client(t)
	_, err := c.Generate(t.Context(), ask(1))
	var me *loop.ModelError
	if !errors.As(err, &me) || me.Class != loop.ErrorThrottle || me.Status != 429 || me.RetryAfter != 2*time.Second {
		t.Fatalf("first try: %v, want the scripted 429", err)
	}
	a, err := c.Generate(t.Context(), ask(1))
	if err != nil {
		t.Fatal(err)
	}
	if a.Message.Text() != "second to hello" || a.Message.Calls()[0].Args != `{"broken` {
		t.Errorf("second try: %+v", a.Message.Parts)
	}
}

func TestWithoutToolsComesTheFinalAnswer(t *testing.T) {
	t.Parallel()
	req := ask(3)
	req.ToolsAllowed = false
	a, err := client(t).Generate(t.Context(), req)
	if err != nil || a.Message.Text() != "that is all" || a.Finish != loop.FinishDone {
		t.Errorf("got %+v, %v", a, err)
	}
}

func TestOutputNeverPassesTheCap(t *testing.T) {
	t.Parallel()
	req := ask(0)
	req.Model, req.MaxOutputTokens = "talker", 20
	a, err := client(t).Generate(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(loop.Usage{InputUncached: 7, Output: 20}, a.Usage); diff != "" || a.Finish != loop.FinishTruncated {
		t.Errorf("finish %s, usage (-want +got)\n%s", a.Finish, diff)
	}
}

func TestUsageGrowsAndIsCached(t *testing.T) {
	t.Parallel()
	first, err := client(t).Generate(t.Context(), ask(0))
	if err != nil {
		t.Fatal(err)
	}
	later, err := client(t).Generate(t.Context(), ask(2))
	if err != nil {
		t.Fatal(err)
	}
	if first.Usage.CacheRead != 0 || later.Usage.CacheRead == 0 || later.Usage.Input() < first.Usage.Input() {
		t.Errorf("usage %+v, later %+v", first.Usage, later.Usage)
	}
}

func parse(t *testing.T, text string) *scripted.Client {
	t.Helper()
	s, err := scripted.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return scripted.New(s)
}

// A rule answers its situation, and may let the model misbehave.
func TestRulesComeBeforeAnswers(t *testing.T) {
	t.Parallel()
	c := parse(t, `
models:
  looker:
    rules:
      - when: {last_tool_error: true, tools_allowed: true}
        answer: {text: "that failed"}
      - when: {tools_allowed: false}
        answer: {calls: [{name: forbidden}]}
      - when: {input_contains: secret}
        answer: {refusal: "no"}
    answers: [{text: fine}]
`)
	result := func(o loop.Outcome) loop.Message {
		return loop.Message{Role: loop.RoleUser, Parts: []loop.Part{{Kind: loop.PartToolResult, Result: &loop.ToolResult{Outcome: o}}}}
	}
	for name, test := range map[string]struct {
		change func(*loop.ModelRequest)
		finish loop.Finish
		text   string
	}{
		"none holds": {func(*loop.ModelRequest) {}, loop.FinishDone, "fine"},
		"error":      {func(r *loop.ModelRequest) { r.Messages = append(r.Messages, result(loop.OutcomePermanent)) }, loop.FinishDone, "that failed"},
		"success":    {func(r *loop.ModelRequest) { r.Messages = append(r.Messages, result(loop.OutcomeOK)) }, loop.FinishDone, "fine"},
		"older error": {func(r *loop.ModelRequest) {
			r.Messages = append([]loop.Message{r.Messages[0], result(loop.OutcomePermanent)}, ask(1).Messages[1:]...)
		}, loop.FinishDone, "fine"},
		"no tools": {func(r *loop.ModelRequest) { r.ToolsAllowed = false }, loop.FinishToolCalls, ""},
		"input":    {func(r *loop.ModelRequest) { r.Messages[0].Parts[0].Text = "the secret" }, loop.FinishRefused, ""},
	} {
		req := ask(0)
		test.change(&req)
		a, err := c.Generate(t.Context(), req)
		if err != nil || a.Finish != test.finish || a.Message.Text() != test.text {
			t.Errorf("%s: %s %q, %v; want %s %q", name, a.Finish, a.Message.Text(), err, test.finish, test.text)
		}
	}
}

// The run's input is text of a user: it must stay inside its string.
func TestInputCannotBreakArguments(t *testing.T) {
	t.Parallel()
	c := parse(t, `models: {looker: {answers: [{calls: [{name: get, args: {q: ["{{.Input}}", 7], n: {deep: "<{{.N}}>"}}}]}]}}`)
	req := ask(0)
	req.Messages[0].Parts[0].Text = `a "quoted" {{.N}} \ text`
	a, err := c.Generate(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := json.Unmarshal([]byte(a.Message.Calls()[0].Args), &got); err != nil {
		t.Fatalf("args %s: %v", a.Message.Calls()[0].Args, err)
	}
	want = map[string]any{"q": []any{`a "quoted" {{.N}} \ text`, 7.0}, "n": map[string]any{"deep": "<1>"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("args (-want +got):\n%s", diff)
	}
}

// A truncated answer is cut as a model's is, in the middle of what it wrote.
func TestTruncatedAnswerIsCut(t *testing.T) {
	t.Parallel()
	c := parse(t, `models: {looker: {answers: [{text: "0123456789é", calls: [{name: get, args: {q: "a long argument"}}, {name: more}]}]}}`)
	for limit, want := range map[int64][]string{2: {"01234567"}, 3: {"0123456789é"}, 5: {"0123456789é", `{"q":`}, 11: {"0123456789é", `{"q":"a long argument"}`}} {
		req := ask(0)
		req.MaxOutputTokens = limit
		a, err := c.Generate(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range a.Message.Parts {
			if p.Call != nil && p.Call.Name == "get" {
				got = append(got, p.Call.Args)
			} else if p.Call == nil {
				got = append(got, p.Text)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || a.Finish != loop.FinishTruncated || a.Usage.AllOutput() != limit {
			t.Errorf("limit %d: finish %s, usage %+v, parts (-want +got):\n%s", limit, a.Finish, a.Usage, diff)
		}
	}
}

func TestDelayHonoursTheContext(t *testing.T) {
	t.Parallel()
	s, err := scripted.Parse([]byte("models: {m: {answers: [{text: late, delay: 1h}]}}"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = scripted.New(s).Generate(ctx, loop.ModelRequest{Model: "m", MaxOutputTokens: 10})
	var me *loop.ModelError
	if !errors.As(err, &me) || me.Class != loop.ErrorCancelled {
		t.Errorf("an ended context: %v, want it cancelled", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err = scripted.New(s).Generate(ctx, loop.ModelRequest{Model: "m", MaxOutputTokens: 10}); !errors.As(err, &me) || me.Class != loop.ErrorTimeout {
		t.Errorf("a deadline: %v, want a timeout", err)
	}
}

func TestBadScriptsNameThePlace(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"models: {}":                 "models",
		"models: {m: {answers: []}}": "models.m.answers",
		"models: {m: {answers: [{calls: [{args: {}}]}]}}":                          "models.m.answers[0].calls[0].name",
		"models: {m: {answers: [{text: '{{.Nope}}'}]}}":                            "models.m.answers[0].text",
		"models: {m: {answers: [{text: a}], loop_from: 2}}":                        "loop_from",
		"models: {m: {answers: [{tekst: a}]}}":                                     "tekst",
		"models: {m: {answers: [{text: a, errors: [{status: 500}]}]}}":             "errors[0].class",
		"models: {m: {answers: [{text: a, finish: stop}]}}":                        "models.m.answers[0].finish",
		"models: {m: {answers: [{text: a, errors: [{class: boom}]}]}}":             "models.m.answers[0].errors[0].class",
		"models: {m: {answers: [{text: a}], rules: [{answer: {text: b}}]}}":        "models.m.rules[0].when is empty",
		"models: {m: {answers: [{calls: [{name: a, args: {b: ['{{.Nope}}']}}]}]}}": "models.m.answers[0].calls[0].args: b: [0]",
	} {
		if _, err := scripted.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want a word about %s", text, err, want)
		}
	}
}

func TestTheAnswerIsWrittenWordByWord(t *testing.T) {
	t.Parallel()
	s, err := scripted.Parse([]byte(`
models:
  writer:
    answers: [{reasoning: "let me see", text: "one two three", calls: [{name: get, args: {id: 7}}], delay: 30ms}]
`))
	if err != nil {
		t.Fatal(err)
	}
	req := ask(0)
	req.Model = "writer"
	var got []loop.Delta
	req.Emit = func(d loop.Delta) { got = append(got, d) }
	if _, err := scripted.New(s).Generate(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	want := []loop.Delta{
		{Kind: loop.PartReasoning, Text: "let "}, {Kind: loop.PartReasoning, Text: "me "}, {Kind: loop.PartReasoning, Text: "see"},
		{Kind: loop.PartText, Text: "one "}, {Kind: loop.PartText, Text: "two "}, {Kind: loop.PartText, Text: "three"},
		{Kind: loop.PartToolCall, Text: `{"id":7}`, Tool: "get"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fragments (-want +got):\n%s", diff)
	}
}
