package loop

import "fmt"

// The cycles that are looked for. A longer one is left to the novelty guard.
const (
	minPeriod    = 2
	maxPeriod    = 5
	shortPeriod  = 3 // up to here the limit counts; a longer cycle takes one time less
	askingCycles = 5 // equal calls with changing results: the model is told, no more
)

// guardCycle stops a run that goes round in circles: A-B-A-B with the same
// results each time. Editing and testing in turn is none, since each edit is a
// change, and each result another.
func guardCycle(m moment) *Tripped {
	limit := m.spec.Limits.Cycles
	if limit == 0 {
		return nil
	}
	since := m.past.since
	for p := minPeriod; p <= maxPeriod; p++ {
		if t := m.cycle(p, limit, since); t != nil {
			return t
		}
	}
	for p := minPeriod; p <= maxPeriod; p++ {
		if t := m.askingCycle(p, since); t != nil {
			return t
		}
	}
	return nil
}

const sayCycle = "You are going in circles: the same calls in the same order bring the same results. Do something else, or answer with what you have."

// cycle judges the cycle of period p that the run has been in since a footprint, if
// it is in one.
func (m moment) cycle(p, limit, since int) *Tripped {
	n, end := m.circles(p, limit, since)
	tell := end - p
	if p > shortPeriod {
		tell = end - 1
	}
	if n < tell {
		return nil
	}
	verdict := VerdictNudge
	if n >= end {
		verdict = m.noProgress()
	} else if m.nudged("cycle", m.prints[len(m.prints)-n].iteration) {
		return nil
	}
	return &Tripped{
		Guard: "cycle", Verdict: verdict, Reason: Cycle, Observed: fmt.Sprintf("%d iterations in a cycle of %d", n, p), Limit: fmt.Sprint(end),
		Message:  fmt.Sprintf("the same %d iterations came %d times in the same order, with the same results", p, n/p),
		Evidence: m.proof(n), Say: sayCycle,
	}
}

// circles counts the iterations that the run has been in a cycle of period p, and
// tells how many end it.
func (m moment) circles(p, limit, since int) (n, end int) {
	n, waits := m.turning(p, since, func(f *footprint) string { return f.print })
	if waits {
		limit *= pollableFactor
	}
	if p > shortPeriod {
		return n, p * max(2, limit-1)
	}
	return n, p * limit
}

// gaugeCycle is the cycle that is nearest to its end; without any, the shortest.
func gaugeCycle(m moment) Gauge {
	var most Gauge
	limit, since := m.spec.Limits.Cycles, m.past.since
	if limit == 0 {
		return most
	}
	for p := minPeriod; p <= maxPeriod; p++ {
		n, end := m.circles(p, limit, since)
		if g := gaugeCount(n, end, "iterations"); most.Unit == "" || g.Observed*most.Limit > most.Observed*g.Limit {
			most = g
		}
	}
	return most
}

// askingCycle tells a model once that it asks for the same things in turn. What
// they bring changes, so it may be work.
func (m moment) askingCycle(p, since int) *Tripped {
	n, waits := m.turning(p, since, func(f *footprint) string { return f.asks })
	if n < askingCycles*p || waits || m.nudged("cycle", m.prints[len(m.prints)-n].iteration) {
		return nil
	}
	return &Tripped{
		Guard: "cycle", Verdict: VerdictNudge, Reason: Cycle,
		Observed: fmt.Sprintf("%d iterations that ask for the same in a cycle of %d", n, p), Limit: fmt.Sprint(askingCycles * p),
		Message: fmt.Sprintf("the same calls came %d times in the same order", n/p), Evidence: m.proof(n),
		Say: "You have made the same calls in the same order again and again. If that brings you no further, do something else, or answer with what you have.",
	}
}

// turning counts the footprints at the end that repeat, each of them the one p
// before it, those that are repeated included; none from before since. 0: there is
// no cycle, or all are equal, which is a repetition. It also reports whether the
// cycle is made of polling and waiting alone.
func (s *State) turning(p, since int, mark func(*footprint) string) (n int, waits bool) {
	end := len(s.prints)
	if end-since <= p {
		return 0, false
	}
	constant := true
	waits = true
	for i := end - p; i < end; i++ {
		constant = constant && mark(&s.prints[i]) == mark(&s.prints[end-1])
		waits = waits && s.prints[i].waits
	}
	if constant {
		return 0, false
	}
	n = p
	for i := end - p - 1; i >= since && mark(&s.prints[i]) == mark(&s.prints[i+p]); i-- {
		n++
	}
	if n == p {
		return 0, false
	}
	return n, waits
}
