package loop

import (
	"fmt"
	"slices"
	"time"
)

// Suspect is an attempt that ended badly and brought nothing: the run may be why.
type Suspect struct {
	Attempt int
	Worker  string
	Since   time.Time // when the attempt began, by the journal's clock
	// Crash is what the worker said of it as it gave the run back. Empty: the worker
	// went silent. It may be dead, or only cut off from the journal.
	Crash string
}

// Crashed ends an attempt that broke down in a worker that lives: a panic, or what the
// journal refuses for good. Another attempt may follow at once.
func Crashed(why string) Suspended {
	if why == "" {
		why = "no reason was given"
	}
	return Suspended{Reason: WaitCrash, Note: excerpt(why, evidenceExcerpt)}
}

// BreakDown is what ends the attempt that is open when it breaks down: what was in
// flight is settled as if the worker had died, as nobody knows any more.
func (s *State) BreakDown(why string, now time.Time) []Body {
	var facts []Body
	if lost := s.settleLost(now); lost != nil {
		facts = lost.Intent()
	}
	return append(facts, Crashed(why))
}

// Silent lists the suspects whose workers went silent, with the attempt that is open,
// if there is one. Whoever claims the run finds out which of them have come back: a
// worker that was cut off for a while died of nothing.
func (s *State) Silent() []Suspect {
	silent := slices.DeleteFunc(slices.Clone(s.tenure.suspects), func(o Suspect) bool { return o.Crash != "" })
	if s.InAttempt() {
		silent = append(silent, s.tenure.suspect())
	}
	return silent
}

// suspect is the open attempt as a suspect.
func (t *tenure) suspect() Suspect {
	return Suspect{Attempt: t.attempts, Worker: t.worker, Since: t.leased}
}

// addSuspect adds a suspect. More than end the run are not counted, however often its
// end is interrupted.
func (t *tenure) addSuspect(o Suspect) {
	if len(t.suspects) < maxRecoveries {
		t.suspects = append(t.suspects, o)
	}
}

// clear drops the silent suspects whose workers have come back. Once the run is being
// ended it stays so: its child runs may have been told.
func (t *tenure) clear(returned []string) {
	if t.doomed {
		return
	}
	t.suspects = slices.DeleteFunc(t.suspects, func(o Suspect) bool { return o.Crash == "" && slices.Contains(returned, o.Worker) })
}

// progress forgets the attempts that brought nothing: something has been brought.
func (t *tenure) progress() {
	if !t.doomed {
		t.suspects = nil
	}
}

// recoveryExhausted is the stop of a run that may be what ends its attempts, or nil.
func (s *State) recoveryExhausted() *Stop {
	suspects := s.tenure.suspects
	if len(suspects) < maxRecoveries {
		return nil
	}
	stop := Stop{
		Reason: RecoveryExhausted, Observed: fmt.Sprint(len(suspects)), Limit: fmt.Sprint(maxRecoveries),
		Message: "the attempts to drive this run crashed, or their workers died, again and again without progress",
	}
	for _, o := range suspects {
		how := "crashed: " + o.Crash
		if o.Crash == "" {
			how = "the worker died, or has not come back"
		}
		stop.Evidence = append(stop.Evidence, Evidence{
			Iteration: s.iterations, Note: fmt.Sprintf("attempt %d, of worker %s since %s: %s", o.Attempt, o.Worker, o.Since.UTC().Format(time.RFC3339), how),
		})
	}
	return &stop
}
