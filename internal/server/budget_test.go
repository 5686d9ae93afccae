package server_test

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// budget creates a budget over REST and returns it as gRPC shows it.
func (w *world) budget(id, body string) *loopdv1.Budget {
	w.t.Helper()
	w.rest(http.MethodPost, "/v1/budgets?budgetId="+id, body)
	return w.getBudget(id)
}

func (w *world) getBudget(id string) *loopdv1.Budget {
	w.t.Helper()
	b, err := w.budgets.GetBudget(w.t.Context(), &loopdv1.GetBudgetRequest{Name: "budgets/" + id})
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

func TestBudgets(t *testing.T) {
	t.Parallel()
	w := setup(t)
	agent := w.agent("support", support())

	daily := w.budget("acme-daily", `{"agent": "`+agent+`", "window": "BUDGET_WINDOW_DAY", "timeZone": "Europe/Berlin", "amountUsd": "10.50"}`)
	if daily.GetDisplayName() != "acme-daily" || daily.GetAgent() != agent || daily.GetVerdict() != loopdv1.GuardVerdict_GUARD_VERDICT_WRAP_UP ||
		daily.GetAmountUsd() != "10.5" || daily.GetCreateTime() == nil || daily.GetEtag() == "" {
		t.Errorf("created %v", daily)
	}
	now := daily.GetCurrent()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	if h := now.GetStartTime().AsTime().In(berlin); h.Hour() != 0 || !now.GetResetTime().AsTime().After(time.Now()) ||
		now.GetLimitUsd() != "10.5" || now.GetCommittedUsd() != "0" || now.GetHeldUsd() != "0" || now.GetRemainingUsd() != "10.5" {
		t.Errorf("it stands at %v, the day begins at %v", now, h)
	}
	w.same(daily, http.MethodGet, "/v1/budgets/acme-daily")

	// Only what can be changed is; without a mask that is what the request sets.
	changed, err := w.budgets.UpdateBudget(t.Context(), &loopdv1.UpdateBudgetRequest{
		Budget: &loopdv1.Budget{Name: "budgets/acme-daily", Etag: daily.GetEtag(), Verdict: loopdv1.GuardVerdict_GUARD_VERDICT_PAUSE}, Reason: "people wait",
	})
	if err != nil || changed.GetVerdict() != loopdv1.GuardVerdict_GUARD_VERDICT_PAUSE || changed.GetAmountUsd() != "10.5" || changed.GetEtag() == daily.GetEtag() {
		t.Errorf("changed %v, %v", changed, err)
	}
	lowered := w.rest(http.MethodPatch, "/v1/budgets/acme-daily?updateMask=amount_usd", `{"amountUsd": "2", "displayName": "Not taken"}`)
	if lowered["amountUsd"] != "2" || lowered["displayName"] != "acme-daily" || at(lowered, "current", "limitUsd") != "2" {
		t.Errorf("lowered %v", lowered)
	}

	w.budget("b-run", `{"window": "BUDGET_WINDOW_RUN", "amountUsd": "1", "label": {"key": "team", "value": "web"}}`)
	w.budget("c-total", `{"window": "BUDGET_WINDOW_TOTAL", "amountUsd": "0", "displayName": "Kill switch", "verdict": "GUARD_VERDICT_STOP"}`)
	if b := w.getBudget("b-run"); b.GetCurrent() != nil || b.GetTimeZone() != "" || b.GetVerdict() != 0 || b.GetLabel().GetValue() != "web" {
		t.Errorf("a ceiling is shown as %v", b)
	}
	if b := w.getBudget("c-total"); b.GetCurrent().GetResetTime() != nil || b.GetCurrent().GetStartTime() != nil || b.GetScope() != nil {
		t.Errorf("a total is shown as %v", b)
	}
	archived := w.rest(http.MethodPost, "/v1/budgets/b-run:archive", `{"reason": "done"}`)
	again := w.rest(http.MethodPost, "/v1/budgets/b-run:archive", "")
	if archived["archiveTime"] == nil || archived["archiveTime"] != again["archiveTime"] {
		t.Errorf("archived at %v, then at %v", archived["archiveTime"], again["archiveTime"])
	}

	var got []string
	for token := ""; ; {
		page := w.rest(http.MethodGet, "/v1/budgets?pageSize=1&pageToken="+token, "")
		got = append(got, at(page, "budgets", "0", "name").(string))
		if token = page["nextPageToken"].(string); token == "" {
			break
		}
	}
	if diff := cmp.Diff([]string{"budgets/acme-daily", "budgets/c-total"}, got); diff != "" {
		t.Errorf("budgets (-want +got):\n%s", diff)
	}
	if all := w.rest(http.MethodGet, "/v1/budgets?showArchived=true", ""); len(all["budgets"].([]any)) != 3 {
		t.Errorf("all budgets are %v", all)
	}
}

// TestBudgetsAreRaised: by whoever is on call, once, and on the record.
func TestBudgetsAreRaised(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.budget("acme", `{"window": "BUDGET_WINDOW_MONTH", "amountUsd": "100"}`)
	for range 2 {
		raised := w.rest(http.MethodPost, "/v1/budgets/acme:raise", `{"byUsd": "20.5", "reason": "launch day"}`, "Idempotency-Key", "page-77")
		if raised["amountUsd"] != "120.5" || at(raised, "current", "remainingUsd") != "120.5" {
			t.Errorf("raised to %v", raised)
		}
	}
	w.rest(http.MethodPost, "/v1/budgets/acme:raise", `{"amountUsd": "200"}`)
	w.rest(http.MethodPatch, "/v1/budgets/acme?updateMask=display_name", `{"displayName": "ACME"}`)
	w.rest(http.MethodPatch, "/v1/budgets/acme", `{"displayName": "ACME"}`) // nothing changes
	w.rest(http.MethodPost, "/v1/budgets/acme:archive", `{"reason": "moved"}`)

	var got []string
	for token := ""; ; {
		page, err := w.budgets.ListBudgetEvents(t.Context(), &loopdv1.ListBudgetEventsRequest{Parent: "budgets/acme", PageSize: 2, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.GetEvents() {
			got = append(got, fmt.Sprintf("%s by %s (%s) %q %s -> %q %s", e.GetKind(), e.GetAuthor(), e.GetReason(),
				e.GetBefore().GetDisplayName(), e.GetBefore().GetAmountUsd(), e.GetAfter().GetDisplayName(), e.GetAfter().GetAmountUsd()))
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	want := []string{
		`BUDGET_EVENT_KIND_ARCHIVED by unauthenticated (moved) "ACME" 200 -> "" `,
		`BUDGET_EVENT_KIND_CHANGED by unauthenticated () "acme" 200 -> "ACME" 200`,
		`BUDGET_EVENT_KIND_CHANGED by unauthenticated () "acme" 120.5 -> "acme" 200`,
		`BUDGET_EVENT_KIND_CHANGED by unauthenticated (launch day) "acme" 100 -> "acme" 120.5`,
		`BUDGET_EVENT_KIND_CREATED by unauthenticated () "" ` + ` -> "acme" 100`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestBudgetsRefuse(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("support", support())
	day := w.budget("day", `{"agent": "agents/support", "window": "BUDGET_WINDOW_DAY", "amountUsd": "5"}`)
	w.budget("run", `{"window": "BUDGET_WINDOW_RUN", "amountUsd": "5"}`)
	w.budget("old", `{"window": "BUDGET_WINDOW_HOUR", "amountUsd": "5"}`)
	w.rest(http.MethodPost, "/v1/budgets/old:archive", "")
	w.rest(http.MethodPatch, "/v1/budgets/day", `{"amountUsd": "6"}`) // its etag is another now

	const create = "/v1/budgets?budgetId=a"
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		reason, field      string
	}{
		"no window":            {"POST", create, `{"amountUsd": "5"}`, 400, "FIELD_INVALID", "budget"},
		"no amount":            {"POST", create, `{"window": "BUDGET_WINDOW_DAY"}`, 400, "FIELD_INVALID", "budget"},
		"verdict of a ceiling": {"POST", create, `{"window": "BUDGET_WINDOW_RUN", "amountUsd": "5", "verdict": "GUARD_VERDICT_STOP"}`, 400, "FIELD_INVALID", "budget"},
		"verdict nudge":        {"POST", create, `{"window": "BUDGET_WINDOW_DAY", "amountUsd": "5", "verdict": "GUARD_VERDICT_NUDGE"}`, 400, "FIELD_INVALID", "budget.verdict"},
		"zone of a total":      {"POST", create, `{"window": "BUDGET_WINDOW_TOTAL", "amountUsd": "5", "timeZone": "UTC"}`, 400, "FIELD_INVALID", "budget"},
		"zone of none":         {"POST", create, `{"window": "BUDGET_WINDOW_DAY", "amountUsd": "5", "timeZone": "Mars/Olympus"}`, 400, "FIELD_INVALID", "budget.time_zone"},
		"zone of the machine":  {"POST", create, `{"window": "BUDGET_WINDOW_DAY", "amountUsd": "5", "timeZone": "Local"}`, 400, "FIELD_INVALID", "budget.time_zone"},
		"zone of a file":       {"POST", create, `{"window": "BUDGET_WINDOW_DAY", "amountUsd": "5", "timeZone": "../etc/passwd"}`, 400, "FIELD_INVALID", "budget.time_zone"},
		"negative amount":      {"POST", create, `{"window": "BUDGET_WINDOW_DAY", "amountUsd": "-5"}`, 400, "FIELD_INVALID", "budget.amount_usd"},
		"agent of none":        {"POST", create, `{"window": "BUDGET_WINDOW_DAY", "amountUsd": "5", "agent": "agents/none"}`, 404, "AGENT_NOT_FOUND", "budget.agent"},
		"id taken":             {"POST", "/v1/budgets?budgetId=old", `{"window": "BUDGET_WINDOW_DAY", "amountUsd": "5"}`, 409, "BUDGET_EXISTS", ""},
		"none":                 {"GET", "/v1/budgets/none", "", 404, "BUDGET_NOT_FOUND", ""},
		"update of none":       {"PATCH", "/v1/budgets/none", `{"amountUsd": "5"}`, 404, "BUDGET_NOT_FOUND", ""},
		"raise of none":        {"POST", "/v1/budgets/none:raise", `{"byUsd": "5"}`, 404, "BUDGET_NOT_FOUND", ""},
		"archive of none":      {"POST", "/v1/budgets/none:archive", "", 404, "BUDGET_NOT_FOUND", ""},
		"events of none":       {"GET", "/v1/budgets/none/events", "", 404, "BUDGET_NOT_FOUND", ""},
		"windows of none":      {"GET", "/v1/budgets/none/periods", "", 404, "BUDGET_NOT_FOUND", ""},
		"update of archived":   {"PATCH", "/v1/budgets/old", `{"amountUsd": "5"}`, 409, "BUDGET_ARCHIVED", ""},
		"raise of archived":    {"POST", "/v1/budgets/old:raise", `{"byUsd": "5"}`, 409, "BUDGET_ARCHIVED", ""},
		"etag of before":       {"PATCH", "/v1/budgets/day", `{"amountUsd": "7", "etag": "` + day.GetEtag() + `"}`, 409, "BUDGET_CHANGED", ""},
		"another scope":        {"PATCH", "/v1/budgets/day", `{"label": {"key": "team"}}`, 400, "FIELD_INVALID", "budget.label"},
		"another window":       {"PATCH", "/v1/budgets/day", `{"window": "BUDGET_WINDOW_HOUR"}`, 400, "FIELD_INVALID", "budget.window"},
		"another zone":         {"PATCH", "/v1/budgets/day", `{"timeZone": "Europe/Berlin"}`, 400, "FIELD_INVALID", "budget.time_zone"},
		"a ceiling's verdict":  {"PATCH", "/v1/budgets/run", `{"verdict": "GUARD_VERDICT_STOP"}`, 400, "FIELD_INVALID", "budget.verdict"},
		"amount of nothing":    {"PATCH", "/v1/budgets/day?updateMask=amount_usd", `{}`, 400, "FIELD_INVALID", "budget.amount_usd"},
		"raise by nothing":     {"POST", "/v1/budgets/day:raise", `{"byUsd": "0"}`, 400, "FIELD_INVALID", "by_usd"},
		"raise to less":        {"POST", "/v1/budgets/day:raise", `{"amountUsd": "6"}`, 400, "FIELD_INVALID", "amount_usd"},
		"raise to the sky":     {"POST", "/v1/budgets/day:raise", `{"byUsd": "999999"}`, 400, "FIELD_INVALID", "by_usd"},
		"raise":                {"POST", "/v1/budgets/day:raise", `{}`, 400, "FIELD_INVALID", "raise"},
		"token of another":     {"GET", "/v1/budgets/day/events?pageToken=AAAAAAAAAAAAAA", "", 400, "PAGE_TOKEN_INVALID", "page_token"},
	} {
		resp, answer := w.do(c.method, c.path, c.body)
		p := decode(t, answer)
		if resp.StatusCode != c.status || p["reason"] != c.reason || (c.field != "" && at(p, "errors", "0", "field") != c.field) {
			t.Errorf("%s: answered %d %s", name, resp.StatusCode, answer)
		}
	}
	if b := w.getBudget("day"); b.GetAmountUsd() != "6" {
		t.Errorf("a refused request has changed the budget: %v", b)
	}
}

// create asks for a run of the agent support and gives the error.
func (w *world) create(req *loopdv1.CreateRunRequest) (*loopdv1.Run, error) {
	w.t.Helper()
	req.Agent, req.Input = "agents/support", "x"
	return w.runs.CreateRun(w.t.Context(), req)
}

// TestARunWithoutRoomIsRefused: with everything that a client needs to come back.
func TestARunWithoutRoomIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("support", support())
	w.budget("wide", `{"window": "BUDGET_WINDOW_MONTH", "amountUsd": "1000"}`)
	day := w.budget("day", `{"window": "BUDGET_WINDOW_DAY", "amountUsd": "0.01", "label": {"key": "tier", "value": "2"}}`)
	tier := func() map[string]string { return map[string]string{"tier": "2"} }

	resp, answer := w.do(http.MethodPost, "/v1/runs", `{"agent": "agents/support", "input": "x", "labels": {"tier": "2"}}`)
	p := decode(t, answer)
	reset := day.GetCurrent().GetResetTime().AsTime()
	want := map[string]any{"budget": "budgets/day", "limit_usd": "0.01", "committed_usd": "0", "reset_time": reset.Format(time.RFC3339), "needed_usd": at(p, "metadata", "needed_usd")}
	if diff := cmp.Diff(want, p["metadata"]); diff != "" || resp.StatusCode != http.StatusTooManyRequests || p["reason"] != "BUDGET_EXHAUSTED" || p["retryable"] != true {
		t.Errorf("answered %d %s, metadata (-want +got):\n%s", resp.StatusCode, answer, diff)
	}
	if need, err := loop.ParseUSD(fmt.Sprint(at(p, "metadata", "needed_usd"))); err != nil || need <= loop.OneUSD/100 {
		t.Errorf("the run needs %v USD, %v", at(p, "metadata", "needed_usd"), err)
	}
	if after, err := strconv.Atoi(resp.Header.Get("Retry-After")); err != nil || time.Duration(after)*time.Second < time.Until(reset)-time.Minute || time.Duration(after)*time.Second > time.Until(reset)+time.Minute {
		t.Errorf("Retry-After is %q, the reset is in %s", resp.Header.Get("Retry-After"), time.Until(reset))
	}

	_, err := w.create(&loopdv1.CreateRunRequest{Labels: tier()})
	st, retry := status.Convert(err), (*errdetails.RetryInfo)(nil)
	for _, detail := range st.Details() {
		if d, ok := detail.(*errdetails.RetryInfo); ok {
			retry = d
		}
	}
	if st.Code() != codes.ResourceExhausted || retry.GetRetryDelay().AsDuration() <= 0 {
		t.Errorf("over gRPC: %v, retry %v", err, retry)
	}

	// Whom the budget does not bind it does not hold up; nor whom it binds after a raise.
	if _, err := w.create(&loopdv1.CreateRunRequest{}); err != nil {
		t.Errorf("a run of another tier: %v", err)
	}
	w.rest(http.MethodPost, "/v1/budgets/day:raise", `{"byUsd": "5"}`)
	run, err := w.create(&loopdv1.CreateRunRequest{Labels: tier(), RequestId: "once"})
	if err != nil {
		t.Fatalf("after the raise: %v", err)
	}
	// A repeated request gets its answer, whatever has become of the money.
	w.rest(http.MethodPatch, "/v1/budgets/day", `{"amountUsd": "0"}`)
	if again, err := w.create(&loopdv1.CreateRunRequest{Labels: tier(), RequestId: "once"}); err != nil || again.GetName() != run.GetName() {
		t.Errorf("repeated: %v, %v", again, err)
	}
	if _, err := w.create(&loopdv1.CreateRunRequest{Labels: tier(), RequestId: "twice"}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a budget of nothing lets a run start: %v", err)
	}
	w.rest(http.MethodPost, "/v1/budgets/day:archive", "")
	if _, err := w.create(&loopdv1.CreateRunRequest{Labels: tier()}); err != nil {
		t.Errorf("after the archiving: %v", err)
	}
}

// TestATotalIsNeverReset: nobody is told to come back.
func TestATotalIsNeverReset(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("support", support())
	w.budget("hour", `{"window": "BUDGET_WINDOW_HOUR", "amountUsd": "0"}`)
	w.budget("total", `{"window": "BUDGET_WINDOW_TOTAL", "amountUsd": "0"}`)
	resp, answer := w.do(http.MethodPost, "/v1/runs", `{"agent": "agents/support", "input": "x"}`)
	p := decode(t, answer)
	if at(p, "metadata", "budget") != "budgets/total" || at(p, "metadata", "reset_time") != nil || p["retryable"] != false || resp.Header.Get("Retry-After") != "" {
		t.Errorf("answered %d %v %s", resp.StatusCode, resp.Header, answer)
	}
}

// TestRunsAreHeldToCeilings: to the lowest of the budgets for single runs.
func TestRunsAreHeldToCeilings(t *testing.T) {
	t.Parallel()
	w := setup(t)
	dear := support()
	dear.Limits = &loopdv1.Limits{MaxCostUsd: new("0.90")}
	w.agent("support", dear)
	w.budget("all", `{"window": "BUDGET_WINDOW_RUN", "amountUsd": "0.80"}`)
	w.budget("web", `{"window": "BUDGET_WINDOW_RUN", "amountUsd": "0.30", "label": {"key": "team", "value": "web"}}`)
	w.budget("other", `{"window": "BUDGET_WINDOW_RUN", "amountUsd": "0.10", "label": {"key": "team", "value": "other"}}`)
	web := map[string]string{"team": "web"}
	for name, c := range map[string]struct {
		asked  string
		labels map[string]string
		want   string // "": refused
	}{
		"who does not ask gets no more": {"", nil, "0.8"},
		"the lowest holds":              {"", web, "0.3"},
		"who asks for less gets it":     {"0.20", web, "0.2"},
		"who asks for more is refused":  {"0.31", web, ""},
		"the label is another":          {"0.31", nil, "0.31"},
	} {
		limits := &loopdv1.Limits{}
		if c.asked != "" {
			limits.MaxCostUsd = new(c.asked)
		}
		run, err := w.create(&loopdv1.CreateRunRequest{Labels: c.labels, Limits: limits})
		if c.want != "" {
			if got := run.GetLimits().GetMaxCostUsd(); err != nil || got != c.want {
				t.Errorf("%s: the run may cost %q, want %q: %v", name, got, c.want, err)
			}
			continue
		}
		st := status.Convert(err)
		info := st.Details()[0].(*errdetails.ErrorInfo)
		want := map[string]string{"field": "limits.max_cost_usd", "ceiling": "0.3", "budget": "budgets/web"}
		if diff := cmp.Diff(want, info.GetMetadata()); diff != "" || st.Code() != codes.InvalidArgument || info.GetReason() != "LIMIT_ABOVE_CEILING" {
			t.Errorf("%s: %v, metadata (-want +got):\n%s", name, err, diff)
		}
	}
}

// TestChildRunsAreHeldToCeilings: those of their own agent too.
func TestChildRunsAreHeldToCeilings(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("expert", support())
	parent := support()
	parent.Tools = append(parent.Tools, &loopdv1.Tool{
		Name: "ask_expert", Effect: loopdv1.Effect_EFFECT_IDEMPOTENT, Kind: &loopdv1.Tool_Agent{Agent: &loopdv1.AgentTool{Agent: "agents/expert"}},
	})
	w.agent("support", parent)
	w.budget("expert", `{"window": "BUDGET_WINDOW_RUN", "amountUsd": "0.07", "agent": "agents/expert"}`)
	run, err := w.create(&loopdv1.CreateRunRequest{})
	if err != nil {
		t.Fatal(err)
	}
	spec, err := w.store.GetSpec(t.Context(), loop.RunRef{Tenant: tenant, ID: run.GetName()[len("runs/"):]})
	if err != nil {
		t.Fatal(err)
	}
	tool, _ := spec.Definition.Tool("ask_expert")
	if tool.Child == nil || tool.Child.Spec.Limits.Cost != 7*loop.OneUSD/100 || spec.Limits.Cost != loop.OneUSD {
		t.Errorf("the run may cost %s USD, its child %+v", spec.Limits.Cost, tool.Child)
	}
}

// TestABudgetShowsWhereItStands: what runs spent and drew, in this window and in all.
func TestABudgetShowsWhereItStands(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("support", support())
	w.budget("day", `{"window": "BUDGET_WINDOW_DAY", "amountUsd": "0.60"}`)
	if _, err := w.create(&loopdv1.CreateRunRequest{Limits: &loopdv1.Limits{MaxCostUsd: new("0.10")}}); err != nil {
		t.Fatal(err)
	}
	k := w.claim()
	refused, err := w.store.Draw(t.Context(), k.lease, loop.AccountNeed{Agent: "agents/support", Amount: loop.OneUSD / 2})
	if err != nil || refused != nil {
		t.Fatalf("draw: %v, %v", refused, err)
	}
	now := w.getBudget("day").GetCurrent()
	if now.GetCommittedUsd() != "0" || now.GetHeldUsd() != "0.5" || now.GetRemainingUsd() != "0.1" ||
		len(now.GetThresholds()) != 2 || now.GetThresholds()[1].GetPercent() != 80 || now.GetThresholds()[1].GetTime() == nil {
		t.Errorf("after the draw it stands at %v", now)
	}
	k.finish("Done.") // 100 tokens in and 20 out
	now = w.getBudget("day").GetCurrent()
	if now.GetCommittedUsd() != "0.0002" || now.GetHeldUsd() != "0" || now.GetRemainingUsd() != "0.5998" {
		t.Errorf("after the end of the run it stands at %v", now)
	}
	periods, err := w.budgets.ListBudgetPeriods(t.Context(), &loopdv1.ListBudgetPeriodsRequest{Parent: "budgets/day"})
	if err != nil || len(periods.GetPeriods()) != 1 || periods.GetNextPageToken() != "" {
		t.Fatalf("windows: %v, %v", periods, err)
	}
	if diff := cmp.Diff(now.String(), periods.GetPeriods()[0].String()); diff != "" {
		t.Errorf("the window (-current +listed):\n%s", diff)
	}
	events := w.rest(http.MethodGet, "/v1/budgets/day/events", "")
	if at(events, "events", "0", "kind") != "BUDGET_EVENT_KIND_THRESHOLD" || at(events, "events", "0", "percent") != 80.0 ||
		at(events, "events", "0", "limitUsd") != "0.6" || at(events, "events", "0", "committedUsd") != "0.5" {
		t.Errorf("events %v", events)
	}

	// A budget that comes later counts what was spent before it.
	later := w.budget("later", `{"window": "BUDGET_WINDOW_TOTAL", "amountUsd": "1", "agent": "agents/support"}`)
	if got := later.GetCurrent().GetCommittedUsd(); got != "0.0002" {
		t.Errorf("a budget that came later begins with %s USD", got)
	}
}

// TestARaiseWakesWhoWaits: runs that wait for the budget, and no others.
func TestARaiseWakesWhoWaits(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("support", support())
	w.budget("day", `{"window": "BUDGET_WINDOW_DAY", "amountUsd": "1", "verdict": "GUARD_VERDICT_PAUSE"}`)
	w.budget("month", `{"window": "BUDGET_WINDOW_MONTH", "amountUsd": "1", "verdict": "GUARD_VERDICT_PAUSE"}`)
	waits := func(budget string) string {
		run, err := w.create(&loopdv1.CreateRunRequest{})
		if err != nil {
			t.Fatal(err)
		}
		k := w.claim()
		reset := time.Now().Add(time.Hour)
		k.append(loop.AccountRefused{Budget: "budgets/" + budget, Needed: 2, Limit: 1, ResetAt: reset, Act: loop.VerdictPause})
		k.append(loop.Suspended{Reason: loop.WaitBudget, Until: reset})
		return run.GetName()
	}
	day, month := waits("day"), waits("month")
	for _, id := range []string{"day", "month"} {
		if b := w.getBudget(id); b.GetWaitingRuns() != 1 {
			t.Errorf("%d runs wait for %s, want 1", b.GetWaitingRuns(), id)
		}
	}
	claimable := func() []string {
		leases, err := w.store.Claim(t.Context(), "worker-1", 10)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, l := range leases {
			names = append(names, "runs/"+l.Run.ID)
		}
		return names
	}
	if got := claimable(); got != nil {
		t.Errorf("before the raise %v can be claimed", got)
	}
	if _, err := w.budgets.RaiseBudget(t.Context(), &loopdv1.RaiseBudgetRequest{Name: "budgets/day", Raise: &loopdv1.RaiseBudgetRequest_ByUsd{ByUsd: "1"}}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{day}, claimable()); diff != "" {
		t.Errorf("woken by the raise (-want +got):\n%s", diff)
	}
	if _, err := w.budgets.ArchiveBudget(t.Context(), &loopdv1.ArchiveBudgetRequest{Name: "budgets/month"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{month}, claimable()); diff != "" {
		t.Errorf("woken by the archiving (-want +got):\n%s", diff)
	}
}

// TestChangesOfABudgetAreNotLost: two people, one budget.
func TestChangesOfABudgetAreNotLost(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.budget("acme", `{"window": "BUDGET_WINDOW_TOTAL", "amountUsd": "0"}`)
	const people = 8
	done := make(chan error)
	for range people {
		go func() {
			_, err := w.budgets.RaiseBudget(t.Context(), &loopdv1.RaiseBudgetRequest{Name: "budgets/acme", Raise: &loopdv1.RaiseBudgetRequest_ByUsd{ByUsd: "1"}})
			done <- err
		}()
	}
	for range people {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	_, err := w.budgets.UpdateBudget(t.Context(), &loopdv1.UpdateBudgetRequest{
		Budget: &loopdv1.Budget{Name: "budgets/acme", DisplayName: "ACME"}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"display_name"}},
	})
	if b := w.getBudget("acme"); err != nil || b.GetAmountUsd() != "8" || b.GetDisplayName() != "ACME" {
		t.Errorf("the budget is %v, %v", b, err)
	}
}
