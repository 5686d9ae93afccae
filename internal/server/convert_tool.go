package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// What a tool gets that does not say otherwise; the protos publish these.
const (
	defaultToolTimeout = 30 * time.Second
	defaultResultBytes = 64 << 10
	maxSchemaBytes     = 64 << 10
)

// anyObject is the schema of arguments of a tool that has none.
const anyObject = `{"type":"object"}`

// askAgent is the same for agents: loop gives a child run the argument "input".
const askAgent = `{"type":"object","properties":{"input":{"type":"string","description":"What the agent is asked, with all that it must know."}},"required":["input"],"additionalProperties":false}`

// toolOf reads a tool's definition; path names it in the request, for errors. Of an
// agent it has the name and the version, for embed to fill in. outputSchema is that
// of the agent which has the tool, nil for none.
func (s *Server) toolOf(path string, t *loopdv1.Tool, outputSchema json.RawMessage) (loop.ToolSpec, error) {
	schema, err := schemaOf(path+".input_schema", t.GetInputSchema())
	if err != nil {
		return loop.ToolSpec{}, err
	}
	spec := loop.ToolSpec{
		Name: t.GetName(), Description: t.GetDescription(), Schema: schema, Effect: effectOf(t.GetEffect()),
		Timeout: defaultToolTimeout, MaxResultBytes: defaultResultBytes,
		Approval: loop.Approval{Mode: approvalModeOf(t.GetApproval().GetMode()), When: t.GetApproval().GetWhen()}, Verify: t.GetVerify(),
		Pollable: t.GetPollable(), VolatileArgs: t.GetVolatileArgs(), VolatileResult: t.GetVolatileResultPaths(),
	}
	if t.Timeout != nil {
		spec.Timeout = t.GetTimeout().AsDuration()
	}
	if t.MaxResultBytes != nil {
		spec.MaxResultBytes = int64(t.GetMaxResultBytes())
	}
	spec.MaxCalls = int(t.GetMaxCallsPerRun())
	switch kind := t.GetKind().(type) {
	case *loopdv1.Tool_Http:
		spec.HTTP, err = httpOf(kind.Http)
	case *loopdv1.Tool_Mcp:
		spec.MCP = &loop.MCPSpec{URL: kind.Mcp.GetUrl(), Headers: kind.Mcp.GetHeaders(), Tool: kind.Mcp.GetTool(), Hash: kind.Mcp.GetHash()}
	case *loopdv1.Tool_Client:
		spec.Client = &loop.ClientSpec{Wait: kind.Client.GetWait().AsDuration()}
	case *loopdv1.Tool_Agent:
		spec.Child = &loop.ChildSpec{Spec: loop.Spec{Agent: kind.Agent.GetAgent(), AgentVersion: kind.Agent.GetVersion()}, HandOver: kind.Agent.GetHandOver()}
	case *loopdv1.Tool_Builtin:
		err = s.buildIn(path, t, &spec, outputSchema)
	}
	if spec.Schema == nil {
		spec.Schema = json.RawMessage(anyObject)
		if spec.Child != nil {
			spec.Schema = json.RawMessage(askAgent)
		}
	}
	return spec, err
}

// buildIn makes spec a tool of loopd's own: what it takes and does is not for
// anybody else to say.
func (s *Server) buildIn(path string, t *loopdv1.Tool, spec *loop.ToolSpec, outputSchema json.RawMessage) error {
	var faults []fieldError
	if t.InputSchema != nil {
		faults = append(faults, fieldError{path + ".input_schema", "the schema of a built-in tool is loopd's own: leave it out"})
	}
	if t.GetEffect() != loopdv1.Effect_EFFECT_UNSPECIFIED {
		faults = append(faults, fieldError{path + ".effect", "the effect of a built-in tool is loopd's own: leave it out"})
	}
	if len(faults) > 0 {
		return invalid(faults...)
	}
	name := builtinOf(t.GetBuiltin())
	own, err := s.cfg.Builtin(name, outputSchema)
	if err != nil {
		return invalid(fieldError{path + ".builtin", err.Error()})
	}
	spec.Builtin, spec.Schema, spec.Effect = name, own.Schema, own.Effect
	if spec.Description == "" {
		spec.Description = own.Description
	}
	return nil
}

func httpOf(h *loopdv1.HttpTool) (*loop.HTTPSpec, error) {
	spec := &loop.HTTPSpec{
		Method: h.GetMethod(), URL: h.GetUrl(), Headers: h.GetHeaders(), Body: httpBodyOf(h.GetBody()),
		Result: h.GetResult(), SigningSecret: h.GetSigningSecret(),
	}
	if len(h.GetQuery()) > 0 || h.GetNoDefaultQuery() {
		spec.Query = map[string]string{}
		maps.Copy(spec.Query, h.GetQuery())
	}
	if h.BodyTemplate != nil {
		template, err := json.Marshal(h.GetBodyTemplate().AsInterface())
		if err != nil {
			return nil, fmt.Errorf("encode a body template: %w", err)
		}
		spec.BodyTemplate = template
	}
	return spec, nil
}

