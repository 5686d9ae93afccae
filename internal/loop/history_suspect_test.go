package loop_test

import (
	"slices"

	"github.com/loopd/loopd/internal/loop"
)

// suspects are the attempts in a row that broke down, as the audit sees them.
type suspects struct {
	worker  string   // that drives the run
	silent  []string // workers that have not come back
	crashes int
	doomed  bool // a claim found five
	ends    map[string]int
}

// breakDown is a panic that the worker survives.
func (h *history) breakDown() {
	h.state = h.refold()
	h.append(h.state.BreakDown("index out of range", h.now)...)
	h.pass(h.pause())
	h.claim(false)
}

// returned is which of the workers that went silent have come back when the run is
// claimed: none of those that died.
func (h *history) returned() []string {
	var back []string
	for _, o := range h.state.Silent() {
		if h.odds(6) && !slices.Contains(back, o.Worker) {
			back = append(back, o.Worker)
		}
	}
	return back
}

// event counts anew what the core counts.
func (o *suspects) event(a *audit, b loop.Body) {
	switch b := b.(type) {
	case loop.Claimed:
		if b.Recovered && !o.doomed && len(o.silent)+o.crashes < 5 {
			o.silent = append(o.silent, o.worker)
		}
		if !o.doomed {
			before := len(o.silent)
			o.silent = slices.DeleteFunc(o.silent, func(w string) bool { return slices.Contains(b.Returned, w) })
			o.ends["returned"] += before - len(o.silent)
		}
		o.worker, o.doomed = b.Worker, len(o.silent)+o.crashes == 5
	case loop.Suspended:
		if b.Reason == loop.WaitCrash && len(o.silent)+o.crashes < 5 {
			o.crashes++
			o.ends["crashed"]++
		}
	case loop.ModelAnswered, loop.CallFinished, loop.CallPolled, loop.CallVerified, loop.CallHandedOut, loop.ResultSubmitted, loop.ChildFinished:
		if !o.doomed {
			o.silent, o.crashes = nil, 0
		}
	case loop.ModelStarted, loop.CallBegun:
		if o.doomed {
			a.t.Fatalf("%s, although the run has broken down five times without progress", b.Kind())
		}
	case loop.Finished:
		o.finished(a, b)
	}
}

func (o *suspects) finished(a *audit, b loop.Finished) {
	if b.Stop.Reason != loop.RecoveryExhausted {
		if o.doomed && !a.cancelled {
			a.t.Fatalf("broke down five times without progress, and ended as %s", b.Stop.Reason)
		}
		return
	}
	if !o.doomed || b.Stop.Observed != "5" || b.Stop.Limit != "5" || len(b.Stop.Evidence) != 5 {
		a.t.Fatalf("ended for %d dead workers and %d crashes: %+v", len(o.silent), o.crashes, b.Stop)
	}
	o.ends["exhausted"]++
}
