package loopdv1_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// These tests hold for every method and field there will ever be: what a new one
// must have is refused here when it is forgotten.

func TestEveryMethodHasAnHTTPRule(t *testing.T) {
	t.Parallel()
	seen := make(map[string]protoreflect.FullName)
	for method := range methods(t) {
		rule, _ := proto.GetExtension(method.Options(), annotations.E_Http).(*annotations.HttpRule)
		verb, path := httpRule(rule)
		if !strings.HasPrefix(path, "/v1/") {
			t.Errorf("%s: google.api.http has the path %q, want one under /v1/", method.FullName(), path)
		}
		if other, ok := seen[verb+" "+path]; ok {
			t.Errorf("%s: %s %s is already the path of %s", method.FullName(), verb, path, other)
		}
		seen[verb+" "+path] = method.FullName()
	}
}

func TestEveryMutationIsSafeToRepeat(t *testing.T) {
	t.Parallel()
	for method := range methods(t) {
		rule, _ := proto.GetExtension(method.Options(), annotations.E_Http).(*annotations.HttpRule)
		verb, _ := httpRule(rule)
		has := method.Input().Fields().ByName("request_id") != nil
		// What carries secrets or documents is a POST, also when it changes nothing.
		options, _ := method.Options().(*descriptorpb.MethodOptions)
		asks := verb == "GET" || options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
		if has == asks {
			t.Errorf("%s is a %s, and changes nothing = %t: has request_id = %t, want %t", method.FullName(), verb, asks, has, !asks)
		}
	}
}

func TestEveryEnumBeginsWithUnspecified(t *testing.T) {
	t.Parallel()
	check := func(enums protoreflect.EnumDescriptors) {
		for i := range enums.Len() {
			zero := enums.Get(i).Values().Get(0)
			if zero.Number() != 0 || !strings.HasSuffix(string(zero.Name()), "_UNSPECIFIED") {
				t.Errorf("%s: the first value is %s = %d, want ..._UNSPECIFIED = 0", enums.Get(i).FullName(), zero.Name(), zero.Number())
			}
		}
	}
	for file := range files(t) {
		check(file.Enums())
		for i := range file.Messages().Len() {
			check(file.Messages().Get(i).Enums())
		}
	}
}

func TestEveryRequestFieldHasALimit(t *testing.T) {
	t.Parallel()
	seen := make(map[protoreflect.FullName]bool)
	for method := range methods(t) {
		checkLimits(t, method.Input(), seen)
	}
	for _, name := range []protoreflect.FullName{"loopd.v1.HttpTool", "loopd.v1.McpTool", "loopd.v1.AgentTool", "loopd.v1.Limits", "loopd.v1.ModelSettings", "loopd.v1.Policy", "loopd.v1.ToolResultInput", "loopd.v1.Budget", "loopd.v1.BudgetLabel"} {
		if !seen[name] {
			t.Errorf("the walk over request messages did not reach %s", name)
		}
	}
}

// checkLimits checks the fields of a message that clients send, and those of the
// messages in it.
func checkLimits(t *testing.T, message protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) {
	t.Helper()
	if seen[message.FullName()] || message.ParentFile().Package() != "loopd.v1" {
		return
	}
	seen[message.FullName()] = true
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		if outputOnly(field) {
			continue
		}
		rules, _ := proto.GetExtension(field.Options(), validate.E_Field).(*validate.FieldRules)
		if missing := missingLimit(field, rules); missing != "" {
			t.Errorf("%s: add a protovalidate rule: %s", field.FullName(), missing)
		}
		if element := element(field); element != nil {
			checkLimits(t, element, seen)
		}
	}
}

// missingLimit says which limit a field lacks, or "".
func missingLimit(field protoreflect.FieldDescriptor, rules *validate.FieldRules) string {
	switch {
	case field.IsMap() && (!rules.GetMap().HasMaxPairs() || !boundedText(rules.GetMap().GetKeys().GetString())):
		return "map.max_pairs and a limit of the keys"
	case field.IsMap():
		return missingValueLimit(field.MapValue(), rules.GetMap().GetValues())
	case field.IsList() && !rules.GetRepeated().HasMaxItems():
		return "repeated.max_items"
	case field.IsList():
		return missingValueLimit(field, rules.GetRepeated().GetItems())
	}
	return missingValueLimit(field, rules)
}

