package loop_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/loopd/loopd/internal/loop"
)

// TestLadderIsABacktest: what a suggestion says of a value is what a backtest of that
// value says, also where the suggester did not do one.
func TestLadderIsABacktest(t *testing.T) {
	tried, cut, stopped := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		h := live(t)
		if h.below(16) > 0 { // climbing takes ten times as long as living
			return
		}
		own, err := loop.Backtest(theRun, h.journal, loop.Policy{})
		if err != nil {
			t.Fatal(err)
		}
		profile, err := loop.ProfileRun(theRun, h.journal)
		if err != nil {
			t.Fatal(err)
		}
		generous := loop.Ceilings() // so that there is something to climb
		s := loop.NewSuggester(generous, 0.01, []loop.Profile{profile, peak(t, profile)})
		rungs := s.Rungs()
		if err := s.Try(theRun, h.journal); err != nil {
			t.Fatal(err)
		}
		field := pick(h, loop.LimitFields()...)
		for _, l := range s.Suggestions().Limits {
			for i, got := range l.Ladder {
				if l.Field != field { // each history tries one, else this takes minutes
					continue
				}
				j, err := loop.Backtest(theRun, h.journal, loop.Policy{Limits: func(limits loop.Limits) loop.Limits {
					v := rungs[l.Field][i]
					if now := loop.GetLimit(limits, l.Field); now == 0 && !strings.HasPrefix(l.Field, "max_tool_calls") || v < now {
						loop.SetLimit(&limits, l.Field, v)
					}
					return limits
				}})
				if err != nil {
					t.Fatal(err)
				}
				want := loop.Candidate{Value: got.Value}
				sooner := j.Trip != nil && (own.Trip == nil || j.Seq < own.Seq)
				switch {
				case j.State != loop.StateSucceeded && sooner:
					want.Stopped, want.Saved = 1, j.Saved-own.Saved
					stopped++
				case j.State == loop.StateSucceeded && own.Trip == nil && (sooner || j.Cut > own.Cut):
					want.Cut, want.Share = 1, 1
					cut++
				}
				tried++
				if d := cmp.Diff(want, got); d != "" {
					t.Fatalf("%s\n%s of %s (-backtest +suggester):\n%s", h.story(), l.Field, got.Value, d)
				}
			}
		}
	})
	if tried < 200 || cut == 0 || stopped == 0 {
		t.Errorf("%d values tried, %d cut a success, %d stopped another run: the test tries too little", tried, cut, stopped)
	}
}

// peak is a success that needed as much as the run, for ladders to be made of.
func peak(t *rapid.T, p loop.Profile) loop.Profile {
	succeeded, err := p.AsSuccess()
	if err != nil {
		t.Fatal(err)
	}
	return succeeded
}

// agentRun is a run that did so many iterations of one call each, at a cent per model
// call and a second per event.
type agentRun struct {
	iterations int
	same       bool // the same call with the same result, else always new ones
	state      loop.RunState
}

func (a agentRun) journal(limits loop.Limits) []loop.Event {
	price := loop.Price{Model: "sim/one", Rates: loop.Rates{Input: loop.MicroUSD, Output: loop.MicroUSD}, Window: 200_000}
	spec := loop.Spec{Agent: "agents/a", Input: "please", Limits: limits, Price: price}
	spec.Definition.Model = price.Model
	spec.Definition.Tools = []loop.ToolSpec{{Name: "look", Effect: loop.ReadOnly}}
	bodies := []loop.Body{loop.Created{Spec: spec}, loop.Claimed{Attempt: 1}}
	for n := 1; n <= a.iterations; n++ {
		answered := loop.ModelAnswered{
			Call: n, Finish: loop.FinishDone, Cost: loop.Cost{Output: loop.OneUSD / 100}, Usage: loop.Usage{InputUncached: 1000, Output: 100},
			Message: loop.Message{Role: loop.RoleAssistant, Source: loop.SourceModel, Parts: []loop.Part{loop.TextPart("done")}},
		}
		started := loop.ModelStarted{Call: n, Model: price.Model, MaxOutput: 4096, InputBound: 2000}
		if n == a.iterations && a.state == loop.StateSucceeded {
			bodies = append(bodies, started, answered, loop.AnswerAccepted{})
			continue
		}
		args := fmt.Sprintf(`{"n":%d}`, n)
		if a.same {
			args = `{}`
		}
		id := fmt.Sprintf("c%d-1", n)
		answered.Finish = loop.FinishToolCalls
		answered.Message.Parts = []loop.Part{{Kind: loop.PartToolCall, Call: &loop.ToolCall{ID: id, Name: "look", Args: args}}}
		bodies = append(bodies, started, answered, loop.CallBegun{CallID: id, Attempt: 1, Key: "k"},
			loop.CallFinished{CallID: id, Attempt: 1, Outcome: loop.OutcomeOK, Content: args, ResultHash: args})
	}
	bodies = append(bodies, loop.Finished{State: a.state, Stop: loop.Stop{Reason: loop.Completed}})
	var events []loop.Event
	for i, b := range bodies {
		events = append(events, loop.Event{Seq: int64(i + 1), At: epoch0.Add(time.Duration(i) * time.Second), Body: b})
	}
	return events
}

