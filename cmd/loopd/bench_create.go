package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// benchScaleCommands measure what a whole loopd carries besides iterations.
func benchScaleCommands(env Env) []*cobra.Command {
	return []*cobra.Command{benchCreate(env), benchStart(env), benchNoisy(env), benchStreams(env), benchReaders(env), benchReplicas(env), benchFlight(env), benchIdle(env)}
}

func benchCreate(env Env) *cobra.Command {
	var rate float64
	var most time.Duration
	cmd := &cobra.Command{
		Use: "create", Short: "Measure how long it takes until a new run is acknowledged, at a fixed rate", Args: cobra.NoArgs,
		Long: "Creates runs over gRPC, each with a request id, at a fixed rate whatever the answers take. A worker\n" +
			"takes the first 256, whose model never answers; the others queue.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			never := func(c *config) { c.fairness.queueAge = 0 } // the queue is meant to grow
			return onBenchBed(cmd.Context(), env, time.Hour, never, func(ctx context.Context, b *benchBed) error {
				return b.measureCreates(ctx, rate, most, env)
			})
		},
	}
	cmd.Flags().Float64Var(&rate, "rate", 500, "creates a second")
	cmd.Flags().DurationVar(&most, "duration", 10*time.Second, "how long")
	return cmd
}

func (b *benchBed) measureCreates(ctx context.Context, rate float64, most time.Duration, env Env) error {
	var took, refused durations
	create := func(ctx context.Context, due time.Time) error {
		_, err := b.create(ctx, false)
		switch {
		case err == nil:
			took.add(time.Since(due))
		case status.Code(err) == codes.Unavailable: // shed
			refused.add(time.Since(due))
		default:
			return fmt.Errorf("create a run: %w", err)
		}
		return nil
	}
	if err := pace(ctx, 100, 2*time.Second, create); err != nil { // warm
		return err
	}
	took.take()
	refused.take()
	began := time.Now()
	if err := pace(ctx, rate, most, create); err != nil {
		return err
	}
	all := took.take()
	achieved := float64(len(all)) / time.Since(began).Seconds()
	p50, p99 := percentiles(all)
	return table(env.Stdout, [][]string{
		{"ASKED/S", "ACKNOWLEDGED/S", "RUNS", "SHED", "CREATE MS P50", "P99"},
		{fmt.Sprintf("%.0f", rate), fmt.Sprintf("%.0f", achieved), strconv.Itoa(len(all)), strconv.Itoa(len(refused.take())), fmt.Sprintf("%.1f", p50), fmt.Sprintf("%.1f", p99)},
	})
}

func benchStart(env Env) *cobra.Command {
	var rate float64
	var most time.Duration
	cmd := &cobra.Command{
		Use: "start", Short: "Measure how long an idle loopd takes from a create to the model call", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onBenchBed(cmd.Context(), env, 0, func(*config) {}, func(ctx context.Context, b *benchBed) error {
				create := func(ctx context.Context, _ time.Time) error {
					_, err := b.create(ctx, true)
					return err
				}
				if err := pace(ctx, rate, 2*time.Second, create); err != nil { // warm
					return err
				}
				b.peer.take()
				if err := pace(ctx, rate, most, create); err != nil {
					return err
				}
				if err := linger(ctx, time.Second); err != nil { // the last ones start
					return err
				}
				_, starts := b.peer.take()
				p50, p99 := percentiles(starts)
				return table(env.Stdout, [][]string{
					{"RUNS", "START MS P50", "P99"}, {strconv.Itoa(len(starts)), fmt.Sprintf("%.1f", p50), fmt.Sprintf("%.1f", p99)},
				})
			})
		},
	}
	cmd.Flags().Float64Var(&rate, "rate", 10, "runs a second")
	cmd.Flags().DurationVar(&most, "duration", 10*time.Second, "how long")
	return cmd
}

// noisyOptions are the flags of `loopd bench noisy`.
type noisyOptions struct {
	slots, quota, queue, creates int
	latency, most                time.Duration
	times, quiet                 float64
}

