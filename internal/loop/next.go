package loop

import (
	"fmt"
	"time"
)

// How often loopd tries before it gives up. Source: provider SDKs retry twice;
// one owner of retries with three per request and ten per run bounds a bad hour
// at a provider without multiplying it.
const (
	maxRetries    = 3  // of one request
	maxRunRetries = 10 // in the whole run
	maxRecoveries = 5  // attempts in a row that crashed or died without progress
	maxPauses     = 8  // continuations of one paused answer
	maxEmpty      = 2  // empty answers that are asked again
	maxTruncated  = 3  // truncated answers in a run
)

// longBackoff is the longest wait for a provider when another model could answer.
const longBackoff = time.Minute

// How long a run waits for people.
const (
	approvalWait = 24 * time.Hour
	doubtWait    = 7 * 24 * time.Hour
)

// Next names the one thing to do at now. It has no effect, and asked twice it
// answers the same. It may only be asked while nothing of the run is being
// performed: a model or tool call without a result is taken for lost.
//
// A guard that panics ends the run: it fails closed.
func (s *State) Next(now time.Time) (a Action) {
	defer func() {
		if r := recover(); r != nil {
			a = s.finish(StateFailed, Stop{Reason: GuardInternal, Message: fmt.Sprintf("a guard crashed, so the run was stopped: %v", r)})
		}
	}()
	if s.finished != nil {
		return Done{}
	}
	return s.withGauges(s.next(now), now)
}

// next is the first rule that wants something, or the next model call.
func (s *State) next(now time.Time) Action {
	for _, rule := range []func(time.Time) Action{
		s.settleLost, s.endOfPatience, s.nextPause, s.nextCalls, s.nextCheckpoint, s.afterFailure, s.afterAnswer,
	} {
		if a := rule(now); a != nil {
			return a
		}
	}
	return s.nextModelCall(now)
}

// settleLost settles what was in flight when the last worker died. A model call
// is charged at its hold. A tool call that may be repeated will be; one that
// may not is in doubt, whatever else happens to the run.
func (s *State) settleLost(now time.Time) Action {
	var facts []Body
	if open := s.spend.open; open != nil {
		facts = append(facts, ModelFailed{
			Call: open.Call, Class: ErrorLost, Cost: LostCost(ErrorLost, open.Hold),
			Message: "the worker was lost while the call was in flight; it is charged at its hold",
		})
	}
	for _, c := range s.calls.open() {
		if c.State == CallStarted && !c.Effect.Repeatable() {
			facts = append(facts, CallDoubted{
				CallID: c.Call.ID, Attempt: c.Attempt, Until: s.patience(now, doubtWait),
				Reason: "the worker was lost after the call was started; it may have run",
			})
		}
	}
	if facts == nil {
		return nil
	}
	return Record{intent: intent{facts}}
}

// endOfPatience ends runs that were cancelled, whose attempts keep breaking down,
// or that are too old.
func (s *State) endOfPatience(now time.Time) Action {
	if s.cancel != nil {
		if a := s.unwind(now, "the run that started it was cancelled"); a != nil {
			return a
		}
		msg := "the run was cancelled"
		if s.cancel.Reason != "" {
			msg += ": " + s.cancel.Reason
		}
		return s.finish(StateCancelled, Stop{Reason: Cancelled, Message: msg})
	}
	if stop := s.recoveryExhausted(); stop != nil {
		if a := s.unwind(now, "the run that started it could not go on"); a != nil {
			return a
		}
		return s.finish(StateFailed, *stop)
	}
	if t := s.tooOld(now); t != nil {
		if a := s.unwind(now, "the run that started it is out of time"); a != nil {
			return a
		}
		return s.stopOn(*t)
	}
	return nil
}

// tooOld is the trip of a run that has outlived its wall time, or nil.
func (s *State) tooOld(now time.Time) *Tripped {
	age, limit := now.Sub(s.createdAt), s.spec.Limits.WallTime
	if age < limit {
		return nil
	}
	return &Tripped{
		Guard: "wall_time", Verdict: VerdictStop, Reason: WallTime, Observed: age.Round(time.Second).String(), Limit: limit.String(),
		Message: "the run is older than it may get, waits included",
	}
}

