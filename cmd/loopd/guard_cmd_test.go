package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// TestLimits serves two pages, whatever the policy.
func (f *fakeServer) TestLimits(_ context.Context, req *loopdv1.TestLimitsRequest) (*loopdv1.TestLimitsResponse, error) {
	if err := f.got(proto.CloneOf(req)); err != nil {
		return nil, err
	}
	return f.judged[len(req.GetPageToken())], nil
}

func (f *fakeServer) SuggestLimits(_ context.Context, req *loopdv1.SuggestLimitsRequest) (*loopdv1.SuggestLimitsResponse, error) {
	return f.suggested, f.got(req)
}

func (f *fakeServer) ReportFalsePositive(_ context.Context, req *loopdv1.ReportFalsePositiveRequest) (*loopdv1.GuardTrip, error) {
	return &loopdv1.GuardTrip{Seq: req.GetSeq(), Guard: "repeat", FalsePositive: !req.GetWithdraw()}, f.got(req)
}

// ListEvents serves the journal two events at a time.
func (f *fakeServer) ListEvents(_ context.Context, req *loopdv1.ListEventsRequest) (*loopdv1.ListEventsResponse, error) {
	from := int(req.GetAfterSeq())
	to := min(from+2, len(f.journal))
	return &loopdv1.ListEventsResponse{Events: f.journal[from:to], HasMore: to < len(f.journal)}, nil
}

// explainedRun is the incident with the verdicts that ended it.
func explainedRun() *loopdv1.Run {
	run := stoppedRun()
	run.Stop.Guard = "repeat"
	gauges := []*loopdv1.GuardGauge{
		{Guard: "cost", Observed: 0.0213, Limit: 1, Unit: "USD"}, {Guard: "iterations", Observed: 3, Limit: 12, Unit: "iterations"},
		{Guard: "repeat", Observed: 3, Limit: 3, Unit: "iterations"}, {Guard: "novelty", Observed: 2, Limit: 9, Unit: "iterations"},
		{Guard: "cycle", Limit: 6, Unit: "iterations"}, {Guard: "wall_time", Observed: 7.25, Limit: 86400, Unit: "s"},
	}
	different := proto.CloneOf(run.GetStop().GetEvidence()[0])
	different.Iteration, different.CallId, different.Arguments, different.ArgumentsHash, different.Note = 2, "c2-2", `{"order": "ORD-1"}`, "77aa", "in the same answer"
	run.Trips = []*loopdv1.GuardTrip{
		{
			Seq: 11, Time: stamp(4 * time.Second), Guard: "repeat", Phase: "after_results", Verdict: loopdv1.GuardVerdict_GUARD_VERDICT_NUDGE,
			Reason: loopdv1.StopReason_STOP_REASON_REPEAT_CALL, Observed: "2 equal iterations in a row", Limit: "3", Iteration: 2,
			Message: "the same call to get_order_status brought the same result 2 times in a row", Told: "Do something else.\nOr answer.",
			Evidence: append(run.GetStop().GetEvidence()[:2:2], different), Gauges: gauges[:2], LimitField: "max_identical_iterations",
			Advice: "Set pollable on a tool that is there to be polled.", FalsePositive: true, ReportedBy: "ann", ReportReason: "it polls",
		},
		{
			Seq: 16, Time: stamp(6 * time.Second), Guard: "repeat", Phase: "after_results", Verdict: loopdv1.GuardVerdict_GUARD_VERDICT_STOP,
			DefaultVerdict: loopdv1.GuardVerdict_GUARD_VERDICT_WRAP_UP, Reason: loopdv1.StopReason_STOP_REASON_REPEAT_CALL,
			Observed: "3 equal iterations in a row", Limit: "3", Iteration: 3, Message: "get_order_status brought the same result 3 times",
			Evidence: run.GetStop().GetEvidence(), Gauges: gauges, LimitField: "max_identical_iterations",
			Advice: "Set pollable on a tool that is there to be polled.",
		},
		{
			Seq: 17, Time: stamp(6 * time.Second), Guard: "novelty", Phase: "after_results", Verdict: loopdv1.GuardVerdict_GUARD_VERDICT_NUDGE,
			DefaultVerdict: loopdv1.GuardVerdict_GUARD_VERDICT_WRAP_UP, Observed: "2", Limit: "2", Iteration: 3, Message: "nothing new", Gauges: gauges,
		},
	}
	return run
}

