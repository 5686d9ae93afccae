package server_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// ask has the model ask for the calls of refund with these arguments, and puts them
// before a person. It returns their approvals' names.
func (k *worker) ask(until time.Time, args ...string) []string {
	k.w.t.Helper()
	var parts []loop.Part
	for i, a := range args {
		parts = append(parts, toolCall("c1-"+string(rune('1'+i)), "refund", a))
	}
	k.answer(loop.FinishToolCalls, parts...)
	var bodies []loop.Body
	var names []string
	for _, part := range parts {
		bodies = append(bodies, loop.ApprovalRequested{
			CallID: part.Call.ID, ArgsHash: loop.ArgsHash(k.lease.Run, *part.Call), Reason: "IRREVERSIBLE", Until: until,
		})
		names = append(names, "approvals/"+k.lease.Run.ID+"."+part.Call.ID)
	}
	k.append(append(bodies, loop.Suspended{Reason: loop.WaitApproval, Until: until})...)
	return names
}

// hashOf is the hash of a call's arguments.
func (k *worker) hashOf(id, args string) string {
	return loop.ArgsHash(k.lease.Run, *toolCall(id, "refund", args).Call)
}

// said is the newest thing that was said to the run.
func (k *worker) said() loop.Body {
	k.w.t.Helper()
	signals, err := k.w.store.Signals(k.w.t.Context(), k.lease)
	if err != nil || len(signals) == 0 {
		k.w.t.Fatalf("signals are %v, %v", signals, err)
	}
	return signals[len(signals)-1].Body
}

