package engine_test

import (
	"testing"
	"time"

	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

func throttled(after time.Duration) error {
	return &loop.ModelError{Class: loop.ErrorThrottle, Status: 429, Message: "slow down", RetryAfter: after}
}

func broken() error { return &loop.ModelError{Class: loop.ErrorServer, Status: 500, Message: "oops"} }

func TestModelIsRetriedWithBackoff(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{{Text: "done", Fail: []error{throttled(0), broken(), throttled(0)}}}
		run := w.create(enginetest.Spec())
		w.started()

		h := w.finish(run)

		w.wantEnd(h, loop.StateSucceeded, loop.Completed, "done")
		requests := w.model.Requests()
		w.equal("requests", 4, len(requests))
		longest := time.Second // doubled with each failure, jitter below it
		for i, r := range requests[1:] {
			if gap := r.At.Sub(requests[i].At); gap <= 0 || gap > longest+time.Millisecond {
				w.Errorf("retry %d came after %s, want at most %s", i+1, gap, longest)
			}
			longest *= 2
		}
		// A 500 may have cost something, a 429 has not.
		spec := w.state(run).Spec()
		w.equal("cost", bodies[loop.ModelStarted](w, run)[1].Hold+spec.Price.Cost(enginetest.Usage()).Total(), h.Cost.Total())
	})
}

func TestModelIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fail     []error
		requests int
		reason   loop.StopReason
	}{
		"four failures":             {[]error{broken(), broken(), broken(), broken()}, 4, loop.ProviderUnavailable},
		"asked to wait for 2 hours": {[]error{throttled(2 * time.Hour)}, 1, loop.ProviderUnavailable},
		"no credit":                 {[]error{&loop.ModelError{Class: loop.ErrorQuota}}, 1, loop.ProviderUnavailable},
		"a wrong key":               {[]error{&loop.ModelError{Class: loop.ErrorAuth, Status: 401}}, 1, loop.ProviderError},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				w.model.Script = []enginetest.Answer{{Text: "done", Fail: tc.fail}}
				run := w.create(enginetest.Spec())
				w.started()

				w.wantEnd(w.finish(run), loop.StateFailed, tc.reason, "")
				w.equal("requests", tc.requests, len(w.model.Requests()))
			})
		})
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		after    time.Duration
		attempts int
	}{
		"30 s are waited out":      {30 * time.Second, 1},
		"5 min give the run back":  {5 * time.Minute, 2},
		"an hour gives it back":    {time.Hour, 2},
		"a minute is waited out":   {time.Minute, 1},
		"61 s are worth releasing": {61 * time.Second, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				w.model.Script = []enginetest.Answer{{Text: "done", Fail: []error{throttled(tc.after)}}}
				spec := enginetest.Spec()
				spec.Limits.Deadline = 2 * time.Hour // waiting for a provider is active time
				run := w.create(spec)
				w.started()
				w.until("the model was asked", func() bool { return len(w.model.Requests()) == 1 })
				if tc.attempts == 2 {
					h := w.await(run, loop.StateQueued)
					w.equal("phase", "backoff", h.Phase)
					w.equal("owner", "", w.store.Owner(run))
				}

				h := w.finish(run)

				w.wantEnd(h, loop.StateSucceeded, loop.Completed, "done")
				w.equal("attempts", tc.attempts, h.Attempts)
				requests := w.model.Requests()
				if gap := requests[1].At.Sub(requests[0].At); gap < tc.after || gap > tc.after+3*time.Second {
					w.Errorf("the retry came after %s", gap)
				}
			})
		})
	}
}
