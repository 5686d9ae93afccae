package loop

import (
	"slices"
	"time"
)

// Verdict is a guard's answer.
type Verdict string

// What a guard can want, from mild to final. A guard that has nothing to say
// returns no trip at all.
const (
	VerdictNudge     Verdict = "nudge"      // tell the model once, in the same request
	VerdictFinalTurn Verdict = "final_turn" // one last call without tools, then STOPPED
	VerdictPause     Verdict = "pause"      // wait until the limit is raised, then go on; a wrap-up if nobody does
	VerdictStop      Verdict = "stop"       // STOPPED at once
)

// moment is what a guard is asked about: the state, the planned call, the time, and
// what many guards need to know of all iterations together.
type moment struct {
	*State
	plan *plan
	now  time.Time
	past history
}

func (s *State) moment(p *plan, now time.Time) moment { return moment{s, p, now, s.history()} }

// guard is a pure rule over the folded state, asked before every model call. To
// add one, write guard_NAME.go and put it into the list below and into Guards.
type guard struct {
	name  string
	judge func(moment) *Tripped // nil, or the trip that it wants
	gauge func(moment) Gauge    // what it measures; the zero Gauge: nothing, it is off
}

// guards is the set, in order of precedence: the first that wants to end the
// run gives the reason. Hard budgets come first, dearest first; then the guards
// that look for progress, and last those that count errors.
func guards() []guard {
	return []guard{
		{"deadline", guardDeadline, gaugeDeadline},
		{"account", guardAccount, gaugeAccount},
		{"cost", guardCost, gaugeCost},
		{"tokens", guardTokens, gaugeTokens},
		{"model_calls", guardModelCalls, gaugeModelCalls},
		{"iterations", guardIterations, gaugeIterations},
		{"context", guardContext, gaugeContext},
		{"tool_calls", guardToolCalls, gaugeToolCalls},
		{"repeat", guardRepeat, gaugeRepeat},
		{"same_call", guardSameCall, gaugeSameCall},
		{"cycle", guardCycle, gaugeCycle},
		{"frequency", guardFrequency, gaugeFrequency},
		{"near_duplicate", guardNearDuplicate, gaugeNearDuplicate},
		{"novelty", guardNovelty, gaugeNovelty},
		{"monologue", guardMonologue, gaugeMonologue},
		{"invalid_calls", guardInvalid, gaugeInvalid},
		{"call_errors", guardCallErrors, gaugeCallErrors},
		{"tool_errors", guardToolErrors, gaugeToolErrors},
		{"errors", guardErrors, gaugeErrors},
	}
}

// maxNudges bounds the nudges of one run: more of them are noise.
const maxNudges = 3

// trip asks every guard and returns what they want. If any ends the run, those
// that do come first, in order of precedence, and the first of them is acted on.
func (s *State) trip(p plan, now time.Time) []Tripped {
	var ending, telling []Tripped
	m := s.moment(&p, now)
	for _, g := range guards() {
		t := g.judge(m)
		if t == nil {
			continue
		}
		t.Iteration = s.iterations
		if t.Verdict == VerdictNudge {
			if s.mayNudge(*t, telling) {
				telling = append(telling, *t)
			}
			continue
		}
		switch s.act(t); {
		case t.Verdict != VerdictNudge:
			t.Say = ""
			ending = append(ending, *t)
		case !s.observed(*t):
			if s.nudged(t.Guard, t.begin()) || !s.mayNudge(*t, telling) {
				t.Say = ""
			}
			telling = append(telling, *t)
		}
	}
	if len(ending) == 0 {
		return telling
	}
	return s.end(ending, telling)
}

// end makes the trips that end or pause the run one record. What acts comes first;
// what else would only be told goes untold, but what is observed is kept.
func (s *State) end(ending, telling []Tripped) []Tripped {
	ending = decisive(ending)
	first := ending[0].Verdict
	for i := range ending[1:] {
		if t := &ending[1+i]; t.Verdict == VerdictPause && first != VerdictPause { // nothing is waited for any more
			t.Verdict, t.Default = first, ""
		}
	}
	if first == VerdictFinalTurn {
		ending[0].Say = finalWords
	}
	for _, t := range telling {
		if t.Default != "" {
			t.Say = ""
			ending = append(ending, t)
		}
	}
	return ending
}

// finalWords ask for the wrap-up answer. Static, so that it says nothing a
// prompt cache has not seen.
const finalWords = "This is your last answer: no more tools can be called. Give the best answer you can from what you have, say what is missing, and list what you have changed."

// mayNudge reports whether the model may be told now: a guard tells it once at an
// iteration, the guards that look for progress once together, and all of them a few
// times in a run.
func (s *State) mayNudge(t Tripped, beside []Tripped) bool {
	if s.toldOfProgress(t, beside) {
		return false
	}
	n := 0
	for _, given := range slices.Concat(s.trips, beside) {
		if !given.nudges() || given.Guard == guardCheckpoint { // checkpoints have a bound of their own
			continue
		}
		if given.Guard == t.Guard && given.Iteration == s.iterations {
			return false
		}
		n++
	}
	return n < maxNudges
}

// nudges reports whether the model was told: not of what was only observed.
func (t Tripped) nudges() bool { return t.Verdict == VerdictNudge && t.Say != "" }
