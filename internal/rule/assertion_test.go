package rule

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

// done are the facts of a run that looked an order up, was refused a mail, and
// refunded the order; a child run of it sent a letter.
func done(answer string) loop.Facts {
	return loop.Facts{
		Run: loop.RunRef{Tenant: "acme", ID: "run-1"}, Agent: "agents/support", Labels: map[string]string{"team": "billing"},
		Iterations: 3, ToolCalls: 2, Cost: loop.OneUSD / 2, Answer: answer,
		Calls: []loop.CallHead{
			{
				Call: loop.ToolCall{ID: "c1-1", Name: "get_order", Args: `{"order":"o-17"}`}, Iteration: 1, Effect: loop.ReadOnly,
				State: loop.CallSucceeded, Outcome: loop.OutcomeOK, Result: `{"total":42.5,"lines":[{"n":1},{"n":2}]}`,
			},
			{Call: loop.ToolCall{ID: "c1-2", Name: "mail", Args: `{"to":`}, Iteration: 1, Effect: loop.SideEffect, State: loop.CallRejected, Outcome: loop.OutcomeInvalidArgs, Result: "not JSON"},
			{
				Call: loop.ToolCall{ID: "c2-1", Name: "issue_refund", Args: `{"order":"o-17","amount":50}`}, Edited: `{"order":"o-17","amount":42.5}`, Iteration: 2,
				Effect: loop.Irreversible, State: loop.CallSucceeded, Outcome: loop.OutcomeOK, Result: "refunded",
			},
		},
		Ledger: []loop.LedgerEntry{
			{Args: `{"order":"o-17","amount":42.5}`, SideEffectHead: loop.SideEffectHead{CallID: "c2-1", Tool: "issue_refund", Effect: loop.Irreversible, State: loop.CallSucceeded, Outcome: loop.OutcomeOK}},
			{SideEffectHead: loop.SideEffectHead{CallID: "c1-1", RunID: "child", Tool: "letter", Effect: loop.SideEffect, State: loop.CallInDoubt, Outcome: loop.OutcomeUnknown}},
		},
	}
}

// refunded is the example of the documentation.
const refunded = `!answer.contains('refunded') || ledger.exists(e, e.tool == 'issue_refund' && e.state == 'SUCCEEDED')`

// A fault is "?", followed by a part of its text.
func TestAssert(t *testing.T) {
	t.Parallel()
	r := rules(t)
	const holds, fails = "", "does not hold"
	never := done("You were refunded.")
	never.Ledger = never.Ledger[1:]
	for _, tt := range []struct {
		expr  string
		facts loop.Facts
		want  string
	}{
		{refunded, done("You were refunded."), holds},
		{refunded, never, fails},
		{refunded, done("Sorry."), holds},

		{`answer_json.total == 42.5 && calls.exists(c, c.result_json.total == answer_json.total)`, done(`{"total":42.5}`), holds},
		{`answer_json.total == 42.5`, done(`{"total":42}`), fails},
		{`answer_json == null`, done("no JSON"), holds},
		{`answer_json == null && answer == ''`, done(""), holds},
		{`answer_json.total > 0`, done("no JSON"), "?no such key: total"},
		{`answer_json.total > 0`, done(`{}`), "?no such key: total"},
		{`answer_json.total > 0`, done(`{"total":1,"total":-1}`), `?the answer is not plain JSON: the key "total" is given twice`},
		{`answer_json == null || answer_json.size() > 0`, done(strings.Repeat("[", 70) + strings.Repeat("]", 70)), "?nested more than 64"},
		{`answer_json == null`, done(`["` + strings.Repeat("x", maxArgs) + `"]`), "?too large to be read as JSON"},
		{`answer_json == null || answer.size() > 10`, done(`["` + strings.Repeat("x", maxArgs) + `"]`), holds}, // the known side decides

		{`calls.size() == 3 && calls[2].args.amount == 42.5 && calls[2].iteration == 2`, done(""), holds},
		{`calls.filter(c, c.tool == 'get_order').all(c, c.effect == 'READ_ONLY' && c.state == 'SUCCEEDED' && c.outcome == 'ok')`, done(""), holds},
		{`calls.exists(c, c.result_json != null && c.result_json.lines.size() == 2)`, done(""), holds},
		{`calls.exists(c, c.tool == 'mail' && !has(c.args))`, done(""), holds},
		{`calls.exists(c, c.tool == 'mail' && c.args.to == 'ann')`, done(""), "?no such key: args"},
		{`calls.all(c, c.result.contains('refunded') || c.tool != 'issue_refund')`, done(""), holds},

		{`ledger.all(e, e.state == 'SUCCEEDED')`, done(""), fails},
		{`ledger.filter(e, e.run == '').all(e, e.args.amount < 50)`, done(""), holds},
		{`ledger.exists(e, e.tool == 'letter' && !has(e.args) && e.run == 'child' && e.outcome == 'unknown')`, done(""), holds},

		{`run.id == 'run-1' && run.agent == 'agents/support' && run.labels.team == 'billing' && run.iterations == 3 && run.tool_calls == 2 && run.cost_usd == 0.5`, done(""), holds},

		{`args.amount > 1`, done(""), "?undeclared reference to 'args'"},
		{`tool.name == 'x'`, done(""), "?undeclared reference to 'tool'"},
		{`answer`, done(""), "?of type string, not bool"},
		{``, done(""), "?is empty: write one such as answer"},
	} {
		got := strings.Join(r.Assert([]loop.Assertion{{Expr: tt.expr}}, tt.facts), "\n")
		fault, faulty := strings.CutPrefix(tt.want, "?")
		switch {
		case tt.want == holds && got != "":
			t.Errorf("%s: %s", tt.expr, got)
		case tt.want == fails && got != "this must hold: "+tt.expr:
			t.Errorf("%s: %q, want it not to hold", tt.expr, got)
		case faulty && (!strings.Contains(got, "cannot be judged") || !strings.Contains(got, fault)):
			t.Errorf("%s: %q, want the fault %q", tt.expr, got, fault)
		}
	}
}

