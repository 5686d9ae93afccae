package anthropic_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider/providertest"
)

// settings is what a request says of thinking and sampling, as JSON in that order.
func settings(t *testing.T, body []byte) string {
	t.Helper()
	var r struct {
		Thinking     json.RawMessage `json:"thinking"`
		OutputConfig json.RawMessage `json:"output_config"`
		Temperature  json.RawMessage `json:"temperature"`
	}
	if err := json.Unmarshal(body, &r); err != nil {
		t.Fatalf("request: %v", err)
	}
	return strings.TrimSpace(strings.Join([]string{string(r.Thinking), string(r.OutputConfig), string(r.Temperature)}, " "))
}

func TestReasoning(t *testing.T) {
	t.Parallel()
	const adaptive = `{"type":"adaptive","display":"summarized"}`
	for _, c := range []struct {
		name, model string
		reasoning   loop.Reasoning
		maxTokens   int64
		want        string
	}{
		{"nothing asked, nothing said", "claude-sonnet-4-5", loop.Reasoning{}, 8000, ` 0.5`},
		{"no temperature for models without", "claude-opus-5", loop.Reasoning{}, 8000, ``},

		{"budget", "claude-sonnet-4-5-20250929", loop.Reasoning{Budget: 4096}, 8000, `{"type":"enabled","budget_tokens":4096}`},
		{"budget below the least", "claude-sonnet-4-5", loop.Reasoning{Budget: 10}, 8000, `{"type":"enabled","budget_tokens":1024}`},
		{"budget above the output", "claude-sonnet-4-5", loop.Reasoning{Budget: 9000}, 8000, `{"type":"enabled","budget_tokens":4000}`},
		{"budget in a small output", "claude-sonnet-4-5", loop.Reasoning{Budget: 9000}, 1100, `{"type":"enabled","budget_tokens":1024}`},
		{"no room for a budget", "claude-sonnet-4-5", loop.Reasoning{Budget: 9000}, 1024, ` 0.5`},
		{"effort for a model of numbers", "claude-haiku-4-5", loop.Reasoning{Effort: "medium"}, 64000, `{"type":"enabled","budget_tokens":8192}`},
		{"effort and budget", "us.anthropic.claude-opus-4-5-20251101-v1:0", loop.Reasoning{Effort: "low", Budget: 5000}, 64000, `{"type":"enabled","budget_tokens":5000} {"effort":"low"}`},
		{"effort on Opus 4.5", "claude-opus-4-5", loop.Reasoning{Effort: "xhigh"}, 64000, `{"type":"enabled","budget_tokens":32768} {"effort":"high"}`},
		{"budget on Opus 4.6", "claude-opus-4-6", loop.Reasoning{Budget: 5000}, 64000, `{"type":"enabled","budget_tokens":5000}`},

		{"effort", "claude-opus-4-6", loop.Reasoning{Effort: "medium"}, 64000, adaptive + ` {"effort":"medium"}`},
		{"no minimal", "claude-sonnet-5", loop.Reasoning{Effort: "minimal"}, 64000, adaptive + ` {"effort":"low"}`},
		{"no xhigh", "claude-sonnet-4-6", loop.Reasoning{Effort: "xhigh"}, 64000, adaptive + ` {"effort":"high"}`},
		{"xhigh", "claude-opus-4-8", loop.Reasoning{Effort: "xhigh"}, 64000, adaptive + ` {"effort":"xhigh"}`},
		{"budget for a model of words", "claude-opus-4-7", loop.Reasoning{Budget: 10000}, 64000, adaptive + ` {"effort":"medium"}`},
		{"always on", "claude-opus-5-5", loop.Reasoning{Effort: "high"}, 64000, adaptive + ` {"effort":"high"}`},
		{"a name with dots", "anthropic/claude-opus-4.7", loop.Reasoning{Effort: "high"}, 64000, adaptive + ` {"effort":"high"}`},

		{"none", "claude-sonnet-4-5@20250929", loop.Reasoning{Effort: "none"}, 8000, `{"type":"disabled"}  0.5`},
		{"none, no temperature either", "claude-haiku-5-5", loop.Reasoning{Effort: "none"}, 8000, `{"type":"disabled"}`},
		{"none under another word", "claude-sonnet-5-5", loop.Reasoning{Effort: "none"}, 8000, `{"type":"between_tools"}`},
		{"none where it cannot be", "claude-fable-5-1", loop.Reasoning{Effort: "none"}, 8000, `{"effort":"low"}`},

		{"a model that cannot think", "claude-3-5-haiku-latest", loop.Reasoning{Effort: "high", Budget: 5000}, 8000, ` 0.5`},
		{"a model that cannot be stopped from not thinking", "claude-3-haiku-20240307", loop.Reasoning{Effort: "none"}, 8000, ` 0.5`},
		{"a Claude of tomorrow", "claude-opus-9", loop.Reasoning{Effort: "xhigh"}, 64000, adaptive + ` {"effort":"xhigh"}`},
		{"another vendor", "deepseek-chat", loop.Reasoning{Effort: "low"}, 64000, `{"type":"enabled","budget_tokens":2048}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			req := transcript()
			req.Messages = req.Messages[:1]
			req.Model, req.Reasoning, req.MaxOutputTokens = c.model, c.reasoning, c.maxTokens
			if diff := cmp.Diff(strings.TrimSpace(c.want), settings(t, sent(t, req).Body)); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnknownEffort(t *testing.T) {
	t.Parallel()
	req := transcript()
	req.Reasoning.Effort = "enormous"
	_, err := newClient(answering(t, textAnswer).URL, providertest.Tuning{}).Generate(t.Context(), req)
	e, ok := errors.AsType[*loop.ModelError](err)
	if !ok || e.Class != loop.ErrorInternal || !strings.Contains(e.Message, `"enormous"`) {
		t.Errorf("got %v", err)
	}
}

// TestThinkingWithoutItsBlock: with a budget the API demands that the calls which
// a request continues begin with a thinking block. After a fallback they do not.
func TestThinkingWithoutItsBlock(t *testing.T) {
	t.Parallel()
	ours := transcript().Messages[1]
	bare := ours
	bare.Native = &loop.Native{Wire: "anthropic", JSON: json.RawMessage(`[{"type":"tool_use","id":"toolu_a","name":"add","input":{}},{"type":"tool_use","id":"toolu_b","name":"mul","input":{}}]`)}
	redacted := ours
	redacted.Native = &loop.Native{Wire: "anthropic", JSON: json.RawMessage(`[{"type":"redacted_thinking","data":"x"},{"type":"tool_use","id":"toolu_a","name":"add","input":{}},{"type":"tool_use","id":"toolu_b","name":"mul","input":{}}]`)}
	theirs := ours
	theirs.Native = &loop.Native{Wire: "openai", JSON: json.RawMessage(`{}`)}
	vendor := ours
	vendor.Model = "deepseek/deepseek-chat"
	answered := loop.Message{Role: loop.RoleAssistant, Parts: []loop.Part{loop.TextPart("5")}}
	results := user(result("c1-1", "toolu_a", loop.OutcomeOK, "5"), result("c1-2", "toolu_b", loop.OutcomeOK, "6"))
	nudge, ask := user(loop.TextPart("Go on.")), user(loop.TextPart("2 and 3?"))

	const budget, none = `{"type":"enabled","budget_tokens":4096}`, `0.5`
	for _, c := range []struct {
		name     string
		model    string
		messages []loop.Message
		want     string
	}{
		{"our calls", "", []loop.Message{ask, ours, results}, budget},
		{"our calls, redacted", "", []loop.Message{ask, redacted, results, nudge}, budget},
		{"only the first of several calls thinks", "", []loop.Message{ask, ours, results, bare, results}, budget},
		{"made without thinking", "", []loop.Message{ask, bare, results}, none},
		{"made by another wire", "", []loop.Message{ask, theirs, results, nudge}, none},
		{"made by another vendor on this wire", "", []loop.Message{ask, vendor, results}, none},
		{"another wire's call among ours", "", []loop.Message{ask, ours, results, theirs, results, bare, results}, none},
		{"done with the other's calls", "", []loop.Message{ask, theirs, results, answered, ask}, budget},
		{"done with the other's calls, ours began", "", []loop.Message{ask, theirs, results, answered, ask, ours, results}, budget},
		{"adaptive thinking demands no block", "claude-opus-4-6", []loop.Message{ask, theirs, results}, `{"type":"adaptive","display":"summarized"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			req := transcript()
			req.Messages, req.MaxOutputTokens, req.Reasoning.Budget = c.messages, 8000, 4096
			if c.model != "" {
				req.Model = c.model
			}
			body := sent(t, req).Body
			if diff := cmp.Diff(c.want, settings(t, body)); diff != "" {
				t.Errorf("settings (-want +got):\n%s\n%s", diff, body)
			}
		})
	}
}

