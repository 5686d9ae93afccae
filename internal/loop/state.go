package loop

import (
	"fmt"
	"slices"
	"time"
)

// State is a run, folded from its events. It is not safe for concurrent use:
// the goroutine that owns the run owns its State.
type State struct {
	run       RunRef
	seq       int64
	spec      Spec
	createdAt time.Time

	talk   transcript
	calls  ledger
	chain  chain
	spend  spend
	tenure tenure
	prints []footprint

	rateWait    *RateWaited // the next call waits for its share, until the next event
	lastResults int64       // bytes of results that the newest model call left room for

	iterations int
	answer     *answered // the newest model answer, until the next call starts
	empties    int       // empty answers in a row
	truncated  int       // truncated answers in a row
	truncTotal int
	unknowns   int        // answers with an unknown stop reason in a row
	pauses     int        // paused answers in a row
	textLoops  []Evidence // answers of the run that went round in circles
	contract   contract
	offered    string // the final answer that no message holds: of the built-in finish, or a child's

	plainSince int // the model call whose schema was refused: no later one has it; 0: none was

	besides    *aside // what came of the newest call beside the conversation
	compaction compaction
	full       []FullResult // not taken yet

	checkpoints map[string]judged // by name

	trips    []Tripped
	final    *Tripped // the trip that asked for a wrap-up
	pause    pause
	account  account
	cancel   *CancelRequested
	finished *Finished
	endedAt  time.Time
}

// answered is what Next needs to know of a model answer.
type answered struct {
	finish  Finish
	text    string
	wrapUp  bool
	kept    bool // it is in the transcript
	refusal string
}