func TestTheInbox(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	k := w.claim()
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	names := k.ask(until, `{"order": 1}`, `{"order": 2}`, `{"order": 3}`)

	list, err := w.inbox.ListApprovals(t.Context(), &loopdv1.ListApprovalsRequest{State: loopdv1.ApprovalState_APPROVAL_STATE_PENDING, Agent: "agents/support", Tool: "refund", Run: run.GetName()})
	if err != nil || len(list.GetApprovals()) != 3 {
		t.Fatalf("the inbox is %v, %v", list, err)
	}
	first := list.GetApprovals()[0]
	if first.GetName() != names[0] || first.GetKind() != loopdv1.Approval_KIND_APPROVE || first.GetRun() != run.GetName() || first.GetToolCall() != run.GetName()+"/toolCalls/c1-1" ||
		first.GetAgentVersion() != 1 || first.GetArgumentsJson() != `{"order": 1}` || first.GetArgumentsSha256() != k.hashOf("c1-1", `{"order": 1}`) ||
		first.GetReason() != "IRREVERSIBLE" || !first.GetExpireTime().AsTime().Equal(until) || first.GetDecideTime() != nil {
		t.Errorf("the first approval is %v", first)
	}
	w.same(first, http.MethodGet, "/v1/"+names[0])
	page := w.rest(http.MethodGet, "/v1/approvals?state=APPROVAL_STATE_PENDING&pageSize=2", "")
	page = w.rest(http.MethodGet, "/v1/approvals?state=APPROVAL_STATE_PENDING&pageSize=2&pageToken="+strings.ReplaceAll(page["nextPageToken"].(string), "+", "%2B"), "")
	if at(page, "approvals", "0", "name") != names[2] || page["nextPageToken"] != "" {
		t.Errorf("the second page is %v", page)
	}
	waiting := w.rest(http.MethodGet, "/v1/"+run.GetName(), "")
	if at(waiting, "requiredActions", "2", "approval") != names[2] || at(waiting, "requiredActions", "2", "reason") != "IRREVERSIBLE" {
		t.Errorf("the run waits as %v", waiting["requiredActions"])
	}

	edited := `{"order": 7}`
	for range 2 {
		got := w.rest(http.MethodPost, "/v1/"+names[0]+":approve", `{"expectedArgumentsHash": "`+first.GetArgumentsSha256()+`", "editedArgumentsJson": "{\"order\": 7}", "reason": "typo"}`)
		if got["state"] != "APPROVAL_STATE_APPROVED" || got["decidedBy"] != "unauthenticated" || got["comment"] != "typo" || got["editedArgumentsJson"] != edited || got["expireTime"] != nil {
			t.Errorf("approved as %v", got)
		}
	}
	want := loop.ApprovalDecided{CallID: "c1-1", ArgsHash: first.GetArgumentsSha256(), Approved: true, By: "unauthenticated", Reason: "typo", Args: edited}
	if diff := cmp.Diff(loop.Body(want), k.said()); diff != "" {
		t.Errorf("the worker hears (-want +got):\n%s", diff)
	}
	if denied := w.rest(http.MethodPost, "/v1/"+names[1]+":deny", `{"reason": "too much"}`); denied["state"] != "APPROVAL_STATE_DENIED" || denied["comment"] != "too much" {
		t.Errorf("denied as %v", denied)
	}

	for name, c := range map[string]struct {
		path, body string
		status     int
		reason     string
	}{
		"decided twice":     {names[0] + ":deny", `{}`, 409, "CALL_NOT_AWAITING_APPROVAL"},
		"other arguments":   {names[2] + ":approve", `{"expectedArgumentsHash": "` + first.GetArgumentsSha256() + `"}`, 409, "ARGUMENTS_CHANGED"},
		"edited wrongly":    {names[2] + ":approve", `{"expectedArgumentsHash": "` + k.hashOf("c1-3", `{"order": 3}`) + `", "editedArgumentsJson": "{}"}`, 400, "FIELD_INVALID"},
		"answered":          {names[2] + ":answer", `{"text": "yes"}`, 409, "CALL_NOT_AWAITING_RESULT"},
		"of no call":        {"approvals/" + k.lease.Run.ID + ".c9-9:deny", `{}`, 404, "APPROVAL_NOT_FOUND"},
		"of no run":         {"approvals/" + noRun + ".c1-1:deny", `{}`, 404, "APPROVAL_NOT_FOUND"},
		"nothing was read":  {names[2] + ":approve", `{}`, 400, "FIELD_INVALID"},
		"bad idempotency":   {names[2] + ":deny", `{"requestId": "a b"}`, 400, "FIELD_INVALID"},
		"approver in body":  {names[2] + ":deny", `{"decidedBy": "root"}`, 400, "BODY_INVALID"},
		"token of the list": {"approvals?pageToken=AAAAAAAAAAAAAAAA", "", 400, "PAGE_TOKEN_INVALID"},
	} {
		method := http.MethodPost
		if c.body == "" {
			method = http.MethodGet
		}
		resp, body := w.do(method, "/v1/"+c.path, c.body)
		if p := decode(t, body); resp.StatusCode != c.status || p["reason"] != c.reason {
			t.Errorf("%s: answered %d %s", name, resp.StatusCode, body)
		}
	}
	approved := w.rest(http.MethodGet, "/v1/approvals?state=APPROVAL_STATE_APPROVED", "")
	if len(approved["approvals"].([]any)) != 1 || at(approved, "approvals", "0", "name") != names[0] {
		t.Errorf("approved are %v", approved)
	}
}

func TestAnApprovalThatCameTooLate(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	k := w.claim()
	names := k.ask(time.Now().Add(-time.Second).UTC(), `{"order": 1}`)
	for _, path := range []string{names[0], run.GetName() + "/toolCalls/c1-1"} {
		resp, body := w.do(http.MethodPost, "/v1/"+path+":deny", `{}`)
		if p := decode(t, body); resp.StatusCode != http.StatusConflict || p["reason"] != "APPROVAL_EXPIRED" || at(p, "metadata", "tool_call") != run.GetName()+"/toolCalls/c1-1" {
			t.Errorf("%s: answered %d %s", path, resp.StatusCode, body)
		}
	}
}

