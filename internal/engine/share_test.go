package engine_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/engine/traffic"
	"github.com/loopd/loopd/internal/loop"
)

// limited starts a worker whose provider is limited.
func (w *world) limited(l traffic.Limits) *enginetest.Worker {
	w.Helper()
	worker := w.worker()
	w.start(worker, func(c *engine.Config) { c.Limits = map[string]traffic.Limits{"fake": l} })
	return worker
}

// chained is a spec whose agent may fall back on another provider's model.
func chained() loop.Spec {
	spec := enginetest.Spec()
	spec.Definition.Fallbacks = []string{"other/model"}
	price := spec.Price
	price.Model = "other/model"
	spec.FallbackPrices = []loop.Price{price}
	return spec
}

func TestARunWaitsForItsShareInTheOpen(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		w.model.Script = []enginetest.Answer{{Text: "done", Gate: gate}}
		first := w.create(enginetest.Spec())
		w.limited(traffic.Limits{Concurrent: 1})
		w.until("the first run asks", func() bool { return len(w.model.Requests()) == 1 })
		second := w.create(enginetest.Spec())
		w.until("the second run waits", func() bool { return w.store.Head(second).Phase == string(loop.WaitRate) })

		h := w.store.Head(second)
		w.equal("state", loop.StateRunning, h.State)
		w.equal("held while it waits", loop.USD(0), h.Held)
		w.equal("model calls while it waits", 0, h.ModelCalls)
		close(gate)

		w.wantEnd(w.finish(first), loop.StateSucceeded, loop.Completed, "done")
		w.wantEnd(w.finish(second), loop.StateSucceeded, loop.Completed, "done")
		w.equal("words about waiting", 1, len(bodies[loop.RateWaited](w, second)))
	})
}

// Two providers with one key have one rate limit.
func TestProvidersShareAKey(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		w.model.Script = []enginetest.Answer{{Text: "done", Gate: gate}}
		worker := w.worker()
		_, add := other(w, worker)
		w.start(worker, add, func(c *engine.Config) {
			c.Limits = map[string]traffic.Limits{"fake": {Concurrent: 1}}
			c.SharesKey = map[string]string{"other": "fake"}
		})
		first := w.create(enginetest.Spec())
		w.until("the first run asks", func() bool { return len(w.model.Requests()) == 1 })
		spec := enginetest.Spec()
		spec.Definition.Model, spec.Price.Model = "other/model", "other/model"
		second := w.create(spec)
		w.until("the second run waits", func() bool { return w.store.Head(second).Phase == string(loop.WaitRate) })
		close(gate)
		w.wantEnd(w.finish(first), loop.StateSucceeded, loop.Completed, "done")
		w.wantEnd(w.finish(second), loop.StateSucceeded, loop.Completed, "from the other")
	})
}

func TestALongWaitForAShareGivesTheRunBack(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{{Text: "done", Rate: loop.RateReport{
			Requests: loop.RateWindow{Limit: 1, Remaining: 0, Reset: time.Now().Add(5 * time.Minute)},
		}}}
		first := w.create(enginetest.Spec())
		w.started()
		w.finish(first)
		second := w.create(enginetest.Spec())
		w.until("the second run waits without a worker", func() bool {
			h := w.store.Head(second)
			return h.State == loop.StateQueued && h.Phase == string(loop.WaitRate)
		})
		w.equal("owner", "", w.store.Owner(second))

		h := w.finish(second)

		w.wantEnd(h, loop.StateSucceeded, loop.Completed, "done")
		requests := w.model.Requests()
		if gap := requests[1].At.Sub(requests[0].At); gap < 4*time.Minute || gap > 6*time.Minute {
			w.Errorf("the second run asked after %s", gap)
		}
	})
}

