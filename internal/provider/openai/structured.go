package openai

import (
	"encoding/json"
	"strings"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// Ways to hold an answer to a schema, for Profile.Structured.
const (
	StructuredSchema = "json_schema" // "response_format": {"type": "json_schema", ...}
	StructuredObject = "json_object" // {"type": "json_object"}: JSON, of whatever shape
	StructuredNone   = "none"        // not at all
)

type responseFormat struct {
	Type       string      `json:"type"`
	JSONSchema *jsonSchema `json:"json_schema,omitempty"`
}

type jsonSchema struct {
	Name   string          `json:"name"`
	Schema json.RawMessage `json:"schema"`
	Strict bool            `json:"strict"`
}

// hold holds the answer to the request's schema, in the server's way: strictly,
// where OpenAI's strict mode takes the schema, else as well as the model can. With
// a server that does not take it beside tools it is left out as long as there are
// any, so that all calls of a run are alike.
func (p Profile) hold(req loop.ModelRequest) *responseFormat {
	if !provider.IsObject(req.OutputSchema) || len(req.Tools) > 0 && !p.StructuredWithTools {
		return nil
	}
	switch p.Structured {
	case StructuredSchema:
		return &responseFormat{Type: StructuredSchema, JSONSchema: &jsonSchema{
			Name: provider.SchemaName, Schema: req.OutputSchema, Strict: provider.OpenAI().Takes(req.OutputSchema),
		}}
	case StructuredObject:
		// Without the word in the prompt servers refuse, or the model writes blanks
		// until it is cut off.
		if strings.Contains(strings.ToLower(req.Instructions), "json") {
			return &responseFormat{Type: StructuredObject}
		}
	}
	return nil
}
