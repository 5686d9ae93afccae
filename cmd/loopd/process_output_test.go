package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// A model that needs several tries, one that claims what it never did, and a judge
// that likes apologies. What tools returned is quoted for the judge, so that it
// must tell the answers apart by their own words.
const refunds = `
models:
  careful:
    answers:
      - {text: "You were refunded."}
      - {text: '{"say": "You were refunded."}'}
      - {calls: [{name: issue_refund, args: {order: o-17}}]}
      - {text: '{"say": "You were refunded."}'}
      - {text: '{"say": "You were refunded 5 EUR."}'}
      - {text: '{"say": "Sorry! You were refunded 5 EUR."}'}
  liar:
    answers: [{text: '{"say": "You were refunded."}'}]
  judge:
    rules:
      - when: {input_contains: "Sorry!"}
        answer: {text: '{"pass": true, "problems": [], "evidence": "Sorry!  You were refunded"}'}
    answers:
      - {text: '{"pass": false, "problems": ["The customer got no apology: begin with one."], "evidence": "You were refunded 5 EUR"}'}
`

// validation is an endpoint that wants the amount, and keeps what it was asked.
type validation struct {
	*httptest.Server

	mu    sync.Mutex
	asked []map[string]any
}

func newValidation(t *testing.T) *validation {
	t.Helper()
	v := &validation{}
	v.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked map[string]any
		_ = json.NewDecoder(r.Body).Decode(&asked)
		v.mu.Lock()
		defer v.mu.Unlock()
		v.asked = append(v.asked, asked)
		switch {
		case len(v.asked) == 1: // a blip
			w.WriteHeader(http.StatusServiceUnavailable)
		case strings.Contains(fmt.Sprint(asked["answer"]), "5 EUR"):
			fmt.Fprint(w, `{"ok": true}`)
		default:
			fmt.Fprint(w, `{"ok": false, "problems": ["say how much was refunded"]}`)
		}
	}))
	t.Cleanup(v.Close)
	return v
}

// refunder registers an agent whose answers are checked in every way.
func (p *process) refunder(model string, v *validation, refund *loopdv1.Tool) {
	p.t.Helper()
	schema, err := structpb.NewStruct(map[string]any{"type": "object", "required": []any{"say"}})
	if err != nil {
		p.t.Fatal(err)
	}
	_, err = p.agents.UpdateAgent(p.context, &loopdv1.UpdateAgentRequest{AllowMissing: true, Agent: &loopdv1.Agent{
		Name: "agents/" + model, Spec: &loopdv1.AgentSpec{
			Model: "scripted/" + model, Tools: []*loopdv1.Tool{refund}, Limits: &loopdv1.Limits{MaxReasks: proto.Int32(5)},
			Output: &loopdv1.OutputContract{
				JsonSchema: schema,
				Assertions: []*loopdv1.Assertion{{
					Expression: "!answer.contains('refunded') || ledger.exists(e, e.tool == 'issue_refund' && e.state == 'SUCCEEDED' && e.args.order == 'o-17')",
					Message:    "An answer that says refunded needs a refund that succeeded.",
				}},
				Validator: &loopdv1.Tool{
					Name: "validate", Effect: loopdv1.Effect_EFFECT_READ_ONLY,
					Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "POST", Url: v.URL}},
				},
				Judge: &loopdv1.Judge{Model: "scripted/judge", Rubric: "It apologises."},
			},
		},
	}})
	if err != nil {
		p.t.Fatal(err)
	}
}

// bodies lists the bodies of a run's events of one kind.
func (p *process) bodies(run, kind string) []map[string]any {
	p.t.Helper()
	events, err := p.runs.ListEvents(p.context, &loopdv1.ListEventsRequest{Parent: run, PageSize: 1000})
	if err != nil {
		p.t.Fatal(err)
	}
	var bodies []map[string]any
	for _, e := range events.GetEvents() {
		if e.GetKind() == kind {
			bodies = append(bodies, e.GetBody().AsMap())
		}
	}
	return bodies
}

