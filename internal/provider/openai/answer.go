package openai

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// text is a string member. Another type there is as good as nothing: it must not
// make a paid answer unreadable.
type text string

// UnmarshalJSON never fails on JSON.
func (t *text) UnmarshalJSON(raw []byte) error {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		*t = text(s)
	}
	return nil
}

// chunk is one event of a stream, or a whole answer.
type chunk struct {
	ID      text            `json:"id"`
	Model   text            `json:"model"`
	Choices []choice        `json:"choices"`
	Usage   *usage          `json:"usage"`
	Error   json.RawMessage `json:"error"`
}

type choice struct {
	Index        int    `json:"index"`
	FinishReason text   `json:"finish_reason"`
	Delta        *delta `json:"delta"`
	Message      *delta `json:"message"`
}

// delta is a fragment of a message, or a whole one. Content and arguments are raw
// because servers disagree on their types.
type delta struct {
	Content          json.RawMessage   `json:"content"`
	Refusal          text              `json:"refusal"`
	ReasoningContent text              `json:"reasoning_content"`
	Reasoning        text              `json:"reasoning"`
	ReasoningDetails []json.RawMessage `json:"reasoning_details"`
	ToolCalls        []callDelta       `json:"tool_calls"`
	FunctionCall     *functionDelta    `json:"function_call"`
	ExtraContent     json.RawMessage   `json:"extra_content"`
	ThoughtSignature text              `json:"thought_signature"`
}

type callDelta struct {
	Index        *int            `json:"index"`
	ID           text            `json:"id"`
	Function     functionDelta   `json:"function"`
	ExtraContent json.RawMessage `json:"extra_content"`
}

