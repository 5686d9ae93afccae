package loop

import "fmt"

// guardNovelty stops a run that learns nothing and changes nothing: no result
// that it has not seen, no change that it has not made. It catches what has no
// pattern, or one that is too long for the other guards.
func guardNovelty(m moment) *Tripped {
	n, limit := m.stale()
	if limit == 0 || n < nudgeAt(limit) {
		return nil
	}
	return m.judge(Tripped{
		Guard: "novelty", Reason: NoNovelty, Observed: fmt.Sprintf("%d iterations in a row with nothing new", n), Limit: fmt.Sprint(limit),
		Message: "the last iterations brought no result that the run had not seen before, and changed nothing",
		Say:     "Nothing that you did lately has brought anything new. Do something else, or answer with what you have.",
	}, n, limit, len(m.prints)-n, func() []Evidence { return m.proof(n) })
}

// stale counts the iterations at the end that brought nothing new, and tells how
// many there may be.
func (m moment) stale() (n, limit int) {
	n, limit = len(m.prints)-m.past.novel-1, m.spec.Limits.NoveltyIters
	if n > 0 && m.trailing(func(f *footprint) bool { return f.waits }) >= n {
		limit *= pollableFactor
	}
	return n, limit
}

func gaugeNovelty(m moment) Gauge {
	n, limit := m.stale()
	return gaugeStreak(n, limit, "iterations")
}
