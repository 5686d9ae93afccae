package server_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// TestARaiseIsHeldToCeilings: what a budget allows each run no resume goes beyond.
func TestARaiseIsHeldToCeilings(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.budget("all", `{"window": "BUDGET_WINDOW_RUN", "amountUsd": "2"}`)
	name := w.run().GetName()
	k := w.claim()
	k.stand(loop.Tripped{Guard: "cost", Reason: loop.CostBudget, Field: "max_cost_usd", Observed: "0.98 USD spent", Message: "the next call could pass the budget"})
	resume := func(limits *loopdv1.Limits) error {
		_, err := w.runs.ResumeRun(t.Context(), &loopdv1.ResumeRunRequest{Name: name, Limits: limits})
		return err
	}

	info := errorInfo(t, resume(&loopdv1.Limits{MaxCostUsd: new("2.01")}), codes.InvalidArgument)
	want := map[string]string{"run": name, "field": "limits.max_cost_usd", "ceiling": "2", "budget": "budgets/all"}
	if d := cmp.Diff(want, info.GetMetadata()); d != "" || info.GetReason() != "LIMIT_ABOVE_CEILING" {
		t.Errorf("%s (-want +got):\n%s", info.GetReason(), d)
	}
	if err := resume(&loopdv1.Limits{MaxCostUsd: new("2")}); err != nil {
		t.Errorf("up to the ceiling: %v", err)
	}
}
