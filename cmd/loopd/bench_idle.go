package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
)

// idleConnections is how many are measured at once: enough that nothing else counts.
const idleConnections = 500

func benchIdle(env Env) *cobra.Command {
	var url string
	cmd := &cobra.Command{
		Use: "idle-connections", Short: "The connections of bench flight", Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bytes, err := measureIdle(cmd.Context(), url)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(env.Stdout, bytes)
			return err
		},
	}
	cmd.Flags().StringVar(&url, "url", "", "the tool of the benchmark")
	return cmd
}

// measureIdle is how many bytes of heap and stacks a connection of net/http takes while
// nobody uses it: two goroutines, and a buffer for either direction. That many requests
// meet, so that each needs a connection of its own.
func measureIdle(ctx context.Context, url string) (float64, error) {
	transport := &http.Transport{MaxIdleConns: idleConnections, MaxIdleConnsPerHost: idleConnections}
	client := &http.Client{Transport: transport}
	before := settled()
	var there atomic.Int64
	all := make(chan struct{})
	err := crowd(ctx, idleConnections, 10, func(ctx context.Context, _ int) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"run": "idle", "step": 1}`))
		if err != nil {
			return fmt.Errorf("make a request: %w", err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return fmt.Errorf("ask %s: %w", url, err)
		}
		defer resp.Body.Close() //nolint:errcheck // it was read, or not
		if there.Add(1) == idleConnections {
			close(all)
		}
		if err := arrive(ctx, all); err != nil { // nobody reads before all have a connection
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	})
	if err != nil {
		return 0, err
	}
	after := settled()
	transport.CloseIdleConnections()
	return float64(after-before) / idleConnections, nil
}

// settled is what a process holds after two collections: pools keep what they have over
// one, and stacks shrink.
func settled() int64 {
	runtime.GC()
	runtime.GC()
	return int64(memoryInUse())
}
