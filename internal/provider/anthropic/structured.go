package anthropic

import (
	"encoding/json"

	"github.com/loopd/loopd/internal/provider"
)

// format holds the text of an answer to a JSON Schema. Thinking and calls stay
// free, so tools may stand beside it.
//
// The API shows the schema to the model in a system prompt of its own, so that
// adding, changing or dropping it loses the prompt cache of the conversation.
// Source: https://platform.claude.com/docs/en/build-with-claude/structured-outputs;
// no beta header is needed any more, on Vertex neither.
type format struct {
	Type   string          `json:"type"`
	Schema json.RawMessage `json:"schema"`
}

// formatOf is nil for a schema that the API would refuse: it knows no looser mode.
func formatOf(schema json.RawMessage) *format {
	if len(schema) == 0 || !subset().Takes(schema) {
		return nil
	}
	return &format{Type: "json_schema", Schema: schema}
}

// subset is what the API compiles. Source: the same page, "JSON Schema limitations"
// and "Schema complexity limits". Patterns are left out: it takes some and refuses
// others.
func subset() provider.Subset {
	return provider.Subset{
		Keywords: []string{
			"$defs", "definitions", "$ref", "title", "description", "default", "type", "enum", "const", "anyOf",
			"properties", "required", "additionalProperties", "items", "minItems", "format",
		},
		Formats: []string{"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"},
		Closed:  true, RefAlone: true, MinItems: 1, Optional: 24, Unions: 16,
	}
}
