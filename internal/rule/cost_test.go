package rule

import (
	"testing"

	"cel.dev/cel-go/cel"
)

// checkCost fails when an evaluation went on beyond its limit. The operation
// that passes it is done and charged; the largest is bounded by what it reads.
func checkCost(t *testing.T, p cel.Program, vars facts) {
	t.Helper()
	_, details, _ := p.Eval(vars)
	if cost := details.ActualCost(); cost != nil && *cost > 100*maxCost {
		t.Errorf("it cost %d; at most %d are allowed", *cost, maxCost)
	}
}

func BenchmarkHolds(b *testing.B) {
	for name, tt := range map[string]struct{ expr, args string }{
		"Compare": {`args.amount > 100`, `{"amount":100.5,"currency":"EUR","order":"o-17"}`},
		"Items":   {`args.items.exists(i, i.price * i.count > 500)`, `{"items":[{"price":1,"count":2},{"price":3,"count":4},{"price":5,"count":6}]}`},
		"Run":     {`run.cost_usd > 0.9 && run.labels.team == "billing"`, `{"amount":100.5}`},
	} {
		b.Run(name, func(b *testing.B) {
			r := rules(b)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Holds(tt.expr, under(""), with(tt.args), world); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		if err := Compile(`args.amount > 100 && run.labels.team == "billing"`); err != nil {
			b.Fatal(err)
		}
	}
}
