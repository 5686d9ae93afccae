package engine_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

var errCut = errors.New("the connection is cut")

func TestDrainHandsOver(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		w.model.Script = []enginetest.Answer{{Calls: []loop.ToolCall{call(send)}, Gate: gate}, enginetest.Say("done")}
		run := w.create(enginetest.Spec(send))
		first := w.started()
		w.until("the model is asked", func() bool { return len(w.model.Requests()) == 1 })

		first.Drain()
		w.pass(5 * time.Second)
		close(gate)
		h := w.await(run, loop.StateQueued)
		w.engines.Wait()

		w.equal("owner", "", w.store.Owner(run))
		w.equal("phase", "queue", h.Phase)
		w.equal("sends", []string(nil), w.sends())
		w.started()
		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		w.equal("requests", 2, len(w.model.Requests()))
		w.equal("sends", []string{"send/1"}, w.sends())
		claims := bodies[loop.Claimed](w, run)
		w.equal("attempts", 2, len(claims))
		w.equal("recovered", false, claims[1].Recovered)
		if gap := handover(w, run); gap > time.Second {
			w.Errorf("the successor came after %s", gap)
		}
	})
}

// handover is the time from the suspension to the next claim.
func handover(w *world, run loop.RunRef) time.Duration {
	w.Helper()
	events := w.events(run)
	for i, e := range events {
		if _, ok := e.Body.(loop.Suspended); ok {
			return events[i+1].At.Sub(e.At)
		}
	}
	w.Fatal("the run was never suspended")
	return 0
}

func TestDrainEndsABackoff(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{{Text: "done", Fail: []error{throttled(50 * time.Second)}}}
		run := w.create(enginetest.Spec())
		first := w.started()
		w.until("the model was asked", func() bool { return len(w.model.Requests()) == 1 })

		began := time.Now()
		first.Drain()
		w.engines.Wait()

		if took := time.Since(began); took > time.Second {
			w.Errorf("the drain took %s", took)
		}
		w.started()
		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		requests := w.model.Requests()
		if gap := requests[1].At.Sub(requests[0].At); gap < 50*time.Second {
			w.Errorf("the successor asked after %s", gap)
		}
	})
}

func TestDrainCutsWhatOutlastsTheGrace(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		w.tools.Gates = map[string]<-chan struct{}{"look": gate, "send": gate}
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(look), call(send)), enginetest.Say("done")}
		run := w.create(enginetest.Spec(look, send))
		first := w.started()
		w.until("both are sent", func() bool { return len(w.sends()) == 2 })

		began := time.Now()
		first.Drain()
		w.engines.Wait()

		if took := time.Since(began); took > 25*time.Second {
			w.Errorf("the drain took %s", took)
		}
		w.equal("state", loop.StateQueued, w.store.Head(run).State)
		calls := w.store.Calls(run)
		w.equal("the read", loop.CallStarted, calls[0].State)
		w.equal("the side effect", loop.CallInDoubt, calls[1].State)

		close(gate)
		w.started()
		a := w.await(run, loop.StateRequiresAction).RequiredActions
		w.equal("calls to resolve", 1, len(a))
		w.signal(run, loop.CallResolved{CallID: a[0].CallID, Resolution: loop.ResolvedSucceeded})
		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		reads, effects := 0, 0
		for _, s := range w.tools.Sent() {
			switch s.Tool {
			case "look":
				reads++
			case "send":
				effects++
			}
		}
		w.equal("reads", 2, reads)
		w.equal("side effects", 1, effects)
	})
}

func TestDrainCutsAModelCall(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		w.model.Script = []enginetest.Answer{{Text: "done", Gate: gate}}
		run := w.create(enginetest.Spec())
		first := w.started()
		w.until("the model is asked", func() bool { return len(w.model.Requests()) == 1 })

		first.Drain()
		w.engines.Wait()

		w.equal("state", loop.StateQueued, w.store.Head(run).State)
		close(gate)
		w.started()
		h := w.finish(run)
		w.wantEnd(h, loop.StateSucceeded, loop.Completed, "done")
		w.equal("estimated: the cut call", bodies[loop.ModelStarted](w, run)[0].Hold, h.Estimated)
	})
}

func TestOwnerThatLostTheLeaseWritesNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		w.model.Script = []enginetest.Answer{{Calls: []loop.ToolCall{call(send)}, Gate: gate}}
		run := w.create(enginetest.Spec(send))
		w.started()
		w.until("the model is asked", func() bool { return len(w.model.Requests()) == 1 })
		before := w.kinds(run)

		w.store.Steal(run, "thief")
		close(gate)
		w.pass(time.Minute)

		w.equal("journal", before, w.kinds(run))
		w.equal("owner", "thief", w.store.Owner(run))
		w.equal("sends", []string(nil), w.sends())
		w.equal("lost leases", 1.0, w.counted("loopd_lease_events_total", map[string]string{"event": "lost"}))
	})
}

func TestFailingRenewalsDropTheRuns(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		defer close(gate)
		w.model.Script = []enginetest.Answer{{Text: "done", Gate: gate}}
		run := w.create(enginetest.Spec())
		worker := w.worker()
		worker.BeforeRenew = func() error {
			if len(w.model.Requests()) > 0 {
				return errCut
			}
			return nil
		}
		w.start(worker)
		w.until("the model is asked", func() bool { return len(w.model.Requests()) == 1 })
		before := w.kinds(run)

		w.pass(15 * time.Second) // the TTL: from here on others may own it

		w.equal("expired leases", true, w.counted("loopd_lease_events_total", map[string]string{"event": "expired"}) > 0)
		w.equal("lost leases", 1.0, w.counted("loopd_lease_events_total", map[string]string{"event": "lost"}))
		w.equal("journal", before, w.kinds(run))
		w.pass(time.Minute)
		w.equal("requests: it claims nothing", 1, len(w.model.Requests()))
	})
}

