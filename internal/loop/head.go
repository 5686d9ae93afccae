package loop

import (
	"slices"
	"time"
)

// Head is the read model of the run as it stands.
func (s *State) Head() Head {
	h := Head{
		State: s.state(), Phase: s.phase(), Iterations: s.iterations, ModelCalls: s.spend.calls,
		ToolCalls: s.calls.started, Attempts: s.tenure.attempts,
		Usage: s.spend.usage.Add(s.spend.childUsage), Cost: s.spend.cost, Estimated: s.spend.estimated, Held: s.spend.hold.plus(s.spend.children.cost),
		StartedAt: s.tenure.first, EndedAt: s.endedAt, RequiredActions: s.requiredActions(), SideEffects: s.calls.sideEffects(),
	}
	if s.tenure.suspended != nil {
		h.WaitUntil = s.tenure.suspended.Until
	}
	if s.rateWait != nil {
		h.WaitUntil = s.rateWait.Until
	}
	if s.finished != nil {
		stop := s.finished.Stop
		h.Answer, h.Partial, h.Unverified, h.Stop = s.finished.Answer, s.finished.Partial, s.finished.Unverified, &stop
		h.WaitUntil = time.Time{}
	}
	return h
}

func (s *State) state() RunState {
	switch {
	case s.finished != nil:
		return s.finished.State
	case s.cancel != nil:
		return StateCancelling
	case s.InAttempt():
		return StateRunning
	case s.tenure.suspended != nil && s.tenure.suspended.Reason.pauses():
		return StatePaused
	case s.tenure.suspended != nil && s.tenure.suspended.Reason.needsPeople():
		return StateRequiresAction
	}
	return StateQueued
}

func (s *State) phase() string {
	switch {
	case s.finished != nil:
		return ""
	case s.tenure.suspended != nil && !s.tenure.suspended.Reason.handsOver():
		return string(s.tenure.suspended.Reason)
	case s.pause.asked != nil: // also before it has happened: a resume ends it all the same
		return string(WaitPaused)
	case !s.InAttempt():
		return "queue"
	case s.rateWait != nil:
		return string(WaitRate)
	case s.spend.open != nil:
		return "model"
	case len(s.pause.raise) > 0:
		return string(WaitRaise)
	case len(s.calls.batch) > 0:
		return "tools"
	case s.spend.failed != nil:
		return string(WaitBackoff)
	}
	return "model"
}

func (s *State) requiredActions() []RequiredAction {
	if s.finished != nil {
		return nil
	}
	var actions []RequiredAction
	for _, c := range s.calls.open() {
		kind := c.wants()
		if kind == "" {
			continue
		}
		actions = append(actions, RequiredAction{
			Kind: kind, CallID: c.Call.ID, Attempt: c.Attempt, Tool: c.Call.Name, Args: c.Call.Args, ArgsHash: c.ArgsHash, Deadline: c.Until, Reason: c.why(),
		})
	}
	return append(actions, s.raises()...)
}

// why is why somebody outside is needed for the call.
func (c *call) why() string {
	if c.State == CallInDoubt {
		return c.doubtNote
	}
	return c.Asked
}

// wants is what somebody outside must do for the call, or "".
func (c *call) wants() string {
	switch {
	case c.State == CallAwaitingApproval:
		return RequireApprove
	case c.State == CallInDoubt:
		return RequireResolve
	case c.State == CallOffered && c.spec.Client != nil:
		return RequireSubmit
	case c.State == CallOffered && c.spec.Builtin == BuiltinAskHuman:
		return RequireAnswer
	}
	return ""
}

// TakeChangedCalls returns the heads of the calls that changed since it was last
// asked, each once, in the order they were planned.
func (s *State) TakeChangedCalls() []CallHead {
	if len(s.calls.changed) == 0 {
		return nil
	}
	changed := s.calls.changed
	s.calls.changed = nil
	slices.SortFunc(changed, func(a, b *call) int { return a.place - b.place })
	changed = slices.Compact(changed)
	heads := make([]CallHead, len(changed))
	for i, c := range changed {
		heads[i] = c.CallHead
	}
	return heads
}
