package loop_test

import (
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

// TestBacktestLeavesJudgesAlone: what a judge could not be paid for is no word of a guard
// of the conversation, which had room for every call that was made.
func TestBacktestLeavesJudgesAlone(t *testing.T) {
	t.Parallel()
	s := playScript(t, `run tools=search:read_only judge limits=cost_usd:0.06 acts=cost:pause
> answer done usage=1000/2500 "It is 42."
> resume cost_usd=1
> verdict {"pass":true,"problems":[],"evidence":"It is 42."}
`)
	j, err := loop.Backtest(theRun, s.journal, loop.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	if j.Trip != nil || j.Ended != nil || j.Beyond || j.Changes() {
		t.Errorf("its own policy would have ended it: %+v, as recorded %+v", j.Trip, j.Ended)
	}
}
