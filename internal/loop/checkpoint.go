package loop

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Checkpoint is what must hold while a run is under way: after an iteration that
// called one of the tools, or every so many iterations. The model is told of the
// first failure; the second ends the run.
type Checkpoint struct {
	Name       string      `json:"name"`
	After      []string    `json:"after,omitempty"` // names of tools
	Every      int         `json:"every,omitempty"` // iterations; 0: only after the tools
	Assertions []Assertion `json:"assertions"`
}

// guardCheckpoint is the name that the trips of checkpoints have.
const guardCheckpoint = "checkpoint"

// judged is what is known of one checkpoint.
type judged struct {
	at       int      // iteration after which it was judged last
	failures int      // in the whole run
	broken   bool     // it did not hold when it was judged last
	problems []string // of the newest failure, until the model has been told
}

// nextCheckpoint has the checkpoints judged that are due, once the results of an
// iteration are in and before the model is asked again. Then it tells the model of
// a first failure, and ends the run on a second. A final answer is no way past a
// checkpoint that failed: it is judged again before.
func (s *State) nextCheckpoint(time.Time) Action {
	a := s.answer
	between := a == nil || a.finish == FinishToolCalls
	atEnd := a != nil && a.finish == FinishDone && !a.wrapUp
	if !between && !atEnd || s.final != nil || s.brokenContract() != nil || len(s.spec.Definition.Checkpoints) == 0 {
		return nil
	}
	if due := s.brokenCheckpoints(); atEnd && len(due) > 0 {
		return JudgeCheckpoints{Due: due, Iteration: s.iterations}
	}
	if due := s.dueCheckpoints(); between && len(due) > 0 {
		return JudgeCheckpoints{Due: due, Iteration: s.iterations}
	}
	for _, c := range s.spec.Definition.Checkpoints {
		if j := s.checkpoints[c.Name]; len(j.problems) > 0 && j.failures > 1 {
			return s.stopOn(checkpointTrip(c.Name, j))
		}
	}
	return s.tellCheckpoints()
}

// dueCheckpoints are those that the newest iteration makes due.
func (s *State) dueCheckpoints() []Checkpoint {
	var due []Checkpoint
	for _, c := range s.spec.Definition.Checkpoints {
		last := s.checkpoints[c.Name].at
		if c.Every > 0 && s.iterations/c.Every > last/c.Every || s.calledSince(last, c.After) {
			due = append(due, c)
		}
	}
	return due
}

// brokenCheckpoints are those that failed in an iteration before the newest.
func (s *State) brokenCheckpoints() []Checkpoint {
	var due []Checkpoint
	for _, c := range s.spec.Definition.Checkpoints {
		if j := s.checkpoints[c.Name]; j.broken && j.at < s.iterations {
			due = append(due, c)
		}
	}
	return due
}

// calledSince reports whether one of the tools was called after an iteration,
// whatever came of it.
func (s *State) calledSince(iteration int, tools []string) bool {
	for _, id := range slices.Backward(s.calls.order) {
		c := s.calls.byID[id]
		if c.Iteration <= iteration {
			return false
		}
		if slices.Contains(tools, c.Call.Name) {
			return true
		}
	}
	return false
}

// Judged is the event for a checkpoint that was due: without problems it holds.
func (a JudgeCheckpoints) Judged(c Checkpoint, problems []string) CheckpointJudged {
	return CheckpointJudged{Checkpoint: c.Name, Iteration: a.Iteration, Problems: boundProblems(problems)}
}

func (s *State) applyCheckpoint(b CheckpointJudged) {
	if s.checkpoints == nil {
		s.checkpoints = map[string]judged{}
	}
	j := s.checkpoints[b.Checkpoint]
	j.at, j.problems, j.broken = b.Iteration, b.Problems, len(b.Problems) > 0
	if j.broken {
		j.failures++
	}
	s.checkpoints[b.Checkpoint] = j
}

// tellCheckpoints tells the model of what does not hold, all in one message.
func (s *State) tellCheckpoints() Action {
	var facts []Body
	for _, c := range s.spec.Definition.Checkpoints {
		j := s.checkpoints[c.Name]
		if len(j.problems) == 0 {
			continue
		}
		t := checkpointTrip(c.Name, j)
		t.Verdict, t.Iteration = VerdictNudge, s.iterations
		t.Say = fmt.Sprintf("The checkpoint %q does not hold. Put this right before you go on; the run ends if it does not hold the next time:", c.Name) + listed(j.problems, maxProblem)
		facts = append(facts, t)
	}
	if facts == nil {
		return nil
	}
	return Record{intent: intent{facts}}
}

func checkpointTrip(name string, j judged) Tripped {
	t := Tripped{
		Guard: guardCheckpoint, Reason: CheckpointFailed, Observed: fmt.Sprintf("failure %d of %s", j.failures, name), Limit: "1",
		Message: fmt.Sprintf("the checkpoint %q does not hold: %s", name, strings.Join(j.problems, "; ")),
	}
	for _, p := range j.problems {
		t.Evidence = append(t.Evidence, Evidence{Iteration: j.at, Note: excerpt(p, evidenceExcerpt)})
	}
	return t
}

// toldOfCheckpoints notes that the model has been told of all that does not hold.
func (s *State) toldOfCheckpoints(t Tripped) {
	if t.Guard != guardCheckpoint || t.Verdict != VerdictNudge {
		return
	}
	for name, j := range s.checkpoints {
		j.problems = nil
		s.checkpoints[name] = j
	}
}
