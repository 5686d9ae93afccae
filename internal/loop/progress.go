package loop

import (
	"fmt"
	"slices"
)

// footprint is what one iteration with calls left behind, for the guards that
// look for progress.
type footprint struct {
	iteration int
	print     string // of the calls with their results
	asks      string // of the calls alone
	failed    bool   // every call failed
	unknown   bool   // every call named a tool that does not exist
	invalid   bool   // every call was unknown or had invalid arguments
	pollable  bool   // every call was of a pollable tool
	waits     bool   // every call was of a pollable tool, or waited
	traces    []trace
}

// tool is the tool of the iteration's first call, for people.
func (f *footprint) tool() string { return excerpt(f.traces[0].tool, evidenceExcerpt) }

// trace is one call of an iteration, as it was when the iteration's last result
// came.
type trace struct {
	id, tool string
	ask      string // what was asked for: callPrint
	result   string // what it brought
	ok       bool   // it succeeded
	failed   bool
	broke    bool // it failed, and not because it could not be sent as it was asked for
	wrote    bool // it succeeded and may have changed something
	reads    bool // its tool, or the agent that was asked, changes nothing
	pollable bool
}

// evidenceExcerpt bounds each excerpt that a trip keeps, in bytes.
const evidenceExcerpt = 200

// footprintOf reads the calls of a finished batch.
func footprintOf(iteration int, calls []*call) footprint {
	f := footprint{
		iteration: iteration, failed: true, unknown: true, invalid: true, pollable: true, waits: true,
		traces: make([]trace, 0, len(calls)),
	}
	pairs, asks := make([]string, 0, len(calls)), make([]string, 0, len(calls))
	for _, c := range calls {
		pairs, asks = append(pairs, c.print+c.result), append(asks, c.print)
		f.failed = f.failed && c.Outcome.Failed()
		f.unknown = f.unknown && c.Outcome == OutcomeUnknownTool
		invalid := c.Outcome == OutcomeUnknownTool || c.Outcome == OutcomeInvalidArgs
		f.invalid = f.invalid && invalid
		f.pollable = f.pollable && c.spec.Pollable
		f.waits = f.waits && (c.spec.Pollable || c.spec.Builtin == BuiltinWait)
		ok, reads := c.Outcome == OutcomeOK, c.Effect == ReadOnly || c.child != nil && !c.child.changed
		f.traces = append(f.traces, trace{
			id: c.Call.ID, tool: c.Call.Name, ask: c.print, result: c.result,
			ok: ok, failed: c.Outcome.Failed(), broke: c.Outcome.Failed() && !invalid, wrote: ok && !reads, reads: reads, pollable: c.spec.Pollable,
		})
	}
	f.print, f.asks = iterationPrint(pairs), iterationPrint(asks)
	return f
}

// evidenceOf puts a call side by side with others: as it was when the iteration's
// last result came.
func (s *State) evidenceOf(iteration int, t *trace) Evidence {
	c := s.calls.byID[t.id]
	return Evidence{
		Iteration: iteration, CallID: t.id, Tool: excerpt(t.tool, evidenceExcerpt),
		Args: excerpt(c.Call.Args, evidenceExcerpt), ArgsHash: t.ask[:hashExcerpt],
		Result: excerpt(c.Result, evidenceExcerpt), ResultHash: t.result[:min(hashExcerpt, len(t.result))],
	}
}

// hashExcerpt is how much of a fingerprint is shown: enough to compare by eye.
const hashExcerpt = 12

// history is what the guards know of all footprints together.
type history struct {
	// novel is the newest footprint that brought a result the run had not seen
	// before, or made a change it had not made before; -1: none did.
	novel int
	// since is the first footprint after the newest change of a new kind. What was
	// read before may be read again: it may be different now.
	since int
}

// history reads the footprints from the end, where it mostly finds at once what it
// looks for. The same change twice is news once.
func (s *State) history() history {
	h := history{novel: -1}
	for i := len(s.prints) - 1; i >= 0 && h.since == 0; i-- {
		for _, t := range s.prints[i].traces {
			changes := t.wrote && !s.changedBefore(i, t.ask)
			if changes {
				h.since = i + 1
			}
			if h.novel < 0 && (changes || !s.broughtBefore(i, t.result)) {
				h.novel = i
			}
		}
	}
	return h
}

