package engine

import (
	"context"
	"fmt"

	"github.com/loopd/loopd/internal/loop"
)

// textLoopError is why a request was given up: its answer went round in circles.
type textLoopError struct {
	kind  loop.PartKind
	words string
}

// Error says what was repeated.
func (t *textLoopError) Error() string {
	return fmt.Sprintf("the %s repeats without end: %q", t.kind, t.words)
}

// listen returns what an adapter is to call for each fragment: those who watch get
// it, and a request whose answer goes round in circles is given up, whether anybody
// watches or not. Arguments of calls are not listened to: they may repeat
// themselves, and the output cap bounds them.
func (o *owner) listen(a loop.CallModel, cancel context.CancelCauseFunc) func(loop.Delta) {
	emit := func(loop.Delta) {}
	if sink := o.e.cfg.Deltas; sink != nil && !a.Beside() {
		call := a.Started.Call
		emit = func(d loop.Delta) { sink.Emit(o.lease.Run, call, d) }
	}
	if !o.state.HearsTextLoops() {
		return emit
	}
	var heard map[loop.PartKind]*loop.Chant // made when there is something to hear: most of a call is silence
	return func(d loop.Delta) {
		emit(d)
		if heard == nil {
			heard = map[loop.PartKind]*loop.Chant{loop.PartText: {}, loop.PartReasoning: {}}
		}
		if chant := heard[d.Kind]; chant != nil && chant.Add(d.Text) {
			cancel(&textLoopError{d.Kind, chant.Words()})
		}
	}
}
