package scripted_test

import (
	"context"
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

func TestDelayHonoursTheContext(t *testing.T) {
	t.Parallel()
	s, err := scripted.Parse([]byte("models: {m: {answers: [{text: late, delay: 1h}]}}"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := scripted.New(s).Generate(ctx, loop.ModelRequest{Model: "m", MaxOutputTokens: 10}); err == nil {
		t.Error("an ended context gave an answer")
	}
}

func TestBadScriptsNameThePlace(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"models: {}":                 "models",
		"models: {m: {answers: []}}": "models.m.answers",
		"models: {m: {answers: [{calls: [{args: {}}]}]}}":              "models.m.answers[0].calls[0].name",
		"models: {m: {answers: [{text: '{{.Nope}}'}]}}":                "models.m.answers[0].text",
		"models: {m: {answers: [{text: a}], loop_from: 2}}":            "loop_from",
		"models: {m: {answers: [{tekst: a}]}}":                         "tekst",
		"models: {m: {answers: [{text: a, errors: [{status: 500}]}]}}": "errors[0].class",
	} {
		if _, err := scripted.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want a word about %s", text, err, want)
		}
	}
}