func TestGuardExplain(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = explainedRun()
	term.wantCode(t, 0, term.loopd("guard", "explain", runID))
	term.wantRequest(t, &loopdv1.GetRunRequest{Name: fullRun})
	golden(t, "explain.txt", term.stdout.String())

	term.server.run = waitingRun()
	term.wantCode(t, 0, term.loopd("guard", "explain", runID))
	if !strings.Contains(term.stdout.String(), "No guard has changed this run.") {
		t.Errorf("stdout:\n%s", term.stdout.String())
	}
}

func TestGuardReport(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.wantCode(t, 0, term.loopd("guard", "report", runID, "11", "--reason", "it polls"))
	term.wantRequest(t, &loopdv1.ReportFalsePositiveRequest{Run: fullRun, Seq: 11, Reason: "it polls"})
	if got := term.stdout.String(); got != fullRun+", event 11: the trip of repeat is reported as a false positive\n" {
		t.Errorf("stdout %q", got)
	}
	term.wantCode(t, 0, term.loopd("guard", "report", runID, "11", "--withdraw"))
	if got := term.stdout.String(); got != fullRun+", event 11: the trip of repeat is not reported any more\n" {
		t.Errorf("stdout %q", got)
	}
}

func TestGuardList(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.wantCode(t, 0, term.loopd("guard", "list"))
	lines := strings.Split(term.stdout.String(), "\n")
	for i, g := range loop.Guards() {
		if line := lines[i+1]; !strings.HasPrefix(line, g.Name+" ") || !strings.Contains(line, strings.Join(g.Fields, ", ")) || !strings.Contains(line, g.Advice) {
			t.Errorf("line %d of %s: %s", i+1, g.Name, line)
		}
	}
}

// judgedPages are two pages: a success and another run that would have been stopped,
// then one that would have gone on.
func judgedPages() []*loopdv1.TestLimitsResponse {
	judged := func(n int, change func(*loopdv1.GuardJudgement)) *loopdv1.GuardJudgement {
		j := &loopdv1.GuardJudgement{
			Run: fmt.Sprintf("%s%d", fullRun[:len(fullRun)-1], n), Agent: "agents/support", State: loopdv1.RunState_RUN_STATE_SUCCEEDED,
			StopReason: loopdv1.StopReason_STOP_REASON_COMPLETED, CostUsd: "0.02", Iterations: 9, CutsSuccess: true,
			SpentUsd: "0.0125", SavedUsd: "0.0075", WrapUpUsd: "0.004", BeforeEnd: durationpb.New(3210 * time.Millisecond),
			Trip: &loopdv1.GuardTrip{Guard: "iterations", Verdict: loopdv1.GuardVerdict_GUARD_VERDICT_WRAP_UP, Observed: "7", Limit: "8", Iteration: 7},
		}
		change(j)
		return j
	}
	return []*loopdv1.TestLimitsResponse{
		{
			Judgements: []*loopdv1.GuardJudgement{
				judged(1, func(*loopdv1.GuardJudgement) {}),
				judged(2, func(j *loopdv1.GuardJudgement) {
					j.State, j.StopGuard, j.CutsSuccess = loopdv1.RunState_RUN_STATE_STOPPED, "cost", false
					j.Trip.Guard, j.Trip.Verdict = "cycle", loopdv1.GuardVerdict_GUARD_VERDICT_STOP
				}),
			},
			Totals: &loopdv1.GuardTotals{Runs: 100, Successes: 60, CostUsd: "1.5", Stopped: 2, SuccessesCut: 1, SavedUsd: "0.0075", LostUsd: "0.0075", WrapUpUsd: "0.004", Unchanged: 3},
			Guards: []*loopdv1.GuardTally{
				{Guard: "cycle", Stopped: 1, SavedUsd: "0.0075", Nudged: 4}, {Guard: "iterations", Stopped: 1, SuccessesCut: 1, SavedUsd: "0"},
			},
			NextPageToken: "n",
		},
		{
			Judgements: []*loopdv1.GuardJudgement{judged(3, func(j *loopdv1.GuardJudgement) {
				j.State, j.StopGuard, j.CutsSuccess, j.Beyond, j.Trip = loopdv1.RunState_RUN_STATE_STOPPED, "iterations", false, true, nil
			})},
			Totals:  &loopdv1.GuardTotals{Runs: 20, Successes: 12, CostUsd: "0.5", SavedUsd: "0", LostUsd: "0", WrapUpUsd: "0", Beyond: 1, Skipped: 1},
			Guards:  []*loopdv1.GuardTally{{Guard: "cycle", Stopped: 0, SavedUsd: "0", Nudged: 1}},
			Skipped: []*loopdv1.SkippedRun{{Run: fullRun, Why: "it has not ended"}},
		},
	}
}