// suggest asks for limits of an agent with these runs.
func suggest(t *testing.T, limits loop.Limits, tolerance float64, runs []agentRun) loop.Suggestions {
	t.Helper()
	journals := map[loop.RunRef][]loop.Event{}
	var profiles []loop.Profile
	for i, r := range runs {
		ref := loop.RunRef{Tenant: "acme", ID: fmt.Sprint(i)}
		journals[ref] = r.journal(limits)
		p, err := loop.ProfileRun(ref, journals[ref])
		if err != nil {
			t.Fatal(err)
		}
		profiles = append(profiles, p)
	}
	s := loop.NewSuggester(limits, tolerance, profiles)
	for ref, events := range journals {
		if err := s.Try(ref, events); err != nil {
			t.Fatal(err)
		}
	}
	return s.Suggestions()
}

func of(all loop.Suggestions, field string) loop.Suggestion {
	i := slices.IndexFunc(all.Limits, func(l loop.Suggestion) bool { return l.Field == field })
	return all.Limits[max(i, 0)]
}

// TestSuggest: 100 successes of 3 to 5 iterations, one of 9, and failures that would
// have gone on for ever.
func TestSuggest(t *testing.T) {
	t.Parallel()
	limits := loop.Defaults()
	limits.Iterations, limits.Cost = 20, 5*loop.OneUSD
	var runs []agentRun
	for i := range 99 {
		runs = append(runs, agentRun{3 + i%3, false, loop.StateSucceeded})
	}
	runs = append(runs, agentRun{9, false, loop.StateSucceeded}, agentRun{15, false, loop.StateFailed}, agentRun{10, false, loop.StateCancelled})

	strict, tolerant := suggest(t, limits, 0, runs), suggest(t, limits, 0.01, runs)
	if strict.Successes != 100 || strict.Runs != 102 || strict.Note != "" {
		t.Errorf("judged %d runs and %d successes: %q", strict.Runs, strict.Successes, strict.Note)
	}
	if got := of(strict, "max_iterations"); got.Proposed != "10" || got.Current != "20" || got.Used != "9" || got.Guard != "iterations" {
		t.Errorf("no success may be cut, and proposed is %+v", got)
	}
	if got := of(tolerant, "max_iterations"); got.Proposed != "6" || got.Why != "cuts 1 of 100 successes" {
		t.Errorf("one success in a hundred may be cut, and proposed is %+v", got)
	}
	if tolerant.Proposed.Iterations != 6 || tolerant.Proposed.NoveltyIters != limits.NoveltyIters {
		t.Errorf("together: %+v", tolerant.Proposed)
	}
	want := []loop.Candidate{
		// Five successes' worth is where the wrap-up of a limit of five begins.
		{Value: "5", Cut: 34, Share: 0.34, Stopped: 2, Saved: 17 * loop.OneUSD / 100},
		{Value: "6", Cut: 1, Share: 0.01, Stopped: 2, Saved: 15 * loop.OneUSD / 100},
		{Value: "10", Stopped: 2, Saved: 7 * loop.OneUSD / 100},
		{Value: "20"},
	}
	if d := cmp.Diff(want, of(tolerant, "max_iterations").Ladder); d != "" {
		t.Errorf("ladder of max_iterations (-want +got):\n%s", d)
	}
	// A success of nine cents needs room for its next call and a wrap-up too.
	if cost := of(strict, "max_cost_usd"); cost.Used != "0.09" || strict.Proposed.Cost <= 9*loop.OneUSD/100 || strict.Proposed.Cost > loop.OneUSD/2 {
		t.Errorf("cost: %+v", cost)
	}
	// Nobody came near, and yet what was measured on thousands of runs stays.
	if got := of(strict, "max_error_iterations"); got.Proposed != got.Current || !strings.Contains(got.Why, "more about these runs than about the next") {
		t.Errorf("errors: %+v", got)
	}
	if again := suggest(t, limits, 0.01, runs); cmp.Diff(tolerant, again) != "" {
		t.Errorf("another order of runs gives other suggestions:\n%s", cmp.Diff(tolerant, again))
	}
}

