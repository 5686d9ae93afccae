package openapi_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/api/openapi"
)

// document is as much of an OpenAPI document as these tests read.
type document struct {
	OpenAPI    string                          `json:"openapi"`
	Paths      map[string]map[string]operation `json:"paths"`
	Components struct {
		Schemas map[string]schema `json:"schemas"`
	} `json:"components"`
}

type operation struct {
	OperationID string      `json:"operationId"`
	Parameters  []parameter `json:"parameters"`
	Responses   map[string]struct {
		Content map[string]any `json:"content"`
	} `json:"responses"`
}

type parameter struct {
	Name string `json:"name"`
	In   string `json:"in"`
}

type schema struct {
	Properties map[string]schema `json:"properties"`
	Enum       []string          `json:"enum"`
	MaxLength  int               `json:"maxLength"`
	Pattern    string            `json:"pattern"`
	Maximum    int               `json:"maximum"`
	MaxItems   int               `json:"maxItems"`
}

func TestEveryMethodIsDescribed(t *testing.T) {
	t.Parallel()
	var want []string
	for _, file := range []protoreflect.FileDescriptor{
		loopdv1.File_loopd_v1_agent_service_proto, loopdv1.File_loopd_v1_run_service_proto, loopdv1.File_loopd_v1_tool_service_proto,
		loopdv1.File_loopd_v1_approval_service_proto, loopdv1.File_loopd_v1_policy_service_proto, loopdv1.File_loopd_v1_budget_service_proto,
		loopdv1.File_loopd_v1_usage_service_proto, loopdv1.File_loopd_v1_guard_service_proto, loopdv1.File_loopd_v1_retention_service_proto,
	} {
		service := file.Services().Get(0)
		for i := range service.Methods().Len() {
			want = append(want, string(service.Name())+"_"+string(service.Methods().Get(i).Name()))
		}
	}
	var got []string
	for _, op := range operations(read(t)) {
		got = append(got, op.OperationID)
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
}

func TestEveryPathParameterIsDeclared(t *testing.T) {
	t.Parallel()
	for path, op := range operations(read(t)) {
		_, path, _ = strings.Cut(path, " ")
		for _, p := range op.Parameters {
			if p.In == "path" && !strings.Contains(path, "{"+p.Name+"}") {
				t.Errorf("%s: parameter %q is not in the path", path, p.Name)
			}
			path = strings.Replace(path, "{"+p.Name+"}", "", 1)
		}
		if strings.Contains(path, "{") {
			t.Errorf("%s: a parameter of the path is not declared", path)
		}
	}
}

func TestEveryOperationSaysHowItIsRefused(t *testing.T) {
	t.Parallel()
	doc := read(t)
	for path, op := range operations(doc) {
		if op.Responses["default"].Content["application/problem+json"] == nil {
			t.Errorf("%s has no problem document", path)
		}
	}
	var want []string
	for i, name := range loopdv1.ErrorReason_name {
		if i != 0 {
			want = append(want, strings.TrimPrefix(name, "ERROR_REASON_"))
		}
	}
	slices.Sort(want)
	got := slices.Sorted(slices.Values(doc.Components.Schemas["Problem"].Properties["reason"].Enum))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}

func TestRESTAdditionsAreDescribed(t *testing.T) {
	t.Parallel()
	ops := operations(read(t))
	create := parameter{Name: "Idempotency-Key", In: "header"}
	if !slices.Contains(ops["post /v1/runs"].Parameters, create) {
		t.Errorf("creating a run has the parameters %v, want %v among them", ops["post /v1/runs"].Parameters, create)
	}
	events := ops["get /v1/runs/{run}/events"]
	if resume := (parameter{Name: "Last-Event-ID", In: "header"}); !slices.Contains(events.Parameters, resume) {
		t.Errorf("listing events has the parameters %v, want %v among them", events.Parameters, resume)
	}
	if kinds := slices.Sorted(maps.Keys(events.Responses["200"].Content)); !slices.Contains(kinds, "text/event-stream") {
		t.Errorf("listing events answers %v, want text/event-stream among them", kinds)
	}
}

func TestRulesAreDescribed(t *testing.T) {
	t.Parallel()
	schemas := read(t).Components.Schemas
	got := []schema{
		schemas["loopd.v1.Tool"].Properties["name"],
		schemas["loopd.v1.Tool"].Properties["maxResultBytes"],
		schemas["loopd.v1.AgentSpec"].Properties["tools"],
		schemas["loopd.v1.AgentSpec"].Properties["instructions"],
	}
	want := []schema{{Pattern: "^[a-zA-Z0-9_-]{1,64}$"}, {Maximum: 1 << 20}, {MaxItems: 128}, {MaxLength: 100_000}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("limits in the schemas (-want +got):\n%s", diff)
	}
}

func read(t *testing.T) document {
	t.Helper()
	var doc document
	if err := json.Unmarshal(openapi.JSON, &doc); err != nil {
		t.Fatalf("openapi.json: %v", err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1.") {
		t.Fatalf("openapi.json has version %q, want 3.1", doc.OpenAPI)
	}
	return doc
}

// operations are the operations of the document by "method path".
func operations(doc document) map[string]operation {
	all := make(map[string]operation)
	for path, item := range doc.Paths {
		for method, op := range item {
			all[method+" "+path] = op
		}
	}
	return all
}
