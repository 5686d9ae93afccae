package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/label"
	"github.com/loopd/loopd/internal/postgres"
	"github.com/loopd/loopd/internal/rule"
	"github.com/loopd/loopd/internal/server"
	"github.com/loopd/loopd/internal/telemetry"
	"github.com/loopd/loopd/internal/tool"
	"github.com/loopd/loopd/internal/tool/mcp"
)

func serveCommand(env Env) *cobra.Command {
	var c config
	cmd := &cobra.Command{
		Use: "serve", Short: "Serve the API and drive runs, on an existing Postgres", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.complete(); err != nil {
				return err
			}
			if c.databaseURL == "" {
				return usagef("there is no database: set LOOPD_DATABASE_URL or --database-url, or try loopd dev, which starts its own")
			}
			d, err := newDaemon(cmd.Context(), c, env)
			if err != nil {
				return err
			}
			return d.run(cmd.Context(), nil)
		},
	}
	c.flags(cmd.Flags(), env)
	return cmd
}

// daemon is a whole loopd: opened by newDaemon, served by run.
type daemon struct {
	cfg       config
	log       *slog.Logger
	registry  *prometheus.Registry
	store     *postgres.Store
	server    *server.Server
	engine    *engine.Engine
	deltas    *postgres.Deltas
	retention *postgres.Retention
	mcp       *mcp.Client
	admin     *http.Server
	flush     func(context.Context) error // of telemetry
	beside    func(context.Context) error // something to serve along, until its context ends; may be nil

	grpcLis, httpLis, adminLis net.Listener
}

// newDaemon opens everything in dependency order. It serves nothing yet. What it
// opened before a failure ends with the process.
func newDaemon(ctx context.Context, c config, env Env) (*daemon, error) {
	d := &daemon{cfg: c, registry: prometheus.NewRegistry()}
	var err error
	if d.log, err = telemetry.Logger(env.Stderr, c.logFormat, c.logLevel); err != nil {
		return nil, usagef("%w", err)
	}
	d.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	content, err := c.captured()
	if err != nil {
		return nil, usagef("%w", err)
	}
	tracer, flush, err := telemetry.Tracer(ctx, c.otlp, version, engine.SpanIDs{})
	if err != nil {
		return nil, err
	}
	d.flush = flush
	labels, worker := label.NewSet(d.registry, c.tenants), uuid.NewString()
	if d.store, err = postgres.Open(ctx, postgres.Config{URL: c.databaseURL, DirectURL: c.directURL, MaxGroup: c.maxGroup, Log: d.log, Registerer: d.registry}); err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	opened, err := openProviders(c)
	if err != nil {
		return nil, err
	}
	book, err := openPrices(c, opened.prices)
	if err != nil {
		return nil, err
	}
	reach := tool.Config{Secrets: toolSecrets(c), AllowPrivate: c.privateNets, AllowHosts: c.toolHosts, Log: d.log}
	tools := tool.New(reach)
	d.mcp = mcp.New(mcp.Config{Transport: reach.Transport(), Secrets: reach.Secrets, AllowCommands: c.commands, Log: d.log})
	box := toolbox{tools, d.mcp, d.store, d.store}
	judge, err := rule.New()
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	d.server, err = server.New(server.Config{
		Store: d.store, Prices: book.Price, ValidateTool: validateTool, ValidateSchema: tool.ValidateSchema,
		ValidateArguments: tools.Problem, ValidateRule: rule.Compile, ValidateAssertion: rule.CompileAssertion, Builtin: tool.Builtin,
		ImportOpenAPI: importOpenAPI, ListMCPTools: listMCPTools(d.mcp), CallTool: box.callOnce,
		Models: book.Models, Ceilings: c.ceilings,
		Shed:          c.fairness.shed(),
		ProviderKnown: func(name string) bool { return opened.models[name] != nil },
		Retention:     c.keep,
		Alive:         func() error { return d.engine.Alive() }, Conditions: func() []server.Condition { return d.conditions(tools) },
		Log: d.log, Registerer: d.registry, Labels: labels,
	})
	if err != nil {
		return nil, err
	}
	if d.retention, err = openRetention(d); err != nil {
		return nil, err
	}
	d.deltas = postgres.NewDeltas(d.store)
	d.engine, err = engine.New(engine.Config{
		Journal: ports{d.store}, Leases: ports{d.store}, Models: opened.models, Limits: opened.limits, SharesKey: opened.shares, Deltas: d.deltas, Tools: box, Checker: tools,
		Rules: rules{judge}, Asserts: judge, Approver: approver{d.store, judge, d.log}, Accounts: ports{d.store},
		Worker: worker, MaxRuns: c.maxRuns, TenantRuns: c.fairness.tenantRuns, LeaseTTL: c.leaseTTL, DrainGrace: c.drainGrace,
		Log: d.log, Registerer: d.registry, Labels: labels, Tracer: tracer, Content: content,
	})
	if err != nil {
		return nil, err
	}
	d.registry.MustRegister(newCensus(d.store, worker), newAbout(c, d.server.Draining, d.store), newBreakerGauge(tools))
	d.admin = &http.Server{Handler: d.server.AdminHandler(d.registry), ReadHeaderTimeout: 5 * time.Second}
	return d, d.listen(ctx)
}

