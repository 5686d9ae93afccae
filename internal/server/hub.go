package server

import "sync"

// hub wakes the calls that wait for a run. A wake that gets lost costs time only:
// waiting calls look for themselves as well.
type hub struct {
	mu      sync.Mutex
	waiting map[string]map[chan struct{}]bool // by run id, or its release notice
}

func newHub() *hub { return &hub{waiting: make(map[string]map[chan struct{}]bool)} }

// subscribe returns a channel that gets a value after each wake of the run, or of its
// release notice; wakes
// that nobody has read yet are one. The caller must call leave.
func (h *hub) subscribe(run string) (woken <-chan struct{}, leave func()) {
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

// wake wakes everybody who waits for the run, or for any run if it is "". It never
// blocks.
func (h *hub) wake(run string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if run != "" {
		wakeAll(h.waiting[run])
		return
	}
	for _, channels := range h.waiting {
		wakeAll(channels)
	}
}

func wakeAll(channels map[chan struct{}]bool) {
	for ch := range channels {
		select {
		case ch <- struct{}{}:
		default: // one wake waits already
		}
	}
}
