package server_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// look plays an iteration that asks for an order. Each costs 0.0002 USD.
func (k *worker) look(order int) {
	k.w.t.Helper()
	id := fmt.Sprintf("c%d-1", k.state.Head().ModelCalls+1)
	k.answer(loop.FinishToolCalls, toolCall(id, "get_order", fmt.Sprintf(`{"order":%d}`, order)))
	result := fmt.Sprintf("order %d", order)
	k.append(loop.CallBegun{CallID: id, Attempt: 1, Key: "k-" + id},
		loop.CallFinished{CallID: id, Attempt: 1, Outcome: loop.OutcomeOK, Content: result, ResultHash: result})
}

// played is a run of an agent that looked at so many orders. It succeeds, or else it
// is stopped by the guard named.
func (w *world) played(agent string, orders int, guard string, labels map[string]string) *loopdv1.Run {
	w.t.Helper()
	run, err := w.runs.CreateRun(w.t.Context(), &loopdv1.CreateRunRequest{Agent: agent, Input: "x", Labels: labels})
	if err != nil {
		w.t.Fatal(err)
	}
	k := w.claim()
	for n := range orders {
		k.look(n)
	}
	if guard == "" {
		k.finish("All of them are on their way.")
	} else {
		stop := loop.Stop{Reason: loop.RepeatCall, Guard: guard, Message: "the same again", Iteration: orders}
		trip := loop.Tripped{
			Guard: guard, Verdict: loop.VerdictStop, Default: loop.VerdictFinalTurn, Reason: loop.RepeatCall, Observed: "3 equal iterations in a row", Limit: "3",
			Message: "the same again", Iteration: orders,
			Evidence: []loop.Evidence{{Iteration: 1, CallID: "c1-1", Tool: "get_order", Args: "{}", ArgsHash: "a", Result: "r", ResultHash: "b", Note: "n"}},
			Gauges:   []loop.Gauge{{Guard: "cost", Observed: 0.1, Limit: 1, Unit: "USD"}},
		}
		k.append(trip, loop.Finished{State: loop.StateStopped, Stop: stop})
	}
	if run, err = w.runs.GetRun(w.t.Context(), &loopdv1.GetRunRequest{Name: run.GetName()}); err != nil {
		w.t.Fatal(err)
	}
	return run
}

func TestTripsAreShown(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.played(w.agent("support", support()), 2, "repeat", nil)
	w.same(run, http.MethodGet, "/v1/"+run.GetName())
	info, _ := loop.GuardNamed("repeat")
	want := []*loopdv1.GuardTrip{{
		Seq: 11, Guard: "repeat", Phase: "after_results", Verdict: loopdv1.GuardVerdict_GUARD_VERDICT_STOP, DefaultVerdict: loopdv1.GuardVerdict_GUARD_VERDICT_WRAP_UP,
		Reason: loopdv1.StopReason_STOP_REASON_REPEAT_CALL, Observed: "3 equal iterations in a row", Limit: "3", Message: "the same again", Iteration: 2,
		Evidence: []*loopdv1.Evidence{{Iteration: 1, CallId: "c1-1", Tool: "get_order", Arguments: "{}", ArgumentsHash: "a", Result: "r", ResultHash: "b", Note: "n"}},
		Gauges:   []*loopdv1.GuardGauge{{Guard: "cost", Observed: 0.1, Limit: 1, Unit: "USD"}}, LimitField: "max_identical_iterations", Advice: info.Advice,
	}}
	if diff := cmp.Diff(want, run.GetTrips(), protocmp.Transform(), protocmp.IgnoreFields(&loopdv1.GuardTrip{}, "time")); diff != "" {
		t.Errorf("trips (-want +got):\n%s", diff)
	}
	list, err := w.runs.ListRuns(t.Context(), &loopdv1.ListRunsRequest{})
	if err != nil || len(list.GetRuns()) != 1 || list.GetRuns()[0].GetTrips() != nil {
		t.Errorf("a list of runs has trips: %v, %v", list, err)
	}
}

