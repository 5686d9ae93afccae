package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/loopd/loopd/internal/devpg"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// benchOptions are the flags of `loopd bench`.
type benchOptions struct {
	concurrency []int
	repeat      int
	runs        int
	iterations  []int
	groups      []int
	floor       string
	duration    time.Duration
	latency     time.Duration
	modelURL    string
	toolURL     string
	databaseURL string
	binDir      string
	cpuProfile  string
	memProfile  string
	json        bool
}

func benchCommand(env Env) *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use: "bench", Short: "Measure what this machine carries: database, model, tool and worker, all here", Args: cobra.NoArgs,
		Long: "Starts a whole loopd on a fresh Postgres, with a model server and a tool server beside it in the same\n" +
			"process, and creates runs over the API, so many at once. Each run calls the model ten times and,\n" +
			"after all answers but the last, a tool that returns 3,000 characters. Prints medians.\n\n" +
			"On a machine that does something else as well the figures are noise: compare what was measured in turns.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return bench(cmd.Context(), o, env)
		},
	}
	cmd.AddCommand(benchHistoryCommand(env))
	cmd.AddCommand(benchScaleCommands(env)...)
	f := cmd.Flags()
	f.IntSliceVar(&o.concurrency, "concurrency", []int{1, 16, 64, 256}, "runs at once, one row of the table each")
	f.IntVar(&o.repeat, "repeat", 3, "measure each row so often, in turns, and take medians")
	f.IntVar(&o.runs, "runs", 0, "end a measurement after so many runs; 0: only --duration ends it")
	f.IntSliceVar(&o.iterations, "iterations", []int{10}, "model calls of a run; several numbers measure all rows with each")
	f.IntSliceVar(&o.groups, "group", []int{0}, "appends of runs that may share a commit, 0: as loopd serve has it; \"0,1\" shows what sharing is good for")
	f.StringVar(&o.floor, "floor", "", "a program to measure beside loopd, see PERFORMANCE.md: a hand-written loop that is called with\n-mode grouprun -conc N -runs N -max TIME -db URL -pgset NAME=VALUE -reset, and has model and tool at "+benchFloorPeer)
	f.DurationVar(&o.duration, "duration", 5*time.Second, "create no more runs in a measurement after this time; 0: only --runs ends it")
	f.DurationVar(&o.latency, "model-latency", 0, "how long the model server takes to answer")
	f.StringVar(&o.modelURL, "model-url", "", "base URL of another model server, which speaks Chat Completions and calls the tool \"lookup\"; what is seen by the model is not measured then")
	f.StringVar(&o.toolURL, "tool-url", "", "URL of another tool server")
	f.StringVar(&o.databaseURL, "database-url", "", "an empty Postgres database to use, instead of a fresh server (LOOPD_DATABASE_URL does not count here)")
	f.StringVar(&o.binDir, "pg-bindir", env.Getenv("LOOPD_PG_BINDIR"), "Postgres binaries to use [LOOPD_PG_BINDIR]")
	f.StringVar(&o.cpuProfile, "cpuprofile", "", "write a CPU profile of all measurements to this file")
	f.StringVar(&o.memProfile, "memprofile", "", "write a profile of all allocations to this file")
	f.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	return cmd
}

// check names the first flag that makes no sense.
func (o benchOptions) check() error {
	switch {
	case len(o.concurrency) == 0 || slices.Min(o.concurrency) < 1:
		return usagef("--concurrency: use numbers of runs, 1 or more each")
	case o.repeat < 1:
		return usagef("--repeat is %d: use at least 1", o.repeat)
	case o.runs < 0 || o.duration < 0 || o.runs == 0 && o.duration == 0:
		return usagef("--runs %d and --duration %s: one of them must be more than 0, or the measurement has no end", o.runs, o.duration)
	case len(o.iterations) == 0 || slices.Min(o.iterations) < 2 || slices.Max(o.iterations) > 1000:
		return usagef("--iterations is %v: use 2 to 1000", o.iterations)
	case len(o.groups) == 0 || slices.Min(o.groups) < 0:
		return usagef("--group is %v: use 1 or more, or 0 for the usual", o.groups)
	case o.floor != "" && o.modelURL != "":
		return usagef("--floor and --model-url exclude each other: the floor's model and tool are the benchmark's own")
	case (o.modelURL == "") != (o.toolURL == ""):
		return usagef("--model-url and --tool-url go together: the model's answers name the tool's arguments")
	}
	return nil
}

// bench starts what is missing, and measures.
func bench(ctx context.Context, o benchOptions, env Env) (err error) {
	stop, err := o.openDatabase(ctx)
	if err != nil {
		return err
	}
	defer stop()
	var rows []benchCell
	for _, iterations := range o.iterations {
		for i, group := range o.groups {
			cells, err := o.under(ctx, benchSetting{iterations: iterations, group: group, floor: i == 0 && o.floor != ""}, env)
			if err != nil {
				return err
			}
			rows = append(rows, cells...)
		}
	}
	return printBench(env.Stdout, rows, o.json)
}

