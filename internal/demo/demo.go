// Package demo is the story that loopd was built after, ready to run: a shop's
// tools, the agents that use them, a scripted model for each, and five runs with
// the end that each must have. It uses the public API only.
package demo

import (
	_ "embed"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// Script is the scripted models' answers, in the format of the scripted provider.
//
//go:embed script.yaml
var Script []byte

// Scenario is one demo run and how it must end.
type Scenario struct {
	Title      string
	Agent      string // resource name
	Input      string
	State      loopdv1.RunState
	Reason     loopdv1.StopReason
	Iterations int32 // exact
}

// Scenarios are the five runs of the demo.
func Scenarios() []Scenario {
	return []Scenario{
		{
			Title: "an order lookup that works", Agent: "agents/support", Input: "Where is my order ORD-4892?",
			State: loopdv1.RunState_RUN_STATE_SUCCEEDED, Reason: loopdv1.StopReason_STOP_REASON_COMPLETED, Iterations: 4,
		},
		{
			Title: "the 4,200 USD story: a tool that answers 429 for ever", Agent: "agents/inventory", Input: "Is SKU-1234 in stock for ORD-4892?",
			State: loopdv1.RunState_RUN_STATE_STOPPED, Reason: loopdv1.StopReason_STOP_REASON_REPEAT_CALL, Iterations: 3,
		},
		{
			Title: "a model that never stops calling tools", Agent: "agents/explorer", Input: "Check all orders for delays.",
			State: loopdv1.RunState_RUN_STATE_STOPPED, Reason: loopdv1.StopReason_STOP_REASON_ITERATION_CAP, Iterations: 6,
		},
		{
			Title: "a model whose next call would pass its budget", Agent: "agents/analyst", Input: "Read the whole returns report and sum it up.",
			State: loopdv1.RunState_RUN_STATE_STOPPED, Reason: loopdv1.StopReason_STOP_REASON_COST_BUDGET, Iterations: 3,
		},
		{
			Title: "a model that invents a tool, and recovers", Agent: "agents/newcomer", Input: "What is the status of ORD-7001?",
			State: loopdv1.RunState_RUN_STATE_SUCCEEDED, Reason: loopdv1.StopReason_STOP_REASON_COMPLETED, Iterations: 3,
		},
	}
}

// Agents are the demo's agents, with their tools at toolURL.
func Agents(toolURL string) []*loopdv1.Agent {
	order := tool(toolURL, "orders", "get_order", "Look up an order by its id.", "order_id")
	shipment := tool(toolURL, "shipments", "get_shipment", "Look up where a shipment is.", "shipment")
	customer := tool(toolURL, "customers", "get_customer", "Look up a customer.", "customer_id")
	inventory := tool(toolURL, "inventory", "check_inventory", "Ask the warehouse how many of an article are in stock.", "sku")
	report := tool(toolURL, "reports", "read_report", "Read one page of the returns report.", "page")
	return []*loopdv1.Agent{
		agent("support", "Support", nil, order, shipment, customer),
		agent("inventory", "Inventory", &loopdv1.Limits{NoProgressStop: new(true), MaxCostUsd: new("0.50")}, order, inventory),
		agent("explorer", "Explorer", &loopdv1.Limits{MaxIterations: proto.Int32(6)}, order),
		agent("analyst", "Analyst", &loopdv1.Limits{
			MaxCostUsd: new("0.10"), AnswerMaxOutputTokens: proto.Int64(1024), FinalAnswerMaxOutputTokens: proto.Int64(256),
		}, report),
		agent("newcomer", "Newcomer", nil, order),
	}
}

// rules are the instructions of every agent of the demo.
const rules = "You work for a shop. Use the tools to answer; say so when you cannot."

// agent is one agent on the scripted model of the same name.
func agent(id, display string, limits *loopdv1.Limits, tools ...*loopdv1.Tool) *loopdv1.Agent {
	return &loopdv1.Agent{
		Name: "agents/" + id, DisplayName: display,
		Spec: &loopdv1.AgentSpec{Model: "scripted/" + id, Instructions: rules, Tools: tools, Limits: limits},
	}
}

// tool is a read-only tool with one required text argument.
func tool(base, path, name, description, argument string) *loopdv1.Tool {
	schema, err := structpb.NewStruct(map[string]any{
		"type":                 "object",
		"properties":           map[string]any{argument: map[string]any{"type": "string", "minLength": 1}},
		"required":             []any{argument},
		"additionalProperties": false,
	})
	if err != nil {
		panic(fmt.Sprintf("the demo's own schema is broken: %v", err))
	}
	return &loopdv1.Tool{
		Name: name, Description: description, InputSchema: schema, Effect: loopdv1.Effect_EFFECT_READ_ONLY,
		Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "GET", Url: base + "/" + path}},
	}
}
