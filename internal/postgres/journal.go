package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// settleGrace is how long Append goes on looking for the truth after its context
// has ended: long enough for a statement that is still running to time out.
const settleGrace = 10 * time.Second

// groupTimeout bounds the commit of a group, which belongs to no caller's context.
const groupTimeout = 10 * time.Second

// errMoving: the fence held an append back, and nothing stood in its way when it
// was read. Signals that come and go may do that, but not for long.
var errMoving = fmt.Errorf("the run's row keeps changing: %w", ErrUnavailable)

// errAlone is the result of an append whose group failed as a whole.
var errAlone = errors.New("the group failed")

// Journaled is a run's journal as Load returns it.
type Journaled struct {
	Events  []loop.Event
	Signals []loop.Signal
}

// Batch is what one append writes: events, and the heads that follow from them.
type Batch struct {
	Events []loop.Event
	Head   loop.Head
	Calls  []loop.CallHead // the calls whose head changed

	// Intent: the batch starts work, so a waiting signal must be seen first.
	Intent bool
	// Signals up to this ID have been seen by the state the batch follows from.
	// Those with a smaller or equal ID are deleted with the batch.
	SignalsSeen int64
	// Release gives the lease back with the batch: the run suspends or has ended.
	Release bool

	// Children are runs to create, and Outgoing are signals for other runs: both in
	// the same transaction. What is said to a run that has ended is dropped.
	Children []loop.ChildStart
	Outgoing []loop.Outgoing

	// Results are the whole texts of those results of which the model was shown a
	// part.
	Results []loop.FullResult
}

// Load returns all events of the run in order and the signals that wait.
func (s *Store) Load(ctx context.Context, lease loop.Lease) (Journaled, error) {
	events, err := s.events(ctx, lease.Run, 0, nil)
	if err != nil {
		return Journaled{}, err
	}
	if len(events) == 0 {
		return Journaled{}, fmt.Errorf("load run %s: %w", lease.Run.ID, loop.ErrNotFound)
	}
	if err := s.attach(ctx, lease.Run, events); err != nil {
		return Journaled{}, err
	}
	signals, err := s.Signals(ctx, lease)
	return Journaled{Events: events, Signals: signals}, err
}

// Signals returns the signals that wait for the run, in order of arrival.
func (s *Store) Signals(ctx context.Context, lease loop.Lease) ([]loop.Signal, error) {
	rows, err := s.q.ListSignals(ctx, db.ListSignalsParams{TenantID: lease.Run.Tenant, RunID: lease.Run.ID})
	if err != nil {
		return nil, wrap("read the signals of run "+lease.Run.ID, err)
	}
	signals := make([]loop.Signal, len(rows))
	for i, row := range rows {
		body, err := loop.DecodeBody(row.Kind, row.Body)
		if err != nil {
			return nil, fmt.Errorf("signal %d of run %s: %w", row.ID, lease.Run.ID, err)
		}
		signals[i] = loop.Signal{ID: row.ID, Body: body}
	}
	return signals, nil
}

// Append writes a batch in one transaction, fenced by the lease's epoch and owner
// and by the sequence number of the first event.
//
// It returns loop.ErrLeaseLost when the lease is no longer the caller's,
// loop.ErrSignalled when the batch is an intent and an unseen signal waits, and
// loop.ErrRefused when it breaks an invariant, such as ErrOverBudget when a hold
// does not fit the run's account. In these and all other
// cases nothing was written, but for one: ErrUnknownOutcome says that the truth
// could not be read within 10 s after ctx ended. The caller must then drop the run,
// as if it had lost the lease.
func (s *Store) Append(ctx context.Context, lease loop.Lease, batch Batch) error {
	params, err := appendParams(lease, batch, s.allKnow.Load() < resultsOnce)
	if err != nil {
		return err
	}
	sent := false // an earlier try may have been committed
	for try := 1; ; try++ {
		err := s.write(ctx, params)
		if err == nil {
			return nil
		}
		if errors.Is(err, errWithdrawn) {
			return wrap("append to run "+params.RunID, err)
		}
		if unknown := unknownOutcome(err); unknown || errors.Is(err, pgx.ErrNoRows) {
			sent = sent || unknown
			done, settled := s.settle(ctx, params, sent)
			if done || settled != nil {
				return s.refused(params, settled)
			}
		} else if !conflicted(err) && !notConnected(err) {
			return s.refused(params, err)
		}
		if errors.Is(err, pgx.ErrNoRows) {
			err = errMoving
		}
		if try == maxTries || pause(ctx, try) != nil {
			return wrap("append to run "+params.RunID, err)
		}
		s.log.WarnContext(ctx, "repeat an append that was not written", "run", params.RunID, "try", try, "error", err)
	}
}