// asking is the definition of an agent that hands calls out.
func asking() *loopdv1.AgentSpec {
	spec := support()
	spec.Tools = append(spec.Tools,
		&loopdv1.Tool{Name: "ask_human", Kind: &loopdv1.Tool_Builtin{Builtin: loopdv1.Builtin_BUILTIN_ASK_HUMAN}},
		&loopdv1.Tool{Name: "pick", Effect: loopdv1.Effect_EFFECT_SIDE_EFFECT, MaxResultBytes: new(int32(10)), Kind: &loopdv1.Tool_Client{Client: &loopdv1.ClientTool{}}})
	return spec
}

// handOut has the model ask for calls, the first with these arguments, and hands them out.
func (k *worker) handOut(until time.Time, parts ...loop.Part) {
	k.w.t.Helper()
	k.answer(loop.FinishToolCalls, parts...)
	var bodies []loop.Body
	for _, part := range parts {
		bodies = append(bodies, loop.CallHandedOut{CallID: part.Call.ID, Attempt: 1, Key: part.Call.Key(k.lease.Run), Until: until})
	}
	k.append(append(bodies, loop.Suspended{Reason: loop.WaitResult, Until: until})...)
}

func TestQuestions(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("asker", asking())
	run := w.rest(http.MethodPost, "/v1/runs", `{"agent": "agents/asker", "input": "x"}`)["name"].(string)
	k := w.claim()
	k.handOut(time.Now().Add(time.Hour).UTC(),
		toolCall("c1-1", "ask_human", `{"question": "Which?", "choices": ["red", "blue"]}`), toolCall("c1-2", "ask_human", `{"question": "Why?"}`))

	waiting := w.rest(http.MethodGet, "/v1/"+run+":wait", "")
	name, _ := at(waiting, "requiredActions", "0", "approval").(string)
	if at(waiting, "requiredActions", "0", "kind") != "KIND_ANSWER" || at(waiting, "requiredActions", "0", "attempt") != float64(1) || waiting["phase"] != "waiting" {
		t.Fatalf("the run waits as %v", waiting)
	}
	question := w.rest(http.MethodGet, "/v1/"+name, "")
	if question["kind"] != "KIND_ANSWER" || question["state"] != "APPROVAL_STATE_PENDING" || question["createTime"] == nil || question["tool"] != "ask_human" {
		t.Errorf("the question is %v", question)
	}
	resp, body := w.do(http.MethodPost, "/v1/"+name+":answer", `{"choice": "green"}`)
	if p := decode(t, body); resp.StatusCode != http.StatusBadRequest || at(p, "errors", "0", "field") != "choice" || !strings.Contains(p["detail"].(string), `"blue"`) {
		t.Errorf("a choice that is none was answered %d %s", resp.StatusCode, body)
	}
	resp, body = w.do(http.MethodPost, "/v1/"+run+":submitToolResults", `{"results": [{"call": "c1-1", "attempt": 1, "content": "blue"}]}`)
	if p := decode(t, body); resp.StatusCode != http.StatusOK || at(p, "results", "0", "status") != "STATUS_REFUSED" || !strings.Contains(at(p, "results", "0", "message").(string), name) {
		t.Errorf("a result in a person's place was answered %d %s", resp.StatusCode, body)
	}
	resp, body = w.do(http.MethodPost, "/v1/"+name+":approve", `{"expectedArgumentsHash": "`+strings.Repeat("0a", 32)+`"}`)
	if p := decode(t, body); resp.StatusCode != http.StatusConflict {
		t.Errorf("approving a question was answered %d %v", resp.StatusCode, p)
	}

	for i, want := range []string{"", "true"} {
		resp, body := w.do(http.MethodPost, "/v1/"+name+":answer", `{"choice": "blue"}`)
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Idempotency-Replayed") != want {
			t.Errorf("answer %d was answered %d %v %s", i+1, resp.StatusCode, resp.Header, body)
		}
	}
	submitted := loop.ResultSubmitted{CallID: "c1-1", Attempt: 1, Outcome: loop.OutcomeOK, Content: "blue", By: "unauthenticated"}
	if diff := cmp.Diff(loop.Body(submitted), k.said()); diff != "" {
		t.Errorf("the worker hears (-want +got):\n%s", diff)
	}
	resp, body = w.do(http.MethodPost, "/v1/"+name+":answer", `{"text": "red, no, blue"}`)
	if p := decode(t, body); resp.StatusCode != http.StatusConflict || p["reason"] != "RESULT_CONFLICT" {
		t.Errorf("another answer was answered %d %s", resp.StatusCode, body)
	}
	second := "approvals/" + k.lease.Run.ID + ".c1-2"
	if _, err := w.inbox.Answer(t.Context(), &loopdv1.AnswerRequest{Name: second, Answer: &loopdv1.AnswerRequest_Text{Text: "Because."}}); err != nil {
		t.Errorf("an answer in words: %v", err)
	}
}

