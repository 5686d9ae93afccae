package loop

import "fmt"

// pollableFactor: polling that brings nothing new may go on this much longer
// than other repetition, because waiting for a change is its purpose.
const pollableFactor = 3

// sayRepeat is what a model is told that repeats itself.
const sayRepeat = "You have made the same call and got the same result before. Repeating it will not help: do something else, or answer with what you have."

// guardRepeat stops a run whose iterations are all the same: the same calls with
// the same arguments that bring the same results. Same calls with changing
// results are progress; three equal calls in one answer are one iteration.
func guardRepeat(m moment) *Tripped {
	n, limit := m.repeats()
	verdict := VerdictNudge
	switch {
	case n >= limit:
		verdict = m.noProgress()
	case n < 2 || n != limit-1:
		return nil
	}
	return &Tripped{
		Guard: "repeat", Verdict: verdict, Reason: RepeatCall, Observed: fmt.Sprintf("%d equal iterations in a row", n), Limit: fmt.Sprint(limit),
		Message:  fmt.Sprintf("the same call to %s brought the same result %d times in a row", m.newest().tool(), n),
		Evidence: m.proof(n), Say: sayRepeat,
	}
}

// repeats counts the iterations at the end that are all the same, and tells how
// many there may be.
func (m moment) repeats() (n, limit int) {
	last, limit := m.newest(), m.spec.Limits.IdenticalIters
	if last == nil {
		return 0, limit
	}
	if last.pollable {
		limit *= pollableFactor
	}
	return m.trailing(func(f *footprint) bool { return f.print == last.print }), limit
}

func gaugeRepeat(m moment) Gauge {
	n, limit := m.repeats()
	return gaugeStreak(n, limit, "iterations")
}

// guardSameCall stops a run that asks the same again and again, whatever comes
// back: a clock is never the same, and brings nothing. A tool that is there to be
// polled may be.
func guardSameCall(m moment) *Tripped {
	n, limit := m.sameCalls(), m.spec.Limits.SameCallIters
	if limit == 0 || n < nudgeAt(limit) {
		return nil
	}
	return m.judge(Tripped{
		Guard: "same_call", Reason: RepeatCall, Observed: fmt.Sprintf("%d iterations with equal calls in a row", n), Limit: fmt.Sprint(limit),
		Message: fmt.Sprintf("the same call to %s was made %d times in a row", m.newest().tool(), n),
		Say:     "You have made the same call again and again. If you wait for something, say so in your answer; else do something else, or answer with what you have.",
	}, n, limit, len(m.prints)-n, func() []Evidence { return m.proof(n) })
}

// sameCalls counts the iterations at the end that ask for the same.
func (m moment) sameCalls() int {
	last := m.newest()
	if last == nil || last.pollable {
		return 0
	}
	return m.trailing(func(f *footprint) bool { return f.asks == last.asks })
}

func gaugeSameCall(m moment) Gauge {
	return gaugeStreak(m.sameCalls(), m.spec.Limits.SameCallIters, "iterations")
}
