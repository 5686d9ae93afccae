package openai_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/openai"
	"github.com/loopd/loopd/internal/provider/providertest"
)

const (
	strictSchema = `{"type":"object","properties":{"total":{"type":"number"}},"required":["total"],"additionalProperties":false}`
	looseSchema  = `{"type":"object","properties":{"total":{"type":"number"}}}`
)

// TestStructuredGolden: the schema goes in as it is, strict if strict mode takes it.
func TestStructuredGolden(t *testing.T) {
	t.Parallel()
	c := openai.Config{APIKey: providertest.Key, BaseURL: "https://r.openai.azure.com/openai/v1"}
	req := transcript()
	for schema, strict := range map[string]string{strictSchema: "true", looseSchema: "false"} {
		req.OutputSchema = json.RawMessage(schema)
		want := transcriptHead + `"max_completion_tokens":512,"response_format":{"type":"json_schema","json_schema":{"name":"answer","schema":` + schema +
			`,"strict":` + strict + `}},"stream":true,"stream_options":{"include_usage":true},"prompt_cache_key":"run-1"` + transcriptTail
		if diff := cmp.Diff(want, sentWith(t, c, req).body); diff != "" {
			t.Errorf("request (-want +got):\n%s", diff)
		}
	}
}

// TestStructuredByProfile: each server in its own way, and only where it takes it.
func TestStructuredByProfile(t *testing.T) {
	t.Parallel()
	const schema, object, none = `"response_format":{"type":"json_schema"`, `"response_format":{"type":"json_object"}`, ""
	for name, want := range map[string]struct{ alone, withTools string }{
		"openai": {schema, schema}, "azure": {schema, schema}, "xai": {schema, schema},
		"gemini": {schema, none}, "llamacpp": {schema, none}, "mistral": {schema, none}, "ollama": {schema, none}, "openrouter": {schema, none}, "vllm": {schema, none},
		"deepseek": {object, none}, "bedrock": {none, none}, "groq": {none, none}, openai.Compatible: {none, none},
	} {
		c := openai.Config{APIKey: providertest.Key, BaseURL: "https://models.example.com/v1", Profile: named(t, name)}
		req := providertest.Ask()
		req.Instructions, req.OutputSchema = "Answer in JSON.", json.RawMessage(strictSchema)
		check := func(what, want string) {
			body := sentWith(t, c, req).body
			if got := strings.Contains(body, "response_format"); got != (want != "") || !strings.Contains(body, want) {
				t.Errorf("%s %s: want %q in %s", name, what, want, body)
			}
		}
		check("alone", want.alone)
		req.Tools = []loop.ToolSpec{{Name: "add", Schema: json.RawMessage(`{"type":"object"}`)}}
		check("with tools", want.withTools)
		req.Tools, req.OutputSchema = nil, json.RawMessage(`{"type":"array","items":{"type":"string"}}`)
		check("for an array", none)
		req.OutputSchema = nil
		check("without a schema", none)
	}
	if len(openai.Profiles()) != 13 {
		t.Error("a profile is missing from the table")
	}
}

// TestJSONModeNeedsTheWord: servers refuse it, or get lost in blanks, when the prompt
// does not say JSON.
func TestJSONModeNeedsTheWord(t *testing.T) {
	t.Parallel()
	c := openai.Config{APIKey: providertest.Key, BaseURL: "https://api.deepseek.com/v1"}
	req := providertest.Ask()
	req.Instructions, req.OutputSchema = "Be brief.", json.RawMessage(strictSchema)
	if body := sentWith(t, c, req).body; strings.Contains(body, "response_format") {
		t.Errorf("request %s", body)
	}
}

// TestStructuredAsRecorded: what servers are recorded to have taken.
func TestStructuredAsRecorded(t *testing.T) {
	t.Parallel()
	for file, profile := range map[string]string{"openai/chat-refusal": "openai", "compatible/ollama-json-schema": "ollama"} {
		raw, err := os.ReadFile("testdata/" + file + ".json")
		if err != nil {
			t.Fatal(err)
		}
		type format struct {
			Type       string `json:"type"`
			JSONSchema struct {
				Schema json.RawMessage `json:"schema"`
				Strict bool            `json:"strict"`
			} `json:"json_schema"`
		}
		var recorded struct {
			Request struct {
				Body struct {
					ResponseFormat format `json:"response_format"`
				} `json:"body"`
			} `json:"request"`
		}
		if err := json.Unmarshal(raw, &recorded); err != nil {
			t.Fatal(err)
		}
		want := recorded.Request.Body.ResponseFormat
		req := providertest.Ask()
		req.OutputSchema = want.JSONSchema.Schema
		body := sentWith(t, openai.Config{APIKey: providertest.Key, BaseURL: "https://models.example.com/v1", Profile: named(t, profile)}, req).body
		var got struct {
			ResponseFormat format `json:"response_format"`
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		sameJSON := cmp.Comparer(func(a, b json.RawMessage) bool {
			var x, y any
			return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && cmp.Equal(x, y)
		})
		if diff := cmp.Diff(want, got.ResponseFormat, sameJSON); diff != "" {
			t.Errorf("%s (-recorded +got):\n%s", file, diff)
		}
	}
}
