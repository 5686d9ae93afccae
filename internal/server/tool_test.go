package server_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// refundTool is a definition that uses most of what tools have.
func refundTool() *loopdv1.Tool {
	return &loopdv1.Tool{
		Name: "refund", Description: "Pays back.", Effect: loopdv1.Effect_EFFECT_SIDE_EFFECT,
		InputSchema: object(map[string]any{"type": "object", "required": []any{"order"}, "properties": map[string]any{"order": map[string]any{"type": "integer"}}}),
		Approval:    &loopdv1.ApprovalRule{Mode: loopdv1.ApprovalMode_APPROVAL_MODE_WHEN, When: "args.amount > 100"},
		Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{
			Method: "POST", Url: "https://shop.example/orders/{order}/refunds", Query: map[string]string{"dry": "{dry}"}, Body: loopdv1.HttpBody_HTTP_BODY_FORM,
			BodyTemplate: structpb.NewStructValue(object(map[string]any{"order": "{order}"})), Result: "/refund", SigningSecret: "SHOP_KEY",
		}},
	}
}

// tool registers a tool and returns its name.
func (w *world) tool(id string, spec *loopdv1.Tool) string {
	w.t.Helper()
	tool, err := w.tools.CreateTool(w.t.Context(), &loopdv1.CreateToolRequest{ToolId: id, Tool: &loopdv1.RegisteredTool{Spec: spec}})
	if err != nil {
		w.t.Fatalf("create tool %s: %v", id, err)
	}
	return tool.GetName()
}

