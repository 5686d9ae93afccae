package loop

import "fmt"

// guardNovelty stops a run that learns nothing and changes nothing: no result
// that it has not seen, no change that it has not made. It catches what has no
// pattern, or one that is too long for the other guards.
func guardNovelty(m moment) *Tripped {
	limit := m.spec.Limits.NoveltyIters
	from := m.history().novel + 1
	n := len(m.prints) - from
	if limit == 0 || n < nudgeAt(limit) {
		return nil
	}
	if m.trailing(func(f footprint) bool { return f.waits }) >= n {
		limit *= pollableFactor
	}
	return m.judge(Tripped{
		Guard: "novelty", Reason: NoNovelty, Observed: fmt.Sprintf("%d iterations in a row with nothing new", n), Limit: fmt.Sprint(limit),
		Message: "the last iterations brought no result that the run had not seen before, and changed nothing",
		Say:     "Nothing that you did lately has brought anything new. Do something else, or answer with what you have.",
	}, n, limit, from, func() []Evidence { return m.proof(n) })
}
