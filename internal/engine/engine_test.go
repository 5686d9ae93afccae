package engine_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

func TestNewNeedsItsPorts(t *testing.T) {
	t.Parallel()
	if _, err := engine.New(engine.Config{Worker: "w"}); err == nil {
		t.Fatal("an engine without a journal was made")
	}
}

func TestRunSucceeds(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(look)), enginetest.Say("done")}
		run := w.create(enginetest.Spec(look))
		w.started()

		h := w.finish(run)

		w.wantEnd(h, loop.StateSucceeded, loop.Completed, "done")
		w.equal("journal", []string{
			"created", "claimed", "model_started", "model_answered", "call_started", "call_finished",
			"model_started", "model_answered", "finished",
		}, w.kinds(run))
		w.equal("sends", []string{"look/1"}, w.sends())
		w.equal("owner", "", w.store.Owner(run))
		w.equal("iterations", 2, h.Iterations)
		w.equal("finished runs", 1.0, w.counted("loopd_runs_finished_total", map[string]string{"agent": "test", "stop_reason": "COMPLETED"}))
	})
}

// The incident that loopd was built after: a tool that answers 429 for ever.
func TestRunThatLoopsOn429IsStopped(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		for range 30 {
			w.model.Script = append(w.model.Script, enginetest.Ask(call(look)))
		}
		w.model.Final = "the inventory does not answer"
		w.tools.Replies = map[string]func(int) loop.ToolReply{"look": func(n int) loop.ToolReply {
			return loop.ToolReply{Outcome: loop.OutcomeRetryable, Status: 429, Content: fmt.Sprintf("rate limited, retry in %d s", 60-n)}
		}}
		spec := enginetest.Spec(look)
		run := w.create(spec)
		w.started()

		h := w.finish(run)

		w.wantEnd(h, loop.StateStopped, loop.RepeatCall, "the inventory does not answer")
		if !h.Partial {
			w.Error("the answer of a stopped run is not marked as partial")
		}
		w.equal("evidence", 3, len(h.Stop.Evidence))
		w.equal("sends", []string{"look/1", "look/1", "look/1"}, w.sends())
		requests := w.model.Requests()
		w.equal("requests", 4, len(requests))
		if requests[3].ToolsAllowed {
			w.Error("the wrap-up request allows tools")
		}
		if h.Cost.Total() > spec.Limits.Cost/10 {
			w.Errorf("the loop cost %s USD", h.Cost.Total())
		}
		w.equal("trips", 1.0, w.counted("loopd_guard_trips_total", map[string]string{"guard": "repeat", "action": "final_turn", "agent": "test"}))
	})
}

func TestCallsOfOneAnswerRunTogether(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gates := map[string]chan struct{}{}
		w.tools.Gates, w.tools.Replies = map[string]<-chan struct{}{}, map[string]func(int) loop.ToolReply{}
		var tools []loop.ToolSpec
		var calls []loop.ToolCall
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			gates[name] = make(chan struct{})
			w.tools.Gates[name] = gates[name]
			w.tools.Replies[name] = func(int) loop.ToolReply { return enginetest.OK("from " + name) }
			tools = append(tools, enginetest.Tool(name, loop.ReadOnly))
			calls = append(calls, enginetest.Call(name, "{}"))
		}
		w.model.Script = []enginetest.Answer{enginetest.Ask(calls...), enginetest.Say("done")}
		run := w.create(enginetest.Spec(tools...)) // 4 at once
		w.started()
		w.until("4 calls are in flight", func() bool { return len(w.sends()) == 4 })

		close(gates["d"])
		w.until("the fifth is sent", func() bool { return len(w.sends()) == 5 })
		for _, name := range []string{"e", "c", "b", "a"} {
			close(gates[name])
			synctest.Wait()
		}

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		var finished []string
		for _, f := range bodies[loop.CallFinished](w, run) {
			finished = append(finished, f.Content)
		}
		w.equal("order of arrival", []string{"from d", "from e", "from c", "from b", "from a"}, finished)
		var told []string
		for _, m := range w.state(run).Transcript() {
			for _, p := range m.Parts {
				if p.Result != nil {
					told = append(told, p.Result.Content)
				}
			}
		}
		w.equal("order in the transcript", []string{"from a", "from b", "from c", "from d", "from e"}, told)
	})
}

