package server

import (
	"context"
	"fmt"
	"strconv"
	"time"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// budgetService keeps the money that runs share. Workers draw from it.
type budgetService struct {
	loopdv1.UnsafeBudgetServiceServer // a method that is missing does not compile

	s *Server
}

// maxBudget is above every amount that a request can write.
const maxBudget = 1_000_000 * loop.OneUSD

// CreateBudget creates a budget.
func (b *budgetService) CreateBudget(ctx context.Context, req *loopdv1.CreateBudgetRequest) (*loopdv1.Budget, error) {
	idem, err := idempotency(ctx, "CreateBudget", req)
	if err != nil {
		return nil, err
	}
	budget, err := b.draft(ctx, req.GetBudgetId(), req.GetBudget())
	if err != nil {
		return nil, err
	}
	status, err := b.s.store.CreateBudget(ctx, tenant(ctx), budget, postgres.BudgetAuthor{By: subject(ctx)}, idem)
	return b.answer(status, req.GetBudgetId(), err)
}

// draft checks what a request says of a new budget, and makes of it what is stored.
func (b *budgetService) draft(ctx context.Context, id string, asked *loopdv1.Budget) (postgres.Budget, error) {
	budget := postgres.Budget{
		Name: id, Scope: budgetScope(asked), Window: budgetWindow(asked.GetWindow()), TimeZone: asked.GetTimeZone(),
	}
	if budget.TimeZone == "" {
		budget.TimeZone = "UTC"
	}
	// "Local" is the zone of whichever machine reads it.
	if _, err := time.LoadLocation(budget.TimeZone); err != nil || budget.TimeZone == "Local" {
		return postgres.Budget{}, invalid(fieldError{"budget.time_zone", fmt.Sprintf("%q is not a time zone: write an IANA name such as \"Europe/Berlin\"", excerpt(budget.TimeZone))})
	}
	if agent := asked.GetAgent(); agent != "" {
		if _, err := b.s.agent(ctx, agent, 0); err != nil {
			return postgres.Budget{}, about(err, "budget.agent")
		}
	}
	terms, err := termsOf(id, asked, postgres.BudgetTerms{}, func(string) bool { return true })
	budget.DisplayName, budget.Amount, budget.Act = terms.DisplayName, terms.Amount, terms.Act
	return budget, err
}

// termsOf replaces the terms that the request takes by those that it asks for.
func termsOf(id string, asked *loopdv1.Budget, terms postgres.BudgetTerms, takes func(path string) bool) (postgres.BudgetTerms, error) {
	if takes("display_name") {
		terms.DisplayName = asked.GetDisplayName()
		if terms.DisplayName == "" {
			terms.DisplayName = id
		}
	}
	if takes("verdict") {
		terms.Act = actOf(asked.GetVerdict())
	}
	if takes("amount_usd") {
		amount, err := loop.ParseUSD(asked.GetAmountUsd())
		if err != nil {
			return postgres.BudgetTerms{}, invalid(fieldError{"budget.amount_usd", err.Error()})
		}
		terms.Amount = amount
	}
	return terms, nil
}

// GetBudget reads a budget and where it stands.
func (b *budgetService) GetBudget(ctx context.Context, req *loopdv1.GetBudgetRequest) (*loopdv1.Budget, error) {
	id := budgetID(req.GetName())
	status, err := b.s.store.GetBudget(ctx, tenant(ctx), id)
	return b.answer(status, id, err)
}

// ListBudgets lists budgets by name.
func (b *budgetService) ListBudgets(ctx context.Context, req *loopdv1.ListBudgetsRequest) (*loopdv1.ListBudgetsResponse, error) {
	after, err := cursorOf(req)
	if err != nil {
		return nil, err
	}
	size := pageSize(req.GetPageSize())
	budgets, err := b.s.store.ListBudgets(ctx, tenant(ctx), after, size+1, req.GetShowArchived())
	if err != nil {
		return nil, err
	}
	resp := &loopdv1.ListBudgetsResponse{}
	if len(budgets) > size {
		budgets = budgets[:size]
		resp.NextPageToken = pageToken(req, budgets[size-1].Name)
	}
	for _, status := range budgets {
		resp.Budgets = append(resp.Budgets, budgetProto(status))
	}
	return resp, nil
}

// UpdateBudget changes what can be changed of a budget.
func (b *budgetService) UpdateBudget(ctx context.Context, req *loopdv1.UpdateBudgetRequest) (*loopdv1.Budget, error) {
	idem, err := idempotency(ctx, "UpdateBudget", req)
	if err != nil {
		return nil, err
	}
	asked := req.GetBudget()
	id := budgetID(asked.GetName())
	takes := maskOf(req.GetUpdateMask())
	if req.GetUpdateMask() == nil {
		set := map[string]bool{
			"display_name": asked.GetDisplayName() != "", "amount_usd": asked.GetAmountUsd() != "",
			"verdict": asked.GetVerdict() != loopdv1.GuardVerdict_GUARD_VERDICT_UNSPECIFIED,
		}
		takes = func(path string) bool { return set[path] }
	}
	author := postgres.BudgetAuthor{By: subject(ctx), Reason: req.GetReason()}
	status, err := b.s.store.ChangeBudget(ctx, tenant(ctx), id, author, idem, func(now postgres.Budget) (postgres.BudgetTerms, error) {
		if err := unchangeable(now, asked); err != nil {
			return postgres.BudgetTerms{}, err
		}
		return termsOf(id, asked, now.Terms(), takes)
	})
	return b.answer(status, id, err)
}

// unchangeable refuses an update that is meant for the budget as it was, or that would
// make another budget of it.
func unchangeable(now postgres.Budget, asked *loopdv1.Budget) error {
	if asked.GetEtag() != "" && asked.GetEtag() != now.ETag() {
		return refuse(loopdv1.ErrorReason_ERROR_REASON_BUDGET_CHANGED,
			"somebody else changed it first: read it again, and repeat the change with the etag that it has now, or without one")
	}
	var faults []fieldError
	never := func(field, is string) {
		faults = append(faults, fieldError{"budget." + field, fmt.Sprintf("it is %s and never changes: leave it out, or create another budget", is)})
	}
	if asked.GetScope() != nil && budgetScope(asked) != now.Scope {
		field := "agent"
		if asked.GetLabel() != nil {
			field = "label"
		}
		never(field, "for "+scopeText(now.Scope))
	}
	if w := asked.GetWindow(); w != loopdv1.BudgetWindow_BUDGET_WINDOW_UNSPECIFIED && budgetWindow(w) != now.Window {
		never("window", string(now.Window))
	}
	if zone := asked.GetTimeZone(); zone != "" && zone != now.TimeZone {
		never("time_zone", strconv.Quote(now.TimeZone))
	}
	if now.Window == postgres.WindowRun && asked.GetVerdict() != loopdv1.GuardVerdict_GUARD_VERDICT_UNSPECIFIED {
		faults = append(faults, fieldError{"budget.verdict", "a budget of BUDGET_WINDOW_RUN bounds what a run may ask for, so it has none: leave it out"})
	}
	if len(faults) > 0 {
		return invalid(faults...)
	}
	return nil
}

// RaiseBudget raises a budget's amount.
func (b *budgetService) RaiseBudget(ctx context.Context, req *loopdv1.RaiseBudgetRequest) (*loopdv1.Budget, error) {
	idem, err := idempotency(ctx, "RaiseBudget", req)
	if err != nil {
		return nil, err
	}
	id := budgetID(req.GetName())
	author := postgres.BudgetAuthor{By: subject(ctx), Reason: req.GetReason()}
	status, err := b.s.store.ChangeBudget(ctx, tenant(ctx), id, author, idem, func(now postgres.Budget) (postgres.BudgetTerms, error) {
		terms := now.Terms()
		terms.Amount, err = raised(now.Amount, req)
		return terms, err
	})
	return b.answer(status, id, err)
}

// raised is the amount after a raise of the one that there is.
func raised(now loop.USD, req *loopdv1.RaiseBudgetRequest) (loop.USD, error) {
	field, text, base := "amount_usd", req.GetAmountUsd(), loop.USD(0)
	if by, ok := req.GetRaise().(*loopdv1.RaiseBudgetRequest_ByUsd); ok {
		field, text, base = "by_usd", by.ByUsd, now
	}
	asked, err := loop.ParseUSD(text)
	if err != nil {
		return 0, invalid(fieldError{field, err.Error()})
	}
	after := base + asked
	switch {
	case after <= now:
		return 0, invalid(fieldError{field, fmt.Sprintf("%s USD is no raise: the budget's amount is %s USD; UpdateBudget lowers it", text, now)})
	case after >= maxBudget:
		return 0, invalid(fieldError{field, fmt.Sprintf("the budget would be %s USD, and a budget is below %s USD: raise it by less", after, maxBudget)})
	}
	return after, nil
}

// ArchiveBudget retires a budget.
func (b *budgetService) ArchiveBudget(ctx context.Context, req *loopdv1.ArchiveBudgetRequest) (*loopdv1.Budget, error) {
	idem, err := idempotency(ctx, "ArchiveBudget", req)
	if err != nil {
		return nil, err
	}
	id := budgetID(req.GetName())
	author := postgres.BudgetAuthor{By: subject(ctx), Reason: req.GetReason()}
	status, err := b.s.store.ArchiveBudget(ctx, tenant(ctx), id, author, idem)
	return b.answer(status, id, err)
}

// ListBudgetEvents lists what happened to a budget.
func (b *budgetService) ListBudgetEvents(ctx context.Context, req *loopdv1.ListBudgetEventsRequest) (*loopdv1.ListBudgetEventsResponse, error) {
	cursor, err := cursorOf(req)
	if err != nil {
		return nil, err
	}
	var before int64
	if cursor != "" {
		if before, err = strconv.ParseInt(cursor, 10, 64); err != nil {
			return nil, errPageToken()
		}
	}
	size := pageSize(req.GetPageSize())
	events, err := b.s.store.ListBudgetEvents(ctx, tenant(ctx), budgetID(req.GetParent()), before, size+1)
	if err != nil {
		return nil, named(err, loopdv1.ErrorReason_ERROR_REASON_BUDGET_NOT_FOUND, "budget", req.GetParent())
	}
	resp := &loopdv1.ListBudgetEventsResponse{}
	if len(events) > size {
		events = events[:size]
		resp.NextPageToken = pageToken(req, strconv.FormatInt(events[size-1].ID, 10))
	}
	for _, event := range events {
		resp.Events = append(resp.Events, budgetEventProto(event))
	}
	return resp, nil
}

// ListBudgetPeriods lists a budget's windows.
func (b *budgetService) ListBudgetPeriods(ctx context.Context, req *loopdv1.ListBudgetPeriodsRequest) (*loopdv1.ListBudgetPeriodsResponse, error) {
	cursor, err := cursorOf(req)
	if err != nil {
		return nil, err
	}
	var before time.Time
	if cursor != "" {
		if before, err = time.Parse(time.RFC3339Nano, cursor); err != nil {
			return nil, errPageToken()
		}
	}
	size := pageSize(req.GetPageSize())
	periods, err := b.s.store.ListBudgetPeriods(ctx, tenant(ctx), budgetID(req.GetParent()), before, size+1)
	if err != nil {
		return nil, named(err, loopdv1.ErrorReason_ERROR_REASON_BUDGET_NOT_FOUND, "budget", req.GetParent())
	}
	resp := &loopdv1.ListBudgetPeriodsResponse{}
	if len(periods) > size {
		periods = periods[:size]
		resp.NextPageToken = pageToken(req, periods[size-1].Start.Format(time.RFC3339Nano))
	}
	for _, period := range periods {
		resp.Periods = append(resp.Periods, periodProto(&period))
	}
	return resp, nil
}

// answer shows a budget, or says what stood in the way.
func (b *budgetService) answer(status postgres.BudgetStatus, id string, err error) (*loopdv1.Budget, error) {
	if err != nil {
		b.s.countMismatch(err)
		return nil, named(err, loopdv1.ErrorReason_ERROR_REASON_BUDGET_NOT_FOUND, "budget", budgetName(id))
	}
	return budgetProto(status), nil
}