func TestTools(t *testing.T) {
	t.Parallel()
	w := setup(t)
	ctx := t.Context()

	created, err := w.tools.CreateTool(ctx, &loopdv1.CreateToolRequest{ToolId: "refund", RequestId: "r1", Tool: &loopdv1.RegisteredTool{
		Labels: map[string]string{"env": "prod"}, Spec: refundTool(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if created.GetName() != "tools/refund" || created.GetVersion() != 1 || created.GetDisplayName() != "refund" || created.GetCreateTime() == nil {
		t.Errorf("created %v", created)
	}
	if diff := cmp.Diff(refundTool(), created.GetSpec(), protocmp.Transform()); diff != "" {
		t.Errorf("the definition changed (-sent +stored):\n%s", diff)
	}
	w.same(created, http.MethodGet, "/v1/tools/refund")

	updated, err := w.tools.UpdateTool(ctx, &loopdv1.UpdateToolRequest{
		Tool:       &loopdv1.RegisteredTool{Name: "tools/refund", DisplayName: "Refunds", Spec: refundTool()},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"display_name"}},
	})
	if err != nil || updated.GetVersion() != 2 || updated.GetDisplayName() != "Refunds" || updated.GetLabels()["env"] != "prod" {
		t.Errorf("updated %v, %v", updated, err)
	}
	first, err := w.tools.GetTool(ctx, &loopdv1.GetToolRequest{Name: "tools/refund", Version: proto.Int64(1)})
	if err != nil || first.GetVersion() != 1 {
		t.Errorf("version 1 is %v, %v", first, err)
	}
	const definition = `{"spec": {"name": "pick", "client": {}}}`
	made := w.rest(http.MethodPatch, "/v1/tools/pick?allowMissing=true", definition)
	if made["name"] != "tools/pick" || made["version"] != "1" {
		t.Errorf("an update with allow_missing made %v", made)
	}
	for range 2 {
		if archived := w.rest(http.MethodPost, "/v1/tools/refund:archive", ""); archived["archiveTime"] == nil {
			t.Errorf("archived %v", archived)
		}
	}
	w.tool("zip", refundTool())
	page := w.rest(http.MethodGet, "/v1/tools?pageSize=1", "")
	if at(page, "tools", "0", "name") != "tools/pick" {
		t.Fatalf("the first page is %v", page)
	}
	page = w.rest(http.MethodGet, "/v1/tools?pageSize=1&pageToken="+page["nextPageToken"].(string), "")
	if at(page, "tools", "0", "name") != "tools/zip" || page["nextPageToken"] != "" {
		t.Errorf("the last page is %v", page)
	}
	if all := w.rest(http.MethodGet, "/v1/tools?showArchived=true", ""); len(all["tools"].([]any)) != 3 {
		t.Errorf("all tools are %v", all)
	}
}

// TestAgentsPinTheirTools: a later version of a tool changes no agent version.
func TestAgentsPinTheirTools(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.tool("refund", refundTool())
	spec := &loopdv1.AgentSpec{
		Model: model, OnDoubt: loopdv1.OnDoubt_ON_DOUBT_TELL_MODEL,
		Tools: []*loopdv1.Tool{
			{Name: "pick", Effect: loopdv1.Effect_EFFECT_IDEMPOTENT, Kind: &loopdv1.Tool_Client{Client: &loopdv1.ClientTool{Wait: durationpb.New(time.Minute)}}},
			{Name: "ask", Description: "Ask.", Kind: &loopdv1.Tool_Builtin{Builtin: loopdv1.Builtin_BUILTIN_ASK_HUMAN}},
			{Name: "finish", Kind: &loopdv1.Tool_Builtin{Builtin: loopdv1.Builtin_BUILTIN_FINISH}},
			{Name: "echo", Effect: loopdv1.Effect_EFFECT_READ_ONLY, Kind: &loopdv1.Tool_Mcp{Mcp: &loopdv1.McpTool{Url: "https://mcp.example/", Tool: "echo", Hash: strings.Repeat("ab", 32)}}},
		},
		ToolRefs: []*loopdv1.ToolRef{{Tool: "tools/refund"}},
		Output:   &loopdv1.OutputContract{JsonSchema: object(map[string]any{"type": "object"})},
	}
	agent, err := w.agents.CreateAgent(t.Context(), &loopdv1.CreateAgentRequest{AgentId: "support", Agent: &loopdv1.Agent{Spec: spec}})
	if err != nil {
		t.Fatal(err)
	}
	want := &loopdv1.ToolRef{Tool: "tools/refund", Version: 1, Spec: refundTool()}
	if diff := cmp.Diff(want, agent.GetSpec().GetToolRefs()[0], protocmp.Transform()); diff != "" {
		t.Errorf("the reference (-want +got):\n%s", diff)
	}
	changed := refundTool()
	changed.Effect = loopdv1.Effect_EFFECT_IDEMPOTENT
	if _, err := w.tools.UpdateTool(t.Context(), &loopdv1.UpdateToolRequest{Tool: &loopdv1.RegisteredTool{Name: "tools/refund", Spec: changed}}); err != nil {
		t.Fatal(err)
	}

	run, err := w.runs.CreateRun(t.Context(), &loopdv1.CreateRunRequest{Agent: "agents/support", Input: "x"})
	if err != nil {
		t.Fatal(err)
	}
	stored, err := w.store.GetSpec(t.Context(), loop.RunRef{Tenant: tenant, ID: strings.TrimPrefix(run.GetName(), "runs/")})
	if err != nil {
		t.Fatal(err)
	}
	tools := map[string]loop.ToolSpec{}
	for _, tool := range stored.Definition.Tools {
		tools[tool.Name] = tool
	}
	if refund := tools["refund"]; refund.Version != 1 || refund.Effect != loop.SideEffect || refund.Approval != (loop.Approval{Mode: loop.ApprovalWhen, When: "args.amount > 100"}) {
		t.Errorf("refund is pinned as %+v", refund)
	}
	http := &loop.HTTPSpec{
		Method: "POST", URL: "https://shop.example/orders/{order}/refunds", Query: map[string]string{"dry": "{dry}"}, Body: "form",
		BodyTemplate: []byte(`{"order":"{order}"}`), Result: "/refund", SigningSecret: "SHOP_KEY",
	}
	if diff := cmp.Diff(http, tools["refund"].HTTP); diff != "" {
		t.Errorf("refund over HTTP (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&loop.MCPSpec{URL: "https://mcp.example/", Tool: "echo", Hash: strings.Repeat("ab", 32)}, tools["echo"].MCP); diff != "" {
		t.Errorf("echo over MCP (-want +got):\n%s", diff)
	}
	if tools["pick"].Client == nil || tools["pick"].Client.Wait != time.Minute || stored.Definition.OnDoubt != loop.DoubtTellsModel {
		t.Errorf("pick is %+v, in doubt %q", tools["pick"], stored.Definition.OnDoubt)
	}
	if ask := tools["ask"]; ask.Builtin != loop.BuiltinAskHuman || ask.Description != "Ask." || ask.Effect != loop.ReadOnly || !strings.Contains(string(ask.Schema), "question") {
		t.Errorf("ask is %+v", ask)
	}
	if finish := tools["finish"]; string(finish.Schema) != `{"type":"object"}` || finish.Description != "Ends." {
		t.Errorf("finish is %+v", finish)
	}

	// What was read can be sent back: the pinned definition is not the client's to say.
	again := agent.GetSpec()
	again.ToolRefs[0].Version, again.ToolRefs[0].Spec.Description = 0, "mine"
	next, err := w.agents.UpdateAgent(t.Context(), &loopdv1.UpdateAgentRequest{Agent: &loopdv1.Agent{Name: "agents/support", Spec: again}})
	if ref := next.GetSpec().GetToolRefs(); err != nil || ref[0].GetVersion() != 2 || ref[0].GetSpec().GetDescription() != "Pays back." {
		t.Errorf("the next version is %v, %v", next, err)
	}
}

// starter is an agent that starts others.
func starter(agents ...string) *loopdv1.AgentSpec {
	spec := &loopdv1.AgentSpec{Model: model}
	for _, agent := range agents {
		spec.Tools = append(spec.Tools, &loopdv1.Tool{
			Name: strings.TrimPrefix(agent, "agents/"), Effect: loopdv1.Effect_EFFECT_READ_ONLY,
			Kind: &loopdv1.Tool_Agent{Agent: &loopdv1.AgentTool{Agent: agent, HandOver: true}},
		})
	}
	return spec
}

func TestAgentsOfAgents(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("c", support())
	w.agent("b", starter("agents/c"))
	deep := starter("agents/b")
	deep.Limits = &loopdv1.Limits{MaxChildDepth: proto.Int32(2)}
	w.agent("a", deep)
	w.rest(http.MethodPatch, "/v1/agents/c", `{"spec": {"model": "acme/large-1", "instructions": "New."}}`)

	run, err := w.runs.CreateRun(t.Context(), &loopdv1.CreateRunRequest{Agent: "agents/a", Input: "x", Labels: map[string]string{"case": "7"}})
	if err != nil {
		t.Fatal(err)
	}
	stored, err := w.store.GetSpec(t.Context(), loop.RunRef{Tenant: tenant, ID: strings.TrimPrefix(run.GetName(), "runs/")})
	if err != nil {
		t.Fatal(err)
	}
	b := stored.Definition.Tools[0].Child
	if b == nil || !b.HandOver || b.Spec.Agent != "agents/b" || b.Spec.AgentVersion != 1 || b.Spec.Limits.Iterations != loop.Defaults().Iterations {
		t.Fatalf("the first child is %+v", b)
	}
	if schema := string(stored.Definition.Tools[0].Schema); !strings.Contains(schema, `"required":["input"]`) {
		t.Errorf("an agent is called with %s", schema)
	}
	c := b.Spec.Definition.Tools[0].Child
	price, _ := prices(model)
	if c == nil || c.Spec.AgentVersion != 1 || c.Spec.Definition.Instructions != "Help." || len(c.Spec.Definition.Tools) != 2 || !cmp.Equal(c.Spec.Price, price) {
		t.Errorf("its child is %+v", c)
	}

	for name, c := range map[string]struct {
		method, path, body string
		field, way         string
	}{
		"a circle": {"PATCH", "/v1/agents/c", `{"spec": {"model": "acme/large-1", "limits": {"maxChildDepth": 2}, "tools": [{"name": "x", "client": {}}, {"name": "t", "agent": {"agent": "agents/b"}}]}}`,
			"agent.spec.tools[1].agent", "agents/c -> agents/b -> agents/c"},
		"itself": {"PATCH", "/v1/agents/c", `{"spec": {"model": "acme/large-1", "tools": [{"name": "t", "agent": {"agent": "agents/c"}}]}}`,
			"agent.spec.tools[0].agent", "agents/c -> agents/c"},
		"too deep": {"POST", "/v1/agents?agentId=d", `{"spec": {"model": "acme/large-1", "tools": [{"name": "t", "agent": {"agent": "agents/b"}}]}}`,
			"agent.spec.tools[0].agent", "agents/d -> agents/b -> agents/c"},
		"too deep for a run": {"POST", "/v1/runs", `{"agent": "agents/a", "input": "x", "limits": {"maxChildDepth": 1}}`,
			"agent.tools[0].agent", "agents/a -> agents/b -> agents/c"},
	} {
		resp, body := w.do(c.method, c.path, c.body)
		p := decode(t, body)
		if resp.StatusCode != http.StatusBadRequest || p["reason"] != "AGENT_NESTING_INVALID" || at(p, "metadata", "path") != c.way || at(p, "errors", "0", "field") != c.field {
			t.Errorf("%s answered %d %s", name, resp.StatusCode, body)
		}
	}

	w.rest(http.MethodPost, "/v1/agents/c:archive", "")
	resp, body := w.do(http.MethodPost, "/v1/runs", `{"agent": "agents/a", "input": "x"}`)
	if p := decode(t, body); resp.StatusCode != http.StatusConflict || p["reason"] != "AGENT_ARCHIVED" || at(p, "metadata", "agent") != "agents/c" {
		t.Errorf("a run with an archived agent below it answered %d %s", resp.StatusCode, body)
	}
}

// TestAWideTreeOfAgentsIsRefused: each definition is part of each run.
func TestAWideTreeOfAgentsIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.agent("leaf", &loopdv1.AgentSpec{Model: model})
	wide := &loopdv1.AgentSpec{Model: model}
	for range 33 {
		wide.Tools = append(wide.Tools, &loopdv1.Tool{
			Name: "t" + strings.Repeat("x", len(wide.GetTools())), Kind: &loopdv1.Tool_Agent{Agent: &loopdv1.AgentTool{Agent: "agents/leaf"}},
		})
	}
	_, err := w.agents.CreateAgent(t.Context(), &loopdv1.CreateAgentRequest{AgentId: "wide", Agent: &loopdv1.Agent{Spec: wide}})
	if err == nil || !strings.Contains(err.Error(), "32 agents") {
		t.Errorf("33 agents were answered with %v", err)
	}
}

func TestToolRefusals(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.tool("refund", refundTool())
	w.tool("old", refundTool())
	w.rest(http.MethodPost, "/v1/tools/old:archive", "")
	w.agent("gone", support())
	w.rest(http.MethodPost, "/v1/agents/gone:archive", "")

	const get, post = `"http": {"method": "GET", "url": "https://fine/"}`, `"http": {"method": "POST", "url": "https://fine/"}`
	tool := func(s string) string { return `{"spec": {` + s + `}}` }
	agent := func(s string) string { return `{"spec": {"model": "acme/large-1", ` + s + `}}` }
	tools := func(s string) string { return agent(`"tools": [` + s + `]`) }
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		reason             string
		field              string
		pointer            string // of the first error; empty: not checked
		says               string
	}{
		"no such tool":        {"GET", "/v1/tools/none", "", 404, "TOOL_NOT_FOUND", "", "", "tools/none"},
		"no such version":     {"GET", "/v1/tools/refund?version=9", "", 404, "TOOL_VERSION_NOT_FOUND", "", "", "version 9"},
		"id taken":            {"POST", "/v1/tools?toolId=refund", tool(`"name": "a", ` + get), 409, "TOOL_EXISTS", "", "", "tools/refund"},
		"update archived":     {"PATCH", "/v1/tools/old", tool(`"name": "a", ` + get), 409, "TOOL_ARCHIVED", "", "", "tools/old"},
		"update nothing":      {"PATCH", "/v1/tools/none", tool(`"name": "a", ` + get), 404, "TOOL_NOT_FOUND", "", "", "tools/none"},
		"two kinds":           {"POST", "/v1/tools?toolId=a", tool(`"name": "a", "client": {}, ` + get), 400, "BODY_INVALID", "", "", "oneof"},
		"no kind":             {"POST", "/v1/tools?toolId=a", tool(`"name": "a"`), 400, "FIELD_INVALID", "tool.spec.kind", "/spec/kind", ""},
		"forbidden host":      {"POST", "/v1/tools?toolId=a", tool(`"name": "a", "http": {"method": "GET", "url": "https://forbidden/"}`), 400, "FIELD_INVALID", "tool.spec.http.url", "/spec/http/url", "not allowed"},
		"irreversible never":  {"POST", "/v1/tools?toolId=a", tool(`"name": "a", "approval": {"mode": "APPROVAL_MODE_NEVER"}, ` + post), 400, "FIELD_INVALID", "tool.spec.approval.mode", "", "EFFECT_SIDE_EFFECT"},
		"irreversible if":     {"POST", "/v1/tools?toolId=a", tool(`"name": "a", "effect": "EFFECT_IRREVERSIBLE", "approval": {"mode": "APPROVAL_MODE_WHEN", "when": "args.a"}, ` + post), 400, "FIELD_INVALID", "tool.spec.approval.mode", "", "policy"},
		"rule that is none":   {"POST", "/v1/tools?toolId=a", tool(`"name": "a", "effect": "EFFECT_SIDE_EFFECT", "approval": {"mode": "APPROVAL_MODE_WHEN", "when": "amount >"}, ` + post), 400, "FIELD_INVALID", "tool.spec.approval.when", "/spec/approval/when", "undeclared"},
		"built-in schema":     {"POST", "/v1/tools?toolId=a", tool(`"name": "a", "inputSchema": {}, "builtin": "BUILTIN_WAIT"`), 400, "FIELD_INVALID", "tool.spec.input_schema", "", "loopd's own"},
		"built-in effect":     {"POST", "/v1/tools?toolId=a", tool(`"name": "a", "effect": "EFFECT_READ_ONLY", "builtin": "BUILTIN_WAIT"`), 400, "FIELD_INVALID", "tool.spec.effect", "", "loopd's own"},
		"built-in of none":    {"POST", "/v1/tools?toolId=a", tool(`"name": "a", "builtin": "BUILTIN_MEMORY_PUT"`), 400, "FIELD_INVALID", "tool.spec.builtin", "", "no memory"},
		"verifies itself":     {"POST", "/v1/tools?toolId=a", tool(`"name": "a", "verify": "a", ` + get), 400, "FIELD_INVALID", "tool.spec.verify", "", "its own calls"},
		"agent of none":       {"POST", "/v1/tools?toolId=a", tool(`"name": "a", "agent": {"agent": "agents/none"}`), 404, "AGENT_NOT_FOUND", "tool.spec.agent", "", "agents/none"},
		"archived agent":      {"POST", "/v1/tools?toolId=a", tool(`"name": "a", "agent": {"agent": "agents/gone"}`), 409, "AGENT_ARCHIVED", "tool.spec.agent", "", "agents/gone"},
		"reference of none":   {"POST", "/v1/agents?agentId=a", agent(`"toolRefs": [{"tool": "tools/refund"}, {"tool": "tools/none"}]`), 404, "TOOL_NOT_FOUND", "agent.spec.tool_refs[1].tool", "/spec/toolRefs/1/tool", "tools/none"},
		"reference too new":   {"POST", "/v1/agents?agentId=a", agent(`"toolRefs": [{"tool": "tools/refund", "version": 9}]`), 404, "TOOL_VERSION_NOT_FOUND", "agent.spec.tool_refs[0].tool", "", "version 9"},
		"archived reference":  {"POST", "/v1/agents?agentId=a", agent(`"toolRefs": [{"tool": "tools/old"}]`), 409, "TOOL_ARCHIVED", "agent.spec.tool_refs[0].tool", "", "tools/old"},
		"one name, two tools": {"POST", "/v1/agents?agentId=a", agent(`"tools": [{"name": "refund", "client": {}}], "toolRefs": [{"tool": "tools/refund"}]`), 400, "FIELD_INVALID", "agent.spec.tool_refs[0]", "", `agent.spec.tools[0] has the name "refund"`},
		"verifier of none":    {"POST", "/v1/agents?agentId=a", tools(`{"name": "a", "verify": "b", ` + post + `}`), 400, "FIELD_INVALID", "agent.spec.tools[0].verify", "", `no tool "b"`},
		"verifier that acts":  {"POST", "/v1/agents?agentId=a", tools(`{"name": "z", "verify": "b", ` + post + `}, {"name": "b", ` + post + `}`), 400, "FIELD_INVALID", "agent.spec.tools[0].verify", "", "EFFECT_READ_ONLY"},
		"verifier outside":    {"POST", "/v1/agents?agentId=a", tools(`{"name": "z", "verify": "b", ` + post + `}, {"name": "b", "effect": "EFFECT_READ_ONLY", "client": {}}`), 400, "FIELD_INVALID", "agent.spec.tools[0].verify", "", "HTTP or MCP"},
		"no document":         {"POST", "/v1/tools:importOpenApi", `{"document": "swagger"}`, 400, "FIELD_INVALID", "document", "", "openapi: is missing"},
		"MCP server away":     {"POST", "/v1/tools:listMcpTools", `{"url": "https://away/"}`, 502, "MCP_SERVER_FAILED", "", "", "connection refused"},
	} {
		resp, body := w.do(c.method, c.path, c.body)
		p := decode(t, body)
		if resp.StatusCode != c.status || p["reason"] != c.reason {
			t.Errorf("%s: answered %d %s\nwant %d %s", name, resp.StatusCode, body, c.status, c.reason)
		}
		if c.field != "" && at(p, "errors", "0", "field") != c.field {
			t.Errorf("%s: the first field is %v, want %s: %s", name, at(p, "errors", "0", "field"), c.field, body)
		}
		if c.pointer != "" && at(p, "errors", "0", "pointer") != c.pointer {
			t.Errorf("%s: the pointer is %v, want %s", name, at(p, "errors", "0", "pointer"), c.pointer)
		}
		if detail, _ := p["detail"].(string); !strings.Contains(detail, c.says) || detail == "" {
			t.Errorf("%s: the detail %q does not say %q", name, detail, c.says)
		}
	}
	if _, err := w.agents.CreateAgent(t.Context(), &loopdv1.CreateAgentRequest{AgentId: "fine", Agent: &loopdv1.Agent{Spec: &loopdv1.AgentSpec{
		Model: model, ToolRefs: []*loopdv1.ToolRef{{Tool: "tools/refund", Version: 1}},
		Tools: []*loopdv1.Tool{
			{Name: "pay", Effect: loopdv1.Effect_EFFECT_SIDE_EFFECT, Verify: "look", Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "POST", Url: "https://fine/"}}},
			{Name: "look", Effect: loopdv1.Effect_EFFECT_READ_ONLY, Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "GET", Url: "https://fine/"}}},
		},
	}}}); err != nil {
		t.Errorf("what is right was refused: %v", err)
	}
}

