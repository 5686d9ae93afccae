package loop

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var trajectories = flag.String("trajectories", "", "folder of recorded runs (*.jsonl.gz) that TestTrajectories replays instead of its corpus")

const (
	corpusFile  = "testdata/trajectories/corpus.jsonl.gz"
	answersFile = "testdata/trajectories/answers.jsonl.gz"
)

// trajectory is one recorded run of somebody else's agent.
type trajectory struct {
	RunID   string `json:"run_id"`
	Licence string `json:"licence"`
	Source  string `json:"source"`
	// Benchmark is "tau2-bench/retail": the benchmark and its part.
	Benchmark string `json:"benchmark"`
	// Messages are the model's answers in the whole run.
	Messages int              `json:"assistant_messages"`
	Steps    []trajectoryPart `json:"steps"`   // answers with tool calls
	Answers  []string         `json:"answers"` // what the model said, in answersFile only
	Outcome  struct {
		Success bool `json:"success"`
	} `json:"outcome"`
	Usage struct {
		Calls int `json:"calls"`
	} `json:"usage"`
	Cost float64 `json:"cost_usd"`
	// Stuck is what a reader of the run said: where it went nowhere any more.
	Stuck *stuckAt `json:"stuck"`
}

// stuckAt is an iteration, from 1, of a segment, from 0.
type stuckAt struct {
	Segment   int `json:"segment"`
	Iteration int `json:"iteration"`
}

type trajectoryPart struct {
	Turn      int  `json:"turn"` // number of the answer
	AfterUser bool `json:"after_user"`
	Calls     []struct {
		Name string          `json:"name"`
		Args json.RawMessage `json:"args"`
		Raw  string          `json:"args_raw"`
	} `json:"calls"`
	Results []struct {
		Text  string `json:"text"` // its beginning
		Chars int    `json:"chars"`
		Error bool   `json:"error"`
	} `json:"results"`
}

// segments are the stretches without a word of the user: a user who speaks
// restarts what the guards count.
func (t trajectory) segments() [][]trajectoryPart {
	var all [][]trajectoryPart
	for _, s := range t.Steps {
		if len(s.Calls) == 0 {
			continue
		}
		if s.AfterUser || len(all) == 0 {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], s)
	}
	return all
}

// readers are the beginnings of the names of tools that change nothing. The
// recordings do not say which do.
var readers = []string{
	"get", "find", "list", "search", "lookup", "calculate", "think", "check", "retrieve", "read", "fetch", "query", "route", "verify",
	"goto_node", "count", "suggest", "summarize", "plan", "compare",
}

func effectOfName(name string) Effect {
	for _, r := range readers {
		if strings.HasPrefix(strings.ToLower(name), r) {
			return ReadOnly
		}
	}
	return Idempotent // so that a repeated change is sent, as it was
}

// act is where a guard wanted to end the run.
type act struct {
	guard     string
	segment   int
	iteration int // of the segment
	turn      int // answers of the run so far
	told      bool
}

// verdicts are what the guards said of one run. The model of the recording never
// heard them, so it could not heed a nudge.
type verdicts struct {
	acts   map[string]act // the first of each guard
	first  *act
	nudges map[string]bool
}

// replay asks the guards after every iteration of a recorded run. Only the
// budgets are out of the way.
func (t trajectory) replay(tb testing.TB, prints *Fingerprinter, limits Limits) verdicts {
	v := verdicts{acts: map[string]act{}, nudges: map[string]bool{}}
	for i, segment := range t.segments() {
		r := newReplay(tb, segment, limits)
		for n, part := range segment {
			r.iterate(part, prints)
			for _, trip := range r.state.trip(plan{}, r.now) {
				if trip.Verdict == VerdictNudge {
					v.nudges[trip.Guard] = true
					r.apply(trip)
					continue
				}
				a := act{trip.Guard, i, n + 1, part.Turn, r.told()}
				if _, again := v.acts[trip.Guard]; !again {
					v.acts[trip.Guard] = a
				}
				if v.first == nil {
					v.first = &a
				}
			}
		}
	}
	return v
}