func TestSubmitToolResults(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("asker", asking())
	run := w.rest(http.MethodPost, "/v1/runs", `{"agent": "agents/asker", "input": "x"}`)["name"].(string)
	k := w.claim()
	k.handOut(time.Now().Add(time.Hour).UTC(), toolCall("c1-1", "pick", `{}`), toolCall("c1-2", "pick", `{"a": 2}`), toolCall("c1-3", "pick", `{"a": 3}`))
	waiting := w.rest(http.MethodGet, "/v1/"+run, "")
	if waiting["state"] != "RUN_STATE_REQUIRES_ACTION" || at(waiting, "requiredActions", "1", "kind") != "KIND_SUBMIT" || at(waiting, "requiredActions", "1", "toolCall") != run+"/toolCalls/c1-2" {
		t.Fatalf("the run waits as %v", waiting)
	}

	got, err := w.runs.SubmitToolResults(t.Context(), &loopdv1.SubmitToolResultsRequest{Name: run, Results: []*loopdv1.ToolResultInput{
		{Call: "c1-1", Attempt: 1, Outcome: &loopdv1.ToolResultInput_Content{Content: "blue"}},
		{Call: "c1-2", Attempt: 2, Outcome: &loopdv1.ToolResultInput_Content{Content: "early"}},
		{Call: "c1-3", Attempt: 1, Outcome: &loopdv1.ToolResultInput_Content{Content: "more than 10 bytes"}},
		{Call: "c9-9", Attempt: 1, Outcome: &loopdv1.ToolResultInput_Content{Content: "x"}},
	}})
	if err != nil || got.GetRun().GetName() != run {
		t.Fatalf("submit answered %v, %v", got, err)
	}
	want := []loopdv1.ErrorReason{
		0, loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_AWAITING_RESULT, loopdv1.ErrorReason_ERROR_REASON_FIELD_INVALID, loopdv1.ErrorReason_ERROR_REASON_TOOL_CALL_NOT_FOUND,
	}
	for i, status := range got.GetResults() {
		accepted := status.GetStatus() == loopdv1.ToolResultStatus_STATUS_ACCEPTED
		if status.GetReason() != want[i] || accepted != (i == 0) || (status.GetMessage() == "") != accepted {
			t.Errorf("result %d is %v", i, status)
		}
	}
	submitted := loop.ResultSubmitted{CallID: "c1-1", Attempt: 1, Outcome: loop.OutcomeOK, Content: "blue", By: "unauthenticated"}
	if diff := cmp.Diff(loop.Body(submitted), k.said()); diff != "" {
		t.Errorf("the worker hears (-want +got):\n%s", diff)
	}

	for _, c := range []struct{ body, status, reason string }{
		{`{"call": "c1-1", "attempt": 1, "content": "blue"}`, "STATUS_REPEATED", "ERROR_REASON_UNSPECIFIED"},
		{`{"call": "c1-1", "attempt": 1, "content": "red"}`, "STATUS_REFUSED", "ERROR_REASON_RESULT_CONFLICT"},
		{`{"call": "c1-3", "attempt": 1, "error": "no stock"}`, "STATUS_ACCEPTED", "ERROR_REASON_UNSPECIFIED"},
	} {
		answer := w.rest(http.MethodPost, "/v1/"+run+":submitToolResults", `{"results": [`+c.body+`]}`)
		if at(answer, "results", "0", "status") != c.status || at(answer, "results", "0", "reason") != c.reason {
			t.Errorf("%s was answered %v", c.body, answer["results"])
		}
	}
	if failed, ok := k.said().(loop.ResultSubmitted); !ok || failed.Outcome != loop.OutcomePermanent || failed.Content != "no stock" {
		t.Errorf("the worker hears %+v", failed)
	}
	if resp, body := w.do(http.MethodPost, "/v1/runs/"+noRun+":submitToolResults", `{"results": [{"call": "c1-1", "attempt": 1, "content": "x"}]}`); resp.StatusCode != http.StatusNotFound {
		t.Errorf("results of no run were answered %d %s", resp.StatusCode, body)
	}
	for status, want := range map[string]float64{"accepted": 2, "repeated": 1, "refused": 4} {
		if got := w.metric(`loopd_results_submitted_total{status="` + status + `"}`); got != want {
			t.Errorf("results that were %s: %v, want %v", status, got, want)
		}
	}
}

