package server_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

func assertion(expr string) error {
	if strings.Contains(expr, "nonsense") {
		return errors.New("line 1, column 1: undeclared reference to 'nonsense'")
	}
	return nil
}

// checked is an agent whose answers are checked in every way.
func checked() *loopdv1.AgentSpec {
	spec := support()
	spec.SummarizerModel = fallback
	spec.Output = &loopdv1.OutputContract{
		JsonSchema: object(map[string]any{"type": "object"}),
		Assertions: []*loopdv1.Assertion{{Expression: "answer != ''"}, {Expression: "ledger.size() == 0", Message: "Nothing may be done."}},
		Validator: &loopdv1.Tool{
			Name: "validate", Effect: loopdv1.Effect_EFFECT_READ_ONLY,
			Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "POST", Url: "https://shop.example/validate"}},
		},
		Judge: &loopdv1.Judge{Model: "acme/reader-1", Rubric: "It is polite."},
	}
	spec.Checkpoints = []*loopdv1.Checkpoint{
		{Name: "orders", AfterTools: []string{"get_order"}, EveryIterations: 2, Assertions: []*loopdv1.Assertion{{Expression: "run.cost_usd < 0.5"}}},
	}
	return spec
}

func TestAnAgentWithChecks(t *testing.T) {
	t.Parallel()
	w := setup(t)
	agent := w.agent("checked", checked())

	shown, err := w.agents.GetAgent(t.Context(), &loopdv1.GetAgentRequest{Name: agent})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(checked(), shown.GetSpec(), protocmp.Transform()); d != "" {
		t.Errorf("the definition changed (-sent +stored):\n%s", d)
	}
	w.same(shown, http.MethodGet, "/v1/"+agent)

	stored := w.stored(agent)
	validator := stored.Definition.Output.Validator
	if validator == nil || validator.Name != "validate" || validator.Timeout <= 0 || !strings.Contains(string(validator.Schema), "answer_json") {
		t.Errorf("the validator is %+v", validator)
	}
	stored.Definition.Output.Validator = nil
	want := loop.OutputContract{
		Assertions: []loop.Assertion{{Expr: "answer != ''"}, {Expr: "ledger.size() == 0", Message: "Nothing may be done."}},
		Judge:      &loop.JudgeSpec{Model: "acme/reader-1", Rubric: "It is polite."},
	}
	if d := cmp.Diff(want, stored.Definition.Output); d != "" {
		t.Errorf("contract (-want +got):\n%s", d)
	}
	points := []loop.Checkpoint{{Name: "orders", After: []string{"get_order"}, Every: 2, Assertions: []loop.Assertion{{Expr: "run.cost_usd < 0.5"}}}}
	if d := cmp.Diff(points, stored.Definition.Checkpoints); d != "" {
		t.Errorf("checkpoints (-want +got):\n%s", d)
	}
	judge, _ := prices("acme/reader-1")
	summarizer, _ := prices(fallback)
	if d := cmp.Diff(map[string]loop.Price{"acme/reader-1": judge, fallback: summarizer}, stored.SidePrices); d != "" || stored.Definition.Summarizer != fallback {
		t.Errorf("summarizer %q, side prices (-want +got):\n%s", stored.Definition.Summarizer, d)
	}
}

// stored is what a new run of an agent is created with.
func (w *world) stored(agent string) loop.Spec {
	w.t.Helper()
	run, err := w.runs.CreateRun(w.t.Context(), &loopdv1.CreateRunRequest{Agent: agent, Input: "x"})
	if err != nil {
		w.t.Fatal(err)
	}
	stored, err := w.store.GetSpec(w.t.Context(), loop.RunRef{Tenant: tenant, ID: strings.TrimPrefix(run.GetName(), "runs/")})
	if err != nil {
		w.t.Fatal(err)
	}
	return stored
}

// An agent that another one starts brings the prices of its own judge. Rows of
// models that are priced anyhow are not there twice.
func TestSidePricesOfEmbeddedAgents(t *testing.T) {
	t.Parallel()
	w := setup(t)
	inner := w.agent("inner", checked())
	outer := support()
	outer.FallbackModels, outer.Output = []string{fallback}, &loopdv1.OutputContract{Judge: &loopdv1.Judge{Model: fallback, Rubric: "It is polite."}}
	outer.Tools = append(outer.Tools, &loopdv1.Tool{Name: "ask", Effect: loopdv1.Effect_EFFECT_IDEMPOTENT, Kind: &loopdv1.Tool_Agent{Agent: &loopdv1.AgentTool{Agent: inner}}})

	stored := w.stored(w.agent("outer", outer))

	tool, _ := stored.Definition.Tool("ask")
	if len(stored.SidePrices) != 0 || len(tool.Child.Spec.SidePrices) != 2 || tool.Child.Spec.Definition.Output.Judge == nil {
		t.Errorf("the run's side prices are %v, its child's %v", stored.SidePrices, tool.Child.Spec.SidePrices)
	}
}

