package loopdv1_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

const (
	run  = "runs/01937b5e-7a1c-7c3e-9d2f-0123456789ab"
	call = run + "/toolCalls/c3-1"

	approval = "approvals/01937b5e-7a1c-7c3e-9d2f-0123456789ab.c3-1"
)

func TestRulesAcceptGoodRequests(t *testing.T) {
	t.Parallel()
	for _, request := range []proto.Message{
		createAgent(nil),
		&loopdv1.UpdateAgentRequest{
			Agent:      namedAgent("agents/support"),
			UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"spec", "labels"}}, AllowMissing: true,
		},
		&loopdv1.GetAgentRequest{Name: "agents/a"},
		&loopdv1.ListAgentsRequest{PageSize: 5000},
		&loopdv1.CreateRunRequest{Agent: "agents/support", Input: "Where is ORD-4892?", RequestId: `order:4892/"a"`},
		&loopdv1.CreateRunRequest{Agent: "agents/support", Input: "x", Limits: &loopdv1.Limits{
			MaxCostUsd: new("0"), MaxToolCalls: proto.Int32(0), MaxReasks: proto.Int32(0), Deadline: durationpb.New(1e9),
		}},
		createAgent(func(a *loopdv1.Agent) {
			a.Spec.FallbackModels = []string{"openai/gpt-5.1", "openai/gpt-5.1-mini", "gemini/gemini-3-pro"}
			a.Spec.ModelSettings = &loopdv1.ModelSettings{Reasoning: &loopdv1.ReasoningSettings{Effort: "xhigh", BudgetTokens: proto.Int64(1024)}}
		}),
		createAgent(func(a *loopdv1.Agent) {
			a.Spec.ModelSettings = &loopdv1.ModelSettings{Reasoning: &loopdv1.ReasoningSettings{}}
		}),
		&loopdv1.CreateRunRequest{Agent: "agents/support", Input: "x", Attachments: []*loopdv1.Attachment{
			{Source: &loopdv1.Attachment_Data{Data: []byte{0}}, MediaType: "image/webp", FileName: "größe, no. 1.webp"},
			{Source: &loopdv1.Attachment_Uri{Uri: "https://shop.example:8443/a/b.pdf?x=1#p2"}, MediaType: "application/pdf"},
		}},
		&loopdv1.ListRunsRequest{States: []loopdv1.RunState{loopdv1.RunState_RUN_STATE_RUNNING, loopdv1.RunState_RUN_STATE_QUEUED}},
		&loopdv1.WaitRunRequest{Name: run, Timeout: durationpb.New(0)},
		&loopdv1.ListEventsRequest{Parent: run, AfterSeq: 7},
		&loopdv1.ApproveToolCallRequest{Name: call, ArgumentsSha256: strings.Repeat("0a", 32)},
		&loopdv1.ResolveToolCallRequest{Name: call, Resolution: loopdv1.Resolution_RESOLUTION_SUCCEEDED, Result: "refunded"},
		&loopdv1.ResolveToolCallRequest{Name: call, Resolution: loopdv1.Resolution_RESOLUTION_RETRY},
		createAgent(func(a *loopdv1.Agent) {
			a.Spec.Tools = append(a.Spec.Tools,
				&loopdv1.Tool{Name: "refund", Approval: &loopdv1.ApprovalRule{Mode: loopdv1.ApprovalMode_APPROVAL_MODE_WHEN, When: "args.amount > 100"},
					Verify: "get_order", Kind: &loopdv1.Tool_Mcp{Mcp: &loopdv1.McpTool{Url: "https://mcp.example/mcp", Tool: "refund/v2", Hash: strings.Repeat("0a", 32)}}},
				&loopdv1.Tool{Name: "pick", Kind: &loopdv1.Tool_Client{Client: &loopdv1.ClientTool{Wait: durationpb.New(7 * 24 * time.Hour)}}},
				&loopdv1.Tool{Name: "ask", Kind: &loopdv1.Tool_Agent{Agent: &loopdv1.AgentTool{Agent: "agents/helper"}}},
				&loopdv1.Tool{Name: "finish", Kind: &loopdv1.Tool_Builtin{Builtin: loopdv1.Builtin_BUILTIN_FINISH}},
				&loopdv1.Tool{Name: "put", Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{
					Method: "PUT", Url: "https://shop.example/orders/{id}", Query: map[string]string{"note": "{note}"}, Body: loopdv1.HttpBody_HTTP_BODY_JSON,
					BodyTemplate: structpb.NewStringValue("{order}"), Result: "/data/0/a~1b", SigningSecret: "SHOP_KEY",
				}}})
			a.Spec.ToolRefs = []*loopdv1.ToolRef{{Tool: "tools/get-order", Version: 3}, {Tool: "tools/pay"}}
			a.Spec.OnDoubt = loopdv1.OnDoubt_ON_DOUBT_TELL_MODEL
			a.Spec.Limits = &loopdv1.Limits{MaxChildDepth: proto.Int32(0), MaxActiveChildren: proto.Int32(2), MaxChildren: proto.Int32(0)}
		}),
		&loopdv1.ListToolCallsRequest{Parent: run},
		&loopdv1.ListToolCallsRequest{Parent: "runs/-", States: []loopdv1.ToolCallState{loopdv1.ToolCallState_TOOL_CALL_STATE_IN_DOUBT}},
		results(&loopdv1.ToolResultInput{Call: "c1-1", Attempt: 1, Outcome: &loopdv1.ToolResultInput_Content{}}),
		results(&loopdv1.ToolResultInput{Call: "c1-1", Attempt: 2, Outcome: &loopdv1.ToolResultInput_Error{Error: "no"}}),
		&loopdv1.ApproveRequest{Name: approval, ExpectedArgumentsHash: strings.Repeat("0a", 32), EditedArgumentsJson: "{}"},
		&loopdv1.AnswerRequest{Name: approval, Answer: &loopdv1.AnswerRequest_Choice{Choice: "blue"}},
		&loopdv1.CreatePolicyRequest{PolicyId: "small", Policy: policy(nil)},
		&loopdv1.ImportOpenApiRequest{Document: "openapi: 3.1.0", Prefix: "shop_"},
		&loopdv1.CallToolRequest{Name: "tools/get-order"},
		&loopdv1.CallToolRequest{
			Name: "tools/refund", Version: proto.Int64(2), Input: &loopdv1.CallToolRequest_ArgumentsJson{ArgumentsJson: "{}"},
			ConfirmEffect: loopdv1.Effect_EFFECT_SIDE_EFFECT, RequestId: "1",
		},
		&loopdv1.CreateBudgetRequest{BudgetId: "acme-daily", Budget: &loopdv1.Budget{
			Window: loopdv1.BudgetWindow_BUDGET_WINDOW_DAY, TimeZone: "Europe/Berlin", AmountUsd: "100.50", Verdict: loopdv1.GuardVerdict_GUARD_VERDICT_PAUSE,
			Scope: &loopdv1.Budget_Label{Label: &loopdv1.BudgetLabel{Key: "team", Value: "web"}},
		}},
		&loopdv1.UpdateBudgetRequest{Budget: &loopdv1.Budget{Name: "budgets/a", AmountUsd: "0"}, Reason: "stop all"},
		&loopdv1.RaiseBudgetRequest{Name: "budgets/a", Raise: &loopdv1.RaiseBudgetRequest_ByUsd{ByUsd: "0.5"}, RequestId: "1"},
		&loopdv1.ListMcpToolsRequest{Url: "http://127.0.0.1:3001/mcp", Headers: map[string]string{"Authorization": "Bearer ${secret:MCP}"}},
	} {
		if err := protovalidate.Validate(request); err != nil {
			t.Errorf("%s: %v", request.ProtoReflect().Descriptor().Name(), err)
		}
	}
}

