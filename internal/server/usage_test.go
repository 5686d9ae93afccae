package server_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// spend makes a run that succeeded after one tool call, and one of another team that a
// guard stopped after the same. A model call of the worker costs 200 micro-dollars.
func (w *world) spend() {
	w.t.Helper()
	agent := w.agent("support", support())
	for _, team := range []string{"care", "sales"} {
		_, err := w.runs.CreateRun(w.t.Context(), &loopdv1.CreateRunRequest{Agent: agent, Input: "x", Labels: map[string]string{"team": team}})
		if err != nil {
			w.t.Fatal(err)
		}
		k := w.claim()
		k.answer(loop.FinishToolCalls, loop.TextPart("Let me look."), toolCall("c1-1", "get_order", `{"order":1}`), toolCall("c1-2", "refund", `{"order":1}`))
		k.append(
			loop.CallBegun{CallID: "c1-1", Attempt: 1, Key: "k"},
			loop.CallFinished{CallID: "c1-1", Attempt: 1, Outcome: loop.OutcomePermanent, Content: "no such order", ResultHash: "0"},
			loop.CallRefused{CallID: "c1-2", Outcome: loop.OutcomeSkipped, Content: "not now"},
		)
		if team == "care" {
			k.finish("Done.")
			continue
		}
		k.append(loop.ModelFailed{Call: k.begin(), Class: loop.ErrorTimeout, Cost: loop.Cost{Output: 6 * loop.MilliUSD}, Usage: loop.Usage{InputUncached: 1000, Output: 1000}})
		k.append(loop.Finished{State: loop.StateStopped, Stop: loop.Stop{Reason: loop.RepeatCall, Message: "The same again."}, Partial: true})
	}
}

func TestQueryUsage(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.spend()
	usage := loopdv1.NewUsageServiceClient(w.conn)
	begun := time.Now()

	got, err := usage.QueryUsage(t.Context(), &loopdv1.QueryUsageRequest{GroupBy: []string{"agent", "label:team"}})
	if err != nil {
		t.Fatal(err)
	}
	row := func(team string, f *loopdv1.UsageFigures) *loopdv1.UsageRow {
		return &loopdv1.UsageRow{Group: map[string]string{"agent": "agents/support", "label:team": team}, Figures: f}
	}
	want := &loopdv1.QueryUsageResponse{
		Rows: []*loopdv1.UsageRow{
			row("sales", &loopdv1.UsageFigures{
				Runs: 1, ModelCalls: 2, ToolCalls: 2, ToolFailures: 1, Usage: &loopdv1.Usage{InputUncachedTokens: 1100, OutputTokens: 1020},
				CostUsd: "0.0062", CostEstimatedUsd: "0.006", WastedUsd: "0.0062", WastedShare: 1, CacheSavingsUsd: "0",
			}),
			row("care", &loopdv1.UsageFigures{
				Runs: 1, SucceededRuns: 1, ModelCalls: 2, ToolCalls: 2, ToolFailures: 1, Usage: &loopdv1.Usage{InputUncachedTokens: 200, OutputTokens: 40},
				CostUsd: "0.0004", CostEstimatedUsd: "0", WastedUsd: "0", CacheSavingsUsd: "0", CostPerSucceededRunUsd: "0.0004",
			}),
		},
		Total: &loopdv1.UsageFigures{
			Runs: 2, SucceededRuns: 1, ModelCalls: 4, ToolCalls: 4, ToolFailures: 2, Usage: &loopdv1.Usage{InputUncachedTokens: 1300, OutputTokens: 1060},
			CostUsd: "0.0066", CostEstimatedUsd: "0.006", WastedUsd: "0.0062", WastedShare: 0.0062 / 0.0066, CacheSavingsUsd: "0", CostPerSucceededRunUsd: "0.0066",
		},
		TimeZone: "UTC",
	}
	if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(&loopdv1.QueryUsageResponse{}, "start_time", "end_time")); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
	if end := got.GetEndTime().AsTime(); end.Before(begun.Truncate(time.Microsecond)) || end.Sub(got.GetStartTime().AsTime()) != 24*time.Hour {
		t.Errorf("the default range is %s to %s", got.GetStartTime().AsTime(), end)
	}

	// The same over REST, with a range, a zone and every filter.
	request := &loopdv1.QueryUsageRequest{
		StartTime: timestamppb.New(begun.Add(-time.Hour).Truncate(time.Second)), EndTime: timestamppb.New(begun.Add(time.Hour).Truncate(time.Second)),
		TimeZone: "Asia/Kathmandu", GroupBy: []string{"month", "day", "hour", "purpose"}, OrderBy: "time",
		Agent: "agents/support", Model: model, Labels: map[string]string{"team": "care", "tier": "1"}, States: []loopdv1.RunState{loopdv1.RunState_RUN_STATE_SUCCEEDED},
	}
	if got, err = usage.QueryUsage(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	query := url.Values{
		"start_time": {request.GetStartTime().AsTime().Format(time.RFC3339)}, "endTime": {request.GetEndTime().AsTime().Format(time.RFC3339)},
		"time_zone": {"Asia/Kathmandu"}, "group_by": request.GetGroupBy(), "order_by": {"time"}, "agent": {"agents/support"}, "model": {model},
		"labels[team]": {"care"}, "labels[tier]": {"1"}, "states": {"RUN_STATE_SUCCEEDED"},
	}
	w.same(got, http.MethodGet, "/v1/usage:query?"+query.Encode())
	if got.GetTotal().GetCostUsd() != "0.0004" || len(got.GetRows()) == 0 {
		t.Fatalf("filtered usage is %v", got)
	}
	for _, row := range got.GetRows() { // two, if the hour ends just now
		g := row.GetGroup()
		hour, err := time.Parse(time.RFC3339, g["hour"])
		if err != nil || !strings.HasSuffix(g["hour"], ":00:00+05:45") || g["day"] != hour.Format(time.DateOnly) || g["month"] != hour.Format("2006-01") || g["purpose"] != "conversation" {
			t.Errorf("group %v", g)
		}
	}
}

