// Package demo is the story that loopd was built after, ready to run: a shop's
// tools, the agents that use them, a scripted model for each, and seven runs with
// the end that each must have. It uses the public API only.
package demo

import (
	_ "embed"
	"fmt"
	"strings"

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

	Children int // child runs that it starts, exact
	// Refunds is how many refunds the shop must have made for the run, exact. The last
	// of them waits for a person.
	Refunds int
}

// Scenarios are the seven runs of the demo.
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
		{
			Title: "an editor and four researchers: the multi-agent bill, cached and not", Agent: "agents/editor", Input: "What does a run of an agent cost?",
			State: loopdv1.RunState_RUN_STATE_SUCCEEDED, Reason: loopdv1.StopReason_STOP_REASON_COMPLETED, Iterations: 2, Children: 4,
		},
		{
			Title: "two refunds: a policy approves the small one, a person the other", Agent: "agents/cashier", Input: "Refund ORD-4892 and ORD-7001.",
			State: loopdv1.RunState_RUN_STATE_SUCCEEDED, Reason: loopdv1.StopReason_STOP_REASON_COMPLETED, Iterations: 3, Refunds: 2,
		},
	}
}

// Policies are the rules of the demo by id: what its person would wave through. The
// bound is more than anybody starts the demo on one day.
func Policies() map[string]*loopdv1.Policy {
	return map[string]*loopdv1.Policy{
		"small-refunds": {
			Tool: "issue_refund", Agents: []string{"agents/cashier"}, Condition: "args.currency == 'EUR' && args.amount <= 50", MaxPerDay: 1000,
		},
	}
}

// Agents are the demo's agents, with their tools at toolURL. Those that others start
// come before them.
func Agents(toolURL string) []*loopdv1.Agent {
	order := tool(toolURL, "orders", "get_order", "Look up an order by its id.", "order_id")
	shipment := tool(toolURL, "shipments", "get_shipment", "Look up where a shipment is.", "shipment")
	customer := tool(toolURL, "customers", "get_customer", "Look up a customer.", "customer_id")
	inventory := tool(toolURL, "inventory", "check_inventory", "Ask the warehouse how many of an article are in stock.", "sku")
	report := tool(toolURL, "reports", "read_report", "Read one page of the returns report.", "page")
	source := tool(toolURL, "sources", "read_source", "Read one part of what is written about a topic.", "topic", "part")
	researcher := agent("researcher", "Researcher", &loopdv1.Limits{
		AnswerMaxOutputTokens: proto.Int64(1024), FinalAnswerMaxOutputTokens: proto.Int64(512),
	}, source)
	researcher.Spec.Instructions = handbook()
	return []*loopdv1.Agent{
		agent("support", "Support", nil, order, shipment, customer),
		agent("inventory", "Inventory", &loopdv1.Limits{NoProgressStop: new(true), MaxCostUsd: new("0.50")}, order, inventory),
		agent("explorer", "Explorer", &loopdv1.Limits{MaxIterations: proto.Int32(6)}, order),
		agent("analyst", "Analyst", &loopdv1.Limits{
			MaxCostUsd: new("0.10"), AnswerMaxOutputTokens: proto.Int64(1024), FinalAnswerMaxOutputTokens: proto.Int64(256),
		}, report),
		agent("newcomer", "Newcomer", nil, order),
		researcher,
		// Four worst cases are held at once, each about four times what a researcher
		// costs, and the model calls of the whole tree count.
		agent("editor", "Editor", &loopdv1.Limits{MaxCostUsd: new("2.00"), MaxModelCalls: proto.Int32(60)}, research()),
		agent("cashier", "Cashier", nil, order, refund(toolURL)),
	}
}

// rules are the instructions of every agent of the demo.
const rules = "You work for a shop. Use the tools to answer; say so when you cannot."

// handbook is the instructions of the researcher: as long as a prompt with its tools
// is in the article's arithmetic, 2,000 tokens of 4 bytes.
func handbook() string {
	var b strings.Builder
	_, _ = b.WriteString(rules)
	for section := 1; b.Len() < 4*2000-len("read_source")-300; section++ { // the tool takes the rest
		fmt.Fprintf(&b, "\n%d. Read the next part of the source, note its numbers with their units, and say of each where it stands.", section)
	}
	return b.String()
}

// agent is one agent on the scripted model of the same name.
func agent(id, display string, limits *loopdv1.Limits, tools ...*loopdv1.Tool) *loopdv1.Agent {
	return &loopdv1.Agent{
		Name: "agents/" + id, DisplayName: display,
		Spec: &loopdv1.AgentSpec{Model: "scripted/" + id, Instructions: rules, Tools: tools, Limits: limits},
	}
}

// research is the researcher as a tool: each call is a run of its own.
func research() *loopdv1.Tool {
	return &loopdv1.Tool{
		Name: "research", Description: "Have a researcher find out about one topic.", Effect: loopdv1.Effect_EFFECT_READ_ONLY,
		Kind: &loopdv1.Tool_Agent{Agent: &loopdv1.AgentTool{Agent: "agents/researcher"}},
	}
}

// refund pays money back. It cannot be undone, so each call needs an approval.
func refund(base string) *loopdv1.Tool {
	return &loopdv1.Tool{
		Name: "issue_refund", Description: "Pay money back for an order.", Effect: loopdv1.Effect_EFFECT_IRREVERSIBLE,
		InputSchema: schema(map[string]any{
			"order_id": map[string]any{"type": "string", "minLength": 1},
			"amount":   map[string]any{"type": "number", "exclusiveMinimum": 0},
			"currency": map[string]any{"enum": []any{"EUR"}},
		}, "order_id", "amount", "currency"),
		Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "POST", Url: base + "/refunds"}},
	}
}

// tool is a read-only tool with required text arguments.
func tool(base, path, name, description string, arguments ...string) *loopdv1.Tool {
	properties := map[string]any{}
	for _, argument := range arguments {
		properties[argument] = map[string]any{"type": "string", "minLength": 1}
	}
	return &loopdv1.Tool{
		Name: name, Description: description, InputSchema: schema(properties, arguments...), Effect: loopdv1.Effect_EFFECT_READ_ONLY,
		Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "GET", Url: base + "/" + path}},
	}
}

// schema is that of an object with these members and no others.
func schema(properties map[string]any, required ...string) *structpb.Struct {
	names := make([]any, len(required))
	for i, name := range required {
		names[i] = name
	}
	object, err := structpb.NewStruct(map[string]any{
		"type": "object", "properties": properties, "required": names, "additionalProperties": false,
	})
	if err != nil {
		panic(fmt.Sprintf("the demo's own schema is broken: %v", err))
	}
	return object
}
