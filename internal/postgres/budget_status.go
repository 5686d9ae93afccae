package postgres

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// BudgetStanding is where a budget stands, or stood, in one of its windows.
type BudgetStanding struct {
	Period
	Limit     loop.USD // the budget's amount; of a past window, as of its newest draw
	Committed loop.USD // spent
	Held      loop.USD // drawn by runs on their way, and not spent
	Marks     []BudgetMark
}

// BudgetMark is a threshold that was reached.
type BudgetMark struct {
	Percent int
	At      time.Time
}

// Remaining is what can still be drawn, never less than zero.
func (s BudgetStanding) Remaining() loop.USD { return max(0, s.Limit-s.Committed-s.Held) }

// BudgetStatus is a budget and where it stands now.
type BudgetStatus struct {
	Budget
	Current *BudgetStanding // nil for WindowRun, which has no account
	Waiting int             // runs that are paused because the budget had no room
}

// BudgetEvent is a change of a budget, or a threshold that it reached.
type BudgetEvent struct {
	ID     int64 // rises with time
	Kind   string
	At     time.Time
	By     string
	Reason string
	// Of a change. Before is nil for BudgetCreated, After for BudgetArchived.
	Before, After *BudgetTerms
	// Of BudgetThreshold.
	Percent          int
	Start            time.Time // of the window; zero: the beginning of time
	Limit, Committed loop.USD  // committed and held, when it was reached
}

// GetBudget reads a budget and where it stands. The error is a loop.ErrNotFound if the
// tenant has none of that name.
func (s *Store) GetBudget(ctx context.Context, tenant, name string) (BudgetStatus, error) {
	status, err := getBudget(ctx, s.q, tenant, name)
	return status, wrap("read budget "+name, err)
}

// ListBudgets returns at most limit budgets and where they stand, by name, behind the
// name given (empty: from the first).
func (s *Store) ListBudgets(ctx context.Context, tenant, afterName string, limit int, showArchived bool) ([]BudgetStatus, error) {
	list, err := listBudgets(ctx, s.q, db.ListBudgetsParams{
		TenantID: tenant, AfterID: afterName, PageSize: int32(limit), ShowArchived: showArchived,
	})
	if err != nil {
		return nil, wrap("list budgets", err)
	}
	statuses, err := budgetStatuses(ctx, s.q, tenant, list)
	return statuses, wrap("list budgets", err)
}

func listBudgets(ctx context.Context, q *db.Queries, params db.ListBudgetsParams) ([]Budget, error) {
	rows, err := q.ListBudgets(ctx, params)
	list := make([]Budget, len(rows))
	for i, row := range rows {
		list[i] = readBudget(db.GetBudgetRow(row))
	}
	return list, err
}

// BudgetsInForce returns the budgets of a tenant that bind runs now, by name.
func (s *Store) BudgetsInForce(ctx context.Context, tenant string) ([]Budget, error) {
	list, err := listBudgets(ctx, s.q, db.ListBudgetsParams{TenantID: tenant, PageSize: math.MaxInt32})
	return list, wrap("list the budgets in force", err)
}

// BudgetStandings says where each of some budgets of a tenant stands now: nil for one
// of WindowRun, which has no account.
func (s *Store) BudgetStandings(ctx context.Context, tenant string, list []Budget) ([]*BudgetStanding, error) {
	standings, err := standingsOf(ctx, s.q, tenant, list)
	return standings, wrap("read where budgets stand", err)
}

