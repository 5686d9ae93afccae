package tool

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/loopd/loopd/internal/loop"
)

// Problem says why args fail the tool's schema, in words that a model can act
// on (path, expected, got), or "" when they pass. Text that is empty counts as
// {}: models leave it out for tools without arguments. It is deterministic, and
// fails closed: a schema that cannot be used is a problem too.
func (r *Runner) Problem(spec loop.ToolSpec, args string) string {
	return joinProblems(r.validate(spec.Schema, "arguments", argsText(args)))
}

// Check returns the problems of a final answer against an output contract, each
// naming a path, or none. An empty schema accepts everything. An answer must be
// JSON and nothing else, but for one Markdown fence around it.
func (r *Runner) Check(schema []byte, answer string) []string {
	if len(schema) == 0 {
		return nil
	}
	return capProblems(r.validate(schema, "answer", unfence(answer)))
}

// fence is a Markdown code block that holds the whole text.
var fence = regexp.MustCompile("(?s)^```(?:json|JSON)?[ \t]*\r?\n(.*?)\r?\n?```$")

func unfence(answer string) string {
	answer = strings.TrimSpace(answer)
	if m := fence.FindStringSubmatch(answer); m != nil {
		return m[1]
	}
	return answer
}

// validate returns all problems of a JSON text, sorted.
func (r *Runner) validate(schema []byte, root, text string) (problems []string) {
	defer func() {
		if fault := recover(); fault != nil {
			problems = []string{fmt.Sprintf("%s: could not be checked against the schema: %v", root, fault)}
		}
	}()
	compiled, err := r.schemas.get(schema)
	if err != nil {
		return []string{fmt.Sprintf("%s: cannot be checked, because the schema itself is invalid: %v", root, err)}
	}
	value, err := decode(root, text)
	if err != nil {
		return []string{err.Error()}
	}
	err = compiled.Validate(value)
	if err == nil {
		return nil
	}
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return []string{fmt.Sprintf("%s: %v", root, err)}
	}
	return describe(root, value, invalid)
}

// schemaURL names a schema inside its own compiler; it is never fetched.
const schemaURL = "loopd:schema"

// compile reads a schema in the dialect it names, else 2020-12. There is no
// loader: the library's default one opens files that a $ref names.
func compile(schema []byte) (*jsonschema.Schema, error) {
	doc, err := decode("schema", string(schema))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(nil)
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	compiled, err := c.Compile(schemaURL)
	if err != nil {
		return nil, wordCompileError(err, doc)
	}
	return compiled, nil
}

// wordCompileError says what is wrong with a schema without the library's own
// words for its made-up URL.
func wordCompileError(err error, doc any) error {
	if load, ok := errors.AsType[*jsonschema.LoadURLError](err); ok {
		return fmt.Errorf("schema: refers to %s; only references inside the schema are allowed, so copy it into $defs", load.URL)
	}
	var invalid *jsonschema.SchemaValidationError
	var cause *jsonschema.ValidationError
	if errors.As(err, &invalid) && errors.As(invalid.Err, &cause) {
		return errors.New(joinProblems(describe("schema", doc, cause)))
	}
	return fmt.Errorf("schema: %s", strings.ReplaceAll(err.Error(), schemaURL, "schema"))
}

// maxSchemas bounds the cache. A deployment with more live tools than this
// compiles some of them again, at well under a millisecond each.
const maxSchemas = 4096

// schemaCache holds compiled schemas by their text. Compiled schemas are
// immutable, so runs share them.
type schemaCache struct {
	mu      sync.Mutex
	entries map[string]schemaEntry
}

type schemaEntry struct {
	schema *jsonschema.Schema
	err    error
}

func newSchemaCache() *schemaCache { return &schemaCache{entries: map[string]schemaEntry{}} }

func (c *schemaCache) get(text []byte) (*jsonschema.Schema, error) {
	c.mu.Lock()
	entry, ok := c.entries[string(text)]
	c.mu.Unlock()
	if ok {
		return entry.schema, entry.err
	}
	entry.schema, entry.err = compile(text)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries) >= maxSchemas {
		clear(c.entries)
	}
	c.entries[string(text)] = entry
	return entry.schema, entry.err
}