// A wrong answer is sent back by each part of the contract in turn, then accepted.
func TestAnswersAreChecked(t *testing.T) {
	t.Parallel()
	v, shop := newValidation(t), newShop(t)
	p := start(t, pgURL(t), refunds)
	refund := &loopdv1.Tool{
		Name: "issue_refund", Effect: loopdv1.Effect_EFFECT_IDEMPOTENT, Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "POST", Url: shop.URL + "/http/refund"}},
	}
	p.refunder("careful", v, refund)
	run := p.waitEnd(p.start("careful").GetName())

	const want = `{"say": "Sorry! You were refunded 5 EUR."}`
	if run.GetState() != loopdv1.RunState_RUN_STATE_SUCCEEDED || run.GetAnswer() != want || run.GetAnswerUnverified() || run.GetIterations() != 6 || run.GetModelCalls() != 8 {
		t.Fatalf("the run is %v", run)
	}
	var by []any
	for _, b := range p.bodies(run.GetName(), "answer_rejected") {
		by = append(by, b["by"])
	}
	if fmt.Sprint(by) != "[schema assertions validator judge]" {
		t.Errorf("rejected by %v", by)
	}
	if asked := v.asked; len(asked) != 4 || asked[1]["answer_json"].(map[string]any)["say"] != "You were refunded." || asked[1]["run"].(map[string]any)["agent"] != "agents/careful" {
		t.Errorf("the validator was asked %v", asked)
	}
	metrics := p.metrics(`loopd_runs_finished_total{agent="careful",stop_reason="COMPLETED"}`)
	for series, want := range map[string]float64{
		`loopd_output_checks_total{outcome="failed",part="schema"}`: 1, `loopd_output_checks_total{outcome="failed",part="assertions"}`: 1,
		`loopd_output_checks_total{outcome="failed",part="validator"}`: 1, `loopd_output_checks_total{outcome="failed",part="judge"}`: 1,
		`loopd_output_checks_total{outcome="passed",part="judge"}`: 1, `loopd_llm_requests_total{code="ok",model="scripted/judge"}`: 2,
	} {
		if metrics[series] != want {
			t.Errorf("%s is %v, want %v", series, metrics[series], want)
		}
	}
	if cost := metrics[`loopd_purpose_cost_usd_total{agent="careful",purpose="judge"}`]; cost <= 0 {
		t.Errorf("the judge cost %v", cost)
	}
}

// metrics scrapes until a series is there: what a commit brings is counted right
// after it, and the stream has shown the commit.
func (p *process) metrics(series string) map[string]float64 {
	p.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		metrics := scrape(p.t, "http://"+p.admin+"/metrics")
		if metrics[series] > 0 || time.Now().After(deadline) {
			return metrics
		}
	}
}

// An answer that claims what was never done is never a success.
func TestAClaimWithoutADeedIsUnverified(t *testing.T) {
	t.Parallel()
	v, shop := newValidation(t), newShop(t)
	p := start(t, pgURL(t), refunds)
	p.refunder("liar", v, &loopdv1.Tool{
		Name: "issue_refund", Effect: loopdv1.Effect_EFFECT_IDEMPOTENT, Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "POST", Url: shop.URL + "/http/refund"}},
	})
	run := p.waitEnd(p.start("liar").GetName())

	stop := run.GetStop()
	if run.GetState() != loopdv1.RunState_RUN_STATE_STOPPED || stop.GetReason() != loopdv1.StopReason_STOP_REASON_OUTPUT_INVALID || stop.GetGuard() != "output" ||
		!run.GetAnswerUnverified() || !run.GetAnswerPartial() || run.GetAnswer() != `{"say": "You were refunded."}` || run.GetModelCalls() != 2 {
		t.Fatalf("the run is %v", run)
	}
	if note := stop.GetEvidence()[0].GetNote(); note != "An answer that says refunded needs a refund that succeeded." {
		t.Errorf("the proof is %q", note)
	}
	if len(v.asked) != 0 {
		t.Errorf("the validator was asked about an answer that had failed: %v", v.asked)
	}
}