// ListBudgetPeriods returns at most limit windows in which a budget was drawn from, the
// newest first, of those that began before the time given (zero: all).
func (s *Store) ListBudgetPeriods(ctx context.Context, tenant, name string, before time.Time, limit int) ([]BudgetStanding, error) {
	b, err := s.GetBudget(ctx, tenant, name)
	if err != nil {
		return nil, err
	}
	if before.IsZero() {
		before = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	rows, err := s.q.ListBudgetPeriods(ctx, db.ListBudgetPeriodsParams{
		TenantID: tenant, BudgetID: name, BeforeStart: before, PageSize: int32(limit),
	})
	if err != nil {
		return nil, wrap("list the windows of budget "+name, err)
	}
	periods := make([]BudgetStanding, len(rows))
	ids := make([]string, len(rows))
	for i, row := range rows {
		ids[i], periods[i].Period = name, Period{row.StartsAt.UTC(), timeOf(row.EndsAt)}
	}
	if err := fillStandings(ctx, s.q, tenant, ids, periods); err != nil {
		return nil, wrap("list the windows of budget "+name, err)
	}
	for i, p := range periods {
		if b.Current != nil && p.Start.Equal(b.Current.Start) {
			periods[i].Limit = b.Amount // changed since the newest draw, maybe
		}
	}
	return periods, nil
}

// ListBudgetEvents returns at most limit events of a budget, the newest first, of
// those before the id given (0: all).
func (s *Store) ListBudgetEvents(ctx context.Context, tenant, name string, before int64, limit int) ([]BudgetEvent, error) {
	if before == 0 {
		before = math.MaxInt64
	}
	rows, err := s.q.ListBudgetEvents(ctx, db.ListBudgetEventsParams{
		TenantID: tenant, BudgetID: name, BeforeID: before, PageSize: int32(limit),
	})
	if err == nil && len(rows) == 0 { // every budget has the event of its creation
		err = orMissing(pgx.ErrNoRows, budgetExists(ctx, s.q, tenant, name), nil)
	}
	if err != nil {
		return nil, wrap("list the events of budget "+name, err)
	}
	events := make([]BudgetEvent, len(rows))
	for i, row := range rows {
		if events[i], err = readBudgetEvent(row); err != nil {
			return nil, fmt.Errorf("read event %d of budget %s: %w", row.ID, name, err)
		}
	}
	return events, nil
}

func readBudgetEvent(row db.ListBudgetEventsRow) (BudgetEvent, error) {
	e := BudgetEvent{
		ID: row.ID, Kind: row.Kind, At: row.At.UTC(), By: row.Actor, Reason: row.Reason, Start: timeOf(row.StartsAt),
	}
	if row.Threshold != nil && row.LimitPico != nil && row.CommittedPico != nil {
		e.Percent, e.Limit, e.Committed = int(*row.Threshold), loop.USD(*row.LimitPico), loop.USD(*row.CommittedPico)
	}
	if err := decode("before", row.Before, &e.Before); err != nil {
		return BudgetEvent{}, err
	}
	return e, decode("after", row.After, &e.After)
}

func budgetExists(ctx context.Context, q *db.Queries, tenant, name string) func() (bool, error) {
	return func() (bool, error) {
		return q.BudgetExists(ctx, db.BudgetExistsParams{TenantID: tenant, BudgetID: name})
	}
}

func getBudget(ctx context.Context, q *db.Queries, tenant, name string) (BudgetStatus, error) {
	row, err := q.GetBudget(ctx, db.GetBudgetParams{TenantID: tenant, BudgetID: name})
	if err != nil {
		return BudgetStatus{}, err
	}
	statuses, err := budgetStatuses(ctx, q, tenant, []Budget{readBudget(row)})
	if err != nil {
		return BudgetStatus{}, err
	}
	return statuses[0], nil
}

// budgetStatuses says where budgets of a tenant stand now.
func budgetStatuses(ctx context.Context, q *db.Queries, tenant string, list []Budget) ([]BudgetStatus, error) {
	statuses := make([]BudgetStatus, len(list))
	waiting := map[string]int64{}
	if len(list) > 0 {
		rows, err := q.CountBudgetWaiters(ctx, tenant)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			waiting[row.Budget] = row.Runs
		}
	}
	standings, err := standingsOf(ctx, q, tenant, list)
	if err != nil {
		return nil, err
	}
	for i, b := range list {
		statuses[i] = BudgetStatus{Budget: b, Current: standings[i], Waiting: int(waiting[budgetRef(b.Name)])}
	}
	return statuses, nil
}

// standingsOf says where each budget of a tenant stands in its current window, with nil for
// one that has no account.
func standingsOf(ctx context.Context, q *db.Queries, tenant string, list []Budget) ([]*BudgetStanding, error) {
	now := time.Now()
	standings := make([]*BudgetStanding, len(list))
	var ids []string
	var current []BudgetStanding
	for _, b := range list {
		period, hasAccount, err := b.periodAt(now)
		if err != nil {
			return nil, err
		}
		if hasAccount {
			ids, current = append(ids, b.Name), append(current, BudgetStanding{Period: period})
		}
	}
	if err := fillStandings(ctx, q, tenant, ids, current); err != nil {
		return nil, err
	}
	for i, b := range list {
		if b.Window != WindowRun {
			current[0].Limit = b.Amount // the account has that of its newest draw
			standings[i], current = &current[0], current[1:]
		}
	}
	return standings, nil
}

// fillStandings reads where budgets stand, the i-th in the window of the i-th standing.
func fillStandings(ctx context.Context, q *db.Queries, tenant string, ids []string, standings []BudgetStanding) error {
	if len(ids) == 0 {
		return nil
	}
	type window struct {
		id    string
		start int64
	}
	starts, place := make([]time.Time, len(ids)), make(map[window]*BudgetStanding, len(ids))
	for i := range standings {
		starts[i] = standings[i].Start
		place[window{ids[i], starts[i].UnixMicro()}] = &standings[i]
	}
	rows, err := q.ListBudgetStandings(ctx, db.ListBudgetStandingsParams{TenantID: tenant, BudgetIds: ids, Starts: starts})
	if err != nil {
		return err
	}
	for _, row := range rows {
		s := place[window{row.BudgetID, row.StartsAt.UnixMicro()}]
		s.Limit, s.Committed, s.Held = loop.USD(row.LimitPico), loop.USD(row.CommittedPico), loop.USD(row.HeldPico)
	}
	marks, err := q.ListBudgetThresholds(ctx, db.ListBudgetThresholdsParams{TenantID: tenant, BudgetIds: ids, Starts: starts})
	if err != nil {
		return err
	}
	for _, row := range marks {
		s := place[window{row.BudgetID, row.StartsAt.UnixMicro()}]
		s.Marks = append(s.Marks, BudgetMark{Percent: int(row.Threshold), At: row.At.UTC()})
	}
	return nil
}

// periodAt is the budget's window at a time; false: it has no account.
func (b Budget) periodAt(at time.Time) (p Period, hasAccount bool, err error) {
	if b.Window == WindowRun {
		return Period{}, false, nil
	}
	zone := b.zone
	if zone == nil {
		if zone, err = time.LoadLocation(b.TimeZone); err != nil {
			return Period{}, false, fmt.Errorf("budget %s: %w", b.Name, err)
		}
	}
	return b.Window.PeriodAt(at, zone), true, nil
}
