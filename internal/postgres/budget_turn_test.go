package postgres

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/loopd/loopd/internal/loop"
)

// Runs that wait for the account of one budget leave the connections to others.
func TestWaitingDrawsTakeNoConnections(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	budgetIn(t, s, "daily", WindowTotal, 100*loop.OneUSD, BudgetScope{})
	const runs = 24 // more than the pool has connections
	for range runs {
		create(t, s)
	}
	renew(t, s, "w1", time.Hour)
	leases := claim(t, s, "w1", runs)
	if _, err := s.Draw(t.Context(), leases[0], need(loop.MilliUSD)); err != nil { // the account is there now
		t.Fatal(err)
	}
	tx, err := s.appends.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT 1 FROM budget_accounts FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	var draws errgroup.Group
	for _, l := range leases {
		draws.Go(func() error {
			_, err := s.Draw(t.Context(), l, need(loop.OneUSD))
			return err
		})
	}
	until(t, "all draws wait", func() bool {
		s.draws.mu.Lock()
		defer s.draws.mu.Unlock()
		return s.draws.tenants[tenant] != nil && s.draws.tenants[tenant].draws == runs
	})

	if n := s.pool.Stat().AcquiredConns(); n > 2 {
		t.Errorf("%d connections are in use by draws that wait", n)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := draws.Wait(); err != nil {
		t.Error(err)
	}
	if n := len(s.draws.tenants); n != 0 {
		t.Errorf("%d tenants are remembered after their last draw", n)
	}
}

// Tenants do not wait for each other, and who leaves the queue takes no turn with him.
func TestTurnsAreATenantsOwn(t *testing.T) {
	t.Parallel()
	var all turns
	give, err := all.take(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	if giveOther, err := all.take(t.Context(), "two"); err != nil {
		t.Errorf("the other tenant: %v", err)
	} else {
		giveOther()
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := all.take(gone, "one"); !errors.Is(err, context.Canceled) {
		t.Errorf("a turn while another has it: %v", err)
	}

	give()
	if give, err = all.take(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	give()

	if len(all.tenants) != 0 {
		t.Errorf("left behind: %v", all.tenants)
	}
}
