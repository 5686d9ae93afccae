package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/loopd/loopd/internal/demo"
	"github.com/loopd/loopd/internal/devpg"
	"github.com/loopd/loopd/internal/postgres"
	"github.com/loopd/loopd/internal/telemetry"
)

// devOptions are the flags that only `loopd dev` has.
type devOptions struct {
	demo    bool
	once    bool
	dataDir string
	binDir  string
}

func devCommand(env Env) *cobra.Command {
	var c config
	var o devOptions
	cmd := &cobra.Command{
		Use: "dev", Short: "Start everything on this machine: database, scripted model, API", Args: cobra.NoArgs,
		Long: "Starts loopd for development. Without LOOPD_DATABASE_URL it runs a private Postgres from the\n" +
			"binaries installed on this machine, in a directory that survives restarts. Not for production.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.once && !o.demo {
				return usagef("--once ends when the demo's runs have ended: add --demo")
			}
			return dev(cmd.Context(), c, o, env)
		},
	}
	c.flags(cmd.Flags(), env)
	_ = cmd.Flags().Set("log-format", firstOf(env.Getenv("LOOPD_LOG_FORMAT"), "text"))
	_ = cmd.Flags().Set("log-level", firstOf(env.Getenv("LOOPD_LOG_LEVEL"), "warn"))
	cmd.Flags().BoolVar(&o.demo, "demo", false, "register the demo's agents and start its runs")
	cmd.Flags().BoolVar(&o.once, "once", false, "with --demo: approve what waits, and exit when the runs have ended, 0 if as they should")
	cmd.Flags().StringVar(&o.dataDir, "data-dir", firstOf(env.Getenv("LOOPD_DATA_DIR"), devpg.DefaultDataDir(os.Geteuid(), env.Getenv)), "where the private Postgres keeps its data [LOOPD_DATA_DIR]")
	cmd.Flags().StringVar(&o.binDir, "pg-bindir", env.Getenv("LOOPD_PG_BINDIR"), "Postgres binaries to use [LOOPD_PG_BINDIR]")
	return cmd
}

// dev starts what is missing, then runs the daemon on it.
func dev(ctx context.Context, c config, o devOptions, env Env) (err error) {
	if err := c.complete(); err != nil {
		return err
	}
	c.privateNets = true // a developer's tools are on the developer's machine
	c.commands = true
	c.scripted = demo.Script
	if c.databaseURL == "" {
		pg, err := startPostgres(ctx, c, o, env)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, pg.Stop(context.WithoutCancel(ctx))) }()
		c.databaseURL = pg.URL()
	}
	if err := postgres.Migrate(ctx, firstOf(c.directURL, c.databaseURL)); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	d, err := newDaemon(ctx, c, env)
	if err != nil {
		return err
	}
	fmt.Fprintf(env.Stderr, "loopd dev, not for production\n  REST     http://%s/v1/runs\n  gRPC     %s\n  metrics  http://%s/metrics\n  psql     %s\n\n",
		d.httpLis.Addr(), d.grpcLis.Addr(), d.adminLis.Addr(), "psql '"+c.databaseURL+"'")
	if !o.demo {
		return d.run(ctx, nil)
	}
	return d.runDemo(ctx, o.once, env)
}

func startPostgres(ctx context.Context, c config, o devOptions, env Env) (*devpg.Server, error) {
	log, err := telemetry.Logger(env.Stderr, c.logFormat, c.logLevel)
	if err != nil {
		return nil, usagef("%w", err)
	}
	fmt.Fprintf(env.Stderr, "starting a private Postgres in %s ...\n", o.dataDir)
	return devpg.Start(ctx, devpg.Config{DataDir: o.dataDir, BinDir: o.binDir, Log: log})
}

// runDemo serves the demo's tools beside the daemon and plays the demo on it.
// With once it ends when the runs have ended; else it serves on until ctx ends.
func (d *daemon) runDemo(ctx context.Context, once bool, env Env) error {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the demo's tools: %w", err)
	}
	shop := demo.NewShop()
	tools := &http.Server{Handler: shop, ReadHeaderTimeout: 5 * time.Second}
	d.beside = func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() { _ = tools.Close() })
		defer stop()
		return closedIsFine(tools.Serve(lis))
	}
	return d.run(ctx, func(ctx context.Context) error {
		err := playDemo(ctx, d.grpcLis.Addr().String(), "http://"+lis.Addr().String(), shop, once, env)
		if once || ctx.Err() != nil {
			return err
		}
		if err != nil {
			fmt.Fprintln(env.Stderr, "demo:", err)
		}
		fmt.Fprintln(env.Stderr, "\nserving on; Ctrl-C ends")
		<-ctx.Done()
		return nil
	})
}
