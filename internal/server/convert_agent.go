package server

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

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

// definitionOf reads an agent's definition. path names it in the request, for
// errors.
func definitionOf(path string, spec *loopdv1.AgentSpec) (loop.AgentSpec, error) {
	def := loop.AgentSpec{Model: spec.GetModel(), Instructions: spec.GetInstructions()}
	def.Fallbacks = spec.GetFallbackModels()
	if settings := spec.GetModelSettings(); settings != nil {
		def.Temperature = settings.Temperature
		def.Reasoning = loop.Reasoning{Effort: settings.GetReasoning().GetEffort(), Budget: settings.GetReasoning().GetBudgetTokens()}
	}
	for i, tool := range spec.GetTools() {
		t, err := toolOf(fmt.Sprintf("%s.tools[%d]", path, i), tool)
		if err != nil {
			return loop.AgentSpec{}, err
		}
		def.Tools = append(def.Tools, t)
	}
	// A fixed order keeps the start of every request the same, so prompt caches match.
	slices.SortFunc(def.Tools, func(a, b loop.ToolSpec) int { return cmp.Compare(a.Name, b.Name) })
	var err error
	def.OutputSchema, err = schemaOf(path+".output.json_schema", spec.GetOutput().GetJsonSchema())
	return def, err
}

func toolOf(path string, t *loopdv1.Tool) (loop.ToolSpec, error) {
	schema, err := schemaOf(path+".input_schema", t.GetInputSchema())
	if err != nil {
		return loop.ToolSpec{}, err
	}
	if schema == nil {
		schema = json.RawMessage(`{"type":"object"}`)
	}
	spec := loop.ToolSpec{
		Name: t.GetName(), Description: t.GetDescription(), Schema: schema, Effect: effectOf(t.GetEffect()),
		Timeout: defaultToolTimeout, MaxResultBytes: defaultResultBytes,
		Pollable: t.GetPollable(), VolatileArgs: t.GetVolatileArgs(), VolatileResult: t.GetVolatileResultPaths(),
	}
	if t.Timeout != nil {
		spec.Timeout = t.GetTimeout().AsDuration()
	}
	if t.MaxResultBytes != nil {
		spec.MaxResultBytes = int64(t.GetMaxResultBytes())
	}
	if h := t.GetHttp(); h != nil {
		spec.HTTP = &loop.HTTPSpec{Method: h.GetMethod(), URL: h.GetUrl(), Headers: h.GetHeaders()}
	}
	return spec, nil
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
