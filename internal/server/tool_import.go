package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// MCPTool is what an MCP server says of one of its tools, as ListMCPTools brings it.
type MCPTool struct {
	// Tool is a proposal: its name fits what models take, MCP has the server, the
	// tool's name there and the hash of the definition. Its effect is not used: nobody
	// has declared one yet.
	Tool loop.ToolSpec
	// Suggested is the effect that the annotations claim, Untrusted whether it is looser
	// than IRREVERSIBLE on nothing but the server's word.
	Suggested loop.Effect
	Untrusted bool

	OutputSchema, Annotations json.RawMessage // JSON objects; nil: none
}

// ImportOpenApi makes tools of an OpenAPI document, and registers them if asked to.
//
//nolint:revive // its name is the API's
func (t *toolService) ImportOpenApi(ctx context.Context, req *loopdv1.ImportOpenApiRequest) (*loopdv1.ImportOpenApiResponse, error) {
	if _, err := requestID(ctx, req.GetRequestId()); err != nil {
		return nil, err
	}
	specs, notes, err := t.s.cfg.ImportOpenAPI([]byte(req.GetDocument()), req.GetBaseUrl(), req.GetPrefix())
	if err != nil {
		return nil, invalid(fieldError{"document", err.Error()})
	}
	resp := &loopdv1.ImportOpenApiResponse{Notes: notes}
	ids := make(map[string]bool, len(specs))
	for _, spec := range specs {
		def, err := toolProto(spec)
		if err != nil {
			return nil, err
		}
		id := idFor(spec.Name, ids)
		tool := &loopdv1.RegisteredTool{Name: toolName(id), DisplayName: id, Spec: def}
		// A tool that breaks a rule of the API is left out: what is proposed can be created.
		if err := t.s.validate(&loopdv1.CreateToolRequest{ToolId: id, Tool: tool}); err != nil {
			resp.Notes = append(resp.Notes, fmt.Sprintf("%s: not imported: %v", spec.Name, err))
			continue
		}
		if req.GetCreate() {
			var note string
			if tool, note, err = t.register(ctx, id, tool); err != nil {
				return nil, err
			}
			if note != "" {
				resp.Notes = append(resp.Notes, note)
			}
		}
		resp.Tools = append(resp.Tools, tool)
	}
	return resp, nil
}

// register creates a tool, unless its id is taken: then the note says so.
func (t *toolService) register(ctx context.Context, id string, tool *loopdv1.RegisteredTool) (registered *loopdv1.RegisteredTool, note string, err error) {
	draft, err := t.draft(ctx, id, tool)
	if err != nil {
		return nil, "", err
	}
	created, err := t.s.store.CreateTool(ctx, draft, postgres.Idempotency{})
	if errors.Is(err, postgres.ErrToolExists) {
		note = toolName(id) + " existed already: it is left as it is"
		created, err = t.s.store.GetTool(ctx, tenant(ctx), id, 0)
	}
	registered, err = t.answer(created, id, err)
	return registered, note, err
}

// ListMcpTools asks an MCP server for its tools.
func (t *toolService) ListMcpTools(ctx context.Context, req *loopdv1.ListMcpToolsRequest) (*loopdv1.ListMcpToolsResponse, error) {
	tools, err := t.s.cfg.ListMCPTools(ctx, loop.MCPSpec{URL: req.GetUrl(), Headers: req.GetHeaders()})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", refuse(loopdv1.ErrorReason_ERROR_REASON_MCP_SERVER_FAILED,
			fmt.Sprintf("the MCP server at %s did not tell its tools: %v", req.GetUrl(), err), "url", req.GetUrl()), err)
	}
	resp := &loopdv1.ListMcpToolsResponse{}
	for _, tool := range tools {
		def, err := definitionProto(tool)
		if err != nil {
			return nil, err
		}
		resp.Definitions = append(resp.Definitions, def)
	}
	return resp, nil
}

func definitionProto(tool MCPTool) (*loopdv1.McpDefinition, error) {
	proposal, err := toolProto(tool.Tool)
	if err != nil {
		return nil, err
	}
	proposal.Effect = loopdv1.Effect_EFFECT_UNSPECIFIED
	def := &loopdv1.McpDefinition{
		Tool: proposal, Hash: proposal.GetMcp().GetHash(), SuggestedEffect: effectProto(tool.Suggested), Untrusted: tool.Untrusted,
	}
	if def.OutputSchema, err = structOf(tool.OutputSchema); err != nil {
		return nil, fmt.Errorf("MCP tool %s: read its output schema: %w", tool.Tool.Name, err)
	}
	if def.Annotations, err = structOf(tool.Annotations); err != nil {
		return nil, fmt.Errorf("MCP tool %s: read its annotations: %w", tool.Tool.Name, err)
	}
	return def, nil
}
