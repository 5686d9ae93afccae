package loop

import "fmt"

// maxTextLoops is how many answers of a run may go round in circles: the first is
// given up and asked for again, since chance may have led the model there; with
// the second it is the model or its prompt. A wrap-up would be chanted as well.
const maxTextLoops = 1

// finishChant is an answer that repeats the same words until its end. Providers
// never report it.
const finishChant Finish = "chant"

// noteTextLoop keeps what an answer of the conversation repeated: one that was
// given up while it was written, or one that came whole.
func (s *State) noteTextLoop(words string) {
	s.textLoops = append(s.textLoops, Evidence{Iteration: s.iterations, Note: words})
}

// afterTextLoop asks for the answer once more, or ends the run.
func (s *State) afterTextLoop() Action {
	n := len(s.textLoops)
	switch {
	case n <= maxTextLoops:
		return nil
	case s.final != nil:
		return s.stopOn(*s.final) // no wrap-up to be had
	}
	return s.stopOn(Tripped{
		Guard: "text_loop", Reason: TextLoop, Observed: fmt.Sprintf("%d answers that went round in circles", n), Limit: fmt.Sprint(maxTextLoops),
		Message: "the model repeated the same words without end, was asked once more, and did it again", Evidence: s.textLoops,
	})
}

// HearsTextLoops reports whether answers are given up that go round in circles
// while they are written. In runs from before the guard they are not.
func (s *State) HearsTextLoops() bool { return s.spec.Limits.Monologue > 0 }

// TextLoopIn returns the words that an answer repeats until its end, or "". An
// answer whose calls will run is none: it gets somewhere, and the guards see to it
// that it does. Of an answer that was cut off the reasoning counts too.
func TextLoopIn(m Message, f Finish) string {
	if f != FinishDone && f != FinishTruncated {
		return ""
	}
	if words := ChantIn(m.Text()); words != "" || f == FinishDone {
		return words
	}
	for _, p := range m.Parts {
		if p.Kind != PartReasoning {
			continue
		}
		if words := ChantIn(p.Text); words != "" {
			return words
		}
	}
	return ""
}