// Fold builds a State from a run's events, in order. It fails with
// ErrImpossible if an event cannot follow the ones before it.
func Fold(run RunRef, events []Event) (*State, error) {
	s := &State{run: run}
	for _, e := range events {
		if err := s.Apply(e); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Apply takes one event. After an error the State must be thrown away.
func (s *State) Apply(e Event) error {
	if err := s.admissible(e); err != nil {
		return fmt.Errorf("run %s, event %d %s: %w", s.run.ID, e.Seq, e.Body.Kind(), err)
	}
	s.seq, s.rateWait = e.Seq, nil
	if err := s.apply(e); err != nil {
		return fmt.Errorf("run %s, event %d %s: %w", s.run.ID, e.Seq, e.Body.Kind(), err)
	}
	s.tenure.lastEvent = e.At
	return nil
}

// admissible checks what is true of every event, whatever its kind.
func (s *State) admissible(e Event) error {
	_, created := e.Body.(Created)
	switch {
	case e.Seq != s.seq+1:
		return fmt.Errorf("after event %d: %w", s.seq, ErrImpossible)
	case created != (e.Seq == 1):
		return fmt.Errorf("a journal begins with created, once: %w", ErrImpossible)
	case s.finished != nil:
		return fmt.Errorf("the run has finished: %w", ErrImpossible)
	}
	return nil
}

// apply hands the event to the part that it concerns.
func (s *State) apply(e Event) error {
	var err error
	switch b := e.Body.(type) {
	case Created:
		s.applyCreated(b, e)
	case Claimed:
		err = s.tenure.applyClaimed(b, e.At, e.Epoch)
	case Suspended:
		err = s.tenure.applySuspended(b, e.At)
	case ModelStarted:
		s.besides = nil
		if !beside(b.Purpose) {
			s.answer, s.lastResults = nil, b.ResultBudget
		}
		err = s.spend.applyStarted(b)
	case ModelAnswered:
		err = s.applyAnswered(b, e)
	case ModelFailed:
		s.noteJudgeFailed(b)
		err = s.applyFailed(b)
	case FellBack:
		err = s.applyFellBack(b, e)
	case RateWaited:
		s.rateWait = &b
	case InputCounted:
		s.talk.applyCounted(b)
	case CallRefused:
		err = s.calls.applyRefused(b, e.At)
	case ApprovalRequested:
		err = s.calls.applyRequested(b, e.At)
	case ApprovalDecided:
		err = s.calls.applyDecided(s.run, b, e.At)
	case CallBegun:
		err = s.calls.applyBegun(b, e.At)
	case CallFinished:
		err = s.calls.applyFinished(b, e.At)
	case CallDoubted:
		err = s.calls.applyDoubted(b, e.At)
	case DoubtTold:
		err = s.calls.applyTold(b)
	case CallVerified:
		err = s.calls.applyVerified(b, e.At)
	case CallHandedOut:
		err = s.applyHandedOut(b, e.At)
	case ResultSubmitted:
		err = s.applySubmitted(b, e.At)
	case CallPolled:
		err = s.calls.applyPolled(b)
	case ChildCancelled:
		err = s.calls.applyChildCancelled(b, e.At)
	case ChildFinished:
		err = s.applyChildFinished(b, e.At)
	case CallResolved:
		err = s.calls.applyResolved(b, e.At)
	case Tripped:
		s.applyTripped(b, e)
	case AnswerRejected, AnswerChecked, AnswerAccepted, CheckpointJudged:
		s.applyCheck(e)
	case Compacted:
		err = s.applyCompacted(b, e)
	case PauseRequested:
		s.pause.asked = &b
	case Resumed:
		err = s.applyResumed(b, e)
	case AccountRefused: // the account takes note of it, below
	case CancelRequested:
		s.cancel = &b
	case Finished:
		s.finished, s.endedAt = &b, e.At
	default:
		err = ErrUnknownKind
	}
	if err == nil {
		s.account.note(e.Body)
		s.noteProgress(e.Body)
		s.closeBatch(e)
		s.hear(e)
	}
	return err
}

// noteProgress forgets the attempts that brought nothing, when something has been
// brought.
func (s *State) noteProgress(b Body) {
	switch b.(type) {
	case ModelAnswered, CallFinished, CallPolled, CallVerified, CallHandedOut, ResultSubmitted, ChildFinished:
		s.tenure.progress()
	}
}

func (s *State) applyCreated(b Created, e Event) {
	s.spec, s.createdAt, s.chain = b.Spec, e.At, newChain(b.Spec)
	s.talk.imageBound = imageBound(s.chain.prices)
	parts := append(slices.Clone(b.Spec.Attachments), TextPart(b.Spec.Input))
	s.talk.add(Message{Role: RoleUser, Source: SourceInput, Parts: parts}, e.Seq, 0, e.At)
}

func (s *State) applyTripped(b Tripped, e Event) {
	s.trips = append(s.trips, b)
	s.toldOfCheckpoints(b)
	switch {
	case b.Verdict == VerdictFinalTurn && s.final == nil:
		s.final, s.pause.raise = &b, nil
	case b.Verdict == VerdictPause && s.final == nil && b.Reason != AccountBudget: // which waits for money, not for a raise
		s.pause.raise = append(s.pause.raise, b)
	}
	if b.Say != "" {
		s.talk.add(guardMessage(b.Say), e.Seq, s.iterations, e.At)
	}
}

func guardMessage(text string) Message {
	return Message{Role: RoleUser, Source: SourceGuard, Parts: []Part{TextPart(text)}}
}

// applyAnswered settles the call and decides what becomes of the answer. An
// answer that is cut, empty, refused or not understood is not put into the
// transcript the first time: the same request is asked again, or the run ends.
func (s *State) applyAnswered(b ModelAnswered, e Event) error {
	if open := s.spend.open; open != nil && beside(open.Purpose) {
		s.besides = &aside{purpose: open.Purpose, finish: b.Finish, text: b.Message.Text()}
		s.noteVerdict(open.Purpose)
		return s.spend.applyAnswered(b)
	}
	wrapUp := s.spend.open != nil && s.spend.open.Purpose == PurposeWrapUp
	if s.spend.open != nil && !b.Estimated {
		s.talk.learn(b.Usage.Input(), s.spend.open.InputBound)
	}
	if err := s.spend.applyAnswered(b); err != nil {
		return err
	}
	a := &answered{finish: b.Finish, text: b.Message.Text(), wrapUp: wrapUp}
	for _, p := range b.Message.Parts {
		if p.Kind == PartRefusal {
			a.refusal = p.Text
		}
	}
	if (b.Finish == FinishDone && a.text == "") || (b.Finish == FinishToolCalls && len(b.Message.Calls()) == 0) {
		a.finish = finishEmpty
	}
	if b.Chant != "" {
		a.finish = finishChant
		s.noteTextLoop(b.Chant)
	}
	s.answer = a
	s.count(a.finish)
	s.noteOverflow("", a.finish, "")
	if !b.Estimated && b.Usage.Input() > 0 {
		s.talk.anchorHere(b.Usage.Input())
	}
	a.kept = s.keeps(a, b.Message)
	if !a.kept {
		return nil
	}
	s.iterations++
	s.offered = ""
	b.Message.Model = s.chain.model()
	s.talk.add(b.Message, e.Seq, s.iterations, e.At)
	if !b.Estimated && b.Usage.Input() > 0 {
		s.talk.anchorHere(b.Usage.Total())
	}
	if !wrapUp { // after a wrap-up no request follows that would need results
		s.planCalls(b.Message.Calls(), whySkipped(a.finish))
	}
	return nil
}

// applyFailed settles the call, and notes what says more of the run than of the
// provider.
func (s *State) applyFailed(b ModelFailed) error {
	s.notePlain(s.spend.open, b)
	if err := s.spend.applyFailed(b); err != nil {
		return err
	}
	if beside(s.spend.failedPurpose) {
		return nil
	}
	s.noteOverflow(b.Class, "", b.told())
	if b.Class == ErrorTextLoop {
		s.noteTextLoop(b.Message)
	}
	return nil
}

// whySkipped is what the model is told of calls in an answer that did not finish
// as tool calls: they never run, but each needs its result. Empty: they may run.
func whySkipped(f Finish) string {
	switch f {
	case FinishToolCalls:
		return ""
	case FinishTruncated:
		return "The call did not run: your answer was cut off at the output limit. Split the work into smaller calls."
	}
	return "The call did not run: your answer did not end as a request for tool calls."
}

// finishEmpty is an answer with nothing in it. Providers never report it.
const finishEmpty Finish = "empty"

// count keeps the streaks of answers that did not help.
func (s *State) count(f Finish) {
	streak := func(n *int, hit bool) {
		if hit {
			*n++
		} else {
			*n = 0
		}
	}
	streak(&s.empties, f == finishEmpty)
	streak(&s.truncated, f == FinishTruncated)
	streak(&s.unknowns, f == FinishUnknown)
	streak(&s.pauses, f == FinishPaused)
	if f == FinishTruncated {
		s.truncTotal++
	}
}

// keeps reports whether an answer goes into the transcript.
func (s *State) keeps(a *answered, m Message) bool {
	switch a.finish {
	case FinishDone, FinishToolCalls, FinishPaused:
		return true
	case FinishTruncated: // the second time in a row, if there is anything to keep
		return a.wrapUp || s.truncated > 1 && (a.text != "" || len(m.Calls()) > 0)
	}
	return false
}

// planCalls enters the calls of an answer into the ledger.
func (s *State) planCalls(calls []ToolCall, skip string) {
	s.calls.batch = nil
	for _, tc := range calls {
		spec, known := s.spec.Definition.Tool(tc.Name)
		effect := spec.Effect
		if !known || effect == "" {
			effect = Irreversible
		}
		hash := ArgsHash(s.run, tc)
		s.calls.plan(&call{
			CallHead: CallHead{
				Call: tc, Iteration: s.iterations, Effect: effect, State: CallPlanned, ArgsHash: hash,
			},
			sentHash: hash,
			spec:     spec, known: known, skip: skip, print: callPrint(spec, tc), //nolint:forbidigo // a field, not the builtin
		})
	}
}

// closeBatch writes the results of a finished batch into the transcript, all in
// one message, in call order, and notes the iteration's footprint.
func (s *State) closeBatch(e Event) {
	if len(s.calls.batch) == 0 || len(s.calls.open()) > 0 {
		return
	}
	m := Message{Role: RoleUser, Source: SourceTool}
	calls := make([]*call, 0, len(s.calls.batch))
	for _, id := range s.calls.batch {
		c := s.calls.byID[id]
		calls = append(calls, c)
		m.Parts = append(m.Parts, Part{Kind: PartToolResult, Result: &ToolResult{
			CallID: id, ProviderID: c.Call.ProviderID, Name: c.Call.Name, Outcome: c.Outcome, Content: c.content(),
		}})
	}
	s.calls.batch = nil
	s.talk.add(m, e.Seq, s.iterations, e.At)
	s.prints = append(s.prints, footprintOf(s.iterations, calls))
	if text, ok := s.answerOf(calls); ok {
		s.answer, s.offered = &answered{finish: FinishDone, text: text, kept: true}, text
	}
}

// Run names the run.
func (s *State) Run() RunRef { return s.run }

// Spec is what the run was created with, under the limits that are in force.
func (s *State) Spec() Spec { return s.spec }

// RateWaiting reports whether the journal says that the next model call waits
// for its share of a rate limit.
func (s *State) RateWaiting() bool { return s.rateWait != nil }

// Seq is the number of the last event.
func (s *State) Seq() int64 { return s.seq }

// Attempts counts the tenures so far.
func (s *State) Attempts() int { return s.tenure.attempts }

// InAttempt reports whether the last attempt has not been closed in good order.
// When a worker claims such a run, the worker before it died.
func (s *State) InAttempt() bool { return !s.tenure.since.IsZero() }

// Drives reports whether the attempt under the epoch has begun and not ended.
func (s *State) Drives(epoch int64) bool { return s.InAttempt() && s.tenure.epoch == epoch }

// Trips lists the guards' verdicts that changed the run, in order.
func (s *State) Trips() []Tripped { return slices.Clone(s.trips) }

// Transcript is the conversation as the model reads it, in order. What was left out
// of it is in Messages. The parts are shared: do not change them.
func (s *State) Transcript() []Message { return slices.Clone(s.talk.messages) }

// Cost splits what the run has cost so far.
func (s *State) Cost() Cost { return s.spend.cost }

// OpenHold is the hold of the model call in flight, zero if there is none.
func (s *State) OpenHold() USD { return s.spend.hold }

// Accepts reports whether a signal's body can follow now. A signal that cannot
// is dropped: the decision it carries came too late.
func (s *State) Accepts(b Body) bool {
	if s.finished != nil {
		return false
	}
	switch b := b.(type) {
	case CancelRequested:
		return s.cancel == nil
	case PauseRequested:
		return s.cancel == nil && s.pause.asked == nil && len(s.pause.raise) == 0
	case Resumed:
		return s.mayResume(b)
	case ApprovalDecided:
		c, err := s.calls.get(b.CallID, CallAwaitingApproval)
		return err == nil && c.ArgsHash == b.ArgsHash
	case CallResolved:
		c, err := s.calls.get(b.CallID, CallInDoubt)
		known := b.Resolution == ResolvedSucceeded || b.Resolution == ResolvedNotExecuted || b.Resolution == ResolvedRetry && err == nil && !c.told
		return err == nil && known && b.means(c)
	case ResultSubmitted:
		c, err := s.calls.get(b.CallID, CallOffered)
		return err == nil && c.Attempt == b.Attempt && c.owed()
	case ChildFinished:
		c, err := s.calls.get(b.CallID, CallOffered)
		return err == nil && c.child != nil && c.ChildID == b.ChildID
	}
	return false
}

// Failures counts the model calls that failed in a row for the current request.
func (s *State) Failures() int { return s.spend.failures }

// CreatedAt is when the run was created.
func (s *State) CreatedAt() time.Time { return s.createdAt }

// ToolLabel is the name of a call's tool for metrics: "_unknown" for a name that
// the model made up.
func (s *State) ToolLabel(callID string) string {
	if c := s.calls.byID[callID]; c != nil && c.known {
		return c.Call.Name
	}
	return "_unknown"
}

// AnswerKept reports whether the newest model answer was accepted into the
// transcript and so made an iteration.
func (s *State) AnswerKept() bool { return s.answer != nil && s.answer.kept }
