package loop_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/loopd/loopd/internal/loop"
)

// fold makes a run of spec and applies bodies, one second apart.
func fold(t *testing.T, spec loop.Spec, bodies ...loop.Body) *loop.State {
	t.Helper()
	s, err := loop.Fold(theRun, []loop.Event{
		{Seq: 1, At: epoch0, Body: loop.Created{Spec: spec}},
		{Seq: 2, At: epoch0, Epoch: 1, Body: loop.Claimed{Attempt: 1, Worker: "w1"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	apply(t, s, bodies...)
	return s
}

func apply(t *testing.T, s *loop.State, bodies ...loop.Body) {
	t.Helper()
	for _, b := range bodies {
		if err := s.Apply(loop.Event{Seq: s.Seq() + 1, At: epoch0.Add(time.Duration(s.Seq()) * time.Second), Epoch: 1, Body: b}); err != nil {
			t.Fatal(err)
		}
	}
}

// answered is a model answer with these calls, each named after its tool.
func answered(n int, calls ...loop.ToolCall) []loop.Body {
	m := loop.Message{Role: loop.RoleAssistant, Parts: []loop.Part{loop.TextPart("Working.")}}
	for _, c := range calls {
		m.Parts = append(m.Parts, loop.Part{Kind: loop.PartToolCall, Call: &c})
	}
	return []loop.Body{
		loop.ModelStarted{Call: n, MaxOutput: 100, InputBound: 100, Hold: loop.OneUSD / 10},
		loop.ModelAnswered{Call: n, Message: m, Finish: loop.FinishToolCalls},
	}
}

func toolSpec() loop.Spec {
	return loop.Spec{Agent: "agents/a", Limits: loop.Defaults(), Price: sonnet(), Definition: loop.AgentSpec{Model: "sim/one", Tools: tools()}}
}

// TestImpossible: a journal that no run can have written is not folded.
func TestImpossible(t *testing.T) {
	t.Parallel()
	look, mail, refund := loop.ToolCall{ID: "look", Name: "look"}, loop.ToolCall{ID: "mail", Name: "mail"}, loop.ToolCall{ID: "refund", Name: "refund"}
	with := func(more ...loop.Body) []loop.Body { return append(answered(1, look, mail, refund), more...) }
	began := func(id string, attempt int) loop.Body { return loop.CallBegun{CallID: id, Attempt: attempt} }
	asked := loop.ApprovalRequested{CallID: "refund", Until: epoch0.Add(time.Hour)}
	for name, c := range map[string]struct {
		before []loop.Body
		body   loop.Body
	}{
		"created twice":                      {nil, loop.Created{}},
		"attempt skipped":                    {nil, loop.Claimed{Attempt: 3}},
		"suspended twice":                    {[]loop.Body{loop.Suspended{}}, loop.Suspended{}},
		"model call skipped":                 {nil, loop.ModelStarted{Call: 2}},
		"two model calls":                    {[]loop.Body{loop.ModelStarted{Call: 1}}, loop.ModelStarted{Call: 2}},
		"answer without a call":              {nil, loop.ModelAnswered{Call: 1}},
		"answer to another call":             {[]loop.Body{loop.ModelStarted{Call: 1}}, loop.ModelAnswered{Call: 2}},
		"failure without a call":             {nil, loop.ModelFailed{Call: 1, Class: loop.ErrorServer}},
		"unknown call refused":               {with(), loop.CallRefused{CallID: "other"}},
		"ended call refused":                 {with(loop.CallRefused{CallID: "look"}), loop.CallRefused{CallID: "look"}},
		"unknown call begun":                 {with(), began("other", 1)},
		"first send is the second":           {with(), began("look", 2)},
		"side effect sent again":             {with(began("mail", 1)), began("mail", 2)},
		"irreversible without approval":      {with(), began("refund", 1)},
		"irreversible while it waits":        {with(asked), began("refund", 1)},
		"approval asked twice":               {with(asked), asked},
		"approval nobody asked for":          {with(), loop.ApprovalDecided{CallID: "refund", Approved: true}},
		"approval of other arguments":        {with(asked), loop.ApprovalDecided{CallID: "refund", ArgsHash: "x", Approved: true}},
		"finished but never begun":           {with(), loop.CallFinished{CallID: "look", Attempt: 1}},
		"finished another attempt":           {with(began("look", 1)), loop.CallFinished{CallID: "look", Attempt: 2}},
		"finished twice":                     {with(began("look", 1), loop.CallFinished{CallID: "look", Attempt: 1}), loop.CallFinished{CallID: "look", Attempt: 1}},
		"in doubt but never begun":           {with(), loop.CallDoubted{CallID: "mail"}},
		"resolved without doubt":             {with(began("mail", 1)), loop.CallResolved{CallID: "mail", Resolution: loop.ResolvedRetry}},
		"resolved as nonsense":               {with(began("mail", 1), loop.CallDoubted{CallID: "mail"}), loop.CallResolved{CallID: "mail", Resolution: "maybe"}},
		"anything after the end":             {[]loop.Body{loop.Finished{}}, loop.CancelRequested{}},
		"a kind of a newer loopd, in memory": {nil, future{}},
	} {
		s := fold(t, toolSpec(), c.before...)
		err := s.Apply(loop.Event{Seq: s.Seq() + 1, At: epoch0, Body: c.body})
		if want := c.body.Kind(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), theRun.ID) {
			t.Errorf("%s: error %v does not name the run and %s", name, err, want)
		} else if _, newer := c.body.(future); !newer && !errors.Is(err, loop.ErrImpossible) {
			t.Errorf("%s: error %v is not ErrImpossible", name, err)
		}
	}
	created := loop.Event{Seq: 1, Body: loop.Created{Spec: toolSpec()}}
	for name, events := range map[string][]loop.Event{
		"no created":     {{Seq: 1, Body: loop.Claimed{Attempt: 1}}},
		"a gap":          {created, {Seq: 3, Body: loop.Claimed{Attempt: 1}}},
		"an event twice": {created, created},
		"begins at 2":    {{Seq: 2, Body: loop.Created{}}},
	} {
		if _, err := loop.Fold(theRun, events); !errors.Is(err, loop.ErrImpossible) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

type future struct{}

func (future) Kind() string { return "of_the_future" }

// TestAccepts: a signal that came too late is dropped, and breaks nothing.
func TestAccepts(t *testing.T) {
	t.Parallel()
	s := fold(t, toolSpec(), append(answered(1, loop.ToolCall{ID: "mail", Name: "mail"}, loop.ToolCall{ID: "refund", Name: "refund"}),
		loop.ApprovalRequested{CallID: "refund", Until: epoch0.Add(time.Hour)},
		loop.CallBegun{CallID: "mail", Attempt: 1}, loop.CallDoubted{CallID: "mail", Attempt: 1, Until: epoch0.Add(time.Hour)},
	)...)
	hash := loop.ArgsHash(theRun, loop.ToolCall{ID: "refund", Name: "refund"})
	check := func(want bool, b loop.Body) {
		t.Helper()
		if got := s.Accepts(b); got != want {
			t.Errorf("accepts %+v: %v", b, got)
		}
	}
	check(true, loop.ApprovalDecided{CallID: "refund", ArgsHash: hash})
	check(false, loop.ApprovalDecided{CallID: "refund", ArgsHash: "other"})
	check(false, loop.ApprovalDecided{CallID: "mail", ArgsHash: hash})
	check(true, loop.CallResolved{CallID: "mail", Resolution: loop.ResolvedRetry})
	check(false, loop.CallResolved{CallID: "mail", Resolution: "maybe"})
	check(false, loop.CallResolved{CallID: "refund", Resolution: loop.ResolvedRetry})
	check(false, loop.Claimed{Attempt: 2})
	check(true, loop.CancelRequested{})
	apply(t, s, loop.ApprovalDecided{CallID: "refund", ArgsHash: hash, Approved: true}, loop.CancelRequested{})
	check(false, loop.CancelRequested{})
	check(false, loop.ApprovalDecided{CallID: "refund", ArgsHash: hash})
	apply(t, s, loop.Finished{State: loop.StateCancelled})
	check(false, loop.CallResolved{CallID: "mail", Resolution: loop.ResolvedRetry})
}

// TestHead follows a run's read model through its life.
func TestHead(t *testing.T) {
	t.Parallel()
	s, err := loop.Fold(theRun, []loop.Event{{Seq: 1, At: epoch0, Body: loop.Created{Spec: toolSpec()}}})
	if err != nil {
		t.Fatal(err)
	}
	until := epoch0.Add(time.Hour)
	refund := loop.ToolCall{ID: "refund", Name: "refund", Args: "{}"}
	calls := answered(1, refund)
	for _, c := range []struct {
		body  loop.Body
		state loop.RunState
		phase string
	}{
		{nil, loop.StateQueued, "queue"},
		{loop.Claimed{Attempt: 1}, loop.StateRunning, "model"},
		{calls[0], loop.StateRunning, "model"},
		{loop.ModelFailed{Call: 1, Class: loop.ErrorThrottle}, loop.StateRunning, "backoff"},
		{loop.Suspended{Reason: loop.WaitBackoff, Until: until}, loop.StateQueued, "backoff"},
		{loop.Claimed{Attempt: 2}, loop.StateRunning, "backoff"},
		{loop.ModelStarted{Call: 2, Hold: 7}, loop.StateRunning, "model"},
		{func() loop.Body { a := calls[1].(loop.ModelAnswered); a.Call = 2; return a }(), loop.StateRunning, "tools"},
		{loop.ApprovalRequested{CallID: "refund", Until: until}, loop.StateRunning, "tools"},
		{loop.Suspended{Reason: loop.WaitApproval, Until: until}, loop.StateRequiresAction, "approval"},
		{loop.Claimed{Attempt: 3}, loop.StateRunning, "tools"},
		{loop.Suspended{Reason: loop.WaitDrain}, loop.StateQueued, "queue"},
		{loop.CancelRequested{}, loop.StateCancelling, "queue"},
		{loop.Finished{State: loop.StateCancelled, Stop: loop.Stop{Reason: loop.Cancelled}, Answer: "Working.", Partial: true}, loop.StateCancelled, ""},
	} {
		if c.body != nil {
			apply(t, s, c.body)
		}
		h := s.Head()
		if h.State != c.state || h.Phase != c.phase {
			t.Errorf("after %+v: %s %q, want %s %q", c.body, h.State, h.Phase, c.state, c.phase)
		}
		switch c.body.(type) {
		case loop.ModelStarted:
			if h.Held != s.OpenHold() || h.Held == 0 {
				t.Errorf("held %s", h.Held)
			}
		case loop.ApprovalRequested:
			want := []loop.RequiredAction{{
				Kind: "approve", CallID: "refund", Tool: "refund", Args: "{}", ArgsHash: loop.ArgsHash(theRun, refund), Deadline: until,
			}}
			if d := cmp.Diff(want, h.RequiredActions); d != "" {
				t.Errorf("required actions (-want +got):\n%s", d)
			}
		}
	}
	h := s.Head()
	if h.Stop == nil || h.Stop.Reason != loop.Cancelled || h.Answer != "Working." || !h.Partial || h.EndedAt.IsZero() || h.RequiredActions != nil || !h.WaitUntil.IsZero() {
		t.Errorf("head of an ended run: %+v", h)
	}
	if s.Run() != theRun || s.InAttempt() || s.Attempts() != 3 || len(s.Trips()) != 0 {
		t.Errorf("run %v, in attempt %v, attempts %d", s.Run(), s.InAttempt(), s.Attempts())
	}
}

// TestTakeChangedCalls: each changed call comes once, in the order of the calls.
func TestTakeChangedCalls(t *testing.T) {
	t.Parallel()
	take := func(s *loop.State) (ids []string) {
		for _, c := range s.TakeChangedCalls() {
			ids = append(ids, c.Call.ID+":"+string(c.State))
		}
		return ids
	}
	s := fold(t, toolSpec(), answered(1, loop.ToolCall{ID: "a", Name: "look"}, loop.ToolCall{ID: "b", Name: "put"}, loop.ToolCall{ID: "c", Name: "nope"})...)
	if got, want := take(s), []string{"a:PLANNED", "b:PLANNED", "c:PLANNED"}; !slices.Equal(got, want) {
		t.Errorf("planned: %v, want %v", got, want)
	}
	apply(t, s,
		loop.CallBegun{CallID: "b", Attempt: 1}, loop.CallBegun{CallID: "a", Attempt: 1},
		loop.CallFinished{CallID: "a", Attempt: 1, Outcome: loop.OutcomePermanent},
	)
	if got, want := take(s), []string{"a:FAILED", "b:STARTED"}; !slices.Equal(got, want) {
		t.Errorf("changed: %v, want %v", got, want)
	}
	if got := take(s); got != nil {
		t.Errorf("nothing changed, but got %v", got)
	}
}

// TestLabels: metrics never carry a word that the model made up.
func TestLabels(t *testing.T) {
	t.Parallel()
	s := fold(t, toolSpec(), answered(1, loop.ToolCall{ID: "a", Name: "look"}, loop.ToolCall{ID: "b", Name: "made up"})...)
	for id, want := range map[string]string{"a": "look", "b": "_unknown", "none": "_unknown"} {
		if got := s.ToolLabel(id); got != want {
			t.Errorf("call %s is counted under %q, want %q", id, got, want)
		}
	}
	if s.Spec().Agent != "agents/a" || !s.CreatedAt().Equal(epoch0) {
		t.Errorf("agent %q, created at %v", s.Spec().Agent, s.CreatedAt())
	}
}

// TestRequest: what a provider is sent, apart from the transcript.
func TestRequest(t *testing.T) {
	t.Parallel()
	spec := toolSpec()
	heat := 0.5
	spec.Definition.Instructions, spec.Definition.Temperature, spec.Input = "Be good.", &heat, "Hello"
	a := fold(t, spec).Next(epoch0).(loop.CallModel)
	want := loop.ModelRequest{
		Provider: "sim", Model: "one", Instructions: "Be good.", Tools: spec.Definition.Tools, MaxOutputTokens: 4096,
		ToolsAllowed: true, Temperature: &heat, CacheKey: theRun.ID,
		Messages: []loop.Message{{Role: loop.RoleUser, Source: loop.SourceInput, Parts: []loop.Part{loop.TextPart("Hello")}, Seq: 1, At: epoch0}},
	}
	if d := cmp.Diff(want, a.Request); d != "" {
		t.Errorf("request (-want +got):\n%s", d)
	}
	if want := epoch0.Add(10*time.Minute - 30*time.Second); !a.Deadline.Equal(want) {
		t.Errorf("the call may take until %v, want %v: the wrap-up needs its time", a.Deadline, want)
	}
}

func TestSplitModel(t *testing.T) {
	t.Parallel()
	for ref, want := range map[string][2]string{
		"openai/gpt": {"openai", "gpt"}, "router/meta/llama": {"router", "meta/llama"}, "gpt": {"", "gpt"}, "": {"", ""},
	} {
		if p, m := loop.SplitModel(ref); p != want[0] || m != want[1] {
			t.Errorf("%q: %q, %q", ref, p, m)
		}
	}
}

// TestRejection bounds what a re-ask says, however broken the answer is.
func TestRejection(t *testing.T) {
	t.Parallel()
	problems := slices.Repeat([]string{strings.Repeat("x", 5000)}, 50)
	r := loop.Rejection(loop.BySchema, problems)
	if len(r.Say) > 3000 || strings.Count(r.Say, "\n- ") != 11 || !strings.HasSuffix(r.Say, "and more") || len(r.Problems) != 50 {
		t.Errorf("%d bytes, %d lines", len(r.Say), strings.Count(r.Say, "\n- "))
	}
}

// TestClosedSets: the words that other parts switch over.
func TestClosedSets(t *testing.T) {
	t.Parallel()
	for class, want := range map[loop.ErrorClass]struct{ retry, free bool }{
		loop.ErrorNotStarted: {true, true}, loop.ErrorThrottle: {true, true}, loop.ErrorQuota: {false, true},
		loop.ErrorServer: {true, false}, loop.ErrorMidStream: {true, false}, loop.ErrorTimeout: {true, false},
		loop.ErrorContext: {false, true}, loop.ErrorRequest: {false, true}, loop.ErrorAuth: {false, true},
		loop.ErrorCancelled: {false, false}, loop.ErrorLost: {true, false}, loop.ErrorInternal: {false, false}, "": {false, false},
		loop.ErrorTextLoop: {false, false},
	} {
		if class.Retryable() != want.retry || class.Free() != want.free {
			t.Errorf("%s: retryable %v, free %v", class, class.Retryable(), class.Free())
		}
	}
	for _, s := range []loop.RunState{loop.StateSucceeded, loop.StateStopped, loop.StateFailed, loop.StateCancelled} {
		if !s.Terminal() {
			t.Errorf("%s is not terminal", s)
		}
	}
	for _, s := range []loop.RunState{loop.StateQueued, loop.StateRunning, loop.StateRequiresAction, loop.StatePaused, loop.StateCancelling, ""} {
		if s.Terminal() {
			t.Errorf("%q is terminal", s)
		}
	}
	reasons := loop.StopReasons()
	slices.Sort(reasons)
	if n := len(slices.Compact(reasons)); n != len(loop.StopReasons()) {
		t.Errorf("%d stop reasons, %d different", len(loop.StopReasons()), n)
	}
	if (loop.ToolResult{Outcome: loop.OutcomeOK}).IsError() || !(loop.ToolResult{Outcome: loop.OutcomeSkipped}).IsError() {
		t.Error("a result that is not ok must be marked for the model")
	}
	err := &loop.ModelError{Class: loop.ErrorThrottle, Code: "overloaded_error", Message: "try later"}
	if want := "model call failed: throttle (overloaded_error): try later"; err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}
