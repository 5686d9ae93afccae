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

// request is everything but the messages, which follow it already encoded.
type request struct {
	Model               string          `json:"model"`
	Tools               []tool          `json:"tools,omitempty"`
	ToolChoice          string          `json:"tool_choice,omitempty"`
	MaxTokens           int64           `json:"max_tokens,omitempty"`
	MaxCompletionTokens int64           `json:"max_completion_tokens,omitempty"`
	Temperature         *float64        `json:"temperature,omitempty"`
	ReasoningEffort     string          `json:"reasoning_effort,omitempty"`
	Reasoning           *reasoning      `json:"reasoning,omitempty"`
	Thinking            *thinking       `json:"thinking,omitempty"`
	ChatTemplate        *chatTemplate   `json:"chat_template_kwargs,omitempty"`
	ResponseFormat      *responseFormat `json:"response_format,omitempty"`
	Stream              bool            `json:"stream"`
	StreamOptions       *streamOptions  `json:"stream_options,omitempty"`
	PromptCacheKey      string          `json:"prompt_cache_key,omitempty"`
}

// streamOptions asks for the last chunk with the usage; without it there is none.
type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type reasoning struct {
	Effort    string `json:"effort,omitempty"`
	MaxTokens int64  `json:"max_tokens,omitempty"`
}

type thinking struct {
	Type string `json:"type"`
}

type chatTemplate struct {
	EnableThinking  bool   `json:"enable_thinking"`
	ReasoningEffort string `json:"reasoning_effort,omitempty"`
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

// encode writes the wire request. The same transcript always gives the same
// bytes, and a longer one the same prefix, with a memo as without.
func (p Profile) encode(req loop.ModelRequest) ([]byte, error) {
	head, err := json.Marshal(p.head(req))
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	e := &encoder{profile: p, provider: req.Provider, messages: req.Messages}
	messages, err := provider.EncodeTranscript(req.Memo, req.Messages, false, e.stretch)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	if strings.TrimSpace(req.Instructions) != "" {
		system, err := json.Marshal(textMessage{Role: "system", Content: req.Instructions})
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		messages = append([]json.RawMessage{system}, messages...)
	}
	return provider.Splice(head, "messages", messages), nil
}

// head is the request without its messages.
func (p Profile) head(req loop.ModelRequest) request {
	r := request{Model: req.Model, Temperature: req.Temperature, ResponseFormat: p.hold(req), Stream: true}
	if req.ToolsAllowed || p.NoCalls != ByOmission {
		r.Tools = tools(req.Tools)
	}
	if len(r.Tools) > 0 && !req.ToolsAllowed {
		r.ToolChoice = "none" // the tools stay: taking them away loses the prompt cache
	}
	if p.OutputLimit == MaxCompletionTokens {
		r.MaxCompletionTokens = req.MaxOutputTokens
	} else {
		r.MaxTokens = req.MaxOutputTokens
	}
	if p.StreamOptions {
		r.StreamOptions = &streamOptions{IncludeUsage: true}
	}
	if p.PromptCacheKey {
		r.PromptCacheKey = req.CacheKey
	}
	p.reason(&r, req.Reasoning)
	return r
}

// reason asks for reasoning in the server's way. A budget of tokens is asked for
// where the server has a member for it; elsewhere the output cap bounds it alone.
func (p Profile) reason(r *request, want loop.Reasoning) {
	on := want.Effort != "none"
	switch {
	case p.Effort == EffortObject && want.Budget > 0 && on:
		r.Reasoning = &reasoning{MaxTokens: want.Budget} // servers refuse both at once
	case want.Effort == "" || p.Effort == EffortOmitted:
	case p.Effort == EffortObject:
		r.Reasoning = &reasoning{Effort: want.Effort}
	case p.Effort == EffortThinking && !on:
		r.Thinking = &thinking{Type: "disabled"}
	case p.Effort == EffortThinking:
		r.Thinking, r.ReasoningEffort = &thinking{Type: "enabled"}, want.Effort
	case p.Effort == EffortTemplate && !on:
		r.ChatTemplate = &chatTemplate{}
	case p.Effort == EffortTemplate:
		r.ChatTemplate = &chatTemplate{EnableThinking: true, ReasoningEffort: want.Effort}
	default:
		r.ReasoningEffort = want.Effort
	}
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
