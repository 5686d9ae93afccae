package loop_test

import (
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

// TestBacktestOfARaise: what a run was raised to stands on what it had, also where the
// policy had given it more.
func TestBacktestOfARaise(t *testing.T) {
	t.Parallel()
	s := playScript(t, `run tools=put:idempotent limits=cost_usd:0.2 acts=cost:pause
> answer tool_calls usage=1200/4000 put {"n":1}
> result c1-1 ok 1
> answer tool_calls usage=6000/4000 put {"n":2}
> result c2-1 ok 2
> resume cost_usd=0.5
> answer done "All put."
`)
	for name, c := range map[string]struct {
		cost  loop.USD
		trips string
	}{
		"more than ever":  {loop.OneUSD, ""},
		"more than first": {loop.OneUSD * 21 / 100, "cost"},
		"less":            {loop.OneUSD / 10, "cost"},
	} {
		j, err := loop.Backtest(theRun, s.journal, loop.Policy{Limits: func(l loop.Limits) loop.Limits { l.Cost = c.cost; return l }})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		trips := ""
		if j.Trip != nil {
			trips = j.Trip.Guard
		}
		if trips != c.trips {
			t.Errorf("%s: ended by %q, not %q", name, trips, c.trips)
		}
	}
}
