package loop

// footprint is what one iteration with calls left behind, for the guards that
// look for progress.
type footprint struct {
	iteration int
	print     string
	failed    bool // every call failed
	unknown   bool // every call named a tool that does not exist
	invalid   bool // every call was unknown or had invalid arguments
	pollable  bool // every call was of a pollable tool
	evidence  Evidence
}

// evidenceExcerpt bounds each excerpt that a trip keeps, in bytes.
const evidenceExcerpt = 200

// footprintOf reads the calls of a finished batch.
func footprintOf(iteration int, calls []*call) footprint {
	f := footprint{iteration: iteration, failed: true, unknown: true, invalid: true, pollable: true}
	pairs := make([]string, 0, len(calls))
	for _, c := range calls {
		pairs = append(pairs, c.print+c.result)
		f.failed = f.failed && c.Outcome.Failed()
		f.unknown = f.unknown && c.Outcome == OutcomeUnknownTool
		f.invalid = f.invalid && (c.Outcome == OutcomeUnknownTool || c.Outcome == OutcomeInvalidArgs)
		f.pollable = f.pollable && c.spec.Pollable
	}
	f.print = iterationPrint(pairs)
	first := calls[0]
	f.evidence = Evidence{
		Iteration: iteration, CallID: first.Call.ID, Tool: excerpt(first.Call.Name, evidenceExcerpt),
		Args: excerpt(first.Call.Args, evidenceExcerpt), ArgsHash: first.print[:12],
		Result: excerpt(first.Result, evidenceExcerpt), ResultHash: first.result[:min(12, len(first.result))],
	}
	return f
}

// trailing counts the footprints at the end, newest first, for which match holds.
func (s *State) trailing(match func(footprint) bool) int {
	n := 0
	for i := len(s.prints) - 1; i >= 0 && match(s.prints[i]); i-- {
		n++
	}
	return n
}

// proof collects the evidence of the last n footprints, oldest first.
func (s *State) proof(n int) []Evidence {
	var ev []Evidence
	for _, f := range s.prints[len(s.prints)-n:] {
		ev = append(ev, f.evidence)
	}
	return ev
}
