package openai

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

type textMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type partsMessage struct {
	Role    string `json:"role"`
	Content []any  `json:"content"`
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
	Content          json.RawMessage `json:"content"` // null, a string or a list
	ReasoningContent *string         `json:"reasoning_content,omitempty"`
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

// encoder writes the messages of one request.
type encoder struct {
	profile  Profile
	provider string // that is asked
	messages []loop.Message
	calls    []loop.ToolCall // of the newest assistant message; nil: none was encoded yet
}

// stretch writes what one side says in one go.
func (e *encoder) stretch(s provider.Stretch, ids *provider.CallIDs) ([]json.RawMessage, error) {
	var messages []any
	var err error
	if s.Role == loop.RoleAssistant {
		messages, err = e.assistant(s.Message, ids)
	} else {
		messages, err = e.user(s, ids)
	}
	if err != nil {
		return nil, err
	}
	var out []json.RawMessage
	for _, m := range messages {
		raw, err := json.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("write message: %w", err)
		}
		out = append(out, raw)
	}
	return out, nil
}

// user puts one tool message per call before anything else, and the rest into
// one message: several servers refuse two user messages in a row.
func (e *encoder) user(s provider.Stretch, ids *provider.CallIDs) ([]any, error) {
	var messages []any
	for _, r := range e.results(s.Results) {
		messages = append(messages, toolMessage{Role: "tool", ToolCallID: e.profile.callID(ids.Of(r)), Content: r.Content})
	}
	text := strings.Join(s.Texts, "\n\n")
	if text == "" && len(s.Media) == 0 {
		return messages, nil
	}
	if len(messages) > 0 && !e.profile.UserAfterTool {
		messages = append(messages, textMessage{Role: "assistant", Content: "I have read the results."})
	}
	if len(s.Media) == 0 {
		return append(messages, textMessage{Role: "user", Content: text}), nil
	}
	var parts []any
	for _, p := range s.Media {
		part, err := e.profile.attachment(p)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	if text != "" {
		parts = append(parts, textPart{Type: "text", Text: text})
	}
	return append(messages, partsMessage{Role: "user", Content: parts}), nil
}

// unknownResult stands in for a result that is missing, which servers refuse.
const unknownResult = "The result of this call is not known: it may or may not have run."

// results are those of the calls before, each exactly once and in their order: a
// result that no call asked for is refused by servers, as is a call without one.
func (e *encoder) results(results []loop.ToolResult) []loop.ToolResult {
	var out []loop.ToolResult
	for _, c := range e.asked(results) {
		i := slices.IndexFunc(results, func(r loop.ToolResult) bool { return answers(r, c) })
		if i < 0 {
			out = append(out, loop.ToolResult{CallID: c.ID, ProviderID: c.ProviderID, Content: unknownResult})
			continue
		}
		out = append(out, results[i])
	}
	return out
}

// asked are the calls that a stretch answers. They may stand in a message that
// was encoded for an earlier request.
func (e *encoder) asked(results []loop.ToolResult) []loop.ToolCall {
	if e.calls != nil || len(results) == 0 {
		return e.calls
	}
	for _, m := range slices.Backward(e.messages) {
		calls := m.Calls()
		if slices.ContainsFunc(results, func(r loop.ToolResult) bool {
			return slices.ContainsFunc(calls, func(c loop.ToolCall) bool { return answers(r, c) })
		}) {
			return calls
		}
	}
	return nil
}

// answers reports whether r is the result of c.
func answers(r loop.ToolResult, c loop.ToolCall) bool {
	if c.ID != "" && r.CallID != "" {
		return r.CallID == c.ID
	}
	return c.ProviderID != "" && r.ProviderID == c.ProviderID
}

// assistant replays the stored message as it is. Ids that the server could not
// tell apart, or would refuse, are exchanged, in the call and in its result. It
// returns nothing for a message with nothing in it, which servers refuse.
func (e *encoder) assistant(m loop.Message, ids *provider.CallIDs) ([]any, error) {
	calls := m.Calls()
	e.calls = append([]loop.ToolCall{}, calls...)
	wireIDs, own := ids.Assign(calls)
	for i, id := range wireIDs {
		wireIDs[i] = e.profile.callID(id)
		own = own && wireIDs[i] == id
	}
	if m.Native == nil || m.Native.Wire != wire || e.foreign(m) {
		return e.rebuild(m, wireIDs)
	}
	var native assistantMessage
	if err := json.Unmarshal(m.Native.JSON, &native); err != nil {
		return nil, fmt.Errorf("stored assistant message: %w", err)
	}
	switch {
	case present(native.Content, nil) == nil && native.Refusal == "" && len(native.ToolCalls) == 0:
		return nil, nil
	case len(native.ToolCalls) != len(calls):
		return e.rebuild(m, wireIDs)
	}
	if changed := e.profile.adapt(&native); own && !changed {
		return []any{m.Native.JSON}, nil
	}
	for i := range native.ToolCalls {
		native.ToolCalls[i].ID = wireIDs[i]
	}
	return []any{native}, nil
}

// foreign reports whether another provider of the same wire format wrote m. Its
// reasoning and its signatures mean nothing to the one that is asked.
func (e *encoder) foreign(m loop.Message) bool {
	return m.Model != "" && e.provider != "" && !strings.HasPrefix(m.Model, e.provider+"/")
}

// rebuild writes a message that another wire format or provider recorded. Its
// reasoning is left out: only the server that wrote it can read it.
func (e *encoder) rebuild(m loop.Message, ids []string) ([]any, error) {
	out := assistantMessage{Role: "assistant", Content: json.RawMessage("null")}
	var said strings.Builder
	for _, p := range m.Parts {
		switch p.Kind {
		case loop.PartText, loop.PartRefusal:
			said.WriteString(p.Text)
		case loop.PartToolCall:
			out.ToolCalls = append(out.ToolCalls, wireCall{
				ID: ids[len(out.ToolCalls)], Type: "function",
				Function: wireFunction{Name: p.Call.Name, Arguments: string(provider.ObjectOr(p.Call.Args))},
			})
		}
	}
	switch {
	case said.Len() > 0:
		content, err := json.Marshal(said.String())
		if err != nil {
			return nil, fmt.Errorf("write message: %w", err)
		}
		out.Content = content
	case len(out.ToolCalls) == 0:
		return nil, nil
	}
	e.profile.adapt(&out)
	return []any{out}, nil
}

// adapt makes a message acceptable to the server and reports whether it had to.
func (p Profile) adapt(m *assistantMessage) (changed bool) {
	if !p.NullContent && present(m.Content, nil) == nil {
		m.Content, changed = json.RawMessage(`""`), true
	}
	switch {
	case p.Replay == ReplayRequire && m.ReasoningContent == nil:
		m.ReasoningContent, changed = new(string), true
	case p.Replay == ReplayStrip && (m.ReasoningContent != nil || m.Reasoning != "" || m.ReasoningDetails != nil):
		m.ReasoningContent, m.Reasoning, m.ReasoningDetails, changed = nil, "", nil, true
	}
	return changed
}

// callID is id where the server takes it, else one made of it that is always the
// same. The chance that two meet is one in 10^16.
func (p Profile) callID(id string) string {
	const length = 9
	if p.CallIDs != NineAlphanumerics || len(id) == length && !strings.ContainsFunc(id, func(r rune) bool { return !isAlphanumeric(r) }) {
		return id
	}
	const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	sum := sha256.Sum256([]byte(id))
	out := make([]byte, length)
	for i := range out {
		out[i] = digits[int(sum[i])%len(digits)]
	}
	return string(out)
}