// policyFile writes a policy.
func policyFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestGuardTest(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.judged = judgedPages()
	file := policyFile(t, "limits: {max_iterations: 8}\nguard_verdicts: {cycle: GUARD_VERDICT_STOP}\n")
	term.wantCode(t, 0, term.loopd("guard", "test", file, "--since", "2d", "--agent", "support", "--label", "team=web"))
	want := &loopdv1.TestLimitsRequest{
		Limits: &loopdv1.Limits{MaxIterations: proto.Int32(8)}, GuardVerdicts: map[string]loopdv1.GuardVerdict{"cycle": loopdv1.GuardVerdict_GUARD_VERDICT_STOP},
		Agent: "agents/support", Labels: map[string]string{"team": "web"}, StartTime: stamp(time.Minute - 48*time.Hour), PageToken: "n",
	}
	term.wantRequest(t, want)
	golden(t, "guard_test.txt", term.stdout.String())
	if got := term.stderr.String(); got != "judged 100 runs ...\n" {
		t.Errorf("stderr %q", got)
	}

	term.wantCode(t, 0, term.loopd("guard", "test", file, "--run", runID, "--run", fullRun, "-o", "json"))
	want.Runs, want.Agent, want.Labels, want.StartTime = []string{fullRun, fullRun}, "", nil, nil
	term.wantRequest(t, want)
	var sum struct{ Totals struct{ Runs, Stopped int } }
	if err := json.Unmarshal(term.stdout.Bytes(), &sum); err != nil || sum.Totals.Runs != 120 || sum.Totals.Stopped != 2 {
		t.Errorf("totals %+v, %v", sum, err)
	}
}

func TestGuardTestRefusesAPolicy(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"limits: {max_iteration: 8}":                   "limits.max_iteration: there is no such member; the closest: max_iterations,",
		"limit: {max_iterations: 8}":                   "limit: there is no such member; the closest: limits,",
		"guard_verdicts: {cycle: stop}":                `guard_verdicts["cycle"]: "stop" is none of GUARD_VERDICT_NUDGE, GUARD_VERDICT_WRAP_UP,`,
		"limits: {max_iterations: 8}\nagent: agents/a": "a policy has limits and guard_verdicts",
	} {
		term := setup(t)
		term.wantCode(t, exitUsage, term.loopd("guard", "test", policyFile(t, text)))
		if !strings.Contains(term.stderr.String(), says) || term.server.request != nil {
			t.Errorf("%s: stderr %q", text, term.stderr.String())
		}
	}
	for text, says := range map[string]string{
		"limits: {max_iterations: 0}":                 "limits.max_iterations",
		"guard_verdicts: {cycel: GUARD_VERDICT_STOP}": "the closest: cycle",
		"limits: {}": "nothing is other than it was",
		"guard_verdicts: {cost: GUARD_VERDICT_NUDGE}": "use GUARD_VERDICT_WRAP_UP, GUARD_VERDICT_PAUSE or GUARD_VERDICT_STOP",
	} {
		term := setup(t)
		term.wantCode(t, exitUsage, term.loopd("guard", "test", policyFile(t, text), "--file", "-"))
		if !strings.Contains(term.stderr.String(), says) {
			t.Errorf("%s: stderr %q", text, term.stderr.String())
		}
	}
}

