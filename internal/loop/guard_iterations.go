package loop

import "fmt"

// guardIterations makes the Nth call the wrap-up, so that N is never passed, and
// tells the model once when four fifths are gone.
func guardIterations(m moment) *Tripped {
	limit := m.spec.Limits.Iterations
	last := limit - 1 // the wrap-up is an iteration too
	if !m.wrapsUp() || m.wanted("iterations") == VerdictStop {
		last = limit
	}
	ends, late := m.iterations >= last, m.iterations == (limit*4+4)/5 && m.wrapsUp()
	if !ends && !late {
		return nil
	}
	t := &Tripped{
		Guard: "iterations", Verdict: VerdictFinalTurn, Reason: IterationCap,
		Observed: fmt.Sprint(m.iterations), Limit: fmt.Sprint(limit), Message: fmt.Sprintf("the run may take %d iterations", limit),
	}
	if !ends {
		t.Verdict, t.Message = VerdictNudge, "four fifths of the iterations are used"
		t.Say = fmt.Sprintf("You have %d answers left in this run. Finish what matters most.", limit-m.iterations)
	}
	return t
}

func gaugeIterations(m moment) Gauge {
	return gaugeCount(m.iterations, m.spec.Limits.Iterations, "iterations")
}

// guardModelCalls counts every request sent, retries and child runs included. There is no
// wrap-up for it: the wrap-up would be one more request.
func guardModelCalls(m moment) *Tripped {
	calls := m.spend.allCalls()
	if limit := m.spec.Limits.ModelCalls; calls >= limit {
		return &Tripped{
			Guard: "model_calls", Verdict: VerdictStop, Reason: ModelCallCap,
			Observed: fmt.Sprint(calls), Limit: fmt.Sprint(limit),
			Message: "the run has sent as many model requests as it may, retries included",
		}
	}
	return nil
}

func gaugeModelCalls(m moment) Gauge {
	return gaugeCount(m.spend.allCalls(), m.spec.Limits.ModelCalls, "calls")
}

// guardToolCalls wraps up when calls had to be refused because the run has made
// as many as it may.
func guardToolCalls(m moment) *Tripped {
	limit := m.spec.Limits.ToolCalls
	if !m.wrapsUp() || m.calls.started < limit || m.iterations == 0 {
		return nil
	}
	return &Tripped{
		Guard: "tool_calls", Verdict: VerdictFinalTurn, Reason: ToolCallCap,
		Observed: fmt.Sprint(m.calls.started), Limit: fmt.Sprint(limit),
		Message: "the run has made as many tool calls as it may",
	}
}

func gaugeToolCalls(m moment) Gauge {
	return gaugeCount(m.calls.started, m.spec.Limits.ToolCalls, "calls")
}