func TestAWaitForAShareEndsWithTheRun(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		end    func(*world, *enginetest.Worker, loop.RunRef)
		state  loop.RunState
		reason loop.StopReason
	}{
		"cancel":   {func(w *world, _ *enginetest.Worker, run loop.RunRef) { w.signal(run, loop.CancelRequested{By: "ann"}) }, loop.StateCancelled, loop.Cancelled},
		"deadline": {func(w *world, _ *enginetest.Worker, _ loop.RunRef) { w.pass(2 * time.Minute) }, loop.StateStopped, loop.Deadline},
		"drain":    {func(_ *world, worker *enginetest.Worker, _ loop.RunRef) { worker.Drain() }, loop.StateQueued, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				w.model.Script = []enginetest.Answer{{Text: "done", Gate: make(chan struct{})}}
				spec := enginetest.Spec()
				spec.Limits.Deadline = 20 * time.Minute
				w.create(spec)
				worker := w.limited(traffic.Limits{Concurrent: 1})
				w.until("the first run asks", func() bool { return len(w.model.Requests()) == 1 })
				spec.Limits.Deadline = 2 * time.Minute
				waiting := w.create(spec)
				w.until("the second run waits", func() bool { return w.store.Head(waiting).Phase == string(loop.WaitRate) })

				tc.end(w, worker, waiting)

				h := w.await(waiting, tc.state)
				if tc.reason != "" {
					w.equal("reason", tc.reason, h.Stop.Reason)
				}
				w.equal("requests", 1, len(w.model.Requests()))
			})
		})
	}
}

// other adds a second provider to a worker's.
func other(w *world, worker *enginetest.Worker) (*enginetest.Model, func(*engine.Config)) {
	w.Helper()
	model := &enginetest.Model{Final: "from the other"}
	return model, func(c *engine.Config) { c.Models["other"] = worker.Model(model) }
}

func TestTheRunGoesOnWithAnotherModel(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fail     []error
		requests int
		class    loop.ErrorClass
	}{
		"down":               {[]error{broken(), broken(), broken(), broken()}, 4, loop.ErrorServer},
		"no credit":          {[]error{&loop.ModelError{Class: loop.ErrorQuota}}, 1, loop.ErrorQuota},
		"come back in 2 min": {[]error{throttled(2 * time.Minute)}, 1, loop.ErrorThrottle},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				w.model.Script = []enginetest.Answer{{Text: "done", Fail: tc.fail}}
				worker := w.worker()
				second, add := other(w, worker)
				run := w.create(chained())
				w.start(worker, add)

				w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "from the other")
				w.equal("requests to the first", tc.requests, len(w.model.Requests()))
				fell := bodies[loop.FellBack](w, run)
				w.equal("fallbacks", 1, len(fell))
				w.equal("class", tc.class, fell[0].Class)
				w.equal("model asked", "model", second.Requests()[0].Model)
				if memo := second.Requests()[0].Memo; memo == nil || memo.Value != nil {
					w.Errorf("the other model is given the memo %+v of the first", memo)
				}
			})
		})
	}
}

// A provider that fails run after run is left alone: runs with another model go
// there at once, the rest wait until it is tried again.
func TestAnOpenCircuitSparesTheProvider(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		var down []error
		for range 12 {
			down = append(down, broken())
		}
		w.model.Script = []enginetest.Answer{{Text: "done", Fail: down}}
		worker := w.worker()
		_, add := other(w, worker)
		w.start(worker, add)
		for range 2 {
			w.finish(w.create(enginetest.Spec()))
		}
		asked := len(w.model.Requests())

		run := w.create(chained())
		began := time.Now()
		h := w.finish(run)

		w.wantEnd(h, loop.StateSucceeded, loop.Completed, "from the other")
		w.equal("requests to the first", asked, len(w.model.Requests()))
		if took := time.Since(began); took > 5*time.Second {
			w.Errorf("the other model was asked after %s", took)
		}
		failed := bodies[loop.ModelFailed](w, run)
		w.equal("code", loop.CodeCircuitOpen, failed[0].Code)
		w.equal("cost of what was not sent", loop.USD(0), failed[0].Cost.Total())
	})
}

// A run that has no other model waits until the provider is tried again. That
// costs it nothing: no try, no model call, no money.
func TestARunWaitsForTheCircuit(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		var down []error
		for range 8 {
			down = append(down, broken())
		}
		w.model.Script = []enginetest.Answer{{Text: "done", Fail: down}}
		w.started()
		for range 2 {
			w.finish(w.create(enginetest.Spec()))
		}
		asked := len(w.model.Requests())

		run := w.create(enginetest.Spec())
		w.until("the run waits", func() bool { return w.store.Head(run).Phase == string(loop.WaitRate) })
		h := w.finish(run)

		w.wantEnd(h, loop.StateSucceeded, loop.Completed, "done")
		w.equal("model calls", len(w.model.Requests())-asked, h.ModelCalls)
		for _, failed := range bodies[loop.ModelFailed](w, run) {
			w.equal("code", "", failed.Code)
		}
	})
}

