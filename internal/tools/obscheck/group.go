package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// group starts the goroutines of the program, and is waited for.
type group struct{ wg sync.WaitGroup }

// do runs f in a goroutine of its own.
func (g *group) do(f func()) { g.wg.Go(f) }

// wait returns when all have ended.
func (g *group) wait() { g.wg.Wait() }

// pause waits, and reports whether ctx is still on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// until asks again and again, until it holds or it took too long.
func until(ctx context.Context, what string, long time.Duration, holds func() bool) error {
	for end := time.Now().Add(long); time.Now().Before(end); {
		if holds() {
			return nil
		}
		if !pause(ctx, 250*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("%s: not within %s", what, long)
}
