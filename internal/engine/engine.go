package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/loopd/loopd/internal/engine/traffic"
	"github.com/loopd/loopd/internal/label"
	"github.com/loopd/loopd/internal/loop"
)

// Config is what a worker needs. The ports and Worker are required; every zero
// duration or count means its default.
type Config struct {
	Journal  Journal
	Leases   Leases
	Models   map[string]Model // by provider name, the part of a model reference before the slash
	Tools    Tools
	Checker  Checker
	Rules    Rules                     // nil: calls under a condition always need approval
	Asserts  Assertions                // nil: no assertion can be judged, so none holds
	Approver Approver                  // nil: only people approve
	Accounts Accounts                  // nil: runs share no accounts
	Deltas   Deltas                    // nil: nobody can watch
	Limits   map[string]traffic.Limits // by provider name; a provider without any is limited by what it says itself

	// SharesKey names, by provider, another one with the same credential: they have
	// one rate limit, one circuit and one quota. A provider that is not in it has its own.
	SharesKey map[string]string

	Worker  string // identity of this process: fresh at every start
	MaxRuns int    // runs driven at once; default 256
	// TenantRuns is how many runs of one tenant are driven at once, so that a tenant whose
	// runs are long leaves room for the others. 0: MaxRuns.
	TenantRuns int

	LeaseTTL   time.Duration // how long others leave this worker's runs alone; default 15 s
	RenewEvery time.Duration // default 5 s
	PollEvery  time.Duration // how often to look for work without being woken; default 1 s
	DrainGrace time.Duration // how long calls in flight may go on after a drain began; default 20 s

	ModelTimeout time.Duration // of one model request; default 10 min
	RetryBase    time.Duration // first backoff, doubled each time, full jitter; default 1 s
	RetryCap     time.Duration // longest backoff of loopd's own; default 30 s

	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: metrics are counted, but nowhere shown
	Labels     *label.Set            // values of labels; nil: a set of its own
	Tracer     trace.Tracer          // required; use a no-op tracer to have none
	Content    Content               // what spans hold of what was said; zero: nothing
}

// withDefaults fills what is unset.
func (c Config) withDefaults() Config {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.LeaseTTL, 15*time.Second)
	set(&c.RenewEvery, c.LeaseTTL/3)
	set(&c.PollEvery, time.Second)
	set(&c.DrainGrace, 20*time.Second)
	set(&c.ModelTimeout, 10*time.Minute)
	set(&c.RetryBase, time.Second)
	set(&c.RetryCap, 30*time.Second)
	if c.MaxRuns == 0 {
		c.MaxRuns = 256
	}
	return c
}

// Why work is cut short, as causes of a cancelled context. Code branches on
// these, never on timing.
var (
	errDraining  = errors.New("the worker is shutting down")
	errCancelled = errors.New("the run was cancelled")
	errLeaseLost = fmt.Errorf("the worker's lease ran out: %w", loop.ErrLeaseLost)
)

// errUnreadable: a journal that does not fold. The run must not go on, and giving
// it back would only have it claimed again, for ever.
var errUnreadable = errors.New("the journal does not fold")

// Engine drives runs. Make one per process and Run it once.
type Engine struct {
	cfg     Config
	metrics *metrics
	prints  *loop.Fingerprinter
	lanes   map[string]*traffic.Lane // by provider name
	sup     *supervisor
	claims  pulse
}

// New checks the configuration and makes an Engine.
func New(cfg Config) (*Engine, error) {
	if cfg.Journal == nil || cfg.Leases == nil || cfg.Tools == nil || cfg.Checker == nil || cfg.Worker == "" || cfg.Log == nil || cfg.Tracer == nil {
		return nil, errors.New("engine: Journal, Leases, Tools, Checker, Worker, Log and Tracer must be set")
	}
	cfg = cfg.withDefaults()
	e := &Engine{cfg: cfg, metrics: newMetrics(cfg.Registerer, cfg.Labels), prints: loop.NewFingerprinter(), lanes: map[string]*traffic.Lane{}}
	for provider := range cfg.Models {
		owner := cmp.Or(cfg.SharesKey[provider], provider)
		if e.lanes[owner] == nil {
			e.lanes[owner] = traffic.NewLane(cfg.Limits[owner])
		}
		e.lanes[provider] = e.lanes[owner]
	}
	e.metrics.watchLanes(cfg.Registerer, e.lanes)
	e.sup = newSupervisor(e)
	return e, nil
}

// Run claims and drives runs until ctx ends, then drains: it claims no more,
// lets calls in flight end within DrainGrace, and hands every run over. It
// returns nil after a drain.
func (e *Engine) Run(ctx context.Context) error {
	if err := e.firstRenewal(ctx); err != nil {
		return fmt.Errorf("register worker: %w", err)
	}
	e.sup.start(ctx)
	e.claimUntil(ctx)
	e.sup.drain()
	return nil
}

// firstRenewal registers the worker. It waits for a database that is not there
// yet, because starting before Postgres is ordinary.
func (e *Engine) firstRenewal(ctx context.Context) error {
	for {
		began := time.Now()
		err := e.cfg.Leases.Renew(ctx, e.cfg.Worker, e.cfg.LeaseTTL)
		if err == nil {
			e.sup.renewedAt(began)
			return nil
		}
		e.cfg.Log.WarnContext(ctx, "cannot register worker, will try again", "error", err)
		if !sleep(ctx, e.cfg.PollEvery) {
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// claimUntil takes runs whenever there is room and something may be claimable.
func (e *Engine) claimUntil(ctx context.Context) {
	defer e.claims.rest()
	for ctx.Err() == nil {
		e.claims.beat()
		if more := e.claim(ctx); more && e.sup.free() > 0 {
			continue
		}
		select {
		case <-ctx.Done():
		case <-e.sup.wake:
		case <-time.After(e.cfg.PollEvery):
		}
	}
}

// plenty is how many runs a claim takes at least that leaves some behind, for want of room
// or because more wait than it looks at. A claim of fewer has left nothing but what
// others are taking, so that a trickle of runs costs no second look for each.
const plenty = 8

// claim takes as many runs as there is room for and starts their owners. It also
// pokes the owners whose runs have been signalled. It reports whether more may be
// claimable.
func (e *Engine) claim(ctx context.Context) (more bool) {
	if refs, err := e.cfg.Leases.Signalled(ctx, e.cfg.Worker); err == nil {
		e.sup.poke(refs)
	}
	room := e.sup.room()
	if room.Free == 0 || !e.sup.trusted() {
		return false
	}
	leases, err := e.cfg.Leases.Claim(ctx, e.cfg.Worker, room)
	if err != nil {
		if ctx.Err() == nil {
			e.cfg.Log.WarnContext(ctx, "cannot claim runs, will try again", "error", err)
		}
		return false
	}
	for _, l := range leases {
		e.metrics.leases.WithLabelValues(leaseAcquired).Inc()
		e.sup.own(l)
	}
	return len(leases) >= min(room.Free, plenty)
}

// sleep waits for d or the end of ctx; it reports whether d passed.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