func benchNoisy(env Env) *cobra.Command {
	var o noisyOptions
	cmd := &cobra.Command{
		Use: "noisy", Short: "Measure what a tenant that asks for ten times its quota does to another", Args: cobra.NoArgs,
		Long: "Tenant B starts a few runs a second, alone and then beside tenant A, which asks for --times as many\n" +
			"as its quota lets it drive. Prints how long B's runs take from the create to the model call.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			bound := func(c *config) {
				c.maxRuns, c.fairness.tenantRuns, c.fairness.tenantQueued, c.fairness.tenantCreates = o.slots, o.quota, o.queue, o.creates
			}
			return onBenchBed(cmd.Context(), env, o.latency, bound, func(ctx context.Context, b *benchBed) error { return b.measureNoise(ctx, o, env) })
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.slots, "max-runs", 64, "runs that the worker drives at once")
	f.IntVar(&o.quota, "tenant-max-runs", 32, "those of one tenant; 0: no bound")
	f.IntVar(&o.queue, "tenant-max-queued", 100, "runs of one tenant that may wait")
	f.IntVar(&o.creates, "tenant-max-creates", 64, "new runs of one tenant that are taken a second, twice what it can drive; 0: no bound")
	f.DurationVar(&o.latency, "model-latency", time.Second, "how long a run lasts")
	f.DurationVar(&o.most, "duration", 15*time.Second, "how long each half takes")
	f.Float64Var(&o.times, "times", 10, "how many times its quota tenant A asks for")
	f.Float64Var(&o.quiet, "rate", 5, "runs a second of tenant B")
	return cmd
}

// noisyWarmUp is how long both tenants run before they are measured.
const noisyWarmUp = 3 * time.Second

func (b *benchBed) measureNoise(ctx context.Context, o noisyOptions, env Env) error {
	first, err := b.create(ctx, false)
	if err != nil {
		return fmt.Errorf("create a run: %w", err)
	}
	spec, err := b.d.store.GetSpec(ctx, loop.RunRef{Tenant: "default", ID: first.GetName()[len("runs/"):]})
	if err != nil {
		return err
	}
	quietFor := func(most time.Duration) func(context.Context) error {
		return func(ctx context.Context) error {
			return pace(ctx, o.quiet, most, func(ctx context.Context, _ time.Time) error { return b.createFor(ctx, "quiet", spec) })
		}
	}
	var accepted, refused durations
	asked := o.times * float64(max(o.quota, 1)) / max(o.latency.Seconds(), 0.001)
	noise := func(ctx context.Context) error {
		return pace(ctx, asked, time.Hour, func(ctx context.Context, due time.Time) error {
			_, err := b.create(ctx, false)
			switch {
			case err == nil:
				accepted.add(time.Since(due))
			case status.Code(err) == codes.ResourceExhausted || status.Code(err) == codes.Unavailable:
				refused.add(time.Since(due))
			case ctx.Err() == nil:
				return err
			}
			return nil
		})
	}
	// Warm: a first burst opens connections, on which each statement is planned anew. What it
	// has queued is done before anything is measured.
	if err := beside(ctx, noise, quietFor(noisyWarmUp)); err != nil {
		return err
	}
	if err := linger(ctx, noisyWarmUp+time.Duration(o.queue/max(o.quota, 1)+1)*o.latency); err != nil {
		return err
	}
	b.peer.take()
	if err := quietFor(o.most)(ctx); err != nil {
		return err
	}
	if err := linger(ctx, time.Second); err != nil {
		return err
	}
	_, alone := b.peer.take()

	accepted.take()
	refused.take()
	began := time.Now()
	if err := beside(ctx, noise, quietFor(o.most)); err != nil {
		return err
	}
	slow := b.peer.slowest(8, began)
	_, near := b.peer.take()
	row := func(name string, starts []time.Duration) []string {
		p50, p99 := percentiles(starts)
		return []string{name, strconv.Itoa(len(starts)), fmt.Sprintf("%.1f", p50), fmt.Sprintf("%.1f", p99)}
	}
	if err := table(env.Stdout, [][]string{{"TENANT B", "RUNS", "START MS P50", "P99"}, row("alone", alone), row("beside A", near)}); err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Stdout, "A asked for %.0f/s: %d accepted, %d refused. B's slowest starts beside A, and when they were asked for: %s\n",
		asked, len(accepted.take()), len(refused.take()), strings.Join(slow, ", "))
	return err
}

// createFor creates a run of a tenant, past the API, which knows one tenant only.
func (b *benchBed) createFor(ctx context.Context, tenant string, spec loop.Spec) error {
	id := strconv.FormatInt(b.next.Add(1), 10)
	b.peer.expect(id)
	spec.Input = "run=" + id + " find what the order needs"
	fresh, err := newRunID()
	if err != nil {
		return err
	}
	_, _, err = b.d.store.CreateRun(ctx, loop.RunRef{Tenant: tenant, ID: fresh}, spec, postgres.Idempotency{})
	return err
}
