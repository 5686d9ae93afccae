package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

const (
	// retentionLock names the advisory lock of who deletes. Any number that nothing else
	// in the database uses would do.
	retentionLock = 0x6c6f6f7064 // "loopd"
	// retentionEvery is the time between passes. Partitions are made weeks ahead and what
	// expires is days old, so minutes are soon enough.
	retentionEvery = 10 * time.Minute
	// retentionBatch is how many trees of runs one transaction deletes: some ten
	// milliseconds of work.
	retentionBatch = 200
	// retentionShare: for each millisecond of deleting, so many are left to others.
	retentionShare = 4
	// dropGrace is how long the partition of a week is waited for after its last run could
	// have expired. Runs that were created late in the week end in it.
	dropGrace = 24 * time.Hour
	// keysPage is how many idempotency keys are looked at in one statement.
	keysPage = 5000
	// firstSuffix names the partition that held everything before there were others. It is
	// no week, so its runs do not wait for its end.
	firstSuffix = "first"
)

// MinRetention is the shortest time that runs are kept. Whoever started a run must be
// able to read how it ended.
const MinRetention = time.Hour

// errOtherLeads: another replica deletes.
var errOtherLeads = errors.New("another replica deletes")

// RetentionConfig says what is kept. The zero value keeps all runs for ever.
type RetentionConfig struct {
	// Keep is how long runs are kept after they ended, unless their agent or tenant has a
	// KeepRule. 0: for ever; else at least MinRetention.
	Keep time.Duration
	// Export is called with each run before it is deleted; what it fails for is kept. Nil:
	// nothing is exported.
	Export func(ctx context.Context, run loop.RunRef) error
	// Log gets one line for each pass that deleted something, and failures. Default: nothing is logged.
	Log *slog.Logger
	// Registerer gets the metrics. Default: they are counted and shown nowhere.
	Registerer prometheus.Registerer
}

// Retention deletes runs that were kept for long enough, in whole trees, and makes the
// partitions that journals are written to. Every replica may run one: they take turns.
type Retention struct {
	s       *Store
	cfg     RetentionConfig
	metrics *retentionMetrics
}

