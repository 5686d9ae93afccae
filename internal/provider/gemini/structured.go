package gemini

import (
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// jsonType is the type of an answer that is held to a schema. It is required
// beside one.
const jsonType = "application/json"

// hold holds the answer to the request's schema. Models before Gemini 3 refuse it
// beside tools: "Function calling with a response mime type: 'application/json' is
// unsupported". Source: https://ai.google.dev/gemini-api/docs/structured-output.
func (c *generationConfig) hold(req loop.ModelRequest) {
	if len(req.OutputSchema) == 0 || len(req.Tools) > 0 && !isThird(req.Model) || !subset().Takes(req.OutputSchema) {
		return
	}
	c.ResponseMimeType, c.ResponseJSONSchema = jsonType, req.OutputSchema
}

// subset is what responseJsonSchema takes, as its description in the API's own
// discovery document and SDKs lists it. References in circles are unrolled "to a
// limited degree", whatever that is, so they are left out.
func subset() provider.Subset {
	return provider.Subset{
		Keywords: []string{
			"$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items", "prefixItems",
			"minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required",
			"propertyOrdering",
		},
		Formats: []string{"date-time", "date", "time"}, RefAlone: true, MinItems: -1,
	}
}
