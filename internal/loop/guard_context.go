package loop

import "fmt"

// guardContext wraps up before the transcript fills the window: models get
// worse long before it is full. It works on the likely size, since the bound
// that money is held for would stop runs four times too early.
func guardContext(m moment) *Tripped {
	size, window := m.window()
	stopAt := m.spec.Limits.StopAt
	if size <= window && float64(size) <= stopAt*float64(window) {
		return nil
	}
	t := &Tripped{
		Guard: "context", Verdict: VerdictFinalTurn, Reason: ContextRot,
		Observed: fmt.Sprintf("about %d of %d tokens", size, window), Limit: fmt.Sprintf("%.0f %%", stopAt*100),
		Message: "the transcript fills too much of the model's context window",
	}
	if m.compaction.failed {
		t.Reason, t.Message = CompactionStuck, "the transcript fills too much of the model's context window, and could not be made shorter"
	}
	if size > window {
		t.Verdict, t.Reason = VerdictStop, ContextWindow
		t.Message = "the next request is larger than the model's context window"
	}
	return t
}

// window is how much of the model's context window the next request and its answer
// are likely to fill.
func (m moment) window() (size, window int64) {
	return m.inputEstimate() + min(m.plan.output, m.spec.Limits.FinalOutput), m.chain.price().Window
}

func gaugeContext(m moment) Gauge {
	size, window := m.window()
	return gaugeShare(size, window, m.spec.Limits.StopAt, "of the window")
}