func TestRulesRefuseBadRequests(t *testing.T) {
	t.Parallel()
	limits := func(l *loopdv1.Limits) proto.Message {
		return &loopdv1.CreateRunRequest{Agent: "agents/support", Input: "x", Limits: l}
	}
	tool := func(change func(*loopdv1.Tool)) proto.Message {
		return createAgent(func(a *loopdv1.Agent) { change(a.GetSpec().GetTools()[0]) })
	}
	attached := func(change func(*loopdv1.Attachment)) proto.Message {
		a := &loopdv1.Attachment{Source: &loopdv1.Attachment_Data{Data: []byte{0}}, MediaType: "image/png"}
		change(a)
		return &loopdv1.CreateRunRequest{Agent: "agents/support", Input: "x", Attachments: []*loopdv1.Attachment{a}}
	}
	uri := func(uri string) proto.Message {
		return attached(func(a *loopdv1.Attachment) { a.Source = &loopdv1.Attachment_Uri{Uri: uri} })
	}
	reasoning := func(r *loopdv1.ReasoningSettings) proto.Message {
		return createAgent(func(a *loopdv1.Agent) { a.Spec.ModelSettings = &loopdv1.ModelSettings{Reasoning: r} })
	}
	fallbacks := func(models ...string) proto.Message {
		return createAgent(func(a *loopdv1.Agent) { a.Spec.FallbackModels = models })
	}
	for name, c := range map[string]struct {
		request proto.Message
		field   string
	}{
		"attachment without source":    {attached(func(a *loopdv1.Attachment) { a.Source = nil }), "attachments[0].source"},
		"attachment without data":      {attached(func(a *loopdv1.Attachment) { a.Source = &loopdv1.Attachment_Data{} }), "attachments[0].data"},
		"attachment above 8 MiB":       {attached(func(a *loopdv1.Attachment) { a.Source = &loopdv1.Attachment_Data{Data: make([]byte, 8<<20+1)} }), "attachments[0].data"},
		"attachment of another type":   {attached(func(a *loopdv1.Attachment) { a.MediaType = "image/svg+xml" }), "attachments[0].media_type"},
		"attachment in a folder":       {attached(func(a *loopdv1.Attachment) { a.FileName = "../a.png" }), "attachments[0].file_name"},
		"attachment with a line break": {attached(func(a *loopdv1.Attachment) { a.FileName = "a\n.png" }), "attachments[0].file_name"},
		"attachment by http":           {uri("http://shop.example/a.png"), "attachments[0].uri"},
		"attachment with a password":   {uri("https://u:p@shop.example/a.png"), "attachments[0].uri"},
		"attachment of the worker":     {uri("file:///etc/passwd"), "attachments[0].uri"},
		"17 attachments":               {&loopdv1.CreateRunRequest{Agent: "agents/support", Input: "x", Attachments: slices.Repeat([]*loopdv1.Attachment{{Source: &loopdv1.Attachment_Data{Data: []byte{0}}, MediaType: "image/png"}}, 17)}, "attachments"},
		"effort of another word":       {reasoning(&loopdv1.ReasoningSettings{Effort: "High"}), "agent.spec.model_settings.reasoning.effort"},
		"too small a thinking budget":  {reasoning(&loopdv1.ReasoningSettings{BudgetTokens: proto.Int64(1023)}), "agent.spec.model_settings.reasoning.budget_tokens"},
		"4 fallbacks":                  {fallbacks("a/a", "a/b", "a/c", "a/d"), "agent.spec.fallback_models"},
		"the same fallback twice":      {fallbacks("a/a", "a/a"), "agent.spec.fallback_models"},
		"fallback without provider":    {fallbacks("a/a", "claude"), "agent.spec.fallback_models[1]"},
		"agent id with capitals":       {&loopdv1.CreateAgentRequest{Agent: namedAgent(""), AgentId: "Support"}, "agent_id"},
		"agent id ends in dash":        {&loopdv1.CreateAgentRequest{Agent: namedAgent(""), AgentId: "support-"}, "agent_id"},
		"no agent":                     {&loopdv1.CreateAgentRequest{AgentId: "support"}, "agent"},
		"no spec":                      {createAgent(func(a *loopdv1.Agent) { a.Spec = nil }), "agent.spec"},
		"model without provider":       {createAgent(func(a *loopdv1.Agent) { a.Spec.Model = "claude" }), "agent.spec.model"},
		"two tools of one name": {createAgent(func(a *loopdv1.Agent) {
			a.Spec.Tools = append(a.Spec.Tools, a.Spec.Tools[0])
		}), "agent.spec.tools"},
		"tool name with a space":    {tool(func(x *loopdv1.Tool) { x.Name = "get order" }), "agent.spec.tools[0].name"},
		"tool without a kind":       {tool(func(x *loopdv1.Tool) { x.Kind = nil }), "agent.spec.tools[0].kind"},
		"tool without a time":       {tool(func(x *loopdv1.Tool) { x.Timeout = durationpb.New(0) }), "agent.spec.tools[0].timeout"},
		"tool slower than 10 min":   {tool(func(x *loopdv1.Tool) { x.Timeout = durationpb.New(601e9) }), "agent.spec.tools[0].timeout"},
		"unknown effect":            {tool(func(x *loopdv1.Tool) { x.Effect = 9 }), "agent.spec.tools[0].effect"},
		"result above 1 MiB":        {tool(func(x *loopdv1.Tool) { x.MaxResultBytes = proto.Int32(1<<20 + 1) }), "agent.spec.tools[0].max_result_bytes"},
		"result path, no pointer":   {tool(func(x *loopdv1.Tool) { x.VolatileResultPaths = []string{"a.b"} }), "agent.spec.tools[0].volatile_result_paths[0]"},
		"URL of a file":             {tool(func(x *loopdv1.Tool) { x.GetHttp().Url = "file:///etc/passwd" }), "agent.spec.tools[0].http.url"},
		"URL with a password":       {tool(func(x *loopdv1.Tool) { x.GetHttp().Url = "https://u:p@host/" }), "agent.spec.tools[0].http.url"},
		"method TRACE":              {tool(func(x *loopdv1.Tool) { x.GetHttp().Method = "TRACE" }), "agent.spec.tools[0].http.method"},
		"header with a line break":  {tool(func(x *loopdv1.Tool) { x.GetHttp().Headers = map[string]string{"A": "b\r\nC: d"} }), `agent.spec.tools[0].http.headers["A"]`},
		"update without a name":     {&loopdv1.UpdateAgentRequest{Agent: namedAgent("")}, "agent"},
		"update of the version":     {&loopdv1.UpdateAgentRequest{Agent: namedAgent("agents/a"), UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"version"}}}, "update_mask"},
		"version 0":                 {&loopdv1.GetAgentRequest{Name: "agents/a", Version: proto.Int64(0)}, "version"},
		"no input":                  {&loopdv1.CreateRunRequest{Agent: "agents/support"}, "input"},
		"input too long":            {&loopdv1.CreateRunRequest{Agent: "agents/support", Input: strings.Repeat("ä", 200_001)}, "input"},
		"request id with a space":   {&loopdv1.CreateRunRequest{Agent: "agents/support", Input: "x", RequestId: "a b"}, "request_id"},
		"label key with a space":    {&loopdv1.CreateRunRequest{Agent: "agents/support", Input: "x", Labels: map[string]string{"a b": ""}}, `labels["a b"]`},
		"cost with an exponent":     {limits(&loopdv1.Limits{MaxCostUsd: new("1e3")}), "limits.max_cost_usd"},
		"negative cost":             {limits(&loopdv1.Limits{MaxCostUsd: new("-1")}), "limits.max_cost_usd"},
		"cost with a trailing line": {limits(&loopdv1.Limits{MaxCostUsd: new("1\n")}), "limits.max_cost_usd"},
		"no iterations":             {limits(&loopdv1.Limits{MaxIterations: proto.Int32(0)}), "limits.max_iterations"},
		"one identical iteration":   {limits(&loopdv1.Limits{MaxIdenticalIterations: proto.Int32(1)}), "limits.max_identical_iterations"},
		"deadline below 1 s":        {limits(&loopdv1.Limits{Deadline: durationpb.New(1e6)}), "limits.deadline"},
		"context share above 1":     {limits(&loopdv1.Limits{ContextStopAt: new(1.1)}), "limits.context_stop_at"},
		"run name without uuid":     {&loopdv1.GetRunRequest{Name: "runs/1"}, "name"},
		"state unspecified":         {&loopdv1.ListRunsRequest{States: []loopdv1.RunState{0}}, "states[0]"},
		"negative page":             {&loopdv1.ListRunsRequest{PageSize: -1}, "page_size"},
		"wait of 11 minutes":        {&loopdv1.WaitRunRequest{Name: run, Timeout: durationpb.New(660e9)}, "timeout"},
		"approval without a hash":   {&loopdv1.ApproveToolCallRequest{Name: call}, "arguments_sha256"},
		"no resolution":             {&loopdv1.ResolveToolCallRequest{Name: call}, "resolution"},
		"condition without a mode":  {tool(func(x *loopdv1.Tool) { x.Approval = &loopdv1.ApprovalRule{When: "true"} }), "agent.spec.tools[0].approval"},
		"mode without a condition": {tool(func(x *loopdv1.Tool) {
			x.Approval = &loopdv1.ApprovalRule{Mode: loopdv1.ApprovalMode_APPROVAL_MODE_WHEN}
		}), "agent.spec.tools[0].approval"},
		"verifier with a space":    {tool(func(x *loopdv1.Tool) { x.Verify = "get order" }), "agent.spec.tools[0].verify"},
		"placeholder for the host": {tool(func(x *loopdv1.Tool) { x.GetHttp().Url = "https://{host}/" }), "agent.spec.tools[0].http.url"},
		"URL with a space":         {tool(func(x *loopdv1.Tool) { x.GetHttp().Url = "https://host/a b" }), "agent.spec.tools[0].http.url"},
		"result, no pointer":       {tool(func(x *loopdv1.Tool) { x.GetHttp().Result = "data" }), "agent.spec.tools[0].http.result"},
		"secret as a reference":    {tool(func(x *loopdv1.Tool) { x.GetHttp().SigningSecret = "${secret:A}" }), "agent.spec.tools[0].http.signing_secret"},
		"MCP tool without a name": {tool(func(x *loopdv1.Tool) {
			x.Kind = &loopdv1.Tool_Mcp{Mcp: &loopdv1.McpTool{Url: "https://mcp.example/"}}
		}), "agent.spec.tools[0].mcp.tool"},
		"hash of half a definition": {tool(func(x *loopdv1.Tool) {
			x.Kind = &loopdv1.Tool_Mcp{Mcp: &loopdv1.McpTool{Url: "https://mcp.example/", Tool: "a", Hash: "0a"}}
		}), "agent.spec.tools[0].mcp.hash"},
		"MCP server on a pipe": {tool(func(x *loopdv1.Tool) {
			x.Kind = &loopdv1.Tool_Mcp{Mcp: &loopdv1.McpTool{Url: "stdio:npx", Tool: "a"}}
		}), "agent.spec.tools[0].mcp.url"},
		"client that is waited for too long": {tool(func(x *loopdv1.Tool) {
			x.Kind = &loopdv1.Tool_Client{Client: &loopdv1.ClientTool{Wait: durationpb.New(8 * 24 * time.Hour)}}
		}), "agent.spec.tools[0].client.wait"},
		"tool of no agent":          {tool(func(x *loopdv1.Tool) { x.Kind = &loopdv1.Tool_Agent{Agent: &loopdv1.AgentTool{}} }), "agent.spec.tools[0].agent.agent"},
		"built-in tool of no name":  {tool(func(x *loopdv1.Tool) { x.Kind = &loopdv1.Tool_Builtin{} }), "agent.spec.tools[0].builtin"},
		"reference to nothing":      {createAgent(func(a *loopdv1.Agent) { a.Spec.ToolRefs = []*loopdv1.ToolRef{{}} }), "agent.spec.tool_refs[0].tool"},
		"children without end":      {limits(&loopdv1.Limits{MaxChildDepth: proto.Int32(11)}), "limits.max_child_depth"},
		"all calls of all runs":     {&loopdv1.ListToolCallsRequest{Parent: "runs/-"}, ""},
		"ended calls of all runs":   {&loopdv1.ListToolCallsRequest{Parent: "runs/-", States: []loopdv1.ToolCallState{loopdv1.ToolCallState_TOOL_CALL_STATE_SUCCEEDED}}, ""},
		"no results":                {results(), "results"},
		"result of attempt 0":       {results(&loopdv1.ToolResultInput{Call: "c1-1", Outcome: &loopdv1.ToolResultInput_Content{}}), "results[0].attempt"},
		"result without an outcome": {results(&loopdv1.ToolResultInput{Call: "c1-1", Attempt: 1}), "results[0].outcome"},
		"error without a word":      {results(&loopdv1.ToolResultInput{Call: "c1-1", Attempt: 1, Outcome: &loopdv1.ToolResultInput_Error{}}), "results[0].error"},
		"two results of one call": {results(
			&loopdv1.ToolResultInput{Call: "c1-1", Attempt: 1, Outcome: &loopdv1.ToolResultInput_Content{}},
			&loopdv1.ToolResultInput{Call: "c1-1", Attempt: 2, Outcome: &loopdv1.ToolResultInput_Content{}}), "results"},
		"approval of nothing read":  {&loopdv1.ApproveRequest{Name: approval}, "expected_arguments_hash"},
		"approval named after call": {&loopdv1.GetApprovalRequest{Name: call}, "name"},
		"no answer":                 {&loopdv1.AnswerRequest{Name: approval}, "answer"},
		"policy without a bound":    {&loopdv1.CreatePolicyRequest{PolicyId: "a", Policy: policy(func(p *loopdv1.Policy) { p.MaxPerDay = 0 })}, "policy.max_per_day"},
		"policy for everything":     {&loopdv1.CreatePolicyRequest{PolicyId: "a", Policy: policy(func(p *loopdv1.Policy) { p.Condition = "" })}, "policy.condition"},
		"policy for no tool":        {&loopdv1.CreatePolicyRequest{PolicyId: "a", Policy: policy(func(p *loopdv1.Policy) { p.Tool = "" })}, "policy.tool"},
		"update of no policy":       {&loopdv1.UpdatePolicyRequest{Policy: policy(nil)}, "policy"},
		"budget for no time":        {&loopdv1.CreateBudgetRequest{BudgetId: "a", Budget: &loopdv1.Budget{AmountUsd: "1"}}, "budget"},
		"budget of no amount":       {&loopdv1.CreateBudgetRequest{BudgetId: "a", Budget: &loopdv1.Budget{Window: loopdv1.BudgetWindow_BUDGET_WINDOW_DAY}}, "budget"},
		"update of no budget":       {&loopdv1.UpdateBudgetRequest{Budget: &loopdv1.Budget{AmountUsd: "1"}}, "budget"},
		"budget that nudges":        {&loopdv1.UpdateBudgetRequest{Budget: &loopdv1.Budget{Name: "budgets/a", Verdict: loopdv1.GuardVerdict_GUARD_VERDICT_NUDGE}}, "budget.verdict"},
		"update of a budget's time": {&loopdv1.UpdateBudgetRequest{Budget: &loopdv1.Budget{Name: "budgets/a"}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"window"}}}, "update_mask"},
		"raise by nothing":          {&loopdv1.RaiseBudgetRequest{Name: "budgets/a"}, "raise"},
		"label that hides a NUL":    {&loopdv1.UpdateBudgetRequest{Budget: &loopdv1.Budget{Name: "budgets/a", Scope: &loopdv1.Budget_Label{Label: &loopdv1.BudgetLabel{Key: "a", Value: "b\x00"}}}}, "budget.label.value"},
		"import of nothing":         {&loopdv1.ImportOpenApiRequest{}, "document"},
		"call of a run's tool":      {&loopdv1.CallToolRequest{Name: call}, "name"},
		"call with no text":         {&loopdv1.CallToolRequest{Name: "tools/a", Input: &loopdv1.CallToolRequest_ArgumentsJson{}}, "arguments_json"},
		"call of another effect":    {&loopdv1.CallToolRequest{Name: "tools/a", ConfirmEffect: 9}, "confirm_effect"},
		"result of what did not run": {&loopdv1.ResolveToolCallRequest{
			Name: call, Resolution: loopdv1.Resolution_RESOLUTION_NOT_EXECUTED, Result: "refunded",
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff([]string{c.field}, violated(t, c.request)); diff != "" {
				t.Errorf("fields that break their rules (-want +got):\n%s", diff)
			}
		})
	}
}

