package engine_test

import (
	"context"
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// TestChantIsGivenUp: a model that writes the same words without end is stopped
// soon, asked once more, and then no more. Nobody watches.
func TestChantIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		chants int
		state  loop.RunState
		reason loop.StopReason
		answer string
	}{
		"once":  {1, loop.StateSucceeded, loop.Completed, "done"},
		"twice": {2, loop.StateStopped, loop.TextLoop, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				w.model.Script = []enginetest.Answer{{Text: "done", Chants: tc.chants}}
				run := w.create(enginetest.Spec(look))
				w.started()

				h := w.finish(run)

				w.wantEnd(h, tc.state, tc.reason, tc.answer)
				w.equal("requests", 2, len(w.model.Requests()))
				failed := bodies[loop.ModelFailed](w, run)
				w.equal("given up", tc.chants, len(failed))
				hold := bodies[loop.ModelStarted](w, run)[0].Hold
				w.equal("class and charge", []any{loop.ErrorTextLoop, hold}, []any{failed[0].Class, failed[0].Cost.Total()})
				if !strings.HasPrefix(failed[0].Message, "the reasoning repeats") || !strings.Contains(failed[0].Message, "and so it goes") {
					t.Errorf("the journal says %q", failed[0].Message)
				}
				w.equal("estimated", hold*loop.USD(tc.chants), h.Estimated)
				w.equal("counted", float64(tc.chants), w.counted("loopd_llm_requests_total", map[string]string{"model": "fake/model", "code": "text_loop"}))
				if tc.chants == 2 {
					w.equal("evidence", failed[1].Message, h.Stop.Evidence[1].Note)
				}
			})
		})
	}
}

// TestChantIsStoppedEarly: what was written before the request was given up is
// hundreds of bytes, not an output cap's worth, and those who watch have seen it.
func TestChantIsStoppedEarly(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		s := &sink{got: map[loop.RunRef][]loop.Delta{}}
		w.model.Script = []enginetest.Answer{{Text: "done", Chants: 1}}
		run := w.create(enginetest.Spec())
		w.start(w.worker(), func(c *engine.Config) { c.Deltas = s })
		w.finish(run)
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(s.got[run]); n < 10 || n*len(enginetest.ChantedWords) > 1000 {
			t.Errorf("%d fragments were written, each of %d bytes", n, len(enginetest.ChantedWords))
		}
	})
}

// TestWholeChantIsNoAnswer: a final answer that repeats itself until its end is
// asked for again, also from a provider that does not stream.
func TestWholeChantIsNoAnswer(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Say(strings.Repeat(enginetest.ChantedWords, 40))}
		run := w.create(enginetest.Spec())
		w.start(w.worker(), func(c *engine.Config) { c.Models["fake"] = silent{w.model} })

		h := w.finish(run)

		w.wantEnd(h, loop.StateStopped, loop.TextLoop, "")
		answered := bodies[loop.ModelAnswered](w, run)
		w.equal("answers", 2, len(answered))
		if !strings.Contains(answered[0].Chant, "and so it goes") {
			t.Errorf("the journal says that the answer repeats %q", answered[0].Chant)
		}
		w.equal("iterations", 0, h.Iterations)
	})
}

// TestChantsPassInOldRuns: a run from before the guard goes on as it began.
func TestChantsPassInOldRuns(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		words := strings.Repeat(enginetest.ChantedWords, 40)
		w.model.Script = []enginetest.Answer{enginetest.Say(words)}
		spec := enginetest.Spec()
		spec.Limits.Monologue = 0
		run := w.create(spec)
		w.started()
		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, words)
	})
}

// silent is a provider that sends no fragments.
type silent struct{ engine.Model }

func (s silent) Generate(ctx context.Context, req loop.ModelRequest) (loop.ModelAnswer, error) {
	req.Emit = nil
	return s.Model.Generate(ctx, req)
}
