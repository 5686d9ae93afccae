package main

import (
	"context"
	"fmt"
	"time"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// watched is what a reader of one run's event stream has seen.
type watched struct {
	run   string
	kinds []string // by sequence number, from 1
	ended bool
	fault string
}

// watch reads a run's events to their end through whatever replica answers, going on
// after each cut where it was. Each event must be the next.
func (c *client) watch(ctx context.Context, name string) {
	seen := &watched{run: name[len("runs/"):]}
	for !seen.ended && seen.fault == "" {
		c.read(ctx, name, seen)
		if !pause(ctx, 200*time.Millisecond) {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watched = append(c.watched, seen)
}

func (c *client) read(ctx context.Context, name string, seen *watched) {
	// Nothing says that a stalled stream is dead, so that a reader looks elsewhere in time.
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	stream, err := c.any().runs.StreamEvents(ctx, &loopdv1.StreamEventsRequest{Parent: name, AfterSeq: int64(len(seen.kinds))})
	for err == nil {
		var got *loopdv1.StreamEventsResponse
		if got, err = stream.Recv(); err != nil {
			break
		}
		if event := got.GetEvent(); event != nil {
			if event.GetSeq() != int64(len(seen.kinds))+1 {
				seen.fault = fmt.Sprintf("event %d came after event %d", event.GetSeq(), len(seen.kinds))
				return
			}
			seen.kinds = append(seen.kinds, event.GetKind())
		}
		if got.GetEnd() != nil {
			seen.ended = true
			return
		}
	}
}
