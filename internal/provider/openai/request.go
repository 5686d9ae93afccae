package openai

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// wire names this format in loop.Native.
const wire = "openai"

type request struct {
	Model               string        `json:"model"`
	Messages            []any         `json:"messages"`
	Tools               []tool        `json:"tools,omitempty"`
	ToolChoice          string        `json:"tool_choice,omitempty"`
	MaxTokens           int64         `json:"max_tokens,omitempty"`
	MaxCompletionTokens int64         `json:"max_completion_tokens,omitempty"`
	Temperature         *float64      `json:"temperature,omitempty"`
	Stream              bool          `json:"stream"`
	StreamOptions       streamOptions `json:"stream_options"`
	PromptCacheKey      string        `json:"prompt_cache_key,omitempty"`
}

// streamOptions asks for the last chunk with the usage; without it there is none.
type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type tool struct {
	Type     string       `json:"type"`
	Function functionSpec `json:"function"`
}

type functionSpec struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
}

type textMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type toolMessage struct {
	Role       string `json:"role"`
	ToolCallID string `json:"tool_call_id"`
	Content    string `json:"content"`
}

// assistantMessage is both how an assistant message is sent and its native form:
// what the server wrote, without the members that servers refuse in a history.
// The raw members carry signatures that a server wants back unchanged.
type assistantMessage struct {
	Role             string          `json:"role"`
	Content          *string         `json:"content"`
	ReasoningContent string          `json:"reasoning_content,omitempty"`
	Reasoning        string          `json:"reasoning,omitempty"`
	ReasoningDetails json.RawMessage `json:"reasoning_details,omitempty"`
	Refusal          string          `json:"refusal,omitempty"`
	ToolCalls        []wireCall      `json:"tool_calls,omitempty"`
	ExtraContent     json.RawMessage `json:"extra_content,omitempty"`
	ThoughtSignature string          `json:"thought_signature,omitempty"`
}

type wireCall struct {
	ID           string          `json:"id"`
	Type         string          `json:"type"`
	Function     wireFunction    `json:"function"`
	ExtraContent json.RawMessage `json:"extra_content,omitempty"`
}

type wireFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// encode writes the wire request. The same transcript always gives the same
// bytes, and a longer one the same prefix.
func (d dialect) encode(req loop.ModelRequest) ([]byte, error) {
	r := request{
		Model: req.Model, Tools: tools(req.Tools), Temperature: req.Temperature,
		Stream: true, StreamOptions: streamOptions{IncludeUsage: true},
	}
	if d.outputLimit == MaxCompletionTokens {
		r.MaxCompletionTokens = req.MaxOutputTokens
	} else {
		r.MaxTokens = req.MaxOutputTokens
	}
	if d.cacheKey {
		r.PromptCacheKey = req.CacheKey
	}
	if len(r.Tools) > 0 && !req.ToolsAllowed {
		r.ToolChoice = "none" // the tools stay: taking them away loses the prompt cache
	}
	if strings.TrimSpace(req.Instructions) != "" {
		r.Messages = append(r.Messages, textMessage{Role: "system", Content: req.Instructions})
	}
	ids := provider.NewCallIDs(false)
	for _, s := range provider.Stretches(req.Messages) {
		messages, err := encodeStretch(s, ids)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		r.Messages = append(r.Messages, messages...)
	}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return body, nil
}

// tools keeps the given order.
func tools(specs []loop.ToolSpec) []tool {
	var all []tool
	for _, s := range specs {
		schema := s.Schema
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		all = append(all, tool{Type: "function", Function: functionSpec{Name: s.Name, Description: s.Description, Parameters: schema}})
	}
	return all
}

// encodeStretch puts one tool message per result before any text, and the text
// into one message: several servers refuse two user messages in a row.
func encodeStretch(s provider.Stretch, ids *provider.CallIDs) ([]any, error) {
	if s.Role == loop.RoleAssistant {
		return encodeAssistant(s.Message, ids)
	}
	var messages []any
	for _, r := range s.Results {
		messages = append(messages, toolMessage{Role: "tool", ToolCallID: ids.Of(r), Content: r.Content})
	}
	if len(s.Texts) > 0 {
		messages = append(messages, textMessage{Role: "user", Content: strings.Join(s.Texts, "\n\n")})
	}
	return messages, nil
}

// encodeAssistant replays the stored message as it is. Ids that the server could
// not tell apart are exchanged for loopd's, in the call and in its result. It
// returns nothing for a message with nothing in it, which servers refuse.
func encodeAssistant(m loop.Message, ids *provider.CallIDs) ([]any, error) {
	calls := m.Calls()
	wireIDs, own := ids.Assign(calls)
	if m.Native == nil || m.Native.Wire != wire {
		return rebuild(m, wireIDs), nil
	}
	var native assistantMessage
	if err := json.Unmarshal(m.Native.JSON, &native); err != nil {
		return nil, fmt.Errorf("stored assistant message: %w", err)
	}
	switch {
	case native.Content == nil && native.Refusal == "" && len(native.ToolCalls) == 0:
		return nil, nil
	case own:
		return []any{m.Native.JSON}, nil
	case len(native.ToolCalls) != len(calls):
		return rebuild(m, wireIDs), nil
	}
	for i := range native.ToolCalls {
		native.ToolCalls[i].ID = wireIDs[i]
	}
	return []any{native}, nil
}

// rebuild writes a message that another wire format recorded. Its reasoning is
// left out: only the server that wrote it can read it.
func rebuild(m loop.Message, ids []string) []any {
	out := assistantMessage{Role: "assistant"}
	var text strings.Builder
	for _, p := range m.Parts {
		switch p.Kind {
		case loop.PartText, loop.PartRefusal:
			text.WriteString(p.Text)
		case loop.PartToolCall:
			out.ToolCalls = append(out.ToolCalls, wireCall{
				ID: ids[len(out.ToolCalls)], Type: "function",
				Function: wireFunction{Name: p.Call.Name, Arguments: string(provider.ObjectOr(p.Call.Args))},
			})
		}
	}
	if text.Len() > 0 {
		content := text.String()
		out.Content = &content
	}
	if out.Content == nil && len(out.ToolCalls) == 0 {
		return nil
	}
	return []any{out}
}
