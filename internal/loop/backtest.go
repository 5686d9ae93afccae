package loop

import (
	"errors"
	"fmt"
	"maps"
	"time"
)

// Policy is what a backtest judges by instead of what the run was created with.
type Policy struct {
	// Limits changes a run's own limits. Nil: they stay.
	Limits func(Limits) Limits
	// Acts go before those of the run's agent.
	Acts map[string]Verdict
}

// Judgement is what a policy makes of a run that has been recorded.
type Judgement struct {
	Run   RunRef
	Agent string
	State RunState // as recorded
	Stop  Stop     // as recorded
	Cost  USD      // as recorded
	// Iterations is how many were recorded.
	Iterations int
	CreatedAt  time.Time
	// Ended is the first verdict that ended or paused the run, as recorded, of those
	// that are asked again here; nil: none did.
	Ended *Tripped

	// Trip would have ended or paused the run; nil: nothing would have, as far as the
	// record goes.
	Trip *Tripped
	// At is when, after Seq events.
	At  time.Time
	Seq int64
	// Spent is the cost until then, Saved what was spent afterwards. A wrap-up would
	// have cost at most WrapUp of it.
	Spent  USD
	Saved  USD
	WrapUp USD
	// Before is how long before the run's own end that was.
	Before time.Duration

	// Nudges are what the model would have been told, whether it was or not.
	Nudges []Tripped
	// Cut counts answers that are longer than the policy's budgets would have let them
	// become.
	Cut int
	// Beyond: the run was ended by a guard, where the policy would have let it go on.
	// What it would have done then is not recorded.
	Beyond bool
}

// CutsSuccess reports whether the policy would have taken a success away.
func (j Judgement) CutsSuccess() bool { return j.Trip != nil && j.State == StateSucceeded }

// Changes reports whether the run would have gone otherwise, as far as the record
// tells.
func (j Judgement) Changes() bool {
	if j.Trip == nil {
		return j.Beyond || j.Cut > 0
	}
	e := j.Ended
	return e == nil || e.Guard != j.Trip.Guard || e.Iteration != j.Trip.Iteration || e.Verdict != j.Trip.Verdict
}

// ErrUnfinished says that only the journal of a run that has ended can be judged.
var ErrUnfinished = errors.New("the run has not ended")

// Backtest judges the journal of a run that has ended by another policy. It calls no
// model and no tool: at every moment when the run asked a model, the guards are
// asked again, with what the run had done by then. What a model would have done
// after a nudge that it never got is not known; the recorded answers stand.
//
// It fails with ErrUnfinished or, for a broken journal, with ErrImpossible.
func Backtest(run RunRef, events []Event, policy Policy) (Judgement, error) {
	if len(events) == 0 {
		return Judgement{}, ErrUnfinished
	}
	finished, ok := events[len(events)-1].Body.(Finished)
	if !ok {
		return Judgement{}, ErrUnfinished
	}
	b := backtest{state: &State{run: run}, policy: policy}
	for _, e := range events {
		if err := b.take(e); err != nil {
			return Judgement{}, fmt.Errorf("backtest: %w", err)
		}
	}
	s := b.state
	j := b.judged
	j.Run, j.Agent, j.State, j.Stop, j.CreatedAt = run, s.spec.Agent, finished.State, finished.Stop, s.createdAt
	j.Cost, j.Iterations = s.spend.cost.Total(), s.iterations
	if j.Trip != nil {
		j.Saved, j.Before = j.Cost-j.Spent, s.endedAt.Sub(j.At)
		return j, nil
	}
	j.Beyond = finished.State == StateStopped && finished.Stop.Guard != "" && b.loosened
	return j, nil
}

// backtest folds a journal and asks the guards of another policy on the way.
type backtest struct {
	state  *State
	policy Policy
	judged Judgement
	// recorded are the limits that were in force when the run was recorded.
	recorded Limits
	// loosened: a guard wanted to end the run that is asked again here.
	loosened bool
	// broke: money that other runs had spent ended the run. No limit of its own changes
	// that.
	broke bool
	// room is what the answer in flight may have at most, where that is less than it
	// was. Zero: it is not.
	room int64
}

