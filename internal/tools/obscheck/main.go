// Command obscheck tries loopd's dashboards and alerts against the real thing: loopd
// itself, Prometheus and Alertmanager as Debian packages them, on ports of its own.
//
//	obscheck dashboards   lives through a scripted day, then evaluates every panel
//	obscheck alerts       breaks things until every alert was seen at Alertmanager
//
// It needs bin/loopd, the binaries of Postgres, and prometheus and
// prometheus-alertmanager in PATH.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// settings are what the command line says.
type settings struct {
	loopd  string        // binary
	deploy string        // directory of the rules and dashboards
	dir    string        // where everything keeps its files; empty: a temporary one that is removed
	data   string        // file for what the panels returned
	length time.Duration // of the scripted day
}

func main() {
	var s settings
	flags := flag.NewFlagSet("obscheck", flag.ExitOnError)
	flags.StringVar(&s.loopd, "loopd", "bin/loopd", "binary to try")
	flags.StringVar(&s.deploy, "deploy", "deploy", "directory with prometheus and grafana")
	flags.StringVar(&s.dir, "dir", "", "where to keep logs and databases, which stay then; default: a temporary directory")
	flags.StringVar(&s.data, "data", "", "file to write what the panels returned to, for pictures")
	flags.DurationVar(&s.length, "length", 2*time.Minute, "length of the scripted day")
	flags.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: obscheck dashboards|alerts [flags]")
		flags.PrintDefaults()
	}
	if len(os.Args) < 2 {
		flags.Usage()
		os.Exit(2)
	}
	_ = flags.Parse(os.Args[2:])
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := check(ctx, os.Args[1], s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "obscheck:", err)
		os.Exit(1)
	}
}

func check(ctx context.Context, what string, s settings) (err error) {
	run, ok := map[string]func(context.Context, *world, settings) error{"dashboards": checkDashboards, "alerts": checkAlerts}[what]
	if !ok {
		return fmt.Errorf("%q is nothing to check: use dashboards or alerts", what)
	}
	if s.dir == "" {
		if s.dir, err = os.MkdirTemp("", "loopd-obscheck-"); err != nil {
			return fmt.Errorf("make a directory: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	}
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return fmt.Errorf("find %s: %w", s.dir, err)
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil { // Postgres, another user, lives below
		return fmt.Errorf("make %s: %w", s.dir, err)
	}
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return fmt.Errorf("open %s to postgres: %w", s.dir, err)
	}
	w, err := newWorld(ctx, s)
	if err != nil {
		return errors.Join(err, w.close())
	}
	return errors.Join(run(ctx, w, s), w.close())
}
