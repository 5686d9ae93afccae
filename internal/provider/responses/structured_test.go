package responses_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestStructured: strict where strict mode takes the schema as it is, else not. The
// recorded request is one that OpenAI took.
func TestStructured(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/openai/responses-refusal.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded struct {
		Request struct {
			Body struct {
				Text struct {
					Format map[string]any `json:"format"`
				} `json:"text"`
			} `json:"body"`
		} `json:"request"`
	}
	if err := json.Unmarshal(raw, &recorded); err != nil {
		t.Fatal(err)
	}
	format := recorded.Request.Body.Text.Format
	format["name"] = "answer"
	schema, err := json.Marshal(format["schema"])
	if err != nil {
		t.Fatal(err)
	}

	text := func(schema string) any {
		req := transcript()
		req.OutputSchema = json.RawMessage(schema)
		var body struct {
			Text any `json:"text"`
		}
		if err := json.Unmarshal([]byte(sent(t, req)), &body); err != nil {
			t.Fatal(err)
		}
		return body.Text
	}
	if diff := cmp.Diff(any(map[string]any{"format": format}), text(string(schema))); diff != "" {
		t.Errorf("as recorded (-want +got):\n%s", diff)
	}
	loose := `{"type":"object","properties":{"total":{"type":"number","default":1}}}`
	want := map[string]any{"format": map[string]any{"type": "json_schema", "name": "answer", "strict": false, "schema": map[string]any{
		"type": "object", "properties": map[string]any{"total": map[string]any{"type": "number", "default": 1.0}},
	}}}
	if diff := cmp.Diff(any(want), text(loose)); diff != "" {
		t.Errorf("outside of strict mode (-want +got):\n%s", diff)
	}
	for _, none := range []string{``, `{"type":"array","items":{"type":"string"}}`} {
		if got := text(none); got != nil {
			t.Errorf("schema %q is sent as %v", none, got)
		}
	}
}

// TestStructuredGolden: where in the request it stands.
func TestStructuredGolden(t *testing.T) {
	t.Parallel()
	req := transcript()
	plain := sent(t, req)
	req.OutputSchema = json.RawMessage(`{"type":"object","properties":{},"additionalProperties":false}`)
	want := strings.Replace(plain, `"store":`, `"text":{"format":{"type":"json_schema","name":"answer","schema":{"type":"object","properties":{},"additionalProperties":false},"strict":true}},"store":`, 1)
	if want == plain {
		t.Fatal("the plain request has no member store")
	}
	got := sent(t, req)
	var a, b any
	if json.Unmarshal([]byte(want), &a) != nil || json.Unmarshal([]byte(got), &b) != nil {
		t.Fatalf("no JSON: %s", got)
	}
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}