// nextCalls works on the calls of the last answer that have no result yet:
// refuses what may not run, asks for what needs approval, starts the rest.
func (s *State) nextCalls(now time.Time) Action {
	open := s.calls.open()
	if len(open) == 0 {
		return nil
	}
	late := s.tenure.elapsed(now) >= s.spec.Limits.Deadline-s.spec.Limits.wrapUpSlice()
	g := gate{s: s, now: now, late: late, finishing: finishing(open)}
	for _, c := range open {
		g.judge(c)
	}
	return g.action()
}

// afterFailure decides what follows a model call that brought no answer.
func (s *State) afterFailure(now time.Time) Action {
	f := s.spend.failed
	if f == nil || f.Class == ErrorCancelled {
		return nil
	}
	if beside(s.spend.failedPurpose) {
		return s.afterAside(f, now)
	}
	if f.Class == ErrorTextLoop {
		return s.afterTextLoop()
	}
	if f.Class == ErrorRequest && f.Call == s.plainSince {
		return nil // once more, without the schema
	}
	retryable := s.retryable(f)
	if f.Class.FallbackAllowed() && (!retryable || f.Code == CodeCircuitOpen || f.RetryAt.After(now.Add(longBackoff))) {
		if a := s.fallBack(f.Class, f.Code, excerpt(f.Message, evidenceExcerpt)); a != nil {
			return a
		}
	}
	if retryable {
		if end := s.workEnd(now); f.RetryAt.After(now) && now.Before(end) {
			return Sleep{Until: s.inLifetime(earliest(f.RetryAt, end)), Reason: WaitBackoff}
		}
		return nil // the guards look again, then the request is sent again
	}
	if s.final != nil {
		return s.stopOn(*s.final) // no wrap-up to be had
	}
	stop := Stop{Reason: ProviderError, Iteration: s.iterations, Observed: string(f.Class), Message: f.told()}
	switch f.Class {
	case ErrorContext:
		return s.compact(now)
	case ErrorQuota:
		stop.Reason = ProviderUnavailable
	case ErrorInternal:
		stop.Reason = InternalError
	}
	if f.Class.Retryable() {
		stop.Reason = ProviderUnavailable
		stop.Message = fmt.Sprintf("gave up after %d failed tries: %s", s.spend.failures, stop.Message)
		if f.NoRetry != "" {
			stop.Message += " (" + f.NoRetry + ")"
		}
	}
	return s.finish(StateFailed, stop)
}

// retryable reports whether the request that failed is sent once more.
func (s *State) retryable(f *ModelFailed) bool {
	return f.NoRetry == "" && f.Class.Retryable() && s.spend.failures <= maxRetries && s.spend.retries <= maxRunRetries
}

// patience is until when something outside is waited for: so long, but not to the
// end of the run's wall time. What is left then is enough to go on without it.
func (s *State) patience(now time.Time, wait time.Duration) time.Time {
	end := s.createdAt.Add(s.spec.Limits.WallTime - s.lastStretch())
	if end.Before(now) {
		end = now
	}
	return earliest(now.Add(wait), end)
}

// lastStretch is the end of the wall time that is kept for going on without what
// never came.
func (s *State) lastStretch() time.Duration {
	return min(s.spec.Limits.Deadline, s.spec.Limits.WallTime/4)
}

// inLifetime brings a wait forward to the end of the run's wall time: there is
// something to do then, whatever else is waited for.
func (s *State) inLifetime(until time.Time) time.Time {
	if end := s.createdAt.Add(s.spec.Limits.WallTime); end.Before(until) {
		return end
	}
	return until
}

