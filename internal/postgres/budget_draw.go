package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

const (
	// chunkSize is what a run draws at once: some calls of a cheap model, so that the
	// account is not locked for each. Source: 0.05 USD in the specification of the guards.
	chunkSize = 50 * loop.MilliUSD
	// chunkShare bounds what a run draws beyond its need to a part of what is free: when
	// money gets short, nobody sits on what others need.
	chunkShare = 8
)

// errNoAccount: a window has no account yet.
var errNoAccount = errors.New("the window has no account yet")

// drawWindow is one budget in its current window.
type drawWindow struct {
	id string
	Period
}

// Draw makes sure that a run has drawn what its next model call needs from each budget
// that binds it: all, or nothing of any. It returns the refusal of a budget without room,
// or nil. Only a run's holder draws, and not while a call is in flight; the error is
// loop.ErrLeaseLost if the lease is no longer the caller's.
//
// Every draw of a budget waits for the one before it, but a run that still has enough of
// what it drew asks for nothing, and a run without budgets not even the database. A budget
// that another process created is heard of after 2 seconds.
func (s *Store) Draw(ctx context.Context, lease loop.Lease, need loop.AccountNeed) (*loop.AccountRefused, error) {
	for try := 1; ; try++ {
		budgets, err := s.budgetsOf(ctx, lease.Run.Tenant, need)
		if err != nil || len(budgets) == 0 {
			return nil, err
		}
		refused, err := s.drawFrom(ctx, lease, budgets, need.Amount)
		if !errors.Is(err, errNoAccount) || try == maxTries {
			return refused, wrap("draw for run "+lease.Run.ID, err)
		}
		s.budgets.forget(lease.Run.Tenant) // the budget may have been archived
	}
}

// budgetsOf returns the budgets that bind a run and have accounts, by id.
func (s *Store) budgetsOf(ctx context.Context, tenant string, need loop.AccountNeed) ([]Budget, error) {
	all, err := s.budgetsInForce(ctx, tenant)
	var binding []Budget
	for _, b := range all {
		if b.Window != WindowRun && b.Scope.Binds(need.Agent, need.Labels) {
			binding = append(binding, b)
		}
	}
	return binding, err
}

func (s *Store) drawFrom(ctx context.Context, lease loop.Lease, budgets []Budget, need loop.USD) (refused *loop.AccountRefused, err error) {
	open, err := s.q.GetOpenChunks(ctx, db.GetOpenChunksParams{TenantID: lease.Run.Tenant, RunID: lease.Run.ID})
	if err != nil {
		return nil, err
	}
	windows, err := windowsAt(budgets, open.At)
	if err != nil {
		return nil, err
	}
	if enough(open, windows, need) {
		s.metrics.draws.WithLabelValues("enough").Inc()
		return refused, nil
	}
	refused, err = s.drawAt(ctx, lease, windows, need)
	if errors.Is(err, errNoAccount) {
		// On its own: a draw locks accounts in their order, and a new row is a locked one.
		opening := db.OpenBudgetAccountsParams{TenantID: lease.Run.Tenant}
		for _, w := range windows {
			opening.BudgetIds, opening.Starts, opening.Ends = append(opening.BudgetIds, w.id), append(opening.Starts, w.Start), append(opening.Ends, w.End)
		}
		if err := s.inOne(ctx, func(q *db.Queries) error { return q.OpenBudgetAccounts(ctx, opening) }); err != nil {
			return nil, err
		}
		refused, err = s.drawAt(ctx, lease, windows, need)
	}
	return refused, err
}

func windowsAt(budgets []Budget, at time.Time) ([]drawWindow, error) {
	windows := make([]drawWindow, len(budgets))
	for i, b := range budgets {
		period, _, err := b.periodAt(at)
		if err != nil {
			return nil, err
		}
		windows[i] = drawWindow{b.Name, period}
	}
	return windows, nil
}

// enough reports whether the run's open chunks are those of the windows, and each has
// room.
func enough(open db.GetOpenChunksRow, windows []drawWindow, need loop.USD) bool {
	if len(open.Budgets) != len(windows) {
		return false
	}
	for i, id := range open.Budgets {
		has := func(w drawWindow) bool { return w.id == id && w.Start.Equal(open.Starts[i]) }
		if !slices.ContainsFunc(windows, has) || loop.USD(open.Rooms[i]) < need {
			return false
		}
	}
	return true
}

