package postgres

import (
	"context"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// Renew creates or renews the worker's row for ttl, on database time, and gives
// back the runs of workers whose row expired. It has connections of its own, so
// that a busy store costs no worker its runs.
func (s *Store) Renew(ctx context.Context, worker string, ttl time.Duration) error {
	err := s.renew.RenewWorker(ctx, db.RenewWorkerParams{WorkerID: worker, TtlSeconds: ttl.Seconds()})
	if err != nil {
		return wrap("renew worker "+worker, err)
	}
	s.reap(ctx, s.renew)
	return nil
}

// reap gives back the runs of expired workers. Everybody does it all the time, so a
// failure is no more than a delay.
func (s *Store) reap(ctx context.Context, q *db.Queries) {
	n, err := q.DeleteExpiredWorkers(ctx)
	if err != nil {
		s.log.WarnContext(ctx, "cannot give back the runs of expired workers", "error", err)
	}
	if n > 0 {
		s.log.InfoContext(ctx, "gave back the runs of expired workers", "workers", n)
	}
}

// Claim takes at most limit runs that nobody owns: queued ones whose time has come,
// waiting ones that a signal or their deadline woke, and those whose owner is gone.
// Each comes with a fresh epoch. A worker whose own row is missing or expired gets
// none.
func (s *Store) Claim(ctx context.Context, worker string, limit int) ([]loop.Lease, error) {
	s.reap(ctx, s.q)
	rows, err := s.q.ClaimRuns(ctx, db.ClaimRunsParams{WorkerID: worker, MaxRuns: int32(limit)})
	if err != nil {
		return nil, wrap("claim runs", err)
	}
	leases := make([]loop.Lease, len(rows))
	for i, row := range rows {
		leases[i] = loop.Lease{Run: loop.RunRef{Tenant: row.TenantID, ID: row.RunID}, Owner: worker, Epoch: row.LeaseEpoch}
	}
	return leases, nil
}

// Signalled lists the runs of this worker for which signals wait.
func (s *Store) Signalled(ctx context.Context, worker string) ([]loop.RunRef, error) {
	rows, err := s.q.ListSignalledRuns(ctx, worker)
	if err != nil {
		return nil, wrap("list signalled runs", err)
	}
	runs := make([]loop.RunRef, len(rows))
	for i, row := range rows {
		runs[i] = loop.RunRef{Tenant: row.TenantID, ID: row.RunID}
	}
	return runs, nil
}

// Retire removes the worker's row. Runs it still owns become claimable at once.
func (s *Store) Retire(ctx context.Context, worker string) error {
	return wrap("retire worker "+worker, s.renew.DeleteWorker(ctx, worker))
}
