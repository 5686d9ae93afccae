package loop_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/loopd/loopd/internal/loop"
)

// TestBacktestOfItself: judged by its own limits, a run is ended by the verdict that
// ended it, at the same moment, and a success is left alone. Replays give the same
// verdicts.
func TestBacktestOfItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := live(t)
		j, err := loop.Backtest(theRun, h.journal, loop.Policy{})
		if err != nil {
			t.Fatalf("%s\n%v", h.story(), err)
		}
		first := firstEnding(h.journal)
		switch {
		case j.Beyond:
			t.Fatalf("%s\nits own limits would have let it go on", h.story())
		case first == nil && j.Trip != nil:
			t.Fatalf("%s\nnothing ended the run, in the backtest %s did", h.story(), j.Trip.Guard)
		case first == nil:
		case j.Trip == nil && !slices.Contains(ofAnswers, first.Guard):
			t.Fatalf("%s\nended by %s, in the backtest by nothing", h.story(), first.Guard)
		case j.Trip != nil && (j.Trip.Guard != first.Guard || j.Trip.Iteration != first.Iteration):
			t.Fatalf("%s\nended by %s, in the backtest by %s", h.story(), first.Guard, j.Trip.Guard)
		case j.Trip != nil && j.Trip.Verdict != first.Verdict && j.Trip.Verdict != loop.VerdictPause: // nobody had the time for a raise
			t.Fatalf("%s\nended as %s, in the backtest as %s", h.story(), first.Verdict, j.Trip.Verdict)
		}
		if j.Cost != h.state.Cost().Total() || j.Trip != nil && j.Spent+j.Saved != j.Cost {
			t.Fatalf("%s\n%s USD spent and %s USD saved of %s USD", h.story(), j.Spent, j.Saved, j.Cost)
		}
	})
}

// ofAnswers are the guards that a backtest does not ask again: their trips follow
// from what a provider answered.
var ofAnswers = []string{"refusal", "empty", "truncated", "pause", "unknown_stop", "output", "in_doubt", "context", "checkpoint", "text_loop", "account"}

// firstEnding is the first verdict of a journal that was more than a nudge.
func firstEnding(events []loop.Event) *loop.Tripped {
	for _, e := range events {
		t, ok := e.Body.(loop.Tripped)
		waits := t.Reason == loop.AccountBudget && t.Verdict == loop.VerdictPause // and then goes on
		if ok && t.Verdict != loop.VerdictNudge && !waits && t.Purpose == "" {    // of a judge or a summary no guard is asked again
			return &t
		}
	}
	return nil
}
