package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/pgtest"
)

// budgetIn creates a budget for all runs of the test's tenant, or those of a scope.
func budgetIn(t *testing.T, s *Store, name string, window BudgetWindow, amount loop.USD, scope BudgetScope) {
	t.Helper()
	b := Budget{Name: name, Scope: scope, Window: window, TimeZone: "UTC", Amount: amount, Act: loop.VerdictFinalTurn}
	if _, err := s.CreateBudget(t.Context(), tenant, b, BudgetAuthor{By: "ann"}, Idempotency{}); err != nil {
		t.Fatal(err)
	}
}

// createRich creates a run that only budgets stop.
func createRich(t *testing.T, s *Store) {
	t.Helper()
	spec := spec()
	spec.Limits.Cost = 100 * loop.OneUSD
	if _, _, err := s.CreateRun(t.Context(), newRef(), spec, Idempotency{}); err != nil {
		t.Fatal(err)
	}
}

func need(amount loop.USD) loop.AccountNeed {
	return loop.AccountNeed{Agent: spec().Agent, Labels: spec().Labels, Amount: amount}
}

// A budget that many runs draw from at once is never overshot, at any instant, and
// nobody waits for each other in a circle.
func TestBudgetsUnderLoad(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	s := openURL(t, Config{URL: pgtest.URL(t), Log: slog.New(slog.NewTextHandler(&log, nil))})
	budgetIn(t, s, "tenant", WindowTotal, loop.OneUSD, BudgetScope{})
	budgetIn(t, s, "agent", WindowTotal, 2*loop.OneUSD, BudgetScope{Agent: spec().Agent})
	budgetIn(t, s, "label", WindowMonth, 3*loop.OneUSD/2, BudgetScope{LabelKey: "team", LabelValue: "care"})
	const runs = 24
	for range runs {
		createRich(t, s)
	}
	renew(t, s, "worker", time.Hour)
	sampling, stop := context.WithCancel(t.Context())
	var sampler, work errgroup.Group
	samples := 0
	sampler.Go(func() error {
		for sampling.Err() == nil {
			if err := overshot(t.Context(), s); err != nil {
				return err
			}
			samples++
		}
		return nil
	})
	for _, l := range claim(t, s, "worker", runs) {
		work.Go(func() error { return spendAll(t.Context(), s, l) })
	}
	work.Go(func() error { // budgets come and change meanwhile
		for i := range 10 {
			b := Budget{Name: fmt.Sprint("late-", i), Window: WindowTotal, TimeZone: "UTC", Amount: 100 * loop.OneUSD, Act: loop.VerdictStop}
			if _, err := s.CreateBudget(t.Context(), tenant, b, BudgetAuthor{}, Idempotency{}); err != nil {
				return err
			}
			_, err := s.ChangeBudget(t.Context(), tenant, "tenant", BudgetAuthor{}, Idempotency{}, func(b Budget) (BudgetTerms, error) {
				b.Amount += loop.OneUSD / 10
				return b.Terms(), nil
			})
			if err != nil {
				return err
			}
			if _, err := s.ArchiveBudget(t.Context(), tenant, b.Name, BudgetAuthor{}, Idempotency{}); err != nil {
				return err
			}
		}
		return nil
	})
	if err := work.Wait(); err != nil {
		t.Error(err)
	}
	stop()
	if err := sampler.Wait(); err != nil {
		t.Error(err)
	}
	if samples < 10 {
		t.Errorf("only %d samples were taken", samples)
	}
	if text := log.String(); strings.Contains(text, "deadlock") {
		t.Errorf("transactions waited for each other:\n%s", text)
	}
	status, err := s.GetBudget(t.Context(), tenant, "label")
	if err != nil {
		t.Fatal(err)
	}
	if c := status.Current; c.Held != 0 || c.Committed < loop.OneUSD || c.Committed > c.Limit {
		t.Errorf("in the end %s USD are spent and %s held, of %s", c.Committed, c.Held, c.Limit)
	}
}

// spendAll makes model calls until a budget says no, and ends the run.
func spendAll(ctx context.Context, s *Store, l loop.Lease) error {
	seq := int64(2)
	for call := 1; ; call++ {
		amount := loop.USD(rand.Int64N(100)+1) * loop.MilliUSD
		refused, err := s.Draw(ctx, l, need(amount))
		if err != nil {
			return err
		}
		if refused != nil {
			end := batch(l, seq, loop.Finished{State: loop.StateStopped})
			end.Head = loop.Head{State: loop.StateStopped, Stop: &loop.Stop{Reason: loop.AccountBudget}, EndedAt: at(9)}
			return s.Append(ctx, l, end)
		}
		hold := loop.ModelStarted{Call: call, Model: "scripted/demo", Hold: amount * 3 / 4}
		cost := loop.Cost{Output: loop.USD(rand.Int64N(int64(hold.Hold) + 1))}
		if err := s.Append(ctx, l, batch(l, seq, hold)); err != nil {
			return err
		}
		if err := s.Append(ctx, l, batch(l, seq+1, loop.ModelFailed{Call: call, Class: loop.ErrorServer, Cost: cost})); err != nil {
			return err
		}
		seq += 2
	}
}

