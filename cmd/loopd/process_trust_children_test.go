package main

import (
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

const family = `
models:
  boss:
    answers:
      - calls: [{name: reader, args: {input: "look"}}, {name: payer, args: {input: "pay"}}]
      - text: "both are done"
  reader:
    answers:
      - calls: [{name: look}]
      - text: "it is blue"
  payer:
    answers:
      - calls: [{name: pay}]
      - text: "it is paid"
`

// raise starts a parent whose two children are in the middle of a call each. Its
// children are by their agent.
func raise(p *process, tools *shop) (parent string, children map[string]string) {
	p.t.Helper()
	tools.hold()
	p.define("reader", &loopdv1.AgentSpec{Tools: []*loopdv1.Tool{tools.tool("look", "look", readOnly)}})
	p.define("payer", &loopdv1.AgentSpec{Tools: []*loopdv1.Tool{tools.tool("pay", "pay", sideEffect)}})
	agent := func(name string) *loopdv1.Tool {
		return &loopdv1.Tool{Name: name, Effect: readOnly, Kind: &loopdv1.Tool_Agent{Agent: &loopdv1.AgentTool{Agent: "agents/" + name}}}
	}
	p.define("boss", &loopdv1.AgentSpec{
		Tools: []*loopdv1.Tool{agent("reader"), agent("payer")}, Limits: &loopdv1.Limits{MaxCostUsd: new("0.5")},
	})
	parent = p.start("boss").GetName()
	tools.await(p.t, "look", 1)
	tools.await(p.t, "pay", 1)
	return parent, p.children(parent)
}

// children are the names of a run's child runs, by agent.
func (p *process) children(parent string) map[string]string {
	p.t.Helper()
	var page loopdv1.ListRunsResponse
	p.ask(http.MethodGet, "/v1/runs?parent="+parent, "", &page)
	names := map[string]string{}
	for _, child := range page.GetRuns() {
		if names[child.GetAgent()] != "" || child.GetParent() != parent {
			p.t.Errorf("%s has a child %v that it should not have", parent, child)
		}
		names[child.GetAgent()] = child.GetName()
	}
	return names
}

// dollars reads an exact amount.
func dollars(t *testing.T, amount string) *big.Rat {
	t.Helper()
	r, ok := new(big.Rat).SetString(amount)
	if !ok {
		t.Fatalf("%q is no amount", amount)
	}
	return r
}

// The only worker dies while two child runs work. Each goes on as itself, none is
// created twice, and what they cost and did is in their parent's books.
func TestPowerCutInChildren(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newShop(t)
	first := start(t, db, family)
	parent, children := raise(first, tools)
	first.kill()
	tools.release()

	second := start(t, db, family)
	call := second.doubted(children["agents/payer"])
	var doubts loopdv1.ListToolCallsResponse
	second.ask(http.MethodGet, "/v1/runs/-/toolCalls?states=TOOL_CALL_STATE_IN_DOUBT", "", &doubts)
	if got := doubts.GetToolCalls(); len(got) != 1 || got[0].GetName() != call.GetName() {
		t.Errorf("in doubt across runs are %v, want %s", got, call.GetName())
	}
	second.resolve(call.GetName(), "SUCCEEDED")
	got := second.ended(parent, succeeded)
	if diff := cmp.Diff(children, second.children(parent)); diff != "" || len(children) != 2 {
		t.Errorf("child runs (-before +after):\n%s", diff)
	}
	if rows := tools.of("look"); !sameKey(rows, 2) || len(tools.of("pay")) != 1 {
		t.Errorf("the ledger has %v %v", rows, tools.of("pay"))
	}
	if effects := got.GetSideEffects(); len(effects) != 1 || effects[0].GetToolCall() != call.GetName() || effects[0].GetIdempotencyKey() != tools.of("pay")[0].key {
		t.Errorf("the parent's side effects are %v, want its child's %s", effects, call.GetName())
	}

	pool := connect(t, db)
	var all, roots int64
	const costs = `SELECT (sum(cost.value::numeric) * 1e12)::bigint FROM events, json_each_text(body->'cost') AS cost WHERE kind IN ('model_answered', 'model_failed')`
	if err := pool.QueryRow(t.Context(), costs).Scan(&all); err != nil {
		t.Fatal(err)
	}
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM runs`).Scan(&roots); err != nil || roots != 3 {
		t.Errorf("there are %d runs, want 3: %v", roots, err)
	}
	cost := dollars(t, got.GetCostUsd())
	if want := big.NewRat(all, 1e12); cost.Cmp(want) != 0 || all == 0 {
		t.Errorf("the parent cost %s USD, the model calls of all three %s", got.GetCostUsd(), want.FloatString(12))
	}
	limits := dollars(t, "0.5")
	for _, name := range slices.Sorted(maps.Values(children)) {
		child := second.wait(name)
		if spent, share := dollars(t, child.GetCostUsd()), dollars(t, child.GetLimits().GetMaxCostUsd()); spent.Cmp(share) > 0 {
			t.Errorf("%s cost %s of %s USD", name, child.GetCostUsd(), child.GetLimits().GetMaxCostUsd())
		}
		limits.Sub(limits, dollars(t, child.GetLimits().GetMaxCostUsd()))
	}
	if limits.Sign() < 0 || cost.Cmp(dollars(t, "0.5")) > 0 {
		t.Errorf("the children had %s USD more than their parent, which cost %s", limits.FloatString(12), got.GetCostUsd())
	}
}

// A cancel goes down the tree. What reads is given up; what pays ends as what it
// truly is, and is in the parent's books.
func TestCancelReachesChildren(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newShop(t)
	p := start(t, db, family)
	parent, children := raise(p, tools)
	p.ask(http.MethodPost, "/v1/"+parent+":cancel", `{"reason": "enough"}`, &loopdv1.Run{})
	p.ended(children["agents/reader"], cancelled)
	if got, err := p.runs.GetRun(p.context, &loopdv1.GetRunRequest{Name: parent}); err != nil || got.GetDone() {
		t.Errorf("the parent did not wait for its child that pays: %v, %v", got, err)
	}
	tools.release()
	p.ended(children["agents/payer"], cancelled)
	got := p.ended(parent, cancelled)
	effects := got.GetSideEffects()
	if len(effects) != 1 || !strings.HasPrefix(effects[0].GetToolCall(), children["agents/payer"]) || effects[0].GetState() != loopdv1.ToolCallState_TOOL_CALL_STATE_SUCCEEDED {
		t.Errorf("the parent's side effects are %v, want its child's payment", effects)
	}
	sum := new(big.Rat)
	for _, run := range []string{children["agents/reader"], children["agents/payer"]} {
		sum.Add(sum, dollars(t, p.wait(run).GetCostUsd()))
	}
	if cost := dollars(t, got.GetCostUsd()); cost.Cmp(sum) <= 0 {
		t.Errorf("the parent cost %s USD, its children alone %s", got.GetCostUsd(), sum.FloatString(12))
	}
	if rows := fmt.Sprint(len(tools.of("look")), len(tools.of("pay"))); rows != "1 1" {
		t.Errorf("deliveries: %s", rows)
	}
}