// The runs that a worker dropped are its own in the store. When it can renew
// again, somebody must drive them.
func TestDroppedRunsAreTakenUpAgain(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]time.Duration{"within the TTL": 13 * time.Second, "past the TTL": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				gate := make(chan struct{})
				w.model.Script = []enginetest.Answer{enginetest.Ask(call(send)), {Text: "done", Gate: gate}}
				run := w.create(enginetest.Spec(send))
				w.started()
				w.until("the model is asked again", func() bool { return len(w.model.Requests()) == 2 })

				w.store.SetDown(true)
				w.pass(outage)
				w.store.SetDown(false)
				close(gate)

				began := time.Now()
				w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
				if took := time.Since(began); took > 10*time.Second {
					w.Errorf("it took %s after the outage", took)
				}
				w.equal("sends", []string{"send/1"}, w.sends())
			})
		})
	}
}

func TestOthersTakeOverFromACutWorker(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		w.tools.Gates = map[string]<-chan struct{}{"put": gate}
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(put)), enginetest.Say("done")}
		run := w.create(enginetest.Spec(put))
		first := w.worker()
		w.start(first)
		w.until("it is sent", func() bool { return len(w.sends()) == 1 })

		began := time.Now()
		first.Kill()
		close(gate)
		w.started()

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		if took := time.Since(began); took > 22*time.Second { // TTL, a renewal, a poll
			w.Errorf("the takeover took %s", took)
		}
		w.equal("sends", []string{"put/1", "put/2"}, w.sends())
		w.equal("recovered", true, bodies[loop.Claimed](w, run)[1].Recovered)
		w.equal("recoveries", 1.0, w.counted("loopd_runs_recovered_total", map[string]string{"cause": "lost_worker"}))
	})
}

func TestStartWaitsForTheStore(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Say("done")}
		run := w.create(enginetest.Spec())
		w.store.SetDown(true)
		w.started()
		w.pass(time.Minute)
		w.store.SetDown(false)

		began := time.Now()
		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		if took := time.Since(began); took > 2*time.Second {
			w.Errorf("it took %s after the store came", took)
		}
	})
}

// The journal fails for half a minute while everything else works.
func TestJournalErrorsEndNoRun(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(worker *enginetest.Worker, fails func() error){
		"writes": func(worker *enginetest.Worker, fails func() error) {
			worker.BeforeAppend = func(loop.Lease, engine.Batch) error { return fails() }
		},
		"reads": func(worker *enginetest.Worker, fails func() error) { worker.BeforeRead = fails },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				w.model.Script = []enginetest.Answer{enginetest.Ask(call(send)), enginetest.Say("done")}
				run := w.create(enginetest.Spec(send))
				worker := w.worker()
				until := time.Now().Add(30 * time.Second)
				cut(worker, func() error {
					if time.Now().Before(until) {
						return errCut
					}
					return nil
				})
				w.start(worker)

				h := w.finish(run)

				w.wantEnd(h, loop.StateSucceeded, loop.Completed, "done")
				w.equal("attempts", 1, h.Attempts)
				w.equal("sends", []string{"send/1"}, w.sends())
			})
		})
	}
}

// A result whose record the journal does not take at once is kept and written
// later: it is in memory, so it is not in doubt.
func TestResultSurvivesAnOutage(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(send)), enginetest.Say("done")}
		run := w.create(enginetest.Spec(send))
		worker := w.worker()
		var until time.Time
		worker.BeforeAppend = func(_ loop.Lease, b engine.Batch) error {
			if _, ok := b.Events[0].Body.(loop.CallFinished); ok && until.IsZero() {
				until = time.Now().Add(time.Minute)
			}
			if time.Now().Before(until) {
				return errCut
			}
			return nil
		}
		w.start(worker)

		h := w.finish(run)

		w.wantEnd(h, loop.StateSucceeded, loop.Completed, "done")
		w.equal("attempts", 1, h.Attempts)
		w.equal("call", loop.CallSucceeded, w.store.Calls(run)[0].State)
	})
}

// What the journal will never take ends the attempt, and at last the run.
func TestRefusedEventsExhaustTheRun(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		run := w.create(enginetest.Spec())
		worker := w.worker()
		worker.BeforeAppend = func(_ loop.Lease, b engine.Batch) error {
			if len(b.Events) > 0 && b.Events[0].Body.Kind() == "model_started" {
				return loop.ErrRefused
			}
			return nil
		}
		w.start(worker)

		w.wantEnd(w.finish(run), loop.StateFailed, loop.RecoveryExhausted, "")
		w.equal("requests", 0, len(w.model.Requests()))
	})
}

func TestUnreadableJournalIsLeftAlone(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		run := w.create(enginetest.Spec())
		odd := loop.Event{Seq: 2, At: time.Now(), Epoch: 1, Body: loop.CallFinished{CallID: "c9-9", Attempt: 1}}
		if err := w.store.Append(t.Context(), w.store.Steal(run, ""), engine.Batch{Events: []loop.Event{odd}, Release: true}); err != nil {
			w.Fatalf("append: %v", err)
		}
		var loads atomic.Int64
		worker := w.worker()
		worker.BeforeRead = func() error { loads.Add(1); return nil }
		w.start(worker)
		fine := w.create(enginetest.Spec())

		w.pass(time.Minute)

		w.equal("loads of both runs", int64(2), loads.Load())
		w.equal("journal", []string{"created", "call_finished"}, w.kinds(run))
		w.wantEnd(w.finish(fine), loop.StateSucceeded, loop.Completed, "the end")
	})
}
