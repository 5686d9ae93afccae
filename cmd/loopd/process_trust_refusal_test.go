package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// What cannot work is refused when it is registered, with what is wrong with it.
func TestRefusedAtRegistration(t *testing.T) {
	t.Parallel()
	p := start(t, pgURL(t), callThenAnswer)
	refuseTools(p)
	refuseAgents(p)
	refuseCircles(p)
	refuseMCPServers(p)
}

const paysByHTTP = `"http": {"method": "POST", "url": "https://shop.example/pay"}`

func refuseTools(p *process) {
	p.t.Helper()
	tool := func(rest string) string {
		return `{"spec": {"name": "act", "effect": "EFFECT_SIDE_EFFECT", ` + rest + `}}`
	}
	web := func(rest string) string {
		return tool(`"inputSchema": {"type": "object", "properties": {"order": {"type": "string"}, "note": {"type": "string"}}, "required": ["order"]}, "http": {"method": "POST", ` + rest + `}`)
	}
	const (
		plain = paysByHTTP
		asks  = plain + `, "approval": {"mode": "APPROVAL_MODE_WHEN", "when": `
	)
	for _, c := range []struct{ name, body, field, says string }{
		{"a type that there is not", tool(`"inputSchema": {"type": "object", "properties": {"n": {"type": "integr"}}}, ` + plain), "tool.spec.input_schema.properties.n.type", "integr"},
		{"arguments that are no object", tool(`"inputSchema": {"type": "array"}, ` + plain), "tool.spec.input_schema", `"type": "object"`},
		{"a reference to elsewhere", tool(`"inputSchema": {"type": "object", "properties": {"n": {"$ref": "https://schemas.example/n"}}}, ` + plain), "tool.spec.input_schema", "$defs"},
		{"a pattern that does not compile", tool(`"inputSchema": {"type": "object", "properties": {"n": {"type": "string", "pattern": "("}}}, ` + plain), "tool.spec.input_schema.properties.n.pattern", "missing closing"},
		{"a condition cut short", tool(asks + `"args.amount >"}`), "tool.spec.approval.when", "Syntax error"},
		{"a condition on what there is not", tool(asks + `"amount > 100"}`), "tool.spec.approval.when", "amount"},
		{"a condition that is a number", tool(asks + `"1 + 1"}`), "tool.spec.approval.when", "bool"},
		{"a mode that wants a condition", tool(plain + `, "approval": {"mode": "APPROVAL_MODE_WHEN"}`), "tool.spec.approval", "when"},
		{"a dangerous tool without approval", strings.Replace(tool(plain+`, "approval": {"mode": "APPROVAL_MODE_NEVER"}`), "SIDE_EFFECT", "IRREVERSIBLE", 1), "tool.spec.approval.mode", "always needs"},
		{"an argument in the path that there is not", web(`"url": "https://shop.example/orders/{ordr}"`), "tool.spec.http.url", "{ordr}"},
		{"an argument in the path that may be missing", web(`"url": "https://shop.example/orders/{note}"`), "tool.spec.http.url", "required"},
		{"an argument in the host", web(`"url": "https://{order}.example/"`), "tool.spec.http.url", ""},
		{"an argument in the query that there is not", web(`"url": "https://shop.example/", "query": {"q": "{what}"}`), `tool.spec.http.query["q"]`, "{what}"},
		{"an argument in a header that there is not", web(`"url": "https://shop.example/", "headers": {"X-Who": "{who}"}`), `tool.spec.http.headers["X-Who"]`, "{who}"},
		{"an argument in the body that there is not", web(`"url": "https://shop.example/", "bodyTemplate": {"a": ["{who}"]}`), "tool.spec.http.body_template.a[0]", "{who}"},
		{"an agent that there is not", tool(`"agent": {"agent": "agents/nobody"}`), "tool.spec.agent", "agents/nobody"},
		{"no kind", `{"spec": {"name": "act"}}`, "tool.spec.kind", ""},
		{"a schema for a built-in tool", `{"spec": {"name": "act", "builtin": "BUILTIN_WAIT", "inputSchema": {"type": "object"}}}`, "tool.spec.input_schema", "leave it out"},
	} {
		p.refusedFor(c.name, http.MethodPost, "/v1/tools?tool_id=act", c.body, c.field, c.says)
	}
}

