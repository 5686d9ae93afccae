package openai

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/loopd/loopd/internal/provider"
)

// detail is an entry of reasoning_details, as gateways send them. They want the
// entries back as the model made them, but stream each in fragments, which are
// joined here; the signature comes with the last one.
type detail struct {
	raw    json.RawMessage  // of an entry that has no text to join
	object *provider.Object // of one that has
	kind   string
	index  string
	member string // that holds the text
	text   strings.Builder
}

// addDetail takes an entry, or a fragment of the entry before, in.
func (m *message) addDetail(raw json.RawMessage) {
	d := &detail{raw: raw}
	if object, err := provider.ParseObject(raw); err == nil {
		d.object, d.kind, d.index = object, object.Text("type"), string(object.Raw("index"))
	}
	switch d.kind {
	case "reasoning.text":
		d.member = "text"
	case "reasoning.summary":
		d.member = "summary"
	default:
		m.details = append(m.details, d)
		return
	}
	text := d.object.Text(d.member)
	if n := len(m.details); n > 0 && m.details[n-1].kind == d.kind && m.details[n-1].index == d.index {
		last := m.details[n-1]
		for _, name := range []string{"id", "format", "signature"} {
			if value := present(d.object.Raw(name), nil); value != nil {
				last.object.Set(name, value)
			}
		}
		d = last
	} else {
		m.details = append(m.details, d)
	}
	d.text.WriteString(text)
}

// joined is the list of all entries, or nil.
func (m *message) joined() (json.RawMessage, error) {
	if len(m.details) == 0 {
		return nil, nil
	}
	var list []json.RawMessage
	for _, d := range m.details {
		if d.member == "" {
			list = append(list, d.raw)
			continue
		}
		text, err := json.Marshal(d.text.String())
		if err != nil {
			return nil, fmt.Errorf("write reasoning: %w", err)
		}
		d.object.Set(d.member, text)
		raw, err := json.Marshal(d.object)
		if err != nil {
			return nil, fmt.Errorf("write reasoning: %w", err)
		}
		list = append(list, raw)
	}
	return json.Marshal(list)
}
