package server_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// same fails unless REST shows exactly what gRPC answered.
func (w *world) same(want proto.Message, method, path string) {
	w.t.Helper()
	resp, body := w.do(method, path, "")
	if resp.StatusCode != http.StatusOK {
		w.t.Errorf("%s %s answered %d %s", method, path, resp.StatusCode, body)
		return
	}
	got := want.ProtoReflect().New().Interface()
	if err := protojson.Unmarshal(body, got); err != nil {
		w.t.Errorf("%s %s: %v", method, path, err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		w.t.Errorf("%s %s differs from gRPC (-grpc +rest):\n%s", method, path, diff)
	}
}

func TestAgents(t *testing.T) {
	t.Parallel()
	w := setup(t)
	ctx := t.Context()

	created, err := w.agents.CreateAgent(ctx, &loopdv1.CreateAgentRequest{AgentId: "support", Agent: &loopdv1.Agent{
		Labels: map[string]string{"env": "prod"}, Spec: support(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if created.GetName() != "agents/support" || created.GetVersion() != 1 || created.GetDisplayName() != "support" || created.GetCreateTime() == nil {
		t.Errorf("created %v", created)
	}
	if diff := cmp.Diff(support(), created.GetSpec(), protocmp.Transform()); diff != "" {
		t.Errorf("the definition changed (-sent +stored):\n%s", diff)
	}
	w.same(created, http.MethodGet, "/v1/agents/support")

	updated, err := w.agents.UpdateAgent(ctx, &loopdv1.UpdateAgentRequest{
		Agent:      &loopdv1.Agent{Name: "agents/support", DisplayName: "Support desk", Spec: &loopdv1.AgentSpec{Model: model}},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"display_name", "spec"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if updated.GetVersion() != 2 || updated.GetDisplayName() != "Support desk" || updated.GetLabels()["env"] != "prod" || len(updated.GetSpec().GetTools()) != 0 {
		t.Errorf("updated %v", updated)
	}
	first, err := w.agents.GetAgent(ctx, &loopdv1.GetAgentRequest{Name: "agents/support", Version: proto.Int64(1)})
	if err != nil || len(first.GetSpec().GetTools()) != 2 {
		t.Errorf("version 1 is %v, %v", first, err)
	}

	made := w.rest(http.MethodPatch, "/v1/agents/billing?allow_missing=true", `{"spec": {"model": "acme/large-1"}}`)
	if made["name"] != "agents/billing" || made["version"] != "1" {
		t.Errorf("an update with allow_missing made %v", made)
	}
	archived := w.rest(http.MethodPost, "/v1/agents/support:archive", "")
	again := w.rest(http.MethodPost, "/v1/agents/support:archive", `{}`)
	if archived["archiveTime"] == nil || archived["archiveTime"] != again["archiveTime"] {
		t.Errorf("archived at %v, then at %v", archived["archiveTime"], again["archiveTime"])
	}

	w.agent("courier", support())
	page, err := w.agents.ListAgents(ctx, &loopdv1.ListAgentsRequest{PageSize: 1})
	if err != nil || len(page.GetAgents()) != 1 || page.GetAgents()[0].GetName() != "agents/billing" {
		t.Fatalf("first page is %v, %v", page, err)
	}
	page, err = w.agents.ListAgents(ctx, &loopdv1.ListAgentsRequest{PageSize: 5, PageToken: page.GetNextPageToken()})
	if err != nil || len(page.GetAgents()) != 1 || page.GetAgents()[0].GetName() != "agents/courier" || page.GetNextPageToken() != "" {
		t.Errorf("last page is %v, %v", page, err)
	}
	if all := w.rest(http.MethodGet, "/v1/agents?showArchived=true", ""); len(all["agents"].([]any)) != 3 {
		t.Errorf("all agents are %v", all)
	}
}

func TestARunIsPinned(t *testing.T) {
	t.Parallel()
	w := setup(t)
	spec := support()
	spec.Limits = &loopdv1.Limits{MaxIterations: proto.Int32(5), MaxToolCalls: proto.Int32(0)}
	agent := w.agent("support", spec)

	run, err := w.runs.CreateRun(t.Context(), &loopdv1.CreateRunRequest{
		Agent: agent, Input: "Hello \x00 there", Labels: map[string]string{"tier": "2", "case": "77"},
		Limits: &loopdv1.Limits{MaxCostUsd: new("0.25"), MaxIterations: proto.Int32(7), Deadline: durationpb.New(time.Minute)},
	})
	if err != nil {
		t.Fatal(err)
	}
	limits := loop.Defaults()
	limits.Iterations, limits.ModelCalls, limits.ToolCalls, limits.Cost, limits.Deadline = 7, 21, 0, loop.OneUSD/4, time.Minute
	stored, err := w.store.GetSpec(t.Context(), loop.RunRef{Tenant: tenant, ID: run.GetName()[len("runs/"):]})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(limits, stored.Limits); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	wantLabels := map[string]string{"team": "support", "tier": "2", "case": "77"}
	if diff := cmp.Diff(wantLabels, run.GetLabels()); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	price, _ := prices(model)
	if diff := cmp.Diff(price, stored.Price); diff != "" || stored.Source != "grpc" || stored.Input != "Hello \x00 there" {
		t.Errorf("source %q, input %q, price (-want +got):\n%s", stored.Source, stored.Input, diff)
	}
	tools := stored.Definition.Tools
	if len(tools) != 2 || tools[0].Name != "get_order" || tools[0].Effect != loop.ReadOnly ||
		tools[1].Effect != loop.Irreversible || tools[1].Timeout != 30*time.Second || tools[1].MaxResultBytes != 65536 ||
		string(tools[1].Schema) != `{"type":"object"}` {
		t.Errorf("tools are %+v", tools)
	}
	if run.GetState() != loopdv1.RunState_RUN_STATE_QUEUED || run.GetPhase() != "queue" || run.GetDone() || run.GetCostUsd() != "0" || run.GetAgentVersion() != 1 {
		t.Errorf("the run begins as %v", run)
	}
	w.same(run, http.MethodGet, "/v1/"+run.GetName())
}

func TestRunsAreListedNewestFirst(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a, b := w.agent("a", support()), w.agent("b", support())
	var names []string
	for _, agent := range []string{a, b, a, a} {
		run := w.rest(http.MethodPost, "/v1/runs", `{"agent": "`+agent+`", "input": "x"}`)
		names = append([]string{run["name"].(string)}, names...)
	}
	w.claim() // the oldest is running now

	var got []string
	for token := ""; ; {
		page, err := w.runs.ListRuns(t.Context(), &loopdv1.ListRunsRequest{PageSize: 3, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, run := range page.GetRuns() {
			got = append(got, run.GetName())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if diff := cmp.Diff(names, got); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
	page := w.rest(http.MethodGet, "/v1/runs?agent=agents/a&states=RUN_STATE_QUEUED", "")
	if runs := page["runs"].([]any); len(runs) != 2 || at(page, "runs", "0", "name") != names[0] {
		t.Errorf("queued runs of agent a are %v", page)
	}
}

func TestATranscriptAndItsCalls(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	k := w.claim()
	k.answer(loop.FinishToolCalls, loop.TextPart("Let me see."), loop.Part{Kind: loop.PartReasoning, Text: "hm"},
		toolCall("c1-1", "get_order", `{"id": 1}`), toolCall("c1-2", "nothing", `{`))
	k.append(loop.CallRefused{CallID: "c1-2", Outcome: loop.OutcomeUnknownTool, Content: "no such tool"},
		loop.CallBegun{CallID: "c1-1", Attempt: 1, Key: "loopd:k"})
	k.append(loop.CallFinished{CallID: "c1-1", Attempt: 1, Outcome: loop.OutcomeOK, Content: `{"state":"sent"}`, Bytes: 16})
	k.finish("It was sent.")

	messages, err := w.runs.ListMessages(t.Context(), &loopdv1.ListMessagesRequest{Parent: run.GetName()})
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, m := range messages.GetMessages() {
		if m.GetSeq() == 0 || m.GetCreateTime() == nil {
			t.Errorf("message without place: %v", m)
		}
		told = append(told, m.GetSource()+" "+m.GetRole().String())
	}
	want := []string{"input ROLE_USER", "model ROLE_ASSISTANT", "tool ROLE_USER", "model ROLE_ASSISTANT"}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	w.same(messages, http.MethodGet, "/v1/"+run.GetName()+"/messages")
	page := w.rest(http.MethodGet, "/v1/"+run.GetName()+"/messages?page_size=2", "")
	page = w.rest(http.MethodGet, "/v1/"+run.GetName()+"/messages?page_size=2&page_token="+page["nextPageToken"].(string), "")
	if at(page, "messages", "0", "parts", "0", "toolResult", "text") != `{"state":"sent"}` || page["nextPageToken"] != "" {
		t.Errorf("second page is %v", page)
	}

	calls, err := w.runs.ListToolCalls(t.Context(), &loopdv1.ListToolCallsRequest{Parent: run.GetName()})
	if err != nil || len(calls.GetToolCalls()) != 2 {
		t.Fatalf("tool calls are %v, %v", calls, err)
	}
	sent, refused := calls.GetToolCalls()[0], calls.GetToolCalls()[1]
	if sent.GetName() != run.GetName()+"/toolCalls/c1-1" || sent.GetState() != loopdv1.ToolCallState_TOOL_CALL_STATE_SUCCEEDED ||
		sent.GetEffect() != loopdv1.Effect_EFFECT_READ_ONLY || sent.GetIdempotencyKey() != "loopd:k" || sent.GetArgumentsJson() != `{"id": 1}` {
		t.Errorf("the call that was sent is %v", sent)
	}
	if refused.GetState() != loopdv1.ToolCallState_TOOL_CALL_STATE_REJECTED || refused.GetOutcome() != "unknown_tool" {
		t.Errorf("the call that was refused is %v", refused)
	}
	w.same(calls, http.MethodGet, "/v1/"+run.GetName()+"/toolCalls")

	done, err := w.runs.GetRun(t.Context(), &loopdv1.GetRunRequest{Name: run.GetName()})
	if err != nil {
		t.Fatal(err)
	}
	if !done.GetDone() || done.GetState() != loopdv1.RunState_RUN_STATE_SUCCEEDED || done.GetAnswer() != "It was sent." ||
		done.GetStop().GetReason() != loopdv1.StopReason_STOP_REASON_COMPLETED || done.GetIterations() != 2 || done.GetCostUsd() != "0.0004" {
		t.Errorf("the run ended as %v", done)
	}
	w.same(done, http.MethodGet, "/v1/"+run.GetName())
}

func TestWaitRun(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	if got := w.rest(http.MethodGet, "/v1/"+run.GetName()+":wait?timeout=0s", ""); got["done"] != false {
		t.Errorf("no wait answered %v", got)
	}
	k := w.claim()
	answered := make(chan *loopdv1.Run)
	go func() {
		got, err := w.runs.WaitRun(t.Context(), &loopdv1.WaitRunRequest{Name: run.GetName(), Timeout: durationpb.New(time.Minute)})
		if err != nil {
			t.Error(err)
		}
		answered <- got
	}()
	k.finish("Done.")
	if got := <-answered; got.GetAnswer() != "Done." {
		t.Errorf("the wait answered %v", got)
	}
}

func TestCancelRun(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	for range 2 {
		got := w.rest(http.MethodPost, "/v1/"+run.GetName()+":cancel", `{"reason": "enough"}`, "Idempotency-Key", `"once"`)
		if got["state"] != "RUN_STATE_CANCELLING" || got["done"] != false {
			t.Errorf("cancel answered %v", got)
		}
	}
	k := w.claim()
	signals, err := w.store.Signals(t.Context(), k.lease)
	if err != nil || len(signals) != 1 {
		t.Fatalf("signals are %v, %v", signals, err)
	}
	k.seen = signals[0].ID
	k.append(signals[0].Body, loop.Finished{State: loop.StateCancelled, Stop: loop.Stop{Reason: loop.Cancelled, Message: "enough"}})
	cancelled, err := w.runs.CancelRun(t.Context(), &loopdv1.CancelRunRequest{Name: run.GetName()})
	if err != nil || cancelled.GetState() != loopdv1.RunState_RUN_STATE_CANCELLED {
		t.Errorf("cancelling a cancelled run brought %v, %v", cancelled, err)
	}
}

// TestDecisions walks a call that needs approval through the doors.
func TestDecisions(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	k := w.claim()
	k.answer(loop.FinishToolCalls, toolCall("c1-1", "refund", `{"order": 1}`), toolCall("c1-2", "refund", `{"order": 2}`))
	hash := func(id string) string {
		calls, err := w.store.ToolCalls(t.Context(), k.lease.Run)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range calls {
			if c.Call.ID == id {
				return c.ArgsHash
			}
		}
		return ""
	}
	until := time.Now().Add(time.Hour).UTC()
	k.append(loop.ApprovalRequested{CallID: "c1-1", ArgsHash: hash("c1-1"), Until: until},
		loop.ApprovalRequested{CallID: "c1-2", ArgsHash: hash("c1-2"), Until: until},
		loop.Suspended{Reason: loop.WaitApproval, Until: until})

	waiting := w.rest(http.MethodGet, "/v1/"+run.GetName()+":wait", "")
	if waiting["state"] != "RUN_STATE_REQUIRES_ACTION" || waiting["phase"] != "waiting" || at(waiting, "requiredActions", "0", "kind") != "KIND_APPROVE" ||
		at(waiting, "requiredActions", "0", "toolCall") != run.GetName()+"/toolCalls/c1-1" {
		t.Errorf("the run waits as %v", waiting)
	}
	first, second := run.GetName()+"/toolCalls/c1-1", run.GetName()+"/toolCalls/c1-2"
	resp, body := w.do(http.MethodPost, "/v1/"+first+":approve", `{"argumentsSha256": "`+hash("c1-2")+`"}`)
	if p := decode(t, body); resp.StatusCode != http.StatusConflict || p["reason"] != "ARGUMENTS_CHANGED" || at(p, "metadata", "arguments_sha256") != hash("c1-1") {
		t.Errorf("approving other arguments answered %d %s", resp.StatusCode, body)
	}
	for range 2 { // the second time it waits for the worker
		w.rest(http.MethodPost, "/v1/"+first+":approve", `{"argumentsSha256": "`+hash("c1-1")+`", "reason": "fine", "requestId": "r1"}`)
	}
	resp, body = w.do(http.MethodPost, "/v1/"+first+":deny", `{"reason": "no"}`)
	if p := decode(t, body); resp.StatusCode != http.StatusConflict || p["reason"] != "CALL_NOT_AWAITING_APPROVAL" {
		t.Errorf("a second decision before the worker took the first answered %d %s", resp.StatusCode, body)
	}
	w.rest(http.MethodPost, "/v1/"+second+":deny", `{"reason": "too much"}`)

	k = w.claim()
	signals, err := w.store.Signals(t.Context(), k.lease)
	if err != nil || len(signals) != 2 {
		t.Fatalf("signals are %v, %v", signals, err)
	}
	want := []loop.Body{
		loop.ApprovalDecided{CallID: "c1-1", ArgsHash: hash("c1-1"), Approved: true, By: "unauthenticated", Reason: "fine"},
		loop.ApprovalDecided{CallID: "c1-2", ArgsHash: hash("c1-2"), Approved: false, By: "unauthenticated", Reason: "too much"},
	}
	if diff := cmp.Diff(want, []loop.Body{signals[0].Body, signals[1].Body}); diff != "" {
		t.Errorf("signals (-want +got):\n%s", diff)
	}
	k.seen = signals[1].ID
	k.append(signals[0].Body, signals[1].Body)

	again := w.rest(http.MethodPost, "/v1/"+first+":approve", `{"argumentsSha256": "`+hash("c1-1")+`", "reason": "fine", "requestId": "r1"}`)
	if again["state"] != "TOOL_CALL_STATE_APPROVED" {
		t.Errorf("the repeated approval answered %v", again)
	}
	resp, body = w.do(http.MethodPost, "/v1/"+first+":deny", `{}`)
	if p := decode(t, body); resp.StatusCode != http.StatusConflict || p["reason"] != "CALL_NOT_AWAITING_APPROVAL" || at(p, "metadata", "state") != "TOOL_CALL_STATE_APPROVED" {
		t.Errorf("the second decision answered %d %s", resp.StatusCode, body)
	}
	resp, body = w.do(http.MethodPost, "/v1/"+first+":resolve", `{"resolution": "RESOLUTION_RETRY"}`)
	if p := decode(t, body); resp.StatusCode != http.StatusConflict || p["reason"] != "CALL_NOT_IN_DOUBT" {
		t.Errorf("resolving a call that is not in doubt answered %d %s", resp.StatusCode, body)
	}

	k.append(loop.CallBegun{CallID: "c1-1", Attempt: 1, Key: "k"},
		loop.CallDoubted{CallID: "c1-1", Attempt: 1, Reason: "cut off", Until: until},
		loop.Suspended{Reason: loop.WaitInDoubt, Until: until})
	doubted, err := w.runs.ResolveToolCall(t.Context(), &loopdv1.ResolveToolCallRequest{
		Name: first, Resolution: loopdv1.Resolution_RESOLUTION_SUCCEEDED, Result: "paid", Comment: "seen in the ledger",
	})
	if err != nil || doubted.GetState() != loopdv1.ToolCallState_TOOL_CALL_STATE_IN_DOUBT {
		t.Errorf("resolve answered %v, %v", doubted, err)
	}
	signals, err = w.store.Signals(t.Context(), k.lease)
	if err != nil || len(signals) != 1 {
		t.Fatalf("signals are %v, %v", signals, err)
	}
	resolved := loop.CallResolved{CallID: "c1-1", Resolution: loop.ResolvedSucceeded, Result: "paid", By: "unauthenticated", Reason: "seen in the ledger"}
	if diff := cmp.Diff(loop.Body(resolved), signals[0].Body); diff != "" {
		t.Errorf("signal (-want +got):\n%s", diff)
	}
}