func TestAssertTellsAllThatDoNotHold(t *testing.T) {
	t.Parallel()
	got := rules(t).Assert([]loop.Assertion{
		{Expr: "run.iterations > 5", Message: "Look at more than that."}, {Expr: "true"}, {Expr: "run.tool_calls == 0"},
		{Expr: "calls[9].tool == 'x'", Message: "Ten calls are needed."},
	}, done(""))
	want := []string{"Look at more than that.", "this must hold: run.tool_calls == 0", "Ten calls are needed. (it cannot be judged: index out of bounds: 9)"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("problems (-want +got):\n%s", d)
	}
}

func TestCompileAssertion(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]string{
		refunded:                                           "",
		"answer.matches('^[A-Z]')":                         "",
		"answer_json.items.all(i, i.price > 0)":            "",
		"calls.all(c, ledger.exists(e, e.tool == c.tool))": "",
		"":                               "is empty: write one such as answer != '', over answer, answer_json",
		"answers == ''":                  "did you mean 'answer'?) (a condition may use answer, answer_json, calls and ledger",
		"ledger.size()":                  "of type int, not bool",
		"answer.matches(answer)":         "must be a literal",
		"answer.replace('a', 'b') == ''": "may not use replace",
		"calls.all(c, calls.all(d, calls.all(e, calls.all(f, f.tool == 'x'))))": "fewer loops inside loops",
		"answer == '" + strings.Repeat("x", 2000) + "'":                         "at most 2000",
	} {
		err := CompileAssertion(expr)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.100q: %v; want %q", expr, err, want)
		}
	}
}

// However much a run did, an assertion ends soon: as a fault if need be.
func TestAssertIsBounded(t *testing.T) {
	t.Parallel()
	r, huge := rules(t), done(strings.Repeat("refund ", 200_000))
	for i := range 2000 {
		c := huge.Calls[0]
		c.Call.ID, c.Result = fmt.Sprint(i), strings.Repeat(`{"a":`, 2000)+strings.Repeat("}", 2000)
		huge.Calls = append(huge.Calls, c)
		huge.Ledger = append(huge.Ledger, huge.Ledger[0])
	}
	for expr, want := range map[string]string{
		"calls.all(c, calls.exists(d, d.result.contains(c.result)))": "costs more than",
		"answer.matches('(a|b|c){50}d')":                             "costs more than",
		"calls.all(c, c.result_json.a.a == 1)":                       "cannot be judged",
		"ledger.all(e, e.state == 'FAILED')":                         "must hold",
		"calls.map(c, c.result + c.result).size() > 0 && false":      "must hold",
	} {
		got := strings.Join(r.Assert([]loop.Assertion{{Expr: expr}}, huge), "")
		if !strings.Contains(got, want) {
			t.Errorf("%s: %.200q, want %q", expr, got, want)
		}
	}
}

func TestAssertIsSharedByManyRuns(t *testing.T) {
	t.Parallel()
	r := rules(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 100 {
				expr := fmt.Sprintf("run.iterations == 3 && calls.size() > %d", n%10)
				if got := r.Assert([]loop.Assertion{{Expr: expr}}, done("")); (len(got) == 0) != (n%10 < 3) {
					t.Errorf("%d: %s: %v", i, expr, got)
				}
			}
		})
	}
	wg.Wait()
}

// Whatever people write and models answer: no panic comes out, and each says the
// same twice.
func FuzzAssert(f *testing.F) {
	for _, expr := range []string{refunded, `answer_json.a[0] == calls[0].result_json`, `ledger.map(e, e.args) != []`, `has(answer_json.a)`} {
		for _, answer := range []string{`{"a":[1]}`, `{"a":1,"a":2}`, "refunded", "\xff", `[[[[`} {
			f.Add(expr, answer)
		}
	}
	r := rules(f)
	f.Fuzz(func(t *testing.T, expr, answer string) {
		facts := done(answer)
		facts.Calls[0].Result, facts.Ledger[0].Args = answer, answer
		first, second := r.Assert([]loop.Assertion{{Expr: expr}}, facts), r.Assert([]loop.Assertion{{Expr: expr}}, facts)
		if d := cmp.Diff(first, second); d != "" {
			t.Errorf("first, then second:\n%s", d)
		}
	})
}
