package server

import (
	"context"
	"fmt"
	"time"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// What budgets say to a run that is about to be created. Admission is a courtesy: it
// refuses at once what would be refused a moment later, and locks nothing. What holds
// is the draw before each model call.

// admit holds a run to the budgets that bind it, those for single runs first. asked
// says that the request names the most that it may cost. A request that was answered before
// is not refused for want of money: it brings the same answer again.
func (s *Server) admit(ctx context.Context, spec *loop.Spec, asked bool, idem postgres.Idempotency) error {
	budgets, err := s.store.BudgetsInForce(ctx, tenant(ctx))
	if err != nil {
		return err
	}
	if r := holdToCeilings(budgets, spec, asked); r != nil {
		return r
	}
	r, err := s.room(ctx, budgets, spec)
	if err != nil || r == nil {
		return err
	}
	answered, err := s.store.Answered(ctx, tenant(ctx), idem)
	if err != nil || answered {
		return err
	}
	return r
}

// holdToCeilings holds a run to the budgets for single runs. A request that asks for more
// money than one of them allows is refused; one that leaves it to the agent or to the
// defaults gets no more, and neither do the runs that it may start.
func holdToCeilings(budgets []postgres.Budget, spec *loop.Spec, asked bool) *refusal {
	low := ceilingOf(budgets, spec.Agent, spec.Labels)
	if low != nil && spec.Limits.Cost > low.Amount {
		if asked {
			return aboveCeiling(spec.Limits.Cost, low)
		}
		spec.Limits.Cost = low.Amount
	}
	lowerChildren(budgets, spec.Definition.Tools, spec.Labels)
	return nil
}

// aboveCeiling refuses a run that asks for more than a budget for single runs allows.
func aboveCeiling(asked loop.USD, low *postgres.Budget) *refusal {
	const field = "limits.max_cost_usd"
	r := invalid(fieldError{field, fmt.Sprintf("%s USD is above %s, which allows %s USD for each run; ask for less, or have somebody raise the budget",
		asked, budgetName(low.Name), low.Amount)})
	r.reason = loopdv1.ErrorReason_ERROR_REASON_LIMIT_ABOVE_CEILING
	r.metadata = map[string]string{"field": field, "ceiling": low.Amount.String(), "budget": budgetName(low.Name)}
	return r
}

// ceilingOf is the lowest of the budgets for single runs that bind a run, or nil.
func ceilingOf(budgets []postgres.Budget, agent string, labels map[string]string) *postgres.Budget {
	var low *postgres.Budget
	for i, b := range budgets {
		if b.Window == postgres.WindowRun && b.Scope.Binds(agent, labels) && (low == nil || b.Amount < low.Amount) {
			low = &budgets[i]
		}
	}
	return low
}

// lowerChildren holds the runs that tools start to the budgets for single runs. They
// get what their parents can spare in any case, so that less is no surprise.
func lowerChildren(budgets []postgres.Budget, tools []loop.ToolSpec, labels map[string]string) {
	for _, tool := range tools {
		if tool.Child == nil {
			continue
		}
		child := &tool.Child.Spec
		if low := ceilingOf(budgets, child.Agent, labels); low != nil {
			child.Limits.Cost = min(child.Limits.Cost, low.Amount)
		}
		lowerChildren(budgets, child.Definition.Tools, labels)
	}
}

// room refuses a run for whose first model call one of its budgets has no room.
func (s *Server) room(ctx context.Context, budgets []postgres.Budget, spec *loop.Spec) (*refusal, error) {
	var binding []postgres.Budget
	for _, b := range budgets {
		if b.Window != postgres.WindowRun && b.Scope.Binds(spec.Agent, spec.Labels) {
			binding = append(binding, b)
		}
	}
	standings, err := s.store.BudgetStandings(ctx, tenant(ctx), binding)
	if err != nil {
		return nil, err
	}
	var need loop.USD
	if binding != nil { // most runs have none, and to plan a call takes longer than to look for them
		need = loop.FirstNeed(*spec)
	}
	return exhausted(binding, standings, need), nil
}

// exhausted says which budget has no room for what a run needs, nil for none. Of
// several it is the one that has room last.
func exhausted(budgets []postgres.Budget, standings []*postgres.BudgetStanding, need loop.USD) *refusal {
	worst := -1
	for i, s := range standings {
		// What is left after zero is nothing, not even for a run that needs nothing yet.
		full := s.Remaining() < need || s.Remaining() == 0
		if full && (worst < 0 || !standings[worst].End.IsZero() && (s.End.IsZero() || s.End.After(standings[worst].End))) {
			worst = i
		}
	}
	if worst < 0 {
		return nil
	}
	name, s := budgetName(budgets[worst].Name), standings[worst]
	taken := s.Committed + s.Held
	detail := fmt.Sprintf("%s has no room for the run: %s of %s USD are spent or held, and the first model call, with a wrap-up after it, can cost %s USD",
		name, taken, s.Limit, need)
	r := refuse(loopdv1.ErrorReason_ERROR_REASON_BUDGET_EXHAUSTED, "",
		"budget", name, "limit_usd", s.Limit.String(), "committed_usd", taken.String(), "needed_usd", need.String())
	if s.End.IsZero() {
		r.detail = detail + "; it is never reset: have somebody raise it"
		return r
	}
	reset := s.End.UTC().Format(time.RFC3339)
	r.detail = detail + "; it is reset at " + reset + ": try again then, or have somebody raise it"
	r.metadata["reset_time"], r.retry = reset, max(time.Second, time.Until(s.End))
	return r
}
