package loop

// Facts are what assertions and judges may know of a run. They are taken from the
// fold alone, so that they are the same after a crash. The slices are the facts'
// own; what they hold is shared.
type Facts struct {
	Run        RunRef
	Agent      string // "agents/support"
	Labels     map[string]string
	Iterations int
	ToolCalls  int
	Cost       USD
	Answer     string // empty: there is none yet
	// Calls are all calls so far in the order in which they were planned, those
	// included that were refused.
	Calls []CallHead
	// Ledger is what was done in the world, or may have been; child runs' included.
	Ledger []LedgerEntry
}

// LedgerEntry is a side effect with the arguments that were sent. Those of child
// runs' calls are in the child's journal only.
type LedgerEntry struct {
	SideEffectHead

	Args string // empty: not known here
}

// Facts are what is known of the run now, with the answer that is to be judged.
func (s *State) Facts(answer string) Facts {
	f := Facts{
		Run: s.run, Agent: s.spec.Agent, Labels: s.spec.Labels, Iterations: s.iterations,
		ToolCalls: s.calls.started, Cost: s.spend.cost.Total(), Answer: answer,
	}
	for _, id := range s.calls.order {
		f.Calls = append(f.Calls, s.calls.byID[id].CallHead)
	}
	for _, e := range s.calls.effects {
		entry := LedgerEntry{SideEffectHead: e}
		if c := s.calls.byID[e.CallID]; c != nil && e.RunID == "" {
			entry.Args = c.asSent().Args
		}
		f.Ledger = append(f.Ledger, entry)
	}
	return f
}

// SentArgs are the arguments of the call as it is sent: those that were approved.
func (h CallHead) SentArgs() string {
	if h.Edited != "" {
		return h.Edited
	}
	return h.Call.Args
}
