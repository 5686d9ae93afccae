package provider

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Object is a JSON object whose members keep their order and exact values, also
// those that loopd does not know.
type Object struct {
	keys   []string
	values map[string]json.RawMessage
}

// ParseObject reads one JSON object.
func ParseObject(raw []byte) (*Object, error) {
	o := &Object{values: map[string]json.RawMessage{}}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("read object: it begins with %v", t)
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("read object: %w", err)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, fmt.Errorf("read object member %v: %w", key, err)
		}
		o.Set(fmt.Sprint(key), value)
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("read object: %w", err)
	}
	return o, nil
}

// Set replaces a member in place, or appends it.
func (o *Object) Set(key string, value json.RawMessage) {
	if _, has := o.values[key]; !has {
		o.keys = append(o.keys, key)
	}
	o.values[key] = value
}

// Text is the value of a string member, or "".
func (o *Object) Text(key string) string {
	var s string
	if json.Unmarshal(o.values[key], &s) != nil {
		return ""
	}
	return s
}

// Raw is the value of a member, or nil.
func (o *Object) Raw(key string) json.RawMessage { return o.values[key] }

// MarshalJSON writes the members in the order they came.
func (o *Object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, key := range o.keys {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(key)
		if err != nil {
			return nil, fmt.Errorf("write member name: %w", err)
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(o.values[key])
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}