// overshot reads one snapshot and compares every account with its limit.
func overshot(ctx context.Context, s *Store) error {
	var faults string
	err := s.pool.QueryRow(ctx, `SELECT coalesce(string_agg(s.budget_id || ': ' || s.committed_pico || ' + ' || s.held_pico || ' of ' || s.limit_pico, ', '), '')
		FROM budget_standing s JOIN budget_accounts a USING (tenant_id, budget_id, starts_at)
		WHERE s.committed_pico + s.held_pico > s.limit_pico OR a.excess_pico > 0 OR a.committed_pico + a.held_pico > a.limit_pico`).Scan(&faults)
	if err == nil && faults != "" {
		err = errors.New("overshot: " + faults)
	}
	return err
}

// lockedBuffer is a log that many write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Thresholds are told of once in a window, by what is spent and held, and a refusal
// counts as all of it.
func TestBudgetThresholds(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	budgetIn(t, s, "daily", WindowTotal, loop.OneUSD, BudgetScope{})
	createRich(t, s)
	lease := claimOne(t, s, "worker")
	for _, amount := range []loop.USD{400, 490, 500, 600, 850, 990, 1001, 1002} { // milli-dollars, in all
		if _, err := s.Draw(t.Context(), lease, need(amount*loop.MilliUSD)); err != nil {
			t.Fatal(err)
		}
	}
	events, err := s.ListBudgetEvents(t.Context(), tenant, "daily", 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		if e.Kind == BudgetThreshold {
			got = append(got, fmt.Sprintf("%d at %s of %s", e.Percent, e.Committed, e.Limit))
		}
	}
	want := []string{"100 at 0.99 of 1", "80 at 0.85 of 1", "50 at 0.54 of 1"} // the newest first
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("thresholds (-want +got):\n%s", diff)
	}
}

