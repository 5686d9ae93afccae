package tool

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

type recordedSchema struct {
	ID         string          `json:"id"`
	Parameters json.RawMessage `json:"parameters"`
	Valid      bool            `json:"schema_valid"`
	Calls      []struct {
		Args    json.RawMessage `json:"args"`
		Verdict string          `json:"verdict"`
		Reasons json.RawMessage `json:"reasons"`
	} `json:"calls"`
}

func recordedSchemas(t *testing.T) []recordedSchema {
	t.Helper()
	f, err := os.Open("testdata/schemas.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []recordedSchema
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var s recordedSchema
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// Real schemas and real calls get the verdict that another validator gave them.
func TestProblemAgreesWithRecordedVerdicts(t *testing.T) {
	t.Parallel()
	r := New(Config{})
	verdicts := map[string]int{}
	for _, s := range recordedSchemas(t) {
		if problems := ValidateSchema(s.Parameters); s.Valid != (len(problems) == 0) {
			t.Errorf("schema %s: problems %q, recorded valid = %v", s.ID, problems, s.Valid)
		}
		for _, call := range s.Calls {
			verdicts[call.Verdict]++
			problem := r.Problem(loop.ToolSpec{Schema: s.Parameters}, string(call.Args))
			if passes := problem == ""; passes != (call.Verdict == "valid") {
				t.Errorf("schema %s: Problem(%.200s) = %q, recorded %s %s", s.ID, call.Args, problem, call.Verdict, call.Reasons)
			}
			if len(problem) > maxProblemBytes+len("…") {
				t.Errorf("schema %s: a problem of %d bytes", s.ID, len(problem))
			}
		}
	}
	if diff := cmp.Diff(map[string]int{"valid": 150, "invalid": 62, "bad-schema": 12}, verdicts); diff != "" {
		t.Errorf("calls checked (-want +got):\n%s", diff)
	}
}

const orderSchema = `{"type":"object","required":["order_id","items"],"additionalProperties":false,"properties":{
	"order_id":{"type":"string","pattern":"^#W"},
	"count":{"type":"integer","maximum":5},
	"mode":{"enum":["fast","slow"]},
	"when":{"anyOf":[{"type":"string"},{"type":"object","required":["at"]}]},
	"items":{"type":"array","items":{"type":"object","properties":{"odd name":{"type":"boolean"}}}}}}`

func TestProblemNamesPathExpectedAndGot(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65)
	for args, want := range map[string]string{
		`{"order_id":"#W1","items":[]}`: "",
		``:                              "arguments.items: required, but missing; arguments.order_id: required, but missing",
		`{"order_id":5,"items":[]}`:     "arguments.order_id: expected string, got number (5)",
		`{"order_id":"W1","items":[]}`:  `arguments.order_id: 'W1' does not match pattern '^#W', got string ("W1")`,
		`{"order_id":"#W1","items":[{},{"odd name":3}]}`:       `arguments.items[1]["odd name"]: expected boolean, got number (3)`,
		`{"order_id":"#W1","items":{},"extra":1}`:              "arguments.extra: not a property of this schema; remove it; arguments.items: expected array, got object",
		`{"order_id":"#W1","items":[],"mode":"quick"}`:         `arguments.mode: expected one of "fast", "slow", got string ("quick")`,
		`{"order_id":"#W1","items":[],"when":3}`:               "arguments.when: matches none of the allowed forms (arguments.when: expected string, got number (3); or arguments.when: expected object, got number (3))",
		`{"order_id":"#W1","items":[],"count":12345678901234}`: "arguments.count: expected at most 5, got number (12345678901234)",
		`{"order_id":"#W1","order_id":"#W2","items":[]}`:       "arguments.order_id: given twice",
		`{"order_id":"#W1","items":[`:                          "arguments.items: not valid JSON: the text ends at byte 27, before the value is complete",
		`{"order_id":"#W1","items":[]} ok`:                     "arguments: more text after the JSON value ends at byte 29",
		`{"order_id":1e999999999,"items":[]}`:                  "arguments.order_id: number out of range",
		"{\"order_id\":\"\xff\",\"items\":[]}":                 "arguments: not valid UTF-8",
		`null`:                                                 "arguments: expected object, got null",
		deep:                                                   "arguments" + strings.Repeat(".a", 64) + ": nested more than 64 levels deep",
	} {
		got := New(Config{}).Problem(loop.ToolSpec{Schema: json.RawMessage(orderSchema)}, args)
		if got != want {
			t.Errorf("Problem(%.60s)\n got %q\nwant %q", args, got, want)
		}
	}
}

// A schema means what its dialect says: these keywords differ between the two.
func TestDialects(t *testing.T) {
	t.Parallel()
	const draft7 = `"$schema":"http://json-schema.org/draft-07/schema#",`
	const body = `"type":"object","properties":{"pair":{"items":[{"type":"string"},{"type":"integer"}],"additionalItems":false},"n":{"$ref":"#/definitions/n","maximum":1}},
		"dependencies":{"a":["b"]},"if":{"required":["c"]},"then":{"required":["d"]},"definitions":{"n":{"exclusiveMinimum":0}}}`
	for args, want := range map[string]string{
		`{"pair":["x",1],"n":5}`: "",
		`{"pair":[1,1]}`:         "arguments.pair[0]: expected string, got number (1)",
		`{"pair":["x",1,2]}`:     "arguments.pair: last 1 additionalItem(s) not allowed, got array (3 items)",
		`{"n":0}`:                "arguments.n: expected more than 0, got number (0)",
		`{"a":1}`:                "arguments.b: required, because arguments.a is given, but missing",
		`{"c":1}`:                "arguments.d: required, but missing",
	} {
		if got := New(Config{}).Problem(loop.ToolSpec{Schema: json.RawMessage("{" + draft7 + body)}, args); got != want {
			t.Errorf("draft-07, %s: %q, want %q", args, got, want)
		}
	}
	const now = `{"type":"object","properties":{"pair":{"prefixItems":[{"type":"string"}],"items":false},"n":{"$ref":"#/$defs/n","maximum":1}},
		"dependentRequired":{"a":["b"]},"unevaluatedProperties":false,"$defs":{"n":{"exclusiveMinimum":0}}}`
	for args, want := range map[string]string{
		`{"pair":["x"],"n":1}`: "",
		`{"pair":["x",1]}`:     "arguments.pair[1]: not allowed here",
		`{"n":5}`:              "arguments.n: expected at most 1, got number (5)", // draft-07 ignores what stands beside a $ref
		`{"x":1}`:              "arguments.x: not allowed here",
		`{"a":1}`:              "arguments.a: not allowed here; arguments.b: required, because arguments.a is given, but missing",
	} {
		if got := New(Config{}).Problem(loop.ToolSpec{Schema: json.RawMessage(now)}, args); got != want {
			t.Errorf("2020-12, %s: %q, want %q", args, got, want)
		}
	}
	if got := ValidateSchema([]byte(`{"items":[{"type":"string"}]}`)); len(got) != 1 || !strings.Contains(got[0], "schema.items") {
		t.Errorf("a tuple of draft-07 in 2020-12: %q", got)
	}
}

// The validator walks maps; what the model is told must not depend on that.
func TestProblemIsDeterministicAndBounded(t *testing.T) {
	t.Parallel()
	spec := loop.ToolSpec{Schema: json.RawMessage(`{"type":"object","additionalProperties":{"type":"string"}}`)}
	var args strings.Builder
	args.WriteString(`{"k":1`)
	for i := range 40 {
		args.WriteString(`,"` + strings.Repeat("k", i+2) + `":` + strings.Repeat("9", 100))
	}
	args.WriteString("}")
	r := New(Config{})
	first := r.Problem(spec, args.String())
	if !strings.HasSuffix(first, "; and 33 more problems") || len(first) > maxProblemBytes {
		t.Errorf("problem of %d bytes: %s", len(first), first)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				if again := r.Problem(spec, args.String()); again != first {
					t.Errorf("another time: %s", again)
				}
			}
		})
	}
	wg.Wait()
}

