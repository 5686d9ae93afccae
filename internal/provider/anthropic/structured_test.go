package anthropic_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

// answerSchema is one that the API compiles.
const answerSchema = `{"type":"object","properties":{"total":{"type":"number"},"note":{"type":"string"}},"required":["total"],"additionalProperties":false}`

// TestStructured: the schema goes in beside the tools, as it is, with no beta header.
func TestStructured(t *testing.T) {
	t.Parallel()
	req := transcript()
	req.OutputSchema = json.RawMessage(answerSchema)
	format := `"format":{"type":"json_schema","schema":` + answerSchema + `}`

	r := sent(t, req)
	want := `{"model":"claude-sonnet-4-5","max_tokens":512,"temperature":0.5,"stream":true,"output_config":{` + format + `},` + transcriptTail
	if diff := cmp.Diff(want, string(r.Body)); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if beta := r.Header.Get("Anthropic-Beta"); beta != "" {
		t.Errorf("beta header %q", beta)
	}

	req.Model, req.Reasoning = "claude-opus-4-6", loop.Reasoning{Effort: "low"}
	if body := string(sent(t, req).Body); !strings.Contains(body, `"output_config":{"effort":"low",`+format+`}`) {
		t.Errorf("with an effort: %s", body)
	}
}

// TestStructuredLeftOut: a schema that the API would refuse is not sent, and not
// changed until it fits.
func TestStructuredLeftOut(t *testing.T) {
	t.Parallel()
	for name, schema := range map[string]string{
		"an open object":   `{"type":"object","properties":{"total":{"type":"number"}}}`,
		"a minimum":        strings.Replace(answerSchema, `"number"`, `"number","minimum":0`, 1),
		"a length":         strings.Replace(answerSchema, `"string"`, `"string","maxLength":9`, 1),
		"a pattern":        strings.Replace(answerSchema, `"string"`, `"string","pattern":"^a"`, 1),
		"two items":        strings.Replace(answerSchema, `"string"`, `"array","items":{"type":"string"},"minItems":2`, 1),
		"a list of itself": strings.Replace(answerSchema, `{"type":"string"}`, `{"$ref":"#"}`, 1),
		"25 may be left out": `{"type":"object","additionalProperties":false,"properties":{"a":{"type":"string"}` +
			strings.Join(manyOf(24, `,"%":{"type":"string"}`), "") + `}}`,
		"17 of two types": `{"type":"object","additionalProperties":false,"required":["` + strings.Join(manyOf(17, "%"), `","`) + `"],"properties":{` +
			strings.Join(manyOf(17, `"%":{"type":["string","null"]}`), ",") + `}}`,
		"an array": `{"type":"array","items":{"type":"string"}}`,
	} {
		req := transcript()
		plain := string(sent(t, req).Body)
		req.OutputSchema = json.RawMessage(schema)
		if diff := cmp.Diff(plain, string(sent(t, req).Body)); diff != "" {
			t.Errorf("%s changes the request:\n%s", name, diff)
		}
	}
}

// manyOf is a text n times, with another letter pair for each %.
func manyOf(n int, text string) []string {
	var all []string
	for i := range n {
		all = append(all, strings.ReplaceAll(text, "%", string(rune('b'+i))+"x"))
	}
	return all
}