// Each fault of the checks names its field and what to do about it.
func TestChecksThatCannotWork(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for name, tt := range map[string]struct {
		breaks func(*loopdv1.AgentSpec)
		want   map[string]string // field, and what is said of it
	}{
		"assertions": {func(s *loopdv1.AgentSpec) { s.Output.Assertions[1].Expression = "nonsense" },
			map[string]string{"agent.spec.output.assertions[1].expression": "undeclared reference"}},
		"several at once": {func(s *loopdv1.AgentSpec) {
			s.Output.Assertions[0].Expression, s.Checkpoints[0].Assertions[0].Expression = "nonsense", "nonsense"
		}, map[string]string{"agent.spec.output.assertions[0].expression": "line 1", "agent.spec.checkpoints[0].assertions[0].expression": "line 1"}},
		"no expression": {func(s *loopdv1.AgentSpec) { s.Output.Assertions[0].Expression = "" },
			map[string]string{"agent.spec.output.assertions[0].expression": ""}},
		"validator acts": {func(s *loopdv1.AgentSpec) { s.Output.Validator.Effect = loopdv1.Effect_EFFECT_IDEMPOTENT },
			map[string]string{"agent.spec.output.validator.effect": "EFFECT_READ_ONLY"}},
		"validator declares nothing": {func(s *loopdv1.AgentSpec) { s.Output.Validator.Effect = 0 },
			map[string]string{"agent.spec.output.validator.effect": "EFFECT_READ_ONLY"}},
		"validator is a client": {func(s *loopdv1.AgentSpec) {
			s.Output.Validator.Kind = &loopdv1.Tool_Client{Client: &loopdv1.ClientTool{}}
		}, map[string]string{"agent.spec.output.validator": "only an HTTP tool"}},
		"validator is an agent": {func(s *loopdv1.AgentSpec) {
			s.Output.Validator.Kind = &loopdv1.Tool_Agent{Agent: &loopdv1.AgentTool{Agent: "agents/other"}}
		}, map[string]string{"agent.spec.output.validator": "only an HTTP tool"}},
		"validator with a schema": {func(s *loopdv1.AgentSpec) {
			s.Output.Validator.InputSchema = object(map[string]any{"type": "object"})
		}, map[string]string{"agent.spec.output.validator.input_schema": "Leave it out"}},
		"validator to approve": {func(s *loopdv1.AgentSpec) {
			s.Output.Validator.Approval = &loopdv1.ApprovalRule{Mode: loopdv1.ApprovalMode_APPROVAL_MODE_ALWAYS}
		}, map[string]string{"agent.spec.output.validator.approval": "leave it out"}},
		"validator in a forbidden net": {func(s *loopdv1.AgentSpec) { s.Output.Validator.GetHttp().Url = "https://forbidden.example/" },
			map[string]string{"agent.spec.output.validator.http.url": "not allowed"}},
		"judge without a rubric": {func(s *loopdv1.AgentSpec) { s.Output.Judge.Rubric = "" },
			map[string]string{"agent.spec.output.judge.rubric": ""}},
		"judge nobody knows": {func(s *loopdv1.AgentSpec) { s.Output.Judge.Model = "acne/large-1" },
			map[string]string{"agent.spec.output.judge.model": "acme/large-1"}},
		"judge without a price": {func(s *loopdv1.AgentSpec) { s.Output.Judge.Model = "acme/larg-1" },
			map[string]string{"agent.spec.output.judge.model": "no complete price"}},
		"summarizer without a price": {func(s *loopdv1.AgentSpec) { s.SummarizerModel = "acme/larg-1" },
			map[string]string{"agent.spec.summarizer_model": "no complete price"}},
		"checkpoint never due": {func(s *loopdv1.AgentSpec) { s.Checkpoints[0].AfterTools, s.Checkpoints[0].EveryIterations = nil, 0 },
			map[string]string{"agent.spec.checkpoints[0].after_tools": "set every_iterations"}},
		"checkpoint after an unknown tool": {func(s *loopdv1.AgentSpec) { s.Checkpoints[0].AfterTools = []string{"get_order", "mail"} },
			map[string]string{"agent.spec.checkpoints[0].after_tools[1]": `no tool "mail"`}},
		"checkpoint of nothing": {func(s *loopdv1.AgentSpec) { s.Checkpoints[0].Assertions = nil },
			map[string]string{"agent.spec.checkpoints[0].assertions": ""}},
		"two of one name": {func(s *loopdv1.AgentSpec) { s.Checkpoints = append(s.Checkpoints, s.Checkpoints[0]) },
			map[string]string{"agent.spec.checkpoints": "same name"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := checked()
			tt.breaks(spec)
			_, err := w.agents.CreateAgent(t.Context(), &loopdv1.CreateAgentRequest{AgentId: "a", Agent: &loopdv1.Agent{Spec: spec}})
			got := map[string]string{}
			for _, detail := range status.Convert(err).Details() {
				if bad, ok := detail.(*errdetails.BadRequest); ok {
					for _, f := range bad.GetFieldViolations() {
						got[f.GetField()] = f.GetDescription()
					}
				}
			}
			for field, says := range tt.want {
				if d, ok := got[field]; !ok || !strings.Contains(d, says) {
					t.Errorf("%s: %q; want it to say %q (%v)", field, d, says, err)
				}
			}
			if len(got) != len(tt.want) {
				t.Errorf("fields %v, want %v", got, tt.want)
			}
		})
	}
}