// refused is the end of an append that will not be repeated.
func (s *Store) refused(params db.AppendEventsParams, err error) error {
	if errors.Is(err, loop.ErrLeaseLost) {
		s.metrics.fenced.Inc()
	}
	if errors.Is(err, loop.ErrCommitsLost) {
		s.metrics.lost.Inc()
		s.log.Error("the database has lost commits that it had acknowledged", "run", params.RunID, "error", err)
	}
	if invariant(err) && !errors.Is(wrap("", err), loop.ErrRefused) {
		err = fmt.Errorf("%w: %w", loop.ErrRefused, err)
	}
	return wrap("append to run "+params.RunID, err)
}

// write sends an append in company and, if its group failed, alone.
func (s *Store) write(ctx context.Context, params db.AppendEventsParams) error {
	err := s.group.write(ctx, params)
	if !errors.Is(err, errAlone) {
		return err
	}
	return s.send(ctx, s.pool, []db.AppendEventsParams{params})[0]
}

// commitGroup writes what a group collected: the usual appends as one statement, and
// then the others. One bad record must fail its own run only, so when the database
// refuses a group its members go on alone.
func (s *Store) commitGroup(group []*pending) {
	slices.SortStableFunc(group, byRun)
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	usual, others := divide(group)
	answer := func(members []*pending, results []error) {
		for i, err := range results {
			refused := err != nil && !errors.Is(err, pgx.ErrNoRows) && !unknownOutcome(err) && !notConnected(err)
			if refused && len(members) > 1 {
				err = errAlone
			}
			members[i].done <- err
		}
	}
	if len(usual) > 0 {
		answer(usual, s.sendGroup(ctx, usual))
	}
	if len(others) > 0 {
		params := make([]db.AppendEventsParams, len(others))
		for i, p := range others {
			params[i] = p.params
		}
		answer(others, s.send(ctx, s.appends, params))
	}
}

// send runs the appends as one implicit transaction, in one round trip. The result
// of each is nil, pgx.ErrNoRows (the fence held it back), or the error that made
// the transaction fail, which is then the same for all.
func (s *Store) send(ctx context.Context, pool *pgxpool.Pool, params []db.AppendEventsParams) []error {
	results := make([]error, len(params))
	// The connection is held until the second close below: the generated QueryRow
	// closes too, and a close that fails touches the connection's caches, which by
	// then could be somebody else's.
	conn, err := pool.Acquire(ctx)
	if err != nil {
		for i := range results {
			results[i] = err
		}
		return results
	}
	defer conn.Release()
	lockFirst(params)
	batch := db.New(conn).AppendEvents(ctx, params)
	batch.QueryRow(func(i int, _ db.AppendEventsRow, err error) { results[i] = err })
	// The commit comes after the last result, and only closing reports its failure.
	if err := batch.Close(); err != nil {
		for i := range results {
			results[i] = err
		}
	}
	return results
}