// replayed is the state that grows from a recording.
type replayed struct {
	tb    testing.TB
	state *State
	now   time.Time
	seq   int64
	calls int

	journal []Event
}

func newReplay(tb testing.TB, segment []trajectoryPart, limits Limits) *replayed {
	tb.Helper()
	const plenty = 1 << 40
	limits.Iterations, limits.ModelCalls, limits.ToolCalls, limits.Cost = plenty, plenty, plenty, 1000*OneUSD
	r := &replayed{tb: tb, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	spec := Spec{Input: "please", Limits: limits, Price: Price{Model: "sim/one", Window: plenty}}
	spec.Definition.Model = "sim/one"
	for _, part := range segment {
		for _, c := range part.Calls {
			if _, known := spec.Definition.Tool(c.Name); !known {
				spec.Definition.Tools = append(spec.Definition.Tools, ToolSpec{Name: c.Name, Effect: effectOfName(c.Name)})
			}
		}
	}
	r.state, _ = Fold(RunRef{"acme", "r-1"}, nil)
	r.apply(Created{Spec: spec}, Claimed{Attempt: 1})
	return r
}

func (r *replayed) apply(bodies ...Body) {
	r.tb.Helper()
	for _, b := range bodies {
		r.seq++
		r.journal = append(r.journal, Event{Seq: r.seq, At: r.now, Body: b})
		if err := r.state.Apply(r.journal[r.seq-1]); err != nil {
			r.tb.Fatal(err)
		}
	}
}

// iterate is one recorded answer with the results of its calls.
func (r *replayed) iterate(part trajectoryPart, prints *Fingerprinter) {
	r.calls++
	message := Message{Role: RoleAssistant, Source: SourceModel}
	var ends []Body
	for i, c := range part.Calls {
		call := ToolCall{ID: fmt.Sprintf("c%d-%d", r.calls, i+1), Name: c.Name, Args: cmp.Or(c.Raw, string(c.Args))}
		message.Parts = append(message.Parts, Part{Kind: PartToolCall, Call: &call})
		outcome, content := OutcomeOK, ""
		if i < len(part.Results) {
			content = fmt.Sprintf("%s (%d)", part.Results[i].Text, part.Results[i].Chars)
			if part.Results[i].Error {
				outcome = OutcomePermanent
			}
		}
		ends = append(ends, CallBegun{CallID: call.ID, Attempt: 1, Key: "k"}, CallFinished{
			CallID: call.ID, Attempt: 1, Outcome: outcome, Content: content, ResultHash: prints.Result(ToolSpec{}, outcome, content),
		})
	}
	r.apply(ModelStarted{Call: r.calls}, ModelAnswered{Call: r.calls, Message: message, Finish: FinishToolCalls})
	r.apply(ends...)
}

// told reports whether the model had been told, before now, that it gets nowhere.
func (r *replayed) told() bool {
	return slices.ContainsFunc(r.state.trips, func(t Tripped) bool { return t.Iteration < r.state.iterations && t.Reason.ofProgress() })
}

func readTrajectories(tb testing.TB, file string) []trajectory {
	tb.Helper()
	f, err := os.Open(file)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	var all []trajectory
	lines := bufio.NewScanner(unzipped)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var t trajectory
		if err := json.Unmarshal(lines.Bytes(), &t); err != nil {
			tb.Fatalf("%s: %v", file, err)
		}
		all = append(all, t)
	}
	if err := lines.Err(); err != nil {
		tb.Fatalf("%s: %v", file, err)
	}
	return all
}

