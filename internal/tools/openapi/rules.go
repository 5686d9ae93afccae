package main

import (
	"fmt"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

const pkg = "loopd.v1"

// addRules writes the limits of the protovalidate rules into the schemas of
// messages, request bodies and query parameters. Rules in CEL stay in the
// descriptions. The generator itself does not know protovalidate.
func addRules(doc node, files *protoregistry.Files) error {
	schemas := doc.at("components", "schemas")
	for name := range schemas {
		desc, err := files.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			return fmt.Errorf("find the message of schema %s: %w", name, err)
		}
		if message, ok := desc.(protoreflect.MessageDescriptor); ok {
			limitProperties(schemas.at(name), message)
		}
	}
	for operation := range operations(doc) {
		message, err := input(operation, files)
		if err != nil {
			return err
		}
		for _, p := range operation.list("parameters") {
			if field := message.Fields().ByJSONName(p["name"].(string)); field != nil && p["in"] == "query" {
				limit(p.at("schema"), field)
			}
		}
		if operation["requestBody"] != nil {
			limitProperties(operation.at("requestBody", "content", "application/json", "schema"), message)
		}
	}
	return nil
}

// input finds the request message of an operation by its id, "Service_Method".
func input(operation node, files *protoregistry.Files) (protoreflect.MessageDescriptor, error) {
	method, err := method(operation, files)
	if err != nil {
		return nil, err
	}
	return method.Input(), nil
}

func method(operation node, files *protoregistry.Files) (protoreflect.MethodDescriptor, error) {
	id, _ := operation["operationId"].(string)
	name := pkg + "." + strings.Replace(id, "_", ".", 1)
	desc, err := files.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil, fmt.Errorf("find the method of operation %q: %w", id, err)
	}
	return desc.(protoreflect.MethodDescriptor), nil
}

// limitProperties limits the properties of an object schema; a reference has none.
func limitProperties(schema node, message protoreflect.MessageDescriptor) {
	if schema["properties"] == nil {
		return
	}
	for name := range schema.at("properties") {
		if field := message.Fields().ByJSONName(name); field != nil {
			limit(schema.at("properties", name), field)
		}
	}
}

// limit writes the rules of a field into its schema.
func limit(schema node, field protoreflect.FieldDescriptor) {
	rules, _ := proto.GetExtension(field.Options(), validate.E_Field).(*validate.FieldRules)
	optional := rules.GetIgnore() == validate.Ignore_IGNORE_IF_ZERO_VALUE
	switch {
	case rules.GetRepeated() != nil:
		setNumber(schema, "minItems", rules.GetRepeated().MinItems)
		setNumber(schema, "maxItems", rules.GetRepeated().MaxItems)
		if rules.GetRepeated().GetUnique() {
			schema["uniqueItems"] = true
		}
		limitString(schema.at("items"), rules.GetRepeated().GetItems().GetString(), false)
	case rules.GetMap() != nil:
		setNumber(schema, "maxProperties", rules.GetMap().MaxPairs)
		limitString(schema.at("propertyNames"), rules.GetMap().GetKeys().GetString(), false)
		limitString(schema.at("additionalProperties"), rules.GetMap().GetValues().GetString(), false)
	case rules.GetString() != nil:
		limitString(schema, rules.GetString(), optional)
	case rules.GetInt32() != nil:
		limitInt32(schema, rules.GetInt32())
	case rules.GetDouble() != nil:
		limitDouble(schema, rules.GetDouble())
	}
}

// limitString writes rules for text. An optional text may also be empty.
func limitString(schema node, rules *validate.StringRules, optional bool) {
	if rules == nil {
		return
	}
	setNumber(schema, "minLength", rules.MinLen)
	setNumber(schema, "maxLength", rules.MaxLen)
	if pattern := rules.GetPattern(); pattern != "" && optional {
		schema["pattern"] = "^$|" + pattern
	} else if pattern != "" {
		schema["pattern"] = pattern
	}
	for _, word := range rules.GetIn() {
		schema.add("enum", word)
	}
	if rules.GetUri() {
		schema["format"] = "uri"
	}
}

func limitInt32(schema node, rules *validate.Int32Rules) {
	if low, ok := rules.GetGreaterThan().(*validate.Int32Rules_Gte); ok {
		schema["minimum"] = low.Gte
	}
	if high, ok := rules.GetLessThan().(*validate.Int32Rules_Lte); ok {
		schema["maximum"] = high.Lte
	}
}

func limitDouble(schema node, rules *validate.DoubleRules) {
	switch low := rules.GetGreaterThan().(type) {
	case *validate.DoubleRules_Gte:
		schema["minimum"] = low.Gte
	case *validate.DoubleRules_Gt:
		schema["exclusiveMinimum"] = low.Gt
	}
	if high, ok := rules.GetLessThan().(*validate.DoubleRules_Lte); ok {
		schema["maximum"] = high.Lte
	}
}

// setNumber writes a rule that is present.
func setNumber(schema node, key string, value *uint64) {
	if value != nil {
		schema[key] = *value
	}
}
