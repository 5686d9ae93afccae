package loop

import (
	"fmt"
	"slices"
	"time"
)

// call is what the run knows of one tool call.
type call struct {
	CallHead
	spec      ToolSpec
	known     bool   // the agent has a tool of that name
	skip      string // why it may not run, whatever it asks for; empty: it may
	print     string // callPrint
	result    string // result fingerprint
	doubtNote string
	doubted   time.Time // since when it is in doubt
	verify    time.Time // when to ask again whether it took effect; zero: at once
	told      bool      // in doubt, and the model has been told so
	poll      *polled   // of the built-in wait
	sentHash  string    // of the arguments that are sent
	place     int       // in the ledger's order
	effect    int       // place in the ledger's effects, from 1; 0: none
	child     *child    // of a call that a child run answers
}

// ledger holds every call of the run. It outlives anything that happens to the
// transcript: what was done in the world is never forgotten.
type ledger struct {
	byID    map[string]*call
	order   []string
	batch   []string         // calls of the answer that is being worked on, in call order
	started int              // first sends, for the cap
	effects []SideEffectHead // in the order of the first sends, child runs' where they end
	denials map[string]int   // by tool: denials in a row
	changed []*call          // since TakeChangedCalls, in no order, and more than once if they changed so
}

func (l *ledger) plan(c *call) {
	if l.byID == nil {
		l.byID = map[string]*call{}
	}
	c.place = len(l.order)
	l.byID[c.Call.ID] = c
	l.order = append(l.order, c.Call.ID)
	l.batch = append(l.batch, c.Call.ID)
	l.touch(c)
}

// touch notes that a call changed, for its head and for the ledger of side effects.
func (l *ledger) touch(c *call) {
	l.changed = append(l.changed, c)
	if c.Effect == ReadOnly || c.Attempt == 0 || c.spec.Builtin != "" || c.spec.Child != nil {
		return
	}
	if c.effect == 0 {
		l.effects = append(l.effects, SideEffectHead{})
		c.effect = len(l.effects)
	}
	l.effects[c.effect-1] = SideEffectHead{
		CallID: c.Call.ID, Tool: c.Call.Name, Effect: c.Effect, ArgsHash: c.sentHash, Key: c.Key, State: c.State, Outcome: c.Outcome,
	}
}

// sideEffects lists what was done, or may have been done, in the world.
func (l *ledger) sideEffects() []SideEffectHead { return slices.Clone(l.effects) }

// get finds a call that must be in one of the given states.
func (l *ledger) get(id string, states ...CallState) (*call, error) {
	c, ok := l.byID[id]
	if !ok {
		return nil, fmt.Errorf("call %q is not in the journal: %w", id, ErrImpossible)
	}
	if slices.Contains(states, c.State) {
		return c, nil
	}
	return nil, fmt.Errorf("call %q is %s: %w", id, c.State, ErrImpossible)
}

// open lists the calls of the batch that have no result yet, in call order.
func (l *ledger) open() []*call {
	var calls []*call
	for _, id := range l.batch {
		if c := l.byID[id]; !c.State.Final() && !c.told {
			calls = append(calls, c)
		}
	}
	return calls
}

// startedOf counts the calls of a tool that were begun.
func (l *ledger) startedOf(tool string) int {
	n := 0
	for _, id := range l.order {
		if c := l.byID[id]; c.Call.Name == tool && c.Attempt > 0 {
			n++
		}
	}
	return n
}

// twin finds an earlier call with the same tool and arguments that may have
// had, or had, an effect.
func (l *ledger) twin(c *call) *call {
	for _, id := range l.order {
		t := l.byID[id]
		if t == c {
			return nil
		}
		if t.print == c.print && (t.mayHaveRun() || t.State == CallAwaitingApproval || t.State == CallApproved || t.State == CallPlanned && t.skip == "") {
			return t
		}
	}
	return nil
}

