package gemini_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const answerSchema = `{"type":"object","properties":{"total":{"type":"number","minimum":0},"note":{"type":["string","null"]}},"required":["total"]}`

// TestStructured: the schema goes in as it is, with the type of the answer; beside
// tools only with models that take both.
func TestStructured(t *testing.T) {
	t.Parallel()
	held := `,"responseMimeType":"application/json","responseJsonSchema":` + answerSchema
	config := func(body []byte) string {
		var r struct {
			GenerationConfig json.RawMessage `json:"generationConfig"`
		}
		if err := json.Unmarshal(body, &r); err != nil {
			t.Fatal(err)
		}
		return string(r.GenerationConfig)
	}
	const plain = `{"candidateCount":1,"maxOutputTokens":512,"temperature":0.5`
	for name, c := range map[string]struct {
		model, schema string
		tools         bool
		want          string
	}{
		"beside tools":                {"gemini-3-pro-preview", answerSchema, true, plain + held + "}"},
		"beside tools, an old model":  {"gemini-2.5-pro", answerSchema, true, plain + "}"},
		"without tools, an old model": {"gemini-2.5-pro", answerSchema, false, plain + held + "}"},
		"none":                        {"gemini-3-pro-preview", "", true, plain + "}"},
		"a pattern":                   {"gemini-3-pro-preview", strings.Replace(answerSchema, `"number"`, `"number","pattern":"a"`, 1), true, plain + "}"},
		"a constant":                  {"gemini-3-pro-preview", strings.Replace(answerSchema, `"minimum"`, `"const"`, 1), true, plain + "}"},
		"a format":                    {"gemini-3-pro-preview", strings.Replace(answerSchema, `"number","minimum":0`, `"string","format":"email"`, 1), true, plain + "}"},
		"in a circle":                 {"gemini-3-pro-preview", strings.Replace(answerSchema, `{"type":["string","null"]}`, `{"$ref":"#"}`, 1), true, plain + "}"},
		"an array":                    {"gemini-3-pro-preview", `{"type":"array","items":{"type":"string"}}`, true, plain + "}"},
	} {
		req := transcript()
		req.Model, req.OutputSchema = c.model, json.RawMessage(c.schema)
		if !c.tools {
			req.Tools, req.Messages = nil, req.Messages[:1]
		}
		if diff := cmp.Diff(c.want, config(sent(t, req).Body)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