// listen opens the three ports.
func (d *daemon) listen(ctx context.Context) error {
	for _, p := range []struct {
		lis  *net.Listener
		addr string
		flag string
	}{
		{&d.httpLis, d.cfg.httpAddr, "--http-addr"},
		{&d.grpcLis, d.cfg.grpcAddr, "--grpc-addr"},
		{&d.adminLis, d.cfg.adminAddr, "--admin-addr"},
	} {
		lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.addr)
		if err != nil {
			return fmt.Errorf("listen on %s (choose another with %s): %w", p.addr, p.flag, err)
		}
		*p.lis = lis
	}
	return nil
}

// run serves until ctx ends or a part fails, then shuts down in this order: no
// new work, clients told to go elsewhere, runs handed over, answers finished,
// telemetry flushed, database closed. ready, if set, is called once it serves; when it
// returns, the daemon ends.
func (d *daemon) run(ctx context.Context, ready func(context.Context) error) error {
	floor := heapFloor()
	defer runtime.KeepAlive(floor)
	d.log.InfoContext(ctx, "loopd serves", "http", d.httpLis.Addr().String(), "grpc", d.grpcLis.Addr().String(),
		"admin", d.adminLis.Addr().String(), "version", version)
	serving, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	lifetime, endParts := context.WithCancel(context.WithoutCancel(ctx))
	defer endParts()
	group, parts := errgroup.WithContext(lifetime)
	for _, part := range slices.Concat(d.server.Parts(d.grpcLis, d.httpLis), d.deltas.Parts()) {
		group.Go(func() error { return part(parts) })
	}
	group.Go(func() error { return closedIsFine(d.admin.Serve(d.adminLis)) })
	engineDone := make(chan struct{})
	group.Go(func() error {
		defer close(engineDone)
		if err := d.engine.Run(serving); serving.Err() == nil {
			return err
		}
		return nil // asked to end, be it before the database was there
	})
	group.Go(func() error { return d.retention.Run(serving) })
	if d.beside != nil {
		group.Go(func() error { return d.beside(serving) })
	}
	if ready != nil {
		group.Go(func() error {
			err := ready(serving)
			stop(errReadyDone)
			return err
		})
	}
	select {
	case <-serving.Done():
	case <-parts.Done(): // a part failed
		stop(context.Cause(parts))
	}
	return d.shutdown(ctx, group, endParts, engineDone)
}

// heapFloorSize is less than a busy daemon holds.
const heapFloorSize = 128 << 20

// heapFloor is memory that is reserved and never touched, so that it costs none. The
// collector runs when the heap has doubled: with a small one that is many times a second,
// and was a seventh of the CPU time of a busy worker; with half of this floor 6 %, with it 4 %,
// for at most as much garbage more as the floor is large. Whoever sets GOMEMLIMIT needs each
// byte for something else.
func heapFloor() []byte {
	if debug.SetMemoryLimit(-1) < math.MaxInt64 {
		return nil
	}
	return make([]byte, heapFloorSize)
}

// errReadyDone ends a daemon whose ready function has returned.
var errReadyDone = errors.New("done")

// shutdownGrace is what answers in flight get after the runs are handed over.
const shutdownGrace = 5 * time.Second

func (d *daemon) shutdown(ctx context.Context, group *errgroup.Group, endParts func(), engineDone <-chan struct{}) error {
	d.server.Drain()
	<-engineDone
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	errs := []error{d.server.Shutdown(bounded), d.admin.Shutdown(bounded)}
	endParts()
	errs = append(errs, closedIsFine(group.Wait()))
	if err := d.flush(bounded); err != nil {
		d.log.WarnContext(bounded, "traces were not flushed", "error", err)
	}
	d.mcp.Close()
	d.store.Close()
	d.log.InfoContext(bounded, "loopd has stopped")
	return errors.Join(errs...)
}

func closedIsFine(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// toolSecrets resolves ${secret:NAME} in tool headers from LOOPD_SECRET_NAME.
func toolSecrets(c config) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, err := readSecret(c.getenv, "LOOPD_SECRET_"+strings.ToUpper(name))
		return v, err == nil && v != ""
	}
}
