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
	knows, err := latestMigration()
	if err != nil {
		return err
	}
	allKnow, err := s.renew.RenewWorker(ctx, db.RenewWorkerParams{WorkerID: worker, TtlSeconds: ttl.Seconds(), Knows: knows})
	if err != nil {
		return wrap("renew worker "+worker, err)
	}
	s.allKnow.Store(allKnow)
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

// Claim is ClaimFairly for a worker that drives nothing yet and takes at most limit runs.
func (s *Store) Claim(ctx context.Context, worker string, limit int) ([]loop.Lease, error) {
	return s.ClaimFairly(ctx, worker, loop.Room{Free: limit})
}

// ClaimFairly takes runs that nobody owns, as many as there is room for: queued ones whose
// time has come, waiting ones that a signal or their deadline woke, and those whose owner
// is gone, but for those that it skips. Tenants take turns, and within one its priorities
// count. Each run comes with a fresh epoch. A worker whose own row is missing or expired
// gets none. After an error the runs are free, or the next claim returns them.
func (s *Store) ClaimFairly(ctx context.Context, worker string, room loop.Room) ([]loop.Lease, error) {
	s.reap(ctx, s.q)
	leases, err := s.unheard(ctx, worker)
	if err != nil || len(leases) >= room.Free {
		return leases, err
	}
	claim := rand.Text()
	params := db.ClaimRunsParams{
		WorkerID: worker, MaxRuns: int32(room.Free - len(leases)), ClaimID: claim, PerTenant: int32(room.PerTenant),
	}
	params.ClaimWindow = claimSlack + claimLook*params.MaxRuns
	for tenant, runs := range room.Driven {
		params.DrivenTenants, params.DrivenRuns = append(params.DrivenTenants, tenant), append(params.DrivenRuns, int32(runs))
	}
	for _, run := range room.Skip {
		params.SkippedTenants, params.SkippedRuns = append(params.SkippedTenants, run.Tenant), append(params.SkippedRuns, run.ID)
	}
	rows, err := s.q.ClaimRuns(ctx, params)
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

const (
	// claimLook is how many runs a claim looks at for each that it takes: a neighbour that
	// claims at the same moment has locked the first ones.
	claimLook = 2
	// claimSlack is how many it looks at besides. Up to here one cheap scan of the oldest
	// finds all who wait, and nobody asks tenant by tenant.
	claimSlack = 64
)

// Pressure says how much waits.
type Pressure struct {
	PoolWait time.Duration // how long one waits for a connection
	QueueAge time.Duration // how long the run that waits longest has been waiting for a worker
}

// Pressure measures how much waits, by waiting itself.
func (s *Store) Pressure(ctx context.Context) (p Pressure, err error) {
	began := time.Now()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return Pressure{}, wrap("wait for a connection", err)
	}
	defer conn.Release()
	p.PoolWait = time.Since(began)
	seconds, err := db.New(conn).QueueAge(ctx)
	p.QueueAge = time.Duration(seconds * float64(time.Second))
	return p, wrap("read the age of the queue", err)
}

// QueuedRuns counts the runs of a tenant that wait for a worker, up to most.
func (s *Store) QueuedRuns(ctx context.Context, tenant string, most int) (int, error) {
	n, err := s.q.QueuedRuns(ctx, db.QueuedRunsParams{TenantID: tenant, Most: int32(most)})
	return int(n), wrap("count the queued runs of "+tenant, err)
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
