package postgres

import (
	"cmp"
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/loopd/loopd/internal/postgres/db"
)

// pipeline is a connection that keeps what only writes until something is asked, and sends
// both at once: a transaction that holds a lock for which others queue waits for the
// network as seldom as can be. A failed write is told by whatever is sent with it. It is
// for one transaction of one goroutine.
type pipeline struct {
	conn   *pgxpool.Conn
	queued pgx.Batch
}

// Exec keeps the statement for later. How many rows it affects is not known.
func (p *pipeline) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	p.queued.Queue(sql, args...)
	return pgconn.CommandTag{}, nil
}

// Query sends what is queued and the question. The rows must be closed.
func (p *pipeline) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	p.queued.Queue(sql, args...)
	results, err := p.send(ctx, p.queued.Len()-1)
	if err != nil {
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		return nil, errors.Join(err, results.Close())
	}
	return pipedRows{rows, results}, nil
}

// QueryRow is Query for one row.
func (p *pipeline) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := p.Query(ctx, sql, args...)
	return pipedRow{rows, err}
}

// SendBatch is for statements that are batches of their own, which are in no transaction
// of more than one.
func (p *pipeline) SendBatch(context.Context, *pgx.Batch) pgx.BatchResults {
	panic("postgres: a batch in a pipeline")
}

// flush sends what is queued.
func (p *pipeline) flush(ctx context.Context) error {
	if p.queued.Len() == 0 {
		return nil
	}
	results, err := p.send(ctx, p.queued.Len())
	if err != nil {
		return err
	}
	return results.Close()
}

// send sends what is queued and reads the first results, which must be good.
func (p *pipeline) send(ctx context.Context, read int) (pgx.BatchResults, error) {
	batch := p.queued
	p.queued = pgx.Batch{}
	results := p.conn.SendBatch(ctx, &batch)
	for range read {
		if _, err := results.Exec(); err != nil {
			_ = results.Close() // says the same again
			return nil, err
		}
	}
	return results, nil
}

// pipedRows are the rows of the last statement of a batch.
type pipedRows struct {
	pgx.Rows
	results pgx.BatchResults
}

// Close ends the batch too.
func (r pipedRows) Close() {
	r.Rows.Close()
	_ = r.results.Close() // of nothing but these rows, whose error Err tells
}

// pipedRow is the first of some rows.
type pipedRow struct {
	rows pgx.Rows
	err  error
}

// Scan reads the row, or fails with pgx.ErrNoRows.
func (r pipedRow) Scan(into ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		return cmp.Or(r.rows.Err(), pgx.ErrNoRows)
	}
	if err := r.rows.Scan(into...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// inPipeline is inTx through a pipeline: its begin goes out with the first question, and its
// commit with the last writes. fn may be told of the failure of a write only by the
// return of inPipeline. It is repeated also when the outcome of the commit is unknown, so fn
// must re-read what an earlier try may have written.
func (s *Store) inPipeline(ctx context.Context, fn func(q *db.Queries) error) error {
	return s.repeat(ctx, true, func() (committing bool, err error) { return s.tryPipeline(ctx, fn) })
}

func (s *Store) tryPipeline(ctx context.Context, fn func(q *db.Queries) error) (committing bool, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release() // which ends a connection that is still in a transaction
	p := &pipeline{conn: conn}
	p.queued.Queue("begin")
	if err = cmp.Or(fn(db.New(p)), ctx.Err()); err == nil {
		p.queued.Queue("commit")
		committing, err = true, p.flush(ctx)
	}
	if err != nil && conn.Conn().PgConn().TxStatus() != 'I' {
		_, undone := conn.Exec(context.WithoutCancel(ctx), "rollback")
		err = errors.Join(err, ignoreClosed(undone))
	}
	return committing, err
}
