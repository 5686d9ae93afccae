package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// replicaOptions are the flags of `loopd bench replicas`.
type replicaOptions struct {
	benchOptions

	replicas []int
	atOnce   int
	cores    float64
	depth    int // model calls of a run
}

func benchReplicas(env Env) *cobra.Command {
	var o replicaOptions
	cmd := &cobra.Command{
		Use: "replicas", Short: "Measure replicas side by side on one Postgres", Args: cobra.NoArgs,
		Long: "Starts so many `loopd serve` processes on one Postgres, with the model, the tool and the client in this\n" +
			"process, and keeps so many runs in flight; each call of the API goes to the next replica. CPU is that of\n" +
			"all replicas together. With --cores each replica gets only so much CPU (by a control group, as root), so\n" +
			"that they add up as on machines of their own, as long as Postgres is not the bound.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return o.measureAll(cmd.Context(), env)
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&o.replicas, "replicas", []int{1, 2, 3}, "processes, one row of the table each")
	f.IntVar(&o.atOnce, "concurrency", 64, "runs at once, on all replicas together")
	f.IntVar(&o.depth, "iterations", 10, "model calls of a run")
	f.Float64Var(&o.cores, "cores", 0, "cores of each replica, such as 0.25; 0: no bound")
	f.DurationVar(&o.duration, "duration", 8*time.Second, "create no more runs in a measurement after this time")
	f.IntVar(&o.runs, "runs", 0, "end a measurement after so many runs; 0: only --duration ends it")
	f.StringVar(&o.databaseURL, "database-url", "", "an empty Postgres database to use, instead of a fresh server")
	f.StringVar(&o.binDir, "pg-bindir", env.Getenv("LOOPD_PG_BINDIR"), "Postgres binaries to use [LOOPD_PG_BINDIR]")
	return cmd
}

// benchMostIterations is what a run of a replica, which has its default ceilings, may have.
const benchMostIterations = 19

// check names the first flag that makes no sense.
func (o replicaOptions) check() error {
	switch {
	case len(o.replicas) == 0 || slices.Min(o.replicas) < 1:
		return usagef("--replicas is %v: use numbers of processes, 1 or more each", o.replicas)
	case o.atOnce < 1:
		return usagef("--concurrency is %d: use at least 1", o.atOnce)
	case o.depth < 2 || o.depth > benchMostIterations:
		return usagef("--iterations is %d: use 2 to %d", o.depth, benchMostIterations)
	case o.cores < 0 || o.cores > float64(runtime.NumCPU()):
		return usagef("--cores is %g: use a part of the %d cores that are here, or 0 for no bound", o.cores, runtime.NumCPU())
	case o.runs < 0 || o.duration < 0 || o.runs == 0 && o.duration == 0:
		return usagef("--runs %d and --duration %s: one of them must be more than 0, or the measurement has no end", o.runs, o.duration)
	}
	return nil
}

// measureAll starts what replicas need, and prints a row for each number of them.
func (o *replicaOptions) measureAll(ctx context.Context, env Env) error {
	peer := newBenchPeer(o.depth, 0)
	return o.onBenchGround(ctx, peer, func(ctx context.Context) error {
		lines := [][]string{{
			"REPLICAS", "CORES EACH", "AT ONCE", "RUNS", "IT/S", "OVERHEAD MS P50/P99", "CPU S/1000 IT", "POSTGRES", "CLIENT", "CORES USED", "POSTGRES",
			"COMMITS/RUN", "CONNECTIONS", "RUNS DRIVEN BY EACH",
		}}
		for _, n := range o.replicas {
			err := o.fleet().with(ctx, n, func(ctx context.Context, replicas []*benchChild) error {
				line, err := o.row(ctx, replicas, peer)
				lines = append(lines, line)
				return err
			})
			if err != nil {
				return err
			}
		}
		return table(env.Stdout, lines)
	})
}

func (o *benchOptions) fleet() benchFleet {
	return benchFleet{databaseURL: o.databaseURL, modelURL: o.modelURL}
}

func (o *replicaOptions) fleet() benchFleet {
	f := o.benchOptions.fleet()
	f.cores, f.args = o.cores, append(benchNeverSheds(), "--max-runs", strconv.Itoa(max(256, o.atOnce)))
	return f
}

// benchNeverSheds are the flags with which a replica that is saturated refuses nothing:
// what it carries is measured, not what it sends away.
func benchNeverSheds() []string { return []string{"--shed-pool-wait", "0", "--shed-queue-age", "0"} }

