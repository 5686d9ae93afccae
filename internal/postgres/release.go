package postgres

import (
	"context"
	"fmt"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// Release gives a run back without a word in its journal: it is claimable at
// once, and whoever claims it counts a recovery. It returns loop.ErrLeaseLost
// when the lease is no longer the caller's.
func (s *Store) Release(ctx context.Context, lease loop.Lease) error {
	n, err := s.q.ReleaseRun(ctx, db.ReleaseRunParams{
		TenantID: lease.Run.Tenant, RunID: lease.Run.ID, Owner: lease.Owner, Epoch: lease.Epoch,
	})
	if err == nil && n == 0 {
		err = loop.ErrLeaseLost
	}
	if err != nil {
		return fmt.Errorf("release run %s: %w", lease.Run.ID, err)
	}
	return nil
}
