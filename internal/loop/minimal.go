package loop

// FirstNeed is what the first model call of a run can cost at most, together with the
// wrap-up that must stay possible after it: what each account that the run shares
// must have free before the run can do anything. The call is planned as the run will
// plan it when an account has little left: at the price of its first model, with the
// answer's size and the room for results turned down as far as they may be. A run to
// which its own limits leave nothing but a wrap-up needs what that can cost; one that
// they leave nothing at all needs nothing.
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
	if p.purpose == "" {
		final := int64(0)
		if s.wrapsUp() {
			final = spec.Limits.FinalOutput
		}
		least := s.fitCost(p, final, 0) // as little as it can be
		return s.chain.price().Bound(least.input, least.output).plus(least.reserve)
	}
	return p.hold.plus(p.reserve)
}
