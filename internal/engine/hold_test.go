package engine_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// holds reports whether a batch has an event of the kind.
func holds[B loop.Body](b engine.Batch) bool {
	return slices.ContainsFunc(b.Events, func(e loop.Event) bool { _, ok := e.Body.(B); return ok })
}

// An answer and the start of its calls are one commit, and so are a result and the
// next model call, and the last answer and the end: two commits an iteration. The
// result of a call that may not be repeated waits for nothing.
func TestFactsShareTheCommitOfTheNextIntent(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		tool    loop.ToolSpec
		commits int
	}{
		{look, 1 + 1 + 2*3 + 1}, // claimed; first call; iterations; last answer with the end
		{put, 1 + 1 + 2*3 + 1},
		{send, 1 + 1 + 3*3 + 1},
	} {
		t.Run(tc.tool.Name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				for _, args := range []string{`{"n":1}`, `{"n":2}`, `{"n":3}`} {
					w.model.Script = append(w.model.Script, enginetest.Ask(enginetest.Call(tc.tool.Name, args)))
				}
				w.model.Script = append(w.model.Script, enginetest.Say("done"))
				run := w.create(enginetest.Spec(tc.tool))
				worker := w.worker()
				w.start(worker)
				w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
				w.equal("commits", tc.commits, worker.Commits())
			})
		})
	}
}

// What a call brought is in the journal, also when the intent that it shared a commit
// with was refused: whoever claims the run next does not ask again.
func TestARefusedIntentLosesNoResult(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(look)), enginetest.Say("done")}
		run := w.create(enginetest.Spec(look))
		worker := w.worker()
		refusals := 0
		worker.BeforeAppend = func(_ loop.Lease, b engine.Batch) error {
			if shared := holds[loop.CallFinished](b) && holds[loop.ModelStarted](b); shared && refusals == 0 {
				refusals++
				return errors.Join(loop.ErrRefused, errors.New("over budget"))
			}
			return nil
		}
		w.start(worker)

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		w.equal("refusals", 1, refusals)
		w.equal("sends", 1, len(w.sends()))
	})
}
