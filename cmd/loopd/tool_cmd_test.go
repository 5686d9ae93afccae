package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func (f *fakeServer) GetTool(_ context.Context, req *loopdv1.GetToolRequest) (*loopdv1.RegisteredTool, error) {
	return f.tool, f.got(req)
}

// ListTools serves the tool on a page of its own, then all kinds of others.
func (f *fakeServer) ListTools(_ context.Context, req *loopdv1.ListToolsRequest) (*loopdv1.ListToolsResponse, error) {
	if req.GetPageToken() == "" {
		return &loopdv1.ListToolsResponse{Tools: []*loopdv1.RegisteredTool{f.tool}, NextPageToken: "2"}, f.got(req)
	}
	return &loopdv1.ListToolsResponse{Tools: kindsOfTools()}, f.got(req)
}

func (f *fakeServer) UpdateTool(_ context.Context, req *loopdv1.UpdateToolRequest) (*loopdv1.RegisteredTool, error) {
	return f.tool, f.got(req)
}

func (f *fakeServer) ArchiveTool(_ context.Context, req *loopdv1.ArchiveToolRequest) (*loopdv1.RegisteredTool, error) {
	return f.tool, f.got(req)
}

// ImportOpenApi has the name that its proto gives it.
//
//nolint:revive // generated code asks for this name
func (f *fakeServer) ImportOpenApi(_ context.Context, req *loopdv1.ImportOpenApiRequest) (*loopdv1.ImportOpenApiResponse, error) {
	return f.imported, f.got(req)
}

func (f *fakeServer) ListMcpTools(_ context.Context, req *loopdv1.ListMcpToolsRequest) (*loopdv1.ListMcpToolsResponse, error) {
	return f.mcp, f.got(req)
}

