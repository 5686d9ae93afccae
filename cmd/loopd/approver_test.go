package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
	"github.com/loopd/loopd/internal/rule"
)

// heldPolicies is a store of one tenant's policies that counts uses by policy and day.
type heldPolicies struct {
	policies []postgres.Policy
	uses     map[string]int
	broken   error // of UsePolicy
}

func (h *heldPolicies) Policies(ctx context.Context, tenant, _ string) ([]postgres.Policy, error) {
	if tenant != "acme" {
		return nil, nil
	}
	return append([]postgres.Policy(nil), h.policies...), ctx.Err()
}

func (h *heldPolicies) UsePolicy(_ context.Context, _, policy string, _ int64, day time.Time, most int) (bool, error) {
	key := policy + " " + day.Format(time.RFC3339)
	if h.broken != nil || h.uses[key] >= most {
		return false, h.broken
	}
	h.uses[key]++
	return true, nil
}

func newApprover(t *testing.T, policies ...postgres.Policy) (approver, *heldPolicies, *bytes.Buffer) {
	t.Helper()
	judge, err := rule.New()
	if err != nil {
		t.Fatal(err)
	}
	store, logged := &heldPolicies{policies: policies, uses: map[string]int{}}, &bytes.Buffer{}
	return approver{store: store, rules: judge, log: slog.New(slog.NewTextHandler(logged, nil))}, store, logged
}

var (
	refundRun  = engine.RuleRun{Ref: loop.RunRef{Tenant: "acme", ID: "run-1"}, Agent: "agents/support"}
	refundTool = loop.ToolSpec{Name: "refund", Effect: loop.Irreversible}
)

func small(name string) postgres.Policy {
	return postgres.Policy{Name: name, Version: 3, Tool: "refund", Condition: "args.amount <= 50", MaxPerDay: 2}
}

func refund(args string) loop.ToolCall { return loop.ToolCall{ID: "c1-1", Name: "refund", Args: args} }

func TestApproverDecides(t *testing.T) {
	t.Parallel()
	a, store, _ := newApprover(t, small("a-small"), small("b-small"))

	got, ok, err := a.Decide(t.Context(), refundRun, refundTool, refund(`{"amount":50.00}`), "hash-1")

	want := loop.ApprovalDecided{CallID: "c1-1", ArgsHash: "hash-1", Approved: true, By: "policies/a-small@3", Reason: "args.amount <= 50"}
	if diff := cmp.Diff(want, got); diff != "" || !ok || err != nil {
		t.Errorf("decided %v, %v: %s", ok, err, diff)
	}
	if len(store.uses) != 1 {
		t.Errorf("counted %v; want one use of a-small", store.uses)
	}
}

func TestApproverLeavesItToAPerson(t *testing.T) {
	t.Parallel()
	other, elsewhere, archived, faulty := small("p"), small("p"), small("p"), small("p")
	other.Tool = "pay"
	elsewhere.Agents = []string{"agents/sales", "agents/support-2"}
	archived.Archived = true
	faulty.Condition = "args.amout <= 50"
	for name, tt := range map[string]struct {
		policy postgres.Policy
		args   string
	}{
		"too much":          {small("p"), `{"amount":50.01}`},
		"text for a number": {small("p"), `{"amount":"50"}`},
		"beyond 64 bits":    {small("p"), `{"amount":-99999999999999999999}`},
		"two amounts":       {small("p"), `{"amount":5,"amount":500}`},
		"missing":           {small("p"), `{}`},
		"another tool":      {other, `{"amount":5}`},
		"another agent":     {elsewhere, `{"amount":5}`},
		"archived":          {archived, `{"amount":5}`},
		"faulty condition":  {faulty, `{"amount":5}`},
	} {
		a, store, _ := newApprover(t, tt.policy)
		if got, ok, err := a.Decide(t.Context(), refundRun, refundTool, refund(tt.args), "h"); ok || err != nil || got != (loop.ApprovalDecided{}) || len(store.uses) > 0 {
			t.Errorf("%s: %v, %v, %v, counted %v", name, got, ok, err, store.uses)
		}
	}
}

func TestApproverCountsPerDay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		named := small("b-named")
		named.Agents, named.MaxPerDay = []string{"agents/support"}, 1
		a, _, _ := newApprover(t, small("a-small"), named)

		var by []string
		for range 4 {
			got, _, err := a.Decide(t.Context(), refundRun, refundTool, refund(`{"amount":5}`), "h")
			if err != nil {
				t.Fatal(err)
			}
			by = append(by, got.By)
		}
		time.Sleep(24 * time.Hour)
		next, _, err := a.Decide(t.Context(), refundRun, refundTool, refund(`{"amount":5}`), "h")

		want := []string{"policies/a-small@3", "policies/a-small@3", "policies/b-named@3", ""}
		if diff := cmp.Diff(want, by); diff != "" || next.By != want[0] || err != nil {
			t.Errorf("the next day %q, %v; one day: %s", next.By, err, diff)
		}
	})
}

func TestApproverGoesOnPastAFault(t *testing.T) {
	t.Parallel()
	faulty := small("a-faulty")
	faulty.Condition = `timestamp(args.until) > timestamp(0)`
	a, _, logged := newApprover(t, faulty, small("b-small"))

	got, ok, err := a.Decide(t.Context(), refundRun, refundTool, refund(`{"amount":5,"until":"SECRET"}`), "h")

	if !ok || err != nil || got.By != "policies/b-small@3" {
		t.Errorf("decided %v, %v, %v", got, ok, err)
	}
	if text := logged.String(); !strings.Contains(text, "policy=a-faulty") || strings.Contains(text, "SECRET") {
		t.Errorf("logged %q; want the policy, without the arguments", text)
	}
}

func TestApproverReportsTheStore(t *testing.T) {
	t.Parallel()
	a, store, _ := newApprover(t, small("a-small"))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok, err := a.Decide(ended, refundRun, refundTool, refund(`{"amount":5}`), "h"); ok || !errors.Is(err, context.Canceled) {
		t.Errorf("policies unreadable: %v, %v", ok, err)
	}

	store.broken = errors.New("disk full")
	if got, ok, err := a.Decide(t.Context(), refundRun, refundTool, refund(`{"amount":5}`), "h"); ok || !errors.Is(err, store.broken) || got.Approved {
		t.Errorf("use not counted: %v, %v, %v", got, ok, err)
	}
}

func TestRulesFitTheEngine(t *testing.T) {
	t.Parallel()
	judge, err := rule.New()
	if err != nil {
		t.Fatal(err)
	}
	var port engine.Rules = rules{judge}
	spec := loop.ToolSpec{Name: "refund", Approval: loop.Approval{Mode: loop.ApprovalWhen, When: `run.agent == "agents/support"`}}
	if got := port.NeedsApproval(spec, refund(`{}`), refundRun); got != spec.Approval.When {
		t.Errorf("%q; want the condition", got)
	}
	var _ engine.Approver = approver{}
	var _ policyStore = (*postgres.Store)(nil)
}