// TestForeignThinkingIsLeftOut: a block that another vendor signed is refused.
func TestForeignThinkingIsLeftOut(t *testing.T) {
	t.Parallel()
	for model, kept := range map[string]bool{
		"":                                    true,
		"anthropic/claude-opus-4-5":           true,
		"vertex/claude-sonnet-4-5@20250929":   true,
		"minimax/minimax-m2":                  false,
		"bedrock/anthropic.claude-sonnet-4-6": true,
	} {
		req := transcript()
		req.Messages[1].Model = model
		body := string(sent(t, req).Body)
		if strings.Contains(body, `"signature"`) != kept || !strings.Contains(body, `"id":"toolu_b"`) {
			t.Errorf("written by %q: request is %s", model, body)
		}
	}
}

// TestWrapUpKeepsThinking: the signed blocks go back unchanged although the model
// may call nothing any more, and so does what is asked of its thinking.
func TestWrapUpKeepsThinking(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"thinking-roundtrip-stream-1", "redacted-thinking-stream"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := providertest.Serve(t, providertest.Load(t, os.DirFS("testdata"), name+".json"))
			client := newClient(server.URL, providertest.Tuning{})
			req := transcript()
			req.Messages = req.Messages[:1]
			answer, err := client.Generate(t.Context(), req)
			if err != nil {
				t.Fatalf("Generate: %v", err)
			}
			stored, err := json.Marshal(answer.Message)
			if err != nil {
				t.Fatalf("store: %v", err)
			}
			var loaded loop.Message
			if err := json.Unmarshal(stored, &loaded); err != nil {
				t.Fatalf("load: %v", err)
			}
			for _, c := range loaded.Calls() {
				req.Messages = append(req.Messages, loaded, user(result(c.ID, c.ProviderID, loop.OutcomeOK, "22 °C")))
			}
			if len(loaded.Calls()) == 0 {
				req.Messages = append(req.Messages, loaded, user(loop.TextPart("Go on.")))
			}
			req.ToolsAllowed, req.MaxOutputTokens, req.Reasoning.Budget = false, 8000, 4096
			if _, err := client.Generate(t.Context(), req); err != nil {
				t.Fatalf("Generate: %v", err)
			}
			body := string(server.Last(t).Body)
			for _, want := range []string{
				`{"role":"assistant","content":` + string(answer.Message.Native.JSON) + `}`,
				`"thinking":{"type":"enabled","budget_tokens":4096}`,
				`"tool_choice":{"type":"none"}`,
			} {
				if !strings.Contains(body, want) {
					t.Errorf("%s is not in %s", want, body)
				}
			}
		})
	}
}
