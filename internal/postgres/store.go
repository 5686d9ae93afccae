package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/loopd/loopd/internal/postgres/db"
)

const (
	// defaultMaxConns suits two cores: more connections did not commit faster.
	defaultMaxConns = 16
	// renewConns are kept apart, so that a busy pool cannot cost a worker its runs.
	renewConns = 2
	// appendConns are kept apart, one for each group that commits at once: the plan of an
	// append is the largest there is, and each connection makes its own.
	appendConns = maxFlushes

	// No statement of loopd takes longer than milliseconds on a healthy database,
	// and a frozen owner must not hold the row of a run for ever.
	statementTimeout = "5s"
	lockTimeout      = "1s"
	idleTimeout      = "5s"
	// connectTimeout bounds a dial, and for renewals and listeners the log-in too. It is
	// for one address, within the caller's own deadline.
	connectTimeout = 5 * time.Second
)

// Config says which database to use. Only URL is required.
type Config struct {
	// URL is the connection string. It may lead through PgBouncer.
	URL string
	// DirectURL leads to the same database without a pooler in between, for LISTEN.
	// Default URL.
	DirectURL string
	// MaxConns bounds the pool. Two connections for renewals, two for appends and one for
	// each listener come on top. Default 16.
	MaxConns int
	// MaxGroup bounds how many appends share a commit. Default 64; 1 is for measuring what
	// sharing is good for.
	MaxGroup int
	// Log gets what the store settles by itself. Default: nothing is logged.
	Log *slog.Logger
	// Registerer gets the metrics. Default: they are counted and shown nowhere.
	Registerer prometheus.Registerer
}

// Store is loopd's database. It is safe for concurrent use.
type Store struct {
	gates   gates
	pool    *pgxpool.Pool
	renewal *pgxpool.Pool
	appends *pgxpool.Pool
	direct  string
	q       *db.Queries
	renew   *db.Queries
	group   *group
	creates *creates
	claims  claims
	budgets budgetLists
	draws   turns
	log     *slog.Logger
	metrics *metrics

	allKnow     atomic.Int64 // the newest migration that all programs on the database have; 0: not known yet
	reconnected atomic.Int64 // when the connections were last given up, Unix time in ns
}

// Open prepares the pools. It opens no connection; Ready does.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	s := &Store{direct: cfg.DirectURL, log: cfg.Log}
	if s.direct == "" {
		s.direct = cfg.URL
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxConns <= 0 {
		cfg.MaxConns = defaultMaxConns
	}
	if _, err := pgx.ParseConfig(s.direct); err != nil {
		return nil, fmt.Errorf("direct database URL: %w", err)
	}
	var err error
	s.metrics = newMetrics()
	main := poolShape{conns: cfg.MaxConns, login: loginTimeout, opening: maxOpening, linger: linger}
	if s.pool, err = s.newPool(ctx, cfg.URL, main); err != nil {
		return nil, err
	}
	if s.renewal, err = s.newPool(ctx, cfg.URL, poolShape{conns: renewConns, login: connectTimeout}); err != nil {
		s.pool.Close()
		return nil, err
	}
	if s.appends, err = s.newPool(ctx, cfg.URL, poolShape{conns: appendConns, login: loginTimeout, opening: appendConns, prepare: encodeArrays}); err != nil {
		s.pool.Close()
		s.renewal.Close()
		return nil, err
	}
	s.q, s.renew = db.New(s.pool), db.New(s.renewal)
	s.group = newGroup(s.commitGroup)
	s.creates = newCreates(s.commitCreates)
	if cfg.MaxGroup > 0 {
		s.group.most = cfg.MaxGroup
	}
	if cfg.Registerer != nil {
		if err := s.metrics.register(cfg.Registerer, s.pool); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

func (s *Store) newPool(ctx context.Context, url string, shape poolShape) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	bounded(config.ConnConfig)
	shape.shape(config, &tracer{metrics: s.metrics, readOnly: s.reconnect, gates: &s.gates})
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the connection pool: %w", err)
	}
	return pool, nil
}

// reconnectEvery bounds how often all connections are given up.
const reconnectEvery = time.Second

// reconnect gives up all connections, because they lead to a server that is a standby
// now. Whoever writes next looks for the primary anew, as the connection string says.
func (s *Store) reconnect() {
	last, now := s.reconnected.Load(), time.Now().UnixNano()
	if now-last < int64(reconnectEvery) || !s.reconnected.CompareAndSwap(last, now) {
		return
	}
	s.log.Warn("the database takes no writes: it is a standby, or was made read-only; connecting anew")
	for _, pool := range []*pgxpool.Pool{s.pool, s.renewal, s.appends} {
		pool.Reset()
	}
}

// Close closes the pools. It waits for connections that are in use.
func (s *Store) Close() {
	s.pool.Close()
	s.renewal.Close()
	s.appends.Close()
}

// Ready reports whether the database answers and has the schema that this program
// needs (ErrSchema if not). A newer schema is fine: migrations expand first.
func (s *Store) Ready(ctx context.Context) error {
	want, err := latestMigration()
	if err != nil {
		return err
	}
	have, err := s.SchemaVersion(ctx)
	if err != nil && sqlState(err) != codeUndefinedTable {
		return wrap("check the database", err)
	}
	if have < want {
		return fmt.Errorf("%w: it is at version %d, loopd needs %d: run loopd migrate up", ErrSchema, have, want)
	}
	return nil
}

// inTx runs fn in a transaction and repeats it when it lost against another one
// or the connection was gone before the commit was sent. If the outcome of the
// commit is unknown, fn is repeated only when it is settled by its own re-reading
// of what the first try may have written; otherwise the error is ErrUnknownOutcome.
func (s *Store) inTx(ctx context.Context, rereads bool, fn func(q *db.Queries) error) error {
	return s.repeat(ctx, rereads, func() (committing bool, err error) { return s.tryTx(ctx, fn) })
}

// inOne runs a single statement, which is a transaction of its own, and repeats it as
// inTx does. The statement must be settled by its own re-reading.
func (s *Store) inOne(ctx context.Context, fn func(q *db.Queries) error) error {
	return s.repeat(ctx, true, func() (committing bool, err error) { return true, fn(s.q) })
}

func (s *Store) repeat(ctx context.Context, rereads bool, once func() (committing bool, err error)) error {
	for try := 1; ; try++ {
		committing, err := once()
		unknown := committing && unknownOutcome(err)
		retry := conflicted(err) || (!committing && disconnected(err)) || notConnected(err) || (unknown && rereads)
		switch {
		case err == nil:
			return nil
		case retry && try < maxTries && pause(ctx, try) == nil:
			s.log.WarnContext(ctx, "repeat a transaction", "try", try, "error", err)
		case unknown:
			return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
		default:
			return err
		}
	}
}

// tryTx runs fn in one transaction. It reports whether an error came from the commit.
func (s *Store) tryTx(ctx context.Context, fn func(q *db.Queries) error) (committing bool, err error) {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return false, err
	}
	if err := cmp.Or(fn(s.q.WithTx(tx)), ctx.Err()); err != nil { // a commit is not begun in vain: it would cost the connection
		// What cannot be rolled back is ended with its connection.
		return false, errors.Join(err, ignoreClosed(tx.Rollback(context.WithoutCancel(ctx))))
	}
	return true, tx.Commit(ctx)
}

func ignoreClosed(err error) error {
	if errors.Is(err, pgx.ErrTxClosed) || disconnected(err) {
		return nil
	}
	return err
}