// drawAt draws in one transaction. All that it asks under the accounts' locks is asked at
// once, and all that it writes goes with the commit: others wait for these locks.
func (s *Store) drawAt(ctx context.Context, lease loop.Lease, windows []drawWindow, need loop.USD) (refused *loop.AccountRefused, err error) {
	give, err := s.draws.take(ctx, lease.Run.Tenant)
	if err != nil {
		return nil, err
	}
	defer give()
	ids, starts := columnsOf(windows)
	var warned []int16
	err = s.inPipeline(ctx, func(q *db.Queries) error {
		refused, warned = nil, nil
		_, err := q.ShareLease(ctx, db.ShareLeaseParams{
			TenantID: lease.Run.Tenant, RunID: lease.Run.ID, Epoch: lease.Epoch, Owner: lease.Owner,
		})
		if errors.Is(err, pgx.ErrNoRows) {
			return loop.ErrLeaseLost
		}
		if err != nil {
			return err
		}
		if err := q.LockBudgetAccounts(ctx, db.LockBudgetAccountsParams{TenantID: lease.Run.Tenant, BudgetIds: ids, Starts: starts}); err != nil {
			return err
		}
		if err := q.FoldChunks(ctx, db.FoldChunksParams{TenantID: lease.Run.Tenant, BudgetIds: ids, Starts: starts}); err != nil {
			return err
		}
		rows, err := q.ListDrawable(ctx, db.ListDrawableParams{
			TenantID: lease.Run.Tenant, RunID: lease.Run.ID, BudgetIds: ids, Starts: starts,
		})
		if err != nil {
			return err
		}
		if len(rows) < len(windows) {
			return errNoAccount
		}
		rows = slices.DeleteFunc(rows, func(r db.ListDrawableRow) bool { return r.Archived })
		d := newDraw(rows, need)
		refused = d.refusal()
		if err := d.write(ctx, q, lease.Run, refused == nil); err != nil {
			return err
		}
		warned, err = d.warn(ctx, q, lease.Run.Tenant, refused)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.metrics.drew(refused, warned)
	return refused, nil
}

func columnsOf(windows []drawWindow) (ids []string, starts []time.Time) {
	for _, w := range windows {
		ids, starts = append(ids, w.id), append(starts, w.Start)
	}
	return ids, starts
}

// draw is what a run takes from each of its accounts.
type draw struct {
	rows    []db.ListDrawableRow
	amounts []loop.USD // per row; -1: it does not fit
	need    loop.USD
}

// newDraw decides what to draw from the accounts that were locked.
func newDraw(rows []db.ListDrawableRow, need loop.USD) draw {
	d := draw{rows: rows, amounts: make([]loop.USD, len(rows)), need: need}
	for i, row := range rows {
		missing, free := need-roomIn(row), loop.USD(row.AmountPico)-usedOf(row)
		switch {
		case missing <= 0:
		case missing > free:
			d.amounts[i] = -1
		default:
			d.amounts[i] = max(missing, min(chunkSize, free/chunkShare))
		}
	}
	return d
}

// roomIn is what the run can still hold in its own chunk. It is negative when more was
// spent than drawn.
func roomIn(row db.ListDrawableRow) loop.USD {
	return loop.USD(row.DrawnPico - row.HeldPico - row.SpentPico)
}

// usedOf is what all runs of an account have spent and drawn.
func usedOf(row db.ListDrawableRow) loop.USD {
	return loop.USD(row.CommittedPico + row.DrawnByAllPico + row.BeyondPico)
}

// refusal is that of the account with the strictest act, or nil.
func (d draw) refusal() *loop.AccountRefused {
	var strictest *loop.AccountRefused
	for i, row := range d.rows {
		if d.amounts[i] >= 0 {
			continue
		}
		r := &loop.AccountRefused{
			Budget: budgetRef(row.BudgetID), Needed: d.need, Limit: loop.USD(row.AmountPico),
			Committed: usedOf(row) - roomIn(row), ResetAt: timeOf(row.EndsAt), Act: loop.Verdict(row.Act),
		}
		if strictest == nil || strictness(r.Act) > strictness(strictest.Act) {
			strictest = r
		}
	}
	return strictest
}

// strictness orders the acts of budgets: waiting for one does not help while another
// says stop.
func strictness(act loop.Verdict) int {
	return slices.Index([]loop.Verdict{loop.VerdictPause, loop.VerdictFinalTurn, loop.VerdictStop}, act)
}

// write opens the run's chunks with what was drawn, and closes those that it has left.
// After a refusal nothing is drawn; only what was never counted is.
func (d draw) write(ctx context.Context, q *db.Queries, run loop.RunRef, drawn bool) error {
	p := db.DrawChunksParams{TenantID: run.Tenant, RunID: run.ID, State: "open"}
	if !drawn {
		p.State = "short"
	}
	for i, row := range d.rows {
		amount := int64(d.amounts[i])
		if !drawn {
			if amount = 0; row.UncountedPico == 0 {
				continue
			}
		}
		p.BudgetIds, p.Starts = append(p.BudgetIds, row.BudgetID), append(p.Starts, row.StartsAt)
		p.Amounts, p.Uncounted, p.Calls = append(p.Amounts, amount), append(p.Uncounted, row.UncountedPico), append(p.Calls, row.Call)
	}
	if len(p.BudgetIds) > 0 {
		if err := q.DrawChunks(ctx, p); err != nil {
			return err
		}
	}
	if !drawn {
		return nil
	}
	return q.CloseOtherChunks(ctx, db.CloseOtherChunksParams{TenantID: run.Tenant, RunID: run.ID, BudgetIds: p.BudgetIds, Starts: p.Starts})
}

// warn notes the thresholds that the accounts have passed. An account that refused has
// passed all.
func (d draw) warn(ctx context.Context, q *db.Queries, tenant string, refused *loop.AccountRefused) ([]int16, error) {
	p := db.WarnOfThresholdsParams{TenantID: tenant}
	for i, row := range d.rows {
		total := usedOf(row) + max(0, d.amounts[i])
		if refused != nil {
			total = usedOf(row) + max(0, -roomIn(row))
		}
		percent := thresholdOf(total, loop.USD(row.AmountPico))
		if d.amounts[i] < 0 {
			percent = 100
		}
		if percent > int32(row.Warned) {
			p.BudgetIds, p.Starts = append(p.BudgetIds, row.BudgetID), append(p.Starts, row.StartsAt)
			p.Percents, p.Totals = append(p.Percents, percent), append(p.Totals, int64(total))
		}
	}
	if len(p.BudgetIds) == 0 {
		return nil, nil
	}
	return q.WarnOfThresholds(ctx, p)
}

// thresholdOf is the highest threshold, in percent, that a total has reached. 0: none.
func thresholdOf(total, limit loop.USD) int32 {
	for _, percent := range []int32{100, 80, 50} {
		if total.Float() >= limit.Float()*float64(percent)/100 {
			return percent
		}
	}
	return 0
}

// startAccount opens the account of a new budget with what its runs spent in the window
// before, calls in flight at their holds.
func startAccount(ctx context.Context, q *db.Queries, tenant, budget string, p Period) error {
	// What they have spent may be spread over millions of calls.
	if err := q.AllowLongRead(ctx); err != nil {
		return fmt.Errorf("allow a long read: %w", err)
	}
	err := q.StartBudgetAccount(ctx, db.StartBudgetAccountParams{TenantID: tenant, BudgetID: budget, StartsAt: p.Start, EndsAt: optional(p.End)})
	if err != nil {
		return fmt.Errorf("start the account: %w", err)
	}
	return warnNow(ctx, q, tenant, budget)
}

// relimit gives the current account of a budget its new amount. Draws on their way come
// before the change or after it.
func relimit(ctx context.Context, q *db.Queries, tenant, budget string) error {
	if err := q.RelimitBudgetAccount(ctx, db.RelimitBudgetAccountParams{TenantID: tenant, BudgetID: budget}); err != nil {
		return fmt.Errorf("change the limit of the account: %w", err)
	}
	return warnNow(ctx, q, tenant, budget)
}

// warnNow notes the thresholds that a budget has passed without a draw: it is new, or was
// lowered.
func warnNow(ctx context.Context, q *db.Queries, tenant, budget string) error {
	accounts, err := q.ListBudgetTotals(ctx, db.ListBudgetTotalsParams{TenantID: tenant, BudgetID: budget})
	if err != nil {
		return fmt.Errorf("read the account: %w", err)
	}
	for _, a := range accounts {
		percent := thresholdOf(loop.USD(a.TotalPico), loop.USD(a.LimitPico))
		if percent == 0 {
			continue
		}
		_, err := q.WarnOfThresholds(ctx, db.WarnOfThresholdsParams{
			TenantID: tenant, BudgetIds: []string{budget}, Starts: []time.Time{a.StartsAt}, Percents: []int32{percent}, Totals: []int64{a.TotalPico},
		})
		if err != nil {
			return fmt.Errorf("note the thresholds: %w", err)
		}
	}
	return nil
}

// closeChunks ends what runs have drawn from a budget that was archived: from now on they
// hold nothing in it. What is in flight is settled all the same.
func closeChunks(ctx context.Context, q *db.Queries, tenant, budget string) error {
	if err := q.LockBudgetAccount(ctx, db.LockBudgetAccountParams{TenantID: tenant, BudgetID: budget}); err != nil {
		return fmt.Errorf("lock the account: %w", err)
	}
	if err := q.CloseBudgetChunks(ctx, db.CloseBudgetChunksParams{TenantID: tenant, BudgetID: budget}); err != nil {
		return fmt.Errorf("close what runs have drawn: %w", err)
	}
	return nil
}
