package loop

import (
	"fmt"
	"time"
)

// How long a result from outside is waited for.
const (
	clientWait = time.Hour      // of a client's tool that does not say
	humanWait  = 24 * time.Hour // of a question to a person, as for an approval
)

// handOut has a call run by somebody else, unless loopd sends it itself.
func (g *gate) handOut(c *call) (handled bool) {
	out := CallHandedOut{CallID: c.Call.ID, Attempt: c.Attempt + 1, Key: c.Call.Key(g.s.run)}
	switch {
	case c.owed() && g.tooLate(c):
		return true
	case c.spec.Client != nil:
		wait := c.spec.Client.Wait
		if wait == 0 {
			wait = clientWait
		}
		out.Until = g.s.patience(g.now, wait)
	case c.spec.Builtin == BuiltinAskHuman:
		out.Until = g.s.patience(g.now, humanWait)
	case c.spec.Builtin == BuiltinWait:
		g.handOutWait(c, out)
		return true
	case c.spec.Child != nil:
		g.handOutChild(c, out)
		return true
	default:
		return false
	}
	g.handed = append(g.handed, out)
	return true
}

// owed reports whether somebody outside owes the call's result.
func (c *call) owed() bool { return c.spec.Client != nil || c.spec.Builtin == BuiltinAskHuman }

func (s *State) applyHandedOut(e CallHandedOut, at time.Time) error {
	c, err := s.calls.get(e.CallID, CallPlanned, CallApproved)
	if err != nil {
		return err
	}
	if c.Effect == Irreversible && c.State == CallPlanned || e.Attempt != c.Attempt+1 {
		return fmt.Errorf("call %q (%s, %s) cannot be handed out as attempt %d: %w", e.CallID, c.Effect, c.State, e.Attempt, ErrImpossible)
	}
	if c.Attempt == 0 {
		s.calls.started++
		c.StartedAt = at
	}
	c.State, c.Attempt, c.Key, c.Until = CallOffered, e.Attempt, e.Key, e.Until
	s.calls.touch(c)
	switch {
	case e.Child != nil:
		s.adopt(c, e)
	case c.spec.Builtin == BuiltinWait:
		c.poll = &polled{}
	}
	return nil
}

// applySubmitted takes a result from outside. It is as final as one that loopd
// fetched.
func (s *State) applySubmitted(e ResultSubmitted, at time.Time) error {
	c, err := s.calls.get(e.CallID, CallOffered)
	if err != nil {
		return err
	}
	if e.Attempt != c.Attempt || !c.owed() {
		return fmt.Errorf("call %q (attempt %d) takes no result for attempt %d: %w", e.CallID, c.Attempt, e.Attempt, ErrImpossible)
	}
	content, cut := s.cutFor(c, e.Content)
	c.State, c.Bytes, c.Cut, c.DecidedBy = CallSucceeded, int64(len(e.Content)), cut, e.By
	if e.Outcome != OutcomeOK {
		c.State = CallFailed
	}
	c.Until = time.Time{}
	c.close(e.Outcome, content, digest("result", string(e.Outcome), e.Content), at)
	s.calls.touch(c)
	return nil
}

// judgeOffered waits for whoever runs the call, until there is no point.
func (g *gate) judgeOffered(c *call) {
	switch {
	case c.poll != nil:
		g.judgeWait(c)
	case g.now.Before(c.Until) && c.child != nil:
		g.waitFor(WaitChild, c.Until)
	case g.now.Before(c.Until):
		g.waitFor(WaitResult, c.Until)
	case c.child != nil:
		g.expired = true
		g.ended = append(g.ended, g.s.lostChild(c))
	case c.Effect.Repeatable() || c.spec.Builtin == BuiltinAskHuman:
		g.expired = true
		g.ended = append(g.ended, CallFinished{
			CallID: c.Call.ID, Attempt: c.Attempt, Outcome: OutcomeTimeout,
			Content: "Nobody gave the result in time.", ResultHash: digest("result", "timeout", ""),
		})
	default:
		g.expired = true
		g.ended = append(g.ended, CallDoubted{
			CallID: c.Call.ID, Attempt: c.Attempt, Until: g.s.patience(g.now, doubtWait),
			Reason: "the result was not given in time; the call may have run",
		})
	}
}