// What a check found is in the events and, if the answer was not accepted, on the run.
func TestARunWithAnUnverifiedAnswer(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run, err := w.runs.CreateRun(t.Context(), &loopdv1.CreateRunRequest{Agent: w.agent("checked", checked()), Input: "x"})
	if err != nil {
		t.Fatal(err)
	}
	k := w.claim()
	k.answer(loop.FinishToolCalls, loop.Part{Kind: loop.PartToolCall, Call: &loop.ToolCall{ID: "c1-1", Name: "nonsense", Args: "{}"}})
	k.append(loop.CallRefused{CallID: "c1-1", Outcome: loop.OutcomeUnknownTool, Content: "no"}, loop.CheckpointJudged{Checkpoint: "orders", Iteration: 1, Problems: []string{"too dear"}})
	k.answer(loop.FinishDone, loop.TextPart("It is done."))
	k.append(loop.AnswerChecked{})
	call := k.state.Head().ModelCalls + 1
	k.append(loop.ModelStarted{Call: call, Purpose: loop.PurposeJudge, Model: "acme/reader-1", MaxOutput: 10, InputBound: 10, Hold: loop.MilliUSD})
	k.append(loop.ModelAnswered{Call: call, Finish: loop.FinishDone, Message: loop.Message{Parts: []loop.Part{loop.TextPart("It is rude.")}}})
	k.append(loop.Unchecked(loop.ByJudge, "the judge gave no verdict"))
	end, ok := k.state.Next(k.state.CreatedAt()).(loop.End)
	if !ok {
		t.Fatalf("next is %#v", k.state.Next(k.state.CreatedAt()))
	}
	k.append(end.Intent()...)

	shown, err := w.runs.GetRun(t.Context(), &loopdv1.GetRunRequest{Name: run.GetName()})
	if err != nil {
		t.Fatal(err)
	}
	if !shown.GetAnswerUnverified() || !shown.GetAnswerPartial() || shown.GetAnswer() != "It is done." || shown.GetStop().GetReason() != loopdv1.StopReason_STOP_REASON_OUTPUT_INVALID ||
		shown.GetStop().GetEvidence()[0].GetNote() != "the judge gave no verdict" || shown.GetModelCalls() != 3 || shown.GetIterations() != 2 {
		t.Errorf("the run is %v", shown)
	}
	w.same(shown, http.MethodGet, "/v1/"+run.GetName())
	events, err := w.runs.ListEvents(t.Context(), &loopdv1.ListEventsRequest{Parent: run.GetName(), PageSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]map[string]any{}
	for _, e := range events.GetEvents() {
		seen[e.GetKind()] = e.GetBody().AsMap()
		if e.GetKind() == "model_answered" && e.GetIteration() > 2 {
			t.Errorf("event %d is of iteration %d: a judge makes none", e.GetSeq(), e.GetIteration())
		}
	}
	if b := seen["answer_rejected"]; b["by"] != "judge" || b["final"] != true {
		t.Errorf("answer_rejected is %v", b)
	}
	if b := seen["checkpoint_judged"]; b["checkpoint"] != "orders" || b["iteration"] != 1.0 {
		t.Errorf("checkpoint_judged is %v", b)
	}
	if _, ok := seen["answer_checked"]; !ok {
		t.Errorf("the events are %v", seen)
	}
}
