package loop

import "fmt"

// sayErrors is what a model is told whose calls fail.
const sayErrors = "Your last calls have all failed. Read the errors: change what you ask for, use another tool, or answer with what you have and say what failed."

// sayFailure is what a model is told that gets one failure, whatever succeeds beside it.
const sayFailure = "You get the same failure again and again. Read it: change what you ask for, use another tool, or answer with what you have and say what failed."

// guardErrors stops a run whose last iterations brought nothing but errors. One
// batch counts once, and one success in it ends the streak.
func guardErrors(m moment) *Tripped {
	n := m.failedIters()
	if n == 0 {
		return nil
	}
	t := Tripped{
		Guard: "errors", Reason: ErrorStreak,
		Observed: fmt.Sprintf("%d iterations of nothing but errors", n), Limit: fmt.Sprint(m.spec.Limits.ErrorIters),
		Message: "every tool call of the last iterations failed", Say: sayErrors,
	}
	return m.streak(t, n, m.spec.Limits.ErrorIters)
}

// failedIters counts the iterations at the end that brought nothing but errors.
func (m moment) failedIters() int { return m.trailing(func(f *footprint) bool { return f.failed }) }

func gaugeErrors(m moment) Gauge {
	return gaugeStreak(m.failedIters(), m.spec.Limits.ErrorIters, "iterations")
}

// guardInvalid stops a model that keeps calling tools that do not exist, or
// with arguments that no schema accepts.
func guardInvalid(m moment) *Tripped {
	n, limit := m.invalidIters(), m.spec.Limits.InvalidIters
	if n == 0 {
		return nil
	}
	t := Tripped{
		Guard: "invalid_calls", Reason: InvalidArgs,
		Observed: fmt.Sprintf("%d iterations of nothing but invalid calls", n), Limit: fmt.Sprint(limit),
		Message: "the model keeps calling tools with arguments that they do not accept",
		Say:     "None of your last calls could be sent. Use only the tools that you were given, with arguments that match their schemas, or answer with what you have.",
	}
	if m.trailing(func(f *footprint) bool { return f.unknown }) >= min(n, limit) {
		t.Reason, t.Message = UnknownTool, "the model keeps calling tools that do not exist"
	}
	return m.streak(t, n, limit)
}

// invalidIters counts the iterations at the end with nothing that could be sent.
func (m moment) invalidIters() int {
	return m.trailing(func(f *footprint) bool { return f.invalid })
}

func gaugeInvalid(m moment) Gauge {
	return gaugeStreak(m.invalidIters(), m.spec.Limits.InvalidIters, "iterations")
}

// streak judges the last n footprints. A run that is older than the nudge goes on
// without it.
func (m moment) streak(t Tripped, n, limit int) *Tripped {
	if n < limit && m.spec.Limits.CallFailures == 0 {
		return nil
	}
	return m.judge(t, n, limit, len(m.prints)-n, func() []Evidence { return m.proof(n) })
}

// guardCallErrors stops a run that makes one call again and again although it
// fails, with other calls in between or not. A success of it, or a change that may
// have helped, begins the count anew. What could not be sent is guardInvalid's.
func guardCallErrors(m moment) *Tripped {
	return m.failing("call_errors", m.spec.Limits.CallFailures, callFailures, "the same call to %s failed %d times")
}

func gaugeCallErrors(m moment) Gauge { return m.gaugeFailing(m.spec.Limits.CallFailures, callFailures) }

// guardToolErrors stops a run that gets one error out of a tool again and again,
// whatever it asks of it. A success of the tool begins the count anew.
func guardToolErrors(m moment) *Tripped {
	return m.failing("tool_errors", m.spec.Limits.ToolFailures, toolFailures, "%s failed in the same way in %d iterations")
}

func gaugeToolErrors(m moment) Gauge { return m.gaugeFailing(m.spec.Limits.ToolFailures, toolFailures) }

// counting says from which footprint on which failures count together with a failed call.
type counting func(moment, trace) (from int, same func(*trace) bool)

func callFailures(m moment, t trace) (int, func(*trace) bool) {
	from := m.lastTime(m.past.since, func(other *trace) bool { return other.ask == t.ask && other.ok })
	return from, func(other *trace) bool { return other.ask == t.ask && other.broke }
}

func toolFailures(m moment, t trace) (int, func(*trace) bool) {
	return m.lastTime(0, func(other *trace) bool { return other.tool == t.tool && other.ok }), t.sameResult
}

// lastTime is the footprint after the newest one that has a call that matches, and
// at least from.
func (s *State) lastTime(from int, match func(*trace) bool) int {
	for i := len(s.prints) - 1; i >= from; i-- {
		if s.prints[i].any(match) {
			return i + 1
		}
	}
	return from
}

// failures are those that count together with a failed call.
type failures struct {
	n, limit, from int
	of             trace
	match          func(*trace) bool
}

// worst is the failed call of the newest footprint that has failed most often.
func (m moment) worst(limit int, count counting) failures {
	most := failures{limit: limit}
	last := m.newest()
	if last == nil {
		return most
	}
	for _, t := range last.traces {
		if !t.broke {
			continue
		}
		from, same := count(m, t)
		if k := m.times(from, same); k > most.n {
			most = failures{k, limit, from, t, same}
		}
	}
	if most.of.pollable {
		most.limit *= pollableFactor
	}
	return most
}

// failing judges the worst failure.
func (m moment) failing(guard string, limit int, count counting, message string) *Tripped {
	if limit == 0 {
		return nil
	}
	f := m.worst(limit, count)
	if f.n == 0 {
		return nil
	}
	return m.judge(Tripped{
		Guard: guard, Reason: ErrorStreak, Observed: fmt.Sprintf("%d failures", f.n), Limit: fmt.Sprint(f.limit),
		Message: fmt.Sprintf(message, excerpt(f.of.tool, evidenceExcerpt), f.n), Say: sayFailure,
	}, f.n, f.limit, f.from, func() []Evidence { return m.proofOf(f.from, f.match) })
}

func (m moment) gaugeFailing(limit int, count counting) Gauge {
	f := m.worst(limit, count)
	return gaugeStreak(f.n, f.limit, "failures")
}