// violated lists the fields of a request that break their rules, each once.
func violated(t *testing.T, request proto.Message) []string {
	t.Helper()
	invalid, ok := errors.AsType[*protovalidate.ValidationError](protovalidate.Validate(request))
	if !ok {
		return nil
	}
	var fields []string
	for _, v := range invalid.Violations {
		field := protovalidate.FieldPathString(v.Proto.GetField())
		if len(fields) == 0 || fields[len(fields)-1] != field {
			fields = append(fields, field)
		}
	}
	return fields
}

// results asks to take results.
func results(list ...*loopdv1.ToolResultInput) *loopdv1.SubmitToolResultsRequest {
	return &loopdv1.SubmitToolResultsRequest{Name: run, Results: list}
}

// policy is a good policy, changed as the case wants.
func policy(change func(*loopdv1.Policy)) *loopdv1.Policy {
	p := &loopdv1.Policy{Tool: "refund", Agents: []string{"agents/support"}, Condition: "args.amount <= 50", MaxPerDay: 20}
	if change != nil {
		change(p)
	}
	return p
}

// createAgent is a good request, changed as the case wants.
func createAgent(change func(*loopdv1.Agent)) *loopdv1.CreateAgentRequest {
	agent := namedAgent("")
	if change != nil {
		change(agent)
	}
	return &loopdv1.CreateAgentRequest{Agent: agent, AgentId: "support", RequestId: "1"}
}

func namedAgent(name string) *loopdv1.Agent {
	return &loopdv1.Agent{
		Name: name, DisplayName: "Support", Labels: map[string]string{"team": "care"},
		Spec: &loopdv1.AgentSpec{
			Model:        "anthropic/claude-sonnet-4-5",
			Instructions: "Help.",
			Tools: []*loopdv1.Tool{{
				Name: "get_order", Effect: loopdv1.Effect_EFFECT_READ_ONLY,
				VolatileResultPaths: []string{"/fetched_at", "/a~1b/0"},
				Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{
					Method: "GET", Url: "https://shop.example:8443/orders?v=1",
					Headers: map[string]string{"Authorization": "Bearer ${secret:SHOP_TOKEN}"},
				}},
			}},
		},
	}
}
