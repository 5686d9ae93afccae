package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/loopd/loopd/internal/loop"
)

// Census is how things stand in the whole database, all tenants together.
type Census struct {
	Runs  map[loop.RunState]int64  // all live states
	Calls map[loop.CallState]int64 // all states in which a call waits for somebody

	Queue       map[loop.Priority]int64 // runs that a worker could take now; all priorities
	QueueOldest time.Duration           // how long the first of them has been waiting

	Approvals      int64         // calls that wait for a person: to approve, or to answer
	ApprovalOldest time.Duration // how long the first of them has been waiting
	// ApprovalUsed is how much of its time, until it expires, the most pressing one has
	// been waiting: 0 to 1.
	ApprovalUsed float64

	Held           loop.USD // for model calls in flight and child runs
	Daily, Monthly loop.USD // budgets of whole tenants, added up
}

// Census takes the census if the worker is the one to take it: of the live ones, the
// eldest. It reports whether it is.
func (s *Store) Census(ctx context.Context, worker string) (Census, bool, error) {
	eldest, err := s.q.EldestWorker(ctx)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && eldest != worker {
		return Census{}, false, nil
	}
	if err != nil {
		return Census{}, false, wrap("find the eldest worker", err)
	}
	var c Census
	if c.Runs, err = s.CountRuns(ctx); err != nil {
		return c, false, err
	}
	if c.Calls, err = s.CountWaitingCalls(ctx); err != nil {
		return c, false, err
	}
	queue, err := s.q.MeasureQueue(ctx)
	if err != nil {
		return c, false, wrap("measure the queue", err)
	}
	c.Queue = map[loop.Priority]int64{loop.PriorityHigh: queue.High, loop.PriorityNormal: queue.Normal, loop.PriorityLow: queue.Low}
	c.QueueOldest = secondsOf(queue.OldestSeconds)
	approvals, err := s.q.MeasureApprovals(ctx)
	if err != nil {
		return c, false, wrap("measure the approvals", err)
	}
	c.Approvals, c.ApprovalOldest, c.ApprovalUsed = approvals.Calls, secondsOf(approvals.OldestSeconds), approvals.UsedRatio
	money, err := s.q.MeasureMoney(ctx)
	if err != nil {
		return c, false, wrap("measure the money", err)
	}
	c.Held, c.Daily, c.Monthly = loop.USD(money.HeldPico), loop.USD(money.DailyPico), loop.USD(money.MonthlyPico)
	return c, true, nil
}

func secondsOf(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// SchemaVersion is the number of the newest migration that the database has.
func (s *Store) SchemaVersion(ctx context.Context) (int64, error) {
	var have int64
	// Goose's own table; sqlc does not know it.
	err := s.pool.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&have)
	return have, wrap("read the schema's version", err)
}
