package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
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
			loop.CallOffered, loop.CallSucceeded, loop.CallFailed, loop.CallNotSent, loop.CallInDoubt, loop.CallSkipped, loop.CallCancelled)},
		{loopdv1.Effect(0), "EFFECT_", words(loop.ReadOnly, loop.Idempotent, loop.SideEffect, loop.Irreversible)},
		{loopdv1.GuardVerdict(0), "GUARD_VERDICT_", []string{"NUDGE", "WRAP_UP", "PAUSE", "STOP"}},
		{loopdv1.Priority(0), "PRIORITY_", words(loop.PriorityLow, loop.PriorityNormal, loop.PriorityHigh)},
		{loopdv1.Role(0), "ROLE_", words(loop.RoleUser, loop.RoleAssistant)},
		{loopdv1.Resolution(0), "RESOLUTION_", words(loop.ResolvedSucceeded, loop.ResolvedNotExecuted, loop.ResolvedRetry)},
		{loopdv1.RequiredAction_Kind(0), "KIND_", []string{"APPROVE", "RESOLVE", "SUBMIT", "ANSWER", "RAISE"}},
		{loopdv1.ApprovalMode(0), "APPROVAL_MODE_", words(loop.ApprovalNever, loop.ApprovalAlways, loop.ApprovalWhen)},
		{loopdv1.Builtin(0), "BUILTIN_", words(
			loop.BuiltinWait, loop.BuiltinAskHuman, loop.BuiltinFinish, loop.BuiltinMemoryGet, loop.BuiltinMemoryPut, loop.BuiltinMemorySearch, loop.BuiltinReadResult)},
		{loopdv1.OnDoubt(0), "ON_DOUBT_", words(loop.DoubtWaits, loop.DoubtTellsModel)},
		{loopdv1.HttpBody(0), "HTTP_BODY_", []string{"JSON", "FORM", "NONE"}},
		{loopdv1.ApprovalState(0), "APPROVAL_STATE_", words(
			postgres.ApprovalPending, postgres.ApprovalApproved, postgres.ApprovalDenied, postgres.ApprovalExpired, postgres.ApprovalCancelled)},
		{loopdv1.Approval_Kind(0), "KIND_", words(postgres.KindApprove, postgres.KindAnswer)},
		{loopdv1.BudgetWindow(0), "BUDGET_WINDOW_", words(
			postgres.WindowRun, postgres.WindowHour, postgres.WindowDay, postgres.WindowMonth, postgres.WindowTotal)},
		{loopdv1.BudgetEventKind(0), "BUDGET_EVENT_KIND_", words(
			postgres.BudgetCreated, postgres.BudgetChanged, postgres.BudgetArchived, postgres.BudgetThreshold)},
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

// TestOutOfTime: judging leaves time for the answer, and ends where nobody set a
// deadline.
func TestOutOfTime(t *testing.T) {
	t.Parallel()
	for wait, most := range map[time.Duration]time.Duration{0: judgePatience, 10 * time.Second: 7 * time.Second, time.Hour: judgePatience} {
		ctx := t.Context()
		if wait > 0 {
			limited, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			ctx = limited
		}
		if left := time.Until(outOfTime(ctx)); left > most || left < most-5*time.Second {
			t.Errorf("with a deadline in %s, %s are used, want %s", wait, left, most)
		}
	}
}

