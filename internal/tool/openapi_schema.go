package tool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// schemas turns the schemas of one operation into JSON Schema 2020-12, and
// collects the components that they refer to.
type schemas struct {
	op   *operation
	old  bool           // the dialect of OpenAPI 3.0, not JSON Schema 2020-12
	defs map[string]any // components, converted
}

func newSchemas(op *operation) schemas {
	return schemas{op: op, old: op.doc.IsOpenAPI30(), defs: map[string]any{}}
}

// convert turns a schema into one that is an object. None is one that takes anything.
func (s *schemas) convert(ref *openapi3.SchemaRef) (map[string]any, error) {
	if ref == nil {
		return map[string]any{}, nil
	}
	text, err := json.Marshal(ref)
	if err != nil {
		return nil, fmt.Errorf("has a schema that cannot be written: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var schema any
	if err := dec.Decode(&schema); err != nil {
		return nil, fmt.Errorf("has a schema that cannot be read: %w", err)
	}
	converted, ok := s.schema(schema).(map[string]any)
	if !ok { // true takes anything, and so what false would mean is left to the tool
		return map[string]any{}, nil
	}
	return converted, nil
}

// definitions are all components that a value refers to, itself or through others.
func (s *schemas) definitions(value any) map[string]any {
	needed := map[string]any{}
	var walk func(value any)
	walk = func(value any) {
		switch value := value.(type) {
		case []any:
			for _, item := range value {
				walk(item)
			}
		case map[string]any:
			if name, ok := definition(value); ok && needed[name] == nil {
				s.define(name)
				needed[name] = s.defs[name]
				walk(needed[name])
			}
			for _, key := range slices.Sorted(maps.Keys(value)) {
				walk(value[key])
			}
		}
	}
	walk(value)
	return needed
}

// definitionsAt is where converted schemas find components.
const definitionsAt = "#/$defs/"

// definition is the component that a schema refers to, or to a part of.
func definition(schema map[string]any) (name string, ok bool) {
	ref, _ := schema["$ref"].(string)
	rest, ok := strings.CutPrefix(ref, definitionsAt)
	name, _, _ = strings.Cut(rest, "/")
	return name, ok
}

// define converts a component, once.
func (s *schemas) define(name string) {
	if _, done := s.defs[name]; done {
		return
	}
	s.defs[name] = map[string]any{} // a component may refer to itself
	if c := s.op.doc.Components; c == nil || c.Schemas[name] == nil {
		s.op.warnf("schema %s is not defined; anything passes for it", name)
		return
	}
	schema, err := s.convert(s.op.doc.Components.Schemas[name])
	if err != nil {
		s.op.warnf("schema %s %v; anything passes for it", name, err)
		return
	}
	s.defs[name] = schema
}

// resolve follows the reference that a converted schema consists of. It gives up
// on long chains, which are circles.
func (s *schemas) resolve(schema map[string]any) map[string]any {
	for range maxDepth {
		name, ok := definition(schema)
		if !ok || schema["$ref"] != definitionsAt+name {
			return schema
		}
		s.define(name)
		schema, _ = s.defs[name].(map[string]any) // all of them are
	}
	return schema
}

// schema converts a schema of a document's dialect.
func (s *schemas) schema(value any) any {
	schema, ok := value.(map[string]any)
	if !ok {
		return value
	}
	for key, child := range schema {
		switch key {
		case "properties", "patternProperties", "$defs", "dependentSchemas":
			s.each(child)
		case "allOf", "anyOf", "oneOf", "prefixItems":
			s.each(child)
		case "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
			"unevaluatedItems", "unevaluatedProperties", "contentSchema":
			schema[key] = s.schema(child)
		}
	}
	maps.DeleteFunc(schema, func(key string, _ any) bool {
		return key == "xml" || key == "externalDocs" || key == "discriminator" || key == "allowEmptyValue" || strings.HasPrefix(key, "x-")
	})
	if example, has := schema["example"]; has {
		delete(schema, "example")
		if schema["examples"] == nil {
			schema["examples"] = []any{example}
		}
	}
	s.patterns(schema)
	if !s.old {
		s.reference(schema)
		return schema
	}
	return s.modern(schema)
}

// each converts the schemas in an object or an array.
func (s *schemas) each(values any) {
	switch values := values.(type) {
	case map[string]any:
		for name, value := range values {
			values[name] = s.schema(value)
		}
	case []any:
		for i, value := range values {
			values[i] = s.schema(value)
		}
	}
}

// reference makes a reference to a component one to a definition.
func (s *schemas) reference(schema map[string]any) {
	ref, ok := schema["$ref"].(string)
	if !ok {
		return
	}
	rest, ok := strings.CutPrefix(ref, "#/components/schemas/")
	if !ok {
		s.op.warnf("a schema refers to %s, which is no component; anything passes for it", ref)
		delete(schema, "$ref")
		return
	}
	schema["$ref"] = definitionsAt + rest
}

// modern says in JSON Schema 2020-12 what the dialect of OpenAPI 3.0 says in its
// own way: what stands beside a reference is ignored, null is said by nullable,
// and exclusive bounds are booleans.
func (s *schemas) modern(schema map[string]any) any {
	if _, has := schema["$ref"]; has {
		maps.DeleteFunc(schema, func(key string, _ any) bool { return key != "$ref" && key != "description" })
		s.reference(schema)
		return schema
	}
	for exclusive, bound := range map[string]string{"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"} {
		if is, boolean := schema[exclusive].(bool); boolean {
			delete(schema, exclusive)
			if is && schema[bound] != nil {
				schema[exclusive] = schema[bound]
				delete(schema, bound)
			}
		}
	}
	nullable := schema["nullable"] == true
	delete(schema, "nullable")
	if !nullable {
		return schema
	}
	if values, ok := schema["enum"].([]any); ok && !slices.Contains(values, nil) {
		schema["enum"] = append(values, nil)
	}
	if kind, ok := schema["type"].(string); ok {
		schema["type"] = []any{kind, "null"}
		return schema
	}
	return map[string]any{"anyOf": []any{schema, map[string]any{"type": "null"}}}
}

// patterns drops those that loopd's regular expressions cannot say, such as
// look-aheads: the tool checks them itself.
func (s *schemas) patterns(schema map[string]any) {
	if pattern, ok := schema["pattern"].(string); ok {
		if _, err := regexp.Compile(pattern); err != nil {
			s.op.warnf("the pattern %s is not checked: %v", excerptLine(pattern), err)
			delete(schema, "pattern")
		}
	}
	named, _ := schema["patternProperties"].(map[string]any)
	for _, pattern := range slices.Sorted(maps.Keys(named)) {
		if _, err := regexp.Compile(pattern); err != nil {
			s.op.warnf("members by the pattern %s are not checked: %v", excerptLine(pattern), err)
			delete(named, pattern)
		}
	}
}
