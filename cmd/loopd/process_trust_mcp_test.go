package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

const paysOverMCP = `
models:
  payer:
    answers:
      - calls: [{name: mcp-side-effect, args: {n: 1}}]
      - text: "done"
  both:
    answers:
      - calls: [{name: look, args: {n: 1}}, {name: pay, args: {n: 2}}]
      - text: "done"
`

// A tool is called while its definition is the one that somebody accepted. When the
// server changes it, the tool is in quarantine until somebody accepts that one.
func TestChangedDefinitionIsQuarantined(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newShop(t)
	first := start(t, db, paysOverMCP)
	register := func(p *process) {
		t.Helper()
		var listed loopdv1.ListMcpToolsResponse
		p.ask(http.MethodPost, "/v1/tools:listMcpTools", fmt.Sprintf(`{"url": %q}`, tools.URL+"/mcp"), &listed)
		for _, d := range listed.GetDefinitions() {
			if d.GetTool().GetName() != "mcp-side-effect" {
				continue
			}
			d.GetTool().Effect = sideEffect
			spec, err := protojson.Marshal(d.GetTool())
			if err != nil {
				t.Fatal(err)
			}
			p.ask(http.MethodPatch, "/v1/tools/pay?allow_missing=true", `{"spec": `+string(spec)+`}`, &loopdv1.RegisteredTool{})
		}
		p.define("payer", &loopdv1.AgentSpec{ToolRefs: []*loopdv1.ToolRef{{Tool: "tools/pay"}}})
	}
	register(first)
	first.ended(first.start("payer").GetName(), succeeded)
	tools.await(t, "mcp-side-effect", 1)
	first.kill()
	tools.redefine("acts, and sends what it reads to somebody else")

	second := start(t, db, paysOverMCP)
	run := second.start("payer").GetName()
	second.ended(run, succeeded)
	if result := second.results(run)["c1-1"]; !strings.Contains(result, "quarantine") {
		t.Errorf("the model was told %q", result)
	}
	if rows := tools.of("mcp-side-effect"); len(rows) != 1 {
		t.Errorf("the tool in quarantine was called: %v", rows)
	}
	register(second)
	run = second.start("payer").GetName()
	second.ended(run, succeeded)
	if rows := tools.of("mcp-side-effect"); len(rows) != 2 || rows[1].key == rows[0].key {
		t.Errorf("the ledger has %v, want a second call with a key of its own", rows)
	}
}

// The MCP server vanishes in the middle of calls: what reads has failed and the
// model may go on; what pays is in doubt. Neither is sent twice by itself.
func TestMCPServerVanishes(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newShop(t)
	p := start(t, db, paysOverMCP)
	tools.vanish()
	p.define("both", &loopdv1.AgentSpec{Tools: []*loopdv1.Tool{
		tools.tool("look", "mcp-read-only", readOnly), tools.tool("pay", "mcp-side-effect", sideEffect),
	}})
	run := p.start("both").GetName()
	call := p.doubted(run)
	if !strings.HasSuffix(call.GetName(), "c1-2") {
		t.Errorf("in doubt is %s, want the payment", call.GetName())
	}
	var look *loopdv1.ToolCall
	for _, c := range p.calls(run) {
		if strings.HasSuffix(c.GetName(), "c1-1") {
			look = c
		}
	}
	if look.GetState() != loopdv1.ToolCallState_TOOL_CALL_STATE_FAILED || look.GetOutcome() != "retryable" {
		t.Errorf("the read is %s, %q: %s", look.GetState(), look.GetOutcome(), look.GetResult())
	}
	p.resolve(call.GetName(), "NOT_EXECUTED")
	p.ended(run, succeeded)
	for _, name := range []string{"mcp-read-only", "mcp-side-effect"} {
		if rows := tools.of(name); len(rows) != 1 {
			t.Errorf("%s: the ledger has %v", name, rows)
		}
	}
}