// mayHaveRun reports whether the call has had its effect, or may have.
func (c *call) mayHaveRun() bool {
	switch c.State {
	case CallStarted, CallOffered, CallInDoubt, CallSucceeded:
		return true
	}
	return false
}

// done finds another call with the same tool and arguments that has had its
// effect, or may have, or is about to be started.
func (l *ledger) done(c *call, starting []*call) *call {
	if c.Effect.Repeatable() {
		return nil
	}
	for _, id := range l.order {
		t := l.byID[id]
		if t != c && t.print == c.print && (t.mayHaveRun() || slices.Contains(starting, t)) {
			return t
		}
	}
	return nil
}

func (l *ledger) applyRefused(e CallRefused, at time.Time) error {
	c, err := l.get(e.CallID, CallPlanned, CallAwaitingApproval, CallApproved, CallStarted, CallOffered)
	if err != nil {
		return err
	}
	switch e.Outcome {
	case OutcomeDenied:
		if c.State == CallAwaitingApproval { // nobody decided in time
			l.deny(c)
			c.DecidedAt = at
		}
		c.State = CallDenied
	case OutcomeSkipped:
		c.State = CallSkipped
	case OutcomeCancelled:
		c.State = CallCancelled
	default:
		c.State = CallRejected
	}
	c.close(e.Outcome, e.Content, digest("result", string(e.Outcome), e.Content), at)
	l.touch(c)
	return nil
}

func (c *call) close(o Outcome, content, fingerprint string, at time.Time) {
	c.Outcome, c.Result, c.result, c.FinishedAt = o, content, fingerprint, at
}

// asSent is the call as it is sent: with the arguments that were approved.
func (c *call) asSent() ToolCall {
	sent := c.Call
	if c.Edited != "" {
		sent.Args = c.Edited
	}
	return sent
}

// content is what the model reads of the call's result.
func (c *call) content() string {
	if c.Edited == "" {
		return c.Result
	}
	return "The call was approved with other arguments than yours: " + c.Edited + "\n" + c.Result
}

// neverAgain is what the model is told of a call that is not sent now, nor later:
// the truth about the sends before.
func (c *call) neverAgain(why string) string {
	if c.Attempt == 0 {
		return "The call did not run: " + why + "."
	}
	return "The call was interrupted and may have run; it was not repeated: " + why + "."
}

func (l *ledger) applyRequested(e ApprovalRequested, at time.Time) error {
	c, err := l.get(e.CallID, CallPlanned)
	if err != nil {
		return err
	}
	c.State, c.Until, c.Asked, c.AskedAt = CallAwaitingApproval, e.Until, e.Reason, at
	l.touch(c)
	return nil
}

func (l *ledger) applyDecided(run RunRef, e ApprovalDecided, at time.Time) error {
	c, err := l.get(e.CallID, CallAwaitingApproval)
	if err != nil {
		return err
	}
	if e.ArgsHash != c.ArgsHash {
		return fmt.Errorf("approval of call %q is bound to other arguments: %w", e.CallID, ErrImpossible)
	}
	defer l.touch(c)
	c.Until, c.DecidedAt, c.DecidedBy, c.Decision = time.Time{}, at, e.By, e.Reason
	if e.Approved {
		c.State = CallApproved
		delete(l.denials, c.Call.Name)
		if e.Args != "" && e.Args != c.Call.Args {
			c.Edited = e.Args
			c.print, c.sentHash = callPrint(c.spec, c.asSent()), ArgsHash(run, c.asSent())
		}
		return nil
	}
	l.deny(c)
	c.State = CallDenied
	reason := e.Reason
	if reason == "" {
		reason = "no reason was given"
	}
	content := "The call was not approved and did not run: " + reason
	c.close(OutcomeDenied, content, digest("result", "denied", content), at)
	return nil
}

