package loop

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// meanCallCost is what a model call of the 1,100 recorded runs with a bill cost in
// the mean, USD. It stands in where a run has none.
const meanCallCost = 0.0033

// tally is what one guard, or all of them, would have done.
type tally struct {
	stopped [2]int // runs, by success: failed, succeeded
	nudged  [2]int
	alone   [2]int // runs that no other guard would have stopped
	saved   int    // answers that would not have been made, in runs that failed
	cost    float64
	before  []int // answers before the run's own end, in runs that failed
	told    int   // after a nudge that the model had a chance to heed
}

// score counts over many runs.
type score struct {
	runs           [2]int
	answers        [2]int
	guards         map[string]*tally
	benchmarks     map[string]*[2][2]int // by success: runs, and those stopped
	order          []string
	stuck, inTime  int
	late           []string // stuck runs that were not stopped in time
	falsePositives []string
}

func newScore() *score {
	return &score{guards: map[string]*tally{}, benchmarks: map[string]*[2][2]int{}}
}

func (s *score) guard(name string) *tally {
	if s.guards[name] == nil {
		s.guards[name] = &tally{}
		s.order = append(s.order, name)
	}
	return s.guards[name]
}

func (s *score) add(run trajectory, v verdicts, stuck *stuckAt) {
	ok := 0
	if run.Outcome.Success {
		ok = 1
	}
	s.runs[ok]++
	s.answers[ok] += run.Messages
	benchmark, _, _ := strings.Cut(run.Benchmark, "/")
	if s.benchmarks[benchmark] == nil {
		s.benchmarks[benchmark] = &[2][2]int{}
	}
	s.benchmarks[benchmark][ok][0]++
	if v.first != nil {
		s.benchmarks[benchmark][ok][1]++
	}
	for name := range v.nudges {
		s.guard(name).nudged[ok]++
	}
	for name, a := range v.acts {
		s.guard(name).stop(run, a, ok)
		if len(v.acts) == 1 {
			s.guard(name).alone[ok]++
		}
	}
	if len(v.nudges) > 0 {
		s.guard("any").nudged[ok]++
	}
	if v.first != nil {
		s.guard("any").stop(run, *v.first, ok)
		if ok == 1 {
			s.falsePositives = append(s.falsePositives, fmt.Sprintf("%s by %s", run.RunID, v.first.guard))
		}
	}
	if stuck == nil {
		return
	}
	s.stuck++
	if v.first != nil && (v.first.segment < stuck.Segment || v.first.segment == stuck.Segment && v.first.iteration <= stuck.Iteration+1) {
		s.inTime++
		return
	}
	s.late = append(s.late, run.RunID)
}

// stop books a stop. The wrap-up is one more answer, so it is not saved.
func (g *tally) stop(run trajectory, a act, ok int) {
	g.stopped[ok]++
	if a.told {
		g.told++
	}
	if ok == 1 {
		return
	}
	rest := max(0, run.Messages-a.turn)
	g.before = append(g.before, rest)
	saved := max(0, rest-1)
	g.saved += saved
	price := meanCallCost
	if run.Cost > 0 && run.Usage.Calls > 0 {
		price = run.Cost / float64(run.Usage.Calls)
	}
	g.cost += price * float64(saved)
}

// String is the table of GUARDS.md.
func (s *score) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d runs that failed with %d answers, %d that succeeded with %d\n\n", s.runs[0], s.answers[0], s.runs[1], s.answers[1])
	b.WriteString("| guard | successes stopped | nudged | failures stopped | nudged | by no other guard | told before | answers saved | USD saved | answers before the end: median, most |\n|---|---|---|---|---|---|---|---|---|---|\n")
	slices.Sort(s.order)
	for _, name := range append(slices.DeleteFunc(slices.Clone(s.order), func(n string) bool { return n == "any" }), "any") {
		g := s.guard(name)
		slices.Sort(g.before)
		median, most := 0, 0
		if n := len(g.before); n > 0 {
			median, most = g.before[n/2], g.before[n-1]
		}
		fmt.Fprintf(&b, "| %s | %d (%.2f %%) | %d | %d (%.1f %%) | %d | %d | %d of %d | %d | %.2f | %d, %d |\n", name,
			g.stopped[1], share(g.stopped[1], s.runs[1]), g.nudged[1], g.stopped[0], share(g.stopped[0], s.runs[0]), g.nudged[0],
			g.alone[0], g.told, g.stopped[0]+g.stopped[1], g.saved, g.cost, median, most)
	}
	b.WriteString("\n| benchmark | successes | stopped | failures | stopped |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(s.benchmarks)) {
		n := s.benchmarks[name]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", name, n[1][0], n[1][1], n[0][0], n[0][1])
	}
	fmt.Fprintf(&b, "\nstuck by a reader's word: %d, of them stopped at most one iteration late: %d (%.1f %%); not: %s\nsuccesses stopped: %s\n",
		s.stuck, s.inTime, share(s.inTime, s.stuck), strings.Join(s.late, " "), strings.Join(s.falsePositives, ", "))
	return b.String()
}

func share(n, of int) float64 {
	if of == 0 {
		return 0
	}
	return 100 * float64(n) / float64(of)
}

// The aims, in percent.
const (
	maxFalsePositives = 0.5
	minInTime         = 80
)

func (s *score) judge(t *testing.T) {
	t.Helper()
	if got := share(s.guard("any").stopped[1], s.runs[1]); got >= maxFalsePositives {
		t.Errorf("%.2f %% of the successful runs are stopped, want less than %.1f %%", got, maxFalsePositives)
	}
	if got := share(s.inTime, s.stuck); got <= minInTime {
		t.Errorf("%.1f %% of the stuck runs are stopped in time, want more than %d %%", got, minInTime)
	}
}

// judgeCorpus holds the hard corpus to what was measured: a change that stops one
// more success, or misses one more stuck run, must be seen.
func (s *score) judgeCorpus(t *testing.T) {
	t.Helper()
	if got := s.guard("any").stopped[1]; got > 7 {
		t.Errorf("%d successful runs are stopped, want at most 7", got)
	}
	if s.stuck == 0 || share(s.inTime, s.stuck) <= minInTime {
		t.Errorf("%d of %d stuck runs are stopped in time", s.inTime, s.stuck)
	}
	if all := s.guard("any"); all.told != all.stopped[0]+all.stopped[1] {
		t.Errorf("%d of %d stops came after a nudge", all.told, all.stopped[0]+all.stopped[1])
	}
}
