package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

const digs = `
models:
  digger:
    answers:
      - calls: [{name: pay, args: {order: 7}}]
      - calls: [{name: look1, args: {}}]
      - calls: [{name: look2, args: {}}]
      - calls: [{name: look3, args: {}}]
      - calls: [{name: look4, args: {}}]
      - calls: [{name: read, args: {call: c2-1, find: "needle"}}]
      - calls: [{name: look5, args: {}}]
      - calls: [{name: pay, args: {order: 7}}]
      - text: "It is in the first place."
    final: {text: "I had to stop."}
  clerk:
    answers: [{text: "Order 7 was paid. The needle is in the first place."}]
`

// A run with long results: without compaction it is wrapped up half way, with it the
// run ends well. What it paid is not paid again, what it read is still to be had, in
// full, and a power cut in between changes nothing.
func TestContextEndToEnd(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newShop(t)
	p := start(t, db, digs)
	spec := &loopdv1.AgentSpec{
		SummarizerModel: "scripted/clerk",
		Tools:           []*loopdv1.Tool{tools.tool("pay", "pay", sideEffect), builtin("read", loopdv1.Builtin_BUILTIN_READ_RESULT)},
	}
	for n := range 5 {
		name := fmt.Sprint("look", n+1)
		whole := fmt.Sprintf("hay of %s\n", name) + strings.Repeat("more hay and straw\n", 2200) + "the needle of " + name + "\n"
		tools.say(name, whole)
		look := tools.tool(name, name, readOnly)
		look.MaxResultBytes = new(int32(32_000))
		spec.Tools = append(spec.Tools, look)
	}
	p.define("digger", spec)
	begin := func(compactions int) string {
		var run loopdv1.Run
		p.ask(http.MethodPost, "/v1/runs", fmt.Sprintf(`{"agent": "agents/digger", "input": "find the needle", "limits":
			{"contextCompactAt": 0.15, "contextStopAt": 0.19, "maxCompactions": %d, "maxCostUsd": "20", "maxTotalTokens": "5000000"}}`, compactions), &run)
		return run.GetName()
	}
	without := p.ended(begin(0), loopdv1.RunState_RUN_STATE_STOPPED)
	if without.GetStop().GetReason() != loopdv1.StopReason_STOP_REASON_CONTEXT_ROT || without.GetAnswer() != "I had to stop." {
		t.Errorf("without compaction it ended as %s: %q", without.GetStop().GetReason(), without.GetAnswer())
	}

	run := begin(3)
	p.until(run, "compacted", 1)
	p.kill()
	p = start(t, db, digs)
	got := p.ended(run, succeeded)
	if got.GetAnswer() != "It is in the first place." || got.GetIterations() != 9 {
		t.Errorf("after %d iterations: %q", got.GetIterations(), got.GetAnswer())
	}
	if n := len(tools.of("pay")); n != 2 {
		t.Errorf("%d payments arrived, want one of each run", n)
	}
	results := map[string]string{}
	for _, call := range p.calls(run) {
		results[call.GetTool()] = call.GetResult()
		if call.GetTool() == "pay" && call.GetIteration() == 8 && !strings.Contains(call.GetResult(), "has already succeeded") {
			t.Errorf("the second payment: %s %q", call.GetState(), call.GetResult())
		}
	}
	if cut := results["look1"]; len(cut) > 32_000 || !strings.Contains(cut, `Read it with read: {"call":"c2-1","offset":`) {
		t.Errorf("the model was shown %d bytes of the first result: %q", len(cut), cut[max(0, len(cut)-200):])
	}
	if found := results["read"]; !strings.Contains(found, "line 2202, offset 41817: the needle of look1") {
		t.Errorf("read found %q", found)
	}
	var whole loopdv1.ToolCallResult
	p.ask(http.MethodGet, "/v1/"+run+"/toolCalls/c2-1:result", "", &whole)
	if !strings.HasSuffix(whole.GetText(), "the needle of look1\n") || int64(len(whole.GetText())) != whole.GetResultBytes() {
		t.Errorf("the whole result has %d of %d bytes", len(whole.GetText()), whole.GetResultBytes())
	}

	messages, err := p.runs.ListMessages(p.context, &loopdv1.ListMessagesRequest{Parent: run})
	if err != nil {
		t.Fatal(err)
	}
	summaries, calls := 0, 0
	for _, m := range messages.GetMessages() {
		for _, part := range m.GetParts() {
			if part.GetToolCall() != nil {
				calls++
			}
			if text := part.GetText().GetText(); m.GetSource() == "guard" && strings.Contains(text, "Order 7 was paid.") {
				summaries++
				if !strings.Contains(text, `pay {"order":7} (c1-1, arguments `) || !strings.Contains(text, "): done") {
					t.Errorf("the payment is not restated: %s", text)
				}
			}
		}
	}
	if summaries == 0 || calls != 8 {
		t.Errorf("people read %d summaries and %d calls, want all 8", summaries, calls)
	}
	metrics := scrape(t, "http://"+p.admin+"/metrics")
	if metrics[`loopd_context_used_ratio_count{agent="digger"}`] == 0 || metrics[`loopd_llm_requests_total{code="ok",model="scripted/clerk"}`] == 0 {
		t.Errorf("the metrics say nothing of the context: %v", metrics)
	}
}