// take judges the moment before an event, then applies it.
func (b *backtest) take(e Event) error {
	s := b.state
	if answered, ok := e.Body.(ModelAnswered); ok && b.room > 0 {
		b.judged.Cut += oneIf(answered.Usage.AllOutput() > b.room)
		b.room = 0
	}
	if b.judged.Trip == nil && s.seq > 0 && s.cancel == nil && !b.broke {
		b.judge(e)
	}
	if t, ok := e.Body.(Tripped); ok {
		return b.hear(e, t)
	}
	resumed, raises := e.Body.(Resumed)
	if raises = raises && resumed.Limits != nil; raises {
		s.spec.Limits = b.recorded // it was a raise of these
	}
	if err := s.Apply(e); err != nil {
		return err
	}
	switch e.Body.(type) {
	case Created:
		b.adopt()
	case Resumed:
		if raises {
			b.adopt()
		}
	case AccountRefused: // whatever comes of it is recorded
		s.account.refused = nil
	}
	return nil
}

func oneIf(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// adopt puts the policy in the place of what the run was given.
func (b *backtest) adopt() {
	s := b.state
	b.recorded = s.spec.Limits
	if b.policy.Limits != nil {
		s.spec.Limits = b.policy.Limits(s.spec.Limits)
	}
	acts := map[string]Verdict{}
	maps.Copy(acts, s.spec.Definition.Acts)
	maps.Copy(acts, b.policy.Acts)
	s.spec.Definition.Acts = acts
}

// hear applies a recorded trip: what the model was told stays told. The verdict
// itself is the recorded policy's, and the guards here must not see it.
func (b *backtest) hear(e Event, t Tripped) error {
	s := b.state
	trips := s.trips
	if err := s.Apply(e); err != nil {
		return err
	}
	s.trips, s.final = trips, nil
	b.broke = b.broke || t.Guard == guardOfAccounts && t.Verdict != VerdictPause
	if t.Verdict != VerdictNudge && fromGuards(t) && !b.broke {
		b.loosened = true
	}
	if t.Verdict != VerdictNudge && b.judged.Ended == nil && (t.Guard == "wall_time" || fromGuards(t)) {
		b.judged.Ended = &t
	}
	return nil
}

// judge asks the guards at the moment of an event, if the run asked its own then.
func (b *backtest) judge(e Event) {
	s := b.state
	moment, asked := e.At, false
	var planned ModelStarted
	switch body := e.Body.(type) {
	case ModelStarted:
		planned, asked = body, !beside(body.Purpose)
	case Tripped:
		asked = body.Verdict != VerdictNudge && fromGuards(body)
	case CallBegun, CallHandedOut:
	case Finished:
		if body.State != StateSucceeded {
			return
		}
		moment = s.tenure.lastEvent // decided when the event before it was known
	default:
		return
	}
	if t := s.tooOld(moment); t != nil {
		t.Iteration = s.iterations
		b.end(*t, e)
		return
	}
	if !asked {
		return
	}
	p, trips := s.planCall(e.At)
	for ; len(trips) > 0; p, trips = s.planCall(e.At) { // as Next is asked again after a nudge
		if first := trips[0]; first.Verdict != VerdictNudge {
			b.judged.WrapUp = s.wrapUpBound(first)
			b.end(first, e)
			return
		}
		b.judged.Nudges = append(b.judged.Nudges, trips...)
		s.trips = append(s.trips, trips...)
	}
	if planned.Call > 0 && planned.Purpose == "" && planned.MaxOutput > p.output {
		b.room = p.output
	}
}

// end notes what would have ended the run, and what it had spent by then.
func (b *backtest) end(t Tripped, e Event) {
	s := b.state
	b.judged.Trip, b.judged.At, b.judged.Seq, b.judged.Spent = &t, e.At, s.seq, s.spend.cost.Total()
}

// wrapUpBound is the most that the wrap-up after a trip would cost.
func (s *State) wrapUpBound(t Tripped) USD {
	if t.Verdict != VerdictFinalTurn {
		return 0
	}
	return s.chain.price().Bound(s.inputBound(), s.spec.Limits.FinalOutput)
}

// fromGuards reports whether a trip is the word of a guard that is asked before each
// model call. The others follow from what a provider answered, and no limit of a
// policy changes that, or from a call beside the conversation, which a backtest does not
// plan again.
func fromGuards(t Tripped) bool {
	if t.Purpose != "" {
		return false
	}
	switch t.Guard {
	case "refusal", "empty", "truncated", "pause", "unknown_stop", "output", "in_doubt", "wall_time", "checkpoint", "text_loop", guardOfAccounts:
		return false
	case "context":
		return t.Limit != "" // else it is the provider that found the window full
	}
	return true
}
