package loop

import "fmt"

// sayErrors is what a model is told whose calls fail.
const sayErrors = "Your last calls have all failed. Read the errors: change what you ask for, use another tool, or answer with what you have and say what failed."

// sayFailure is what a model is told that gets one failure, whatever succeeds beside it.
const sayFailure = "You get the same failure again and again. Read it: change what you ask for, use another tool, or answer with what you have and say what failed."

// guardErrors stops a run whose last iterations brought nothing but errors. One
// batch counts once, and one success in it ends the streak.
func guardErrors(m moment) *Tripped {
	n := m.trailing(func(f footprint) bool { return f.failed })
	t := Tripped{
		Guard: "errors", Reason: ErrorStreak,
		Observed: fmt.Sprintf("%d iterations of nothing but errors", n), Limit: fmt.Sprint(m.spec.Limits.ErrorIters),
		Message: "every tool call of the last iterations failed", Say: sayErrors,
	}
	return m.streak(t, n, m.spec.Limits.ErrorIters)
}

// guardInvalid stops a model that keeps calling tools that do not exist, or
// with arguments that no schema accepts.
func guardInvalid(m moment) *Tripped {
	n := m.trailing(func(f footprint) bool { return f.invalid })
	limit := m.spec.Limits.InvalidIters
	t := Tripped{
		Guard: "invalid_calls", Reason: InvalidArgs,
		Observed: fmt.Sprintf("%d iterations of nothing but invalid calls", n), Limit: fmt.Sprint(limit),
		Message: "the model keeps calling tools with arguments that they do not accept",
		Say:     "None of your last calls could be sent. Use only the tools that you were given, with arguments that match their schemas, or answer with what you have.",
	}
	if m.trailing(func(f footprint) bool { return f.unknown }) >= min(n, limit) {
		t.Reason, t.Message = UnknownTool, "the model keeps calling tools that do not exist"
	}
	return m.streak(t, n, limit)
}

// streak judges the last n footprints. A run that is older than the nudge goes on
// without it.
func (m moment) streak(t Tripped, n, limit int) *Tripped {
	if n == 0 || n < limit && m.spec.Limits.CallFailures == 0 {
		return nil
	}
	return m.judge(t, n, limit, len(m.prints)-n, func() []Evidence { return m.proof(n) })
}

// guardCallErrors stops a run that makes one call again and again although it
// fails, with other calls in between or not. A success of it, or a change that may
// have helped, begins the count anew. What could not be sent is guardInvalid's.
func guardCallErrors(m moment) *Tripped {
	limit := m.spec.Limits.CallFailures
	if limit == 0 || m.newest() == nil {
		return nil
	}
	return m.failing("call_errors", limit, func(t trace) (int, func(trace) bool) {
		same := func(other trace) bool { return other.ask == t.ask }
		from := m.history().since
		for i := len(m.prints) - 1; i >= from; i-- {
			if m.prints[i].any(func(other trace) bool { return same(other) && other.ok }) {
				from = i + 1
			}
		}
		return from, func(other trace) bool { return same(other) && other.broke }
	}, "the same call to %s failed %d times")
}

// guardToolErrors stops a run that gets one error out of a tool again and again,
// whatever it asks of it. A success of the tool begins the count anew.
func guardToolErrors(m moment) *Tripped {
	limit := m.spec.Limits.ToolFailures
	if limit == 0 || m.newest() == nil {
		return nil
	}
	return m.failing("tool_errors", limit, func(t trace) (int, func(trace) bool) {
		from := 0
		for i := len(m.prints) - 1; i >= from; i-- {
			if m.prints[i].any(func(other trace) bool { return other.tool == t.tool && other.ok }) {
				from = i + 1
			}
		}
		return from, t.sameResult
	}, "%s failed in the same way in %d iterations")
}

// failing judges the failed call of the newest footprint that has failed most
// often. past says from which footprint on which failures count for a call.
func (m moment) failing(guard string, limit int, past func(trace) (int, func(trace) bool), message string) *Tripped {
	var most trace
	var match func(trace) bool
	n, from := 0, 0
	for _, t := range m.newest().traces {
		if !t.broke {
			continue
		}
		i, same := past(t)
		if k := m.times(i, same); k > n {
			n, from, most, match = k, i, t, same
		}
	}
	if n == 0 {
		return nil
	}
	if most.pollable {
		limit *= pollableFactor
	}
	tool := excerpt(most.tool, evidenceExcerpt)
	return m.judge(Tripped{
		Guard: guard, Reason: ErrorStreak, Observed: fmt.Sprintf("%d failures", n), Limit: fmt.Sprint(limit),
		Message: fmt.Sprintf(message, tool, n), Say: sayFailure,
	}, n, limit, from, func() []Evidence { return m.proofOf(from, match) })
}
