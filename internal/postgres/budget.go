package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// BudgetTerms are what can be changed of a budget.
type BudgetTerms struct {
	DisplayName string       `json:"display_name,omitempty"`
	Amount      loop.USD     `json:"amount_usd"`
	Act         loop.Verdict `json:"act"`
}

// BudgetAuthor says who changes a budget, and why.
type BudgetAuthor struct {
	By     string // as the request's caller is known
	Reason string // in the caller's own words; may be empty
}

// Terms are what can be changed of the budget.
func (b Budget) Terms() BudgetTerms { return BudgetTerms{b.DisplayName, b.Amount, b.Act} }

// ETag changes with every change of the budget.
func (b Budget) ETag() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %d %q %d %t", b.DisplayName, b.Amount, b.Act, b.UpdatedAt.UnixMicro(), b.ArchivedAt.IsZero()))
	return hex.EncodeToString(sum[:8])
}

// CreateBudget creates a budget, which holds from now on. Its account begins with what
// the runs that it binds have spent in the window, calls in flight at their holds.
// Another process may go on without the budget for as long as it keeps its list of
// them: see Draw. The error is ErrBudgetExists if the name is taken. A repeated
// request, by idem, gets the budget that was created then.
func (s *Store) CreateBudget(ctx context.Context, tenant string, b Budget, author BudgetAuthor, idem Idempotency) (BudgetStatus, error) {
	return s.changeBudget(ctx, tenant, b.Name, "create", idem, func(q *db.Queries) error {
		created, err := q.InsertBudget(ctx, db.InsertBudgetParams{
			TenantID: tenant, BudgetID: b.Name, DisplayName: printable(b.DisplayName), Scope: b.Scope.word(), Agent: b.Scope.Agent,
			LabelKey: b.Scope.LabelKey, LabelValue: printable(b.Scope.LabelValue), Span: string(b.Window), TimeZone: b.TimeZone,
			AmountPico: int64(b.Amount), Act: string(b.Act), CreatedBy: printable(author.By),
		})
		if err != nil {
			return err
		}
		if created == 0 {
			return ErrBudgetExists
		}
		period, hasAccount, err := b.periodAt(time.Now())
		if err != nil {
			return err
		}
		if hasAccount {
			if err := startAccount(ctx, q, tenant, b.Name, period); err != nil {
				return err
			}
		}
		terms := b.Terms()
		return recordBudgetChange(ctx, q, tenant, b.Name, BudgetCreated, author, nil, &terms)
	})
}

// ChangeBudget replaces the budget's terms by what change makes of the budget as it
// is, and wakes the runs that wait for it. Changes that arrive together are made one
// after the other. change may be called more than once; its error is returned as it
// is, and nothing is changed then. The error is loop.ErrNotFound or ErrBudgetArchived
// if there is no budget to change. A repeated request, by idem, changes nothing more.
func (s *Store) ChangeBudget(ctx context.Context, tenant, name string, author BudgetAuthor, idem Idempotency,
	change func(Budget) (BudgetTerms, error),
) (BudgetStatus, error) {
	return s.changeBudget(ctx, tenant, name, "change", idem, func(q *db.Queries) error {
		b, err := lockBudget(ctx, q, tenant, name)
		if err != nil {
			return err
		}
		if !b.ArchivedAt.IsZero() {
			return ErrBudgetArchived
		}
		before := b.Terms()
		after, err := change(b)
		if err != nil {
			return err
		}
		if after == before {
			return nil
		}
		err = q.ChangeBudget(ctx, db.ChangeBudgetParams{
			TenantID: tenant, BudgetID: name, DisplayName: printable(after.DisplayName), AmountPico: int64(after.Amount), Act: string(after.Act),
		})
		if err != nil {
			return err
		}
		if err := relimit(ctx, q, tenant, name); err != nil {
			return err
		}
		if err := recordBudgetChange(ctx, q, tenant, name, BudgetChanged, author, &before, &after); err != nil {
			return err
		}
		return wakeBudgetWaiters(ctx, q, tenant, name)
	})
}

