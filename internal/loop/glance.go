package loop

// What metrics ask of a state at each commit: single facts, without a whole Head.

// Phase is what the run does or waits for; see Head.
func (s *State) Phase() string { return s.phase() }

// Iterations counts the iterations so far.
func (s *State) Iterations() int { return s.iterations }

// Spent is what the run has cost so far, without what is held.
func (s *State) Spent() USD { return s.spend.cost.Total() }

// Call is the head of a call, false if the run has none of this id.
func (s *State) Call(id string) (CallHead, bool) {
	c := s.calls.byID[id]
	if c == nil {
		return CallHead{}, false
	}
	return c.CallHead, true
}
