package provider

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// tight takes nothing that it does not have to; loose takes all that it knows.
var (
	tight = Subset{
		Keywords: []string{"type", "properties", "required", "additionalProperties", "items", "enum", "anyOf", "$ref", "$defs", "format", "minItems", "description"},
		Formats:  []string{"date"}, Closed: true, Complete: true, RefAlone: true, MinItems: 1, Depth: 3, Properties: 6, Unions: 1,
	}
	loose = Subset{
		Keywords: []string{"type", "properties", "required", "additionalProperties", "items", "prefixItems", "enum", "anyOf", "oneOf", "$ref", "$defs", "definitions", "format", "minItems", "description", "pattern"},
		Formats:  []string{"date", "time"}, Recursive: true, MinItems: -1, Optional: 1,
	}
)

func TestSubset(t *testing.T) {
	t.Parallel()
	closed := func(properties string, required ...string) string {
		names := ""
		if len(required) > 0 {
			names = `"` + strings.Join(required, `","`) + `"`
		}
		return fmt.Sprintf(`{"type":"object","properties":{%s},"required":[%s],"additionalProperties":false}`, properties, names)
	}
	deep := func(n int) string {
		return strings.Repeat(`{"type":"object","additionalProperties":false,"required":["a"],"properties":{"a":`, n) + `{"type":"string"}` + strings.Repeat("}}", n)
	}
	for name, c := range map[string]struct {
		schema       string
		tight, loose bool
	}{
		"flat":                      {closed(`"a":{"type":"string"}`, "a"), true, true},
		"nothing in it":             {closed(""), true, true},
		"an open object":            {`{"type":"object","properties":{}}`, false, true},
		"an open one inside":        {closed(`"a":{"type":"object","properties":{}}`, "a"), false, true},
		"more is welcome":           {`{"type":"object","additionalProperties":{"type":"string"}}`, false, true},
		"more of what nobody says":  {`{"type":"object","additionalProperties":{}}`, false, false},
		"one may be missing":        {closed(`"a":{"type":"string"}`), false, true},
		"two may be missing":        {closed(`"a":{"type":"string"},"b":{"type":"string"}`), false, false},
		"no object":                 {`{"type":"array","items":{"type":"string"}}`, false, false},
		"an object or nothing":      {`{"type":["object","null"],"properties":{}}`, false, false},
		"a choice at the root":      {`{"anyOf":[{"type":"object"}]}`, false, false},
		"no JSON":                   {`{"type":`, false, false},
		"no schema":                 {`true`, false, false},
		"true inside":               {closed(`"a":true`, "a"), false, false},
		"without a type":            {closed(`"a":{"description":"whatever"}`, "a"), false, false},
		"a keyword of its own":      {closed(`"a":{"type":"string","x-order":1}`, "a"), false, false},
		"a property like a keyword": {closed(`"pattern":{"type":"string"}`, "pattern"), true, true},
		"a pattern":                 {closed(`"a":{"type":"string","pattern":"^a"}`, "a"), false, true},
		"a format":                  {closed(`"a":{"type":"string","format":"date"}`, "a"), true, true},
		"another format":            {closed(`"a":{"type":"string","format":"time"}`, "a"), false, true},
		"no such format":            {closed(`"a":{"type":"string","format":"zip"}`, "a"), false, false},
		"one of a few":              {closed(`"a":{"type":"string","enum":["x","y"]}`, "a"), true, true},
		"one of a few objects":      {closed(`"a":{"type":"object","enum":[{"x":1}]}`, "a"), false, false},
		"one item":                  {closed(`"a":{"type":"array","items":{"type":"string"},"minItems":1}`, "a"), true, true},
		"two items":                 {closed(`"a":{"type":"array","items":{"type":"string"},"minItems":2}`, "a"), false, true},
		"items of any kind":         {closed(`"a":{"type":"array"}`, "a"), false, false},
		"a pair":                    {closed(`"a":{"type":"array","prefixItems":[{"type":"string"},{"type":"number"}]}`, "a"), false, true},
		"string or nothing":         {closed(`"a":{"type":["string","null"]}`, "a"), true, true},
		"two of more than one type": {closed(`"a":{"type":["string","null"]},"b":{"anyOf":[{"type":"string"},{"type":"null"}]}`, "a", "b"), false, true},
		"a choice of open objects":  {closed(`"a":{"anyOf":[{"type":"object"},{"type":"null"}]}`, "a"), false, true},
		"just deep enough":          {deep(3), true, true},
		"too deep":                  {deep(4), false, true},
		"six properties":            {closed(`"a":{"type":"string"},"b":{"type":"string"},"c":{"type":"string"},"d":{"type":"string"},"e":{"type":"string"},"f":{"type":"string"}`, "a", "b", "c", "d", "e", "f"), true, true},
		"seven properties":          {closed(`"a":{"type":"string"},"b":{"type":"string"},"c":{"type":"string"},"d":{"type":"string"},"e":{"type":"string"},"f":{"type":"string"},"g":{"type":"string"}`, "a", "b", "c", "d", "e", "f", "g"), false, true},
		"a definition":              {withDefs(closed(`"a":{"$ref":"#/$defs/x"}`, "a"), closed(`"b":{"type":"string"}`, "b")), true, true},
		"a definition with a word":  {withDefs(closed(`"a":{"$ref":"#/$defs/x","description":"hm"}`, "a"), closed("")), false, true},
		"an open definition":        {withDefs(closed(`"a":{"$ref":"#/$defs/x"}`, "a"), `{"type":"object"}`), false, true},
		"an unused definition":      {withDefs(closed(`"a":{"type":"string"}`, "a"), `{"type":"object"}`), false, true},
		"a list of itself":          {withDefs(closed(`"a":{"$ref":"#/$defs/x"}`, "a"), closed(`"next":{"$ref":"#/$defs/x"}`, "next")), false, true},
		"all of itself":             {closed(`"a":{"$ref":"#"}`, "a"), false, true},
		"no such definition":        {closed(`"a":{"$ref":"#/$defs/y"}`, "a"), false, false},
		"somebody else's":           {closed(`"a":{"$ref":"https://example.com/a.json"}`, "a"), false, false},
	} {
		if got := tight.Takes(json.RawMessage(c.schema)); got != c.tight {
			t.Errorf("%s: the tight subset takes it: %v, want %v\n%s", name, got, c.tight, c.schema)
		}
		if got := loose.Takes(json.RawMessage(c.schema)); got != c.loose {
			t.Errorf("%s: the loose subset takes it: %v, want %v\n%s", name, got, c.loose, c.schema)
		}
	}
}

// TestSubsetBounds: a schema that refers to itself in many places is given up.
func TestSubsetBounds(t *testing.T) {
	t.Parallel()
	defs := map[string]any{}
	for i := range 20 {
		ref := func() map[string]any { return map[string]any{"$ref": fmt.Sprintf("#/$defs/d%d", i+1)} }
		defs[fmt.Sprintf("d%d", i)] = map[string]any{"type": "object", "properties": map[string]any{"a": ref(), "b": ref()}, "required": []string{"a", "b"}}
	}
	defs["d20"] = map[string]any{"type": "string"}
	schema, err := json.Marshal(map[string]any{"type": "object", "properties": map[string]any{"a": map[string]any{"$ref": "#/$defs/d0"}}, "required": []string{"a"}, "$defs": defs})
	if err != nil {
		t.Fatal(err)
	}
	if loose.Takes(schema) {
		t.Error("a schema of a million places is taken")
	}
}

func withDefs(schema, def string) string {
	return strings.TrimSuffix(schema, "}") + `,"$defs":{"x":` + def + `}}`
}
