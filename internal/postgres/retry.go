package postgres

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// maxTries bounds the repetition of a transaction that lost against another
	// one. Whoever loses three times in a row has a different problem.
	maxTries = 3
	// firstPause doubles with every try, up to longestPause.
	firstPause   = 20 * time.Millisecond
	longestPause = time.Second
)

// pause waits before the next try: a random time, so that those who collided do
// not collide again. It returns early with an error when ctx ends.
func pause(ctx context.Context, try int) error {
	return sleep(ctx, pauseOf(try))
}

// pauseOf is a random time that doubles with every try, up to longestPause, so that those
// who collided do not collide again.
func pauseOf(try int) time.Duration {
	limit := min(firstPause<<min(try-1, 10), longestPause)
	return limit/2 + rand.N(limit/2)
}

// sleep returns early with an error when ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
