package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
)

// readersReport is what the readers of `loopd bench streams` saw.
type readersReport struct {
	Opened   int     `json:"opened"`
	Received int     `json:"received"` // events, of those who read
	P50      float64 `json:"p50"`      // milliseconds from an event's making to its reader
	P99      float64 `json:"p99"`
	Cut      int     `json:"cut"`     // slow readers whose stream was ended
	Resumed  int     `json:"resumed"` // and that went on behind the last event they had
	Shed     int     `json:"shed"`    // opens that were told to come back
	Gaps     int     `json:"gaps"`    // readers that missed an event, or got one twice
}

// readers are many clients in one process.
type readers struct {
	server     string
	runs       []string
	slow       int
	until      time.Duration
	there      atomic.Int64 // streams that are open
	want       int64
	latencies  []durations
	cut        atomic.Int64
	resumed    atomic.Int64
	gaps       atomic.Int64
	shed       atomic.Int64 // opens that were told to come back
	ready, end chan struct{}
}

func benchReaders(env Env) *cobra.Command {
	r := &readers{ready: make(chan struct{}), end: make(chan struct{})}
	cmd := &cobra.Command{
		Use: "stream-readers", Short: "The readers of bench streams", Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			names, err := io.ReadAll(env.Stdin)
			if err != nil {
				return fmt.Errorf("read the runs' ids: %w", err)
			}
			r.runs, r.latencies = strings.Fields(string(names)), make([]durations, 64)
			err = crowd(cmd.Context(), int(r.want)+1, 4, func(ctx context.Context, i int) error {
				if i == int(r.want) {
					return r.clock(ctx)
				}
				return r.read(ctx, i)
			})
			if err != nil {
				return err
			}
			return json.NewEncoder(env.Stdout).Encode(r.report())
		},
	}
	cmd.Flags().StringVar(&r.server, "server", "", "address of the REST port")
	cmd.Flags().Int64Var(&r.want, "readers", 1, "how many")
	cmd.Flags().IntVar(&r.slow, "slow", 0, "how many of them do not read")
	cmd.Flags().DurationVar(&r.until, "until", time.Second, "how long, once all are there")
	return cmd
}

// clock waits until all are there, and ends the measurement.
func (r *readers) clock(ctx context.Context) error {
	for r.there.Load() < r.want && ctx.Err() == nil {
		if err := linger(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	close(r.ready)
	defer close(r.end)
	return linger(ctx, r.until)
}

func (r *readers) report() readersReport {
	var all []time.Duration
	for i := range r.latencies {
		all = append(all, r.latencies[i].take()...)
	}
	p50, p99 := percentiles(all)
	return readersReport{
		Opened: int(r.there.Load()), Received: len(all), P50: p50, P99: p99,
		Cut: int(r.cut.Load()), Resumed: int(r.resumed.Load()), Gaps: int(r.gaps.Load()), Shed: int(r.shed.Load()),
	}
}

// open asks for the events of a run behind one.
func (r *readers) open(ctx context.Context, i int, after int64) (net.Conn, *bufio.Reader, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.server)
	if err != nil {
		return nil, nil, fmt.Errorf("connect: %w", err)
	}
	if i < r.slow {
		_ = conn.(*net.TCPConn).SetReadBuffer(4096) //nolint:errcheck,forcetypeassert // it dialled tcp
	}
	_, err = fmt.Fprintf(conn, "GET /v1/runs/%s/events HTTP/1.1\r\nHost: bench\r\nAccept: text/event-stream\r\nLast-Event-ID: %d\r\n\r\n", r.runs[i%len(r.runs)], after)
	if err != nil {
		return nil, nil, fmt.Errorf("ask for events: %w", err)
	}
	lines := bufio.NewReaderSize(conn, 2048)
	status, err := lines.ReadString('\n')
	if err == nil && strings.Contains(status, "503") { // so many open at once that some are told to come back
		r.shed.Add(1)
		_ = conn.Close()
		if err := linger(ctx, time.Second); err != nil {
			return nil, nil, err
		}
		return r.open(ctx, i, after)
	}
	if err != nil || !strings.Contains(status, "200") {
		return nil, nil, fmt.Errorf("%w: events were answered with %q: %w", errBench, status, err)
	}
	return conn, lines, nil
}

// read is one reader.
func (r *readers) read(ctx context.Context, i int) error {
	conn, lines, err := r.open(ctx, i, 0)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	r.there.Add(1)
	var last int64
	if i < r.slow {
		if err := arrive(ctx, r.end); err != nil {
			return err
		}
		_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
		var cut bool
		if last, cut = r.lines(i, lines, 0, false); !cut {
			return err // it was quick enough after all
		}
		r.cut.Add(1)
		_ = conn.Close()
		again, lines, err := r.open(ctx, i, last)
		if err != nil {
			return err
		}
		conn = again
		_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
		before := last
		if last, _ = r.lines(i, lines, last, false); last > before {
			r.resumed.Add(1)
		}
		return err
	}
	if err := arrive(ctx, r.ready); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Now().Add(r.until))
	r.lines(i, lines, 0, true)
	return nil
}

// arrive waits until something has come, at most until ctx ends: one reader that fails ends
// all.
func arrive(ctx context.Context, something <-chan struct{}) error {
	select {
	case <-something:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lines reads events until the deadline, or until the server ends the stream. It returns
// the last event's id.
func (r *readers) lines(i int, lines *bufio.Reader, last int64, timed bool) (seq int64, cut bool) {
	for {
		line, err := lines.ReadSlice('\n')
		for err == bufio.ErrBufferFull { //nolint:errorlint // as the package says
			_, err = lines.ReadSlice('\n')
		}
		if timeout, ok := err.(net.Error); ok && timeout.Timeout() { //nolint:errorlint // of the connection itself
			return last, false
		}
		if err != nil {
			return last, true // it was cut, whatever the words
		}
		if id, ok := bytes.CutPrefix(line, []byte("id: ")); ok {
			n, err := strconv.ParseInt(string(bytes.TrimSpace(id)), 10, 64)
			if err != nil || n != last+1 {
				r.gaps.Add(1)
			}
			last = n
			continue
		}
		if timed && bytes.HasPrefix(line, []byte("data: ")) && bytes.Contains(line, []byte(`"kind":"rate_waited"`)) {
			if _, rest, ok := bytes.Cut(line, []byte(`"createTime":"`)); ok {
				text, _, _ := bytes.Cut(rest, []byte(`"`))
				if made, err := time.Parse(time.RFC3339Nano, string(text)); err == nil {
					r.latencies[i%len(r.latencies)].add(time.Since(made))
				}
			}
		}
	}
}