// object is a schema with one text.
func object(t *testing.T, member string) *structpb.Struct {
	t.Helper()
	schema, err := structpb.NewStruct(map[string]any{
		"type": "object", "properties": map[string]any{member: map[string]any{"type": "string"}}, "required": []any{member},
	})
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// mcpTool is a tool of an MCP server, pinned to what the server once said.
func mcpTool(t *testing.T) *loopdv1.RegisteredTool {
	t.Helper()
	return &loopdv1.RegisteredTool{
		Name: "tools/search", DisplayName: "Search", Version: 4, CreateTime: stamp(0), UpdateTime: stamp(time.Hour),
		Spec: &loopdv1.Tool{
			Name: "search", Description: "Finds orders.", Effect: loopdv1.Effect_EFFECT_SIDE_EFFECT, Verify: "find_order", InputSchema: object(t, "query"),
			Approval: &loopdv1.ApprovalRule{Mode: loopdv1.ApprovalMode_APPROVAL_MODE_WHEN, When: "args.amount > 100"},
			Kind: &loopdv1.Tool_Mcp{Mcp: &loopdv1.McpTool{
				Url: "https://mcp.example", Tool: "search", Hash: strings.Repeat("ab", 32), Headers: map[string]string{"Authorization": "Bearer ${secret:CRM}"},
			}},
		},
	}
}

// kindsOfTools has a tool of each kind.
func kindsOfTools() []*loopdv1.RegisteredTool {
	return []*loopdv1.RegisteredTool{
		{Name: "tools/refund", Version: 1, Spec: &loopdv1.Tool{Name: "refund", Kind: &loopdv1.Tool_Http{Http: &loopdv1.HttpTool{Method: "POST", Url: "https://shop.example/refunds"}}}},
		{
			Name: "tools/screen", Version: 2, ArchiveTime: stamp(0),
			Spec: &loopdv1.Tool{Name: "screen", Effect: loopdv1.Effect_EFFECT_READ_ONLY, Kind: &loopdv1.Tool_Client{Client: &loopdv1.ClientTool{}}},
		},
		{
			Name: "tools/research", Version: 1,
			Spec: &loopdv1.Tool{
				Name: "research", Effect: loopdv1.Effect_EFFECT_READ_ONLY, Approval: &loopdv1.ApprovalRule{Mode: loopdv1.ApprovalMode_APPROVAL_MODE_ALWAYS},
				Kind: &loopdv1.Tool_Agent{Agent: &loopdv1.AgentTool{Agent: "agents/research", Version: 3, HandOver: true}},
			},
		},
		{Name: "tools/ask", Version: 1, Spec: &loopdv1.Tool{Name: "ask", Kind: &loopdv1.Tool_Builtin{Builtin: loopdv1.Builtin_BUILTIN_ASK_HUMAN}}},
		{Name: "tools/proposed", Spec: &loopdv1.Tool{Name: "newer\x1b[2J"}},
	}
}

// definitions are what the server of mcpTool now says.
func definitions(t *testing.T) *loopdv1.ListMcpToolsResponse {
	t.Helper()
	tool := func(name, description string) *loopdv1.Tool {
		return &loopdv1.Tool{
			Name: name, Description: description, InputSchema: object(t, "text"),
			Kind: &loopdv1.Tool_Mcp{Mcp: &loopdv1.McpTool{Url: "https://mcp.example", Tool: name}},
		}
	}
	return &loopdv1.ListMcpToolsResponse{Definitions: []*loopdv1.McpDefinition{
		{Tool: tool("delete", "Deletes.\u202e"), Hash: strings.Repeat("ef", 32), SuggestedEffect: loopdv1.Effect_EFFECT_IRREVERSIBLE},
		{Tool: tool("search", "Finds all orders."), Hash: strings.Repeat("cd", 32), SuggestedEffect: loopdv1.Effect_EFFECT_READ_ONLY, Untrusted: true},
	}}
}

func TestToolApply(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.tool = mcpTool(t)
	term.stdin = `
name: search
display_name: Search
spec:
  name: search
  effect: EFFECT_READ_ONLY
  mcp: {url: "https://mcp.example", tool: search}
`
	term.wantCode(t, 0, term.loopd("tool", "apply", "-f", "-"))
	term.wantRequest(t, &loopdv1.UpdateToolRequest{AllowMissing: true, Tool: &loopdv1.RegisteredTool{
		Name: "tools/search", DisplayName: "Search",
		Spec: &loopdv1.Tool{
			Name: "search", Effect: loopdv1.Effect_EFFECT_READ_ONLY,
			Kind: &loopdv1.Tool_Mcp{Mcp: &loopdv1.McpTool{Url: "https://mcp.example", Tool: "search"}},
		},
	}})
	if got := term.stdout.String(); got != "tools/search version 4\n" {
		t.Errorf("stdout %q", got)
	}
	term.stdin = "spec: {name: search}"
	term.wantCode(t, exitUsage, term.loopd("tool", "apply", "-f", "-"))
}

func TestToolListAndShow(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.tool = mcpTool(t)
	term.wantCode(t, 0, term.loopd("tool", "list", "--archived"))
	term.wantRequest(t, &loopdv1.ListToolsRequest{PageSize: 200, PageToken: "2", ShowArchived: true})
	golden(t, "tools.txt", term.stdout.String())

	term.wantCode(t, 0, term.loopd("tool", "show", "search", "--version", "4"))
	term.wantRequest(t, &loopdv1.GetToolRequest{Name: "tools/search", Version: proto.Int64(4)})
	golden(t, "tool.txt", term.stdout.String())
}

func TestArchiving(t *testing.T) {
	t.Parallel()
	tool, policy := &loopdv1.ArchiveToolRequest{Name: "tools/search"}, &loopdv1.ArchivePolicyRequest{Name: "policies/small"}
	for _, test := range []struct {
		line, stdin string
		code        int
		want        proto.Message
	}{
		{"tool archive search", "y\n", 0, tool},
		{"tool archive tools/search --yes", "", 0, tool},
		{"tool archive search", "\n", exitOther, nil},
		{"policy archive small", "yes\n", 0, policy},
		{"policy archive small --yes", "", 0, policy},
		{"policy archive small", "", exitOther, nil},
	} {
		t.Run(test.line+" "+test.stdin, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.server.tool, term.server.policy = mcpTool(t), smallRefunds()
			term.stdin = test.stdin
			term.wantCode(t, test.code, term.loopd(strings.Fields(test.line)...))
			term.wantRequest(t, test.want)
		})
	}
}

