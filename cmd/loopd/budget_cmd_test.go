package main

import (
	"context"
	"strings"
	"testing"
	"time"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func (f *fakeServer) CreateBudget(_ context.Context, req *loopdv1.CreateBudgetRequest) (*loopdv1.Budget, error) {
	return f.budget, f.got(req)
}

func (f *fakeServer) GetBudget(_ context.Context, req *loopdv1.GetBudgetRequest) (*loopdv1.Budget, error) {
	return f.budget, f.got(req)
}

func (f *fakeServer) ListBudgets(_ context.Context, req *loopdv1.ListBudgetsRequest) (*loopdv1.ListBudgetsResponse, error) {
	ceiling := &loopdv1.Budget{
		Name: "budgets/z-run", Window: loopdv1.BudgetWindow_BUDGET_WINDOW_RUN, AmountUsd: "2.5",
		Scope: &loopdv1.Budget_Agent{Agent: "agents/research"}, ArchiveTime: stamp(time.Hour),
	}
	return &loopdv1.ListBudgetsResponse{Budgets: []*loopdv1.Budget{f.budget, ceiling}}, f.got(req)
}

func (f *fakeServer) UpdateBudget(_ context.Context, req *loopdv1.UpdateBudgetRequest) (*loopdv1.Budget, error) {
	return f.budget, f.got(req)
}

func (f *fakeServer) RaiseBudget(_ context.Context, req *loopdv1.RaiseBudgetRequest) (*loopdv1.Budget, error) {
	return f.budget, f.got(req)
}

func (f *fakeServer) ArchiveBudget(_ context.Context, req *loopdv1.ArchiveBudgetRequest) (*loopdv1.Budget, error) {
	return f.budget, f.got(req)
}

func (f *fakeServer) ListBudgetPeriods(_ context.Context, req *loopdv1.ListBudgetPeriodsRequest) (*loopdv1.ListBudgetPeriodsResponse, error) {
	yesterday := &loopdv1.BudgetPeriod{
		StartTime: stamp(-37 * time.Hour), ResetTime: stamp(-13 * time.Hour), LimitUsd: "80", CommittedUsd: "79.25", HeldUsd: "0",
		Thresholds: []*loopdv1.BudgetThreshold{{Percent: 50}, {Percent: 80}, {Percent: 100}},
	}
	return &loopdv1.ListBudgetPeriodsResponse{Periods: []*loopdv1.BudgetPeriod{f.budget.GetCurrent(), yesterday}}, f.got(req)
}

func (f *fakeServer) ListBudgetEvents(_ context.Context, req *loopdv1.ListBudgetEventsRequest) (*loopdv1.ListBudgetEventsResponse, error) {
	terms := func(amount string, verdict loopdv1.GuardVerdict) *loopdv1.BudgetTerms {
		return &loopdv1.BudgetTerms{DisplayName: "ACME", AmountUsd: amount, Verdict: verdict}
	}
	const turn, pause = loopdv1.GuardVerdict_GUARD_VERDICT_WRAP_UP, loopdv1.GuardVerdict_GUARD_VERDICT_PAUSE
	return &loopdv1.ListBudgetEventsResponse{Events: []*loopdv1.BudgetEvent{
		{Kind: loopdv1.BudgetEventKind_BUDGET_EVENT_KIND_ARCHIVED, Time: stamp(4 * time.Hour), Author: "ann", Reason: "moved\nhouse", Before: terms("100", pause)},
		{Kind: loopdv1.BudgetEventKind_BUDGET_EVENT_KIND_CHANGED, Time: stamp(3 * time.Hour), Author: "ann", Reason: "launch day", Before: terms("80", turn), After: terms("100", pause)},
		{Kind: loopdv1.BudgetEventKind_BUDGET_EVENT_KIND_THRESHOLD, Time: stamp(2 * time.Hour), Percent: 50, StartTime: stamp(0), LimitUsd: "80", CommittedUsd: "41.2"},
		{Kind: loopdv1.BudgetEventKind_BUDGET_EVENT_KIND_CREATED, Time: stamp(0), Author: "ann", After: terms("80", turn)},
	}}, f.got(req)
}

func acmeDaily() *loopdv1.Budget {
	return &loopdv1.Budget{
		Name: "budgets/acme-daily", DisplayName: "ACME", CreateTime: stamp(-48 * time.Hour), Window: loopdv1.BudgetWindow_BUDGET_WINDOW_DAY,
		Scope:    &loopdv1.Budget_Label{Label: &loopdv1.BudgetLabel{Key: "team", Value: "web"}},
		TimeZone: "Europe/Berlin", AmountUsd: "100", Verdict: loopdv1.GuardVerdict_GUARD_VERDICT_WRAP_UP, WaitingRuns: 3,
		Current: &loopdv1.BudgetPeriod{
			StartTime: stamp(-13 * time.Hour), ResetTime: stamp(11 * time.Hour), LimitUsd: "100", CommittedUsd: "81.5", HeldUsd: "2.25", RemainingUsd: "16.25",
			Thresholds: []*loopdv1.BudgetThreshold{{Percent: 50, Time: stamp(-2 * time.Hour)}, {Percent: 80, Time: stamp(-time.Hour)}},
		},
	}
}

func TestBudgetCreateAndChange(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.budget = acmeDaily()
	term.wantCode(t, 0, term.loopd("budget", "create", "acme-daily", "--amount", "100", "--per", "day", "--time-zone", "Europe/Berlin", "--label", "team=a=b", "--when-spent", "pause"))
	term.wantRequest(t, &loopdv1.CreateBudgetRequest{BudgetId: "acme-daily", Budget: &loopdv1.Budget{
		AmountUsd: "100", Window: loopdv1.BudgetWindow_BUDGET_WINDOW_DAY, TimeZone: "Europe/Berlin", Verdict: loopdv1.GuardVerdict_GUARD_VERDICT_PAUSE,
		Scope: &loopdv1.Budget_Label{Label: &loopdv1.BudgetLabel{Key: "team", Value: "a=b"}},
	}})
	if got := term.stdout.String(); got != "budgets/acme-daily  100 USD  per day  16.25 USD left\n" {
		t.Errorf("stdout %q", got)
	}
	term.wantCode(t, 0, term.loopd("budget", "create", "budgets/a", "--amount", "1", "--per", "run", "--agent", "support"))
	term.wantRequest(t, &loopdv1.CreateBudgetRequest{BudgetId: "a", Budget: &loopdv1.Budget{
		AmountUsd: "1", Window: loopdv1.BudgetWindow_BUDGET_WINDOW_RUN, Scope: &loopdv1.Budget_Agent{Agent: "agents/support"},
	}})

	term.wantCode(t, 0, term.loopd("budget", "raise", "acme-daily", "--by", "20", "--reason", "launch day", "--request-id", "page-77"))
	term.wantRequest(t, &loopdv1.RaiseBudgetRequest{
		Name: "budgets/acme-daily", Raise: &loopdv1.RaiseBudgetRequest_ByUsd{ByUsd: "20"}, Reason: "launch day", RequestId: "page-77",
	})
	term.wantCode(t, 0, term.loopd("budget", "raise", "acme-daily", "--to", "120"))
	term.wantRequest(t, &loopdv1.RaiseBudgetRequest{Name: "budgets/acme-daily", Raise: &loopdv1.RaiseBudgetRequest_AmountUsd{AmountUsd: "120"}})

	term.wantCode(t, 0, term.loopd("budget", "update", "acme-daily", "--amount", "50", "--when-spent", "stop", "--etag", "0a", "--reason", "less"))
	term.wantRequest(t, &loopdv1.UpdateBudgetRequest{Reason: "less", Budget: &loopdv1.Budget{
		Name: "budgets/acme-daily", AmountUsd: "50", Verdict: loopdv1.GuardVerdict_GUARD_VERDICT_STOP, Etag: "0a",
	}})
}

func TestBudgetArchiveAsks(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.budget = acmeDaily()
	term.server.budget.ArchiveTime = stamp(0)
	term.stdin = "n\n"
	term.wantCode(t, exitOther, term.loopd("budget", "archive", "acme-daily"))
	if term.server.request != nil || !strings.Contains(term.stderr.String(), "nothing was changed") {
		t.Errorf("request %v, stderr %q", term.server.request, term.stderr.String())
	}
	term.stdin = "y\n"
	term.wantCode(t, 0, term.loopd("budget", "archive", "acme-daily", "--reason", "moved"))
	term.wantRequest(t, &loopdv1.ArchiveBudgetRequest{Name: "budgets/acme-daily", Reason: "moved"})
	if got := term.stdout.String(); got != "budgets/acme-daily  100 USD  per day  archived\n" {
		t.Errorf("stdout %q", got)
	}
}

func TestBudgetTables(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.budget = acmeDaily()
	term.wantCode(t, 0, term.loopd("budget", "list", "--archived"))
	term.wantRequest(t, &loopdv1.ListBudgetsRequest{PageSize: 200, ShowArchived: true})
	golden(t, "budgets.txt", term.stdout.String())

	term.wantCode(t, 0, term.loopd("budget", "show", "acme-daily"))
	term.wantRequest(t, &loopdv1.ListBudgetPeriodsRequest{Parent: "budgets/acme-daily", PageSize: 8})
	golden(t, "budget.txt", term.stdout.String())

	term.wantCode(t, 0, term.loopd("budget", "show", "acme-daily", "-o", "json"))
	if got := term.stdout.String(); !strings.Contains(got, `"remainingUsd": "16.25"`) {
		t.Errorf("as JSON: %s", got)
	}
	term.wantCode(t, 0, term.loopd("budget", "events", "acme-daily", "--limit", "4"))
	term.wantRequest(t, &loopdv1.ListBudgetEventsRequest{Parent: "budgets/acme-daily", PageSize: 4})
	golden(t, "budget_events.txt", term.stdout.String())
}
