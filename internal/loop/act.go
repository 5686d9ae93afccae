package loop

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ActError names a guard that cannot do what an agent wants of it.
type ActError struct {
	Guard  string // as in the request, also when there is no such guard
	Reason string // what is wrong, and what would be right
}

// Error names the guard and the fix.
func (e *ActError) Error() string { return fmt.Sprintf("guard %q: %s", e.Guard, e.Reason) }

// CheckActs reports every fault of an agent's acts, in the order of the names: a
// guard that does not exist, or one that may not do what is asked of it.
func CheckActs(acts map[string]Verdict) []*ActError {
	var faults []*ActError
	for _, name := range slices.Sorted(maps.Keys(acts)) {
		info, known := GuardNamed(name)
		switch {
		case !known:
			faults = append(faults, &ActError{name, "there is no such guard; the closest: " + strings.Join(closest(name, guardNames()), ", ")})
		case len(info.Acts) == 0:
			faults = append(faults, &ActError{name, "the budget says what it does, not an agent: leave it out"})
		case !slices.Contains(info.Acts, acts[name]):
			faults = append(faults, &ActError{name, fmt.Sprintf("it cannot be %s: use %s", apiVerdict(acts[name]), orList(info.Acts))})
		}
	}
	return faults
}

// apiVerdict is a verdict as the API writes it. There the word of journals for a
// wrap-up is not used.
func apiVerdict(v Verdict) string {
	switch v {
	case "":
		return "GUARD_VERDICT_UNSPECIFIED"
	case VerdictFinalTurn:
		return "GUARD_VERDICT_WRAP_UP"
	}
	return "GUARD_VERDICT_" + strings.ToUpper(string(v))
}

// orList names verdicts: "A, B or C".
func orList(verdicts []Verdict) string {
	names := make([]string, 0, len(verdicts))
	for _, v := range verdicts {
		names = append(names, apiVerdict(v))
	}
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// act sets what a trip does that would end the run: what the agent wants of the
// guard, where that can be had. Where no last answer can be had, because time or
// requests are used up or the window is too small, it stays an end without one.
func (s *State) act(t *Tripped) {
	own, want := s.possible(t.Verdict), s.possible(s.wanted(t.Guard))
	t.Verdict = own
	switch {
	case want == "" || want == own:
	case t.Reason == ContextWindow: // no request fits, and no limit could be raised
	case want == VerdictFinalTurn && !t.Reason.ofProgress():
	default:
		t.Verdict, t.Default = want, own
	}
}

// wanted is what the agent wants of a guard, or "": its default. What a guard may
// not do it never does, whatever a journal says.
func (s *State) wanted(guard string) Verdict {
	want, set := s.spec.Definition.Acts[guard]
	if !set {
		return ""
	}
	if info, known := GuardNamed(guard); !known || !slices.Contains(info.Acts, want) {
		return ""
	}
	return want
}

// possible is a verdict as far as it makes sense: without tools, every answer is a
// last one already, and when all iterations are used there is none left for it.
func (s *State) possible(v Verdict) Verdict {
	if v == VerdictFinalTurn && (!s.wrapsUp() || s.iterations >= s.spec.Limits.Iterations) {
		return VerdictStop
	}
	return v
}

// observed reports whether a trip of an observing guard is in the journal already:
// a streak is recorded once, however long it goes on.
func (s *State) observed(t Tripped) bool {
	return slices.ContainsFunc(s.trips, func(given Tripped) bool {
		return given.Guard == t.Guard && given.Verdict == VerdictNudge && given.Default != "" && given.Iteration >= t.begin()
	})
}

// begin is the iteration in which the proof of a trip begins.
func (t Tripped) begin() int {
	if len(t.Evidence) > 0 {
		return t.Evidence[0].Iteration
	}
	return t.Iteration
}
