package main

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// define registers the agents and a budget that binds all their runs, which is wide
// enough for them.
func define(ctx context.Context, at *replica, tools *link) error {
	agents, budgets := loopdv1.NewAgentServiceClient(at.conn), loopdv1.NewBudgetServiceClient(at.conn)
	limits := &loopdv1.Limits{
		MaxIterations: proto.Int32(20), MaxModelCalls: proto.Int32(60), MaxToolCalls: proto.Int32(60), MaxCostUsd: new("5"),
		MaxErrorIterations: proto.Int32(10), NoProgressStop: new(false), AnswerMaxOutputTokens: proto.Int64(512), FinalAnswerMaxOutputTokens: proto.Int64(256),
	}
	small := proto.Clone(limits).(*loopdv1.Limits) //nolint:errcheck // a clone is of the same type
	small.MaxCostUsd, small.MaxModelCalls = new("0.5"), proto.Int32(20)
	served := []*loopdv1.Tool{
		httpTool(tools, "read", loopdv1.Effect_EFFECT_READ_ONLY), httpTool(tools, "keyed", loopdv1.Effect_EFFECT_IDEMPOTENT),
		httpTool(tools, "effect", loopdv1.Effect_EFFECT_SIDE_EFFECT), httpTool(tools, "final", loopdv1.Effect_EFFECT_IRREVERSIBLE),
	}
	all := append([]*loopdv1.Tool{
		{Name: "client", Effect: loopdv1.Effect_EFFECT_SIDE_EFFECT, Kind: &loopdv1.Tool_Client{Client: &loopdv1.ClientTool{}}},
		{Name: "child", Effect: loopdv1.Effect_EFFECT_READ_ONLY, Kind: &loopdv1.Tool_Agent{Agent: &loopdv1.AgentTool{Agent: "agents/child"}}},
	}, served...)
	for _, a := range []*loopdv1.Agent{
		{Name: "agents/child", Spec: &loopdv1.AgentSpec{Model: "torture/gpt-4.1-mini", Tools: served, Limits: small}},
		{Name: "agents/torture", Spec: &loopdv1.AgentSpec{Model: "torture/gpt-4.1-mini", Tools: all, Limits: limits}},
	} {
		if _, err := agents.UpdateAgent(ctx, &loopdv1.UpdateAgentRequest{AllowMissing: true, Agent: a}); err != nil {
			return fmt.Errorf("define %s: %w", a.GetName(), err)
		}
	}
	_, err := budgets.CreateBudget(ctx, &loopdv1.CreateBudgetRequest{BudgetId: "torture", Budget: &loopdv1.Budget{
		Window: loopdv1.BudgetWindow_BUDGET_WINDOW_TOTAL, AmountUsd: "100000",
	}})
	if err != nil {
		return fmt.Errorf("define the budget: %w", err)
	}
	return nil
}

func httpTool(at *link, name string, effect loopdv1.Effect) *loopdv1.Tool {
	return &loopdv1.Tool{
		Name: name, Effect: effect, Timeout: durationpb.New(toolTimeout),
		Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "POST", Url: "http://" + at.addr() + "/" + name}},
	}
}
