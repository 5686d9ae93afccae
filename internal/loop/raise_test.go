package loop_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/loopd/loopd/internal/loop"
)

// TestEveryLimitCanBeRaised: a limit that the rules for a raise do not know could be
// lowered by a resume, and never be raised.
func TestEveryLimitCanBeRaised(t *testing.T) {
	t.Parallel()
	inForce := loop.Defaults()
	for i, field := range reflect.VisibleFields(reflect.TypeFor[loop.Limits]()) {
		wider := inForce
		switch v := reflect.ValueOf(&wider).Elem().Field(i); v.Kind() {
		case reflect.Bool: // a switch
			continue
		case reflect.Float64:
			v.SetFloat(v.Float() + 1e-6)
		default:
			v.SetInt(v.Int() + 1)
		}
		raised := inForce.Raised(wider)
		if len(raised) != 1 || len(inForce.RaiseFaults(wider, false)) > 0 {
			t.Errorf("%s raised: %v, faults %v", field.Name, raised, inForce.RaiseFaults(wider, false))
			continue
		}
		faults := wider.RaiseFaults(inForce, false)
		if len(faults) != 1 || faults[0].Field != raised[0] || !strings.Contains(faults[0].Error(), "in force") {
			t.Errorf("%s lowered: %v", field.Name, faults)
		}
		// The names are those that Validate uses, so that the API finds them.
		reflect.ValueOf(&wider).Elem().Field(i).SetZero()
		for _, fault := range wider.Validate(loop.Ceilings()) {
			if fault.Field != raised[0] {
				t.Errorf("%s is %s here and %s there", field.Name, raised[0], fault.Field)
			}
		}
	}
}

// TestGuardsNameTheirLimit: what a guard asks to be raised can be raised.
func TestGuardsNameTheirLimit(t *testing.T) {
	t.Parallel()
	for _, guard := range []string{
		"deadline", "wall_time", "model_calls", "cost", "tokens", "iterations", "context", "tool_calls", "repeat", "same_call", "cycle",
		"frequency", "near_duplicate", "novelty", "monologue", "invalid_calls", "call_errors", "tool_errors", "errors",
	} {
		a := loop.RequiredAction{Kind: loop.RequireRaise, Guard: guard, Field: loop.LimitField(guard), Observed: "too much"}
		err := loop.CheckResume([]loop.RequiredAction{a}, loop.Defaults(), loop.Resumed{})
		var unraised *loop.NotRaisedError
		if !errors.As(err, &unraised) || unraised.Field == "" || unraised.InForce == "" || !strings.Contains(err.Error(), unraised.Field+" above the "+unraised.InForce) {
			t.Errorf("guard %s: %v", guard, err)
		}
	}
	if field := loop.LimitField("in_doubt"); field != "" {
		t.Errorf("in_doubt is held to %s", field)
	}
}

