package engine_test

import (
	"context"
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// remembering is a model that keeps something between two requests, as adapters do,
// and notes what it found.
type remembering struct {
	*enginetest.Model

	found *[]any
}

func (m remembering) Generate(ctx context.Context, req loop.ModelRequest) (loop.ModelAnswer, error) {
	if req.Memo == nil {
		*m.found = append(*m.found, "none")
		return m.Model.Generate(ctx, req)
	}
	*m.found = append(*m.found, req.Memo.Value)
	req.Memo.Value = len(req.Messages)
	return m.Model.Generate(ctx, req)
}

// A run that would have been stopped as too long ends well: its oldest part is summed
// up beside the conversation, counted as what it is, and nothing that was encoded of
// the transcript before is used again.
func TestCompaction(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		sc := summary()
		w.model.Script, w.model.Summary = sc.script, enginetest.Say("Much was done.")
		w.tools.Replies = map[string]func(int) loop.ToolReply{
			"once": func(int) loop.ToolReply { return enginetest.OK(strings.Repeat("x", sc.bulk)) },
		}
		var found []any
		worker := w.worker()
		w.start(worker, func(cfg *engine.Config) {
			cfg.Models = map[string]engine.Model{"fake": remembering{w.model, &found}}
		})
		run := w.create(sc.spec)
		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")

		compacted := bodies[loop.Compacted](w, run)
		if len(compacted) != 1 || compacted[0].Summary != "Much was done." || compacted[0].After > compacted[0].Before*4/5 {
			t.Fatalf("compactions: %+v", compacted)
		}
		w.equal("memos", []any{nil, 1, 3, 5, 7, 9, "none", nil, 8}, found)
		w.equal("sends", []string{"send/1", "once/1", "once/1", "once/1", "once/1", "once/1"}, w.sends())
		last := w.model.Requests()[len(w.model.Requests())-1]
		if text := last.Messages[1].Text(); !strings.Contains(text, "Much was done.") || !strings.Contains(text, "- send {} (c1-1") {
			t.Errorf("the model reads %q", text)
		}
		if result := last.Messages[len(last.Messages)-1].Parts[0].Result; result.Outcome != loop.OutcomeSkipped {
			t.Errorf("what was sent before the summary is sent again: %+v", result)
		}
		w.equal("iterations", 8.0, w.counted("loopd_iterations_total", map[string]string{"agent": "test"}))
		w.equal("compactions", 1.0, w.counted("loopd_compactions_total", map[string]string{"method": "summarize", "outcome": "ok"}))
		sum, n := w.observed("loopd_context_used_ratio", map[string]string{"agent": "test"})
		if n != 8 || sum < 1 || sum > 8 {
			t.Errorf("%d iterations used %g windows together", n, sum)
		}
	})
}

// What the model is shown a part of is kept whole, whoever brought it.
func TestFullResultsAreKept(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		client := enginetest.Tool("scan", loop.SideEffect)
		client.Client = &loop.ClientSpec{}
		reader := enginetest.Tool("read", loop.ReadOnly)
		reader.Builtin = loop.BuiltinReadResult
		long := strings.Repeat("long ", 10_000)
		w.model.Script = []enginetest.Answer{
			enginetest.Ask(call(look), call(put), call(client)), enginetest.Ask(enginetest.Call("read", `{"call":"c1-1"}`)), enginetest.Say("done"),
		}
		w.tools.Replies = map[string]func(int) loop.ToolReply{
			"look": func(int) loop.ToolReply { return enginetest.OK(long) }, "read": func(int) loop.ToolReply { return enginetest.OK(long) },
		}
		w.started()
		run := w.create(enginetest.Spec(look, put, client, reader))
		w.await(run, loop.StateRequiresAction)
		w.signal(run, loop.ResultSubmitted{CallID: "c1-3", Attempt: 1, Outcome: loop.OutcomeOK, Content: long + "scan"})
		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		w.equal("kept", []loop.FullResult{{CallID: "c1-1", Attempt: 1, Text: long}, {CallID: "c1-3", Attempt: 1, Text: long + "scan"}}, w.store.Results(run))
		for _, c := range w.store.Calls(run) {
			if c.Call.ID != "c1-2" && (!c.Cut || len(c.Result) > 16<<10) {
				t.Errorf("%s is shown %d bytes, cut: %v", c.Call.ID, len(c.Result), c.Cut)
			}
			if reads := strings.Contains(c.Result, `Read it with read: {"call":"`+c.Call.ID+`"`); reads != (c.Call.ID == "c1-1" || c.Call.ID == "c1-3") {
				t.Errorf("%s tells how to read on: %v", c.Call.ID, reads)
			}
		}
	})
}
