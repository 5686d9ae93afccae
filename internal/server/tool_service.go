package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// toolService keeps tools under names. Where definitions come from elsewhere is in
// tool_import.go.
type toolService struct {
	loopdv1.UnsafeToolServiceServer // a method that is missing does not compile

	s *Server
}

// CreateTool creates a tool with version 1.
func (t *toolService) CreateTool(ctx context.Context, req *loopdv1.CreateToolRequest) (*loopdv1.RegisteredTool, error) {
	idem, err := idempotency(ctx, "CreateTool", req)
	if err != nil {
		return nil, err
	}
	tool, err := t.draft(ctx, req.GetToolId(), req.GetTool())
	if err != nil {
		return nil, err
	}
	tool, err = t.s.store.CreateTool(ctx, tool, idem)
	return t.answer(tool, req.GetToolId(), err)
}

// GetTool reads a tool at a version.
func (t *toolService) GetTool(ctx context.Context, req *loopdv1.GetToolRequest) (*loopdv1.RegisteredTool, error) {
	tool, err := t.s.tool(ctx, req.GetName(), req.GetVersion())
	if err != nil {
		return nil, err
	}
	return registeredProto(tool)
}

// ListTools lists tools by name.
func (t *toolService) ListTools(ctx context.Context, req *loopdv1.ListToolsRequest) (*loopdv1.ListToolsResponse, error) {
	after, err := cursorOf(req)
	if err != nil {
		return nil, err
	}
	size := pageSize(req.GetPageSize())
	tools, err := t.s.store.ListTools(ctx, tenant(ctx), after, size+1, req.GetShowArchived())
	if err != nil {
		return nil, err
	}
	resp := &loopdv1.ListToolsResponse{}
	if len(tools) > size {
		tools = tools[:size]
		resp.NextPageToken = pageToken(req, tools[size-1].ID)
	}
	for _, tool := range tools {
		shown, err := registeredProto(tool)
		if err != nil {
			return nil, err
		}
		resp.Tools = append(resp.Tools, shown)
	}
	return resp, nil
}

// UpdateTool makes a tool's next version of what the mask takes from the request and
// what the newest version has.
func (t *toolService) UpdateTool(ctx context.Context, req *loopdv1.UpdateToolRequest) (*loopdv1.RegisteredTool, error) {
	idem, err := idempotency(ctx, "UpdateTool", req)
	if err != nil {
		return nil, err
	}
	id := toolID(req.GetTool().GetName())
	tool, err := t.draft(ctx, id, req.GetTool())
	if err != nil {
		return nil, err
	}
	newest, err := t.s.store.GetTool(ctx, tenant(ctx), id, 0)
	if errors.Is(err, loop.ErrNotFound) && req.GetAllowMissing() {
		tool, err = t.s.store.CreateTool(ctx, tool, idem)
		return t.answer(tool, id, err)
	}
	if err != nil {
		return t.answer(tool, id, err)
	}
	takes := maskOf(req.GetUpdateMask())
	if takes("display_name") {
		newest.DisplayName = tool.DisplayName
	}
	if takes("labels") {
		newest.Labels = tool.Labels
	}
	if takes("spec") {
		newest.Spec = tool.Spec
	}
	tool, err = t.s.store.UpdateTool(ctx, newest, idem)
	return t.answer(tool, id, err)
}

// ArchiveTool retires a tool.
func (t *toolService) ArchiveTool(ctx context.Context, req *loopdv1.ArchiveToolRequest) (*loopdv1.RegisteredTool, error) {
	idem, err := idempotency(ctx, "ArchiveTool", req)
	if err != nil {
		return nil, err
	}
	id := toolID(req.GetName())
	tool, err := t.s.store.ArchiveTool(ctx, tenant(ctx), id, idem)
	return t.answer(tool, id, err)
}

// answer shows a tool that was changed, or says what stood in the way.
func (t *toolService) answer(tool postgres.Tool, id string, err error) (*loopdv1.RegisteredTool, error) {
	if err != nil {
		t.s.countMismatch(err)
		return nil, named(err, loopdv1.ErrorReason_ERROR_REASON_TOOL_NOT_FOUND, "tool", toolName(id))
	}
	return registeredProto(tool)
}

// tool reads a tool by its name, at a version or, for 0, at the newest.
func (s *Server) tool(ctx context.Context, name string, version int64) (postgres.Tool, error) {
	tool, err := s.store.GetTool(ctx, tenant(ctx), toolID(name), version)
	if errors.Is(err, postgres.ErrToolVersionNotFound) {
		return tool, refuse(loopdv1.ErrorReason_ERROR_REASON_TOOL_VERSION_NOT_FOUND,
			fmt.Sprintf("%s has no version %d: leave the version out for the newest", name, version),
			"tool", name, "version", strconv.FormatInt(version, 10))
	}
	return tool, named(err, loopdv1.ErrorReason_ERROR_REASON_TOOL_NOT_FOUND, "tool", name)
}

// draft checks what a request says of a tool, and makes of it what is stored.
func (t *toolService) draft(ctx context.Context, id string, tool *loopdv1.RegisteredTool) (postgres.Tool, error) {
	const path = "tool.spec"
	spec := proto.CloneOf(tool.GetSpec())
	if err := t.s.pinAgent(ctx, path, spec); err != nil {
		return postgres.Tool{}, err
	}
	read, err := t.s.toolOf(path, spec, nil)
	if err != nil {
		return postgres.Tool{}, err
	}
	if faults := t.s.checkTool(path, read); len(faults) > 0 {
		return postgres.Tool{}, invalid(faults...)
	}
	encoded, err := encode(spec)
	if err != nil {
		return postgres.Tool{}, err
	}
	name := tool.GetDisplayName()
	if name == "" {
		name = id
	}
	return postgres.Tool{Tenant: tenant(ctx), ID: id, DisplayName: name, Labels: tool.GetLabels(), Spec: encoded}, nil
}

// decodeTool reads a tool's definition as encode wrote it, also as a newer loopd did.
func decodeTool(stored []byte) (*loopdv1.Tool, error) {
	spec := &loopdv1.Tool{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(stored, spec); err != nil {
		return nil, fmt.Errorf("decode a tool's definition: %w", err)
	}
	return spec, nil
}

// registeredProto shows a registered tool.
func registeredProto(t postgres.Tool) (*loopdv1.RegisteredTool, error) {
	spec, err := decodeTool(t.Spec)
	if err != nil {
		return nil, fmt.Errorf("tool %s, version %d: %w", t.ID, t.Version, err)
	}
	return &loopdv1.RegisteredTool{
		Name: toolName(t.ID), DisplayName: t.DisplayName, Version: t.Version, Labels: t.Labels, Spec: spec,
		CreateTime: timeProto(t.CreatedAt), UpdateTime: timeProto(t.UpdatedAt), ArchiveTime: timeProto(t.ArchivedAt),
	}, nil
}

// idFor makes a tool's id of its name for models: "get_Order" becomes "get-order". Ids
// that are taken are numbered.
func idFor(name string, taken map[string]bool) string {
	const longest = 63
	var b strings.Builder
	for _, r := range strings.ToLower(name) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			_, _ = b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			_ = b.WriteByte('-')
		}
	}
	base := b.String()
	if base == "" || base[0] < 'a' {
		base = "tool-" + base
	}
	base = strings.TrimRight(base[:min(len(base), longest)], "-")
	id := base
	for n := 2; taken[id]; n++ {
		suffix := "-" + strconv.Itoa(n)
		id = strings.TrimRight(base[:min(len(base), longest-len(suffix))], "-") + suffix
	}
	taken[id] = true
	return id
}