// recorded is what TestTrajectories replays, and the stuck runs among it by a
// reader's word.
func recorded(t *testing.T) ([]trajectory, map[string]*stuckAt) {
	t.Helper()
	corpus := readTrajectories(t, corpusFile)
	stuck := map[string]*stuckAt{}
	for _, run := range corpus {
		if run.Licence == "" || run.Source == "" {
			t.Errorf("run %s of the corpus has no licence or source", run.RunID)
		}
		stuck[run.RunID] = run.Stuck
	}
	if *trajectories == "" {
		return corpus, stuck
	}
	var runs []trajectory
	err := filepath.WalkDir(*trajectories, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".jsonl.gz") && !strings.HasPrefix(filepath.Base(path), "transcripts") {
			runs = append(runs, readTrajectories(t, path)...)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return runs, stuck
}

// TestTrajectories replays recorded runs and counts what the guards would have
// ended. Without -trajectories it does so for a corpus that is chosen to be hard:
// all runs that a reader found stuck, all successes that any guard stops, and the
// successes that look most like loops. GUARDS.md tells what it measured.
func TestTrajectories(t *testing.T) {
	t.Parallel()
	runs, stuck := recorded(t)
	s := newScore()
	prints := NewFingerprinter()
	for _, run := range runs {
		s.add(run, run.replay(t, prints, Defaults()), stuck[run.RunID])
	}
	t.Log("\n" + s.String())
	if *trajectories == "" {
		s.judgeCorpus(t)
		return
	}
	s.judge(t)
}

// TestThresholds moves one limit at a time and prints what its guard would have
// stopped: it is how the defaults were chosen. A guard with a higher limit stops
// no run that it let pass before. Of the corpus it takes the stuck runs.
func TestThresholds(t *testing.T) {
	t.Parallel()
	runs, stuck := recorded(t)
	if *trajectories == "" {
		runs = slices.DeleteFunc(runs, func(run trajectory) bool { return stuck[run.RunID] == nil })
	}
	prints := NewFingerprinter()
	for _, c := range []struct {
		guard  string
		values []int
		set    func(*Limits, int)
	}{
		{"repeat", []int{2, 3, 4, 5}, func(l *Limits, n int) { l.IdenticalIters = n }},
		{"same_call", []int{4, 5, 6, 8}, func(l *Limits, n int) { l.SameCallIters = n }},
		{"cycle", []int{2, 3, 4}, func(l *Limits, n int) { l.Cycles = n }},
		{"frequency", []int{4, 5, 6, 7}, func(l *Limits, n int) { l.FrequentRepeats = n }},
		{"near_duplicate", []int{3, 4, 5, 6, 8}, func(l *Limits, n int) { l.NearDuplicates = n }},
		{"novelty", []int{5, 6, 7, 8, 9, 12}, func(l *Limits, n int) { l.NoveltyIters = n }},
		{"call_errors", []int{2, 3, 4}, func(l *Limits, n int) { l.CallFailures = n }},
		{"tool_errors", []int{3, 4, 5, 6}, func(l *Limits, n int) { l.ToolFailures = n }},
		{"errors", []int{2, 3, 4, 5}, func(l *Limits, n int) { l.ErrorIters = n }},
	} {
		before := [2]int{len(runs), len(runs)}
		for _, n := range c.values {
			limits := Defaults()
			c.set(&limits, n)
			s := newScore()
			for _, run := range runs {
				s.add(run, run.replay(t, prints, limits), stuck[run.RunID])
			}
			g, all := s.guard(c.guard), s.guard("any")
			t.Logf("| %s | %d | %d | %d | %d | %d | %.2f %% | %.1f %% |", c.guard, n, g.stopped[1], g.stopped[0], g.alone[1], g.alone[0], share(all.stopped[1], s.runs[1]), share(s.inTime, s.stuck))
			if g.stopped[0] > before[0] || g.stopped[1] > before[1] {
				t.Errorf("%s stops more runs at %d than below", c.guard, n)
			}
			before = g.stopped
		}
	}
}
