package loop

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCheckActs(t *testing.T) {
	t.Parallel()
	for _, g := range Guards() {
		for _, v := range g.Acts {
			for _, fault := range CheckActs(map[string]Verdict{g.Name: v}) {
				t.Errorf("%s may be %s, but: %v", g.Name, v, fault)
			}
		}
	}
	got := CheckActs(map[string]Verdict{
		"cost": VerdictNudge, "repeats": VerdictStop, "wall_time": VerdictPause, "account": VerdictStop, "novelty": "", "errors": VerdictNudge,
	})
	want := []*ActError{
		{"account", "the budget says what it does, not an agent: leave it out"},
		{"cost", "it cannot be GUARD_VERDICT_NUDGE: use GUARD_VERDICT_WRAP_UP, GUARD_VERDICT_PAUSE or GUARD_VERDICT_STOP"},
		{"novelty", "it cannot be GUARD_VERDICT_UNSPECIFIED: use GUARD_VERDICT_NUDGE, GUARD_VERDICT_WRAP_UP, GUARD_VERDICT_PAUSE or GUARD_VERDICT_STOP"},
		{"repeats", "there is no such guard; the closest: repeat, tokens, novelty"},
		{"wall_time", "it cannot be GUARD_VERDICT_PAUSE: use GUARD_VERDICT_STOP"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("faults (-want +got):\n%s", d)
	}
}

// TestBudgetsAreNeverObserved: who may turn a budget into a remark has none.
func TestBudgetsAreNeverObserved(t *testing.T) {
	t.Parallel()
	observed := map[string]bool{}
	for _, g := range Guards() {
		for _, v := range g.Acts {
			if v == VerdictNudge {
				observed[g.Name] = true
			}
		}
	}
	want := map[string]bool{
		"repeat": true, "same_call": true, "cycle": true, "frequency": true, "near_duplicate": true, "novelty": true,
		"monologue": true, "invalid_calls": true, "call_errors": true, "tool_errors": true, "errors": true,
	}
	if d := cmp.Diff(want, observed); d != "" {
		t.Errorf("guards that may be observed (-want +got):\n%s", d)
	}
	s := &State{}
	s.spec.Definition.Acts = map[string]Verdict{"cost": VerdictNudge, "wall_time": VerdictPause, "nothing": VerdictStop}
	for name := range s.spec.Definition.Acts {
		if got := s.wanted(name); got != "" {
			t.Errorf("a journal makes %s act as %s", name, got)
		}
	}
}

// TestActs: what an agent wants of a guard, where it can be had.
func TestActs(t *testing.T) {
	t.Parallel()
	tools := []ToolSpec{{Name: "search", Effect: ReadOnly}}
	for name, c := range map[string]struct {
		trip  Tripped
		act   Verdict
		tools []ToolSpec
		want  Verdict
		was   Verdict // its default, if it is not what is done
	}{
		"default":                                {Tripped{Guard: "cost", Verdict: VerdictFinalTurn, Reason: CostBudget}, "", tools, VerdictFinalTurn, ""},
		"as by default":                          {Tripped{Guard: "cost", Verdict: VerdictFinalTurn, Reason: CostBudget}, VerdictFinalTurn, tools, VerdictFinalTurn, ""},
		"paused":                                 {Tripped{Guard: "cost", Verdict: VerdictFinalTurn, Reason: CostBudget}, VerdictPause, tools, VerdictPause, VerdictFinalTurn},
		"stopped":                                {Tripped{Guard: "cost", Verdict: VerdictFinalTurn, Reason: CostBudget}, VerdictStop, tools, VerdictStop, VerdictFinalTurn},
		"a budget is not observed":               {Tripped{Guard: "cost", Verdict: VerdictFinalTurn, Reason: CostBudget}, VerdictNudge, tools, VerdictFinalTurn, ""},
		"without tools":                          {Tripped{Guard: "cost", Verdict: VerdictFinalTurn, Reason: CostBudget}, "", nil, VerdictStop, ""},
		"paused without tools":                   {Tripped{Guard: "cost", Verdict: VerdictFinalTurn, Reason: CostBudget}, VerdictPause, nil, VerdictPause, VerdictStop},
		"observed":                               {Tripped{Guard: "repeat", Verdict: VerdictStop, Reason: RepeatCall}, VerdictNudge, tools, VerdictNudge, VerdictStop},
		"a last answer for no progress":          {Tripped{Guard: "repeat", Verdict: VerdictStop, Reason: RepeatCall}, VerdictFinalTurn, tools, VerdictFinalTurn, VerdictStop},
		"no last answer without tools":           {Tripped{Guard: "repeat", Verdict: VerdictStop, Reason: RepeatCall}, VerdictFinalTurn, nil, VerdictStop, ""},
		"no last answer when time is up":         {Tripped{Guard: "deadline", Verdict: VerdictStop, Reason: Deadline}, VerdictFinalTurn, tools, VerdictStop, ""},
		"a pause when time is up":                {Tripped{Guard: "deadline", Verdict: VerdictStop, Reason: Deadline}, VerdictPause, tools, VerdictPause, VerdictStop},
		"a pause when no calls are left":         {Tripped{Guard: "model_calls", Verdict: VerdictStop, Reason: ModelCallCap}, VerdictPause, tools, VerdictPause, VerdictStop},
		"no pause where nothing can be raised":   {Tripped{Guard: "context", Verdict: VerdictStop, Reason: ContextWindow}, VerdictPause, tools, VerdictStop, ""},
		"a pause where the share can be raised":  {Tripped{Guard: "context", Verdict: VerdictFinalTurn, Reason: ContextRot}, VerdictPause, tools, VerdictPause, VerdictFinalTurn},
		"what ends by itself ends all the same":  {Tripped{Guard: "wall_time", Verdict: VerdictStop, Reason: WallTime}, VerdictPause, tools, VerdictStop, ""},
		"of an unknown guard nothing is changed": {Tripped{Guard: "new", Verdict: VerdictStop, Reason: CostBudget}, VerdictNudge, tools, VerdictStop, ""},
	} {
		s := &State{}
		s.spec.Definition.Tools, s.spec.Limits = c.tools, Defaults()
		if c.act != "" {
			s.spec.Definition.Acts = map[string]Verdict{c.trip.Guard: c.act}
		}
		got := c.trip
		if s.act(&got); got.Verdict != c.want || got.Default != c.was {
			t.Errorf("%s: %s instead of %q, want %s instead of %q", name, got.Verdict, got.Default, c.want, c.was)
		}
	}
}

// TestEnd: the run acts on the first trip that ends it, else on the pauses, and what
// else is on record changes nothing.
func TestEnd(t *testing.T) {
	t.Parallel()
	trip := func(guard string, v, was Verdict) Tripped {
		return Tripped{Guard: guard, Verdict: v, Default: was, Say: "x"}
	}
	cost, repeat := trip("cost", VerdictFinalTurn, ""), trip("repeat", VerdictStop, VerdictFinalTurn)
	paused, seen := trip("iterations", VerdictPause, VerdictFinalTurn), trip("errors", VerdictNudge, VerdictFinalTurn)
	for name, c := range map[string]struct {
		ending, telling []Tripped
		want            string
	}{
		"one":                            {[]Tripped{cost}, nil, "cost final_turn"},
		"two":                            {[]Tripped{cost, repeat}, nil, "cost final_turn, repeat stop"},
		"a pause that an end follows":    {[]Tripped{paused, cost}, []Tripped{seen}, "cost final_turn, iterations final_turn, errors nudge"},
		"a pause":                        {[]Tripped{paused}, []Tripped{seen}, "iterations pause, errors nudge"},
		"a pause that is not waited for": {[]Tripped{cost, paused}, nil, "cost final_turn, iterations final_turn"},
		"a nudge beside":                 {[]Tripped{cost}, []Tripped{trip("novelty", VerdictNudge, ""), seen}, "cost final_turn, errors nudge"},
	} {
		var got []string
		trips := (&State{}).end(c.ending, c.telling)
		for i, trip := range trips {
			got = append(got, trip.Guard+" "+string(trip.Verdict))
			if i > 0 && trip.Verdict == VerdictNudge && trip.Say != "" {
				t.Errorf("%s: %s is told while the run ends", name, trip.Guard)
			}
		}
		if d := cmp.Diff(c.want, strings.Join(got, ", ")); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		if says := trips[0].Say == finalWords; says != (trips[0].Verdict == VerdictFinalTurn) {
			t.Errorf("%s: the first says %q", name, trips[0].Say)
		}
	}
}

// TestPauseVerdict: a guard that is to pause suspends the run, and says what was
// measured. How long, and what ends it, is not the guard's to say.
func TestPauseVerdict(t *testing.T) {
	t.Parallel()
	s := busy(t, 3)
	s.spec.Limits.Iterations, s.spec.Definition.Acts = 4, map[string]Verdict{"iterations": VerdictPause}
	trips := s.trip(plan{}, s.tenure.since)
	if len(trips) != 1 || trips[0].Verdict != VerdictPause || trips[0].Default != VerdictFinalTurn || !trips[0].Until.IsZero() || trips[0].Reason != IterationCap {
		t.Fatalf("trips %+v", trips)
	}
	action, ok := s.Next(s.tenure.since).(Suspend)
	if !ok || len(action.Intent()) == 0 {
		t.Fatalf("a pause gives %#v", action)
	}
	if first, ok := action.Intent()[0].(Tripped); !ok || first.Verdict != VerdictPause || len(first.Gauges) == 0 {
		t.Errorf("the first fact of a pause is %+v", action.Intent()[0])
	}
}

// TestProofIsBounded: every iteration is in the proof, but not every call of it.
func TestProofIsBounded(t *testing.T) {
	t.Parallel()
	s := busy(t, 20)
	ev := s.proof(20)
	if len(ev) != 40 || ev[1].Note != "and 6 more calls of this iteration" {
		t.Errorf("the proof of 20 iterations of 8 calls has %d lines, the second says %q", len(ev), ev[1].Note)
	}
	for i, e := range ev {
		if e.Iteration != i/2+1 || e.ArgsHash == "" || e.ResultHash == "" || e.CallID == "" {
			t.Errorf("line %d of the proof: %+v", i, e)
		}
	}
	if n := len(s.proof(6)); n != 48 {
		t.Errorf("the proof of 6 iterations of 8 calls has %d lines, want all 48", n)
	}
}

// TestGaugesAgreeWithGuards: a guard trips when its gauge is at the limit, or its
// budget has no room for the next call.
func TestGaugesAgreeWithGuards(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, g := range Guards() {
		known[g.Name] = true
	}
	s := busy(t, 5)
	read := s.gauges(s.tenure.since.Add(90 * time.Second))
	for i, g := range read {
		if !known[g.Guard] || g.Unit == "" || g.Limit <= 0 || g.Observed < 0 {
			t.Errorf("gauge %+v", g)
		}
		if i > 0 && read[i-1].Guard == g.Guard {
			t.Errorf("two gauges of %s", g.Guard)
		}
	}
	byName := map[string]Gauge{}
	for _, g := range read {
		byName[g.Guard] = g
	}
	for _, want := range []Gauge{
		{"deadline", 90, 600, "s"}, {"iterations", 5, 1 << 40, "iterations"}, {"tool_calls", 40, 1 << 40, "calls"}, {"novelty", 0, 9, "iterations"},
	} {
		if got := byName[want.Guard]; got != want {
			t.Errorf("gauge %+v, want %+v", got, want)
		}
	}
	s.spec.Limits.Cycles, s.spec.Limits.Monologue = 0, 0 // as in old journals
	for _, g := range s.gauges(s.tenure.since) {
		if g.Guard == "cycle" || g.Guard == "monologue" {
			t.Errorf("a guard that is off measures %+v", g)
		}
	}
}