// TestCallsThatWait lists them across runs, and in one.
func TestCallsThatWait(t *testing.T) {
	t.Parallel()
	w := setup(t)
	first := w.run()
	k := w.claim()
	k.answer(loop.FinishToolCalls, toolCall("c1-1", "get_order", `{}`), toolCall("c1-2", "refund", `{"order": 1}`))
	until := time.Now().Add(time.Hour).UTC()
	hash := loop.ArgsHash(k.lease.Run, *toolCall("c1-2", "refund", `{"order": 1}`).Call)
	k.append(loop.CallBegun{CallID: "c1-1", Attempt: 1, Key: "k1"}, loop.ApprovalRequested{CallID: "c1-2", ArgsHash: hash, Reason: "IRREVERSIBLE", Until: until})
	k.append(loop.CallFinished{CallID: "c1-1", Attempt: 1, Outcome: loop.OutcomeOK, Content: "sent", ResultHash: "h"},
		loop.ApprovalDecided{CallID: "c1-2", ArgsHash: hash, Approved: true, By: "ann"})
	k.append(loop.CallBegun{CallID: "c1-2", Attempt: 1, Key: "k2"},
		loop.CallDoubted{CallID: "c1-2", Attempt: 1, Reason: "cut off", Until: until}, loop.Suspended{Reason: loop.WaitInDoubt, Until: until})
	second, err := w.runs.CreateRun(t.Context(), &loopdv1.CreateRunRequest{Agent: "agents/support", Input: "y"})
	if err != nil {
		t.Fatal(err)
	}
	w.claim().ask(until, `{"order": 2}`)

	doubted := w.rest(http.MethodGet, "/v1/runs/-/toolCalls?states=TOOL_CALL_STATE_IN_DOUBT", "")
	if calls := doubted["toolCalls"].([]any); len(calls) != 1 || at(doubted, "toolCalls", "0", "name") != first.GetName()+"/toolCalls/c1-2" || at(doubted, "toolCalls", "0", "waitUntil") == nil {
		t.Errorf("in doubt are %v", doubted)
	}
	const all = "/v1/runs/-/toolCalls?states=TOOL_CALL_STATE_IN_DOUBT&states=TOOL_CALL_STATE_AWAITING_APPROVAL&pageSize=1"
	page := w.rest(http.MethodGet, all, "")
	page = w.rest(http.MethodGet, all+"&pageToken="+page["nextPageToken"].(string), "")
	if at(page, "toolCalls", "0", "name") != second.GetName()+"/toolCalls/c1-1" || page["nextPageToken"] != "" {
		t.Errorf("the second page is %v", page)
	}
	if resp, body := w.do(http.MethodGet, "/v1/runs/-/toolCalls", ""); resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "TOOL_CALL_STATE_IN_DOUBT") {
		t.Errorf("all calls of all runs: answered %d %s", resp.StatusCode, body)
	}
	one := w.rest(http.MethodGet, "/v1/"+first.GetName()+"/toolCalls?states=TOOL_CALL_STATE_SUCCEEDED&pageSize=1", "")
	if len(one["toolCalls"].([]any)) != 1 || at(one, "toolCalls", "0", "callId") != "c1-1" || one["nextPageToken"] != "" {
		t.Errorf("the calls that succeeded are %v", one)
	}

	// What was sent is in the ledger, and says that nobody knows.
	run, err := w.runs.GetRun(t.Context(), &loopdv1.GetRunRequest{Name: first.GetName()})
	if err != nil || len(run.GetSideEffects()) != 1 {
		t.Fatalf("side effects are %v, %v", run.GetSideEffects(), err)
	}
	if e := run.GetSideEffects()[0]; e.GetToolCall() != first.GetName()+"/toolCalls/c1-2" || e.GetTool() != "refund" || e.GetIdempotencyKey() != "k2" ||
		e.GetState() != loopdv1.ToolCallState_TOOL_CALL_STATE_IN_DOUBT || e.GetEffect() != loopdv1.Effect_EFFECT_IRREVERSIBLE || e.GetArgumentsSha256() != hash {
		t.Errorf("the side effect is %v", e)
	}
}