// benchSetting is what a whole daemon is measured under.
type benchSetting struct {
	iterations int
	group      int
	floor      bool // measure the floor beside it
}

// under measures all rows under one setting.
func (o benchOptions) under(ctx context.Context, set benchSetting, env Env) (rows []benchCell, err error) {
	address := "127.0.0.1:0"
	if o.floor != "" {
		address = benchFloorPeer
	}
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for the model and the tool: %w", err)
	}
	peer := newBenchPeer(set.iterations, o.latency)
	if o.modelURL == "" {
		o.askAt(lis)
	}
	d, err := newDaemon(ctx, o.config(set, env), env)
	if err != nil {
		return nil, err
	}
	d.beside = servePeer(lis, peer)
	err = d.run(ctx, func(ctx context.Context) error {
		rows, err = o.measure(ctx, set, d.grpcLis.Addr().String(), peer)
		return err
	})
	return rows, err
}

// openDatabase starts a Postgres, if none is given, and brings it to the newest schema.
// stop ends what it started.
func (o *benchOptions) openDatabase(ctx context.Context) (stop func(), err error) {
	stop = func() {}
	if o.databaseURL == "" {
		if stop, err = o.startPostgres(ctx); err != nil {
			return nil, err
		}
	}
	if err := postgres.Migrate(ctx, o.databaseURL); err != nil {
		stop()
		return nil, fmt.Errorf("migrate: %w", err)
	}
	return stop, nil
}

// askAt has the model and the tool asked at a listener.
func (o *benchOptions) askAt(lis net.Listener) {
	o.modelURL, o.toolURL = "http://"+lis.Addr().String()+"/v1", "http://"+lis.Addr().String()+"/tool"
}

// servePeer serves the model and the tool until ctx ends.
func servePeer(lis net.Listener, peer http.Handler) func(ctx context.Context) error {
	peers := &http.Server{Handler: peer, ReadHeaderTimeout: 5 * time.Second}
	return func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() { _ = peers.Close() })
		defer stop()
		return closedIsFine(peers.Serve(lis))
	}
}

// startPostgres runs a server in a directory of its own, and sets its URL. stop ends it
// and removes the directory.
func (o *benchOptions) startPostgres(ctx context.Context) (stop func(), err error) {
	dir, err := os.MkdirTemp("", "loopd-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for Postgres: %w", err)
	}
	// Root's server runs as another user, who must get to its data.
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // nobody can list it, and the data in it is its owner's
		return nil, fmt.Errorf("open the directory for Postgres: %w", err)
	}
	// As durable as by default; but no checkpoint falls into a measurement.
	settings := map[string]string{"checkpoint_timeout": "30min", "max_wal_size": "16GB", "shared_buffers": "512MB"}
	pg, err := devpg.Start(ctx, devpg.Config{DataDir: dir, BinDir: o.binDir, Settings: settings})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	o.databaseURL = pg.URL()
	return func() {
		_ = pg.Stop(context.WithoutCancel(ctx)) // nobody needs what it holds
		_ = os.RemoveAll(dir)
	}, nil
}

// config is that of a daemon with its defaults, on free ports and with no other provider
// than the model server.
func (o *benchOptions) config(set benchSetting, env Env) config {
	var c config
	quiet := env
	quiet.Getenv = func(name string) string {
		if name == "LOOPD_OPENAI_API_KEY" {
			return "bench"
		}
		return ""
	}
	c.flags(pflag.NewFlagSet("bench", pflag.ContinueOnError), quiet)
	c.httpAddr, c.grpcAddr, c.adminAddr = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	c.databaseURL, c.openaiURL, c.privateNets = o.databaseURL, o.modelURL, true
	c.maxRuns = max(c.maxRuns, slices.Max(o.concurrency))
	c.maxGroup, c.ceilings = set.group, loop.Ceilings()
	c.ceilings.Iterations = max(c.ceilings.Iterations, set.iterations+1)
	c.ceilings.ModelCalls = max(c.ceilings.ModelCalls, set.iterations+1)
	c.ceilings.ToolCalls = max(c.ceilings.ToolCalls, set.iterations)
	c.ceilings.TotalTokens = benchTokens
	c.logFormat, c.logLevel = "text", "warn"
	return c
}

// profile writes the profiles that were asked for, around what is measured.
func (o *benchOptions) profile(measure func() error) (err error) {
	if o.cpuProfile != "" {
		f, err := os.Create(o.cpuProfile)
		if err != nil {
			return usagef("--cpuprofile: %w", err)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		if err := pprof.StartCPUProfile(f); err != nil {
			return fmt.Errorf("start the CPU profile: %w", err)
		}
		defer pprof.StopCPUProfile()
	}
	if err := measure(); err != nil || o.memProfile == "" {
		return err
	}
	f, err := os.Create(o.memProfile)
	if err != nil {
		return usagef("--memprofile: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	runtime.GC()
	return pprof.Lookup("allocs").WriteTo(f, 0)
}
