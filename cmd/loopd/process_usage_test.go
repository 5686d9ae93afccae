package main

import (
	"bytes"
	"math/big"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// spenders are runs that spend in all ways there are: through a child run, with and
// without a report, in vain, for a call that failed, and for one whose worker dies.
const spenders = `
models:
  boss:
    answers:
      - calls: [{name: reader, args: {input: "look"}}]
      - text: "it is blue"
  reader:
    answers:
      - calls: [{name: look, args: {n: 1}}, {name: look, args: {n: 2}}, {name: touch}]
        usage: {input: 1001, cache_read: 2003, cache_write: 307, cache_write_1h: 11, output: 101, reasoning: 7}
      - text: "it is blue"
        usage: {missing: true}
  stuck:
    answers:
      - calls: [{name: look, args: {n: 1}}]
    loop_from: 1
  unlucky:
    answers:
      - errors: [{class: timeout}, {class: not_started}]
        text: "third time lucky"
  slow:
    answers:
      - text: "at last"
        delay: DELAY
`

// heldCall is a settled model call as holds keeps it.
type heldCall struct {
	RunID        string
	Call         int
	Amount, Cost loop.USD
	Model        string
	PriceVersion string
	Uncached     int64
	Read         int64
	W5, W1       int64
	Output       int64
	Reasoning    int64
	Estimated    bool
	Saved        loop.USD
}

// Each model call's cost follows from its usage and the row of the price book that it
// names, or is its hold and marked. The API's sums are those of the calls, once each.
func TestUsageOfRealRuns(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newShop(t)
	first := start(t, db, strings.Replace(spenders, "DELAY", "10m", 1))
	look, touch := tools.tool("look", "look", readOnly), tools.tool("touch", "touch", readOnly)
	first.define("reader", &loopdv1.AgentSpec{Tools: []*loopdv1.Tool{look, touch}})
	first.define("boss", &loopdv1.AgentSpec{Tools: []*loopdv1.Tool{
		{Name: "reader", Effect: readOnly, Kind: &loopdv1.Tool_Agent{Agent: &loopdv1.AgentTool{Agent: "agents/reader"}}},
	}})
	first.define("stuck", &loopdv1.AgentSpec{Tools: []*loopdv1.Tool{look}})
	first.define("unlucky", &loopdv1.AgentSpec{})
	first.define("slow", &loopdv1.AgentSpec{})
	slow := first.start("slow").GetName()
	first.until(slow, "model_started", 1)
	first.kill()
	second := start(t, db, strings.Replace(spenders, "DELAY", "0s", 1))
	roots := []*loopdv1.Run{
		second.ended(second.start("boss").GetName(), succeeded), second.ended(second.start("stuck").GetName(), loopdv1.RunState_RUN_STATE_STOPPED),
		second.ended(second.start("unlucky").GetName(), succeeded), second.ended(slow, succeeded),
	}

	calls := settledCalls(t, db)
	var cost, estimated loop.USD
	marked := 0
	for _, c := range calls {
		cost += c.Cost
		if c.Estimated {
			estimated += c.Cost
			marked++
		}
	}
	spent := new(big.Rat)
	for _, run := range roots { // a root's cost has its children's in it
		spent.Add(spent, dollars(t, run.GetCostUsd()))
	}
	var byRun, byTool, waste loopdv1.QueryUsageResponse
	second.ask(http.MethodGet, "/v1/usage:query?group_by=agent&group_by=state", "", &byRun)
	second.ask(http.MethodGet, "/v1/usage:query?group_by=tool", "", &byTool)
	second.ask(http.MethodGet, "/v1/usage:query?states=RUN_STATE_STOPPED", "", &waste)
	total := byRun.GetTotal()
	if total.GetCostUsd() != cost.String() || spent.Cmp(dollars(t, cost.String())) != 0 || total.GetCostEstimatedUsd() != estimated.String() {
		t.Errorf("usage says %s USD, %s of it estimated; the calls cost %s and %s, the roots %s", total.GetCostUsd(), total.GetCostEstimatedUsd(), cost, estimated, spent.FloatString(12))
	}
	if marked != 3 {
		t.Errorf("%d calls are marked as estimated, want the unreported, the failed and the lost one", marked)
	}
	if total.GetRuns() != 5 || total.GetSucceededRuns() != 4 || total.GetModelCalls() != int64(len(calls)) || total.GetWastedUsd() != roots[1].GetCostUsd() || waste.GetTotal().GetCostUsd() != roots[1].GetCostUsd() {
		t.Errorf("the total is %v, want 5 runs, 4 of which succeeded, %d calls, and %s USD wasted", total, len(calls), roots[1].GetCostUsd())
	}
	for _, rows := range [][]*loopdv1.UsageRow{byRun.GetRows(), byTool.GetRows()} {
		sum := new(big.Rat)
		for _, row := range rows {
			sum.Add(sum, dollars(t, row.GetFigures().GetCostUsd()))
		}
		if sum.Cmp(spent) != 0 {
			t.Errorf("the groups cost %s USD in all, want %s", sum.FloatString(12), spent.FloatString(12))
		}
	}

	var out bytes.Buffer
	env := Env{Getenv: func(string) string { return "" }, Stdout: &out, Stderr: &out, Stdin: strings.NewReader("")}
	if code := run(second.context, []string{"usage", "--since", "1h", "--by", "agent,model", "--server", second.grpc}, env); code != exitOK || !regexp.MustCompile(`(?m)^agents/reader +scripted/reader +1 +1 +2 +3 +0 `).MatchString(out.String()) {
		t.Errorf("loopd usage: exit code %d\n%s", code, &out)
	}
}

// settledCalls reads all settled model calls, and fails the test for those whose cost
// does not follow from what is kept.
func settledCalls(t *testing.T, db string) []heldCall {
	t.Helper()
	store, err := postgres.Open(t.Context(), postgres.Config{URL: db})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	rows, err := connect(t, db).Query(t.Context(), `SELECT run_id::text, call, amount_pico AS amount, settled_pico AS cost, model, price_version, input_uncached AS uncached,
		cache_read AS read, cache_write_5m AS w5, cache_write_1h AS w1, output, reasoning, estimated, saved_pico AS saved FROM holds WHERE state = 'settled'`)
	if err != nil {
		t.Fatal(err)
	}
	calls, err := pgx.CollectRows(rows, pgx.RowToStructByName[heldCall])
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range calls {
		spec, err := store.GetSpec(t.Context(), loop.RunRef{Tenant: "default", ID: c.RunID})
		if err != nil {
			t.Fatal(err)
		}
		price, usage := spec.Price, loop.Usage{InputUncached: c.Uncached, CacheRead: c.Read, CacheWrite5m: c.W5, CacheWrite1h: c.W1, Output: c.Output, Reasoning: c.Reasoning}
		want := price.Cost(usage).Total()
		switch {
		case c.Model != price.Model || c.PriceVersion != price.Version || price.Version == "":
			t.Errorf("call %d of %s names %s of %q, its run has %s of %q", c.Call, c.Model, c.Model, c.PriceVersion, price.Model, price.Version)
		case c.Estimated && (c.Cost != c.Amount || c.Saved != 0):
			t.Errorf("call %d of %s is estimated at %s USD, its hold was %s", c.Call, c.Model, c.Cost, c.Amount)
		case !c.Estimated && (c.Cost != want || c.Saved != price.CacheSaved(usage)):
			t.Errorf("call %d of %s cost %s USD and saved %s, its usage makes that %s and %s", c.Call, c.Model, c.Cost, c.Saved, want, price.CacheSaved(usage))
		}
	}
	return calls
}
