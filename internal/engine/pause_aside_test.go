package engine_test

import (
	"testing"
	"time"

	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// A judge that cannot be paid holds the run back without a worker, as its agent wants,
// until somebody raises the limit. Neither the model nor what is checked before the
// judge is asked again then.
func TestRaiseForTheJudge(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Say(polite)}
		w.model.ByModel = map[string]func(loop.ModelRequest) enginetest.Answer{"judge": politeJudge}
		w.tools.Replies = map[string]func(int) loop.ToolReply{"validate": func(int) loop.ToolReply { return enginetest.OK(`{"ok":true}`) }}
		spec := checkedSpec()
		dear := spec.SidePrices["fake/judge"]
		dear.Rates.Input, dear.Rates.Output = 1000*dear.Rates.Input, 1000*dear.Rates.Output
		spec.SidePrices["fake/judge"] = dear
		spec.Definition.Acts = map[string]loop.Verdict{"cost": loop.VerdictPause}
		run := w.create(spec)
		w.started()

		h := w.await(run, loop.StateRequiresAction)
		w.equal("required", "max_cost_usd", h.RequiredActions[0].Field)
		w.equal("owner", "", w.store.Owner(run))
		w.equal("pauses counted", 1.0, w.counted("loopd_guard_trips_total", map[string]string{"guard": "cost", "action": "pause", "agent": "test"}))
		w.pass(time.Hour)
		w.equal("model calls while nobody raises", 1, w.store.Head(run).ModelCalls)

		limits := spec.Limits
		limits.Cost = 1000 * loop.OneUSD
		w.signal(run, loop.Resumed{Limits: &limits})
		h = w.finish(run)
		w.wantEnd(h, loop.StateSucceeded, loop.Completed, polite)
		w.equal("unverified", false, h.Unverified)
		w.equal("model calls, iterations", [2]int{2, 1}, [2]int{h.ModelCalls, h.Iterations})
		w.equal("sends", []string{"validate/1"}, w.sends())
	})
}