func TestResultsThatArriveTogetherShareACommit(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		first, rest := make(chan struct{}), make(chan struct{})
		w.tools.Gates = map[string]<-chan struct{}{"put": first, "look": rest}
		w.model.Script = []enginetest.Answer{
			enginetest.Ask(call(put), enginetest.Call("look", `{"n":1}`), enginetest.Call("look", `{"n":2}`)), enginetest.Say("done"),
		}
		run := w.create(enginetest.Spec(look, put))
		worker := w.worker()
		hold := make(chan struct{})
		worker.BeforeAppend = func(_ loop.Lease, b engine.Batch) error {
			if _, ok := b.Events[0].Body.(loop.CallFinished); ok {
				<-hold // the first result's commit is slow
			}
			return nil
		}
		w.start(worker)
		w.until("3 calls are in flight", func() bool { return len(w.sends()) == 3 })

		close(first)
		synctest.Wait()
		close(rest)
		synctest.Wait()
		close(hold)

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		w.equal("commits", 6, worker.Commits()) // 7 if each result had its own
	})
}

func TestMissingUsageIsChargedAtTheHold(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{{Text: "done", NoUsage: true}}
		run := w.create(enginetest.Spec())
		w.started()

		h := w.finish(run)

		hold := bodies[loop.ModelStarted](w, run)[0].Hold
		w.equal("cost", hold, h.Cost.Total())
		w.equal("estimated part", hold, h.Estimated)
		w.equal("held", loop.USD(0), h.Held)
	})
}

func TestUnknownProviderFailsTheRun(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		spec := enginetest.Spec()
		spec.Definition.Model = "other/model"
		run := w.create(spec)
		w.started()

		w.wantEnd(w.finish(run), loop.StateFailed, loop.ProviderError, "")
	})
}

func TestOutputContractAsksAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Say("no JSON"), enginetest.Say("{}")}
		spec := enginetest.Spec()
		spec.Definition.OutputSchema = []byte(`{"type":"object"}`)
		run := w.create(spec)
		w.started()

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "{}")
		w.equal("problems", []string{"$: expected JSON"}, bodies[loop.AnswerRejected](w, run)[0].Problems)
	})
}

func TestSlowModelIsGivenUpInTimeForTheWrapUp(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{{Gate: make(chan struct{})}}
		spec := enginetest.Spec(look)
		spec.Limits.Deadline = 2 * time.Minute
		run := w.create(spec)
		w.started()

		h := w.finish(run)

		w.wantEnd(h, loop.StateStopped, loop.Deadline, "the end")
		if took := h.EndedAt.Sub(h.StartedAt); took > spec.Limits.Deadline {
			w.Errorf("the run took %s", took)
		}
	})
}

func TestTwoEnginesShareTheWork(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(send)), enginetest.Say("done")}
		w.tools.Replies = map[string]func(int) loop.ToolReply{"send": func(int) loop.ToolReply {
			time.Sleep(time.Second)
			return enginetest.OK("sent")
		}}
		var runs []loop.RunRef
		for range 20 {
			runs = append(runs, w.create(enginetest.Spec(send)))
		}
		few := func(c *engine.Config) { c.MaxRuns = 5 }
		w.start(w.worker(), few)
		w.start(w.worker(), few)

		drove := map[string]int{}
		for _, run := range runs {
			w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
			claims := bodies[loop.Claimed](w, run)
			w.equal("attempts of "+run.ID, 1, len(claims))
			drove[claims[0].Worker]++
		}

		w.equal("runs per worker", map[string]int{"w1": 10, "w2": 10}, drove)
		w.equal("sends", 20, len(w.sends()))
		w.equal("requests", 40, len(w.model.Requests()))
	})
}
