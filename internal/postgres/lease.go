package postgres

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
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
// none. After an error the runs are free, or the next Claim returns them.
func (s *Store) Claim(ctx context.Context, worker string, limit int) ([]loop.Lease, error) {
	s.reap(ctx, s.q)
	leases, err := s.unheard(ctx, worker)
	if err != nil || len(leases) >= limit {
		return leases, err
	}
	claim := rand.Text()
	rows, err := s.q.ClaimRuns(ctx, db.ClaimRunsParams{
		WorkerID: worker, MaxRuns: int32(limit - len(leases)), ClaimID: claim,
	})
	if unknownOutcome(err) {
		s.claims.add(claim)
	}
	if err != nil && len(leases) == 0 {
		return nil, wrap("claim runs", err)
	}
	for _, row := range rows {
		claimed := lease(worker, row.TenantID, row.RunID, row.LeaseEpoch)
		claimed.ClaimedAt = row.ClaimedAt
		leases = append(leases, claimed)
	}
	return leases, nil
}

// unheard returns the runs of earlier claims that were committed, though the worker
// got no answer. Without it they would be owned and driven by nobody.
func (s *Store) unheard(ctx context.Context, worker string) ([]loop.Lease, error) {
	var leases []loop.Lease
	for _, claim := range s.claims.list() {
		rows, err := s.q.ListClaim(ctx, db.ListClaimParams{WorkerID: worker, ClaimID: claim.id})
		if err != nil {
			if len(leases) > 0 {
				return leases, nil // the rest comes next time
			}
			return nil, wrap("look for the runs of an unanswered claim", err)
		}
		for _, row := range rows {
			claimed := lease(worker, row.TenantID, row.RunID, row.LeaseEpoch)
			claimed.ClaimedAt = row.ListedAt
			leases = append(leases, claimed)
		}
		// The statement may still be running; afterwards it has been timed out.
		if len(rows) > 0 || time.Since(claim.at) > claimGrace {
			s.claims.remove(claim.id)
		}
	}
	return leases, nil
}

func lease(worker, tenant, run string, epoch int64) loop.Lease {
	return loop.Lease{Run: loop.RunRef{Tenant: tenant, ID: run}, Owner: worker, Epoch: epoch}
}

// claimGrace is longer than any statement runs.
const claimGrace = 30 * time.Second

// claims are those whose outcome this process does not know.
type claims struct {
	mu   sync.Mutex
	open []unansweredClaim
}

type unansweredClaim struct {
	id string
	at time.Time
}

func (c *claims) add(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = append(c.open, unansweredClaim{id, time.Now()})
}

func (c *claims) list() []unansweredClaim {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.open)
}

func (c *claims) remove(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = slices.DeleteFunc(c.open, func(claim unansweredClaim) bool { return claim.id == id })
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

// Returned lists the workers among the suspects that have registered anew after their
// attempt began, on database time: they lost the run without dying. A row outlives a
// failed renewal, but not the loss of its runs.
func (s *Store) Returned(ctx context.Context, suspects []loop.Suspect) ([]string, error) {
	var p db.ListReturnedWorkersParams
	for _, o := range suspects {
		p.WorkerIds = append(p.WorkerIds, o.Worker)
		p.Since = append(p.Since, o.Since)
	}
	workers, err := s.q.ListReturnedWorkers(ctx, p)
	return workers, wrap("look for the workers of lost attempts", err)
}

// Retire removes the worker's row. Runs it still owns become claimable at once.
func (s *Store) Retire(ctx context.Context, worker string) error {
	return wrap("retire worker "+worker, s.renew.DeleteWorker(ctx, worker))
}