// A budget that comes too late, or is lowered, has passed its thresholds at once.
func TestBudgetThresholdsWithoutADraw(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	createRich(t, s)
	lease := claimOne(t, s, "worker")
	mustAppend(t, s, lease, batch(lease, 2, loop.ModelStarted{Call: 1, Hold: loop.OneUSD / 2}))
	mustAppend(t, s, lease, batch(lease, 3, loop.ModelFailed{Call: 1, Class: loop.ErrorServer, Cost: loop.Cost{Output: loop.OneUSD / 4}}))
	marks := func() (percents []int) {
		t.Helper()
		status, err := s.GetBudget(t.Context(), tenant, "late")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range status.Current.Marks {
			percents = append(percents, m.Percent)
		}
		return percents
	}
	budgetIn(t, s, "late", WindowDay, loop.OneUSD*3/10, BudgetScope{})
	if diff := cmp.Diff([]int{50, 80}, marks()); diff != "" {
		t.Errorf("thresholds of a new budget (-want +got):\n%s", diff)
	}
	_, err := s.ChangeBudget(t.Context(), tenant, "late", BudgetAuthor{}, Idempotency{}, func(b Budget) (BudgetTerms, error) {
		b.Amount = loop.OneUSD / 5
		return b.Terms(), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{50, 80, 100}, marks()); diff != "" {
		t.Errorf("thresholds of a lowered budget (-want +got):\n%s", diff)
	}
}

// While money is plenty a run draws for some calls at once; when it gets short nobody
// takes what others need.
func TestChunks(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	budgetIn(t, s, "daily", WindowTotal, loop.OneUSD, BudgetScope{})
	for range 3 {
		createRich(t, s)
	}
	renew(t, s, "worker", time.Hour)
	leases := claim(t, s, "worker", 3)
	for i, draw := range []struct {
		run        int
		need, held loop.USD // in milli-dollars
	}{
		{0, 1, 50},
		{0, 50, 50},
		{0, 51, 100},
		{1, 700, 800}, // more than a chunk
		{2, 1, 825},   // an eighth of what is free
		{1, 860, 985}, // all but a little
		{2, 40, 1000},
	} {
		refused, err := s.Draw(t.Context(), leases[draw.run], need(draw.need*loop.MilliUSD))
		if err != nil || refused != nil {
			t.Fatalf("draw %d: %+v, %v", i, refused, err)
		}
		status, err := s.GetBudget(t.Context(), tenant, "daily")
		if err != nil {
			t.Fatal(err)
		}
		if got := status.Current.Held; got != draw.held*loop.MilliUSD {
			t.Errorf("after draw %d of %s for run %d %s USD are held, want %s", i, draw.need*loop.MilliUSD, draw.run, got, draw.held*loop.MilliUSD)
		}
	}
}

// A hold stays in the window of its dispatch, whatever day it is settled on.
func TestHoldStaysInItsWindow(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	budgetIn(t, s, "daily", WindowDay, loop.OneUSD, BudgetScope{})
	createRich(t, s)
	lease := claimOne(t, s, "worker")
	draw := func() {
		t.Helper()
		if refused, err := s.Draw(t.Context(), lease, need(loop.OneUSD/2)); err != nil || refused != nil {
			t.Fatalf("draw: %+v, %v", refused, err)
		}
	}
	draw()
	mustAppend(t, s, lease, batch(lease, 2, loop.ModelStarted{Call: 1, Hold: loop.OneUSD / 2}))
	yesterday(t, s)
	mustAppend(t, s, lease, batch(lease, 3, loop.ModelFailed{Call: 1, Class: loop.ErrorServer, Cost: loop.Cost{Output: loop.OneUSD / 4}}))
	draw()
	mustAppend(t, s, lease, batch(lease, 4, loop.ModelStarted{Call: 2, Hold: loop.OneUSD / 2}))
	periods, err := s.ListBudgetPeriods(t.Context(), tenant, "daily", time.Time{}, 10)
	if err != nil {
		t.Fatal(err)
	}
	var got [][2]loop.USD // spent and held
	for _, p := range periods {
		got = append(got, [2]loop.USD{p.Committed, p.Held})
	}
	if diff := cmp.Diff([][2]loop.USD{{0, loop.OneUSD / 2}, {loop.OneUSD / 4, 0}}, got); diff != "" {
		t.Errorf("spent and held of today and yesterday (-want +got):\n%s", diff)
	}
}

// yesterday moves all that happened to budgets a day into the past.
func yesterday(t *testing.T, s *Store) {
	t.Helper()
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{
		"SET LOCAL session_replication_role = replica",
		"UPDATE budget_accounts SET starts_at = starts_at - interval '1 day', ends_at = ends_at - interval '1 day'",
		"UPDATE chunks SET starts_at = starts_at - interval '1 day'",
		"UPDATE holds SET opened_at = opened_at - interval '1 day'",
	} {
		if _, err := tx.Exec(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The list of budgets is kept for a moment, but not past a change of one's own.
func TestBudgetListIsFresh(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	createRich(t, s)
	lease := claimOne(t, s, "worker")
	refuses := func(what string, want bool) {
		t.Helper()
		refused, err := s.Draw(t.Context(), lease, need(loop.OneUSD))
		if err != nil {
			t.Fatal(err)
		}
		if got := refused != nil; got != want {
			t.Errorf("%s: refused is %v, want %v", what, got, want)
		}
	}
	refuses("without budgets", false)
	budgetIn(t, s, "daily", WindowTotal, loop.MilliUSD, BudgetScope{})
	refuses("with a new one", true)
	if _, err := s.ArchiveBudget(t.Context(), tenant, "daily", BudgetAuthor{}, Idempotency{}); err != nil {
		t.Fatal(err)
	}
	refuses("when it is archived", false)
	// A change that another process made is not known at once.
	if _, err := s.pool.Exec(t.Context(), "UPDATE budgets SET archived_at = NULL"); err != nil {
		t.Fatal(err)
	}
	refuses("when another process changed it", false)
	s.budgets.lists[tenant] = budgetList{s.budgets.lists[tenant].budgets, time.Now().Add(-listAge)}
	refuses("two seconds later", true)
}

// A run that no budget binds asks the database for nothing.
func TestDrawWithoutBudgetsIsFree(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	budgetIn(t, s, "others", WindowTotal, 0, BudgetScope{Agent: "agents/other"})
	createRich(t, s)
	lease := claimOne(t, s, "worker")
	if _, err := s.Draw(t.Context(), lease, need(loop.OneUSD)); err != nil {
		t.Fatal(err)
	}
	s.pool.Close() // from here on every question fails
	if refused, err := s.Draw(t.Context(), lease, need(loop.OneUSD)); err != nil || refused != nil {
		t.Errorf("draw: %+v, %v", refused, err)
	}
}
