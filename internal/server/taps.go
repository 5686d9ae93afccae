package server

import (
	"context"
	"sync"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// tapBatches is how many batches wait for a slow client, each less than 8 KiB: some
// three seconds of a model's writing. Then the oldest is dropped.
const tapBatches = 64

// taps hand deltas to the streams that show them. What gets lost is seen as a gap in
// the batches' numbers.
type taps struct {
	mu    sync.Mutex
	open  map[loop.RunRef]map[chan postgres.DeltaBatch]bool
	fresh []loop.RunRef // opened, and not yet announced to the workers

	opened chan struct{} // gets a value when there are fresh ones
}

func newTaps() *taps {
	return &taps{open: make(map[loop.RunRef]map[chan postgres.DeltaBatch]bool), opened: make(chan struct{}, 1)}
}

// subscribe returns a channel that gets the run's deltas. The caller must call leave.
func (t *taps) subscribe(run loop.RunRef) (deltas <-chan postgres.DeltaBatch, leave func()) {
	ch := make(chan postgres.DeltaBatch, tapBatches)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[run] == nil {
		t.open[run] = make(map[chan postgres.DeltaBatch]bool)
		t.fresh = append(t.fresh, run)
	}
	t.open[run][ch] = true
	select {
	case t.opened <- struct{}{}:
	default: // one waits already
	}
	return ch, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.open[run], ch)
		if len(t.open[run]) == 0 {
			delete(t.open, run)
		}
	}
}

// send hands a batch to everybody who shows the run. It never blocks: who does not
// read loses the oldest that waits.
func (t *taps) send(b postgres.DeltaBatch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ch := range t.open[b.Run] {
		select {
		case ch <- b:
			continue
		default:
		}
		select {
		case <-ch:
		default: // read just now
		}
		ch <- b // there is room: nobody else sends
	}
}

// takeFresh returns the runs that were not announced yet, once.
func (t *taps) takeFresh() []loop.RunRef {
	t.mu.Lock()
	defer t.mu.Unlock()
	fresh := t.fresh
	t.fresh = nil
	return fresh
}

// all returns the runs that somebody shows.
func (t *taps) all() []loop.RunRef {
	t.mu.Lock()
	defer t.mu.Unlock()
	runs := make([]loop.RunRef, 0, len(t.open))
	for run := range t.open {
		runs = append(runs, run)
	}
	return runs
}

// announce tells the workers which runs are watched here, at once and again while
// they are, until ctx ends.
func (s *Server) announce(ctx context.Context) error {
	again := time.NewTicker(postgres.WatchEvery)
	defer again.Stop()
	for {
		var runs []loop.RunRef
		select {
		case <-ctx.Done():
			return nil
		case <-s.taps.opened:
			runs = s.taps.takeFresh()
		case <-again.C:
			runs = s.taps.all()
		}
		if len(runs) == 0 {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, postgres.WatchEvery)
		if err := s.store.Watch(bounded, runs...); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "workers were not told that runs are watched", "runs", len(runs), "error", err)
		}
		cancel()
	}
}

// hear passes on the deltas that workers send, until ctx ends. What is sent while the
// connection for listening is broken is lost.
func (s *Server) hear(ctx context.Context) error {
	return s.listen(ctx, "listening for deltas", func() error {
		return s.store.ListenDeltas(ctx, s.taps.send)
	})
}