// TestGuardVerdictsConvert: one word of journals is another one in the API.
func TestGuardVerdictsConvert(t *testing.T) {
	t.Parallel()
	for word, want := range map[loop.Verdict]loopdv1.GuardVerdict{
		"": loopdv1.GuardVerdict_GUARD_VERDICT_UNSPECIFIED, loop.VerdictNudge: loopdv1.GuardVerdict_GUARD_VERDICT_NUDGE,
		loop.VerdictFinalTurn: loopdv1.GuardVerdict_GUARD_VERDICT_WRAP_UP, loop.VerdictPause: loopdv1.GuardVerdict_GUARD_VERDICT_PAUSE,
		loop.VerdictStop: loopdv1.GuardVerdict_GUARD_VERDICT_STOP,
	} {
		if got := guardVerdictProto(word); got != want || guardVerdictOf(want) != word {
			t.Errorf("%q is shown as %s and read back as %q", word, got, guardVerdictOf(want))
		}
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
	if got := callStateOf(callStateProto(loop.CallOffered)); got != loop.CallOffered {
		t.Errorf("call state comes back as %q", got)
	}
	if got := builtinOf(loopdv1.Builtin_BUILTIN_ASK_HUMAN); got != loop.BuiltinAskHuman {
		t.Errorf("a built-in tool comes back as %q", got)
	}
	if got := doubtRuleOf(loopdv1.OnDoubt_ON_DOUBT_TELL_MODEL); got != loop.DoubtTellsModel {
		t.Errorf("the rule for doubt comes back as %q", got)
	}
	if got := approvalModeOf(loopdv1.ApprovalMode_APPROVAL_MODE_WHEN); got != loop.ApprovalWhen {
		t.Errorf("an approval mode comes back as %q", got)
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

// TestErrorsBecomeStatuses covers the errors that no request can provoke at will.
func TestErrorsBecomeStatuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		code   codes.Code
		reason string
	}{
		"key reused":      {fmt.Errorf("x: %w", postgres.ErrKeyReused), codes.AlreadyExists, "IDEMPOTENCY_KEY_REUSED"},
		"run finished":    {fmt.Errorf("x: %w", postgres.ErrRunFinished), codes.FailedPrecondition, "RUN_FINISHED"},
		"agent exists":    {fmt.Errorf("x: %w", postgres.ErrAgentExists), codes.AlreadyExists, "AGENT_EXISTS"},
		"agent archived":  {fmt.Errorf("x: %w", postgres.ErrAgentArchived), codes.FailedPrecondition, "AGENT_ARCHIVED"},
		"no such version": {fmt.Errorf("x: %w", postgres.ErrVersionNotFound), codes.NotFound, "AGENT_VERSION_NOT_FOUND"},
		"not available":   {fmt.Errorf("x: %w: %w", postgres.ErrUnavailable, context.DeadlineExceeded), codes.Unavailable, "STORE_UNAVAILABLE"},
		"unknown outcome": {fmt.Errorf("x: %w", postgres.ErrUnknownOutcome), codes.Unavailable, "STORE_UNAVAILABLE"},
		"old schema":      {postgres.ErrSchema, codes.Unavailable, "STORE_UNAVAILABLE"},
		"a run of none":   {named(fmt.Errorf("x: %w", loop.ErrNotFound), loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "run", "runs/1"), codes.NotFound, "RUN_NOT_FOUND"},
		"unheard of":      {errors.New("password authentication failed for user loopd"), codes.Internal, "INTERNAL"},
		"broken journal":  {fmt.Errorf("x: %w", loop.ErrImpossible), codes.Internal, "INTERNAL"},
		"client gone":     {fmt.Errorf("x: %w", context.Canceled), codes.Canceled, ""},
		"too slow":        {fmt.Errorf("x: %w", context.DeadlineExceeded), codes.DeadlineExceeded, ""},
		"shutting down":   {errDraining, codes.Unavailable, ""},
	} {
		st := toStatus(c.err, "id-1")
		reason := ""
		for _, detail := range st.Details() {
			if info, ok := detail.(*errdetails.ErrorInfo); ok {
				reason = info.GetReason()
			}
		}
		if st.Code() != c.code || reason != c.reason || strings.Contains(st.Message(), "password") {
			t.Errorf("%s: became %v with reason %q, want %v with %q", name, st, reason, c.code, c.reason)
		}
	}
}

// TestAPanicEndsItsCallOnly and is nothing that the client reads.
func TestAPanicEndsItsCallOnly(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := &Server{log: slog.New(slog.NewTextHandler(&log, nil)), gate: &gate{}}
	s.validator, _ = protovalidate.New()
	stream := &headerStream{ctx: grpc.NewContextWithServerTransportStream(t.Context(), transport{})}
	_, unary := s.unary(stream.ctx, &loopdv1.GetRunRequest{Name: "runs/" + uuid.Must(uuid.NewV7()).String()},
		&grpc.UnaryServerInfo{FullMethod: "/loopd.v1.RunService/GetRun"},
		func(context.Context, any) (any, error) { panic("the secret") })
	streamed := s.stream(nil, stream, &grpc.StreamServerInfo{FullMethod: "/loopd.v1.RunService/StreamEvents"},
		func(any, grpc.ServerStream) error { panic("the secret") })
	for name, err := range map[string]error{"unary": unary, "stream": streamed} {
		if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the panic became %v", name, err)
		}
	}
	if got := strings.Count(log.String(), "the secret"); got != 2 || !strings.Contains(log.String(), "internal_test.go") {
		t.Errorf("the log has %d panics, with stacks: %s", got, log.String())
	}
}

// headerStream takes headers and nothing else.
type headerStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (h *headerStream) Context() context.Context  { return h.ctx }
func (*headerStream) SetHeader(metadata.MD) error { return nil }

// transport is the same for unary calls.
type transport struct{}

func (transport) Method() string               { return "" }
func (transport) SetHeader(metadata.MD) error  { return nil }
func (transport) SendHeader(metadata.MD) error { return nil }
func (transport) SetTrailer(metadata.MD) error { return nil }

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

// TestLocated: a problem of a tool says which of its fields it is about.
func TestLocated(t *testing.T) {
	t.Parallel()
	for problem, want := range map[string]fieldError{
		"http.url: must be absolute":            {"tool.spec.http.url", "must be absolute"},
		`http.headers["X-A"]: set by loopd: no`: {`tool.spec.http.headers["X-A"]`, "set by loopd: no"},
		"schema: must be an object":             {"tool.spec.input_schema", "must be an object"},
		"a secret: is not set":                  {"tool.spec", "a secret: is not set"},
		"nothing to say":                        {"tool.spec", "nothing to say"},
	} {
		if got := located("tool.spec", problem); got != want {
			t.Errorf("located(%q) = %v, want %v", problem, got, want)
		}
	}
}

func TestIDsOfImportedTools(t *testing.T) {
	t.Parallel()
	taken := make(map[string]bool)
	for _, c := range []struct{ name, want string }{
		{"get_Order", "get-order"}, {"get__order_", "get-order-2"}, {"2fa", "tool-2fa"}, {"___", "tool"},
		{strings.Repeat("a", 64), strings.Repeat("a", 63)}, {strings.Repeat("a", 63), strings.Repeat("a", 61) + "-2"},
	} {
		if got := idFor(c.name, taken); got != c.want {
			t.Errorf("the id for %q is %q, want %q", c.name, got, c.want)
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
	a, leaveA := h.subscribe(loop.RunRef{Tenant: "t", ID: "a"})
	b, leaveB := h.subscribe(loop.RunRef{Tenant: "t", ID: "b"})
	h.wake(postgres.ReleaseNotice("a"))
	h.wake(postgres.ReleaseNotice("a")) // two wakes that nobody read are one
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
