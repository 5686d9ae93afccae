package loop

import "fmt"

// guardErrors stops a run whose last iterations brought nothing but errors. One
// batch counts once, and one success in it ends the streak.
func guardErrors(m moment) *Tripped {
	n := m.trailing(func(f footprint) bool { return f.failed })
	limit := m.spec.Limits.ErrorIters
	if n < limit {
		return nil
	}
	return &Tripped{
		Guard: "errors", Verdict: m.noProgress(), Reason: ErrorStreak,
		Observed: fmt.Sprintf("%d iterations of nothing but errors", n), Limit: fmt.Sprint(limit),
		Message:  "every tool call of the last iterations failed",
		Evidence: m.proof(n),
	}
}

// guardInvalid stops a model that keeps calling tools that do not exist, or
// with arguments that no schema accepts.
func guardInvalid(m moment) *Tripped {
	n := m.trailing(func(f footprint) bool { return f.invalid })
	limit := m.spec.Limits.InvalidIters
	if n < limit {
		return nil
	}
	t := &Tripped{
		Guard: "invalid_calls", Verdict: m.noProgress(), Reason: InvalidArgs,
		Observed: fmt.Sprintf("%d iterations of nothing but invalid calls", n), Limit: fmt.Sprint(limit),
		Message:  "the model keeps calling tools with arguments that they do not accept",
		Evidence: m.proof(n),
	}
	if m.trailing(func(f footprint) bool { return f.unknown }) >= limit {
		t.Reason, t.Message = UnknownTool, "the model keeps calling tools that do not exist"
	}
	return t
}
