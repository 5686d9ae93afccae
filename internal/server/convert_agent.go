package server

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// definition is an agent's definition as it was read from a request, or from what
// is stored.
type definition struct {
	loop.AgentSpec

	places map[string]string // of tools in the request, by name
}

// definitionOf reads an agent's definition, with tools pinned and agents not yet
// embedded. path names it in the request, for errors.
func (s *Server) definitionOf(path string, spec *loopdv1.AgentSpec) (definition, error) {
	def := definition{
		AgentSpec: loop.AgentSpec{
			Model: spec.GetModel(), Instructions: spec.GetInstructions(), Fallbacks: spec.GetFallbackModels(), OnDoubt: doubtRuleOf(spec.GetOnDoubt()),
			Summarizer: spec.GetSummarizerModel(),
		},
		places: make(map[string]string, len(spec.GetTools())+len(spec.GetToolRefs())),
	}
	if settings := spec.GetModelSettings(); settings != nil {
		def.Temperature = settings.Temperature
		def.Reasoning = loop.Reasoning{Effort: settings.GetReasoning().GetEffort(), Budget: settings.GetReasoning().GetBudgetTokens()}
	}
	var err error
	if def.Acts, err = actsOf(path+".guard_verdicts", spec.GetGuardVerdicts()); err != nil {
		return definition{}, err
	}
	if def.OutputSchema, err = schemaOf(path+".output.json_schema", spec.GetOutput().GetJsonSchema()); err != nil {
		return definition{}, err
	}
	if err := s.readChecks(path, spec, &def.AgentSpec); err != nil {
		return definition{}, err
	}
	for i, tool := range spec.GetTools() {
		if err := s.addTool(&def, fmt.Sprintf("%s.tools[%d]", path, i), tool, 0); err != nil {
			return definition{}, err
		}
	}
	for i, ref := range spec.GetToolRefs() {
		if err := s.addTool(&def, fmt.Sprintf("%s.tool_refs[%d]", path, i), ref.GetSpec(), ref.GetVersion()); err != nil {
			return definition{}, err
		}
	}
	if n := len(def.Tools); n > maxTools {
		return definition{}, invalid(fieldError{path + ".tool_refs", fmt.Sprintf("the agent has %d tools, and may have %d", n, maxTools)})
	}
	// A fixed order keeps the start of every request the same, so prompt caches match.
	slices.SortFunc(def.Tools, func(a, b loop.ToolSpec) int { return cmp.Compare(a.Name, b.Name) })
	return def, nil
}

// actsOf reads what an agent's guards do.
func actsOf(path string, verdicts map[string]loopdv1.GuardVerdict) (map[string]loop.Verdict, error) {
	var acts map[string]loop.Verdict // nil: the defaults
	for guard, verdict := range verdicts {
		if acts == nil {
			acts = make(map[string]loop.Verdict, len(verdicts))
		}
		acts[guard] = guardVerdictOf(verdict)
	}
	var faults []fieldError
	for _, fault := range loop.CheckActs(acts) {
		faults = append(faults, fieldError{fmt.Sprintf("%s[%q]", path, fault.Guard), fault.Reason})
	}
	if faults != nil {
		return nil, invalid(faults...)
	}
	return acts, nil
}

// maxTools is how many tools an agent may have; the protos publish it.
const maxTools = 128

// addTool adds a tool that stands at place in the request.
func (s *Server) addTool(def *definition, place string, tool *loopdv1.Tool, version int64) error {
	t, err := s.toolOf(place, tool, def.OutputSchema)
	if err != nil {
		return err
	}
	if other, taken := def.places[t.Name]; taken {
		return invalid(fieldError{place, fmt.Sprintf("%s has the name %q too: rename one", other, t.Name)})
	}
	t.Version = version
	def.Tools, def.places[t.Name] = append(def.Tools, t), place
	return nil
}

// schemaOf writes a schema as JSON with sorted keys, nil for none.
func schemaOf(path string, s *structpb.Struct) (json.RawMessage, error) {
	if s == nil {
		return nil, nil
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // the model reads it
	if err := encoder.Encode(s.AsMap()); err != nil {
		return nil, invalid(fieldError{path, fmt.Sprintf("it is no JSON: %v", err)})
	}
	schema := bytes.TrimSpace(b.Bytes())
	if len(schema) > maxSchemaBytes {
		return nil, invalid(fieldError{path, fmt.Sprintf("it has %d bytes as JSON, and may have %d", len(schema), maxSchemaBytes)})
	}
	return schema, nil
}
