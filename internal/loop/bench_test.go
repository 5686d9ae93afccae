package loop

import (
	"encoding/json"
	"fmt"
	"testing"
)

// busy is a run of 20 iterations with 8 calls each, none of which is stuck.
func busy(tb testing.TB, iterations int) *State {
	tb.Helper()
	return busyRun(tb, iterations).state
}

func busyRun(tb testing.TB, iterations int) *replayed {
	tb.Helper()
	const calls = 8
	r := newReplay(tb, []trajectoryPart{named("search", calls)}, Defaults())
	prints := NewFingerprinter()
	for i := range iterations {
		part := named("search", calls)
		for c := range calls {
			part.Calls[c].Args = json.RawMessage(fmt.Sprintf(`{"query":"orders of customer %d","page":%d}`, i, c%7))
			part.Results[c].Text = fmt.Sprintf("order %d of customer %d is packed", c%7, i)
		}
		r.iterate(part, prints)
	}
	return r
}

func named(name string, calls int) trajectoryPart {
	var p trajectoryPart
	text, err := json.Marshal(map[string]any{"calls": make([]map[string]string, calls), "results": make([]map[string]string, calls)})
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		panic(err)
	}
	for i := range p.Calls {
		p.Calls[i].Name = name
	}
	return p
}

// BenchmarkGuards asks all guards before each model call of a run with 20
// iterations of 8 calls: one operation is one iteration.
func BenchmarkGuards(b *testing.B) {
	const iterations = 20
	states := make([]*State, iterations)
	for i := range states {
		states[i] = busy(b, i+1)
	}
	now := states[0].tenure.since
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if trips := states[i%iterations].trip(plan{}, now); len(trips) > 0 {
			b.Fatalf("a healthy run trips %+v", trips)
		}
		i++
	}
}

// BenchmarkGauges is what a trip costs more, at the end of such a run.
func BenchmarkGauges(b *testing.B) {
	s := busy(b, 20)
	b.ReportAllocs()
	for b.Loop() {
		if len(s.gauges(s.tenure.since)) < 20 {
			b.Fatal("gauges are missing")
		}
	}
}

// BenchmarkFold folds a journal of 1,000 events: iterations of 8 calls.
func BenchmarkFold(b *testing.B) {
	const calls, events = 8, 1000
	journal := busyRun(b, events/(2+2*calls)+1).journal[:events]
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Fold(RunRef{"acme", "r-1"}, journal); err != nil {
			b.Fatal(err)
		}
	}
}
