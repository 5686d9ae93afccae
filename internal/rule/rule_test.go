package rule

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

var world = Run{
	Ref: loop.RunRef{Tenant: "acme", ID: "run-1"}, Agent: "agents/support", Labels: map[string]string{"team": "billing", "env": "prod"},
	Iterations: 3, ToolCalls: 7, Cost: loop.OneUSD / 2,
}

func rules(t testing.TB) *Rules {
	t.Helper()
	r, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// under is a refund tool whose calls need approval under a condition.
func under(condition string) loop.ToolSpec {
	return loop.ToolSpec{Name: "refund", Effect: loop.SideEffect, Approval: loop.Approval{Mode: loop.ApprovalWhen, When: condition}}
}

func with(args string) loop.ToolCall { return loop.ToolCall{ID: "c1-1", Name: "refund", Args: args} }

// A fault is "?", followed by a part of its text.
func TestNeedsApprovalMoney(t *testing.T) {
	t.Parallel()
	r := rules(t)
	const no, yes = "", "args.amount > 100"
	for args, want := range map[string]string{
		`{"amount":100}`:                  no,
		`{"amount":100.0}`:                no,
		`{"amount":1e2}`:                  no,
		`{"amount":-5}`:                   no,
		`{"amount":101}`:                  yes,
		`{"amount":100.5}`:                yes,
		`{"amount":1.005E2}`:              yes,
		`{"amount":9007199254740993}`:     yes,
		`{"amount":18446744073709551615}`: yes,
		`{"amount":1e308}`:                yes,
		`{"amount":"100"}`:                "?type that does not fit",
		`{"amount":"1000000"}`:            "?type that does not fit",
		`{"amount":null}`:                 "?type that does not fit",
		`{"amount":[101]}`:                "?type that does not fit",
		`{"amount":18446744073709551616}`: "?type that does not fit",
		`{"amount":-9223372036854775809}`: "?type that does not fit",
		`{"amount":1e400}`:                "?type that does not fit",
		`{}`:                              "?no such key: amount",
		``:                                "?no such key: amount",
		`{"Amount":5}`:                    "?no such key: amount",
		`{"amount":5,"amount":500}`:       `?"amount" is given twice`,
		`{"amount":5,"x":{"y":1,"y":2}}`:  `?"y" is given twice`,
		`{"amount":5`:                     "?ends too early",
		`{"amount":5} {"amount":500}`:     "?more text follows",
		`[5]`:                             "?not a JSON object",
		`{"amount":05}`:                   "?not plain JSON",
		"{\"amount\":5,\"x\":\"\xff\"}":   "?not valid UTF-8",
		`{"amount":5,"x":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`:   "?nested more than 64 levels",
		`{"amount":5,"x":"` + strings.Repeat("x", maxArgs) + `"}`:                      "?at most 65536",
		`{"amount":5,"x":` + strings.Repeat("[", 5000) + strings.Repeat("]", 20) + `}`: "?nested more than 64 levels",
	} {
		got := r.NeedsApproval(under(yes), with(args), world)
		if fault, isFault := strings.CutPrefix(want, "?"); isFault {
			if !strings.HasPrefix(got, yes+": cannot be judged: ") || !strings.Contains(got, fault) || len(got) > 400 {
				t.Errorf("%.80s: %q; want the fault %q", args, got, fault)
			}
		} else if got != want {
			t.Errorf("%.80s: %q; want %q", args, got, want)
		}
	}
}

func TestNeedsApprovalModes(t *testing.T) {
	t.Parallel()
	r := rules(t)
	for want, approval := range map[string]loop.Approval{
		"":                              {Mode: loop.ApprovalNever, When: "true"},
		"the tool always needs":         {Mode: loop.ApprovalAlways},
		"true":                          {Mode: loop.ApprovalWhen, When: "true"},
		"condition is empty":            {Mode: loop.ApprovalWhen},
		"undeclared reference to 'ags'": {Mode: loop.ApprovalWhen, When: "ags.x"},
		`mode "sometimes" is not known`: {Mode: "sometimes"},
		"at most 2000 are allowed":      {Mode: loop.ApprovalWhen, When: strings.Repeat("true && ", 300) + "true"},
	} {
		got := r.NeedsApproval(loop.ToolSpec{Approval: approval}, with(`{}`), world)
		if !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%v: %q; want %q", approval, got, want)
		}
	}
}