func TestImportOpenAPI(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const document = `{"document": "openapi: 3.1.0", "baseUrl": "https://shop.example", "prefix": "shop_"`
	proposed := w.rest(http.MethodPost, "/v1/tools:importOpenApi", document+`}`)
	if tools := proposed["tools"].([]any); len(tools) != 2 || at(proposed, "tools", "1", "name") != "tools/shop-payback" || at(proposed, "tools", "1", "version") != "0" ||
		at(proposed, "tools", "0", "spec", "http", "noDefaultQuery") != true || at(proposed, "tools", "1", "spec", "effect") != "EFFECT_IRREVERSIBLE" {
		t.Errorf("proposed %v", proposed)
	}
	if notes := proposed["notes"].([]any); len(notes) != 2 || notes[0] != "set the secret SHOP_TOKEN" || !strings.Contains(notes[1].(string), "shop_tooLong: not imported") {
		t.Errorf("the notes are %v", proposed["notes"])
	}
	if all := w.rest(http.MethodGet, "/v1/tools", ""); len(all["tools"].([]any)) != 0 {
		t.Errorf("a proposal created %v", all)
	}
	for i := range 2 {
		created := w.rest(http.MethodPost, "/v1/tools:importOpenApi", document+`, "create": true}`)
		if at(created, "tools", "1", "version") != "1" || len(created["notes"].([]any)) != 2+2*i {
			t.Errorf("import %d made %v", i+1, created)
		}
	}
	stored := w.rest(http.MethodGet, "/v1/tools/shop-payback", "")
	if at(stored, "spec", "http", "bodyTemplate", "order") != "{id}" || at(stored, "spec", "name") != "shop_payBack" {
		t.Errorf("stored %v", stored)
	}
	large := `{"document": "openapi: ` + strings.Repeat("x", 2<<20) + `"}`
	if resp, body := w.do(http.MethodPost, "/v1/tools:importOpenApi", large); resp.StatusCode != http.StatusOK {
		t.Errorf("a large document was answered %d %s", resp.StatusCode, body)
	}
}

