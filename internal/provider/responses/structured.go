package responses

import (
	"encoding/json"

	"github.com/loopd/loopd/internal/provider"
)

// textFormat says what the text of an answer is to look like.
type textFormat struct {
	Format format `json:"format"`
}

type format struct {
	Type   string          `json:"type"`
	Name   string          `json:"name"`
	Schema json.RawMessage `json:"schema"`
	Strict bool            `json:"strict"`
}

// textOf holds the answer to a schema: strictly, where the schema is one that strict
// mode takes, else as well as the model can. Tools may stand beside it.
// Source: https://developers.openai.com/api/docs/guides/structured-outputs.
func textOf(schema json.RawMessage) *textFormat {
	if !provider.IsObject(schema) {
		return nil
	}
	return &textFormat{Format: format{Type: "json_schema", Name: provider.SchemaName, Schema: schema, Strict: provider.OpenAI().Takes(schema)}}
}
