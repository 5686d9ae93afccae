package openai

import (
	"encoding/json"
	"strings"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// message collects the fragments of the assistant message. A fragment costs what
// it is long, however many came before it.
type message struct {
	emit func(loop.Delta) // may be nil

	text, refusal                         strings.Builder
	reasoningContent, reasoning, thinking strings.Builder // three places, of which servers use one
	details                               []*detail

	calls     []*call       // in order of appearance
	told      int           // so many of them have been emitted at least in part
	byIndex   map[int]*call // the newest call of each index
	unindexed *call         // the newest call without an index
	newest    *call         // of all but the legacy one
	legacy    *call         // from function_call
	extra     json.RawMessage
	signature string
}

// call collects the fragments of one tool call.
type call struct {
	number  int // position in message.calls
	indexed bool
	id      string
	name    strings.Builder
	args    strings.Builder
	extra   json.RawMessage
}

func (m *message) add(d *delta) {
	if d == nil {
		return
	}
	m.reasoningContent.WriteString(string(d.ReasoningContent))
	m.reasoning.WriteString(string(d.Reasoning))
	m.tell(loop.Delta{Kind: loop.PartReasoning, Text: first(string(d.ReasoningContent), string(d.Reasoning))})
	for _, raw := range d.ReasoningDetails {
		m.addDetail(raw)
	}
	text, thinking := content(d.Content)
	m.write(&m.thinking, loop.PartReasoning, thinking)
	m.write(&m.text, loop.PartText, text)
	m.write(&m.refusal, loop.PartRefusal, string(d.Refusal))
	m.extra = present(d.ExtraContent, m.extra)
	m.signature = first(string(d.ThoughtSignature), m.signature)
	for _, fragment := range d.ToolCalls {
		c := m.callOf(fragment)
		c.id = first(c.id, string(fragment.ID))
		c.extra = present(fragment.ExtraContent, c.extra)
		m.addCall(c, fragment.Function)
	}
	// One server has an empty function_call in every message: that is no call.
	if f := d.FunctionCall; f != nil && (f.Name != "" || arguments(f.Arguments) != "") {
		if m.legacy == nil {
			m.legacy = m.begin()
		}
		m.addCall(m.legacy, *f)
	}
}

// empty reports whether nothing has been written yet.
func (m *message) empty() bool {
	return len(m.calls) == 0 && m.text.Len()+m.refusal.Len()+m.reasoningContent.Len()+m.reasoning.Len()+m.thinking.Len() == 0
}

// write adds a fragment to one of the message's texts.
func (m *message) write(b *strings.Builder, kind loop.PartKind, s string) {
	b.WriteString(s)
	m.tell(loop.Delta{Kind: kind, Text: s})
}

// tell passes a fragment on to who watches.
func (m *message) tell(d loop.Delta) {
	if m.emit != nil && (d.Text != "" || d.Tool != "") {
		m.emit(d)
	}
}

// callOf finds the call that a fragment belongs to, or begins one.
func (m *message) callOf(f callDelta) *call {
	if c := m.latest(f.Index); c != nil && !c.endsBefore(f) {
		return c
	}
	c := m.begin()
	m.newest = c
	if f.Index == nil {
		m.unindexed = c
		return c
	}
	c.indexed = true
	if m.byIndex == nil {
		m.byIndex = map[int]*call{}
	}
	m.byIndex[*f.Index] = c
	return c
}

// begin appends a call. Those before it are told of, so that their order stays.
func (m *message) begin() *call {
	m.tellCalls()
	c := &call{number: len(m.calls)}
	m.calls = append(m.calls, c)
	return c
}

// latest is the newest call with the index, or the newest of all if the server
// sends none. A call without an index fits any.
func (m *message) latest(index *int) *call {
	if index == nil {
		return m.newest
	}
	c := m.byIndex[*index]
	if c == nil || m.unindexed != nil && m.unindexed.number > c.number {
		return m.unindexed
	}
	return c
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

// addCall appends a fragment. A name may come in pieces, or again with every piece.
func (m *message) addCall(c *call, f functionDelta) {
	if name := string(f.Name); name != c.name.String() {
		c.name.WriteString(name)
	}
	args := arguments(f.Arguments)
	c.args.WriteString(args)
	switch {
	case c.number < m.told:
		m.tell(loop.Delta{Kind: loop.PartToolCall, Text: args})
	case args != "" && c.name.Len() > 0: // the name is whole once arguments follow it
		m.tellCalls()
	}
}

// tellCalls tells of the calls that were held back until their name was whole.
func (m *message) tellCalls() {
	for ; m.told < len(m.calls); m.told++ {
		c := m.calls[m.told]
		m.tell(loop.Delta{Kind: loop.PartToolCall, Tool: c.name.String(), Text: c.args.String()})
	}
}

// arguments is the text of arguments: a string as it is, an object as its JSON,
// and nothing for null.
func arguments(raw json.RawMessage) string {
	if s, ok := unquote(raw); ok || len(raw) == 0 {
		return s
	}
	return string(raw)
}

// content is the text of a content member, a string, null or a list of parts,
// and what such a list has of thinking.
func content(raw json.RawMessage) (text, thinking string) {
	if len(raw) == 0 {
		return "", ""
	}
	if s, ok := unquote(raw); ok {
		return s, ""
	}
	var parts []contentPart
	if json.Unmarshal(raw, &parts) != nil {
		return "", ""
	}
	var says, thinks strings.Builder
	for _, p := range parts {
		switch p.Type {
		case "text":
			says.WriteString(string(p.Text))
		case "thinking":
			for _, t := range p.Thinking {
				thinks.WriteString(string(t.Text))
			}
		}
	}
	return says.String(), thinks.String()
}

// contentPart is one entry of content that came as a list, as Mistral sends it
// from models that think.
type contentPart struct {
	Type     text `json:"type"`
	Text     text `json:"text"`
	Thinking []struct {
		Text text `json:"text"`
	} `json:"thinking"`
}

// neutral is the message in parts. A call without arguments has an empty object.
func (m *message) neutral() loop.Message {
	out := loop.Message{Role: loop.RoleAssistant, Source: loop.SourceModel}
	add := func(kind loop.PartKind, text string) {
		if text != "" {
			out.Parts = append(out.Parts, loop.Part{Kind: kind, Text: text})
		}
	}
	add(loop.PartReasoning, first(first(m.reasoningContent.String(), m.reasoning.String()), m.thinking.String()))
	add(loop.PartText, m.text.String())
	add(loop.PartRefusal, m.refusal.String())
	for _, c := range m.calls {
		out.Parts = append(out.Parts, loop.Part{Kind: loop.PartToolCall, Call: &loop.ToolCall{
			ProviderID: c.id, Name: c.name.String(), Args: first(c.args.String(), "{}"),
		}})
	}
	return out
}

// native is the message in the form it is sent back.
func (m *message) native() (assistantMessage, error) {
	said, err := m.content()
	if err != nil {
		return assistantMessage{}, err
	}
	details, err := m.joined()
	if err != nil {
		return assistantMessage{}, err
	}
	out := assistantMessage{
		Role: "assistant", Content: said, ReasoningContent: optional(m.reasoningContent.String()), Reasoning: m.reasoning.String(),
		ReasoningDetails: details, Refusal: m.refusal.String(), ExtraContent: m.extra, ThoughtSignature: m.signature,
	}
	for _, c := range m.calls {
		out.ToolCalls = append(out.ToolCalls, wireCall{
			ID: c.id, Type: "function", ExtraContent: c.extra,
			Function: wireFunction{Name: c.name.String(), Arguments: string(provider.ObjectOr(c.args.String()))},
		})
	}
	return out, nil
}

// content is the content in the form it is sent back: null, a string, or a list
// where thinking came in one.
func (m *message) content() (json.RawMessage, error) {
	switch {
	case m.thinking.Len() > 0:
		thought := textPart{Type: "text", Text: m.thinking.String()}
		list := []any{thinkingPart{Type: "thinking", Thinking: []textPart{thought}}}
		if m.text.Len() > 0 {
			list = append(list, textPart{Type: "text", Text: m.text.String()})
		}
		return json.Marshal(list)
	case m.text.Len() > 0:
		return json.Marshal(m.text.String())
	}
	return json.RawMessage("null"), nil
}

// optional is nil for the empty string.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