func TestListMCPTools(t *testing.T) {
	t.Parallel()
	w := setup(t)
	got, err := w.tools.ListMcpTools(t.Context(), &loopdv1.ListMcpToolsRequest{Url: "https://mcp.example/", Headers: map[string]string{"A": "${secret:B}"}})
	if err != nil {
		t.Fatal(err)
	}
	hash := strings.Repeat("ab", 32)
	want := &loopdv1.McpDefinition{
		Hash: hash, SuggestedEffect: loopdv1.Effect_EFFECT_READ_ONLY, Untrusted: true, Annotations: object(map[string]any{"readOnlyHint": true}),
		Tool: &loopdv1.Tool{
			Name: "echo_v1", Description: "Echoes.", InputSchema: object(map[string]any{"type": "object"}),
			Kind: &loopdv1.Tool_Mcp{Mcp: &loopdv1.McpTool{Url: "https://mcp.example/", Headers: map[string]string{"A": "${secret:B}"}, Tool: "echo/v1", Hash: hash}},
		},
	}
	if diff := cmp.Diff([]*loopdv1.McpDefinition{want}, got.GetDefinitions(), protocmp.Transform()); diff != "" {
		t.Errorf("definitions (-want +got):\n%s", diff)
	}
	if name := w.tool("echo", got.GetDefinitions()[0].GetTool()); name != "tools/echo" {
		t.Errorf("the proposal became %s", name)
	}
}
