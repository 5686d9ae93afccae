package loop

import "time"

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

// moment is what a guard is asked about: the state, the planned call, the time.
type moment struct {
	*State
	plan plan
	now  time.Time
}

// guard is a pure rule over the folded state, asked before every model call. It
// returns nil or the trip that it wants. To add one, write guard_NAME.go and put
// it into the list below.
type guard func(moment) *Tripped

// guards is the set, in order of precedence: the first that wants to end the
// run gives the reason.
func guards() []guard {
	return []guard{
		guardDeadline,
		guardModelCalls,
		guardAccount,
		guardBudget, // cost and tokens, as found by the plan
		guardIterations,
		guardContext,
		guardToolCalls,
		guardRepeat,
		guardSameCall,
		guardCycle,
		guardFrequency,
		guardNearDuplicate,
		guardNovelty,
		guardMonologue,
		guardInvalid,
		guardCallErrors,
		guardToolErrors,
		guardErrors,
	}
}

// maxNudges bounds the nudges of one run: more of them are noise.
const maxNudges = 3

// trip asks every guard and returns what they want, the strictest precedence
// first: those that end the run before those that only nudge.
func (s *State) trip(p plan, now time.Time) []Tripped {
	var ending, nudges []Tripped
	for _, g := range guards() {
		t := g(moment{s, p, now})
		if t == nil {
			continue
		}
		t.Iteration = s.iterations
		if s.toldOfProgress(*t, nudges) {
			continue
		}
		if t.Verdict == VerdictNudge {
			if s.mayNudge(t.Guard) {
				nudges = append(nudges, *t)
			}
			continue
		}
		if t.Verdict == VerdictFinalTurn && !s.wrapsUp() {
			t.Verdict = VerdictStop
		}
		ending = append(ending, *t)
	}
	if len(ending) == 0 {
		return nudges
	}
	if ending[0].Verdict == VerdictFinalTurn {
		ending[0].Say = finalWords
	}
	return ending
}

// finalWords ask for the wrap-up answer. Static, so that it says nothing a
// prompt cache has not seen.
const finalWords = "This is your last answer: no more tools can be called. Give the best answer you can from what you have, say what is missing, and list what you have changed."

// mayNudge reports whether a guard may nudge at this iteration.
func (s *State) mayNudge(name string) bool {
	n := 0
	for _, t := range s.trips {
		if t.Verdict != VerdictNudge {
			continue
		}
		if t.Guard == name && t.Iteration == s.iterations {
			return false
		}
		n++
	}
	return n < maxNudges
}
