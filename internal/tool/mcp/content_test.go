package mcp

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

func TestWhatTheModelSees(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ result, want string }{
		"text":       {`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`, "a\nb"},
		"nothing":    {`{"content":[]}`, ""},
		"structured": {`{"content":[{"type":"text","text":"{}"}],"structuredContent":{"id":12345678901234567890,"a":1}}`, `{"id":12345678901234567890,"a":1}`},
		"null":       {`{"content":[{"type":"text","text":"a"}],"structuredContent":null}`, "a"},
		"image":      {`{"content":[{"type":"image","mimeType":"image/png","data":"AAAA"}]}`, "[loopd: image (image/png, 3 bytes) was left out]"},
		"audio":      {`{"content":[{"type":"audio","mimeType":"audio/wav","data":"AAAA"}]}`, "[loopd: audio (audio/wav, 3 bytes) was left out]"},
		"link":       {`{"content":[{"type":"resource_link","name":"n","uri":"file:///n"}]}`, `[loopd: link to resource "n" at file:///n]`},
		"resource":   {`{"content":[{"type":"resource","resource":{"uri":"file:///n","text":"hello"}}]}`, "[loopd: resource file:///n]\nhello"},
		"blob":       {`{"content":[{"type":"resource","resource":{"uri":"file:///n","mimeType":"x/y","blob":"AAAA"}}]}`, "[loopd: resource file:///n (x/y, 3 bytes) was left out]"},
		"NUL":        {`{"content":[{"type":"text","text":"a\u0000b"}]}`, "a\uFFFDb"},
		"surrogate":  {`{"content":[{"type":"text","text":"a\ud800b"}]}`, "a\uFFFDb"},
		"not UTF-8":  {"{\"content\":[{\"type\":\"text\",\"text\":\"a\xffb\"}]}", "a\uFFFDb"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newFake(t, func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m.result(c.result)) })
			reply := newClient(t, nil).Call(t.Context(), request(server.URL, loop.ReadOnly))
			if reply.Outcome != loop.OutcomeOK {
				t.Fatalf("reply = %+v", reply)
			}
			if diff := cmp.Diff(c.want, reply.Content); diff != "" {
				t.Errorf("content (-want +got):\n%s", diff)
			}
		})
	}
}

func TestALongResultIsCut(t *testing.T) {
	t.Parallel()
	server := newFake(t, func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m.text(strings.Repeat("ä", 100))) })
	c := newClient(t, func(cfg *Config) { cfg.MaxReadBytes = 101 })
	reply := c.Call(t.Context(), request(server.URL, loop.Irreversible))
	if reply.Outcome != loop.OutcomeOK || !reply.Cut || reply.Content != strings.Repeat("ä", 50) || reply.Bytes < 200 {
		t.Errorf("reply = %+v, want the first 50 letters, marked as cut", reply)
	}
}

func TestWhatTheServerSees(t *testing.T) {
	t.Parallel()
	server := newFake(t, func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m.text("done")) })
	c := newClient(t, func(cfg *Config) {
		cfg.Secrets = func(name string) (string, bool) { return "hunter2", name == "TOKEN" }
	})
	req := request(server.URL, loop.Idempotent)
	req.Spec.MCP.Headers = map[string]string{"Authorization": "Bearer ${secret:TOKEN}"}
	if reply := c.Call(t.Context(), req); reply.Outcome != loop.OutcomeOK {
		t.Fatalf("reply = %+v", reply)
	}
	got := server.ledger()[0].Params
	delete(got.Meta, "progressToken")
	want := map[string]any{"loopd/idempotency-key": "loopd:r1:c1-1", "loopd/run": "r1", "loopd/call": "c1-1", "loopd/attempt": 1.0}
	if diff := cmp.Diff(want, got.Meta); diff != "" {
		t.Errorf("_meta (-want +got):\n%s", diff)
	}
	if args := string(got.Arguments); args != `{"n":12345678901234567890}` {
		t.Errorf("arguments = %s, want them as the model wrote them", args)
	}
	if auth := server.headers[0].Get("Authorization"); auth != "Bearer hunter2" {
		t.Errorf("Authorization = %q", auth)
	}
}

func TestSecretsDoNotComeBack(t *testing.T) {
	t.Parallel()
	server := newFake(t, func(w http.ResponseWriter, r *http.Request, m message) {
		text := "you said " + r.Header.Get("X-Key")
		if m.Params.Name == "act" && strings.Contains(string(m.Params.Arguments), "fail") {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, text)
			return
		}
		answer(w, m.text(text))
	})
	c := newClient(t, func(cfg *Config) {
		cfg.Secrets = func(name string) (string, bool) { return "hunter2", name == "KEY" }
	})
	for _, args := range []string{`{}`, `{"fail":1}`} {
		req := request(server.URL, loop.ReadOnly)
		req.Call.Args = args
		req.Spec.MCP.Headers = map[string]string{"X-Key": "${secret:KEY}"}
		reply := c.Call(t.Context(), req)
		if strings.Contains(reply.Content, "hunter2") || !strings.Contains(reply.Content, "[secret:KEY]") {
			t.Errorf("content = %s, want the secret's name in its place", reply.Content)
		}
	}
}

func TestACallThatCannotBeMade(t *testing.T) {
	t.Parallel()
	c := newClient(t, nil)
	cases := map[string]struct {
		spec *loop.MCPSpec
		args string
		want loop.Outcome
		kind string
	}{
		"no section":     {nil, `{}`, loop.OutcomePermanent, "configuration"},
		"no address":     {&loop.MCPSpec{Tool: "act"}, `{}`, loop.OutcomePermanent, "configuration"},
		"a command":      {&loop.MCPSpec{Command: []string{"/bin/cat"}, Tool: "act"}, `{}`, loop.OutcomePermanent, "configuration"},
		"unknown secret": {&loop.MCPSpec{URL: "http://127.0.0.1:1", Tool: "act", Headers: map[string]string{"X": "${secret:NO}"}}, `{}`, loop.OutcomePermanent, "configuration"},
		"bad arguments":  {&loop.MCPSpec{URL: "http://127.0.0.1:1", Tool: "act"}, `[1]`, loop.OutcomeInvalidArgs, "invalid_arguments"},
		"no arguments":   {&loop.MCPSpec{URL: "http://127.0.0.1:1", Tool: "act"}, ` `, loop.OutcomeNotSent, "not_sent"},
	}
	for name, tc := range cases {
		req := request("", loop.SideEffect)
		req.Spec.MCP, req.Call.Args = tc.spec, tc.args
		if reply := c.Call(t.Context(), req); reply.Outcome != tc.want || kindOf(t, reply) != tc.kind {
			t.Errorf("%s: %s %s, want %s %s", name, reply.Outcome, reply.Content, tc.want, tc.kind)
		}
	}
}
