package loop

import "fmt"

// pollableFactor: polling that brings nothing new may go on this much longer
// than other repetition, because waiting for a change is its purpose.
const pollableFactor = 3

// guardRepeat stops a run whose iterations are all the same: the same calls with
// the same arguments that bring the same results. Same calls with changing
// results are progress; three equal calls in one answer are one iteration.
func guardRepeat(m moment) *Tripped {
	if len(m.prints) == 0 {
		return nil
	}
	last := m.prints[len(m.prints)-1]
	n := m.trailing(func(f footprint) bool { return f.print == last.print })
	limit := m.spec.Limits.IdenticalIters
	if last.pollable {
		limit *= pollableFactor
	}
	t := &Tripped{
		Guard: "repeat", Reason: RepeatCall, Observed: fmt.Sprintf("%d equal iterations in a row", n), Limit: fmt.Sprint(limit),
		Message: fmt.Sprintf("the same call to %s brought the same result %d times in a row", last.evidence.Tool, n),
	}
	switch {
	case n >= limit:
		t.Verdict, t.Evidence = m.noProgress(), m.proof(n)
		return t
	case n >= 2 && n == limit-1:
		t.Verdict, t.Evidence = VerdictNudge, m.proof(n)
		t.Say = "You have made the same call and got the same result before. Repeating it will not help: do something else, or answer with what you have."
		return t
	}
	return nil
}

// noProgress is what the run's limits want a no-progress guard to do.
func (s *State) noProgress() Verdict {
	if s.spec.Limits.NoProgressStops {
		return VerdictStop
	}
	return VerdictFinalTurn
}
