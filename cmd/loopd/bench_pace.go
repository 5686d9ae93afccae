package main

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// linger waits, at most until ctx ends.
func linger(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// pace calls do so many times a second, whether earlier calls have ended or not, as callers
// do that know nothing of each other. due is when the call should have begun: what is
// measured from there counts the time that it had to wait for its turn as well.
func pace(ctx context.Context, rate float64, most time.Duration, do func(ctx context.Context, due time.Time) error) error {
	group, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for i := 0; ; i++ {
		at := time.Duration(float64(i) / rate * float64(time.Second))
		if at > most || ctx.Err() != nil {
			return group.Wait()
		}
		due := began.Add(at)
		if err := linger(ctx, time.Until(due)); err != nil {
			return group.Wait()
		}
		group.Go(func() error { return do(ctx, due) })
	}
}

// crowd calls do for each of n at once, and begins some of them every millisecond.
func crowd(ctx context.Context, n, each int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for i := range n {
		if i%each == 0 {
			if err := linger(ctx, time.Millisecond); err != nil {
				return group.Wait()
			}
		}
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// beside calls do while main runs.
func beside(ctx context.Context, do, main func(ctx context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return do(ctx) })
	group.Go(func() error {
		defer stop()
		return main(ctx)
	})
	return group.Wait()
}
