package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// People read all that was said, also what the model no longer reads, and what stands
// for it.
func TestACompactedTranscriptIsShownWhole(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	k := w.claim()
	for n := 1; n <= 5; n++ {
		id := fmt.Sprintf("c%d-1", n)
		k.answer(loop.FinishToolCalls, toolCall(id, "get_order", fmt.Sprintf(`{"id": %d}`, n)))
		k.append(loop.CallBegun{CallID: id, Attempt: 1, Key: "k"})
		k.append(loop.CallFinished{CallID: id, Attempt: 1, Outcome: loop.OutcomeOK, Content: "order " + strings.Repeat("x", 300), Bytes: 306})
	}
	first, last := k.state.Transcript()[1].Seq, k.state.Transcript()[4].Seq
	k.append(loop.Compacted{Method: loop.CompactClear, Before: 100, After: 70, Cleared: []string{"c1-1"}})
	k.append(loop.Compacted{Method: loop.CompactSummarize, Before: 100, After: 70, FromSeq: first, ToSeq: last, Summary: "Two orders were looked up."})
	k.append(loop.Compacted{Method: loop.CompactSummarize, Before: 100, After: 100, Failure: "the summary is empty"})
	k.finish("All were sent.")
	if n := len(k.state.Transcript()); n != 9 {
		t.Errorf("the model reads %d messages, want the input, the summary, three iterations and the answer", n)
	}

	messages, err := w.runs.ListMessages(t.Context(), &loopdv1.ListMessagesRequest{Parent: run.GetName()})
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	seq := int64(0)
	for _, m := range messages.GetMessages() {
		text := m.GetParts()[0].GetText().GetText()
		told = append(told, strings.TrimSpace(m.GetSource()+" "+text[:min(len(text), 40)]))
		if m.GetSeq() <= seq {
			t.Errorf("message of event %d after %d", m.GetSeq(), seq)
		}
		seq = m.GetSeq()
	}
	want := []string{"input Where is my order?"}
	for range 5 {
		want = append(want, "model", "tool")
	}
	want = append(want, "guard To save room, the results of 1 old calls", "guard [The older part of this conversation was",
		"guard The transcript could not be made shorter", "model All were sent.")
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if got := messages.GetMessages()[2].GetParts()[0].GetToolResult().GetText(); !strings.HasPrefix(got, "order xxx") {
		t.Errorf("the result that was left out is shown as %q", got)
	}
	w.same(messages, http.MethodGet, "/v1/"+run.GetName()+"/messages")
}

func TestGetToolCallResult(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.run()
	k := w.claim()
	k.answer(loop.FinishToolCalls, toolCall("c1-1", "get_order", `{"id": 1}`), toolCall("c1-2", "get_order", `{"id": 2}`))
	k.append(loop.CallBegun{CallID: "c1-1", Attempt: 1, Key: "k"}, loop.CallBegun{CallID: "c1-2", Attempt: 1, Key: "k2"})
	whole := strings.Repeat("a long result \x00 é ", 10_000)
	k.results = []loop.FullResult{{CallID: "c1-1", Attempt: 1, Text: whole}}
	k.append(loop.CallFinished{CallID: "c1-1", Attempt: 1, Outcome: loop.OutcomeOK, Content: "a long [cut]", Cut: true, Bytes: 180_000})

	got, err := w.runs.GetToolCallResult(t.Context(), &loopdv1.GetToolCallResultRequest{Name: run.GetName() + "/toolCalls/c1-1"})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetText() != whole || got.GetTool() != "get_order" || got.GetOutcome() != "ok" || got.GetResultBytes() != 180_000 {
		t.Errorf("%d bytes of %d, %s %s %d", len(got.GetText()), len(whole), got.GetTool(), got.GetOutcome(), got.GetResultBytes())
	}
	w.same(got, http.MethodGet, "/v1/"+run.GetName()+"/toolCalls/c1-1:result")
	if open := w.rest(http.MethodGet, "/v1/"+run.GetName()+"/toolCalls/c1-2:result", ""); open["text"] != "" || open["outcome"] != "" {
		t.Errorf("a call without a result has %v", open)
	}
	resp, body := w.do(http.MethodGet, "/v1/"+run.GetName()+"/toolCalls/c9-9:result", "")
	if p := decode(t, body); resp.StatusCode != http.StatusNotFound || p["reason"] != "TOOL_CALL_NOT_FOUND" {
		t.Errorf("no such call answered %d %s", resp.StatusCode, body)
	}
	resp, body = w.do(http.MethodGet, "/v1/runs/0190a000-0000-7000-8000-000000000000/toolCalls/c1-1:result", "")
	if p := decode(t, body); resp.StatusCode != http.StatusNotFound || p["reason"] != "RUN_NOT_FOUND" {
		t.Errorf("no such run answered %d %s", resp.StatusCode, body)
	}
	resp, body = w.do(http.MethodGet, "/v1/"+run.GetName()+"/toolCalls/C1:result", "")
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a name that is none answered %d %s", resp.StatusCode, body)
	}
}

// The summarizer is pinned with its price, in the run and in the agents below it, and
// one that nobody knows is refused when the agent is made.
func TestSummarizer(t *testing.T) {
	t.Parallel()
	w := setup(t)
	spec := support()
	spec.SummarizerModel = fallback
	below := w.agent("below", spec)
	above := support()
	above.SummarizerModel = "acme/reader-1"
	above.Tools = append(above.Tools, &loopdv1.Tool{Name: "ask", Kind: &loopdv1.Tool_Agent{Agent: &loopdv1.AgentTool{Agent: below}}})
	run, err := w.runs.CreateRun(t.Context(), &loopdv1.CreateRunRequest{Agent: w.agent("above", above), Input: "x"})
	if err != nil {
		t.Fatal(err)
	}
	stored, err := w.store.GetSpec(t.Context(), loop.RunRef{Tenant: tenant, ID: strings.TrimPrefix(run.GetName(), "runs/")})
	if err != nil {
		t.Fatal(err)
	}
	ask, _ := stored.Definition.Tool("ask")
	for model, got := range map[string]loop.Spec{"acme/reader-1": stored, fallback: ask.Child.Spec} {
		price, _ := prices(model)
		if diff := cmp.Diff(map[string]loop.Price{model: price}, got.SidePrices); diff != "" || got.Definition.Summarizer != model {
			t.Errorf("summarizer %q, its price (-want +got):\n%s", got.Definition.Summarizer, diff)
		}
	}

	for model, reason := range map[string]string{"acme/gone-1": "MODEL_UNPRICED", "acne/small-1": "MODEL_UNKNOWN"} {
		_, body := w.do(http.MethodPost, "/v1/agents?agentId=x", `{"spec": {"model": "acme/large-1", "summarizerModel": "`+model+`"}}`)
		if p := decode(t, body); p["reason"] != reason || at(p, "errors", "0", "field") != "agent.spec.summarizer_model" {
			t.Errorf("%s answered %s", model, body)
		}
	}
	if _, err := w.store.CreateAgent(t.Context(), postgres.Agent{Tenant: tenant, ID: "old", Spec: []byte(`{"model": "acme/large-1", "summarizer_model": "acme/gone-1"}`)}, postgres.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	_, body := w.do(http.MethodPost, "/v1/runs", `{"agent": "agents/old", "input": "x"}`)
	if p := decode(t, body); p["reason"] != "MODEL_UNPRICED" || at(p, "errors", "0", "field") != "agent.spec.summarizer_model" {
		t.Errorf("a run whose summarizer has no price any more answered %s", body)
	}
}
