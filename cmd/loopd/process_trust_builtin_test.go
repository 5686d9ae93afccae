package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

const usesBuiltins = `
models:
  clerk:
    answers:
      - calls: [{name: memory_put, args: {key: boats, text: "Ada likes teal boats."}}]
      - calls: [{name: memory_get, args: {key: boats}}, {name: memory_search, args: {query: "teal boats"}}]
      - calls: [{name: ask_human, args: {question: "Ship it?", choices: ["yes", "no"]}}, {name: wait, args: {seconds: 0.2}}]
      - calls: [{name: wait, args: {tool: status, arguments: {order: 7}, every_seconds: 5}}]
      - calls: [{name: finish, args: {status: 7}}]
      - calls: [{name: finish, args: {status: shipped}}, {name: pay, args: {n: 1}}]
  recall:
    answers:
      - calls: [{name: memory_search, args: {query: "teal boats"}}]
      - text: "done"
`

// The tools of loopd's own, from a note to the structured answer, with a power cut
// while the run waits for something to change. Waiting asks no model, and what
// stands beside a final answer is not sent.
func TestBuiltinsEndToEnd(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newShop(t)
	tools.say("status", `{"status": "packing"}`)
	first := start(t, db, usesBuiltins)
	status := tools.tool("status", "status", readOnly)
	status.Pollable = true
	memory := []*loopdv1.Tool{
		builtin("memory_put", loopdv1.Builtin_BUILTIN_MEMORY_PUT), builtin("memory_get", loopdv1.Builtin_BUILTIN_MEMORY_GET),
		builtin("memory_search", loopdv1.Builtin_BUILTIN_MEMORY_SEARCH),
	}
	contract, err := structpb.NewStruct(map[string]any{
		"type": "object", "required": []any{"status"}, "properties": map[string]any{"status": map[string]any{"type": "string"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	first.define("clerk", &loopdv1.AgentSpec{
		Output: &loopdv1.OutputContract{JsonSchema: contract},
		Tools: append([]*loopdv1.Tool{
			builtin("ask_human", loopdv1.Builtin_BUILTIN_ASK_HUMAN), builtin("wait", loopdv1.Builtin_BUILTIN_WAIT),
			builtin("finish", loopdv1.Builtin_BUILTIN_FINISH), status, tools.tool("pay", "pay", sideEffect),
		}, memory...),
	})
	begin := func(p *process, subject string) string {
		var run loopdv1.Run
		p.ask(http.MethodPost, "/v1/runs", fmt.Sprintf(`{"agent": "agents/clerk", "input": "go", "labels": {"subject": %q}}`, subject), &run)
		return run.GetName()
	}
	run := begin(first, "ada")
	first.until(run, "call_handed_out", 2)
	question := first.approvals(run)[0]
	if question.GetKind() != loopdv1.Approval_KIND_ANSWER || !strings.Contains(question.GetArgumentsJson(), "Ship it?") {
		t.Errorf("the inbox has %v", question)
	}
	refused := first.refused(http.StatusBadRequest, "FIELD_INVALID", http.MethodPost, "/v1/"+question.GetName()+":answer", `{"choice": "maybe"}`)
	if field := at(refused, "errors", 0, "field"); field != "choice" {
		t.Errorf("the refusal names %v", field)
	}
	first.ask(http.MethodPost, "/v1/"+question.GetName()+":answer", `{"choice": "yes"}`, &loopdv1.Approval{})
	first.until(run, "call_polled", 1)
	first.kill()
	tools.say("status", `{"status": "shipped"}`)

	second := start(t, db, usesBuiltins)
	got := second.ended(run, succeeded)
	if got.GetAnswer() != `{"status":"shipped"}` || got.GetAnswerJson().GetFields()["status"].GetStringValue() != "shipped" {
		t.Errorf("the answer is %q, %v", got.GetAnswer(), got.GetAnswerJson())
	}
	if got.GetModelCalls() != 6 {
		t.Errorf("the model was asked %d times, want once for each of its answers", got.GetModelCalls())
	}
	for call, want := range map[string]string{
		"c1-1": `"stored":true`, "c2-1": "teal", "c2-2": "teal", "c3-1": "yes", "c3-2": `"changed":false`, "c4-1": "shipped",
		"c5-1": "status", "c6-2": "final answer was given beside it",
	} {
		if result := second.results(run)[call]; !strings.Contains(result, want) {
			t.Errorf("the result of %s is %q, want %s in it", call, result, want)
		}
	}
	if rows := tools.of("status"); len(rows) != 2 || rows[0].key == rows[1].key || rows[0].args != `{"order":7}` {
		t.Errorf("the ledger has %v, want two looks, each with a key of its own", rows)
	}
	if rows := tools.of("pay"); len(rows) != 0 {
		t.Errorf("paid beside the final answer: %v", rows)
	}

	second.define("clerk", &loopdv1.AgentSpec{Model: "recall", Tools: memory})
	for subject, found := range map[string]int{"ada": 1, "bob": 0} {
		run := begin(second, subject)
		second.ended(run, succeeded)
		var result struct{ Notes []struct{ Key, Text string } }
		if err := json.Unmarshal([]byte(second.results(run)["c1-1"]), &result); err != nil || len(result.Notes) != found {
			t.Errorf("the notes about %s are %v, %v, want %d", subject, result.Notes, err, found)
		}
	}
}