type functionDelta struct {
	Name      text            `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// answer collects one answer.
type answer struct {
	id, model    string
	message      message
	usage        *usage
	finishReason string
	begun        bool
}

// message collects the fragments of the assistant message.
type message struct {
	content, refusal            strings.Builder
	reasoningContent, reasoning strings.Builder
	details                     []json.RawMessage
	calls                       []*call // in order of appearance
	legacy                      *call   // from function_call
	extra                       json.RawMessage
	signature                   string
}

// call collects the fragments of one tool call.
type call struct {
	index *int
	id    string
	name  string
	args  strings.Builder
	extra json.RawMessage
}

func (m *message) add(d *delta) {
	if d == nil {
		return
	}
	m.content.WriteString(content(d.Content))
	m.refusal.WriteString(string(d.Refusal))
	m.reasoningContent.WriteString(string(d.ReasoningContent))
	m.reasoning.WriteString(string(d.Reasoning))
	m.details = append(m.details, d.ReasoningDetails...)
	m.extra = present(d.ExtraContent, m.extra)
	m.signature = first(string(d.ThoughtSignature), m.signature)
	for _, fragment := range d.ToolCalls {
		c := m.callOf(fragment)
		c.id = first(c.id, string(fragment.ID))
		c.extra = present(fragment.ExtraContent, c.extra)
		c.add(fragment.Function)
	}
	// One server has an empty function_call in every message: that is no call.
	if f := d.FunctionCall; f != nil && (f.Name != "" || arguments(f.Arguments) != "") {
		if m.legacy == nil {
			m.legacy = &call{}
			m.calls = append(m.calls, m.legacy)
		}
		m.legacy.add(*f)
	}
}

// callOf finds the call that a fragment belongs to, or begins one.
func (m *message) callOf(f callDelta) *call {
	if c := m.latest(f.Index); c != nil && !c.endsBefore(f) {
		return c
	}
	c := &call{index: f.Index}
	m.calls = append(m.calls, c)
	return c
}

// latest is the newest call with the index, or the newest of all if the server
// sends none.
func (m *message) latest(index *int) *call {
	for _, c := range slices.Backward(m.calls) {
		if c != m.legacy && (index == nil || c.index == nil || *index == *c.index) {
			return c
		}
	}
	return nil
}

// endsBefore reports whether a fragment begins another call although the index
// does not say so: some servers give every parallel call the index 0, others
// send none. Only a fragment with a name can begin a call.
func (c *call) endsBefore(f callDelta) bool {
	switch {
	case f.Function.Name == "":
		return false
	case f.ID != "" && c.id != "":
		return f.ID != text(c.id)
	}
	return f.Index == nil && f.ID == ""
}

// add appends a fragment. A name may come in pieces, or again with every piece.
func (c *call) add(f functionDelta) {
	if name := string(f.Name); name != c.name {
		c.name += name
	}
	c.args.WriteString(arguments(f.Arguments))
}

// arguments is the text of arguments: a string as it is, an object as its JSON,
// and nothing for null.
func arguments(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

// content is the text of a content member: a string, null or a list of parts.
func content(raw json.RawMessage) string {
	var s string
	if len(raw) == 0 || json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var b strings.Builder
	for _, p := range parts {
		if p.Type == "text" {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// present is raw, or the value from before if there is nothing in it.
func present(raw, before json.RawMessage) json.RawMessage {
	if len(raw) == 0 || string(raw) == "null" {
		return before
	}
	return raw
}

// result is the finished answer.
func (a *answer) result() (loop.ModelAnswer, error) {
	m := a.message.neutral()
	native, err := json.Marshal(a.message.native())
	if err != nil {
		return loop.ModelAnswer{}, provider.WithUsage(err, a.usage.loop())
	}
	m.Native = &loop.Native{Wire: wire, JSON: native}
	end := provider.Settle(finish(a.finishReason), m)
	if a.message.refusal.Len() > 0 {
		end = loop.FinishRefused // the finish reason of a refusal is "stop"
	}
	return loop.ModelAnswer{
		Message: m, Finish: end, NativeFinish: a.finishReason,
		Usage: a.usage.loop(), UsageMissing: a.usage.missing(), ResponseID: a.id, ResponseModel: a.model,
	}, nil
}

// finish is the table of finish reasons. What it does not name fails closed.
func finish(reason string) loop.Finish {
	switch reason {
	case "stop":
		return loop.FinishDone
	case "tool_calls", "function_call":
		return loop.FinishToolCalls
	case "length":
		return loop.FinishTruncated
	case "content_filter":
		return loop.FinishRefused
	}
	return loop.FinishUnknown
}

// neutral is the message in parts. A call without arguments has an empty object.
func (m *message) neutral() loop.Message {
	out := loop.Message{Role: loop.RoleAssistant, Source: loop.SourceModel}
	add := func(kind loop.PartKind, text string) {
		if text != "" {
			out.Parts = append(out.Parts, loop.Part{Kind: kind, Text: text})
		}
	}
	add(loop.PartReasoning, first(m.reasoningContent.String(), m.reasoning.String()))
	add(loop.PartText, m.content.String())
	add(loop.PartRefusal, m.refusal.String())
	for _, c := range m.calls {
		out.Parts = append(out.Parts, loop.Part{Kind: loop.PartToolCall, Call: &loop.ToolCall{
			ProviderID: c.id, Name: c.name, Args: first(c.args.String(), "{}"),
		}})
	}
	return out
}

// native is the message in the form it is sent back.
func (m *message) native() assistantMessage {
	out := assistantMessage{
		Role: "assistant", ReasoningContent: m.reasoningContent.String(), Reasoning: m.reasoning.String(),
		Refusal: m.refusal.String(), ExtraContent: m.extra, ThoughtSignature: m.signature,
	}
	if m.content.Len() > 0 {
		text := m.content.String()
		out.Content = &text
	}
	if len(m.details) > 0 {
		out.ReasoningDetails = list(m.details)
	}
	for _, c := range m.calls {
		out.ToolCalls = append(out.ToolCalls, wireCall{
			ID: c.id, Type: "function", ExtraContent: c.extra,
			Function: wireFunction{Name: c.name, Arguments: string(provider.ObjectOr(c.args.String()))},
		})
	}
	return out
}

// list joins raw values into a JSON list.
func list(values []json.RawMessage) json.RawMessage {
	var b strings.Builder
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(v)
	}
	return json.RawMessage("[" + b.String() + "]")
}
