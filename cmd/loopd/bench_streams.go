package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

func newRunID() (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("make a run id: %w", err)
	}
	return id.String(), nil
}

// streamOptions are the flags of `loopd bench streams`.
type streamOptions struct {
	readers, slow, runs int
	rate                float64
	most                time.Duration
}

func benchStreams(env Env) *cobra.Command {
	var o streamOptions
	cmd := &cobra.Command{
		Use: "streams", Short: "Measure many readers of event streams on one replica, some of whom do not read", Args: cobra.NoArgs,
		Long: "Readers are in a process of their own, since each connection takes a file descriptor on both sides.\n" +
			"Events are those of runs that this process plays, 1 KB each. Prints how long events take from their\n" +
			"making to a reader (the commit included), what became of slow readers, and the memory of this process.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			one := func(c *config) { c.maxRuns = 1 } // and that one is busy: the other runs are played here
			return onBenchBed(cmd.Context(), env, time.Hour, one, func(ctx context.Context, b *benchBed) error { return b.measureStreams(ctx, o, env) })
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.readers, "readers", 10000, "open event streams")
	f.IntVar(&o.slow, "slow", 1000, "those of them that do not read until the end")
	f.IntVar(&o.runs, "runs", 100, "runs that are followed")
	f.Float64Var(&o.rate, "rate", 200, "events a second, of all runs together")
	f.DurationVar(&o.most, "duration", 30*time.Second, "how long, once all are there")
	return cmd
}

// played is a run whose worker is the benchmark.
type played struct {
	lease loop.Lease
	state *loop.State
}

// append records facts, as the engine does.
func (p *played) append(ctx context.Context, store *postgres.Store, bodies ...loop.Body) error {
	var batch postgres.Batch
	for _, body := range bodies {
		e := loop.Event{Seq: p.state.Seq() + 1, At: time.Now().UTC(), Epoch: p.lease.Epoch, Body: body}
		if err := p.state.Apply(e); err != nil {
			return err
		}
		batch.Events = append(batch.Events, e)
		if _, last := body.(loop.Finished); last {
			batch.Release = true
		}
	}
	batch.Head = p.state.Head()
	return store.Append(ctx, p.lease, batch)
}

// play creates and claims the runs.
func (b *benchBed) play(ctx context.Context, n int) ([]*played, error) {
	if _, err := b.create(ctx, false); err != nil { // the engine's only one
		return nil, err
	}
	const worker = "bench"
	for b.d.cfg.maxRuns > 0 { // until the engine has it
		counts, err := b.d.store.CountRuns(ctx)
		if err != nil {
			return nil, err
		}
		if counts[loop.StateRunning] == 1 {
			break
		}
		if err := linger(ctx, 10*time.Millisecond); err != nil {
			return nil, err
		}
	}
	for range n {
		if _, err := b.create(ctx, false); err != nil {
			return nil, err
		}
	}
	if err := b.d.store.Renew(ctx, worker, time.Hour); err != nil {
		return nil, err
	}
	var runs []*played
	for len(runs) < n {
		leases, err := b.d.store.Claim(ctx, worker, n)
		if err != nil || len(leases) == 0 {
			return nil, fmt.Errorf("%w: claimed %d of %d runs: %w", errBench, len(runs), n, err)
		}
		for _, lease := range leases {
			events, err := b.d.store.Events(ctx, lease.Run, 0, 10)
			if err != nil {
				return nil, err
			}
			state, err := loop.Fold(lease.Run, events)
			if err != nil {
				return nil, err
			}
			p := &played{lease: lease, state: state}
			if err := p.append(ctx, b.d.store, loop.Claimed{Attempt: 1, Worker: worker}); err != nil {
				return nil, err
			}
			runs = append(runs, p)
		}
	}
	return runs, nil
}

func (b *benchBed) measureStreams(ctx context.Context, o streamOptions, env Env) error {
	runs, err := b.play(ctx, o.runs)
	if err != nil {
		return err
	}
	before := residentMB()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	names := make([]string, len(runs))
	for i, p := range runs {
		names[i] = p.lease.Run.ID
	}
	client := exec.CommandContext(ctx, self, "bench", "stream-readers", "--server", b.d.httpLis.Addr().String(), //nolint:gosec // itself
		"--readers", strconv.Itoa(o.readers), "--slow", strconv.Itoa(o.slow), "--until", o.most.String())
	var out bytes.Buffer
	client.Stdin, client.Stdout, client.Stderr = strings.NewReader(strings.Join(names, "\n")), &out, env.Stderr
	var peak atomic.Int64
	var sent atomic.Int64
	err = beside(ctx, func(ctx context.Context) error {
		return b.chatter(ctx, o, runs, &sent, &peak)
	}, func(context.Context) error { return client.Run() })
	if err != nil {
		return err
	}
	var got readersReport
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		return fmt.Errorf("what the readers report, %q: %w", out.String(), err)
	}
	return table(env.Stdout, [][]string{
		{"READERS", "RUNS", "EVENTS SENT", "RECEIVED", "FAN-OUT MS P50", "P99", "SLOW", "CUT", "RESUMED", "GAPS", "SHED OPENS", "MB BEFORE", "MB PEAK", "KB/READER"},
		{
			strconv.Itoa(got.Opened), strconv.Itoa(o.runs), strconv.FormatInt(sent.Load(), 10), strconv.Itoa(got.Received),
			fmt.Sprintf("%.1f", got.P50), fmt.Sprintf("%.1f", got.P99), strconv.Itoa(o.slow), strconv.Itoa(got.Cut), strconv.Itoa(got.Resumed), strconv.Itoa(got.Gaps), strconv.Itoa(got.Shed),
			strconv.FormatInt(before, 10), strconv.FormatInt(peak.Load(), 10), fmt.Sprintf("%.1f", float64(peak.Load()-before)*1024/float64(max(got.Opened, 1))),
		},
	})
}

// chatter appends events to the runs in turn, once all readers are there, until ctx ends.
func (b *benchBed) chatter(ctx context.Context, o streamOptions, runs []*played, sent, peak *atomic.Int64) error {
	filler := strings.Repeat("x", 900)
	var n int
	for ctx.Err() == nil && b.openStreams() < o.readers {
		_ = linger(ctx, 100*time.Millisecond) // the loop sees the end of ctx
	}
	began := time.Now()
	for ctx.Err() == nil {
		p := runs[n%len(runs)]
		if err := p.append(ctx, b.d.store, loop.RateWaited{Provider: filler}); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // it was to end
			}
			return err
		}
		n++
		sent.Store(int64(n))
		if n%int(o.rate) == 0 {
			peak.Store(max(peak.Load(), residentMB()))
		}
		_ = linger(ctx, time.Until(began.Add(time.Duration(float64(n)/o.rate*float64(time.Second)))))
	}
	return nil
}

// openStreams is how many streams the server has.
func (b *benchBed) openStreams() int {
	families, err := b.d.registry.Gather()
	if err != nil {
		return 0
	}
	for _, family := range families {
		if family.GetName() == "loopd_sse_streams" {
			return int(family.GetMetric()[0].GetGauge().GetValue())
		}
	}
	return 0
}

// residentMB is the memory of this process, 0 where it cannot be read.
func residentMB() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kb, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, err := strconv.ParseInt(kb, 10, 64)
	if err != nil {
		return 0
	}
	return n / 1024
}