// changedBefore reports whether a change was made before footprint i.
func (s *State) changedBefore(i int, ask string) bool {
	for _, f := range s.prints[:i] {
		for j := range f.traces {
			if f.traces[j].wrote && f.traces[j].ask == ask {
				return true
			}
		}
	}
	return false
}

// broughtBefore reports whether a result came before footprint i.
func (s *State) broughtBefore(i int, result string) bool {
	for _, f := range s.prints[:i] {
		for j := range f.traces {
			if f.traces[j].result == result {
				return true
			}
		}
	}
	return false
}

// newest is the footprint of the last iteration, nil before the first.
func (s *State) newest() *footprint {
	if len(s.prints) == 0 {
		return nil
	}
	return &s.prints[len(s.prints)-1]
}

// trailing counts the footprints at the end, newest first, for which match holds.
func (s *State) trailing(match func(*footprint) bool) int {
	n := 0
	for i := len(s.prints) - 1; i >= 0 && match(&s.prints[i]); i-- {
		n++
	}
	return n
}

// maxEvidence bounds the calls that a trip lists, of many in each iteration.
const maxEvidence = 48

// proof lists the calls of the last n footprints, oldest first.
func (s *State) proof(n int) []Evidence {
	return s.proofOf(len(s.prints)-n, func(*trace) bool { return true })
}

// proofOf lists the calls of the footprints from i on for which match holds, oldest
// first. Every footprint that has one is in it; what is left out is counted.
func (s *State) proofOf(i int, match func(*trace) bool) []Evidence {
	var ev []Evidence
	each := max(1, maxEvidence/max(1, len(s.prints)-i))
	for _, f := range s.prints[i:] {
		n := 0
		for j := range f.traces {
			if !match(&f.traces[j]) {
				continue
			}
			if n++; n <= each {
				ev = append(ev, s.evidenceOf(f.iteration, &f.traces[j]))
			}
		}
		if n > each {
			ev[len(ev)-1].Note = fmt.Sprintf("and %d more calls of this iteration", n-each)
		}
	}
	return ev
}

// any reports whether one of the iteration's calls matches.
func (f *footprint) any(match func(*trace) bool) bool {
	for i := range f.traces {
		if match(&f.traces[i]) {
			return true
		}
	}
	return false
}

// nudgeAt is when the model is told, where the limit ends the run: at two thirds,
// and not before something has happened twice.
func nudgeAt(limit int) int { return max(2, limit*2/3) }

// judge makes the verdict on a streak of n that began with footprint from: an end at
// limit, and before it one nudge.
func (m moment) judge(t Tripped, n, limit, from int, evidence func() []Evidence) *Tripped {
	switch {
	case n >= limit:
		t.Verdict = m.noProgress()
	case n < nudgeAt(limit) || m.nudged(t.Guard, m.prints[from].iteration):
		return nil
	default:
		t.Verdict = VerdictNudge
	}
	t.Evidence = evidence()
	return &t
}

// nudged reports whether a guard has nudged since an iteration.
func (s *State) nudged(guard string, since int) bool {
	for _, t := range s.trips {
		if t.Guard == guard && t.nudges() && t.Iteration >= since {
			return true
		}
	}
	return false
}

// toldOfProgress reports whether a nudge says what another guard's nudge says, of
// this iteration and before or beside it: that the run gets nowhere. The model is
// told so once, however many guards see it.
func (s *State) toldOfProgress(t Tripped, beside []Tripped) bool {
	if !t.Reason.ofProgress() {
		return false
	}
	told := func(given Tripped) bool {
		return given.nudges() && given.Iteration == t.Iteration && given.Reason.ofProgress()
	}
	return slices.ContainsFunc(s.trips, told) || slices.ContainsFunc(beside, told)
}

// noProgress is what the run's limits want a no-progress guard to do.
func (s *State) noProgress() Verdict {
	if s.spec.Limits.NoProgressStops {
		return VerdictStop
	}
	return VerdictFinalTurn
}

// ofProgress reports whether a reason is that the run gets nowhere.
func (r StopReason) ofProgress() bool {
	switch r {
	case RepeatCall, ErrorStreak, UnknownTool, InvalidArgs, Cycle, FrequentRepeat, NearDuplicate, NoNovelty, Monologue:
		return true
	}
	return false
}
