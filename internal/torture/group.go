package main

import (
	"context"
	"sync"
	"time"
)

// group starts the goroutines of the machine, and is waited for at its end.
type group struct{ wg sync.WaitGroup }

// do runs f in a goroutine of its own.
func (g *group) do(f func()) { g.wg.Go(f) }

// wait returns when all have ended.
func (g *group) wait() { g.wg.Wait() }

// pause waits for d. False: ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