// onBenchGround starts a Postgres, if none is given, and a model and tool server, and calls
// do.
func (o *benchOptions) onBenchGround(ctx context.Context, peer http.Handler, do func(ctx context.Context) error) error {
	stop, err := o.openDatabase(ctx)
	if err != nil {
		return err
	}
	defer stop()
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the model and the tool: %w", err)
	}
	o.askAt(lis)
	return beside(ctx, servePeer(lis, peer), do)
}

// row measures replicas that serve.
func (o *replicaOptions) row(ctx context.Context, replicas []*benchChild, peer *benchPeer) ([]string, error) {
	set, calls := benchSetting{iterations: o.depth}, &spread{replicas: replicas}
	agent, err := registerFor(ctx, replicas[0], o.benchOptions, set)
	if err != nil {
		return nil, err
	}
	meter, err := newBenchMeter(ctx, o.databaseURL)
	if err != nil {
		return nil, err
	}
	defer meter.close(ctx)
	b := &benchClient{o: o.benchOptions, set: set, peer: peer, runs: loopdv1.NewRunServiceClient(calls), agent: agent, meter: meter}
	if err := b.warmUp(ctx, o.atOnce, len(replicas)); err != nil {
		return nil, err
	}
	before, driven := cpuOf(replicas), make([]string, len(replicas))
	was, err := drivenBy(ctx, replicas)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	cell, _, err := b.metered(ctx, o.atOnce, func() (int, []time.Duration, error) {
		creates, err := b.load(ctx, o.atOnce, o.runs, o.duration)
		return len(creates), creates, err
	})
	if err != nil {
		return nil, err
	}
	took, used := time.Since(began), cpuOf(replicas)-before
	is, err := drivenBy(ctx, replicas)
	if err != nil {
		return nil, err
	}
	for i := range driven {
		driven[i] = strconv.Itoa(is[i] - was[i])
	}
	connections, err := meter.connections(ctx)
	if err != nil {
		return nil, err
	}
	iterations := float64(max(1, cell.Runs*o.depth))
	return []string{
		strconv.Itoa(len(replicas)), figure(o.cores, 2), strconv.Itoa(o.atOnce), strconv.Itoa(cell.Runs), figure(cell.IterationsPerSecond, 0), pair(cell.OverheadP50, cell.OverheadP99),
		figure(used.Seconds()*1000/iterations, 2), figure(cell.CPUPostgres, 2), figure(cell.CPUProcess, 2),
		figure(used.Seconds()/took.Seconds(), 2), figure(cell.CPUPostgres*iterations/1000/took.Seconds(), 2),
		figure(cell.CommitsPerRun, 1), strconv.Itoa(connections), strings.Join(driven, " + "),
	}, nil
}

// registerFor registers the benchmark's agent under the ceilings of a `loopd serve`.
func registerFor(ctx context.Context, replica *benchChild, o benchOptions, set benchSetting) (name string, err error) {
	agent, err := benchAgent(o, set)
	if err != nil {
		return "", err
	}
	agent.Spec.Limits.MaxTotalTokens = new(int64(10_000_000)) // the ceiling
	if _, err := loopdv1.NewAgentServiceClient(replica.conn).UpdateAgent(ctx, &loopdv1.UpdateAgentRequest{Agent: agent, AllowMissing: true}); err != nil {
		return "", fmt.Errorf("register %s: %w", agent.GetName(), err)
	}
	return agent.GetName(), nil
}

// cpuOf is the CPU time of all replicas together.
func cpuOf(replicas []*benchChild) (sum time.Duration) {
	for _, r := range replicas {
		sum += r.cpu()
	}
	return sum
}

// drivenBy is how many runs each replica has taken since it began.
func drivenBy(ctx context.Context, replicas []*benchChild) ([]int, error) {
	runs := make([]int, len(replicas))
	for i, r := range replicas {
		series, err := r.metrics(ctx)
		if err != nil {
			return nil, err
		}
		runs[i] = int(series[acquired])
	}
	return runs, nil
}

// connections is how many clients Postgres has, besides the meter.
func (m *benchMeter) connections(ctx context.Context) (n int, err error) {
	const query = "SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'"
	if err := m.conn.QueryRow(ctx, query).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the connections of Postgres: %w", err)
	}
	return n, nil
}