func TestCheckResume(t *testing.T) {
	t.Parallel()
	inForce := loop.Defaults()
	limits := func(change func(*loop.Limits)) *loop.Limits {
		l := inForce
		change(&l)
		return &l
	}
	cost := loop.RequiredAction{Kind: loop.RequireRaise, Guard: "cost", Field: "max_cost_usd", Observed: "0.9 USD spent"}
	repeat := loop.RequiredAction{Kind: loop.RequireRaise, Guard: "repeat", Field: "max_identical_iterations", TakesInput: true}
	words := loop.RequiredAction{Kind: loop.RequireRaise, Guard: "checkpoint", TakesInput: true}
	nothing := loop.RequiredAction{Kind: loop.RequireRaise, Guard: "of_the_future", Field: "max_dreams"}
	approve := loop.RequiredAction{Kind: loop.RequireApprove, CallID: "c1-1"}
	dearer := limits(func(l *loop.Limits) { l.Cost++ })
	for _, c := range []struct {
		name     string
		required []loop.RequiredAction
		resumed  loop.Resumed
		want     string
	}{
		{"nothing is required", []loop.RequiredAction{approve}, loop.Resumed{}, ""},
		{"unchanged", []loop.RequiredAction{cost}, loop.Resumed{}, "guard cost paused the run (observed: 0.9 USD spent): raise max_cost_usd above the 1 in force"},
		{"the same limits", []loop.RequiredAction{cost}, loop.Resumed{Limits: &inForce}, "guard cost paused the run (observed: 0.9 USD spent): raise max_cost_usd above the 1 in force"},
		{"an input instead of money", []loop.RequiredAction{cost}, loop.Resumed{Input: "go on"}, "guard cost paused the run (observed: 0.9 USD spent): raise max_cost_usd above the 1 in force"},
		{"another limit", []loop.RequiredAction{cost}, loop.Resumed{Limits: limits(func(l *loop.Limits) { l.Iterations++ })}, "guard cost paused the run (observed: 0.9 USD spent): raise max_cost_usd above the 1 in force"},
		{"a picodollar more", []loop.RequiredAction{cost}, loop.Resumed{Limits: dearer}, ""},
		{"no progress", []loop.RequiredAction{repeat}, loop.Resumed{}, "guard repeat paused the run: raise max_identical_iterations above the 3 in force, or give an input"},
		{"no progress, input", []loop.RequiredAction{repeat}, loop.Resumed{Input: "look elsewhere"}, ""},
		{"no progress, raised", []loop.RequiredAction{repeat}, loop.Resumed{Limits: limits(func(l *loop.Limits) { l.IdenticalIters++ })}, ""},
		{"only an input", []loop.RequiredAction{words}, loop.Resumed{Limits: dearer}, "guard checkpoint paused the run: give an input to resume it"},
		{"two, one raised", []loop.RequiredAction{cost, repeat}, loop.Resumed{Limits: dearer}, "guard repeat paused the run: raise max_identical_iterations above the 3 in force, or give an input"},
		{"two, both", []loop.RequiredAction{cost, repeat}, loop.Resumed{Limits: dearer, Input: "look elsewhere"}, ""},
		{"a limit that nobody knows", []loop.RequiredAction{nothing}, loop.Resumed{Limits: dearer}, "guard of_the_future paused the run: raise max_dreams"},
	} {
		got := ""
		if err := loop.CheckResume(c.required, inForce, c.resumed); err != nil {
			got = err.Error()
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

// TestChildIsNotRaised: what a child run may spend is held by its parent, so that no
// raise of the child may go beyond it.
func TestChildIsNotRaised(t *testing.T) {
	t.Parallel()
	inForce := loop.Defaults()
	wider := inForce
	wider.Cost, wider.TotalTokens, wider.ModelCalls = 2*loop.OneUSD, 1e6, 50
	wider.Deadline, wider.WallTime, wider.Iterations = time.Hour, 48*time.Hour, 20
	var fields []string
	for _, fault := range inForce.RaiseFaults(wider, true) {
		fields = append(fields, fault.Field)
	}
	want := []string{"deadline", "max_cost_usd", "max_total_tokens", "max_model_calls", "max_wall_time"}
	if d := cmp.Diff(want, fields); d != "" {
		t.Errorf("faults of a child (-want +got):\n%s", d)
	}
	if faults := inForce.RaiseFaults(wider, false); len(faults) > 0 {
		t.Errorf("faults of a run without a parent: %v", faults)
	}
}

// TestPausedHead follows the head through both kinds of pause, and what the run
// takes meanwhile.
func TestPausedHead(t *testing.T) {
	t.Parallel()
	spec := toolSpec()
	spec.Limits.Iterations = 2
	spec.Definition.Acts = map[string]loop.Verdict{"iterations": loop.VerdictPause}
	until := epoch0.Add(time.Hour)
	trip := loop.Tripped{Guard: "iterations", Verdict: loop.VerdictPause, Reason: loop.IterationCap, Observed: "1", Limit: "2", Message: "enough", Until: until, Field: "max_iterations"}
	raised := spec.Limits
	raised.Iterations = 5
	s, err := loop.Fold(theRun, []loop.Event{{Seq: 1, At: epoch0, Body: loop.Created{Spec: spec}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		body           loop.Body
		state          loop.RunState
		phase          string
		pauses, resume bool // what it takes next
	}{
		{loop.Claimed{Attempt: 1}, loop.StateRunning, "model", true, false},
		{loop.PauseRequested{}, loop.StateRunning, "paused", false, true},
		{loop.Suspended{Reason: loop.WaitPaused, Until: until}, loop.StatePaused, "paused", false, true},
		{loop.Claimed{Attempt: 2}, loop.StateRunning, "paused", false, true},
		{loop.Resumed{}, loop.StateRunning, "model", true, false},
		{trip, loop.StateRunning, "raise", false, false},
		{loop.Suspended{Reason: loop.WaitRaise, Until: until}, loop.StateRequiresAction, "raise", false, false},
		{loop.Claimed{Attempt: 3}, loop.StateRunning, "raise", false, false},
		{loop.Resumed{Limits: &raised}, loop.StateRunning, "model", true, false},
		{loop.AccountRefused{Budget: "budgets/acme", Act: loop.VerdictPause}, loop.StateRunning, "model", true, true},
		{loop.Suspended{Reason: loop.WaitBudget, Until: until}, loop.StatePaused, "budget", true, true},
		{loop.Claimed{Attempt: 4}, loop.StateRunning, "model", true, true},
		{loop.Resumed{}, loop.StateRunning, "model", true, false},
		{loop.CancelRequested{}, loop.StateCancelling, "model", false, false},
	} {
		apply(t, s, c.body)
		h := s.Head()
		if h.State != c.state || h.Phase != c.phase {
			t.Errorf("after %+v: %s %q, want %s %q", c.body, h.State, h.Phase, c.state, c.phase)
		}
		if got := s.Accepts(loop.PauseRequested{}); got != c.pauses {
			t.Errorf("after %+v: takes a pause: %v", c.body, got)
		}
		if got := s.Accepts(loop.Resumed{}); got != c.resume {
			t.Errorf("after %+v: takes a resume without a raise: %v", c.body, got)
		}
		if c.phase == "raise" {
			want := []loop.RequiredAction{{Kind: "raise", Guard: "iterations", Field: "max_iterations", Observed: "1", Deadline: until, Reason: "enough"}}
			if d := cmp.Diff(want, h.RequiredActions); d != "" {
				t.Errorf("required (-want +got):\n%s", d)
			}
		} else if len(h.RequiredActions) > 0 {
			t.Errorf("after %+v: requires %+v", c.body, h.RequiredActions)
		}
	}
	if s.Limits() != raised || s.Spec().Limits != raised {
		t.Errorf("limits in force: %+v", s.Limits())
	}
}

// TestResumedMustFollowAPause: a journal that lowers limits, or resumes what was not
// paused, is broken.
func TestResumedMustFollowAPause(t *testing.T) {
	t.Parallel()
	lower := loop.Defaults()
	lower.Cost--
	for name, events := range map[string][]loop.Body{
		"not paused":       {loop.Resumed{}},
		"lowered":          {loop.PauseRequested{}, loop.Resumed{Limits: &lower}},
		"resumed twice":    {loop.PauseRequested{}, loop.Resumed{}, loop.Resumed{}},
		"a final turn":     {loop.Tripped{Guard: "cost", Verdict: loop.VerdictFinalTurn}, loop.Resumed{}},
		"refused for good": {loop.AccountRefused{Act: loop.VerdictStop}, loop.Resumed{}},
	} {
		s := fold(t, toolSpec())
		var err error
		for _, b := range events {
			if err = s.Apply(loop.Event{Seq: s.Seq() + 1, At: epoch0, Body: b}); err != nil {
				break
			}
		}
		if !errors.Is(err, loop.ErrImpossible) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