func TestHolds(t *testing.T) {
	t.Parallel()
	r := rules(t)
	tests := []struct {
		expr, args string
		want       bool
	}{
		// The examples of the package's doc, and what it promises.
		{`args.currency != "EUR" || args.items.exists(i, i.price * i.count > 500)`, `{"currency":"EUR","items":[{"price":10,"count":2},{"price":300,"count":2}]}`, true},
		{`args.currency != "EUR" || args.items.exists(i, i.price * i.count > 500)`, `{"currency":"EUR","items":[{"price":10,"count":2}]}`, false},
		{`run.cost_usd > 0.40 && !(has(args.dry_run) && args.dry_run == true)`, `{}`, true},
		{`run.cost_usd > 0.40 && !(has(args.dry_run) && args.dry_run == true)`, `{"dry_run":true}`, false},
		{`args.codes.all(c, c in ["A", "B"])`, `{"codes":["A","C"]}`, false},
		{`double(args.amount) * 1.19 > 100`, `{"amount":90}`, true},

		{`tool.name == "refund" && tool.effect == "SIDE_EFFECT"`, `{}`, true},
		{`run.id == "run-1" && run.agent == "agents/support" && run.labels.team == "billing"`, `{}`, true},
		{`run.iterations == 3 && run.tool_calls == 7 && run.cost_usd == 0.5`, `{}`, true},
		{`has(run.labels.region)`, `{}`, false},
		{`has(args.a.b) && args.a.b == null`, `{"a":{"b":null}}`, true},

		// Numbers are exact, and compare by value.
		{`args.id == 9007199254740993`, `{"id":9007199254740993}`, true},
		{`args.id == 9007199254740992`, `{"id":9007199254740993}`, false},
		{`args.id == 18446744073709551615u`, `{"id":18446744073709551615}`, true},
		{`args.n == 100 && args.m == 100 && args.n == args.m && args.n in [1, 100.0]`, `{"n":100,"m":1e2}`, true},
		{`args.n == 100`, `{"n":"100"}`, false},
		{`args.n == 18446744073709551615u || args.n in [1, 2] || args.n == "18446744073709551616"`, `{"n":18446744073709551616}`, false},
		{`args.n == args.m`, `{"n":18446744073709551616,"m":18446744073709551617}`, false},
		{`args.o == {"n": 1}`, `{"o":{"n":18446744073709551616}}`, false},
		{`run.iterations > 2.5`, `{}`, true},
		{`math.greatest(args.l) == 7 && math.abs(args.n) == 3`, `{"l":[1,7.0,3],"n":-3}`, true},

		{`args.to.lowerAscii().trim().split("@")[1] in ["example.com", "example.org"]`, `{"to":" Ann@Example.COM "}`, true},
		{`args.to.matches("^[a-z]+@example[.]com$")`, `{"to":"ann@example.com\n"}`, false},
		{`timestamp(args.to) - timestamp(args.from) <= duration("72h")`, `{"from":"2026-11-30T00:00:00Z","to":"2026-12-02T00:00:00Z"}`, true},
		{`args.s == "\ufffd"`, `{"s":"\ud800"}`, true},

		// What is known is enough.
		{`args.missing > 1 || true`, `{}`, true},
		{`args.missing > 1 && false`, `{}`, false},
	}
	for _, tt := range tests {
		if got, err := r.Holds(tt.expr, under(""), with(tt.args), world); got != tt.want || err != nil {
			t.Errorf("%s on %s: %v, %v; want %v", tt.expr, tt.args, got, err, tt.want)
		}
	}
}

// The policy must not hold when nobody knows whether it does.
func TestHoldsFault(t *testing.T) {
	t.Parallel()
	r := rules(t)
	for expr, fault := range map[string]string{
		`args.amount <= 100`:                            "no such key: amount",
		`!(args.amount > 100)`:                          "no such key: amount",
		`args.s <= 100`:                                 "type that does not fit",
		`args.huge <= 100`:                              "type that does not fit",
		`args.huge <= args.huge`:                        "type that does not fit",
		`double(args.huge) <= 100`:                      "type that does not fit",
		`string(args.huge) == "18446744073709551616"`:   "type that does not fit",
		`[1][args.huge] == 1`:                           "invalid qualifier type",
		`args.n * 1.5 > 1.0`:                            "type that does not fit",
		`args.n / 0 == 1`:                               "division by zero",
		`args.n * 9223372036854775807 > 0`:              "overflow",
		`timestamp(args.s) > timestamp(0)`:              `"not a time"`,
		`args.n.all(x, x > 1)`:                          "expected iterable type",
		`run.labels.region == "eu"`:                     "no such key: region",
		`args.l.all(x, x < 5)`:                          "type that does not fit",
		`args.s.substring(100) == ""`:                   "index out of range",
		`nonsense(`:                                     "Syntax error",
		`args.l.all(a, args.l.all(b, size(args.s)>0))}`: "Syntax error",
	} {
		holds, err := r.Holds(expr, under(""), with(`{"n":2,"s":"not a time","l":[1,"2"],"huge":18446744073709551616}`), world)
		if holds || err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: %v, %v; want the fault %q", expr, holds, err, fault)
		}
	}
}