// missingValueLimit says which limit a single value lacks, or "".
func missingValueLimit(field protoreflect.FieldDescriptor, rules *validate.FieldRules) string {
	switch field.Kind() {
	case protoreflect.StringKind:
		if !boundedText(rules.GetString()) {
			return "string.max_len, in, or a pattern from ^ to $ without * and +"
		}
	case protoreflect.BytesKind:
		if !rules.GetBytes().HasMaxLen() {
			return "bytes.max_len"
		}
	case protoreflect.EnumKind:
		if !rules.GetEnum().GetDefinedOnly() {
			return "enum.defined_only"
		}
	case protoreflect.Int32Kind:
		if !rules.GetInt32().HasGte() {
			return "int32.gte"
		}
	case protoreflect.Int64Kind:
		if !rules.GetInt64().HasGte() {
			return "int64.gte"
		}
	case protoreflect.DoubleKind:
		if !rules.GetDouble().HasLte() {
			return "double.lte"
		}
	case protoreflect.MessageKind:
		return missingMessageLimit(field.Message().FullName(), rules)
	}
	return ""
}

func missingMessageLimit(message protoreflect.FullName, rules *validate.FieldRules) string {
	switch message {
	case "google.protobuf.Duration":
		if !rules.GetDuration().HasGte() || !rules.GetDuration().HasLte() {
			return "duration.gte and duration.lte"
		}
	case "google.protobuf.FieldMask":
		if len(rules.GetFieldMask().GetIn()) == 0 {
			return "field_mask.in"
		}
	}
	return ""
}

// boundedText reports whether rules bound the length of a text.
func boundedText(rules *validate.StringRules) bool {
	if rules.HasMaxLen() || len(rules.GetIn()) > 0 {
		return true
	}
	pattern := rules.GetPattern()
	return strings.HasPrefix(pattern, "^") && strings.HasSuffix(pattern, "$") && !strings.ContainsAny(pattern, "*+")
}

// TestPrintedProtosMatchTheLinkedTypes keeps the module that prints
// third_party/proto at the versions that loopd itself is built with.
func TestPrintedProtosMatchTheLinkedTypes(t *testing.T) {
	t.Parallel()
	product, printer := requirements(t, "../../../go.mod"), requirements(t, "../../../internal/tools/printproto/go.mod")
	for _, module := range []string{
		"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go",
		"google.golang.org/genproto/googleapis/api",
		"google.golang.org/protobuf",
	} {
		if product[module] == "" || product[module] != printer[module] {
			t.Errorf("%s: internal/tools/printproto has %q, loopd has %q: make them equal and run make generate", module, printer[module], product[module])
		}
	}
}

// requirements reads the versions of a go.mod by module.
func requirements(t *testing.T, path string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	versions := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) >= 2 {
			versions[words[0]] = words[1]
		}
	}
	return versions
}

// methods yields every method of the API.
func methods(t *testing.T) func(yield func(protoreflect.MethodDescriptor) bool) {
	t.Helper()
	return func(yield func(protoreflect.MethodDescriptor) bool) {
		for file := range files(t) {
			for i := range file.Services().Len() {
				service := file.Services().Get(i)
				for j := range service.Methods().Len() {
					if !yield(service.Methods().Get(j)) {
						return
					}
				}
			}
		}
	}
}

// files yields every file of the API.
func files(t *testing.T) func(yield func(protoreflect.FileDescriptor) bool) {
	t.Helper()
	pkg := loopdv1.File_loopd_v1_run_service_proto.Package()
	if n := protoregistry.GlobalFiles.NumFilesByPackage(pkg); n < 10 {
		t.Fatalf("%d files of %s are linked, want all", n, pkg)
	}
	return func(yield func(protoreflect.FileDescriptor) bool) {
		protoregistry.GlobalFiles.RangeFilesByPackage(pkg, yield)
	}
}

// element is the message that a field holds, alone, in a list or in a map.
func element(field protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if field.IsMap() {
		return field.MapValue().Message()
	}
	return field.Message()
}

func outputOnly(field protoreflect.FieldDescriptor) bool {
	behaviors, _ := proto.GetExtension(field.Options(), annotations.E_FieldBehavior).([]annotations.FieldBehavior)
	return slices.Contains(behaviors, annotations.FieldBehavior_OUTPUT_ONLY)
}

func httpRule(rule *annotations.HttpRule) (verb, path string) {
	switch pattern := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		return "GET", pattern.Get
	case *annotations.HttpRule_Post:
		return "POST", pattern.Post
	case *annotations.HttpRule_Patch:
		return "PATCH", pattern.Patch
	case *annotations.HttpRule_Put:
		return "PUT", pattern.Put
	case *annotations.HttpRule_Delete:
		return "DELETE", pattern.Delete
	}
	return "", ""
}
