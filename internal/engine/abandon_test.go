package engine_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// A store that goes away for a minute, again and again under the same call, ends no
// run: the workers that lost it come back.
func TestOutagesEndNoRun(t *testing.T) {
	t.Parallel()
	for name, workers := range map[string]int{"one worker": 1, "three workers": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				gate := make(chan struct{})
				w.model.Script = []enginetest.Answer{{Text: "done", Gate: gate}}
				spec := enginetest.Spec()
				spec.Limits.Deadline = 2 * time.Hour
				run := w.create(spec)
				for range workers {
					w.started()
				}
				const outages = 8
				for n := range outages {
					w.until("the model is asked", func() bool { return len(w.model.Requests()) == n+1 })
					w.store.SetDown(true)
					w.pass(time.Minute)
					w.store.SetDown(false)
				}
				w.until("the model is asked at last", func() bool { return len(w.model.Requests()) == outages+1 })
				close(gate)

				w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
				w.equal("attempts", outages+1, w.store.Head(run).Attempts)
				for _, c := range bodies[loop.Claimed](w, run)[1:] {
					w.equal("recovered", true, c.Recovered)
				}
			})
		})
	}
}

// A worker that is dead does not come back.
func TestDeadWorkersAreCounted(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		defer close(gate)
		w.model.Script = []enginetest.Answer{{Text: "done", Gate: gate}}
		run := w.create(enginetest.Spec())
		for n := range 5 {
			worker := w.started()
			w.until("the model is asked", func() bool { return len(w.model.Requests()) == n+1 })
			worker.Kill()
		}
		w.started()

		h := w.finish(run)

		w.wantEnd(h, loop.StateFailed, loop.RecoveryExhausted, "")
		w.equal("requests", 5, len(w.model.Requests()))
		for i, e := range h.Stop.Evidence {
			if want := []string{"w1", "w2", "w3", "w4", "w5"}[i]; !strings.Contains(e.Note, want+" ") || !strings.Contains(e.Note, "died") {
				w.Errorf("evidence %d: %q", i, e.Note)
			}
		}
	})
}

// What broke is in the journal, and in what the run ends with.
func TestCrashesOfALivingWorkerAreExplained(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		run := w.create(enginetest.Spec())
		worker := w.worker()
		worker.BeforeAppend = func(_ loop.Lease, b engine.Batch) error {
			if len(b.Events) > 0 && b.Events[0].Body.Kind() == "model_started" {
				panic("the journal's adapter crashed")
			}
			return nil
		}
		w.start(worker)

		h := w.finish(run)

		w.wantEnd(h, loop.StateFailed, loop.RecoveryExhausted, "")
		w.equal("kinds", []string{
			"created", "claimed", "suspended", "claimed", "suspended", "claimed", "suspended", "claimed", "suspended", "claimed", "suspended", "claimed", "finished",
		}, w.kinds(run))
		w.equal("evidence", 5, len(h.Stop.Evidence))
		for _, e := range h.Stop.Evidence {
			if !strings.Contains(e.Note, "crashed: panic: the journal's adapter crashed") {
				w.Errorf("evidence: %q", e.Note)
			}
		}
	})
}

// Not even the word about it can be written: then the run is released without one, and
// counts as if its worker had died, which has not registered anew.
func TestCrashesWithoutAWordAreCounted(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		run := w.create(enginetest.Spec())
		for range 2 { // each of them lives, and would clear the other
			worker := w.worker()
			worker.BeforeAppend = func(_ loop.Lease, b engine.Batch) error {
				if len(b.Events) > 0 && (b.Events[0].Body.Kind() == "model_started" || b.Events[0].Body.Kind() == "suspended") {
					panic("the journal's adapter crashed")
				}
				return nil
			}
			w.start(worker)
		}

		w.wantEnd(w.finish(run), loop.StateFailed, loop.RecoveryExhausted, "")

		w.equal("attempts", 6, w.store.Head(run).Attempts)
	})
}

// A run that can be neither written nor released stays with its worker, which gives it
// back as soon as it can: it need not end for that.
func TestRunsAreGivenBackLater(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]func() error{
		"refused": func() error { return errors.New("the disk is full") },
		"panics":  func() error { panic("the journal's adapter crashed") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				w.model.Script = []enginetest.Answer{enginetest.Say("done")}
				run := w.create(enginetest.Spec())
				worker := w.worker()
				var broken atomic.Bool
				broken.Store(true)
				worker.BeforeAppend = func(_ loop.Lease, b engine.Batch) error {
					if broken.Load() && (len(b.Events) == 0 || b.Events[0].Body.Kind() != "claimed") {
						return how()
					}
					return nil
				}
				w.start(worker)
				w.pass(5 * time.Minute)
				w.equal("journal", []string{"created", "claimed"}, w.kinds(run))
				w.equal("owner", "w1", w.store.Owner(run))

				broken.Store(false)
				began := time.Now()

				w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
				if took := time.Since(began); took > 10*time.Second {
					w.Errorf("it took %s", took)
				}
				w.equal("attempts", 2, w.store.Head(run).Attempts)
			})
		})
	}
}

// An attempt that cannot even begin is tried again, but not without end in a moment.
func TestAttemptsThatCannotBegin(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Say("done")}
		run := w.create(enginetest.Spec())
		worker := w.worker()
		var tries atomic.Int64
		worker.BeforeAppend = func(_ loop.Lease, b engine.Batch) error {
			if len(b.Events) > 0 && b.Events[0].Body.Kind() == "claimed" && tries.Add(1) <= 7 {
				return loop.ErrRefused
			}
			return nil
		}
		w.start(worker)
		began := time.Now()

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")

		if took := time.Since(began); took < 30*time.Second {
			w.Errorf("seven tries took %s", took)
		}
	})
}

// A drain does not wait for what cannot be given back.
func TestDrainDoesNotWaitForABrokenRun(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		run := w.create(enginetest.Spec())
		worker := w.worker()
		worker.BeforeAppend = func(loop.Lease, engine.Batch) error { panic("the journal's adapter crashed") }
		w.start(worker)
		w.pass(time.Minute)
		w.equal("owner", "w1", w.store.Owner(run))
		began := time.Now()

		worker.Drain()
		w.engines.Wait()

		if took := time.Since(began); took > time.Second {
			w.Errorf("the drain took %s", took)
		}
		w.equal("owner", "", w.store.Owner(run))
	})
}

// A drain that meets a run which is to wait in any case lets it: nobody has to take it
// over only to do the same.
func TestDrainMeetsAPause(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		w.model.Script = []enginetest.Answer{{Text: "done", Gate: gate}}
		run := w.create(enginetest.Spec())
		worker := w.started()
		w.until("the model is asked", func() bool { return len(w.model.Requests()) == 1 })
		w.signal(run, loop.PauseRequested{By: "ann"})
		w.pass(2 * time.Second)

		worker.Drain()
		w.pass(time.Second)
		close(gate)
		w.engines.Wait()

		h := w.store.Head(run)
		w.equal("state", loop.StatePaused, h.State)
		w.equal("phase", "paused", h.Phase)
	})
}
