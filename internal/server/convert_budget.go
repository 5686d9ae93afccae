package server

import (
	"strings"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

func budgetProto(s postgres.BudgetStatus) *loopdv1.Budget {
	b := &loopdv1.Budget{
		Name: budgetName(s.Name), DisplayName: s.DisplayName, Etag: s.ETag(),
		CreateTime: timeProto(s.CreatedAt), UpdateTime: timeProto(s.UpdatedAt), ArchiveTime: timeProto(s.ArchivedAt),
		Window:    loopdv1.BudgetWindow(enumNumber(loopdv1.BudgetWindow(0), "BUDGET_WINDOW_", string(s.Window))),
		AmountUsd: s.Amount.String(), Current: periodProto(s.Current), WaitingRuns: clampInt32(s.Waiting),
	}
	switch {
	case s.Scope.Agent != "":
		b.Scope = &loopdv1.Budget_Agent{Agent: s.Scope.Agent}
	case s.Scope.LabelKey != "":
		b.Scope = &loopdv1.Budget_Label{Label: &loopdv1.BudgetLabel{Key: s.Scope.LabelKey, Value: s.Scope.LabelValue}}
	}
	if s.Window != postgres.WindowRun {
		b.Verdict = guardVerdictProto(s.Act)
		if s.Window != postgres.WindowTotal {
			b.TimeZone = s.TimeZone
		}
	}
	return b
}

func budgetScope(b *loopdv1.Budget) postgres.BudgetScope {
	return postgres.BudgetScope{Agent: b.GetAgent(), LabelKey: b.GetLabel().GetKey(), LabelValue: b.GetLabel().GetValue()}
}

// scopeText says whose runs a budget binds.
func scopeText(s postgres.BudgetScope) string {
	switch {
	case s.Agent != "":
		return s.Agent
	case s.LabelKey != "":
		return "the label " + s.LabelKey + "=" + s.LabelValue
	}
	return "all runs"
}

func budgetWindow(w loopdv1.BudgetWindow) postgres.BudgetWindow {
	return postgres.BudgetWindow(strings.TrimPrefix(w.String(), "BUDGET_WINDOW_"))
}

// actOf reads what happens to a run for which no money is left.
func actOf(v loopdv1.GuardVerdict) loop.Verdict {
	if v == loopdv1.GuardVerdict_GUARD_VERDICT_UNSPECIFIED {
		return loop.VerdictFinalTurn
	}
	return guardVerdictOf(v)
}

// periodProto shows where a budget stands; nil: it has no account.
func periodProto(s *postgres.BudgetStanding) *loopdv1.BudgetPeriod {
	if s == nil {
		return nil
	}
	p := &loopdv1.BudgetPeriod{
		StartTime: timeProto(s.Start), ResetTime: timeProto(s.End), LimitUsd: s.Limit.String(),
		CommittedUsd: s.Committed.String(), HeldUsd: s.Held.String(), RemainingUsd: s.Remaining().String(),
	}
	for _, mark := range s.Marks {
		p.Thresholds = append(p.Thresholds, &loopdv1.BudgetThreshold{Percent: clampInt32(mark.Percent), Time: timeProto(mark.At)})
	}
	return p
}

func budgetEventProto(e postgres.BudgetEvent) *loopdv1.BudgetEvent {
	event := &loopdv1.BudgetEvent{
		Kind: loopdv1.BudgetEventKind(enumNumber(loopdv1.BudgetEventKind(0), "BUDGET_EVENT_KIND_", e.Kind)),
		Time: timeProto(e.At), Author: e.By, Reason: e.Reason, Before: budgetTermsProto(e.Before), After: budgetTermsProto(e.After),
	}
	if e.Kind == postgres.BudgetThreshold {
		event.Percent, event.StartTime = clampInt32(e.Percent), timeProto(e.Start)
		event.LimitUsd, event.CommittedUsd = e.Limit.String(), e.Committed.String()
	}
	return event
}

func budgetTermsProto(t *postgres.BudgetTerms) *loopdv1.BudgetTerms {
	if t == nil {
		return nil
	}
	return &loopdv1.BudgetTerms{DisplayName: t.DisplayName, AmountUsd: t.Amount.String(), Verdict: guardVerdictProto(t.Act)}
}
