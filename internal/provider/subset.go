package provider

import (
	"encoding/json"
	"slices"
	"strings"
)

// Subset is the part of JSON Schema that a provider can hold a model to. A schema
// is sent as it is, or not at all: one that was rewritten would let through what
// its author forbids, or forbid what the author lets through.
type Subset struct {
	Keywords []string // all that may stand in a schema
	Formats  []string // that a string may be asked to have, if the keyword format is one of Keywords

	Closed    bool // every object says additionalProperties: false
	Complete  bool // every property of an object is required
	Recursive bool // a schema may refer to what it is a part of
	RefAlone  bool // nothing stands beside a $ref

	MinItems   int64 // the most that minItems may say; -1: whatever
	Depth      int   // of objects and arrays in each other; 0: any
	Properties int   // in the whole schema; 0: any
	Optional   int   // properties that are not required; 0: any
	Unions     int   // properties of more than one type; 0: any
}

// keywords of a schema, as far as any subset looks into them.
type keywords struct {
	Type       json.RawMessage            `json:"type"`
	Ref        string                     `json:"$ref"`
	Format     string                     `json:"format"`
	Enum       []json.RawMessage          `json:"enum"`
	MinItems   *int64                     `json:"minItems"`
	Properties map[string]json.RawMessage `json:"properties"`
	Required   []string                   `json:"required"`
	Additional json.RawMessage            `json:"additionalProperties"`
	Items      json.RawMessage            `json:"items"`
	Prefix     []json.RawMessage          `json:"prefixItems"`
	AnyOf      []json.RawMessage          `json:"anyOf"`
	OneOf      []json.RawMessage          `json:"oneOf"`
	Defs       map[string]json.RawMessage `json:"$defs"`
	OldDefs    map[string]json.RawMessage `json:"definitions"`
}

// IsObject reports whether a schema asks for a JSON object, by its own type: the
// least that every provider wants of the schema of an answer.
func IsObject(schema json.RawMessage) bool {
	var root keywords
	return json.Unmarshal(schema, &root) == nil && string(root.Type) == `"object"`
}

// Takes reports whether a schema of an object lies within the subset.
func (s Subset) Takes(schema json.RawMessage) bool {
	w := subsetWalk{Subset: s, defs: map[string]json.RawMessage{}, within: map[string]bool{}}
	var root keywords
	if !IsObject(schema) || json.Unmarshal(schema, &root) != nil {
		return false
	}
	w.defs["#"] = schema
	for prefix, defs := range map[string]map[string]json.RawMessage{"#/$defs/": root.Defs, "#/definitions/": root.OldDefs} {
		for name, def := range defs {
			w.defs[prefix+name] = def
		}
	}
	if !w.takes(schema, 0) || !atMost(w.properties, s.Properties) || !atMost(w.optional, s.Optional) || !atMost(w.unions, s.Unions) {
		return false
	}
	for _, def := range w.defs { // those that nothing refers to as well; the counts do not matter any more
		if !w.takes(def, 0) {
			return false
		}
	}
	return true
}

func atMost(n, limit int) bool { return limit == 0 || n <= limit }

// subsetWalk walks through one schema, and through what it refers to at each place:
// that is how often a provider compiles it.
type subsetWalk struct {
	Subset
	defs                         map[string]json.RawMessage
	within                       map[string]bool // references that are being walked through
	visits                       int
	properties, optional, unions int
}

// mostVisits bounds the walk through schemas that refer to themselves in many places.
const mostVisits = 10_000

func (w *subsetWalk) takes(schema json.RawMessage, depth int) bool {
	var members map[string]json.RawMessage
	var k keywords
	if w.visits++; w.visits > mostVisits || json.Unmarshal(schema, &members) != nil || members == nil || json.Unmarshal(schema, &k) != nil {
		return false
	}
	for name := range members {
		if !slices.Contains(w.Keywords, name) {
			return false
		}
	}
	if k.Ref != "" {
		return w.takesRef(k.Ref, len(members), depth)
	}
	if k.Type == nil && k.AnyOf == nil && k.OneOf == nil { // what is not typed can be anything
		return false
	}
	nested := depth
	if k.is("object") || k.is("array") {
		nested++
	}
	return atMost(nested, w.Depth) && w.takesValues(k) && w.takesObject(k) && w.takesParts(k, nested)
}

// takesRef follows a reference to the schema's own definitions.
func (w *subsetWalk) takesRef(ref string, members, depth int) bool {
	target, known := w.defs[ref]
	switch {
	case !known, w.RefAlone && members > 1:
		return false
	case w.within[ref], ref == "#":
		return w.Recursive
	}
	w.within[ref] = true
	defer delete(w.within, ref)
	return w.takes(target, depth)
}

// takesValues checks what is said of values that hold no others.
func (w *subsetWalk) takesValues(k keywords) bool {
	if k.MinItems != nil && w.MinItems >= 0 && *k.MinItems > w.MinItems {
		return false
	}
	for _, v := range k.Enum {
		if v[0] == '{' || v[0] == '[' {
			return false
		}
	}
	return k.Format == "" || slices.Contains(w.Formats, k.Format)
}

// takesObject checks what is said of the properties as a whole.
func (w *subsetWalk) takesObject(k keywords) bool {
	if !k.is("object") {
		return k.Properties == nil
	}
	if w.Closed && string(k.Additional) != "false" {
		return false
	}
	w.properties += len(k.Properties)
	for name, property := range k.Properties {
		if !slices.Contains(k.Required, name) {
			if w.Complete {
				return false
			}
			w.optional++
		}
		var p keywords
		if json.Unmarshal(property, &p) == nil && (len(p.AnyOf) > 0 || len(p.OneOf) > 0 || strings.HasPrefix(string(p.Type), "[")) {
			w.unions++
		}
	}
	return true
}

// takesParts checks the schemas inside of the schema.
func (w *subsetWalk) takesParts(k keywords, depth int) bool {
	parts := slices.Concat(k.Prefix, k.AnyOf, k.OneOf)
	for _, property := range k.Properties {
		parts = append(parts, property)
	}
	if k.Items != nil {
		parts = append(parts, k.Items)
	}
	if k.is("array") && k.Items == nil && k.Prefix == nil {
		return false
	}
	if additional := string(k.Additional); additional != "" && additional != "true" && additional != "false" {
		parts = append(parts, k.Additional)
	}
	for _, part := range parts {
		if !w.takes(part, depth) {
			return false
		}
	}
	return true
}

// is reports whether the type is the one, or has it among others.
func (k keywords) is(kind string) bool { return strings.Contains(string(k.Type), `"`+kind+`"`) }

// OpenAI is what strict mode takes at OpenAI, and at those who imitate it, in the
// Chat Completions as in the Responses API. Outside of it the API takes any schema
// of an object, and follows it as well as it can.
// Source: https://developers.openai.com/api/docs/guides/structured-outputs, "Supported schemas".
func OpenAI() Subset {
	return Subset{
		Keywords: []string{
			"$schema", "$defs", "definitions", "$ref", "title", "description", "type", "enum", "const", "anyOf",
			"properties", "required", "additionalProperties", "items", "minItems", "maxItems",
			"pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
		},
		Formats: []string{"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"},
		Closed:  true, Complete: true, Recursive: true, RefAlone: true, MinItems: -1, Depth: 10, Properties: 5000,
	}
}

// SchemaName is what the schema of an answer is called, where a provider wants a name.
const SchemaName = "answer"
