package loop

// FirstNeed is what the first model call of a run can cost at most, together with the
// wrap-up that must stay possible after it: what each account that the run shares
// must have free before the run can do anything. The call is planned as the run will
// plan it, at the price of its first model, and with the answer's size and the room
// for results turned down as far as the run's own limits ask for. A run to which they
// leave nothing but a wrap-up needs what that can cost; one that they leave nothing
// at all needs nothing.
func FirstNeed(spec Spec) USD {
	s := &State{}
	if s.Apply(Event{Seq: 1, Body: Created{Spec: spec}}) != nil {
		return 0 // no journal begins like this, so there is no run either
	}
	p, trips := s.planCall(s.createdAt)
	for _, t := range trips {
		if trips[0].Verdict != VerdictFinalTurn || s.Apply(Event{Seq: s.seq + 1, Body: t}) != nil {
			return 0
		}
	}
	if len(trips) > 0 {
		p = s.planWrapUp(s.createdAt)
	}
	if p.refused != nil {
		return 0
	}
	return p.hold.plus(p.reserve)
}
