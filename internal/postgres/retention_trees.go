package postgres

import (
	"context"
	"slices"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// trees are runs with all that they started, by the run that began it.
type trees map[string][]string

// runs are all runs of the trees, in order.
func (t trees) runs() []string {
	var all []string
	for _, members := range t {
		all = append(all, members...)
	}
	slices.Sort(all)
	return all
}

// deleteTrees deletes those of the trees in which every run has expired.
func (r *Retention) deleteTrees(ctx context.Context, tenant string, roots []string, p *Passed) error {
	expired, err := r.expiredTrees(ctx, tenant, roots)
	if err != nil {
		return err
	}
	if err := r.export(ctx, tenant, expired, p); err != nil {
		return err
	}
	if len(expired) == 0 {
		return nil
	}
	var deleted int64
	err = r.lead(ctx, func(q *db.Queries) (err error) {
		if err := foldAll(ctx, q, tenant, expired); err != nil {
			return err
		}
		deleted, err = deleteAll(ctx, q, tenant, expired.runs())
		return err
	})
	if err != nil {
		return err
	}
	p.Runs += deleted
	r.metrics.deleted.Add(float64(deleted))
	return nil
}

// expiredTrees leaves out trees with a run that lives, or that is kept for longer.
func (r *Retention) expiredTrees(ctx context.Context, tenant string, roots []string) (trees, error) {
	rows, err := r.s.q.ListTrees(ctx, db.ListTreesParams{TenantID: tenant, Roots: roots, Otherwise: r.keepSeconds()})
	if err != nil {
		return nil, err
	}
	found, kept := trees{}, map[string]bool{}
	for _, row := range rows {
		found[row.RootID] = append(found[row.RootID], row.RunID)
		kept[row.RootID] = kept[row.RootID] || !row.Expired
	}
	for root := range kept {
		if kept[root] {
			delete(found, root)
		}
	}
	return found, nil
}

// export exports the trees' runs, and leaves out trees of which one could not be.
func (r *Retention) export(ctx context.Context, tenant string, t trees, p *Passed) error {
	if r.cfg.Export == nil {
		return nil
	}
	for root, members := range t {
		for _, run := range members {
			err := r.cfg.Export(ctx, loop.RunRef{Tenant: tenant, ID: run})
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				r.metrics.failures.Inc()
				r.cfg.Log.WarnContext(ctx, "a run is kept because it could not be exported", "run", run, "error", err)
				p.NotExported++
				delete(t, root)
				break
			}
			r.metrics.exported.Inc()
		}
	}
	return nil
}

// foldAll has the budgets of the runs take over what these spent, and leaves out trees
// of which a budget still holds something: their chunks are part of its sums.
func foldAll(ctx context.Context, q *db.Queries, tenant string, t trees) error {
	unfolded := func() ([]db.ListUnfoldedChunksRow, error) {
		return q.ListUnfoldedChunks(ctx, db.ListUnfoldedChunksParams{TenantID: tenant, Runs: t.runs()})
	}
	chunks, err := unfolded()
	if err != nil || len(chunks) == 0 {
		return err
	}
	fold := db.FoldChunksParams{TenantID: tenant}
	for i, c := range chunks {
		if i == 0 || c.BudgetID != chunks[i-1].BudgetID || !c.StartsAt.Equal(chunks[i-1].StartsAt) {
			fold.BudgetIds, fold.Starts = append(fold.BudgetIds, c.BudgetID), append(fold.Starts, c.StartsAt)
		}
	}
	if err := q.LockBudgetAccounts(ctx, db.LockBudgetAccountsParams{TenantID: tenant, BudgetIds: fold.BudgetIds, Starts: fold.Starts}); err != nil {
		return err
	}
	if err := q.FoldChunks(ctx, fold); err != nil {
		return err
	}
	if chunks, err = unfolded(); err != nil {
		return err
	}
	for _, c := range chunks {
		for root, members := range t {
			if slices.Contains(members, c.RunID) {
				delete(t, root)
			}
		}
	}
	return nil
}

// deleteAll deletes runs with all that there is of them, and keeps what they cost.
func deleteAll(ctx context.Context, q *db.Queries, tenant string, runs []string) (int64, error) {
	if err := q.KeepUsage(ctx, db.KeepUsageParams{TenantID: tenant, Runs: runs}); err != nil {
		return 0, err
	}
	for _, err := range []error{ // after the first failure the others fail as well
		q.DeleteEventsOfRuns(ctx, db.DeleteEventsOfRunsParams{TenantID: tenant, Runs: runs}),
		q.DeleteResultsOfRuns(ctx, db.DeleteResultsOfRunsParams{TenantID: tenant, Runs: runs}),
		q.DeleteAttachmentsOfRuns(ctx, db.DeleteAttachmentsOfRunsParams{TenantID: tenant, Runs: runs}),
		q.DeleteToolCallsOfRuns(ctx, db.DeleteToolCallsOfRunsParams{TenantID: tenant, Runs: runs}),
		q.DeleteHoldsOfRuns(ctx, db.DeleteHoldsOfRunsParams{TenantID: tenant, Runs: runs}),
		q.DeleteChunksOfRuns(ctx, db.DeleteChunksOfRunsParams{TenantID: tenant, Runs: runs}),
		q.DeleteSignalsOfRuns(ctx, db.DeleteSignalsOfRunsParams{TenantID: tenant, Runs: runs}),
		q.DeleteReportsOfRuns(ctx, db.DeleteReportsOfRunsParams{TenantID: tenant, Runs: runs}),
		q.DeleteAccountsOfRuns(ctx, db.DeleteAccountsOfRunsParams{TenantID: tenant, Runs: runs}),
	} {
		if err != nil {
			return 0, err
		}
	}
	return q.DeleteRuns(ctx, db.DeleteRunsParams{TenantID: tenant, Runs: runs})
}