func TestReportFalsePositive(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.played(w.agent("support", support()), 2, "repeat", nil)
	const series = `loopd_guard_false_positives_total{guard="repeat"}`
	if got := w.metric(series); got != 0 {
		t.Errorf("before any report %s = %v", series, got)
	}
	path := "/v1/" + run.GetName() + ":reportFalsePositive"
	reported := w.rest(http.MethodPost, path, `{"seq": "11", "reason": "it polls \u0000 on purpose"}`, "Idempotency-Key", "once")
	if reported["falsePositive"] != true || reported["reportReason"] != "it polls \x00 on purpose" || reported["guard"] != "repeat" {
		t.Errorf("reported: %v", reported)
	}
	again := w.rest(http.MethodPost, path, `{"seq": "11", "reason": "another"}`)
	w.rest(http.MethodPost, path, `{"seq": "11", "reason": "it polls \u0000 on purpose"}`, "Idempotency-Key", "once")
	if got := w.metric(series); again["reportReason"] != reported["reportReason"] || got != 1 {
		t.Errorf("reported again: %v, %s = %v", again, series, got)
	}
	shown, err := w.runs.GetRun(t.Context(), &loopdv1.GetRunRequest{Name: run.GetName()})
	if err != nil || !shown.GetTrips()[0].GetFalsePositive() || shown.GetTrips()[0].GetReportedBy() == "" {
		t.Errorf("the run shows %v, %v", shown.GetTrips(), err)
	}
	w.rest(http.MethodPost, path, `{"seq": "11", "withdraw": true}`)
	shown, err = w.runs.GetRun(t.Context(), &loopdv1.GetRunRequest{Name: run.GetName()})
	if diff := cmp.Diff(run, shown, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("after the report was withdrawn: %v\n%s", err, diff)
	}

	resp, body := w.do(http.MethodPost, path, `{"seq": "10"}`)
	if resp.StatusCode != http.StatusNotFound || !strings.Contains(string(body), "trips are in 11") || !strings.Contains(string(body), "TRIP_NOT_FOUND") {
		t.Errorf("a seq that is no trip: %d %s", resp.StatusCode, body)
	}
	resp, body = w.do(http.MethodPost, path, `{"seq": "11"}`, "Idempotency-Key", "once")
	if resp.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("another request under the same key: %d %s", resp.StatusCode, body)
	}
	resp, body = w.do(http.MethodPost, "/v1/runs/01937b5e-7a1c-7c3e-9d2f-0123456789ab:reportFalsePositive", `{"seq": "1"}`)
	if resp.StatusCode != http.StatusNotFound || !strings.Contains(string(body), "RUN_NOT_FOUND") {
		t.Errorf("a run that does not exist: %d %s", resp.StatusCode, body)
	}
}