// A schema that cannot be used refuses every call; it never lets one through.
func TestProblemFailsClosed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "schema.json") // one that would compile, were it read
	if err := os.WriteFile(file, []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for schema, want := range map[string]string{
		``:                                 "the schema itself is invalid",
		`{"type":"object","minimum":"no"}`: "schema.minimum: expected number",
		`{"type":"object","properties":{"a":{"$ref":"file://` + file + `"}}}`: "only references inside the schema are allowed",
		`{"$ref":"https://example.com/schema.json"}`:                          "only references inside the schema are allowed",
		`{"type":"object","pattern":"(?=x)"}`:                                 "regex",
	} {
		got := New(Config{}).Problem(loop.ToolSpec{Schema: json.RawMessage(schema)}, `{}`)
		if !strings.Contains(got, want) || !strings.HasPrefix(got, "arguments: cannot be checked") {
			t.Errorf("schema %s: %q, want %q in it", schema, got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	schema := []byte(`{"type":"object","required":["status"],"properties":{"status":{"enum":["shipped","lost"]}}}`)
	for answer, want := range map[string][]string{
		`{"status":"shipped"}`:                    nil,
		" ```json\n{\"status\":\"lost\"}\n``` \n": nil,
		"```\n{\"status\":\"lost\"}\n```":         nil,
		`{"status":"late"}`:                       {`answer.status: expected one of "shipped", "lost", got string ("late")`},
		`{}`:                                      {"answer.status: required, but missing"},
		`Here it is: {"status":"lost"}`:           {"answer: not valid JSON at byte 0: invalid character 'H' looking for beginning of value"},
		"```json\n{}\n```\n```json\n{}\n```":      {"answer: more text after the JSON value ends at byte 2"},
		``:                                        {"answer: not valid JSON: the text ends at byte 0, before the value is complete"},
	} {
		if diff := cmp.Diff(want, New(Config{}).Check(schema, answer)); diff != "" {
			t.Errorf("Check(%q) (-want +got):\n%s", answer, diff)
		}
	}
	if got := New(Config{}).Check(nil, "anything"); got != nil {
		t.Errorf("no contract: %q", got)
	}
}