// afterAnswer decides what follows the newest model answer, before any guard
// looks at the next call. It returns nil when another model call is due.
func (s *State) afterAnswer(now time.Time) Action {
	a := s.answer
	if a == nil {
		return nil
	}
	switch {
	case a.finish == finishChant:
		return s.afterTextLoop()
	case a.wrapUp:
		return s.stopOn(*s.final)
	}
	switch a.finish {
	case FinishRefused:
		if a := s.afterRefusal(a); a != nil {
			return a
		}
		return s.stopOn(Tripped{
			Guard: "refusal", Reason: Refusal,
			Message:  "the model refused; nothing in its answer was run",
			Evidence: []Evidence{{Note: excerpt(a.refusal+a.text, evidenceExcerpt)}},
		})
	case FinishContext:
		return s.compact(now)
	case FinishPaused:
		return s.stopAbove(s.pauses, maxPauses, "pause", PauseLoop, "the provider paused the same answer again and again")
	case finishEmpty:
		return s.stopAbove(s.empties, maxEmpty, "empty", EmptyResponse, "the model answered with nothing again and again")
	case FinishUnknown:
		return s.stopAbove(s.unknowns, 1, "unknown_stop", UnknownStopReason, "the provider gave a stop reason that loopd does not know, twice; its answers were not used")
	case FinishTruncated:
		return s.afterTruncated(a)
	case FinishDone:
		return s.afterFinalAnswer(a, now)
	}
	return nil
}

// afterRefusal asks one other model, once in a run. The same one is never asked
// again: it would refuse again, or be talked round.
func (s *State) afterRefusal(a *answered) Action {
	if s.chain.refusal {
		return nil
	}
	return s.fallBack("", "", "the model refused: "+excerpt(a.refusal+a.text, evidenceExcerpt))
}

// stopAbove ends the run when a streak is longer than limit.
func (s *State) stopAbove(streak, limit int, guard string, r StopReason, message string) Action {
	if streak <= limit {
		return nil
	}
	return s.stopOn(Tripped{Guard: guard, Reason: r, Observed: fmt.Sprint(streak), Limit: fmt.Sprint(limit), Message: message})
}

// afterTruncated asks once for the same with more room, then has the model
// split its work, then gives up. Nothing in a cut answer is ever run.
func (s *State) afterTruncated(a *answered) Action {
	if s.truncTotal >= maxTruncated {
		return s.stopOn(Tripped{
			Guard: "truncated", Reason: Truncated, Observed: fmt.Sprint(s.truncTotal), Limit: fmt.Sprint(maxTruncated),
			Message: "the model's answers kept being cut off at the output limit",
		})
	}
	if a.kept && s.talk.last().Role == RoleAssistant {
		return Record{intent: intent{[]Body{Tripped{
			Guard: "truncated", Verdict: VerdictNudge, Reason: Truncated, Iteration: s.iterations,
			Message: "an answer was cut off at the output limit twice",
			Say:     "Your answer was cut off at the output limit. Answer again, shorter.",
		}}}}
	}
	return nil
}

// afterFinalAnswer accepts the answer, has it checked, or sends it back.
func (s *State) afterFinalAnswer(a *answered, now time.Time) Action {
	if a := s.nextCheck(a, now); a != nil {
		return a
	}
	return End{intent: intent{[]Body{Finished{
		State: StateSucceeded, Answer: a.text,
		Stop: Stop{Reason: Completed, Iteration: s.iterations, Message: "the model finished and its answer was accepted"},
	}}}}
}

// nextModelCall asks the guards, plans the call and holds its worst case.
func (s *State) nextModelCall(now time.Time) Action {
	if t := s.brokenContract(); t != nil {
		return s.stopOn(*t)
	}
	// What refused this call has no room for a summary either, unless it is waited for.
	if s.account.refused == nil || s.waitForAccount(now) != nil {
		if a := s.compact(now); a != nil {
			return a
		}
	}
	p, trips := s.planCall(now)
	if p.refused != nil && s.mayCount() {
		return CountInput{Request: s.request(p), Deadline: s.workDeadline(now)}
	}
	if s.final != nil || len(trips) == 0 {
		return s.callModel(p, now)
	}
	facts := make([]Body, 0, len(trips))
	for _, t := range trips {
		facts = append(facts, t)
	}
	switch first := trips[0]; first.Verdict {
	case VerdictStop:
		return s.finishAfter(facts, StateStopped, stopOf(first), true)
	case VerdictPause:
		if first.Reason == AccountBudget {
			return s.waitForAccount(now)
		}
		return s.pauseOn(trips, now)
	}
	return Record{intent: intent{facts}}
}

