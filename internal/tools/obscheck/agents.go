package main

import (
	"context"
	_ "embed"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/demo"
)

//go:embed script.yaml
var moreModels []byte

// script is what all models say.
func script() []byte { return slices.Concat(demo.Script, moreModels) }

// spare is how many agents more there are than have series of their own.
const spare = 26

// define registers all agents, and what binds their runs.
func (w *world) define(ctx context.Context) error {
	conn := w.replicas[0].conn
	agents, policies, budgets := loopdv1.NewAgentServiceClient(conn), loopdv1.NewPolicyServiceClient(conn), loopdv1.NewBudgetServiceClient(conn)
	for _, a := range append(demo.Agents("http://"+w.toolURL), w.agents()...) {
		if _, err := agents.UpdateAgent(ctx, &loopdv1.UpdateAgentRequest{Agent: a, AllowMissing: true}); err != nil {
			return fmt.Errorf("define %s: %w", a.GetName(), err)
		}
	}
	for id, policy := range demo.Policies() {
		if _, err := policies.CreatePolicy(ctx, &loopdv1.CreatePolicyRequest{PolicyId: id, Policy: policy}); err != nil && status.Code(err) != codes.AlreadyExists {
			return fmt.Errorf("define policies/%s: %w", id, err)
		}
	}
	for id, b := range map[string]*loopdv1.Budget{
		"day":   {Window: loopdv1.BudgetWindow_BUDGET_WINDOW_DAY, AmountUsd: "150"},
		"month": {Window: loopdv1.BudgetWindow_BUDGET_WINDOW_MONTH, AmountUsd: "4000"},
		// Reached within the day that is played.
		"dear": {Scope: &loopdv1.Budget_Agent{Agent: "agents/spender"}, Window: loopdv1.BudgetWindow_BUDGET_WINDOW_HOUR, AmountUsd: "2"},
	} {
		if _, err := budgets.CreateBudget(ctx, &loopdv1.CreateBudgetRequest{BudgetId: id, Budget: b}); err != nil && status.Code(err) != codes.AlreadyExists {
			return fmt.Errorf("define budgets/%s: %w", id, err)
		}
	}
	return nil
}

// agents are those beside the demo's.
func (w *world) agents() []*loopdv1.Agent {
	order := w.tool("orders", "get_order", loopdv1.Effect_EFFECT_READ_ONLY, "order_id")
	roomy := &loopdv1.Limits{
		MaxCostUsd: new("10"), MaxTotalTokens: new(int64(5_000_000)), MaxOutputTokens: new(int64(500_000)), AnswerMaxOutputTokens: new(int64(30_000)),
	}
	refund := w.tool("refunds", "issue_refund", loopdv1.Effect_EFFECT_IRREVERSIBLE)
	refund.GetHttp().Method, refund.InputSchema = "POST", nil
	hay := w.tool("hay", "hay", loopdv1.Effect_EFFECT_READ_ONLY, "stack")
	hay.MaxResultBytes = new(int32(32_000))
	slow := w.tool("slow", "slow", loopdv1.Effect_EFFECT_READ_ONLY)
	slow.Timeout = durationpb.New(30 * 1e9)
	all := []*loopdv1.Agent{
		agent("clerk", nil, order),
		agent("throttled", nil), agent("locked", nil), agent("refuser", nil), agent("silent", nil), agent("steady", nil),
		agent("sloth", &loopdv1.Limits{MaxCostUsd: new("5")}),
		agent("unlucky", nil, w.tool("broken", "broken", loopdv1.Effect_EFFECT_READ_ONLY, "part")),
		agent("careless", nil, order),
		agent("payer", &loopdv1.Limits{MaxWallTime: durationpb.New(40 * 1e9)}, refund),
		agent("asker", nil, &loopdv1.Tool{Name: "ask_human", Kind: &loopdv1.Tool_Builtin{Builtin: loopdv1.Builtin_BUILTIN_ASK_HUMAN}}),
		agent("outsider", nil, &loopdv1.Tool{Name: "ring", Effect: loopdv1.Effect_EFFECT_IDEMPOTENT, Kind: &loopdv1.Tool_Client{Client: &loopdv1.ClientTool{}}}),
		agent("spender", roomy, order), agent("liar", nil), agent("waiter", nil, slow),
		agent("digger", &loopdv1.Limits{
			ContextCompactAt: new(0.2), ContextStopAt: new(0.5), MaxCompactions: new(int32(3)), MaxCostUsd: new("20"), MaxTotalTokens: new(int64(5_000_000)),
		}, hay),
	}
	flaky, formal := agent("flaky", nil, order), agent("formal", nil)
	flaky.Spec.FallbackModels = []string{"scripted/clerk"}
	formal.Spec.Output = &loopdv1.OutputContract{JsonSchema: object("status")}
	all = append(all, flaky, formal)
	for n := range spare {
		extra := agent(fmt.Sprintf("spare-%d", n), nil)
		extra.Spec.Model = "scripted/steady"
		all = append(all, extra)
	}
	return all
}

// agent is one on the scripted model of its name.
func agent(id string, limits *loopdv1.Limits, tools ...*loopdv1.Tool) *loopdv1.Agent {
	return &loopdv1.Agent{Name: "agents/" + id, Spec: &loopdv1.AgentSpec{Model: "scripted/" + id, Instructions: "You are tried out.", Tools: tools, Limits: limits}}
}

// tool is one of the tool server, with required text arguments.
func (w *world) tool(path, name string, effect loopdv1.Effect, arguments ...string) *loopdv1.Tool {
	return &loopdv1.Tool{
		Name: name, Description: "A tool that is tried out.", Effect: effect, InputSchema: object(arguments...),
		Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "GET", Url: "http://" + w.toolURL + "/" + path}},
	}
}

// object is the schema of an object with these texts in it.
func object(names ...string) *structpb.Struct {
	properties, required := map[string]*structpb.Value{}, []*structpb.Value{}
	for _, n := range names {
		properties[n] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"type": structpb.NewStringValue("string")}})
		required = append(required, structpb.NewStringValue(n))
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"type": structpb.NewStringValue("object"), "properties": structpb.NewStructValue(&structpb.Struct{Fields: properties}),
		"required": structpb.NewListValue(&structpb.ListValue{Values: required}), "additionalProperties": structpb.NewBoolValue(false),
	}}
}