// refuseAgents: tools that are wrong beside others, and policies.
func refuseAgents(p *process) {
	p.t.Helper()
	const plain = paysByHTTP
	agent := func(tools string) string { return `{"spec": {"model": "scripted/worker", "tools": [` + tools + `]}}` }
	const paid = `{"name": "pay", "effect": "EFFECT_SIDE_EFFECT", "verify": "check", ` + plain + `}`
	for _, c := range []struct{ name, body, field, says string }{
		{"a verify that there is not", agent(paid), "agent.spec.tools[0].verify", "check"},
		{"a verify that changes things", agent(paid + `, {"name": "check", "effect": "EFFECT_IDEMPOTENT", ` + plain + `}`), "agent.spec.tools[0].verify", "READ_ONLY"},
		{"one name for two tools", agent(`{"name": "a", ` + plain + `}, {"name": "a", ` + plain + `}`), "agent.spec.tools", "same name"},
		{"a tool that there is not", `{"spec": {"model": "scripted/worker", "toolRefs": [{"tool": "tools/nothing"}]}}`, "agent.spec.tool_refs[0].tool", "tools/nothing"},
	} {
		p.refusedFor(c.name, http.MethodPost, "/v1/agents?agent_id=clerk", c.body, c.field, c.says)
	}
	const policy = "/v1/policies?policy_id=small"
	p.refusedFor("a policy cut short", http.MethodPost, policy, `{"tool": "pay", "condition": "args.amount <=", "maxPerDay": 1}`, "policy.condition", "Syntax error")
	p.refusedFor("a policy without a bound", http.MethodPost, policy, `{"tool": "pay", "condition": "true"}`, "policy.max_per_day", "")
	p.refusedFor("a policy for an agent that there is not", http.MethodPost, policy, `{"tool": "pay", "condition": "true", "maxPerDay": 1, "agents": ["agents/nobody"]}`, "policy.agents[0]", "agents/nobody")
}

// refusedFor sends a request that must be refused for one field.
func (p *process) refusedFor(name, method, path, body, field, says string) {
	p.t.Helper()
	status, answer := p.rest(method, path, body)
	if status < 400 || status > 499 || at(answer, "errors", 0, "field") != field || !strings.Contains(fmt.Sprint(at(answer, "errors", 0, "detail")), says) {
		p.t.Errorf("%s: %d %v, want %s to be refused with %q", name, status, answer, field, says)
	}
}

// refuseCircles: agents that start each other in a circle, or too deep.
func refuseCircles(p *process) {
	p.t.Helper()
	starts := func(child string, depth int) string {
		const spec = `{"spec": {"model": "scripted/worker", "limits": {"maxChildDepth": %d}, "tools": [{"name": "next", "effect": "EFFECT_READ_ONLY", "agent": {"agent": "agents/%s"}}]}}`
		return fmt.Sprintf(spec, depth, child)
	}
	p.define("c", &loopdv1.AgentSpec{Model: "worker"})
	p.ask(http.MethodPost, "/v1/agents?agent_id=b", starts("c", 1), &loopdv1.Agent{})
	p.ask(http.MethodPost, "/v1/agents?agent_id=a", starts("b", 2), &loopdv1.Agent{})
	for _, c := range []struct {
		agent, child string
		depth        int
		path         string
	}{
		{"c", "c", 2, "agents/c -> agents/c"},
		{"c", "b", 2, "agents/c -> agents/b -> agents/c"},
		{"a", "b", 1, "agents/a -> agents/b -> agents/c"},
		{"b", "a", 2, "agents/b -> agents/a -> agents/b"},
	} {
		answer := p.refused(http.StatusBadRequest, "AGENT_NESTING_INVALID", http.MethodPatch, "/v1/agents/"+c.agent, starts(c.child, c.depth))
		if field, path := at(answer, "errors", 0, "field"), at(answer, "metadata", "path"); field != "agent.spec.tools[0].agent" || path != c.path {
			p.t.Errorf("the refusal names %v and the path %v, want %s", field, path, c.path)
		}
	}
	answer := p.refused(http.StatusBadRequest, "AGENT_NESTING_INVALID", http.MethodPost, "/v1/runs", `{"agent": "agents/a", "input": "go", "limits": {"maxChildDepth": 1}}`)
	if detail := fmt.Sprint(answer["detail"]); !strings.Contains(detail, "max_child_depth") {
		p.t.Errorf("a run that is allowed less depth than its agents need is refused with %q", detail)
	}
}

// refuseMCPServers: one that is not there, that speaks no MCP, that breaks off.
func refuseMCPServers(p *process) {
	p.t.Helper()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	breaks := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer breaks.Close()
	for _, url := range []string{gone.URL, other.URL, breaks.URL} {
		answer := p.refused(http.StatusBadGateway, "MCP_SERVER_FAILED", http.MethodPost, "/v1/tools:listMcpTools", fmt.Sprintf(`{"url": %q}`, url))
		if at(answer, "metadata", "url") != url || answer["retryable"] != true {
			p.t.Errorf("the refusal is %v", answer)
		}
	}
}
