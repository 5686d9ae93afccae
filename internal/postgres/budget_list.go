package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/loopd/loopd/internal/postgres/db"
)

const (
	// listAge is how long a list of budgets is believed. A new budget binds the runs of
	// other processes after this time at the latest.
	listAge = 2 * time.Second
	// maxLists bounds the memory of a process that serves very many tenants.
	maxLists = 4096
)

// budgetLists keeps the budgets in force of each tenant for a moment, so that runs
// without budgets cost no question. Safe for concurrent use.
type budgetLists struct {
	mu      sync.Mutex
	lists   map[string]budgetList
	forgets int64 // counts the calls of forget
}

type budgetList struct {
	budgets []Budget
	read    time.Time
}

// get returns a tenant's list if it is fresh, and otherwise what put wants to know.
func (l *budgetLists) get(tenant string) (budgets []Budget, fresh bool, asOf int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list, ok := l.lists[tenant]
	return list.budgets, ok && time.Since(list.read) < listAge, l.forgets
}

// put keeps a list that was read at a time, unless something was forgotten since get.
func (l *budgetLists) put(tenant string, budgets []Budget, read time.Time, asOf int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.forgets != asOf {
		return
	}
	if l.lists == nil || len(l.lists) >= maxLists {
		l.lists = map[string]budgetList{}
	}
	l.lists[tenant] = budgetList{budgets, read}
}

// forget has a tenant's list read anew: a budget was created, changed or archived.
func (l *budgetLists) forget(tenant string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgets++
	delete(l.lists, tenant)
}

// budgetsInForce returns the budgets of a tenant that are not archived, by id. What can
// change of them may be as old as the list; what never changes is right.
func (s *Store) budgetsInForce(ctx context.Context, tenant string) ([]Budget, error) {
	budgets, fresh, asOf := s.budgets.get(tenant)
	if fresh {
		return budgets, nil
	}
	read := time.Now()
	rows, err := s.q.ListBudgetsInForce(ctx, tenant)
	if err != nil {
		return nil, wrap("list the budgets in force", err)
	}
	budgets = make([]Budget, len(rows))
	for i, row := range rows {
		budgets[i] = readBudget(db.GetBudgetRow(row))
	}
	s.budgets.put(tenant, budgets, read, asOf)
	return budgets, nil
}