// callModel is the action for a planned call; a plan that no money or time is
// left for ends the run.
func (s *State) callModel(p plan, now time.Time) Action {
	if p.refused != nil {
		return s.stopOn(*p.refused)
	}
	started := ModelStarted{
		Call: s.spend.calls + 1, Purpose: p.purpose, Model: s.chain.model(),
		MaxOutput: p.output, InputBound: p.input, ResultBudget: p.results, Hold: p.hold, Reserve: p.reserve,
		Context: s.inputEstimate() + p.output, Window: s.chain.price().Window, PriceVersion: s.chain.price().Version,
	}
	return CallModel{intent{[]Body{started}}, s.request(p), started, s.chain.price(), s.workEnd(now)}
}

// workEnd is when the run must stop working: for the wrap-up, or after it.
func (s *State) workEnd(now time.Time) time.Time {
	if s.final != nil {
		return now.Add(s.spec.Limits.Deadline - s.tenure.elapsed(now))
	}
	return s.workDeadline(now)
}

// workDeadline is when work must stop so that a wrap-up still fits.
func (s *State) workDeadline(now time.Time) time.Time {
	l := s.spec.Limits
	return now.Add(l.Deadline - l.wrapUpSlice() - s.tenure.elapsed(now))
}

// bestAnswer is the best text there is, for a run that ends short of an accepted
// answer.
func (s *State) bestAnswer() string {
	if s.offered != "" {
		return s.offered
	}
	return s.talk.lastAssistantText()
}

// stopOn ends the run for a trip, with the best text there is as partial answer.
func (s *State) stopOn(t Tripped) End {
	if t.Iteration == 0 {
		t.Iteration = s.iterations
	}
	var facts []Body
	if s.final == nil || s.final.Guard != t.Guard {
		t.Verdict = VerdictStop
		facts = append(facts, t)
	}
	return s.finishAfter(facts, StateStopped, stopOf(t), true)
}

func stopOf(t Tripped) Stop {
	return Stop{
		Reason: t.Reason, Guard: t.Guard, Observed: t.Observed, Limit: t.Limit,
		Message: t.Message, Evidence: t.Evidence, Iteration: t.Iteration,
	}
}

// finish ends the run short of its answer. See finishAfter.
func (s *State) finish(state RunState, stop Stop) Action {
	return s.finishAfter(nil, state, stop, true)
}

// finishAfter ends the run after some facts: every call that never started gets
// its one result, which tells the truth, and the newest text is the partial
// answer. Calls in doubt stay in doubt: ending a run resolves nothing.
func (s *State) finishAfter(facts []Body, state RunState, stop Stop, partial bool) End {
	for _, c := range s.calls.open() {
		switch c.State {
		case CallPlanned, CallAwaitingApproval, CallApproved, CallStarted, CallOffered:
			if c.State == CallOffered && c.owed() && !c.Effect.Repeatable() { // whoever has it may run it
				facts = append(facts, CallDoubted{CallID: c.Call.ID, Attempt: c.Attempt, Until: s.tenure.lastEvent, Reason: "the run ended while the call was handed out; it may have run"})
				continue
			}
			facts = append(facts, CallRefused{CallID: c.Call.ID, Outcome: OutcomeCancelled, Content: c.neverAgain("the run ended first")})
		}
	}
	if stop.Iteration == 0 {
		stop.Iteration = s.iterations
	}
	answer := s.bestAnswer()
	return End{intent: intent{append(facts, Finished{State: state, Stop: stop, Answer: answer, Partial: partial, Unverified: s.unverified(answer)})}}
}