// The circuit may open while a run is in the queue, which sends the whole queue
// away: that costs a waiting run no more than one that comes later.
func TestAQueuedRunWaitsForTheCircuit(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		var down []error
		for range 6 { // the slow run counts as the first to ask
			down = append(down, broken())
		}
		w.model.Script = []enginetest.Answer{{Text: "done", Fail: down}}
		w.model.ByInput = map[string][]enginetest.Answer{"slow": {{Gate: gate, Text: "slow"}}}
		slow := enginetest.Spec()
		slow.Input = "slow"
		w.create(slow)
		w.limited(traffic.Limits{Concurrent: 1})
		w.until("the slow run asks", func() bool { return len(w.model.Requests()) == 1 })
		var queued []loop.RunRef
		for range 6 {
			queued = append(queued, w.create(enginetest.Spec()))
		}
		w.until("all others wait", func() bool { return w.store.Head(queued[5]).Phase == string(loop.WaitRate) })
		close(gate)
		for _, run := range queued {
			w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
			for _, failed := range bodies[loop.ModelFailed](w, run) {
				w.equal("code", "", failed.Code)
			}
		}
	})
}

// Retries of one worker are bounded together, whatever each run may still try:
// 500 tokens, 10 for each retry after a timeout, and no answer to earn any back.
func TestRetriesAreBoundedAcrossRuns(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		var silent []error
		for range 80 {
			silent = append(silent, &loop.ModelError{Class: loop.ErrorTimeout})
		}
		w.model.Script = []enginetest.Answer{{Text: "done", Fail: silent}}
		w.started()
		retries, refused := 0, 0
		for refused == 0 && retries < len(silent) {
			run := w.create(enginetest.Spec())
			w.equal("reason", loop.ProviderUnavailable, w.finish(run).Stop.Reason)
			for _, failed := range bodies[loop.ModelFailed](w, run) {
				if failed.NoRetry != "" {
					refused++
				}
			}
			retries += len(bodies[loop.ModelFailed](w, run)) - 1
			w.pass(2 * time.Minute) // four failures in a minute do not open the circuit
		}
		w.equal("refused retries", 1, refused)
		if retries > 50 {
			t.Errorf("%d retries", retries)
		}
	})
}

// sink collects fragments.
type sink struct {
	mu  sync.Mutex
	got map[loop.RunRef][]loop.Delta
}

func (s *sink) Emit(run loop.RunRef, call int, d loop.Delta) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if call == 1 {
		s.got[run] = append(s.got[run], d)
	}
}

func TestFragmentsAreEmitted(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		s := &sink{got: map[loop.RunRef][]loop.Delta{}}
		w.model.Script = []enginetest.Answer{enginetest.Say("done")}
		run := w.create(enginetest.Spec())
		w.start(w.worker(), func(c *engine.Config) { c.Deltas = s })
		w.finish(run)
		s.mu.Lock()
		defer s.mu.Unlock()
		w.equal("fragments", []loop.Delta{{Kind: loop.PartText, Text: "done"}}, s.got[run])
	})
}

// counter is a model with a counting endpoint.
type counter struct {
	*enginetest.Model
	tokens int64
	err    error
}

func (c counter) CountTokens(context.Context, loop.ModelRequest) (int64, error) {
	return c.tokens, c.err
}

func TestTheProviderCountsWhatBytesCannot(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		model   func(*world) engine.Model
		state   loop.RunState
		message string
	}{
		"small":        {func(w *world) engine.Model { return counter{w.model, 500, nil} }, loop.StateSucceeded, ""},
		"large":        {func(w *world) engine.Model { return counter{w.model, 199_000, nil} }, loop.StateStopped, ""},
		"out of order": {func(w *world) engine.Model { return counter{w.model, 0, errors.New("503")} }, loop.StateStopped, "503"},
		"none":         {func(w *world) engine.Model { return w.model }, loop.StateStopped, "the provider has no counting endpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				spec := enginetest.Spec()
				spec.Attachments = []loop.Part{{Kind: loop.PartDocument, Media: &loop.Media{Type: "application/pdf", Data: []byte("%PDF")}}}
				spec.Limits.CountInput, spec.Limits.Cost = true, loop.OneUSD/10
				run := w.create(spec)
				w.start(w.worker(), func(c *engine.Config) { c.Models["fake"] = tc.model(w) })

				h := w.finish(run)

				w.equal("state", tc.state, h.State)
				counted := bodies[loop.InputCounted](w, run)
				w.equal("counts", 1, len(counted))
				w.equal("message", tc.message, counted[0].Message)
			})
		})
	}
}