// journalOf is a run that answered after so many iterations of one call each, as the
// API shows it.
func journalOf(t *testing.T, iterations int) []*loopdv1.Event {
	t.Helper()
	spec := loop.Spec{Agent: "agents/support", Input: "x", Limits: loop.Defaults(), Price: loop.Price{
		Model: "sim/one", Rates: loop.Rates{Input: loop.MicroUSD, Output: loop.MicroUSD}, Window: 200_000,
	}}
	spec.Definition = loop.AgentSpec{Model: "sim/one", Tools: []loop.ToolSpec{{Name: "look", Effect: loop.ReadOnly}}}
	bodies := []loop.Body{loop.Created{Spec: spec}, loop.Claimed{Attempt: 1}}
	for n := 1; n <= iterations; n++ {
		id := fmt.Sprintf("c%d-1", n)
		part := loop.Part{Kind: loop.PartToolCall, Call: &loop.ToolCall{ID: id, Name: "look", Args: fmt.Sprintf(`{"n":%d}`, n)}}
		bodies = append(bodies, loop.ModelStarted{Call: n, Model: "sim/one", MaxOutput: 100},
			loop.ModelAnswered{Call: n, Finish: loop.FinishToolCalls, Cost: loop.Cost{Output: loop.MilliUSD}, Message: loop.Message{Role: loop.RoleAssistant, Parts: []loop.Part{part}}},
			loop.CallBegun{CallID: id, Attempt: 1, Key: id}, loop.CallFinished{CallID: id, Attempt: 1, Outcome: loop.OutcomeOK, ResultHash: id})
	}
	bodies = append(bodies, loop.ModelStarted{Call: iterations + 1, Model: "sim/one", MaxOutput: 100},
		loop.ModelAnswered{Call: iterations + 1, Finish: loop.FinishDone, Cost: loop.Cost{Output: loop.MilliUSD}, Message: loop.Message{Role: loop.RoleAssistant, Parts: []loop.Part{loop.TextPart("done")}}},
		loop.AnswerAccepted{}, loop.Finished{State: loop.StateSucceeded, Stop: loop.Stop{Reason: loop.Completed}, Answer: "done"})
	var events []*loopdv1.Event
	for i, b := range bodies {
		kind, raw, err := loop.EncodeBody(b)
		if err != nil {
			t.Fatal(err)
		}
		body := &structpb.Struct{}
		if err := body.UnmarshalJSON(raw); err != nil {
			t.Fatal(err)
		}
		events = append(events, &loopdv1.Event{Seq: int64(i + 1), Kind: kind, CreateTime: stamp(time.Duration(i) * time.Second), Epoch: 1, Body: body})
	}
	return events
}

