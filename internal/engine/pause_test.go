package engine_test

import (
	"slices"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// A pause lets the model call end, and keeps its answer.
func TestPauseLetsTheModelAnswer(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		w.model.Script = []enginetest.Answer{{Calls: []loop.ToolCall{call(send)}, Gate: gate}, enginetest.Say("done")}
		run := w.create(enginetest.Spec(send))
		w.started()
		w.until("the model is asked", func() bool { return len(w.model.Requests()) == 1 })

		w.signal(run, loop.PauseRequested{By: "ann"})
		w.pass(time.Minute)
		w.equal("state while the model answers", loop.StateRunning, w.store.Head(run).State)
		close(gate)
		h := w.await(run, loop.StatePaused)
		w.equal("owner", "", w.store.Owner(run))
		w.equal("sends while paused", []string(nil), w.sends())
		w.equal("iterations", 1, h.Iterations)

		// Nothing drives it, for longer than it may be active.
		w.pass(time.Hour)
		w.equal("state an hour later", loop.StatePaused, w.store.Head(run).State)
		w.equal("requests", 1, len(w.model.Requests()))

		w.signal(run, loop.Resumed{})
		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		w.equal("sends", []string{"send/1"}, w.sends())
	})
}

// A pause ends a wait for the provider; what was waited for comes after the resume.
func TestPauseDuringABackoff(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{{Text: "done", Fail: []error{throttled(2 * time.Minute)}}}
		run := w.create(enginetest.Spec(look))
		w.started()
		w.until("the run waits for the provider", func() bool { return w.store.Head(run).Phase == string(loop.WaitBackoff) })

		w.signal(run, loop.PauseRequested{})
		w.await(run, loop.StatePaused)
		w.signal(run, loop.Resumed{})

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		w.equal("requests", 2, len(w.model.Requests()))
	})
}

// A drain leaves paused runs alone, and a run that is about to pause pauses
// elsewhere.
func TestDrainAndPause(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		w.tools.Gates = map[string]<-chan struct{}{"send": gate}
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(send)), enginetest.Say("done")}
		paused, pausing := w.create(enginetest.Spec(send)), w.create(enginetest.Spec(send))
		w.signal(paused, loop.PauseRequested{})
		first := w.started()
		w.await(paused, loop.StatePaused)
		w.until("the call is sent", func() bool { return len(w.sends()) == 1 })
		w.signal(pausing, loop.PauseRequested{})
		first.Drain()
		w.pass(time.Second)
		close(gate)
		w.until("the worker has handed over", func() bool { return w.store.Owner(pausing) == "" })

		w.started()
		w.await(pausing, loop.StatePaused)
		w.equal("events of the paused run", []string{"created", "claimed", "pause_requested", "suspended"}, w.kinds(paused))
		for _, run := range []loop.RunRef{paused, pausing} {
			w.signal(run, loop.Resumed{})
			w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		}
		w.equal("sends", []string{"send/1", "send/1"}, w.sends())
	})
}

func TestCancelEndsAPausedRun(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		run := w.create(enginetest.Spec(send))
		w.signal(run, loop.PauseRequested{})
		w.started()
		w.await(run, loop.StatePaused)

		w.signal(run, loop.CancelRequested{})

		w.wantEnd(w.finish(run), loop.StateCancelled, loop.Cancelled, "")
		w.equal("requests", 0, len(w.model.Requests()))
	})
}

// A resume that does not raise the limit is dropped, though somebody may have left
// it; one that does is taken, and what was spent counts on.
func TestRaise(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(send)), enginetest.Ask(call(put)), enginetest.Say("done")}
		spec := enginetest.Spec(send, put)
		spec.Limits.ModelCalls = 2
		spec.Definition.Acts = map[string]loop.Verdict{"model_calls": loop.VerdictPause}
		run := w.create(spec)
		w.started()
		h := w.await(run, loop.StateRequiresAction)
		w.equal("required", "max_model_calls", h.RequiredActions[0].Field)
		w.equal("pauses counted", 1.0, w.counted("loopd_guard_trips_total", map[string]string{"guard": "model_calls", "action": "pause", "agent": "test"}))

		limits := spec.Limits
		w.signal(run, loop.Resumed{Limits: &limits})
		w.pass(time.Minute)
		w.equal("state after a resume without a raise", loop.StateRequiresAction, w.store.Head(run).State)
		w.equal("resumed", 0, len(bodies[loop.Resumed](w, run)))

		limits.ModelCalls = 5
		w.signal(run, loop.Resumed{Limits: &limits})
		h = w.finish(run)
		w.wantEnd(h, loop.StateSucceeded, loop.Completed, "done")
		w.equal("model calls", 3, h.ModelCalls)
		w.equal("limits in force", limits, w.state(run).Limits())
		if n := slices.Index(w.kinds(run), "suspended"); w.kinds(run)[n-1] != "tripped" {
			w.Errorf("the trip is not with its suspension: %v", w.kinds(run))
		}
	})
}