// TestSuggestNeedsSuccesses: nothing is proposed on the word of a few.
func TestSuggestNeedsSuccesses(t *testing.T) {
	t.Parallel()
	got := suggest(t, loop.Defaults(), 0.01, slices.Repeat([]agentRun{{3, false, loop.StateSucceeded}}, 19))
	if !strings.Contains(got.Note, "19 of 19 runs") || !strings.Contains(got.Note, "20 successes") || got.Proposed != loop.Defaults() {
		t.Errorf("note %q, proposed %+v", got.Note, got.Proposed)
	}
	none := suggest(t, loop.Defaults(), 0.01, nil)
	if none.Note == "" || none.Proposed != loop.Defaults() || len(none.Limits) == 0 || len(none.Limits[0].Ladder) != 1 {
		t.Errorf("without runs: %+v", none)
	}
}

// TestSuggestTellsOfLimitsThatEndedRuns, since what those needed is not recorded.
func TestSuggestTellsOfLimitsThatEndedRuns(t *testing.T) {
	t.Parallel()
	limits := loop.Defaults()
	ref := loop.RunRef{Tenant: "acme", ID: "stopped"}
	events := agentRun{4, true, loop.StateStopped}.journal(limits)
	last := len(events) - 1
	trip := loop.Tripped{Guard: "repeat", Verdict: loop.VerdictFinalTurn, Reason: loop.RepeatCall, Iteration: 4}
	events = append(events[:last:last], loop.Event{Seq: events[last].Seq, At: events[last].At, Body: trip},
		loop.Event{Seq: events[last].Seq + 1, At: events[last].At, Body: events[last].Body})
	p, err := loop.ProfileRun(ref, events)
	if err != nil {
		t.Fatal(err)
	}
	s := loop.NewSuggester(limits, 0.01, []loop.Profile{p})
	if got := of(s.Suggestions(), "max_identical_iterations"); got.Ended != 1 {
		t.Errorf("the guard ended %d runs", got.Ended)
	}
}

// TestLimitFields: suggestions are for all limits of guards that a backtest asks
// again, and can read and write each of them alone.
func TestLimitFields(t *testing.T) {
	t.Parallel()
	var want []string
	for _, g := range loop.Guards() {
		if g.Name != "output" && g.Name != "compaction" { // no journal tells what else a model would have written
			want = append(want, g.Fields...)
		}
	}
	if d := cmp.Diff(want, loop.LimitFields()); d != "" {
		t.Errorf("fields of guards (-in the table +suggested):\n%s", d)
	}
	for _, field := range loop.LimitFields() {
		l := loop.Defaults()
		loop.SetLimit(&l, field, 7000)
		if got := loop.GetLimit(l, field); got != 7000 {
			t.Errorf("%s is %d after it was set to 7000", field, got)
		}
		loop.SetLimit(&l, field, loop.GetLimit(loop.Defaults(), field))
		if l != loop.Defaults() {
			t.Errorf("%s changes more than itself: %s", field, cmp.Diff(loop.Defaults(), l))
		}
	}
}
