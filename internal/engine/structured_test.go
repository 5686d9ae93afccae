package engine_test

import (
	"encoding/json"
	"testing"

	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// TestRefusedSchemaEndsNoRun: a provider that answers 400 to a request with a schema
// is asked once more without, and the answer is checked by loopd alone.
func TestRefusedSchemaEndsNoRun(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		refused := &loop.ModelError{Class: loop.ErrorRequest, Status: 400, Message: "Schema is too complex for compilation"}
		w.model.Script = []enginetest.Answer{{Text: "no JSON", Fail: []error{refused}}, {Text: `{"ok":true}`}}
		spec := enginetest.Spec()
		spec.Definition.OutputSchema, spec.Price.Structured = json.RawMessage(`{"type":"object"}`), true
		run := w.create(spec)
		w.started()

		h := w.finish(run)

		w.wantEnd(h, loop.StateSucceeded, loop.Completed, `{"ok":true}`)
		var schemas []string
		for _, r := range w.model.Requests() {
			schemas = append(schemas, string(r.OutputSchema))
		}
		w.equal("schemas", []string{`{"type":"object"}`, "", ""}, schemas)
		w.equal("estimated", loop.USD(0), h.Estimated)
	})
}
