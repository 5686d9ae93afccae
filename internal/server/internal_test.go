package server

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// TestEnumsMirrorTheWordsOfLoop holds the API's enums and loop's words together:
// a word that one has and the other has not would be shown as UNSPECIFIED.
func TestEnumsMirrorTheWordsOfLoop(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		enum   protoreflect.Enum
		prefix string
		words  []string
	}{
		{loopdv1.RunState(0), "RUN_STATE_", words(
			loop.StateQueued, loop.StateRunning, loop.StateRequiresAction, loop.StatePaused, loop.StateCancelling,
			loop.StateSucceeded, loop.StateStopped, loop.StateFailed, loop.StateCancelled)},
		{loopdv1.StopReason(0), "STOP_REASON_", words(loop.StopReasons()...)},
		{loopdv1.ToolCallState(0), "TOOL_CALL_STATE_", words(
			loop.CallPlanned, loop.CallAwaitingApproval, loop.CallApproved, loop.CallRejected, loop.CallDenied, loop.CallStarted,
			loop.CallSucceeded, loop.CallFailed, loop.CallNotSent, loop.CallInDoubt, loop.CallSkipped, loop.CallCancelled)},
		{loopdv1.Effect(0), "EFFECT_", words(loop.ReadOnly, loop.Idempotent, loop.SideEffect, loop.Irreversible)},
		{loopdv1.Role(0), "ROLE_", words(loop.RoleUser, loop.RoleAssistant)},
		{loopdv1.Resolution(0), "RESOLUTION_", words(loop.ResolvedSucceeded, loop.ResolvedNotExecuted, loop.ResolvedRetry)},
		{loopdv1.RequiredAction_Kind(0), "KIND_", []string{"APPROVE", "RESOLVE"}},
	} {
		t.Run(string(c.enum.Descriptor().Name()), func(t *testing.T) {
			t.Parallel()
			var names []string
			values := c.enum.Descriptor().Values()
			for i := 1; i < values.Len(); i++ {
				name := strings.TrimPrefix(string(values.Get(i).Name()), c.prefix)
				names = append(names, name)
				if got := enumNumber(c.enum, c.prefix, name); got != values.Get(i).Number() {
					t.Errorf("%s converts to %d, want %d", name, got, values.Get(i).Number())
				}
			}
			slices.Sort(names)
			slices.Sort(c.words)
			if diff := cmp.Diff(c.words, names); diff != "" {
				t.Errorf("words of loop and values of the enum differ (-loop +api):\n%s", diff)
			}
		})
	}
}

func words[S ~string](list ...S) []string {
	var all []string
	for _, w := range list {
		all = append(all, strings.ToUpper(string(w)))
	}
	return all
}

func TestEnumsConvertBack(t *testing.T) {
	t.Parallel()
	if got := runStateOf(runStateProto(loop.StateRequiresAction)); got != loop.StateRequiresAction {
		t.Errorf("run state comes back as %q", got)
	}
	if got := effectOf(effectProto(loop.SideEffect)); got != loop.SideEffect {
		t.Errorf("effect comes back as %q", got)
	}
	if got := effectOf(loopdv1.Effect_EFFECT_UNSPECIFIED); got != loop.Irreversible {
		t.Errorf("an undeclared effect is %q, want %q", got, loop.Irreversible)
	}
	if got := resolutionOf(loopdv1.Resolution_RESOLUTION_NOT_EXECUTED); got != loop.ResolvedNotExecuted {
		t.Errorf("resolution comes back as %q", got)
	}
}

// TestEveryReasonHasOneRow: a reason without a row would be reported as INTERNAL.
func TestEveryReasonHasOneRow(t *testing.T) {
	t.Parallel()
	var want, got []string
	for number := range loopdv1.ErrorReason_name {
		if number != 0 {
			want = append(want, loopdv1.ErrorReason(number).String())
		}
	}
	for _, row := range errorTable() {
		got = append(got, row.reason.String())
		if row.title == "" || row.help == "" || row.http < 400 {
			t.Errorf("%s: title, help and HTTP status must be set", row.reason)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reasons of the API and rows of the table differ (-api +table):\n%s", diff)
	}
}

func TestPointer(t *testing.T) {
	t.Parallel()
	for field, want := range map[string]string{
		"":                                  "",
		"input":                             "/input",
		"limits.max_cost_usd":               "/limits/maxCostUsd",
		"spec.tools[2].input_schema":        "/spec/tools/2/inputSchema",
		`labels["a.b_c/d~e"]`:               "/labels/a.b_c~1d~0e",
		`spec.tools[0].http.headers["X-A"]`: "/spec/tools/0/http/headers/X-A",
	} {
		if got := pointer(field); got != want {
			t.Errorf("pointer(%q) = %q, want %q", field, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "", 3}, {"", "ab", 2}, {"kitten", "sitting", 3}, {"acme/larg-1", "acme/large-1", 1}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestPageTokensBelongToTheirRequest(t *testing.T) {
	t.Parallel()
	req := &loopdv1.ListRunsRequest{Agent: "agents/a", PageSize: 3}
	token := pageToken(req, "cursor")
	same := &loopdv1.ListRunsRequest{Agent: "agents/a", PageSize: 9, PageToken: token}
	if got, err := cursorOf(same); got != "cursor" || err != nil {
		t.Errorf("cursor = %q, %v", got, err)
	}
	for name, token := range map[string]string{"other fields": token, "not base64": "%%%", "too short": "AAAA", "made up": "AAAAAAAAAAAAAAAA"} {
		_, err := cursorOf(&loopdv1.ListRunsRequest{Agent: "agents/b", PageToken: token})
		if r := classify(err); r == nil || r.reason != loopdv1.ErrorReason_ERROR_REASON_PAGE_TOKEN_INVALID {
			t.Errorf("%s: got %v, want PAGE_TOKEN_INVALID", name, err)
		}
	}
}

func TestHubWakesWhoWaits(t *testing.T) {
	t.Parallel()
	h := newHub()
	a, leaveA := h.subscribe("a")
	b, leaveB := h.subscribe("b")
	h.wake("a")
	h.wake("a") // two wakes that nobody read are one
	expectWakes(t, "after a woke", map[string]int{"a": len(a), "b": len(b)}, map[string]int{"a": 1, "b": 0})
	<-a
	h.wake("")
	expectWakes(t, "after all woke", map[string]int{"a": len(a), "b": len(b)}, map[string]int{"a": 1, "b": 1})
	leaveA()
	leaveB()
	if len(h.waiting) != 0 {
		t.Errorf("%d runs are still waited for", len(h.waiting))
	}
}

func expectWakes(t *testing.T, when string, got, want map[string]int) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("wakes %s (-want +got):\n%s", when, diff)
	}
}

func TestTooManyAgentsShareALabel(t *testing.T) {
	t.Parallel()
	m := &metrics{agents: make(map[string]bool)}
	for i := range maxAgentLabels {
		name := string(rune('a' + i))
		if got := m.agentLabel(name); got != name {
			t.Errorf("label of agent %s is %s", name, got)
		}
	}
	if got := m.agentLabel("one-more"); got != "_other" {
		t.Errorf("label of one agent too many is %q", got)
	}
	if got := m.agentLabel("a"); got != "a" {
		t.Errorf("label of the first agent became %q", got)
	}
}
