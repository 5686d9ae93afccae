package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

const supportYAML = `
name: support
display_name: Support
spec:
  model: scripted/demo
  instructions: |
    Answer questions about orders.
    Be short.
  tools:
    - name: get_order_status
      description: Reads an order.
      effect: EFFECT_READ_ONLY
      timeout: 5s
      http: {method: GET, url: "http://shop.internal/status"}
    - name: issue_refund
      http: {method: POST, url: "http://shop.internal/refund"}
`

// supportAgent is what supportYAML says.
func supportAgent() *loopdv1.Agent {
	http := func(method, url string) *loopdv1.Tool_Http {
		return &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: method, Url: url}}
	}
	return &loopdv1.Agent{
		Name: "agents/support", DisplayName: "Support",
		Spec: &loopdv1.AgentSpec{
			Model: "scripted/demo", Instructions: "Answer questions about orders.\nBe short.\n",
			Tools: []*loopdv1.Tool{
				{
					Name: "get_order_status", Description: "Reads an order.", Effect: loopdv1.Effect_EFFECT_READ_ONLY,
					Timeout: durationpb.New(5 * time.Second), Kind: http("GET", "http://shop.internal/status"),
				},
				{Name: "issue_refund", Kind: http("POST", "http://shop.internal/refund")},
			},
		},
	}
}

func storedAgent() *loopdv1.Agent {
	agent := supportAgent()
	agent.Version, agent.CreateTime, agent.UpdateTime = 3, stamp(0), stamp(time.Hour)
	return agent
}

func TestAgentApply(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "support.yaml")
	if err := os.WriteFile(file, []byte(supportYAML), 0o600); err != nil {
		t.Fatal(err)
	}
	term := setup(t)
	term.server.agent = storedAgent()
	term.wantCode(t, 0, term.loopd("agent", "apply", "-f", file))
	term.wantRequest(t, &loopdv1.UpdateAgentRequest{Agent: supportAgent(), AllowMissing: true})
	if got := term.stdout.String(); got != "agents/support version 3\n" {
		t.Errorf("stdout %q", got)
	}
}

func TestAgentApplyRefusesFiles(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, want string }{
		"unknown member": {"name: support\nspce: {}\n", "spce"},
		"no name":        {"spec: {model: scripted/demo}\n", "name is empty"},
		"two documents":  {"name: a\n---\nname: b\n", "more than one document"},
		"not YAML":       {"name: [", "-:"},
		"twice":          {"name: a\nname: b\n", "already defined"},
		"wrong effect":   {"name: a\nspec: {tools: [{name: x, effect: HARMLESS}]}\n", "HARMLESS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.stdin = test.text
			term.wantCode(t, exitUsage, term.loopd("agent", "apply", "-f", "-"))
			if !strings.Contains(term.stderr.String(), test.want) || term.server.request != nil {
				t.Errorf("stderr %q does not say %q, or the server was asked", term.stderr.String(), test.want)
			}
		})
	}
}

func TestAgentShow(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.agent = storedAgent()
	for _, tool := range kindsOfTools()[:4] {
		ref := &loopdv1.ToolRef{Tool: tool.GetName(), Version: tool.GetVersion(), Spec: tool.GetSpec()}
		term.server.agent.Spec.ToolRefs = append(term.server.agent.Spec.ToolRefs, ref)
	}
	term.wantCode(t, 0, term.loopd("agent", "show", "support", "--version", "3"))
	version := int64(3)
	term.wantRequest(t, &loopdv1.GetAgentRequest{Name: "agents/support", Version: &version})
	golden(t, "agent.txt", term.stdout.String())
}

func TestAgentList(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.agent = storedAgent()
	term.wantCode(t, 0, term.loopd("agent", "list", "--archived"))
	term.wantRequest(t, &loopdv1.ListAgentsRequest{PageSize: pageSize, ShowArchived: true})
	golden(t, "agents.txt", term.stdout.String())
}