// By tool, an answer's cost is shared among the calls that it asked for.
func TestQueryUsageByTool(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.spend()
	got := w.rest(http.MethodGet, "/v1/usage:query?group_by=tool&labels[team]=care", "")
	costs := map[any]any{}
	for i := range 3 {
		row := at(got, "rows", string(rune('0'+i))).(map[string]any)
		costs[at(row, "group", "tool")] = []any{at(row, "figures", "costUsd"), at(row, "figures", "toolCalls"), at(row, "figures", "toolFailures"), at(row, "figures", "modelCalls")}
	}
	want := map[any]any{"": []any{"0.0002", "0", "0", "1"}, "get_order": []any{"0.0001", "1", "1", "1"}, "refund": []any{"0.0001", "1", "0", "1"}}
	if diff := cmp.Diff(want, costs); diff != "" || at(got, "total", "modelCalls") != "2" {
		t.Errorf("usage by tool (-want +got):\n%s%v", diff, got["total"])
	}
}

// Later pages keep the range of the first, which may end now.
func TestQueryUsagePages(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.spend()
	usage := loopdv1.NewUsageServiceClient(w.conn)
	req := &loopdv1.QueryUsageRequest{GroupBy: []string{"label:team"}, PageSize: 1}
	first, err := usage.QueryUsage(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	req.PageToken = first.GetNextPageToken()
	second, err := usage.QueryUsage(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if first.GetRows()[0].GetGroup()["label:team"] != "sales" || second.GetRows()[0].GetGroup()["label:team"] != "care" || second.GetNextPageToken() != "" {
		t.Errorf("pages are %v and %v", first, second)
	}
	if diff := cmp.Diff(first, second, protocmp.Transform(), protocmp.IgnoreFields(&loopdv1.QueryUsageResponse{}, "rows", "next_page_token")); diff != "" {
		t.Errorf("the second page is not of the same whole (-first +second):\n%s", diff)
	}
	req.GroupBy = []string{"agent"}
	if _, err := usage.QueryUsage(t.Context(), req); err == nil || !strings.Contains(err.Error(), "page_token") {
		t.Errorf("a token of another request: %v", err)
	}
}

func TestQueryUsageRefusals(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for query, want := range map[string]struct{ field, says string }{
		"group_by=agnet":                  {"group_by[0]", "stop_reason"},
		"group_by=agent&group_by=label:A": {"group_by[1]", "label:KEY"},
		"group_by=label:":                 {"group_by[0]", "label:KEY"},
		"group_by=agent&group_by=agent":   {"group_by", ""},
		"group_by=agent&group_by=hour&group_by=day&group_by=month&group_by=tool": {"group_by", "4"},
		"time_zone=Berlin":             {"time_zone", "Europe/Berlin"},
		"time_zone=Local":              {"time_zone", "Europe/Berlin"},
		"time_zone=../UTC":             {"time_zone", "Europe/Berlin"},
		"order_by=time&group_by=agent": {"order_by", "hour, day or month"},
		"order_by=cost":                {"order_by", "cost_usd desc"},
		"start_time=2026-01-02T00:00:00Z&end_time=2026-01-02T00:00:00Z":        {"start_time", "before end_time"},
		"start_time=2025-01-01T00:00:00Z&end_time=2026-02-05T00:00:00.000001Z": {"start_time", "the earliest is 2025-01-01T00:00:00Z"},
		"agent=support":                {"agent", "agents/"},
		"labels[A]=x":                  {`labels["A"]`, ""},
		"states=RUN_STATE_UNSPECIFIED": {"states[0]", ""},
		"page_token=x":                 {"page_token", ""},
	} {
		resp, body := w.do(http.MethodGet, "/v1/usage:query?"+query, "")
		p := decode(t, body)
		detail, _ := p["detail"].(string)
		if resp.StatusCode != http.StatusBadRequest || at(p, "errors", "0", "field") != want.field || !strings.Contains(detail, want.says) {
			t.Errorf("%s: %d %s, want the field %s and %q", query, resp.StatusCode, body, want.field, want.says)
		}
	}
	w.rest(http.MethodGet, "/v1/usage:query?start_time=2025-01-01T00:00:00Z&end_time=2026-02-05T00:00:00Z", "") // 400 days
}