// TestGuardExportAndTestFile: what is exported is judged without a server.
func TestGuardExportAndTestFile(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.journal = journalOf(t, 4)
	run, child, old := stoppedRun(), treeRun(), stoppedRun()
	child.Name, child.Parent, old.CreateTime = fullRun+"c", fullRun, stamp(-30*24*time.Hour)
	term.server.pages = []*loopdv1.ListRunsResponse{{Runs: []*loopdv1.Run{child, run, old}}}
	term.wantCode(t, 0, term.loopd("guard", "export", "--since", "36h"))
	exported := term.stdout.String()
	if lines := strings.Count(exported, "\n"); lines != len(term.server.journal) || term.stderr.String() != "1 journals\n" {
		t.Fatalf("%d lines, stderr %q:\n%s", lines, term.stderr.String(), exported)
	}

	policy := policyFile(t, "limits: {max_iterations: 3}\n")
	term.stdin = exported + strings.ReplaceAll(exported, runID, "other")
	term.wantCode(t, 0, term.loopd("guard", "test", policy, "--file", "-", "--server", "127.0.0.1:1"))
	golden(t, "guard_test_file.txt", term.stdout.String())

	lines := strings.SplitAfter(exported, "\n")
	for name, c := range map[string]struct{ text, says string }{
		"no JSON":      {lines[0] + "oops\n", "-, line 2: it is no event"},
		"no run":       {lines[0] + "{}\n", "-, line 2: it is no {\"run\""},
		"a gap":        {lines[0] + "\n" + lines[2], "-, line 3: event 3 of " + fullRun + " stands where event 2 should"},
		"not together": {lines[0] + strings.ReplaceAll(lines[0], runID, "other") + lines[1], "-, line 3: the events of " + fullRun + " do not stand together"},
		"a new kind":   {strings.ReplaceAll(lines[0], `"created"`, `"dreamt"`), "-, line 1: "},
	} {
		term.stdin = c.text
		term.wantCode(t, exitUsage, term.loopd("guard", "test", policy, "--file", "-"))
		if !strings.Contains(term.stderr.String(), c.says) {
			t.Errorf("%s: stderr %q", name, term.stderr.String())
		}
	}
}

func TestGuardSuggest(t *testing.T) {
	t.Parallel()
	term := setup(t)
	ladder := func(value string, cut int32, saved string) *loopdv1.LimitCandidate {
		return &loopdv1.LimitCandidate{Value: value, SuccessesCut: cut, Share: float64(cut) / 120, Stopped: 2, SavedUsd: saved}
	}
	term.server.suggested = &loopdv1.SuggestLimitsResponse{
		Agent: "agents/support", AgentVersion: 3, Runs: 140, Successes: 120, Tolerance: 0.02,
		Proposed: &loopdv1.Limits{MaxIterations: proto.Int32(8), MaxCostUsd: new("0.2")},
		Suggestions: []*loopdv1.LimitSuggestion{
			{Field: "max_cost_usd", Guard: "cost", Current: "1", Proposed: "0.2", Used: "0.11", Why: "cuts 0 of 120 successes", Ladder: []*loopdv1.LimitCandidate{ladder("0.1", 120, "2.5"), ladder("0.2", 0, "1.25"), ladder("1", 0, "0")}},
			{Field: "max_iterations", Guard: "iterations", Current: "12", Proposed: "8", Used: "9", Why: "cuts 2 of 120 successes", Ladder: []*loopdv1.LimitCandidate{ladder("8", 2, "0.02"), ladder("12", 0, "0")}},
			{Field: "max_cycles", Guard: "cycle", Current: "3", Proposed: "3", RunsEnded: 4, Why: "it ended 4 runs; what they would have done beyond is not known", Ladder: []*loopdv1.LimitCandidate{ladder("3", 0, "0")}},
			{Field: "deadline", Guard: "deadline", Current: "600s", Proposed: "600s", Why: "too few", Ladder: []*loopdv1.LimitCandidate{ladder("600s", 0, "0")}},
		},
		Skipped: []*loopdv1.SkippedRun{{Run: fullRun, Why: "it has not ended"}},
	}
	term.wantCode(t, 0, term.loopd("guard", "suggest", "support", "--since", "10d", "--tolerance", "2%", "--max-runs", "500"))
	term.wantRequest(t, &loopdv1.SuggestLimitsRequest{Agent: "agents/support", StartTime: stamp(time.Minute - 240*time.Hour), Tolerance: new(0.02), MaxRuns: 500})
	short := term.stdout.String()
	term.wantCode(t, 0, term.loopd("guard", "suggest", "support", "--ladder"))
	golden(t, "guard_suggest.txt", short+"\n$ with --ladder\n"+term.stdout.String())
}
