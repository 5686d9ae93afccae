package anthropic

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// wire names this format in loop.Native.
const wire = "anthropic"

// The members of a request ahead of its messages. What the prompt cache reads
// comes last and in its order: tools, system, messages. What may differ between
// two requests of a run stands before that, where no cache looks.
type head struct {
	Version      string        `json:"anthropic_version,omitempty"` // on Vertex, instead of a header
	Model        string        `json:"model,omitempty"`
	MaxTokens    int64         `json:"max_tokens,omitempty"`
	Temperature  *float64      `json:"temperature,omitempty"`
	Stream       bool          `json:"stream,omitempty"`
	Thinking     *thinking     `json:"thinking,omitempty"`
	OutputConfig *outputConfig `json:"output_config,omitempty"`
	ToolChoice   *toolChoice   `json:"tool_choice,omitempty"`
	Tools        []tool        `json:"tools,omitempty"`
	System       []textBlock   `json:"system,omitempty"`
}

type toolChoice struct {
	Type string `json:"type"`
}

type tool struct {
	Name         string          `json:"name"`
	Description  string          `json:"description,omitempty"`
	InputSchema  json.RawMessage `json:"input_schema"`
	CacheControl *cacheControl   `json:"cache_control,omitempty"`
}

// cacheControl marks a breakpoint. The default lifetime of five minutes is
// refreshed by every use, and a loop comes back sooner than that.
type cacheControl struct {
	Type string `json:"type"`
}

func ephemeral() *cacheControl { return &cacheControl{Type: "ephemeral"} }

// newHead decides everything but the messages.
func newHead(req loop.ModelRequest) (head, error) {
	t := traitsOf(req.Model)
	think, out, err := t.reason(req.Reasoning, req.MaxOutputTokens, thinkingFits(req.Messages, req.Model))
	if err != nil {
		return head{}, err
	}
	if f := formatOf(req.OutputSchema); f != nil {
		if out == nil {
			out = &outputConfig{}
		}
		out.Format = f
	}
	h := head{
		Model: req.Model, MaxTokens: req.MaxOutputTokens, Stream: true,
		Thinking: think, OutputConfig: out, Tools: tools(req.Tools),
	}
	if t.sampling && (think == nil || think.Type == thinkingOff) {
		h.Temperature = req.Temperature // a model that thinks refuses any but its own
	}
	if len(h.Tools) > 0 && !req.ToolsAllowed {
		// Taking the tools away instead would lose the whole prompt cache, and
		// calls in the history would refer to nothing.
		h.ToolChoice = &toolChoice{Type: "none"}
	}
	if strings.TrimSpace(req.Instructions) != "" {
		h.System = []textBlock{{Type: "text", Text: req.Instructions}}
	}
	return h, nil
}

// tools keeps the given order.
func tools(specs []loop.ToolSpec) []tool {
	var all []tool
	for _, s := range specs {
		schema := s.Schema
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object"}`)
		}
		all = append(all, tool{Name: s.Name, Description: s.Description, InputSchema: schema})
	}
	return all
}

// mark puts breakpoints on the last tool and the last block of instructions, and
// says how many of those that the API accepts are left.
func (h *head) mark() (left int) {
	left = breakpoints
	if n := len(h.Tools); n > 0 {
		h.Tools[n-1].CacheControl = ephemeral()
		left--
	}
	if n := len(h.System); n > 0 {
		h.System[n-1].CacheControl = ephemeral()
		left--
	}
	return left
}

// encode writes the wire request. The same transcript always gives the same
// bytes and, but for the marks, a longer one the same prefix.
func (c *Client) encode(req loop.ModelRequest) ([]byte, error) {
	h, err := newHead(req)
	if err != nil {
		return nil, err
	}
	if c.vertex {
		h.Version, h.Model = vertexVersion, "" // the model is in the address
	}
	left := h.mark()
	items, err := encodeMessages(req)
	if err != nil {
		return nil, err
	}
	return h.with(mark(items, left))
}

// encodeCount writes the request whose tokens are to be counted. It takes no
// settings of the answer, and needs no marks: counting uses no cache.
func (c *Client) encodeCount(req loop.ModelRequest) ([]byte, error) {
	h, err := newHead(req)
	if err != nil {
		return nil, err
	}
	h.MaxTokens, h.Stream, h.Temperature, h.OutputConfig = 0, false, nil, nil
	if c.vertex {
		h.Version = vertexVersion
	}
	items, err := encodeMessages(req)
	if err != nil {
		return nil, err
	}
	return h.with(items)
}

func encodeMessages(req loop.ModelRequest) ([]json.RawMessage, error) {
	return provider.EncodeTranscript(req.Memo, req.Messages, true, encodeStretch(req.Model))
}

// with appends the messages.
func (h head) with(items []json.RawMessage) ([]byte, error) {
	raw, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("tools and settings: %w", err)
	}
	return provider.Splice(raw, "messages", items), nil
}