// Go visits a map in another order each time; conditions must not.
func TestHoldsIsDeterministic(t *testing.T) {
	t.Parallel()
	r := rules(t)
	const expr = `args.o.map(k, k) == ["a", "b", "c", "d", "e"] && run.labels.map(k, k)[0] == "env" && args.map(k, k)[1] == "o"`
	for range 100 {
		holds, err := r.Holds(expr, under(""), with(`{"z":1,"o":{"e":1,"d":2,"c":3,"b":4,"a":5},"b":{}}`), world)
		if !holds || err != nil {
			t.Fatalf("%v, %v", holds, err)
		}
	}
}

// Each of these does much with few operations: if only operations were counted,
// all of them would take seconds.
func TestHoldsIsBounded(t *testing.T) {
	t.Parallel()
	r := rules(t)
	text, items := strings.Repeat("a", 30<<10), strings.Repeat("1,", 1000)
	args := with(`{"s":"` + text + `","l":[` + items + `1],"m":{"s":"` + text + `"}}`)
	for _, each := range []string{
		`size(args.s) == 0`, `bytes(args.s) == b""`, `string(args.s) == ""`, `args.s + args.s == ""`, `args.s == args.s && false`,
		`args.s < args.s`, `args.m == args.m && false`, `args.l == args.l && false`, `math.greatest(args.l) == 0`, `2 in args.l`,
		`args.s.lowerAscii() == ""`, `args.s.split("a") == []`, `args.s.matches("(a+)+b")`, `args.s.contains("ab")`, `args.l.exists(y, y == 2)`,
	} {
		_, err := r.Holds("args.l.exists(x, "+each+")", under(""), args, world)
		if err == nil || !strings.Contains(err.Error(), "costs more than 100000") {
			t.Errorf("%s for each of 1,000 items: %v", each, err)
		}
	}
	if holds, err := r.Holds(`args.s.contains("b") || args.l.exists(x, x == 2) || args.s == "" || size(args.s) > 30720`, under(""), args, world); holds || err != nil {
		t.Errorf("each of them once: %v, %v", holds, err)
	}
}

func TestCompile(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]string{
		"args.amount > 100": "",
		"args.orders.all(o, o.lines.all(l, l.sku.lowerAscii() in ['a', 'b']))": "",
		"":                                     "empty: write one such as args.amount > 100, over args, tool.name",
		" \n":                                  "is empty",
		"args.amount >":                        "line 1, column 14: Syntax error",
		"true &&\n  arg.amount > 100":          "line 2, column 3: undeclared reference to 'arg' (did you mean 'args'?) (a condition may use args, tool.name, tool.effect, run.id,",
		"tool.nmae == 'refund'":                "did you mean 'tool.name'?",
		"a && b && c && d && e":                "undeclared reference to 'c'; and 2 more",
		"run.labels.team == 1":                 "found no matching overload",
		"args.amount":                          "of type dyn, not bool: compare it",
		"run.iterations + 1":                   "of type int, not bool",
		"true && " + strings.Repeat(" ", 2000): "2008 bytes: at most 2000",
		"'\xff' == ''":                         "not valid UTF-8",
		"args.a.all(x, x.b.all(y, y.c.all(z, z < 1)))":               "fewer loops inside loops",
		"args.s.matches(args.pattern)":                               "line 1, column 20: the pattern of matches must be a literal",
		"matches(args.s, '(')":                                       "the pattern cannot be used: error parsing regexp",
		"args.s.matches('(a{100}){10}')":                             "exceeds limit of 200",
		"duration(args.d) > duration('3 days')":                      "invalid duration",
		"now() > timestamp(0)":                                       "undeclared reference to 'now'",
		"rand() > 0.5":                                               "undeclared reference to 'rand'",
		strings.Repeat("(", 900) + "true" + strings.Repeat(")", 900): "column",
		"args.s.replace('', args.s) == ''":                           "may not use replace: its result",
		"['a'].join(args.s) == ''":                                   "may not use join",
		"'%s'.format([args.s]) == ''":                                "may not use format",
		"args.s.indexOf(args.t) > 0":                                 "may not use indexOf",
		"args.s.lastIndexOf(args.t) > 0":                             "may not use lastIndexOf",
		"args.s.reverse() == ''":                                     "may not use reverse",
		"strings.quote(args.s) == ''":                                "may not use strings.quote",
		"timestamp(args.t).getHours('Europe/Berlin') < 6":            "may not use getHours: it depends on time zones",
	} {
		err := Compile(expr)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.100q: %v; want %q", expr, err, want)
		}
		if err != nil && len(err.Error()) > 1500 {
			t.Errorf("%.100q: the error has %d bytes", expr, len(err.Error()))
		}
	}
}