// toolProto shows a tool as it may be registered. It knows the kinds that others
// describe: HTTP and MCP.
func toolProto(spec loop.ToolSpec) (*loopdv1.Tool, error) {
	t := &loopdv1.Tool{
		Name: spec.Name, Description: spec.Description, Effect: effectProto(spec.Effect), Pollable: spec.Pollable,
		VolatileArgs: spec.VolatileArgs, VolatileResultPaths: spec.VolatileResult,
	}
	var err error
	if t.InputSchema, err = structOf(spec.Schema); err != nil {
		return nil, fmt.Errorf("tool %s: read its schema: %w", spec.Name, err)
	}
	if spec.Timeout > 0 {
		t.Timeout = durationpb.New(spec.Timeout)
	}
	if spec.MaxResultBytes > 0 {
		t.MaxResultBytes = new(clampInt32(int(spec.MaxResultBytes)))
	}
	if spec.MaxCalls > 0 {
		t.MaxCallsPerRun = new(clampInt32(spec.MaxCalls))
	}
	switch {
	case spec.MCP != nil:
		t.Kind = &loopdv1.Tool_Mcp{Mcp: &loopdv1.McpTool{
			Url: spec.MCP.URL, Headers: spec.MCP.Headers, Tool: spec.MCP.Tool, Hash: spec.MCP.Hash,
		}}
	case spec.HTTP != nil:
		h := &loopdv1.HttpTool{
			Method: spec.HTTP.Method, Url: spec.HTTP.URL, Headers: spec.HTTP.Headers, Query: spec.HTTP.Query,
			NoDefaultQuery: spec.HTTP.Query != nil && len(spec.HTTP.Query) == 0, Body: httpBodyProto(spec.HTTP.Body),
			Result: spec.HTTP.Result, SigningSecret: spec.HTTP.SigningSecret,
		}
		if len(spec.HTTP.BodyTemplate) > 0 {
			h.BodyTemplate = &structpb.Value{}
			if err := protojson.Unmarshal(spec.HTTP.BodyTemplate, h.BodyTemplate); err != nil {
				return nil, fmt.Errorf("tool %s: read its body template: %w", spec.Name, err)
			}
		}
		t.Kind = &loopdv1.Tool_Http{Http: h}
	}
	return t, nil
}

// structOf reads a JSON object, nil for none.
func structOf(object json.RawMessage) (s *structpb.Struct, err error) {
	if len(object) > 0 {
		s = &structpb.Struct{}
		err = protojson.Unmarshal(object, s)
	}
	return s, err
}

// checkTool lists what is wrong with a tool, each with the field's path in the
// request; path names the tool there.
func (s *Server) checkTool(path string, spec loop.ToolSpec) []fieldError {
	var faults []fieldError
	for _, problem := range s.cfg.ValidateTool(spec) {
		faults = append(faults, located(path, problem))
	}
	rule := spec.Approval
	if spec.Effect == loop.Irreversible && (rule.Mode == loop.ApprovalNever || rule.Mode == loop.ApprovalWhen) {
		faults = append(faults, fieldError{path + ".approval.mode",
			"an EFFECT_IRREVERSIBLE call, which is also one without a declared effect, always needs an approval: declare EFFECT_SIDE_EFFECT if it can be undone, or let a policy approve what is harmless"})
	}
	if rule.Mode == loop.ApprovalWhen {
		if err := s.cfg.ValidateRule(rule.When); err != nil {
			faults = append(faults, fieldError{path + ".approval.when", err.Error()})
		}
	}
	if spec.Verify != "" && spec.Verify == spec.Name {
		faults = append(faults, fieldError{path + ".verify", "a tool cannot verify its own calls: name an EFFECT_READ_ONLY tool"})
	}
	return faults
}

// located finds the field that a problem is about: a problem begins with its path
// inside the tool, if it has one.
func located(path, problem string) fieldError {
	field, detail, found := strings.Cut(problem, ": ")
	head, _, _ := strings.Cut(field, ".")
	if head == "schema" {
		field, head = "input_"+field, "input_schema"
	}
	known := (&loopdv1.Tool{}).ProtoReflect().Descriptor().Fields().ByTextName(head) != nil
	if !found || !known {
		return fieldError{path, problem}
	}
	return fieldError{path + "." + field, detail}
}
