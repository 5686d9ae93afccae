package server

import (
	"context"
	"slices"
	"sync"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// hub wakes the calls that wait until a run is given back. A wake that gets lost costs
// time only: who waits is polled for as well, see Server.poll.
type hub struct {
	mu      sync.Mutex
	waiting map[string]map[chan struct{}]loop.RunRef // by release notice, which two tenants might share
}

func newHub() *hub { return &hub{waiting: make(map[string]map[chan struct{}]loop.RunRef)} }

// subscribe returns a channel that gets a value after each release of the run; wakes
// that nobody has read yet are one. The caller must call leave.
func (h *hub) subscribe(run loop.RunRef) (woken <-chan struct{}, leave func()) {
	ch, notice := make(chan struct{}, 1), postgres.ReleaseNotice(run.ID)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting[notice] == nil {
		h.waiting[notice] = make(map[chan struct{}]loop.RunRef)
	}
	h.waiting[notice][ch] = run
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.waiting[notice], ch)
		if len(h.waiting[notice]) == 0 {
			delete(h.waiting, notice)
		}
	}
}

// wake wakes everybody who waits for the notice, or for any if it is "". It never
// blocks.
func (h *hub) wake(notice string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if notice != "" {
		wakeAll(h.waiting[notice])
		return
	}
	for _, channels := range h.waiting {
		wakeAll(channels)
	}
}

func wakeAll(channels map[chan struct{}]loop.RunRef) {
	for ch := range channels {
		select {
		case ch <- struct{}{}:
		default: // one wake waits already
		}
	}
}

// runs are those that somebody waits for, each once.
func (h *hub) runs() []loop.RunRef {
	h.mu.Lock()
	defer h.mu.Unlock()
	var runs []loop.RunRef
	for _, channels := range h.waiting {
		first := len(runs)
		for _, run := range channels {
			if !slices.Contains(runs[first:], run) {
				runs = append(runs, run)
			}
		}
	}
	return runs
}

// look wakes those whose wait is over and whose wake may have got lost: one query for all.
func (h *hub) look(ctx context.Context, store *postgres.Store) error {
	for some := range slices.Chunk(h.runs(), pollRuns) {
		states, err := store.RunStates(ctx, some)
		if err != nil {
			return err
		}
		for _, run := range some {
			if state, exists := states[run]; !exists || waitIsOver(state) {
				h.wake(postgres.ReleaseNotice(run.ID))
			}
		}
	}
	return nil
}

// waitIsOver reports whether the run has ended, or somebody must act.
func waitIsOver(state loop.RunState) bool {
	return state.Terminal() || state == loop.StateRequiresAction
}
