package main

import (
	"io"
	"strconv"
	"strings"
	"time"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func budgetRows(budgets []*loopdv1.Budget) [][]string {
	rows := [][]string{{"BUDGET", "RUNS", "AMOUNT", "PER", "SPENT", "HELD", "LEFT", "RESET", "WAITING"}}
	for _, b := range budgets {
		window := windowOf(b)
		if b.GetArchiveTime() != nil {
			window += ", archived"
		}
		now := b.GetCurrent()
		rows = append(rows, []string{
			b.GetName(), cut(runsOf(b), 40), usd(b.GetAmountUsd()), window, dash(now.GetCommittedUsd()), dash(now.GetHeldUsd()), dash(now.GetRemainingUsd()),
			clock(now.GetResetTime()), strconv.Itoa(int(b.GetWaitingRuns())),
		})
	}
	return rows
}

// runsOf names the runs that a budget binds.
func runsOf(b *loopdv1.Budget) string {
	switch scope := b.GetScope().(type) {
	case *loopdv1.Budget_Agent:
		return scope.Agent
	case *loopdv1.Budget_Label:
		return scope.Label.GetKey() + "=" + scope.Label.GetValue()
	}
	return "all"
}

// windowOf is the word for a budget's window.
func windowOf(b *loopdv1.Budget) string {
	return strings.ToLower(word(b.GetWindow(), "BUDGET_WINDOW_"))
}

// verdictWord is a verdict as --when-spent takes it.
func verdictWord(v loopdv1.GuardVerdict) string {
	return strings.ReplaceAll(strings.ToLower(word(v, "GUARD_VERDICT_")), "_", "-")
}

// budgetMoney says in one cell what is left of a budget.
func budgetMoney(b *loopdv1.Budget) string {
	now := b.GetCurrent()
	switch {
	case b.GetArchiveTime() != nil:
		return "archived"
	case now == nil:
		return "a ceiling of each run"
	}
	return usd(now.GetRemainingUsd()) + " left"
}

func showBudget(w io.Writer, b *loopdv1.Budget, now time.Time) error {
	state := "in force since " + clock(b.GetCreateTime())
	if b.GetArchiveTime() != nil {
		state = "archived at " + clock(b.GetArchiveTime()) + ": binds nothing"
	}
	amount := usd(b.GetAmountUsd()) + " per " + windowOf(b)
	if zone := b.GetTimeZone(); zone != "" {
		amount += ", " + zone
	}
	rows := [][]string{{"Budget", b.GetName()}, {"Name", b.GetDisplayName()}, {"State", state}, {"Runs", runsOf(b)}, {"Amount", amount}}
	if verdict := b.GetVerdict(); verdict != loopdv1.GuardVerdict_GUARD_VERDICT_UNSPECIFIED {
		rows = append(rows, []string{"When spent", verdictWord(verdict)})
	}
	if p := b.GetCurrent(); p != nil {
		rows = append(rows, []string{"Spent", usd(p.GetCommittedUsd())}, []string{"Held", usd(p.GetHeldUsd())}, []string{"Left", usd(p.GetRemainingUsd())})
		if reset := p.GetResetTime(); reset != nil {
			rows = append(rows, []string{"Reset", clock(reset) + ", in " + left(reset, now)})
		}
		for _, mark := range p.GetThresholds() {
			rows = append(rows, []string{strconv.Itoa(int(mark.GetPercent())) + " %", "reached " + clock(mark.GetTime())})
		}
	}
	if n := b.GetWaitingRuns(); n > 0 {
		rows = append(rows, []string{"Waiting", count(n, "run") + ": loopd budget raise " + strings.TrimPrefix(b.GetName(), "budgets/") + " --by USD lets them go on"})
	}
	return table(w, rows)
}

// showPeriods writes where a budget stood in its windows.
func showPeriods(w io.Writer, periods []*loopdv1.BudgetPeriod) error {
	if len(periods) == 0 || periods[0].GetResetTime() == nil { // the one of all time is shown already
		return nil
	}
	rows := [][]string{{"WINDOW", "LIMIT", "SPENT", "HELD", "REACHED"}}
	for _, p := range periods {
		var marks []string
		for _, mark := range p.GetThresholds() {
			marks = append(marks, strconv.Itoa(int(mark.GetPercent()))+" %")
		}
		rows = append(rows, []string{clock(p.GetStartTime()), p.GetLimitUsd(), p.GetCommittedUsd(), p.GetHeldUsd(), dash(strings.Join(marks, ", "))})
	}
	if _, err := io.WriteString(w, "\nWindows\n"); err != nil {
		return err
	}
	return indentedTable(w, "  ", rows)
}

func budgetEventRows(events []*loopdv1.BudgetEvent) [][]string {
	rows := [][]string{{"TIME", "EVENT", "WHAT", "BY", "REASON"}}
	for _, e := range events {
		kind := strings.ToLower(word(e.GetKind(), "BUDGET_EVENT_KIND_"))
		rows = append(rows, []string{clock(e.GetTime()), kind, budgetNews(e), dash(e.GetAuthor()), dash(cut(e.GetReason(), 60))})
	}
	return rows
}

// budgetNews says in one cell what an event changed, or which mark was reached.
func budgetNews(e *loopdv1.BudgetEvent) string {
	if e.GetKind() == loopdv1.BudgetEventKind_BUDGET_EVENT_KIND_THRESHOLD {
		return strconv.Itoa(int(e.GetPercent())) + " %: " + e.GetCommittedUsd() + " of " + usd(e.GetLimitUsd())
	}
	before, after := e.GetBefore(), e.GetAfter()
	switch {
	case after == nil:
		return "-"
	case before == nil:
		return usd(after.GetAmountUsd())
	}
	var parts []string
	for _, field := range [][3]string{
		{"amount", usd(before.GetAmountUsd()), usd(after.GetAmountUsd())},
		{"name", strconv.Quote(before.GetDisplayName()), strconv.Quote(after.GetDisplayName())},
		{"when spent", verdictWord(before.GetVerdict()), verdictWord(after.GetVerdict())},
	} {
		if field[1] != field[2] {
			parts = append(parts, field[0]+" "+field[1]+" -> "+field[2])
		}
	}
	return dash(strings.Join(parts, "; "))
}
