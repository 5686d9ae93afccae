package loop

import "fmt"

// guardContext wraps up before the transcript fills the window: models get
// worse long before it is full. It works on the likely size, since the bound
// that money is held for would stop runs four times too early.
func guardContext(m moment) *Tripped {
	window := m.chain.price().Window
	size := m.inputEstimate() + min(m.plan.output, m.spec.Limits.FinalOutput)
	stopAt := m.spec.Limits.StopAt
	t := &Tripped{
		Guard: "context", Reason: ContextRot,
		Observed: fmt.Sprintf("about %d of %d tokens", size, window), Limit: fmt.Sprintf("%.0f %%", stopAt*100),
		Message: "the transcript fills too much of the model's context window",
	}
	if m.compaction.failed {
		t.Reason, t.Message = CompactionStuck, "the transcript fills too much of the model's context window, and could not be made shorter"
	}
	switch {
	case size > window:
		t.Verdict, t.Reason = VerdictStop, ContextWindow
		t.Message = "the next request is larger than the model's context window"
		return t
	case float64(size) > stopAt*float64(window):
		t.Verdict = VerdictFinalTurn
		return t
	}
	return nil
}
