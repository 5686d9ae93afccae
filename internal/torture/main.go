package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// settings are what the command line says.
type settings struct {
	seed     uint64
	duration time.Duration
	quiet    time.Duration
	runs     int
	replicas int
	loopd    string
	faults   string
	dir      string
	keep     bool
	verbose  bool
	previous string // see upgrade.go
	cluster  string // see cluster.go
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout)
	stop()
	os.Exit(code)
}

// run returns the exit code: 0 all invariants hold, 1 one does not, 2 the machine
// itself failed.
func run(ctx context.Context, args []string, out io.Writer) int {
	s, err := readSettings(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil {
		var violations []string
		if violations, err = torture(ctx, s, out); err == nil {
			return min(len(violations), 1)
		}
	}
	fmt.Fprintln(out, "loopd-torture:", err)
	return 2
}

func readSettings(args []string) (settings, error) {
	var s settings
	f := flag.NewFlagSet("loopd-torture", flag.ContinueOnError)
	f.Uint64Var(&s.seed, "seed", 0, "draws plans and faults; 0: a fresh one, which is printed")
	f.DurationVar(&s.duration, "duration", 5*time.Minute, "how long runs are made and things are broken")
	f.DurationVar(&s.quiet, "quiet", 2*time.Minute, "how long runs may take to end after everything has healed")
	f.IntVar(&s.runs, "runs", 0, "runs to make, evenly over the duration; 0: six in five seconds")
	f.IntVar(&s.replicas, "replicas", 3, "loopd processes")
	f.StringVar(&s.loopd, "loopd", "bin/loopd", "the loopd binary to torture")
	f.StringVar(&s.faults, "faults", "all", "kinds of faults, comma-separated, or all, or none")
	f.StringVar(&s.dir, "dir", "", "where to keep the database, ledgers and logs; default: a temporary directory")
	f.BoolVar(&s.keep, "keep", false, "leave the directory; it is left anyway when an invariant does not hold")
	f.BoolVar(&s.verbose, "verbose", false, "tell every fault as it happens")
	s.planFlags(f)
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if s.seed == 0 {
		s.seed = rand.Uint64()
	}
	if s.runs == 0 {
		s.runs = max(1, int(1.2*s.duration.Seconds()))
	}
	if s.replicas < 1 || s.runs < 1 || s.duration <= 0 {
		return s, errors.New("--replicas, --runs and --duration must be above 0")
	}
	return s, s.planned()
}

// torture runs the whole: break, heal, check, report.
func torture(ctx context.Context, s settings, out io.Writer) (violations []string, err error) {
	level := slog.LevelWarn
	if s.verbose {
		level = slog.LevelInfo
	}
	w, err := newWorld(ctx, s, slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level})))
	if err != nil {
		w.close(context.WithoutCancel(ctx))
		return nil, err
	}
	fmt.Fprintf(out, "seed %d: %s, %d runs, %d replicas, faults: %s; data in %s\n", s.seed, s.duration, s.runs, s.replicas, s.faults, w.dir)
	defer func() {
		w.close(context.WithoutCancel(ctx))
		if err == nil && len(violations) == 0 && !s.keep {
			err = os.RemoveAll(w.dir)
		}
	}()
	began := time.Now()
	late, err := w.suffer(ctx, s)
	if err != nil {
		return nil, err
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, fmt.Errorf("cut off after %s, so that no verdict can be given: %w; data in %s", time.Since(began).Round(time.Second), cause, w.dir)
	}
	fmt.Fprintf(out, "quiet after %s\n", time.Since(began).Round(time.Second))
	w.halt(context.WithoutCancel(ctx))
	violations, err = w.check(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	violations = append(late, violations...)
	w.report(context.WithoutCancel(ctx), out)
	for _, v := range violations {
		fmt.Fprintln(out, "VIOLATION", v)
	}
	if len(violations) > 0 {
		fmt.Fprintf(out, "seed %d: %d violations; everything is in %s\n", s.seed, len(violations), w.dir)
	} else {
		fmt.Fprintf(out, "seed %d: all invariants hold\n", s.seed)
	}
	return violations, nil
}
