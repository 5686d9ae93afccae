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

// The members of a request, in the order the prompt cache reads them: tools,
// system, messages.
type request struct {
	Model       string      `json:"model"`
	MaxTokens   int64       `json:"max_tokens"`
	Temperature *float64    `json:"temperature,omitempty"`
	Stream      bool        `json:"stream"`
	ToolChoice  *toolChoice `json:"tool_choice,omitempty"`
	Tools       []tool      `json:"tools,omitempty"`
	System      []textBlock `json:"system,omitempty"`
	Messages    []message   `json:"messages"`
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

type textBlock struct {
	Type         string        `json:"type"`
	Text         string        `json:"text"`
	CacheControl *cacheControl `json:"cache_control,omitempty"`
}

type resultBlock struct {
	Type         string        `json:"type"`
	ToolUseID    string        `json:"tool_use_id"`
	Content      string        `json:"content"`
	IsError      bool          `json:"is_error,omitempty"`
	CacheControl *cacheControl `json:"cache_control,omitempty"`
}

type callBlock struct {
	Type  string          `json:"type"`
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
}

// cacheControl marks a breakpoint. The default lifetime of five minutes is
// refreshed by every use, and a loop comes back sooner than that.
type cacheControl struct {
	Type string `json:"type"`
}

func ephemeral() *cacheControl { return &cacheControl{Type: "ephemeral"} }

// message holds either raw content or blocks of ours.
type message struct {
	Role    loop.Role `json:"role"`
	Content any       `json:"content"`

	mark func() // sets a cache breakpoint on the last block
}

// encode writes the wire request. The same transcript always gives the same
// bytes, and a longer one the same prefix.
func encode(req loop.ModelRequest) ([]byte, error) {
	r := request{
		Model: req.Model, MaxTokens: req.MaxOutputTokens, Temperature: req.Temperature, Stream: true,
		Tools: tools(req.Tools),
	}
	if len(r.Tools) > 0 && !req.ToolsAllowed {
		// Taking the tools away instead would lose the whole prompt cache, and
		// calls in the history would refer to nothing.
		r.ToolChoice = &toolChoice{Type: "none"}
	}
	if strings.TrimSpace(req.Instructions) != "" {
		r.System = []textBlock{{Type: "text", Text: req.Instructions, CacheControl: ephemeral()}}
	}
	ids := provider.NewCallIDs(true)
	for _, s := range provider.Stretches(req.Messages) {
		m, err := encodeStretch(s, ids)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		if m != nil {
			r.Messages = append(r.Messages, *m)
		}
	}
	markTail(r.Messages)
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return body, nil
}

// tools keeps the given order; the last one carries a breakpoint.
func tools(specs []loop.ToolSpec) []tool {
	var all []tool
	for _, s := range specs {
		schema := s.Schema
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object"}`)
		}
		all = append(all, tool{Name: s.Name, Description: s.Description, InputSchema: schema})
	}
	if n := len(all); n > 0 {
		all[n-1].CacheControl = ephemeral()
	}
	return all
}

// markTail puts the two sliding breakpoints at the ends of the last two user
// messages: one is written for the next request, the other was the tail of the
// request before this one and is certain to be found. With tools and system that
// makes four, the most the API accepts.
func markTail(messages []message) {
	left := 2
	for i := len(messages) - 1; i >= 0 && left > 0; i-- {
		if messages[i].mark != nil {
			messages[i].mark()
			left--
		}
	}
}

// encodeStretch returns nil for a stretch with nothing in it: the API refuses
// empty messages.
func encodeStretch(s provider.Stretch, ids *provider.CallIDs) (*message, error) {
	if s.Role == loop.RoleUser {
		return encodeUser(s, ids), nil
	}
	content, err := encodeAssistant(s.Message, ids)
	if err != nil || content == nil {
		return nil, err
	}
	return &message{Role: loop.RoleAssistant, Content: content}, nil
}

// encodeUser puts results before text.
func encodeUser(s provider.Stretch, ids *provider.CallIDs) *message {
	var blocks []any
	var last **cacheControl
	for _, r := range s.Results {
		b := &resultBlock{Type: "tool_result", ToolUseID: ids.Of(r), Content: r.Content, IsError: r.IsError()}
		blocks, last = append(blocks, b), &b.CacheControl
	}
	for _, t := range s.Texts {
		b := &textBlock{Type: "text", Text: t}
		blocks, last = append(blocks, b), &b.CacheControl
	}
	if len(blocks) == 0 {
		return nil
	}
	return &message{Role: loop.RoleUser, Content: blocks, mark: func() { *last = ephemeral() }}
}

// encodeAssistant replays the message as the API wrote it. Only call ids that the
// API would refuse are exchanged.
func encodeAssistant(m loop.Message, ids *provider.CallIDs) (any, error) {
	wireIDs, own := ids.Assign(m.Calls())
	if m.Native == nil || m.Native.Wire != wire {
		return rebuild(m, wireIDs), nil
	}
	var content []json.RawMessage
	if err := json.Unmarshal(m.Native.JSON, &content); err != nil {
		return nil, fmt.Errorf("stored assistant message: %w", err)
	}
	switch {
	case len(content) == 0:
		return nil, nil //nolint:nilnil // nothing was stored: the message is rebuilt from its parts
	case own:
		return m.Native.JSON, nil
	}
	return exchangeIDs(content, wireIDs)
}

// exchangeIDs gives the calls of a stored message other ids.
func exchangeIDs(content []json.RawMessage, ids []string) (any, error) {
	for i, raw := range content {
		o, err := provider.ParseObject(raw)
		if err != nil {
			return nil, fmt.Errorf("stored assistant message: %w", err)
		}
		if o.Text("type") != typeToolUse || len(ids) == 0 {
			continue
		}
		id, err := json.Marshal(ids[0])
		if err != nil {
			return nil, fmt.Errorf("call id: %w", err)
		}
		o.Set("id", id)
		if content[i], err = o.MarshalJSON(); err != nil {
			return nil, fmt.Errorf("stored assistant message: %w", err)
		}
		ids = ids[1:]
	}
	return content, nil
}

// rebuild writes a message that another wire format recorded. Its reasoning is
// left out: without this API's signature it would be refused.
func rebuild(m loop.Message, ids []string) any {
	var blocks []any
	for _, p := range m.Parts {
		switch p.Kind {
		case loop.PartText, loop.PartRefusal:
			if strings.TrimSpace(p.Text) != "" {
				blocks = append(blocks, textBlock{Type: "text", Text: p.Text})
			}
		case loop.PartToolCall:
			blocks = append(blocks, callBlock{Type: typeToolUse, ID: ids[0], Name: p.Call.Name, Input: provider.ObjectOr(p.Call.Args)})
			ids = ids[1:]
		}
	}
	if len(blocks) == 0 {
		return nil
	}
	return blocks
}
