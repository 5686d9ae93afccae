package loop

import "time"

// pauseAside gives the lease back until somebody raises the limits that have no room
// for a call beside the conversation without which the run would end. It returns nil
// when the run does not wait: the agent wants a pause of not all of the guards, so that
// it would end after the raise all the same, no raise helps, or no time is left to wait.
func (s *State) pauseAside(purpose string, refused []Tripped, now time.Time) Action {
	until := s.patience(now, raiseWait)
	if s.final != nil || until.Sub(now) < time.Second {
		return nil
	}
	facts := make([]Body, 0, len(refused)+1)
	for _, t := range refused {
		t.Field = s.fieldToRaise(t)
		if t.Field == "" || t.Reason == CostUnpriced || s.wanted(t.Guard) != VerdictPause {
			return nil
		}
		t.Verdict, t.Default, t.Until = VerdictPause, VerdictStop, until
		t.Purpose, t.Iteration, t.Message = purpose, s.iterations, asideMissing(purpose)+": "+t.Message
		facts = append(facts, t)
	}
	return Suspend{intent{append(facts, Suspended{Reason: WaitRaise, Until: until})}}
}

// asideMissing says what the run lacks without a call beside the conversation.
func asideMissing(purpose string) string {
	if purpose == PurposeJudge {
		return "the judge could not be asked about the final answer"
	}
	return "the transcript is too large, and the summary of it could not be made"
}

// noTime is the trip of a judge for whom the run's time is over.
func (s *State) noTime(now time.Time) Tripped {
	return Tripped{
		Guard: "deadline", Reason: Deadline, Observed: s.tenure.elapsed(now).Round(time.Second).String(),
		Limit: s.spec.Limits.Deadline.String(), Message: "no time is left for it",
	}
}
