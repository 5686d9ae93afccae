package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/engine/enginetest"
)

// A store that is away does not kill the process; a claim that never comes back does.
func TestAlive(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		stuck, release := make(chan struct{}), make(chan struct{})
		worker := w.worker()
		worker.BeforeClaim = func() {
			select {
			case <-stuck:
				<-release
			default:
			}
		}
		e := w.start(worker)
		w.pass(2 * time.Minute)
		w.equal("at work", error(nil), e.Alive())
		w.store.SetDown(true)
		w.pass(5 * time.Minute)
		w.equal("without a database", error(nil), e.Alive())
		w.store.SetDown(false)
		w.finish(w.create(enginetest.Spec()))
		close(stuck)
		w.pass(2 * time.Minute)
		if err := e.Alive(); err == nil || !strings.Contains(err.Error(), "claims runs") {
			w.Errorf("a claim that hangs: %v", err)
		}
		close(release)
		w.pass(time.Second)
		w.equal("once more", error(nil), e.Alive())
	})
}
