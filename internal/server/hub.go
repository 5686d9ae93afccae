package server

import (
	"sync"

	"github.com/loopd/loopd/internal/loop"
)

// hub wakes the calls that wait for a run. A wake that gets lost costs time only:
// waiting calls look for themselves as well.
type hub struct {
	mu      sync.Mutex
	waiting map[loop.RunRef]map[chan struct{}]bool
}

func newHub() *hub { return &hub{waiting: make(map[loop.RunRef]map[chan struct{}]bool)} }

// subscribe returns a channel that gets a value after each wake of the run; wakes
// that nobody has read yet are one. The caller must call leave.
func (h *hub) subscribe(run loop.RunRef) (woken <-chan struct{}, leave func()) {
	ch := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting[run] == nil {
		h.waiting[run] = make(map[chan struct{}]bool)
	}
	h.waiting[run][ch] = true
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.waiting[run], ch)
		if len(h.waiting[run]) == 0 {
			delete(h.waiting, run)
		}
	}
}

// wake wakes everybody who waits for the run. It never blocks.
func (h *hub) wake(run loop.RunRef) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch := range h.waiting[run] {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}
