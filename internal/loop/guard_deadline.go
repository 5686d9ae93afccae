package loop

import "time"

// guardDeadline wraps up when the last slice of the active time begins, and
// stops when all of it is gone.
func guardDeadline(m moment) *Tripped {
	l := m.spec.Limits
	elapsed := m.tenure.elapsed(m.now)
	if elapsed < l.Deadline-l.wrapUpSlice() {
		return nil
	}
	t := &Tripped{
		Guard: "deadline", Verdict: VerdictFinalTurn, Reason: Deadline, Observed: elapsed.Round(time.Millisecond).String(), Limit: l.Deadline.String(),
		Message: "the run's active time is used up",
	}
	if elapsed >= l.Deadline {
		t.Verdict = VerdictStop
	}
	return t
}

func gaugeDeadline(m moment) Gauge { return gaugeTime(m.tenure.elapsed(m.now), m.spec.Limits.Deadline) }