func TestToolImportOpenAPI(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shop.yaml")
	if err := os.WriteFile(file, []byte("openapi: 3.1.0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	term := setup(t)
	term.server.imported = &loopdv1.ImportOpenApiResponse{Tools: kindsOfTools()[4:], Notes: []string{"/paths/x: no operation\x1b[2J"}}
	term.wantCode(t, 0, term.loopd("tool", "import-openapi", file, "--prefix", "shop_"))
	term.wantRequest(t, &loopdv1.ImportOpenApiRequest{Document: "openapi: 3.1.0\n", Prefix: "shop_"})
	golden(t, "import.txt", term.stdout.String()+term.stderr.String())

	term.stdin = "openapi: 3.0.0\n"
	term.wantCode(t, 0, term.loopd("tool", "import-openapi", "-", "--create", "--base-url", "https://shop.example"))
	term.wantRequest(t, &loopdv1.ImportOpenApiRequest{Document: "openapi: 3.0.0\n", BaseUrl: "https://shop.example", Create: true})
	if strings.Contains(term.stderr.String(), "nothing was created") {
		t.Errorf("stderr %q", term.stderr.String())
	}
}

func TestToolListMCP(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.mcp = definitions(t)
	term.wantCode(t, 0, term.loopd("tool", "list-mcp", "https://mcp.example", "--header", "Authorization: Bearer ${secret:CRM}", "--header", "X-Tenant:1"))
	term.wantRequest(t, &loopdv1.ListMcpToolsRequest{
		Url: "https://mcp.example", Headers: map[string]string{"Authorization": "Bearer ${secret:CRM}", "X-Tenant": "1"},
	})
	golden(t, "mcp.txt", term.stdout.String())
}

func TestToolAccept(t *testing.T) {
	t.Parallel()
	accepted := func(description string) *loopdv1.UpdateToolRequest {
		spec := mcpTool(t).GetSpec()
		spec.Description, spec.InputSchema, spec.GetMcp().Hash = description, object(t, "text"), strings.Repeat("cd", 32)
		return &loopdv1.UpdateToolRequest{
			Tool: &loopdv1.RegisteredTool{Name: "tools/search", Spec: spec}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"spec"}},
		}
	}
	listed := &loopdv1.ListMcpToolsRequest{Url: "https://mcp.example", Headers: mcpTool(t).GetSpec().GetMcp().GetHeaders()}
	for _, test := range []struct {
		name, stdin string
		flags       []string
		code        int
		want        proto.Message
	}{
		{"asked", "y\n", nil, 0, accepted("Finds all orders.")},
		{"keeps the description", "y\n", []string{"--keep-description"}, 0, accepted("Finds orders.")},
		{"rather not", "n\n", nil, exitOther, listed},
		{"by hash", "", []string{"--hash", strings.Repeat("cd", 32)}, 0, accepted("Finds all orders.")},
		{"by a hash that is not shown any more", "", []string{"--hash", strings.Repeat("00", 32)}, exitConflict, listed},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.server.tool, term.server.mcp = mcpTool(t), definitions(t)
			term.stdin = test.stdin
			term.wantCode(t, test.code, term.loopd(append([]string{"tool", "accept", "search"}, test.flags...)...))
			term.wantRequest(t, test.want)
			if test.name == "asked" {
				golden(t, "accept.txt", term.stderr.String())
			}
		})
	}
}

func TestToolAcceptNothing(t *testing.T) {
	t.Parallel()
	same, gone, http := mcpTool(t), mcpTool(t), kindsOfTools()[0]
	same.GetSpec().GetMcp().Hash = strings.Repeat("cd", 32)
	gone.GetSpec().GetMcp().Tool = "vanished"
	for _, test := range []struct {
		tool *loopdv1.RegisteredTool
		code int
		want string
	}{
		{same, 0, "nothing to accept: the server shows the definition that was accepted\n"},
		{gone, exitNotFound, "loopd: https://mcp.example has no tool \"vanished\" any more: loopd tool list-mcp https://mcp.example shows what it has\n"},
		{http, exitConflict, "loopd: tools/refund is no tool of an MCP server: there is nothing to accept\n"},
	} {
		term := setup(t)
		term.server.tool, term.server.mcp = test.tool, definitions(t)
		term.wantCode(t, test.code, term.loopd("tool", "accept", "x"))
		if term.stderr.String() != test.want {
			t.Errorf("stderr %q, want %q", term.stderr.String(), test.want)
		}
		if _, changed := term.server.request.(*loopdv1.UpdateToolRequest); changed {
			t.Error("the tool was changed")
		}
	}
}

func TestToolRefusals(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.err = refusal(t, codes.FailedPrecondition, "the tool is archived", "TOOL_ARCHIVED")
	term.wantCode(t, exitConflict, term.loopd("tool", "archive", "search", "--yes"))
	term.server.err = refusal(t, codes.NotFound, "there is no such tool", "TOOL_NOT_FOUND")
	term.wantCode(t, exitNotFound, term.loopd("tool", "show", "search"))
}
