package postgres

import (
	"context"
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
