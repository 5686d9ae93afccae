package responses

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// maxCallID is the most characters of a call id that the API takes back. It was
// seen to hand out longer ones.
const maxCallID = 64

// native is the form in which items are stored and sent back: as the API wrote
// them, but without the ids that it would look up. Nothing is stored there, so it
// would answer 404, or miss the reasoning that belongs to a message.
func native(output []json.RawMessage, items []item) (json.RawMessage, error) {
	all := make([]json.RawMessage, len(output))
	for i, it := range items {
		all[i] = output[i]
		if it.anonymous() {
			var err error
			if all[i], err = edit(output[i], map[string]json.RawMessage{"id": nil}); err != nil {
				return nil, err
			}
		}
	}
	raw, err := json.Marshal(all) // as the journal will write it, so that it changes nothing
	if err != nil {
		return nil, fmt.Errorf("write items: %w", err)
	}
	return raw, nil
}

// anonymous reports whether an item is sent back without its id. Items of the
// server's own tools keep theirs, as does reasoning in plain text: the servers
// that write it look nothing up, and some demand one.
func (it item) anonymous() bool {
	switch it.Type {
	case typeMessage, typeCall:
		return true
	case typeReasoning:
		return it.Encrypted != "" || len(it.Content) == 0
	}
	return false
}

// assistant sends the stored items back as they are, except that
//
//   - reasoning of another model is left out, because only the model that wrote it
//     can decrypt it, and so is reasoning that nothing follows;
//   - call ids that the API could not tell apart or would refuse are exchanged for
//     loopd's, and arguments that are no JSON object for an empty one.
//
// It returns nothing for a message with nothing in it.
func (e encoder) assistant(m loop.Message, ids *provider.CallIDs) ([]json.RawMessage, error) {
	calls := m.Calls()
	for i := range calls {
		if len(calls[i].ProviderID) > maxCallID {
			calls[i].ProviderID = ""
		}
	}
	wireIDs, _ := ids.Assign(calls)
	if m.Native == nil || m.Native.Wire != wire {
		return rebuild(m, wireIDs)
	}
	var stored []json.RawMessage
	if err := json.Unmarshal(m.Native.JSON, &stored); err != nil {
		return nil, fmt.Errorf("stored assistant message: %w", err)
	}
	items, err := parseItems(stored)
	if err != nil {
		return nil, fmt.Errorf("stored assistant message: %w", err)
	}
	own := m.Model == "" || m.Model == e.model
	var sent []json.RawMessage
	whole := 0 // items up to the last that is not reasoning
	for i, it := range items {
		id := ""
		if it.Type == typeCall && len(wireIDs) > 0 {
			id, wireIDs = wireIDs[0], wireIDs[1:]
		}
		if it.empty() || it.Type == typeReasoning && !own {
			continue
		}
		raw := stored[i]
		if it.Type == typeCall {
			if raw, err = it.sendable(raw, id); err != nil {
				return nil, fmt.Errorf("stored assistant message: %w", err)
			}
		}
		sent = append(sent, raw)
		if it.Type != typeReasoning {
			whole = len(sent)
		}
	}
	return sent[:whole], nil
}

// empty reports whether there is nothing in an item that a model can use. The
// summary of reasoning is for people.
func (it item) empty() bool {
	switch it.Type {
	case typeMessage:
		return len(it.Content) == 0
	case typeReasoning:
		return it.Encrypted == "" && len(it.Content) == 0
	}
	return false
}

// sendable is a stored call under the id that it has in this request, with
// arguments that the API accepts.
func (it item) sendable(stored json.RawMessage, id string) (json.RawMessage, error) {
	changes := map[string]json.RawMessage{}
	if id != "" && id != string(it.CallID) {
		changes["call_id"] = quote(id)
	}
	if args := string(provider.ObjectOr(it.args())); !bytes.HasPrefix(it.Arguments, []byte(`"`)) || args != it.args() {
		changes["arguments"] = quote(args)
	}
	if len(changes) == 0 {
		return stored, nil
	}
	return edit(stored, changes)
}

// quote writes a JSON string.
func quote(s string) json.RawMessage {
	raw, err := json.Marshal(s)
	if err != nil { // no string fails
		return json.RawMessage(`""`)
	}
	return raw
}

// edit replaces and adds members of an object; nil removes one. All others keep
// their order and exact bytes.
func edit(object json.RawMessage, changes map[string]json.RawMessage) (json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(object))
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("read item: %w", err)
	}
	out := make([]byte, 0, len(object))
	add := func(key string, value json.RawMessage) {
		if value == nil {
			return
		}
		if len(out) > 0 {
			out = append(out, ',')
		}
		out = append(append(append(out, quote(key)...), ':'), value...)
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("read item: %w", err)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, fmt.Errorf("read item: %w", err)
		}
		key := fmt.Sprint(name)
		if change, ok := changes[key]; ok {
			value = change
			delete(changes, key)
		}
		add(key, value)
	}
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		add(key, changes[key])
	}
	return slices.Concat([]byte("{"), out, []byte("}")), nil
}

// rebuild writes a message that another wire format recorded. Its reasoning is
// left out: only the server that wrote it can read it.
func rebuild(m loop.Message, ids []string) ([]json.RawMessage, error) {
	var items []any
	for _, p := range m.Parts {
		switch p.Kind {
		case loop.PartText, loop.PartRefusal:
			if p.Text != "" {
				items = append(items, message{Role: loop.RoleAssistant, Content: p.Text})
			}
		case loop.PartToolCall:
			items = append(items, call{
				Type: typeCall, CallID: ids[0], Name: p.Call.Name, Arguments: string(provider.ObjectOr(p.Call.Args)),
			})
			ids = ids[1:]
		}
	}
	return marshal(items)
}
