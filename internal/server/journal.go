package server

import (
	"context"
	"fmt"
	"math"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// journalReader reads a run's events in order and folds them, because an event
// does not carry the iteration it belongs to.
type journalReader struct {
	store *postgres.Store
	run   loop.RunRef
	seq   int64 // of the last event read
	state *loop.State
	ended loop.RunState // the final state, once its event was read
	// call is the newest model call, writing whether it may still be in flight.
	call    int
	writing bool
	// broken is why the events cannot be folded any more. They are shown all the
	// same: a broken journal is one that somebody must look at.
	broken error
}

func newJournalReader(store *postgres.Store, run loop.RunRef) (*journalReader, error) {
	state, err := loop.Fold(run, nil)
	if err != nil {
		return nil, fmt.Errorf("begin a state: %w", err)
	}
	return &journalReader{store: store, run: run, state: state}, nil
}

// next reads at most limit events after the last one. None: there are no more yet.
func (j *journalReader) next(ctx context.Context, limit int) ([]*loopdv1.Event, error) {
	entries, err := j.entries(ctx, limit)
	if err != nil {
		return nil, err
	}
	shown := make([]*loopdv1.Event, len(entries))
	for i, e := range entries {
		shown[i] = e.event
	}
	return shown, nil
}

// sizes are those of the attachments in the first event, by index; none for all others.
func (j *journalReader) sizes(ctx context.Context, e loop.Event) (map[int]int64, error) {
	if created, ok := e.Body.(loop.Created); ok && len(created.Spec.Attachments) > 0 {
		return j.store.AttachmentSizes(ctx, j.run)
	}
	return map[int]int64{}, nil
}

// skip reads up to and including event seq, and shows nothing.
func (j *journalReader) skip(ctx context.Context, seq int64) error {
	for j.seq < seq {
		events, err := j.store.Events(ctx, j.run, j.seq, int(min(seq-j.seq, eventBatch)))
		if err != nil {
			return err
		}
		if len(events) == 0 { // the client claims to have more than there is
			j.seq = seq
			return nil
		}
		for _, e := range events {
			j.take(e)
		}
	}
	return nil
}

// take folds one event and returns its iteration. What concerns a model's answer
// belongs to the iteration that the answer begins.
func (j *journalReader) take(e loop.Event) int {
	j.seq = e.Seq
	before := j.state.Head().Iterations
	if j.broken == nil {
		j.broken = j.state.Apply(e)
	}
	switch b := e.Body.(type) {
	case loop.ModelStarted:
		if b.Beside() { // nobody sees it written, and it begins no iteration
			return before
		}
		j.call, j.writing = b.Call, true
		return before + 1
	case loop.ModelAnswered, loop.ModelFailed:
		j.writing = false
		if j.state.LastCall().Beside() {
			return before
		}
		return before + 1
	case loop.FellBack, loop.RateWaited, loop.InputCounted:
		return before + 1
	case loop.Finished:
		j.ended = b.State
	}
	return j.state.Head().Iterations
}

// allEvents reads a journal as a whole, but for the data of attachments.
func (s *Server) allEvents(ctx context.Context, run loop.RunRef) ([]loop.Event, error) {
	return s.store.Events(ctx, run, 0, math.MaxInt32)
}