func TestProgramsAreKeptAndBounded(t *testing.T) {
	t.Parallel()
	r := rules(t)
	condition := func(i int) string { return fmt.Sprintf("args.n > %d", i) }
	first, err := r.program(condition(0))
	if err != nil {
		t.Fatal(err)
	}

	for i := range maxPrograms + 50 {
		r.programs.put(condition(i), first)
		if _, kept := r.programs.get(condition(0)); !kept {
			t.Fatal("the condition used last of all was forgotten")
		}
	}

	if len(r.programs.byExpr) != maxPrograms || r.programs.recent.Len() != maxPrograms {
		t.Errorf("%d conditions are kept; want %d", len(r.programs.byExpr), maxPrograms)
	}
	if _, kept := r.programs.get(condition(1)); kept {
		t.Error("the condition used longest ago was kept")
	}
}

func TestRulesAreSharedByManyRuns(t *testing.T) {
	t.Parallel()
	r := rules(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 200 {
				condition, args := fmt.Sprintf("args.n > %d", n%20), fmt.Sprintf(`{"n":%d}`, i+n%20-3)
				if holds, err := r.Holds(condition, under(""), with(args), world); holds != (i > 3) || err != nil {
					t.Errorf("%s on %s: %v, %v", condition, args, holds, err)
				}
			}
		})
	}
	wg.Wait()
}

// Whatever people write as a condition and models as arguments: no panic comes
// out, no evaluation goes on for long, and each says the same twice.
func FuzzHolds(f *testing.F) {
	for _, expr := range []string{
		`args.amount > 100`, `args.a.exists(x, x.b == 1 || has(x.c))`, `run.labels.team in ["a", "b"] && !(args.s.matches("^a+$"))`,
		`args.s.lowerAscii().split(",").filter(x, x != "").map(x, int(x)).all(x, x < 5)`, `math.greatest(args.a) >= math.least(1, 2.5)`,
		`timestamp(args.s) - timestamp(0) < duration("1h")`, `args == {"a": [1, 2u, 3.5, null, b"x"]}`, `args.map(k, args[k]) != []`,
		`"x" + args.s > "y" ? true : args.a[0] == args.a[1]`, `google.protobuf.Struct{fields: {}} == args`, `type(args.a) == list`, `[[[`, "",
	} {
		for _, args := range []string{
			`{"amount":100.5}`, `{"a":[{"b":1},{"c":2}],"s":"aaa"}`, `{"s":"1,2,,3","a":[1,2.5,18446744073709551616]}`,
			`{"s":"2026-11-30T00:00:00Z"}`, `{"a":1,"a":2}`, `[]`, `{"a":[[[[1]]]]`, ``, `{"\u0000":"\ud800"}`,
		} {
			f.Add(expr, args)
		}
	}
	r := rules(f)
	f.Fuzz(func(t *testing.T, expr, args string) {
		holds, err := r.Holds(expr, under(""), with(args), world)
		again, errAgain := r.Holds(expr, under(""), with(args), world)

		if holds != again || fmt.Sprint(err) != fmt.Sprint(errAgain) {
			t.Errorf("first %v, %v; then %v, %v", holds, err, again, errAgain)
		}
		if holds && err != nil {
			t.Errorf("holds in spite of %v", err)
		}
		if p, err := compile(r.env, expr); err == nil {
			if object, err := decodeArgs(args); err == nil {
				checkCost(t, p, facts{args: object, spec: under(""), run: world})
			}
		}
	})
}
