package engine

import (
	"encoding/json"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/loopd/loopd/internal/loop"
)

// maxContent is the most of one message list that a span holds, in bytes. Collectors
// refuse batches of more than 4 MiB.
const maxContent = 512 << 10

// Content says whether spans hold what was said: instructions, messages, arguments and
// results. The zero value is no. What they hold goes through Redact first, which is not
// nil then.
type Content struct {
	Spans  bool // as attributes
	Events bool // as span events
	Redact func(string) string
}

// ofModel puts a request and its answer on a chat span.
func (c Content) ofModel(s trace.Span, request loop.ModelRequest, b loop.ModelAnswered) {
	if !c.Spans && !c.Events {
		return
	}
	answer := said(b.Message)
	answer["finish_reason"] = string(b.Finish)
	input := make([]map[string]any, len(request.Messages))
	for i, m := range request.Messages {
		input[i] = said(m)
	}
	c.put(s, []attribute.KeyValue{
		c.text(attrInstructions, []map[string]any{{"type": "text", "content": request.Instructions}}),
		c.text(attrInput, input), c.text(attrOutput, []map[string]any{answer}),
	})
}

// ofTool puts the arguments and the result on an execute_tool span.
func (c Content) ofTool(s trace.Span, call loop.ToolCall, r loop.ToolReply) {
	if c.Spans || c.Events {
		c.put(s, []attribute.KeyValue{c.text(attrToolArguments, call.Args), c.text(attrToolResult, r.Content)})
	}
}

func (c Content) put(s trace.Span, attributes []attribute.KeyValue) {
	if c.Spans {
		s.SetAttributes(attributes...)
	}
	if c.Events {
		s.AddEvent(eventDetails, trace.WithAttributes(attributes...))
	}
}

// text is an attribute with redacted text: a string as it is, all else as JSON.
func (c Content) text(key string, value any) attribute.KeyValue {
	text, ok := value.(string)
	if !ok {
		raw, err := json.Marshal(value)
		if err != nil {
			return attribute.String(key, "this content cannot be shown")
		}
		text = string(raw)
	}
	if len(text) > maxContent {
		text = fmt.Sprintf("%d bytes, too many to be shown", len(text))
	}
	return attribute.String(key, c.Redact(text))
}

// said is a message in the form of the convention. Media are only named.
func said(m loop.Message) map[string]any {
	parts := make([]map[string]any, 0, len(m.Parts))
	for _, p := range m.Parts {
		switch p.Kind {
		case loop.PartToolCall:
			parts = append(parts, map[string]any{"type": "tool_call", "id": p.Call.ID, "name": p.Call.Name, "arguments": p.Call.Args})
		case loop.PartToolResult:
			parts = append(parts, map[string]any{"type": "tool_call_response", "id": p.Result.CallID, "response": p.Result.Content})
		case loop.PartImage, loop.PartDocument:
			parts = append(parts, map[string]any{"type": string(p.Kind), "mime_type": p.Media.Type})
		default:
			parts = append(parts, map[string]any{"type": string(p.Kind), "content": p.Text})
		}
	}
	return map[string]any{"role": string(m.Role), "parts": parts}
}
