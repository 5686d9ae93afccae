package loop

import "fmt"

// frequencyWindow is how many iterations back the frequency guard looks.
const frequencyWindow = 10

// guardFrequency stops a run that comes back to the same call with the same
// result, whatever it does in between: one odd call in a loop hides the loop from
// the guards that look for repetition in a row.
func guardFrequency(m moment) *Tripped {
	limit := m.spec.Limits.FrequentRepeats
	from := max(m.past.since, len(m.prints)-frequencyWindow)
	if limit == 0 || len(m.prints)-from < nudgeAt(limit) {
		return nil
	}
	n, most := m.mostFrequent(from)
	if n < nudgeAt(limit) {
		return nil
	}
	return m.judge(Tripped{
		Guard: "frequency", Reason: FrequentRepeat, Limit: fmt.Sprint(limit),
		Observed: fmt.Sprintf("%d of the last %d iterations made the same call with the same result", n, len(m.prints)-from),
		Message:  fmt.Sprintf("the same call to %s brought the same result %d times in %d iterations", excerpt(most.tool, evidenceExcerpt), n, len(m.prints)-from),
		Say:      sayRepeat,
	}, n, limit, from, func() []Evidence { return m.proofOf(from, most.again) })
}

// mostFrequent finds the newest call that came most often since footprint from.
func (m moment) mostFrequent(from int) (n int, most trace) {
	if from >= len(m.prints) {
		return 0, most
	}
	for _, t := range m.newest().traces {
		if t.pollable {
			continue
		}
		if k := m.times(from, t.again); k > n {
			n, most = k, t
		}
	}
	return n, most
}

func gaugeFrequency(m moment) Gauge {
	n, _ := m.mostFrequent(max(m.past.since, len(m.prints)-frequencyWindow))
	return gaugeStreak(n, m.spec.Limits.FrequentRepeats, "iterations")
}

// again reports whether another call asks for the same and brings the same.
func (t trace) again(other *trace) bool { return t.ask == other.ask && t.result == other.result }

// times counts the footprints from i on with a call that matches: equal calls of
// one answer are one attempt.
func (s *State) times(i int, match func(*trace) bool) int {
	n := 0
	for ; i < len(s.prints); i++ {
		if s.prints[i].any(match) {
			n++
		}
	}
	return n
}
