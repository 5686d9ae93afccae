package providertest

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

// compacted sends a transcript whose oldest part was summed up: after the input comes
// another message of the user's side, and then the model goes on. All of it must
// arrive, in an order that every server takes, and no memo of the longer transcript may
// show.
func (s Suite) compacted(t *testing.T) {
	t.Parallel()
	x := s.good(t)
	server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { x.serve(w, len(x.Text())) }))
	p := s.New(server.URL, Tuning{})
	send := func(memo *loop.Memo, messages []loop.Message) string {
		t.Helper()
		req := Ask()
		req.Tools = []loop.ToolSpec{{Name: "look", Schema: json.RawMessage(`{"type":"object"}`)}}
		req.Messages, req.Memo = messages, memo
		if _, err := p.Generate(t.Context(), req); err != nil {
			t.Fatalf("Generate: %v", err)
		}
		return string(server.Last(t).Body)
	}
	say := func(seq int64, text string) loop.Message {
		return loop.Message{Role: loop.RoleUser, Seq: seq, Parts: []loop.Part{loop.TextPart(text)}}
	}
	iteration := func(seq int64, id, thought string) []loop.Message {
		call := loop.ToolCall{ID: id, Name: "look", Args: `{"at":"` + id + `"}`}
		return []loop.Message{
			{Role: loop.RoleAssistant, Seq: seq, Parts: []loop.Part{loop.TextPart(thought), {Kind: loop.PartToolCall, Call: &call}}},
			{Role: loop.RoleUser, Seq: seq + 1, Parts: []loop.Part{{Kind: loop.PartToolResult, Result: &loop.ToolResult{CallID: id, Name: "look", Outcome: loop.OutcomeOK, Content: "found"}}}},
		}
	}
	memo := &loop.Memo{}
	long := append([]loop.Message{say(1, "the very input")}, append(iteration(2, "c1-1", "an old thought"), iteration(4, "c2-1", "a new thought")...)...)
	send(memo, long)
	short := append([]loop.Message{say(1, "the very input"), say(6, "the very summary")}, iteration(4, "c2-1", "a new thought")...)
	body := send(memo, short)
	if diff := cmp.Diff(send(nil, short), body); diff != "" {
		t.Errorf("a memo of the longer transcript shows (-without +with):\n%s", diff)
	}
	for text, want := range map[string]bool{"the very input": true, "the very summary": true, "a new thought": true, "an old thought": false} {
		if strings.Contains(body, text) != want {
			t.Errorf("%q in the request: %v, want %v\n%s", text, !want, want, body)
		}
	}
	if !json.Valid([]byte(body)) {
		return // a wire without roles
	}
	roles := rolesOf(t, body)
	alternate := len(roles) > 1 && roles[0] == roleUser
	for i := 1; i < len(roles); i++ {
		alternate = alternate && (roles[i] != roleUser || roles[i-1] != roleUser)
	}
	if !alternate {
		t.Errorf("the roles are %q", roles)
	}
}

const roleUser = "user" // on all wires

// rolesOf lists who speaks in a request; what bears no role is left out.
func rolesOf(t *testing.T, body string) []string {
	t.Helper()
	type item struct {
		Role string `json:"role"`
		Type string `json:"type"`
	}
	var wire struct {
		Messages []item `json:"messages"`
		Contents []item `json:"contents"`
		Input    []item `json:"input"`
	}
	if err := json.Unmarshal([]byte(body), &wire); err != nil {
		t.Fatalf("the request is no JSON: %v", err)
	}
	var roles []string
	for _, m := range append(append(wire.Messages, wire.Contents...), wire.Input...) {
		switch {
		case m.Role == "system" || m.Role == "developer":
		case m.Role != "":
			roles = append(roles, m.Role)
		default:
			roles = append(roles, m.Type)
		}
	}
	return roles
}