// ArchiveBudget retires a budget for good, and wakes the runs that wait for it.
// Archiving twice changes nothing.
func (s *Store) ArchiveBudget(ctx context.Context, tenant, name string, author BudgetAuthor, idem Idempotency) (BudgetStatus, error) {
	return s.changeBudget(ctx, tenant, name, "archive", idem, func(q *db.Queries) error {
		b, err := lockBudget(ctx, q, tenant, name)
		if err != nil || !b.ArchivedAt.IsZero() {
			return err
		}
		if err := q.ArchiveBudget(ctx, db.ArchiveBudgetParams{TenantID: tenant, BudgetID: name}); err != nil {
			return err
		}
		if err := closeChunks(ctx, q, tenant, name); err != nil {
			return err
		}
		before := b.Terms()
		if err := recordBudgetChange(ctx, q, tenant, name, BudgetArchived, author, &before, nil); err != nil {
			return err
		}
		return wakeBudgetWaiters(ctx, q, tenant, name)
	})
}

func (s *Store) changeBudget(ctx context.Context, tenant, name, verb string, idem Idempotency, apply func(q *db.Queries) error) (BudgetStatus, error) {
	c := change{tenant: tenant, id: name, attempted: verb + " budget " + name, idem: idem}
	once := func(q *db.Queries) (version int64, err error) { return 0, apply(q) }
	defer s.budgets.forget(tenant) // whether or not it is known what became of the change
	return changed(ctx, s, c, once, func(q *db.Queries, _ int64) (BudgetStatus, error) {
		return getBudget(ctx, q, tenant, name)
	})
}

func lockBudget(ctx context.Context, q *db.Queries, tenant, name string) (Budget, error) {
	row, err := q.LockBudget(ctx, db.LockBudgetParams{TenantID: tenant, BudgetID: name})
	return readBudget(db.GetBudgetRow(row)), err
}

func recordBudgetChange(ctx context.Context, q *db.Queries, tenant, name, kind string, author BudgetAuthor, before, after *BudgetTerms) error {
	params := db.InsertBudgetChangeParams{
		TenantID: tenant, BudgetID: name, Kind: kind, Actor: printable(author.By), Reason: printable(author.Reason),
	}
	for column, terms := range map[*[]byte]*BudgetTerms{&params.Before: before, &params.After: after} {
		if terms == nil {
			continue
		}
		if err := encode(column, terms); err != nil {
			return err
		}
	}
	return q.InsertBudgetChange(ctx, params)
}

// wakeBudgetWaiters lets the runs look again that wait for a budget.
func wakeBudgetWaiters(ctx context.Context, q *db.Queries, tenant, name string) error {
	woken, err := q.WakeBudgetWaiters(ctx, db.WakeBudgetWaitersParams{TenantID: tenant, Budget: budgetRef(name)})
	if err != nil || woken == 0 {
		return err
	}
	return q.NotifyWake(ctx)
}

// budgetRef is a budget's resource name, as journals have it.
func budgetRef(name string) string { return "budgets/" + name }

// readBudget makes a Budget of its row. A time zone that is not known here is
// reported when somebody needs it.
func readBudget(row db.GetBudgetRow) Budget {
	zone, _ := time.LoadLocation(row.TimeZone)
	return Budget{
		Name: row.BudgetID, DisplayName: row.DisplayName,
		Scope:  BudgetScope{Agent: row.Agent, LabelKey: row.LabelKey, LabelValue: row.LabelValue},
		Window: BudgetWindow(row.Span), TimeZone: row.TimeZone, Amount: loop.USD(row.AmountPico), Act: loop.Verdict(row.Act),
		CreatedBy: row.CreatedBy, CreatedAt: row.CreatedAt.UTC(), UpdatedAt: row.UpdatedAt.UTC(), ArchivedAt: timeOf(row.ArchivedAt),
		zone: zone,
	}
}