func TestTestLimits(t *testing.T) {
	t.Parallel()
	w := setup(t)
	support, other := w.agent("support", support()), w.agent("other", support())
	short := w.played(support, 1, "", map[string]string{"case": "1"})
	long := w.played(support, 4, "", map[string]string{"case": "2", "vip": "yes"})
	stopped := w.played(support, 5, "repeat", nil)
	elsewhere := w.played(other, 6, "", nil)
	live, err := w.runs.CreateRun(t.Context(), &loopdv1.CreateRunRequest{Agent: support, Input: "x"})
	if err != nil {
		t.Fatal(err)
	}
	policy := &loopdv1.Limits{MaxIterations: proto.Int32(4)}
	ask := func(req *loopdv1.TestLimitsRequest) *loopdv1.TestLimitsResponse {
		t.Helper()
		req.Limits = policy
		resp, err := w.guards.TestLimits(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	names := func(resp *loopdv1.TestLimitsResponse) (found []string) {
		for _, j := range resp.GetJudgements() {
			found = append(found, j.GetRun())
		}
		return found
	}

	resp := ask(&loopdv1.TestLimitsRequest{Agent: support})
	if diff := cmp.Diff([]string{stopped.GetName(), long.GetName()}, names(resp)); diff != "" {
		t.Errorf("runs that would have gone otherwise (-want +got):\n%s", diff)
	}
	wantTotals := &loopdv1.GuardTotals{
		Runs: 3, Successes: 2, CostUsd: "0.0024", Stopped: 2, SuccessesCut: 1, SavedUsd: "0.0004", LostUsd: "0.0004",
	}
	if diff := cmp.Diff(wantTotals, resp.GetTotals(), protocmp.Transform(), protocmp.IgnoreFields(&loopdv1.GuardTotals{}, "wrap_up_usd")); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
	wantTally := []*loopdv1.GuardTally{{Guard: "iterations", Stopped: 2, SuccessesCut: 1, SavedUsd: "0.0004"}}
	if diff := cmp.Diff(wantTally, resp.GetGuards(), protocmp.Transform()); diff != "" {
		t.Errorf("guards (-want +got):\n%s", diff)
	}
	cut := resp.GetJudgements()[1]
	if !cut.GetCutsSuccess() || cut.GetState() != loopdv1.RunState_RUN_STATE_SUCCEEDED || cut.GetSpentUsd() != "0.0006" || cut.GetSavedUsd() != "0.0004" ||
		cut.GetTrip().GetGuard() != "iterations" || cut.GetTrip().GetIteration() != 3 || cut.GetTrip().GetObserved() != "3" || cut.GetTrip().GetLimit() != "4" ||
		cut.GetIterations() != 5 || cut.GetBeforeEnd().AsDuration() <= 0 || cut.GetWrapUpUsd() == "0" {
		t.Errorf("the success that would have been cut: %v", cut)
	}

	var paged []string
	for token, pages := "", 0; ; pages++ {
		page := ask(&loopdv1.TestLimitsRequest{PageSize: 2, PageToken: token})
		paged = append(paged, names(page)...)
		if token = page.GetNextPageToken(); token == "" || pages > 3 {
			break
		}
	}
	if diff := cmp.Diff([]string{elsewhere.GetName(), stopped.GetName(), long.GetName()}, paged); diff != "" {
		t.Errorf("all runs, by pages (-want +got):\n%s", diff)
	}
	for name, c := range map[string]struct {
		req  *loopdv1.TestLimitsRequest
		runs int32
	}{
		"labels": {&loopdv1.TestLimitsRequest{Labels: map[string]string{"vip": "yes", "team": "support"}}, 1},
		"other":  {&loopdv1.TestLimitsRequest{Labels: map[string]string{"vip": "no\x00"}}, 0},
		"since":  {&loopdv1.TestLimitsRequest{StartTime: stopped.GetCreateTime()}, 2},
		"until":  {&loopdv1.TestLimitsRequest{EndTime: long.GetCreateTime()}, 1},
		"none":   {&loopdv1.TestLimitsRequest{StartTime: timestamppb.New(time.Now().Add(time.Hour))}, 0},
	} {
		if got := ask(c.req).GetTotals().GetRuns(); got != c.runs {
			t.Errorf("%s: %d runs judged, want %d", name, got, c.runs)
		}
	}

	named := &loopdv1.TestLimitsRequest{Runs: []string{live.GetName(), short.GetName(), long.GetName()}, PageSize: 2}
	first := ask(named)
	if first.GetTotals().GetRuns() != 1 || first.GetTotals().GetSkipped() != 1 || first.GetSkipped()[0].GetRun() != live.GetName() ||
		first.GetSkipped()[0].GetWhy() != "it has not ended" || first.GetNextPageToken() == "" {
		t.Errorf("first page of named runs: %v", first)
	}
	named.PageToken = first.GetNextPageToken()
	if second := ask(named); !slices.Equal(names(second), []string{long.GetName()}) || second.GetNextPageToken() != "" {
		t.Errorf("second page of named runs: %v", second)
	}
}

// TestTestLimitsAboveCeilings: it is a question, so a run that was stopped can be asked
// whether it would have gone on.
func TestTestLimitsAboveCeilings(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.played(w.agent("support", support()), 5, "repeat", nil)
	got := w.rest(http.MethodPost, "/v1/guards:testLimits", `{"limits": {"maxIdenticalIterations": 900}, "runs": ["`+run.GetName()+`"]}`)
	if at(got, "judgements", "0", "beyond") != true || at(got, "totals", "beyond") != 1.0 || at(got, "judgements", "0", "trip") != nil {
		t.Errorf("answered %v", got)
	}
	for body, says := range map[string]string{
		`{}`:                                "limits: nothing is other than it was",
		`{"limits": {"maxIterations": 0}}`:  "limits.max_iterations",
		`{"limits": {"maxCostUsd": "1e3"}}`: "limits.max_cost_usd",
		`{"limits": {"maxIterationz": 3}}`:  "maxIterationz",
		`{"limits": {"maxIdenticalIterations": 3}, "pageToken": "eA"}`:                                   "page_token",
		`{"guardVerdicts": {"novelti": "GUARD_VERDICT_STOP"}}`:                                           "the closest: novelty",
		`{"limits": {"maxIterations": 3}, "runs": ["` + run.GetName() + `"], "agent": "agents/support"}`: "exclude each other",
		`{"limits": {"maxIterations": 3}, "runs": ["runs/01937b5e-7a1c-7c3e-9d2f-0123456789ab"]}`:        "RUN_NOT_FOUND",
	} {
		resp, answer := w.do(http.MethodPost, "/v1/guards:testLimits", body)
		if resp.StatusCode < 400 || resp.StatusCode > 499 || !strings.Contains(string(answer), says) {
			t.Errorf("%s: %d %s", body, resp.StatusCode, answer)
		}
	}
}

func TestSuggestLimits(t *testing.T) {
	t.Parallel()
	w := setup(t)
	spec := support()
	spec.Limits = &loopdv1.Limits{MaxIterations: proto.Int32(15), Deadline: durationpb.New(time.Hour)}
	agent := w.agent("support", spec)
	for range 19 {
		w.played(agent, 2, "", nil)
	}
	w.played(agent, 8, "repeat", nil)
	few := w.rest(http.MethodGet, "/v1/agents/support:suggestLimits?tolerance=0", "")
	if !strings.Contains(at(few, "note").(string), "19 of 20 runs") || few["proposed"] != nil || few["runs"] != 20.0 {
		t.Errorf("19 successes: %v", few)
	}
	w.played(agent, 3, "", nil)
	enough, err := w.guards.SuggestLimits(t.Context(), &loopdv1.SuggestLimitsRequest{Agent: agent})
	if err != nil {
		t.Fatal(err)
	}
	w.same(enough, http.MethodGet, "/v1/agents/support:suggestLimits")
	if enough.GetNote() != "" || enough.GetRuns() != 21 || enough.GetSuccesses() != 20 || enough.GetTolerance() != 0.01 || enough.GetLimits().GetMaxIterations() != 15 {
		t.Errorf("20 successes: %v", enough)
	}
	if p := enough.GetProposed(); p.GetMaxIterations() != 5 || p.GetMaxCostUsd() == "" || p.MaxErrorIterations != nil {
		t.Errorf("proposed: %v", p)
	}
	i := slices.IndexFunc(enough.GetSuggestions(), func(s *loopdv1.LimitSuggestion) bool { return s.GetField() == "max_iterations" })
	want := &loopdv1.LimitSuggestion{
		Field: "max_iterations", Guard: "iterations", Current: "15", Proposed: "5", Used: "4", Why: "cuts 0 of 20 successes",
		Ladder: []*loopdv1.LimitCandidate{
			{Value: "4", SuccessesCut: 1, Share: 0.05, Stopped: 1, SavedUsd: "0.001"},
			{Value: "5", Stopped: 1, SavedUsd: "0.0008"}, {Value: "10", SavedUsd: "0"}, {Value: "15", SavedUsd: "0"},
		},
	}
	if diff := cmp.Diff(want, enough.GetSuggestions()[i], protocmp.Transform()); diff != "" {
		t.Errorf("iterations (-want +got):\n%s", diff)
	}
	_, err = w.guards.SuggestLimits(t.Context(), &loopdv1.SuggestLimitsRequest{Agent: "agents/nobody"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("an agent that does not exist: %v", err)
	}
}
