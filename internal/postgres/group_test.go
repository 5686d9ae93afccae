package postgres

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loopd/loopd/internal/postgres/db"
)

// slowCommit is a commit that takes until the test lets it go.
type slowCommit struct {
	mu    sync.Mutex
	sizes []int
	gate  chan struct{}
}

func (c *slowCommit) commit(group []*pending) {
	<-c.gate
	c.mu.Lock()
	c.sizes = append(c.sizes, len(group))
	c.mu.Unlock()
	for _, p := range group {
		p.done <- nil
	}
}

func TestGroupsFormWhileCommitsAreOnTheirWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &slowCommit{gate: make(chan struct{})}
		g := newGroup(c.commit)
		const company = maxGroup + 10
		var wg sync.WaitGroup
		send := func(n int) {
			for i := range n {
				wg.Go(func() {
					if err := g.write(t.Context(), db.AppendEventsParams{RunID: fmt.Sprint(i)}); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
		}
		send(1)       // leaves at once, alone
		send(crowd)   // the last of them sees that the first does not keep up, and leaves with them
		send(company) // queues
		close(c.gate)
		wg.Wait()

		sum, largest := 0, 0
		for _, size := range c.sizes {
			sum, largest = sum+size, max(largest, size)
		}
		if sum != 1+crowd+company || largest != maxGroup || len(c.sizes) != maxFlushes+2 {
			t.Errorf("groups of %v, want one alone, %d together, and %d in two groups, the larger of %d", c.sizes, crowd, company, maxGroup)
		}
		if g.flushing != 0 || len(g.queue) != 0 {
			t.Errorf("at rest, %d leaders and %d appends are left", g.flushing, len(g.queue))
		}
	})
}

func TestWaitingAppendIsWithdrawn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &slowCommit{gate: make(chan struct{})}
		g := newGroup(c.commit)
		var wg sync.WaitGroup
		wg.Go(func() { _ = g.write(t.Context(), db.AppendEventsParams{}) })
		synctest.Wait()
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("drain")
		result := make(chan error, 1)
		go func() { result <- g.write(ctx, db.AppendEventsParams{}) }()
		synctest.Wait()

		cancel(cause)

		if err := <-result; !errors.Is(err, cause) || !errors.Is(err, errWithdrawn) {
			t.Errorf("error = %v, want it withdrawn because of the drain", err)
		}
		close(c.gate)
		wg.Wait()
		if len(c.sizes) != 1 {
			t.Errorf("%d commits, want 1: the withdrawn append was written", len(c.sizes))
		}
	})
}

// A commit that is held up, by a row that somebody has locked, holds up nobody else for long.
func TestNobodyWaitsForOneThatIsHeldUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		locked := make(chan struct{})
		g := newGroup(func(group []*pending) {
			if group[0].params.RunID == "locked" {
				<-locked
			}
			for _, p := range group {
				p.done <- nil
			}
		})
		var wg sync.WaitGroup
		wg.Go(func() { _ = g.write(t.Context(), db.AppendEventsParams{RunID: "locked"}) })
		synctest.Wait()
		for range 3 { // one after the other: the second lead is given back each time
			began := time.Now()
			for range 2 {
				wg.Go(func() {
					if err := g.write(t.Context(), db.AppendEventsParams{}); err != nil || time.Since(began) != patience {
						t.Errorf("written after %v, %v, want %v", time.Since(began), err, patience)
					}
				})
			}
			time.Sleep(2 * patience)
		}
		close(locked)
		wg.Wait()
		if g.flushing != 0 || len(g.queue) != 0 {
			t.Errorf("at rest, %d leaders and %d appends are left", g.flushing, len(g.queue))
		}
	})
}

// A lead that its owner does not take up is handed on, at any interleaving, and so is that of
// one whose group was full before its own turn came.
func TestLeadIsNeverLost(t *testing.T) {
	t.Parallel()
	for _, most := range []int{1, 3, maxGroup} {
		t.Run(fmt.Sprint("groups of ", most), func(t *testing.T) {
			t.Parallel()
			g := newGroup(func(group []*pending) {
				runtime.Gosched() // others come meanwhile
				for _, p := range group {
					p.done <- nil
				}
			})
			g.most = most
			var wg sync.WaitGroup
			for i := range 64 {
				wg.Go(func() {
					for n := range 500 {
						ctx, cancel := context.WithCancel(t.Context())
						if (n+i)%7 == 0 {
							cancel()
						}
						if err := g.write(ctx, db.AppendEventsParams{}); err != nil && !errors.Is(err, errWithdrawn) {
							t.Error(err)
						}
						cancel()
					}
				})
			}
			wg.Wait()
			if g.flushing != 0 || len(g.queue) != 0 {
				t.Errorf("at rest, %d leaders and %d appends are left", g.flushing, len(g.queue))
			}
		})
	}
}