// settle finds out why an append brought no success. Done means that an earlier try
// of it was committed. An error is the reason why it cannot be written. Neither:
// nothing stands in its way any more.
func (s *Store) settle(ctx context.Context, params db.AppendEventsParams, sent bool) (done bool, err error) {
	var deadline time.Time // set when ctx has ended
	for try := 1; ; try++ {
		done, err = s.readFence(context.WithoutCancel(ctx), params, sent)
		if err == nil || !conflicted(err) && !unavailable(err) && !notConnected(err) {
			return done, err
		}
		s.log.WarnContext(ctx, "cannot find out yet whether an append was committed", "run", params.RunID, "error", err)
		if ctx.Err() != nil && deadline.IsZero() {
			deadline = time.Now().Add(settleGrace)
		}
		if !deadline.IsZero() && time.Now().After(deadline) {
			if sent {
				return false, fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
			}
			return false, err
		}
		_ = pause(context.WithoutCancel(ctx), try) // cannot end early
	}
}

// readFence compares the run's row with an append. It waits for a transaction that
// holds the row, in case that is the append itself.
func (s *Store) readFence(ctx context.Context, params db.AppendEventsParams, sent bool) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, groupTimeout)
	defer cancel()
	_, err = s.tryTx(ctx, func(q *db.Queries) error {
		row, err := q.LockLease(ctx, db.LockLeaseParams{TenantID: params.TenantID, RunID: params.RunID})
		if errors.Is(err, pgx.ErrNoRows) {
			return loop.ErrLeaseLost
		}
		if err != nil {
			return err
		}
		if sent {
			// Only the holder of an epoch writes under it.
			epoch, err := q.EventEpoch(ctx, db.EventEpochParams{TenantID: params.TenantID, RunID: params.RunID, Seq: params.FirstSeq})
			if err != nil && !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			if done = err == nil && epoch == params.Epoch; done {
				return nil
			}
		}
		return fenceError(params, row)
	})
	return done, err
}

func fenceError(params db.AppendEventsParams, row db.LockLeaseRow) error {
	switch {
	case row.LeaseEpoch < params.Epoch: // the claim itself is lost: whoever claims the run next takes the same number
		return fmt.Errorf("%w: %w: the epoch is %d, and was %d", loop.ErrLeaseLost, loop.ErrCommitsLost, row.LeaseEpoch, params.Epoch)
	case row.Owner != params.Owner || row.LeaseEpoch != params.Epoch:
		return loop.ErrLeaseLost
	case row.NextSeq < params.FirstSeq:
		return fmt.Errorf("%w: %w: the next event is %d, not %d", ErrWrongSeq, loop.ErrCommitsLost, row.NextSeq, params.FirstSeq)
	case row.NextSeq != params.FirstSeq:
		return fmt.Errorf("%w: the next event is %d, not %d", ErrWrongSeq, row.NextSeq, params.FirstSeq)
	case params.Intent && row.Signals > params.SignalsSeen:
		return loop.ErrSignalled
	}
	return nil
}

// Events returns at most limit events of the run with a larger sequence number
// than afterSeq, in order, without the data of attachments. The error is a
// loop.ErrNotFound if there is no such run.
func (s *Store) Events(ctx context.Context, run loop.RunRef, afterSeq int64, limit int) ([]loop.Event, error) {
	size := int64(limit)
	events, err := s.events(ctx, run, afterSeq, &size)
	if err != nil || len(events) > 0 {
		return events, err
	}
	exists, err := s.q.RunExists(ctx, db.RunExistsParams{TenantID: run.Tenant, RunID: run.ID})
	if err == nil && !exists {
		err = pgx.ErrNoRows
	}
	return nil, wrap("read events of run "+run.ID, err)
}

func (s *Store) events(ctx context.Context, run loop.RunRef, afterSeq int64, limit *int64) ([]loop.Event, error) {
	rows, err := s.q.ListEvents(ctx, db.ListEventsParams{TenantID: run.Tenant, RunID: run.ID, AfterSeq: afterSeq, PageSize: limit})
	if err != nil {
		return nil, wrap("read events of run "+run.ID, err)
	}
	events := make([]loop.Event, len(rows))
	for i, row := range rows {
		body, err := loop.DecodeBody(row.Kind, row.Body)
		if err != nil {
			return nil, fmt.Errorf("event %d of run %s: %w", row.Seq, run.ID, err)
		}
		events[i] = loop.Event{Seq: row.Seq, At: row.At.UTC(), Epoch: row.Epoch, Body: body}
	}
	return events, nil
}