func TestChildRuns(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("helper", support())
	w.agent("boss", starter("agents/helper"))
	boss := w.rest(http.MethodPost, "/v1/runs", `{"agent": "agents/boss", "input": "x"}`)["name"].(string)
	k := w.claim()
	k.answer(loop.FinishToolCalls, toolCall("c1-1", "helper", `{"input": "Help."}`))
	spec, err := w.store.GetSpec(t.Context(), k.lease.Run)
	if err != nil {
		t.Fatal(err)
	}
	const id = "0190f5fe-7c00-8a00-8000-00000000000a"
	child := spec.Definition.Tools[0].Child.Spec
	child.Input, child.Source = "Help.", "run"
	child.Parent = &loop.ParentRef{RunID: k.lease.Run.ID, CallID: "c1-1", RootID: k.lease.Run.ID, Depth: 1}
	until := time.Now().Add(time.Hour).UTC()
	k.children = []loop.ChildStart{{ID: id, Spec: child}}
	k.append(loop.CallHandedOut{CallID: "c1-1", Attempt: 1, Key: "k", Until: until, ChildID: id, Child: &child, Hold: loop.OneUSD / 10, Tokens: 1000},
		loop.Suspended{Reason: loop.WaitChild, Until: until})

	got := w.rest(http.MethodGet, "/v1/runs?parent="+boss, "")
	if runs := got["runs"].([]any); len(runs) != 1 || at(got, "runs", "0", "name") != "runs/"+id || at(got, "runs", "0", "parent") != boss ||
		at(got, "runs", "0", "parentCall") != boss+"/toolCalls/c1-1" || at(got, "runs", "0", "root") != boss || at(got, "runs", "0", "depth") != float64(1) {
		t.Errorf("child runs are %v", got)
	}
	parent := w.rest(http.MethodGet, "/v1/"+boss, "")
	if parent["phase"] != "children" || parent["parent"] != "" || parent["root"] != boss || parent["state"] != "RUN_STATE_QUEUED" && parent["state"] != "RUN_STATE_RUNNING" {
		t.Errorf("the parent waits as %v", parent)
	}
	calls := w.rest(http.MethodGet, "/v1/"+boss+"/toolCalls", "")
	if at(calls, "toolCalls", "0", "childRun") != "runs/"+id || at(calls, "toolCalls", "0", "state") != "TOOL_CALL_STATE_AWAITING_RESULT" {
		t.Errorf("the call is %v", calls)
	}
	events := w.rest(http.MethodGet, "/v1/"+boss+"/events?afterSeq=4", "")
	if at(events, "events", "0", "kind") != "call_handed_out" || at(events, "events", "0", "body", "child", "input") != "Help." {
		t.Errorf("the events are %v", events)
	}
	refused := w.rest(http.MethodPost, "/v1/"+boss+":submitToolResults", `{"results": [{"call": "c1-1", "attempt": 1, "content": "x"}]}`)
	if at(refused, "results", "0", "status") != "STATUS_REFUSED" {
		t.Errorf("a result in a child's place: %v", refused)
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("support", support())
	const body = `{"tool": "refund", "agents": ["agents/support"], "condition": "args.amount <= 50", "maxPerDay": 20}`
	for range 2 {
		w.rest(http.MethodPost, "/v1/policies?policyId=small-refunds", body, "Idempotency-Key", "k")
	}
	created, err := w.policies.GetPolicy(t.Context(), &loopdv1.GetPolicyRequest{Name: "policies/small-refunds"})
	if err != nil || created.GetVersion() != 1 || created.GetTool() != "refund" || created.GetAgents()[0] != "agents/support" || created.GetMaxPerDay() != 20 ||
		created.GetAuthor() != "unauthenticated" || created.GetUpdateTime() == nil || created.GetArchived() {
		t.Errorf("created %v, %v", created, err)
	}
	w.same(created, http.MethodGet, "/v1/policies/small-refunds")
	updated := w.rest(http.MethodPatch, "/v1/policies/small-refunds?updateMask=max_per_day", `{"tool": "other", "condition": "args.x", "maxPerDay": 5}`)
	if updated["version"] != "2" || updated["tool"] != "refund" || updated["condition"] != "args.amount <= 50" || updated["maxPerDay"] != float64(5) {
		t.Errorf("updated %v", updated)
	}
	if policies, err := w.store.Policies(t.Context(), tenant, "refund"); err != nil || len(policies) != 1 || policies[0].Version != 2 {
		t.Errorf("workers see %v, %v", policies, err)
	}
	w.rest(http.MethodPatch, "/v1/policies/b?allowMissing=true", body)
	page := w.rest(http.MethodGet, "/v1/policies?pageSize=1", "")
	page = w.rest(http.MethodGet, "/v1/policies?pageSize=1&pageToken="+page["nextPageToken"].(string), "")
	if at(page, "policies", "0", "name") != "policies/small-refunds" || page["nextPageToken"] != "" {
		t.Errorf("the second page is %v", page)
	}
	for range 2 {
		if archived := w.rest(http.MethodPost, "/v1/policies/b:archive", ""); archived["archived"] != true {
			t.Errorf("archived %v", archived)
		}
	}

	for name, c := range map[string]struct {
		method, path, body string
		status             int
		reason, field      string
	}{
		"rule that is none": {"POST", "/v1/policies?policyId=a", strings.Replace(body, "args.amount", "amount", 1), 400, "FIELD_INVALID", "policy.condition"},
		"agent of none":     {"POST", "/v1/policies?policyId=a", strings.Replace(body, "agents/support", "agents/none", 1), 404, "AGENT_NOT_FOUND", "policy.agents[0]"},
		"without a bound":   {"POST", "/v1/policies?policyId=a", strings.Replace(body, "20", "0", 1), 400, "FIELD_INVALID", "policy.max_per_day"},
		"id taken":          {"POST", "/v1/policies?policyId=b", body, 409, "POLICY_EXISTS", ""},
		"archived":          {"PATCH", "/v1/policies/b", body, 409, "POLICY_ARCHIVED", ""},
		"update of none":    {"PATCH", "/v1/policies/none", body, 404, "POLICY_NOT_FOUND", ""},
		"none":              {"GET", "/v1/policies/none", "", 404, "POLICY_NOT_FOUND", ""},
		"no such version":   {"GET", "/v1/policies/b?version=9", "", 404, "POLICY_VERSION_NOT_FOUND", ""},
		"archive of none":   {"POST", "/v1/policies/none:archive", "", 404, "POLICY_NOT_FOUND", ""},
	} {
		resp, answer := w.do(c.method, c.path, c.body)
		p := decode(t, answer)
		if resp.StatusCode != c.status || p["reason"] != c.reason || (c.field != "" && at(p, "errors", "0", "field") != c.field) {
			t.Errorf("%s: answered %d %s", name, resp.StatusCode, answer)
		}
	}
}