func (l *ledger) applyBegun(e CallBegun, at time.Time) error {
	c, err := l.get(e.CallID, CallPlanned, CallApproved, CallStarted, CallOffered)
	if err != nil {
		return err
	}
	irreversible := c.Effect == Irreversible && c.State == CallPlanned
	resent := c.State == CallStarted && !c.Effect.Repeatable()
	if irreversible || resent || e.Attempt != c.Attempt+1 {
		return fmt.Errorf("call %q (%s, %s) cannot start as attempt %d: %w", e.CallID, c.Effect, c.State, e.Attempt, ErrImpossible)
	}
	if c.Attempt == 0 {
		c.StartedAt = at
		if c.spec.Builtin != BuiltinFinish { // an answer, not a call
			l.started++
		}
	}
	c.State, c.Attempt, c.Key = CallStarted, e.Attempt, e.Key
	l.touch(c)
	return nil
}

func (l *ledger) applyFinished(e CallFinished, at time.Time) error {
	c, err := l.get(e.CallID, CallStarted, CallOffered)
	if err != nil {
		return err
	}
	if e.Attempt != c.Attempt {
		return fmt.Errorf("call %q has attempt %d, not %d: %w", e.CallID, c.Attempt, e.Attempt, ErrImpossible)
	}
	switch e.Outcome {
	case OutcomeOK:
		c.State = CallSucceeded
	case OutcomeNotSent:
		c.State = CallNotSent
	case OutcomeCancelled:
		c.State = CallCancelled
	default:
		c.State = CallFailed
	}
	c.Cut, c.Bytes = e.Cut, e.Bytes
	c.close(e.Outcome, e.Content, e.ResultHash, at)
	l.touch(c)
	return nil
}

func (l *ledger) applyDoubted(e CallDoubted, at time.Time) error {
	c, err := l.get(e.CallID, CallStarted, CallOffered)
	if err != nil {
		return err
	}
	c.State, c.Outcome, c.Until, c.doubtNote, c.doubted = CallInDoubt, OutcomeUnknown, e.Until, e.Reason, at
	l.touch(c)
	return nil
}

// means reports whether the word is about the attempt that is in doubt: a "retry"
// that was meant for the one before must not authorise another send.
func (e CallResolved) means(c *call) bool { return e.Attempt == 0 || e.Attempt == c.Attempt }

func (l *ledger) applyResolved(e CallResolved, at time.Time) error {
	c, err := l.get(e.CallID, CallInDoubt)
	if err != nil {
		return err
	}
	if !e.means(c) {
		return fmt.Errorf("call %q is in doubt since attempt %d, not %d: %w", e.CallID, c.Attempt, e.Attempt, ErrImpossible)
	}
	defer l.touch(c)
	c.Until = time.Time{}
	if e.Resolution == ResolvedRetry && c.told {
		return fmt.Errorf("call %q cannot be retried, the model was told of it: %w", e.CallID, ErrImpossible)
	}
	switch e.Resolution {
	case ResolvedSucceeded:
		c.State = CallSucceeded
		content := e.Result
		if content == "" {
			content = "The call took effect. Its answer was lost; an operator confirmed the effect."
		}
		c.close(OutcomeOK, content, digest("result", "ok", content), at)
	case ResolvedNotExecuted:
		c.State = CallNotSent
		content := "The call did not take effect and was not repeated."
		c.close(OutcomeNotSent, content, digest("result", "not_sent", content), at)
	case ResolvedRetry:
		c.State, c.Outcome = CallApproved, ""
	default:
		return fmt.Errorf("resolution %q: %w", e.Resolution, ErrImpossible)
	}
	return nil
}

// Doubt is the event for a send whose outcome nobody knows.
func (s *State) Doubt(send Send, reason string, now time.Time) CallDoubted {
	return CallDoubted{CallID: send.Call.ID, Attempt: send.Attempt, Reason: reason, Until: s.patience(now, doubtWait)}
}
