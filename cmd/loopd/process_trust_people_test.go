package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// amounts is the schema of a payment.
func amounts(t *testing.T) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(map[string]any{
		"type": "object", "required": []any{"amount"}, "additionalProperties": false,
		"properties": map[string]any{"amount": map[string]any{"type": "number", "maximum": 1000}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const payHundred = `
models:
  payer:
    answers:
      - calls: [{name: pay, args: {amount: 100}}]
      - text: "done"
  looker:
    answers:
      - calls: [{name: look}]
      - text: "done"
`

// An approval waits over a restart, and expires over one. It is bound to its
// arguments; edited ones are checked. Once it is given a power cut does not lose it,
// and it is used once.
func TestApprovalOutlivesWorkers(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newShop(t)
	first := start(t, db, payHundred)
	pay := tools.tool("pay", "pay", irreversible)
	pay.InputSchema = amounts(t)
	first.define("payer", &loopdv1.AgentSpec{Tools: []*loopdv1.Tool{pay}})
	first.define("looker", &loopdv1.AgentSpec{Tools: []*loopdv1.Tool{tools.tool("look", "look", readOnly)}})
	run := first.start("payer").GetName()
	first.until(run, "approval_requested", 1)
	asked := first.approvals(run)[0]
	var hasty loopdv1.Run
	first.ask(http.MethodPost, "/v1/runs", `{"agent": "agents/payer", "input": "go", "limits": {"maxWallTime": "16s"}}`, &hasty)
	first.until(hasty.GetName(), "approval_requested", 1)
	expires := first.approvals(hasty.GetName())[0]
	first.kill()

	second := start(t, db, payHundred, "--max-runs", "1")
	tools.hold()
	busy := second.start("looker").GetName()
	tools.await(t, "look", 1) // there is no room for another run
	pending := second.approvals(run)
	if diff := cmp.Diff([]*loopdv1.Approval{asked}, pending, protocmp.Transform()); diff != "" {
		t.Fatalf("what waits for a person (-before +after the restart):\n%s", diff)
	}
	path := "/v1/" + asked.GetName() + ":approve"
	word := func(hash string, amount int) string {
		return fmt.Sprintf(`{"expectedArgumentsHash": %q, "editedArgumentsJson": "{\"amount\": %d}"}`, hash, amount)
	}
	stale := strings.Repeat("0", 64)
	second.refused(http.StatusConflict, "ARGUMENTS_CHANGED", http.MethodPost, path, word(stale, 40))
	tooMuch := second.refused(http.StatusBadRequest, "FIELD_INVALID", http.MethodPost, path, word(asked.GetArgumentsSha256(), 4000))
	if field := at(tooMuch, "errors", 0, "field"); field != "edited_arguments_json" {
		t.Errorf("the refusal names %v", field)
	}
	var approved loopdv1.Approval
	for range 2 { // the same word again changes nothing
		second.ask(http.MethodPost, path, word(asked.GetArgumentsSha256(), 40), &approved)
	}
	if approved.GetState() != loopdv1.ApprovalState_APPROVAL_STATE_APPROVED {
		t.Errorf("the approval is %s", approved.GetState())
	}
	second.refused(http.StatusConflict, "CALL_NOT_AWAITING_APPROVAL", http.MethodPost, path, word(asked.GetArgumentsSha256(), 41))
	second.kill() // before anybody has acted on it
	if rows := tools.of("pay"); len(rows) != 0 {
		t.Errorf("paid by a worker without room: %v", rows)
	}
	tools.release()

	third := start(t, db, payHundred)
	got := third.ended(run, succeeded)
	third.ended(busy, succeeded)
	third.checkExpired(hasty.GetName(), expires)
	if rows := tools.of("pay"); len(rows) != 1 || rows[0].args != `{"amount": 40}` {
		t.Errorf("the ledger has %v, want one payment of 40", rows)
	}
	call := third.calls(run)[0]
	if !strings.Contains(call.GetArgumentsJson(), "100") || !strings.Contains(call.GetEditedArgumentsJson(), "40") {
		t.Errorf("the call has the arguments %s, edited %s", call.GetArgumentsJson(), call.GetEditedArgumentsJson())
	}
	effects := got.GetSideEffects()
	if len(effects) != 1 || effects[0].GetArgumentsSha256() == asked.GetArgumentsSha256() || effects[0].GetState() != loopdv1.ToolCallState_TOOL_CALL_STATE_SUCCEEDED {
		t.Errorf("side effects %v, want one with the hash of what was sent", effects)
	}
	_, page := third.rest(http.MethodGet, "/v1/"+run+"/messages", "")
	if text := fmt.Sprint(page); !strings.Contains(text, "approved with other arguments than yours") {
		t.Errorf("the model was not told of the edit: %s", text)
	}
}

// checkExpired: nobody decided in time, which counts as denied. The model was told,
// nothing was sent, and a decision that comes later is refused.
func (p *process) checkExpired(run string, asked *loopdv1.Approval) {
	p.t.Helper()
	p.waitEnd(run)
	if call := p.calls(run)[0]; call.GetState() != loopdv1.ToolCallState_TOOL_CALL_STATE_DENIED || !strings.Contains(call.GetResult(), "Nobody approved the call in time") {
		p.t.Errorf("what nobody approved is %s, %q", call.GetState(), call.GetResult())
	}
	if _, approval := p.rest(http.MethodGet, "/v1/"+asked.GetName(), ""); at(approval, "state") != "APPROVAL_STATE_EXPIRED" {
		p.t.Errorf("the approval is %v, want expired", at(approval, "state"))
	}
	status, answer := p.rest(http.MethodPost, "/v1/"+asked.GetName()+":approve", fmt.Sprintf(`{"expectedArgumentsHash": %q}`, asked.GetArgumentsSha256()))
	if status != http.StatusConflict {
		p.t.Errorf("approved too late: %d %v", status, answer)
	}
}

// at finds a value inside a JSON document, nil if there is none.
func at(value any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			members, _ := value.(map[string]any)
			value = members[p]
		case int:
			items, _ := value.([]any)
			if p >= len(items) {
				return nil
			}
			value = items[p]
		}
	}
	return value
}

const paySmall = `
models:
  payer:
    answers:
      - calls: [{name: pay, args: {amount: 10}}, {name: pay, args: {amount: 500}}, {name: pay, args: {amount: 11}}, {name: pay, args: {amount: 12}}]
      - text: "done"
`

// A policy approves what its author allowed, so often a day; all else goes to a
// person. The ledger of what was done names who approved it.
func TestPolicyApprovesWithinItsBounds(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newShop(t)
	p := start(t, db, paySmall)
	pay := tools.tool("pay", "pay", irreversible)
	pay.InputSchema = amounts(t)
	p.define("payer", &loopdv1.AgentSpec{Tools: []*loopdv1.Tool{pay}})
	p.ask(http.MethodPost, "/v1/policies?policy_id=small", `{"tool": "pay", "agents": ["agents/payer"], "condition": "args.amount <= 50", "maxPerDay": 2}`, &loopdv1.Policy{})
	run := p.start("payer").GetName()
	tools.await(t, "pay", 2)
	p.until(run, "call_finished", 2)
	p.wait(run)

	decided := map[string]string{}
	var page loopdv1.ListApprovalsResponse
	p.ask(http.MethodGet, "/v1/approvals?run="+run, "", &page)
	for _, a := range page.GetApprovals() {
		decided[a.GetArgumentsJson()] = a.GetDecidedBy()
	}
	want := map[string]string{`{"amount":10}`: "policies/small@1", `{"amount":11}`: "policies/small@1", `{"amount":12}`: "", `{"amount":500}`: ""}
	for args, by := range want {
		if got, asked := decided[args]; got != by || !asked {
			t.Errorf("%s was decided by %q (asked: %t), want %q", args, got, asked, by)
		}
	}
	pending := p.approvals(run)
	if len(pending) != 2 || len(tools.of("pay")) != 2 {
		t.Fatalf("there wait %v; the ledger has %v", pending, tools.of("pay"))
	}
	for _, a := range pending {
		if strings.Contains(a.GetArgumentsJson(), "500") {
			p.ask(http.MethodPost, "/v1/"+a.GetName()+":deny", `{"reason": "too much"}`, &loopdv1.Approval{})
		} else {
			p.approve(a)
		}
	}
	p.ended(run, succeeded)
	if rows := tools.of("pay"); len(rows) != 3 {
		t.Errorf("the ledger has %v, want the two of the policy and the one of a person", rows)
	}
}

const weighs = `
models:
  packer:
    answers:
      - calls: [{name: weigh, args: {n: 1}}, {name: print, args: {n: 2}}]
      - text: "done"
`

// A client's tools: what the client owes is owed after a restart too, counts once
// whoever submits it and however often, and is not lost once it was accepted.
func TestClientToolOutlivesWorkers(t *testing.T) {
	t.Parallel()
	db := pgURL(t)
	client := func(name string, effect loopdv1.Effect) *loopdv1.Tool {
		return &loopdv1.Tool{Name: name, Effect: effect, Kind: &loopdv1.Tool_Client{Client: &loopdv1.ClientTool{}}}
	}
	first := start(t, db, weighs)
	first.define("packer", &loopdv1.AgentSpec{Tools: []*loopdv1.Tool{client("weigh", readOnly), client("print", sideEffect)}})
	run := first.start("packer").GetName()
	owed := first.wait(run).GetRequiredActions()
	first.kill()

	second := start(t, db, weighs)
	actions := second.wait(run).GetRequiredActions()
	if diff := cmp.Diff(owed, actions, protocmp.Transform()); diff != "" || len(owed) != 2 {
		t.Fatalf("what the run requires (-before +after the restart):\n%s", diff)
	}
	for _, a := range actions {
		if a.GetKind() != loopdv1.RequiredAction_KIND_SUBMIT || a.GetAttempt() != 1 {
			t.Errorf("the run requires %v", a)
		}
	}
	submit := func(p *process, call string, attempt int, content string) *loopdv1.ToolResultStatus {
		var answer loopdv1.SubmitToolResultsResponse
		body := fmt.Sprintf(`{"results": [{"call": %q, "attempt": %d, "content": %q}]}`, call, attempt, content)
		p.ask(http.MethodPost, "/v1/"+run+":submitToolResults", body, &answer)
		return answer.GetResults()[0]
	}
	var mu sync.Mutex
	counts, accepted := map[loopdv1.ToolResultStatus_Status]int{}, ""
	var clients sync.WaitGroup
	for i := range 6 { // six clients with four different results
		clients.Go(func() {
			content := fmt.Sprintf("%d kg", min(i, 3))
			status := submit(second, "c1-1", 1, content).GetStatus()
			mu.Lock()
			defer mu.Unlock()
			counts[status]++
			if status == loopdv1.ToolResultStatus_STATUS_ACCEPTED {
				accepted = content
			}
		})
	}
	clients.Wait()
	if counts[loopdv1.ToolResultStatus_STATUS_ACCEPTED] != 1 {
		t.Errorf("of six results at once %v", counts)
	}
	if got := submit(second, "c1-2", 2, "printed"); got.GetReason() != loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_AWAITING_RESULT {
		t.Errorf("a result of an attempt that never was: %v", got)
	}
	if got := submit(second, "c1-2", 1, "printed"); got.GetStatus() != loopdv1.ToolResultStatus_STATUS_ACCEPTED {
		t.Errorf("the second result is %v", got)
	}
	second.kill() // right after it was acknowledged

	third := start(t, db, weighs)
	third.ended(run, succeeded)
	if got := submit(third, "c1-1", 1, accepted); got.GetStatus() != loopdv1.ToolResultStatus_STATUS_REPEATED {
		t.Errorf("the same result again is %v", got)
	}
	if got := submit(third, "c1-1", 1, "another"); got.GetStatus() != loopdv1.ToolResultStatus_STATUS_REFUSED || got.GetReason() != loopdv1.ErrorReason_ERROR_REASON_RESULT_CONFLICT {
		t.Errorf("another result is %v", got)
	}
	if results := third.results(run); results["c1-1"] != accepted || results["c1-2"] != "printed" {
		t.Errorf("the model reads %v, want %q and the print", results, accepted)
	}
}