// NewRetention prepares a Retention; Run starts it. It fails if Keep is too short.
func NewRetention(s *Store, cfg RetentionConfig) (*Retention, error) {
	if cfg.Keep != 0 && cfg.Keep < MinRetention {
		return nil, fmt.Errorf("runs would be kept for %s: keep them for at least %s, or for ever", cfg.Keep, MinRetention)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	r := &Retention{s: s, cfg: cfg, metrics: newRetentionMetrics()}
	if cfg.Registerer != nil {
		if err := r.metrics.register(cfg.Registerer); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Run makes one pass after the other until ctx ends.
func (r *Retention) Run(ctx context.Context) error {
	for {
		began := time.Now()
		passed, err := r.Pass(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it was to end, whatever the pass says of that
		case err != nil:
			r.metrics.failures.Inc()
			r.cfg.Log.WarnContext(ctx, "retention goes on later", "error", err, "again_in", retentionEvery)
		case passed != Passed{}:
			r.cfg.Log.InfoContext(ctx, "a retention pass ended", "runs", passed.Runs, "partitions", passed.Dropped,
				"idempotency_keys", passed.Keys, "not_exported", passed.NotExported, "partitions_made", passed.Made, "took", time.Since(began).Round(time.Millisecond))
		}
		if !rest(ctx, retentionEvery) {
			return nil
		}
	}
}

// Passed is what one pass did.
type Passed struct {
	Made        int   // partitions, for weeks to come
	Dropped     int   // partitions, with the journals in them
	Runs        int64 // deleted, child runs too
	Keys        int64 // idempotency keys deleted
	NotExported int   // runs that are kept because their export failed
}

// Pass makes the partitions of the next weeks, drops those that nobody needs any more,
// and deletes expired runs and keys until there are none. What another replica is at is
// left to that one.
func (r *Retention) Pass(ctx context.Context) (Passed, error) {
	var p Passed
	err := r.lead(ctx, func(q *db.Queries) error {
		made, err := q.MakeJournalPartitions(ctx)
		p.Made = int(made)
		return err
	})
	if errors.Is(err, errOtherLeads) {
		return p, nil
	}
	if err != nil { // the default partition takes what has no other
		r.metrics.failures.Inc()
		r.cfg.Log.WarnContext(ctx, "the partitions of the next weeks could not be made", "error", err)
	}
	for _, part := range []func(context.Context, *Passed) error{r.dropPartitions, r.deleteRuns, r.deleteKeys} {
		if err := part(ctx, &p); errors.Is(err, errOtherLeads) {
			return p, nil
		} else if err != nil {
			return p, wrap("delete what was kept for long enough", err)
		}
	}
	return p, nil
}

// lead runs fn in a transaction in which nobody else deletes.
func (r *Retention) lead(ctx context.Context, fn func(q *db.Queries) error) error {
	_, err := r.s.tryTx(ctx, func(q *db.Queries) error {
		leads, err := q.LeadRetention(ctx, retentionLock)
		if err == nil && !leads {
			err = errOtherLeads
		}
		if err == nil {
			err = q.AllowDeletion(ctx)
		}
		if err != nil {
			return err
		}
		return fn(q)
	})
	return err
}

// dropPartitions drops the oldest partitions, as long as no run in them is kept. Their
// heads are deleted after that, as those of all expired runs. Who wants an export gets
// it run by run, so that no partition is dropped then.
func (r *Retention) dropPartitions(ctx context.Context, p *Passed) error {
	if r.cfg.Export != nil {
		return nil
	}
	partitions, err := r.s.q.ListJournalPartitions(ctx)
	if err != nil {
		return err
	}
	for _, partition := range partitions {
		if time.Now().Before(partition.ToTime) { // it is still written to
			return nil
		}
		params := db.PartitionIsKeptParams{FromID: partition.FromID, ToID: partition.ToID, Otherwise: r.keepSeconds()}
		var kept bool
		err := r.lead(ctx, func(q *db.Queries) (err error) {
			if kept, err = q.PartitionIsKept(ctx, params); err != nil || kept {
				return err
			}
			// An ended run stays ended, and new ones have other ids: nothing can come
			// between the answer and the lock.
			return q.DropJournalPartition(ctx, partition.Suffix)
		})
		switch {
		case sqlState(err) == codeLockTimeout:
			r.cfg.Log.InfoContext(ctx, "a partition is in use, it is dropped later", "partition", partition.Suffix)
			continue
		case err != nil:
			return err
		case kept:
			continue
		}
		p.Dropped++
		r.metrics.dropped.Inc()
	}
	return nil
}

func (r *Retention) keepSeconds() int64 { return int64(r.cfg.Keep / time.Second) }

// deleteRuns deletes the expired runs of one agent after the other.
func (r *Retention) deleteRuns(ctx context.Context, p *Passed) error {
	agents, err := r.s.q.ListRunAgents(ctx, r.keepSeconds())
	if err != nil {
		return err
	}
	deferred, err := r.deferred(ctx)
	if err != nil {
		return err
	}
	var oldest time.Time
	for _, agent := range agents {
		if oldest.IsZero() || agent.Oldest.Before(oldest) {
			oldest = agent.Oldest
		}
		if agent.KeepSeconds == 0 {
			continue
		}
		span := deferral{lastID, lastID}
		if agent.KeepSeconds == r.keepSeconds() {
			span = deferred
		}
		if err := r.deleteRunsOf(ctx, agent, span, p); err != nil {
			return err
		}
	}
	r.metrics.oldest(oldest)
	return nil
}

// deferral is a span of ids whose partitions may soon be dropped as a whole.
type deferral struct{ from, to string }

// deferred is the span of the weeks whose runs are left to the end of their partition.
// Those that another rule keeps shorter than the operator's default are not: for them a
// week more would be a broken promise.
func (r *Retention) deferred(ctx context.Context) (deferral, error) {
	none := deferral{lastID, lastID}
	if r.cfg.Export != nil || r.cfg.Keep == 0 {
		return none, nil
	}
	partitions, err := r.s.q.ListJournalPartitions(ctx)
	if err != nil {
		return none, err
	}
	span := none
	for _, partition := range partitions {
		if partition.Suffix == firstSuffix || time.Since(partition.ToTime) > r.cfg.Keep+dropGrace {
			continue
		}
		if span == none {
			span.from = partition.FromID
		}
		span.to = partition.ToID
	}
	return span, nil
}

// deleteRunsOf deletes the expired runs of an agent, the oldest first.
func (r *Retention) deleteRunsOf(ctx context.Context, agent db.ListRunAgentsRow, span deferral, p *Passed) error {
	after := RunCursor{ID: firstID}
	for {
		if err := r.yield(ctx); err != nil {
			return err
		}
		began := time.Now()
		roots, err := r.s.q.ListExpiredRoots(ctx, db.ListExpiredRootsParams{
			TenantID: agent.TenantID, Agent: agent.Agent, KeepSeconds: float64(agent.KeepSeconds),
			AfterTime: after.CreatedAt, AfterID: after.ID, DeferFrom: span.from, DeferTo: span.to, PageSize: retentionBatch,
		})
		if err != nil || len(roots) == 0 {
			return err
		}
		last := roots[len(roots)-1]
		after = RunCursor{CreatedAt: last.EndedAt, ID: last.RunID}
		ids := make([]string, len(roots))
		for i, root := range roots {
			ids[i] = root.RunID
		}
		if err := r.deleteTrees(ctx, agent.TenantID, ids, p); err != nil {
			return err
		}
		if len(roots) < retentionBatch {
			return nil
		}
		if !rest(ctx, retentionShare*time.Since(began)) {
			return ctx.Err()
		}
	}
}

// yield waits while all connections are in use: who serves people goes first.
func (r *Retention) yield(ctx context.Context) error {
	for stat := r.s.pool.Stat(); stat.AcquiredConns() >= stat.MaxConns(); stat = r.s.pool.Stat() {
		if !rest(ctx, time.Second) {
			break
		}
	}
	return ctx.Err()
}

// deleteKeys deletes idempotency keys that protect nothing any more, page by page.
func (r *Retention) deleteKeys(ctx context.Context, p *Passed) error {
	params := db.DeleteOldKeysParams{PageSize: keysPage}
	for {
		var row db.DeleteOldKeysRow
		err := r.lead(ctx, func(q *db.Queries) (err error) {
			row, err = q.DeleteOldKeys(ctx, params)
			return err
		})
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		p.Keys += row.Deleted
		params.AfterTenant, params.AfterMethod, params.AfterKey = row.TenantID, row.Method, row.Key
	}
}
