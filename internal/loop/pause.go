package loop

import (
	"cmp"
	"fmt"
	"time"
)

// raiseWait is how long a run that a guard paused waits for its limit to be raised:
// as long as for any other decision of a person.
const raiseWait = approvalWait

// pause is whether and why the run is held back.
type pause struct {
	asked *PauseRequested // until it is resumed
	raise []Tripped       // what guards paused the run for, until it is resumed or wraps up
	word  string          // given at a resume, until it can be put before the model
}

// nextPause holds a run back that somebody or a guard paused. What is in flight has
// ended when it is asked. A wrap-up answer ends the run all the same: nothing more
// would be started, unless it goes round in circles and would be asked for again.
func (s *State) nextPause(now time.Time) Action {
	switch {
	case s.pause.asked != nil && (s.answer == nil || !s.answer.wrapUp || s.answer.finish == finishChant):
		// It waits for as long as it may live: to go on by itself is the one thing
		// that nobody asked for.
		return Suspend{intent{[]Body{Suspended{Reason: WaitPaused, Until: s.createdAt.Add(s.spec.Limits.WallTime)}}}}
	case len(s.pause.raise) == 0:
		return nil
	}
	t := s.pause.raise[0]
	if now.Before(t.Until) {
		return Suspend{intent{[]Body{Suspended{Reason: WaitRaise, Until: t.Until}}}}
	}
	return s.endUnraised(t)
}

// decisive puts first what acts. A pause that an end would follow in any case helps
// nobody, so a trip that ends the run goes before those that pause it.
func decisive(trips []Tripped) []Tripped {
	for i, t := range trips {
		if t.Verdict != VerdictPause {
			copy(trips[1:i+1], trips[:i])
			trips[0] = t
			break
		}
	}
	return trips
}

// pauseOn gives the lease back until the tripped limits are raised. The money for a
// wrap-up stays free meanwhile: the call before left it, and none was made since. A
// trip that nothing can be done about, or that nobody has the time for, pauses
// nothing.
func (s *State) pauseOn(trips []Tripped, now time.Time) Action {
	until := s.patience(now, raiseWait)
	facts := make([]Body, 0, len(trips)+1)
	for _, t := range trips {
		switch {
		case t.Verdict != VerdictPause: // it was only observed
			facts = append(facts, t)
			continue
		case t.Reason == AccountBudget: // it is asked again afterwards
			continue
		}
		t.Field, t.Until = s.fieldToRaise(t), until
		if t.Field == "" && !t.Reason.ofProgress() || until.Sub(now) < time.Second {
			return s.endUnraised(t)
		}
		facts = append(facts, t)
	}
	return Suspend{intent{append(facts, Suspended{Reason: WaitRaise, Until: until})}}
}

// endUnraised ends a run for a trip that would pause it, since nobody raised the
// limit, or nobody can: with a wrap-up, if one can be had.
func (s *State) endUnraised(t Tripped) Action {
	t.Until, t.Default = time.Time{}, ""
	if !s.wrapsUp() || t.Reason == ContextWindow || t.Purpose == PurposeJudge { // which has a last answer to judge
		end := s.stopOn(t)
		end.AfterSignals = true // a raise may have arrived in the moment in which the wait ends
		return end
	}
	t.Verdict, t.Say = VerdictFinalTurn, finalWords
	return Record{intent: intent{[]Body{t}}, AfterSignals: true}
}

// fieldToRaise is the limit to raise after a trip, as in the API; "" if none helps.
func (s *State) fieldToRaise(t Tripped) string {
	field := cmp.Or(t.Field, LimitField(t.Guard))
	if t.Reason == ContextWindow || s.spec.Parent != nil && heldByParent(field) {
		return ""
	}
	return field
}

// raises lists what must be done before a run goes on that guards paused.
func (s *State) raises() []RequiredAction {
	var actions []RequiredAction
	for _, t := range s.pause.raise {
		actions = append(actions, RequiredAction{
			Kind: RequireRaise, Guard: t.Guard, Field: t.Field, Observed: t.Observed, TakesInput: t.Reason.ofProgress(),
			Deadline: t.Until, Reason: t.Message,
		})
	}
	return actions
}

// paused reports whether there is anything to resume from.
func (s *State) paused() bool {
	refused := s.account.refused
	waits := s.account.waits > 0 || refused != nil && refused.Act == VerdictPause // for money
	return s.pause.asked != nil || len(s.pause.raise) > 0 || waits
}

// mayResume reports whether the run goes on with it.
func (s *State) mayResume(b Resumed) bool {
	if s.cancel != nil || !s.paused() {
		return false
	}
	if b.Limits != nil && len(s.spec.Limits.RaiseFaults(*b.Limits, s.spec.Parent != nil)) > 0 {
		return false
	}
	return CheckResume(s.raises(), s.spec.Limits, b) == nil
}

// applyResumed ends the pause. Nothing that was counted begins anew. It asks for
// less than mayResume: a journal stays readable when the rules for a raise change.
func (s *State) applyResumed(b Resumed, _ Event) error {
	if !s.paused() {
		return fmt.Errorf("a run that is not paused cannot be resumed: %w", ErrImpossible)
	}
	if b.Limits != nil {
		if faults := s.spec.Limits.RaiseFaults(*b.Limits, s.spec.Parent != nil); len(faults) > 0 {
			return fmt.Errorf("%w: %w", faults[0], ErrImpossible)
		}
		s.spec.Limits = *b.Limits
	}
	s.pause.asked, s.pause.raise, s.account = nil, nil, account{}
	if b.Input != "" {
		if s.pause.word != "" {
			s.pause.word += "\n\n"
		}
		s.pause.word += b.Input
	}
	return nil
}

// hear puts the word of whoever resumed the run before the model, as soon as no call
// waits for its result: results come right after their calls. What the run did
// before no longer counts as getting nowhere, and an answer that was given without
// the word is not the final one.
func (s *State) hear(e Event) {
	if s.pause.word == "" || len(s.calls.batch) > 0 || s.spend.open != nil {
		return
	}
	m := Message{Role: RoleUser, Source: SourceUser, Parts: []Part{TextPart(s.pause.word)}}
	s.talk.add(m, e.Seq, s.iterations, e.At)
	s.pause.word, s.prints = "", nil
	if s.answer != nil && s.answer.finish == FinishDone && !s.answer.wrapUp {
		s.answer = nil
		s.contract.checked, s.contract.accepted, s.contract.verdicts = false, false, 0
		s.dropAside()
	}
}

// Limits are those in force: what the run was created with, as far as nobody raised
// them since.
func (s *State) Limits() Limits { return s.spec.Limits }
