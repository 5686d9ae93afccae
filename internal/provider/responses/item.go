package responses

import (
	"encoding/json"
	"strings"

	"github.com/loopd/loopd/internal/loop"
)

// Types of items that loopd reads. All others live on in the native form only.
const (
	typeMessage   = "message"
	typeReasoning = "reasoning"
	typeCall      = "function_call"
)

// harmless reports whether an answer with an item of the kind can be complete
// without anything that loopd would have to do for it: the server ran these
// itself. A kind that is not known may ask for something, as
// mcp_approval_request, computer_call and custom_tool_call do.
func harmless(kind text) bool {
	switch kind {
	case typeMessage, typeReasoning, typeCall, "compaction",
		"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call", "mcp_list_tools":
		return true
	}
	return false
}

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

// fragments is a list of content parts, or nothing where another type stands.
type fragments []fragment

type fragment struct {
	Type    text `json:"type"`
	Text    text `json:"text"`
	Refusal text `json:"refusal"`
}

// UnmarshalJSON never fails on JSON.
func (f *fragments) UnmarshalJSON(raw []byte) error {
	var all []fragment
	if json.Unmarshal(raw, &all) == nil {
		*f = all
	}
	return nil
}

// item is what loopd reads of an item.
type item struct {
	Type      text            `json:"type"`
	Status    text            `json:"status"`
	Phase     text            `json:"phase"` // of a message: "commentary" or "final_answer"
	Content   fragments       `json:"content"`
	Summary   fragments       `json:"summary"` // of reasoning
	Encrypted text            `json:"encrypted_content"`
	CallID    text            `json:"call_id"`
	Name      text            `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

func parseItems(raw []json.RawMessage) ([]item, error) {
	items := make([]item, len(raw))
	for i, r := range raw {
		if err := json.Unmarshal(r, &items[i]); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// cut reports whether the item says of itself that it is not whole.
func (it item) cut() bool {
	return (it.Type == typeMessage || it.Type == typeCall) && (it.Status == "incomplete" || it.Status == "in_progress")
}

// parts are what loopd reads of the item.
func (it item) parts() []loop.Part {
	switch it.Type {
	case typeReasoning:
		if thoughts := joined(it.Summary, it.Content); thoughts != "" {
			return []loop.Part{{Kind: loop.PartReasoning, Text: thoughts}}
		}
	case typeMessage:
		var parts []loop.Part
		for _, f := range it.Content {
			switch {
			case f.Type == "refusal" && f.Refusal != "":
				parts = append(parts, loop.Part{Kind: loop.PartRefusal, Text: string(f.Refusal)})
			case f.Text != "":
				parts = append(parts, loop.TextPart(string(f.Text)))
			}
		}
		return parts
	case typeCall:
		return []loop.Part{{Kind: loop.PartToolCall, Call: &loop.ToolCall{
			ProviderID: string(it.CallID), Name: string(it.Name), Args: it.args(),
		}}}
	}
	return nil
}

// args is the exact text of a call's arguments. A call without any has an empty
// object; some servers send the object itself instead of its text.
func (it item) args() string {
	var s string
	if json.Unmarshal(it.Arguments, &s) != nil {
		s = string(it.Arguments)
	}
	if s == "" {
		return "{}"
	}
	return s
}

// paragraphs stands between two pieces of reasoning.
const paragraphs = "\n\n"

func joined(lists ...fragments) string {
	var all []string
	for _, list := range lists {
		for _, f := range list {
			if f.Text != "" {
				all = append(all, string(f.Text))
			}
		}
	}
	return strings.Join(all, paragraphs)
}

// neutral is the answer in parts. What a model says beside its final answer is
// not part of it, and is shown as reasoning.
func neutral(items []item) loop.Message {
	m := loop.Message{Role: loop.RoleAssistant, Source: loop.SourceModel}
	final := false
	for _, it := range items {
		final = final || it.Type == typeMessage && it.Phase == "final_answer"
	}
	for _, it := range items {
		parts := it.parts()
		for i := range parts {
			if final && it.Phase == "commentary" && parts[i].Kind == loop.PartText {
				parts[i].Kind = loop.PartReasoning
			}
		}
		m.Parts = append(m.Parts, parts...)
	}
	return m
}
