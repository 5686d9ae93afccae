package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/loopd/loopd/internal/loop"
)

const (
	// maxDocumentBytes bounds a document before it is parsed; the largest public
	// ones are about half of it.
	maxDocumentBytes = 16 << 20
	// maxDescriptionBytes is what providers take of a tool's description.
	maxDescriptionBytes = 1024
	// largeSchemaBytes is where a schema, which travels with every model call, is
	// worth a note: some ten thousand tokens.
	largeSchemaBytes = 32 << 10
)

// ImportOptions say how an OpenAPI document becomes tools.
type ImportOptions struct {
	// BaseURL replaces the servers of the document. It is needed when those are
	// relative or missing.
	BaseURL string
	// Prefix stands in front of each tool's name.
	Prefix string
}

// ImportOpenAPI makes a tool of each operation of an OpenAPI 3.0 or 3.1 document
// in JSON or YAML. GET and HEAD are READ_ONLY, all others IRREVERSIBLE until
// somebody says otherwise. The tools pass ValidateSpec. Credentials become
// references to secrets. Notes say which secrets are to be set, and what could
// not be imported or was changed, each with its place: nothing is dropped
// silently. Nothing outside the document is read. The error is about documents
// that cannot be read, or that say nowhere where the API is.
func ImportOpenAPI(doc []byte, opts ImportOptions) (specs []loop.ToolSpec, notes []string, err error) {
	defer func() {
		if fault := recover(); fault != nil { // in the reader: documents come from anywhere
			specs, notes, err = nil, nil, fmt.Errorf("the document cannot be read: %v", fault)
		}
	}()
	if len(doc) > maxDocumentBytes {
		return nil, nil, fmt.Errorf("the document has %d bytes, more than the %d that are read", len(doc), maxDocumentBytes)
	}
	parsed, err := openapi3.NewLoader().LoadFromData(doc)
	if err != nil {
		return nil, nil, fmt.Errorf("read the OpenAPI document: %w", err)
	}
	if version := parsed.OpenAPIMajorMinor(); version != "3.0" && version != "3.1" {
		return nil, nil, fmt.Errorf("openapi: %q is neither 3.0 nor 3.1", parsed.OpenAPI)
	}
	im := &importer{doc: parsed, opts: opts, names: map[string]bool{}, noted: map[string]bool{}}
	if opts.BaseURL != "" {
		if problem := urlProblem(escapeBraces(opts.BaseURL), nil); problem != "" {
			return nil, nil, fmt.Errorf("base URL: %s", problem)
		}
	} else if _, err := im.base(nil, nil); err != nil {
		return nil, nil, err
	}
	im.noteDocument()
	im.operations()
	return im.specs, im.notes, nil
}

// importer collects the tools of one document.
type importer struct {
	doc   *openapi3.T
	opts  ImportOptions
	specs []loop.ToolSpec
	notes []string
	names map[string]bool // of tools, taken
	noted map[string]bool
}

// notef says something once.
func (im *importer) notef(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !im.noted[text] {
		im.noted[text] = true
		im.notes = append(im.notes, text)
	}
}

// noteDocument says what of the document as a whole is not as one may expect.
func (im *importer) noteDocument() {
	lenient := []openapi3.ValidationOption{openapi3.DisableExamplesValidation(), openapi3.DisableSchemaDefaultsValidation(), openapi3.DisableSchemaPatternValidation()}
	if err := im.doc.Validate(context.Background(), lenient...); err != nil {
		im.notef("the document is not quite valid: %s", excerptLine(err.Error()))
	}
	if n := len(im.doc.Servers); n > 1 && im.opts.BaseURL == "" {
		im.notef("servers: the first of %d is used, %s", n, im.doc.Servers[0].URL)
	}
	for _, name := range slices.Sorted(maps.Keys(im.doc.Webhooks)) {
		im.notef("webhooks.%s: not imported: loopd calls tools, it is not called by them", name)
	}
	if d := im.doc.JSONSchemaDialect; d != "" && !strings.HasPrefix(d, "https://json-schema.org/draft/2020-12/") && !strings.HasPrefix(d, "https://spec.openapis.org/oas/3.1/") {
		im.notef("jsonSchemaDialect: %s is read as JSON Schema 2020-12", d)
	}
}

// excerptLine is the beginning of a text's first line.
func excerptLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	if len(line) > maxReasonBytes {
		return string(trimPartialRune([]byte(line[:maxReasonBytes]))) + "…"
	}
	return line
}

// operations imports all operations, by path and method.
func (im *importer) operations() {
	paths := im.doc.Paths.Map()
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		item := cmp.Or(paths[path], &openapi3.PathItem{})
		operations := item.Operations()
		for _, method := range slices.Sorted(maps.Keys(operations)) {
			op := &operation{importer: im, path: path, method: method, item: item, op: operations[method]}
			spec, err := op.spec()
			if err != nil {
				im.notef("%s: not imported: %v", op.place(), err)
				continue
			}
			im.names[spec.Name] = true
			im.specs = append(im.specs, spec)
		}
	}
}

// base is the URL in front of the paths: of the operation, its path, or the document.
func (im *importer) base(item *openapi3.PathItem, op *openapi3.Operation) (string, error) {
	if im.opts.BaseURL != "" {
		return strings.TrimSuffix(im.opts.BaseURL, "/"), nil
	}
	servers := im.doc.Servers
	if item != nil && len(item.Servers) > 0 {
		servers = item.Servers
	}
	if op != nil && op.Servers != nil && len(*op.Servers) > 0 {
		servers = *op.Servers
	}
	if len(servers) == 0 || servers[0] == nil {
		return "", errors.New("servers: none is named; give a base URL")
	}
	base := servers[0].URL
	for _, name := range slices.Sorted(maps.Keys(servers[0].Variables)) {
		if v := servers[0].Variables[name]; v != nil {
			base = strings.ReplaceAll(base, "{"+name+"}", v.Default)
			im.notef("servers: {%s} of %s is its default, %q", name, servers[0].URL, v.Default)
		}
	}
	if u, err := url.Parse(base); err != nil || u.Host == "" {
		return "", fmt.Errorf("servers: %q is no absolute URL; give a base URL", base)
	}
	return strings.TrimSuffix(base, "/"), nil
}

// operation is one operation on its way to a tool.
type operation struct {
	*importer

	path, method string
	item         *openapi3.PathItem
	op           *openapi3.Operation

	http     loop.HTTPSpec
	args     map[string]any // properties of the schema
	required []string
	pathArgs map[string]string // argument by parameter of the path
	schemas  schemas
}

func (o *operation) place() string { return o.method + " " + o.path }

// warnf notes something about this operation.
func (o *operation) warnf(format string, args ...any) {
	o.notef("%s: %s", o.place(), fmt.Sprintf(format, args...))
}

// spec makes the tool. The error says why there can be none.
func (o *operation) spec() (loop.ToolSpec, error) {
	switch o.method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return loop.ToolSpec{}, errors.New("tools have no such method")
	}
	base, err := o.base(o.item, o.op)
	if err != nil {
		return loop.ToolSpec{}, err
	}
	o.args, o.pathArgs, o.schemas = map[string]any{}, map[string]string{}, newSchemas(o)
	o.http = loop.HTTPSpec{Method: o.method, Headers: map[string]string{}, Query: map[string]string{}, Body: bodyNone}
	if o.method == http.MethodGet || o.method == http.MethodHead {
		o.http.Body = ""
	}
	if err := o.parameters(); err != nil {
		return loop.ToolSpec{}, err
	}
	if err := o.body(); err != nil {
		return loop.ToolSpec{}, err
	}
	o.security()
	if o.http.URL, err = o.url(base); err != nil {
		return loop.ToolSpec{}, err
	}
	spec := loop.ToolSpec{Name: o.name(), Description: o.description(), Effect: loop.Irreversible, HTTP: &o.http}
	if o.method == http.MethodGet || o.method == http.MethodHead {
		spec.Effect = loop.ReadOnly
	}
	if spec.Schema, err = o.schema(); err != nil {
		return loop.ToolSpec{}, err
	}
	if problems := ValidateSpec(spec); len(problems) > 0 {
		return loop.ToolSpec{}, errors.New(joinProblems(problems))
	}
	o.remarks(spec)
	return spec, nil
}

// remarks are what an importer should know of a tool that was made.
func (o *operation) remarks(spec loop.ToolSpec) {
	if spec.Name != o.opts.Prefix+o.op.OperationID {
		o.warnf("its tool is named %s", spec.Name)
	}
	if len(spec.Schema) > largeSchemaBytes {
		o.warnf("the schema of its arguments has %d bytes, which every model call carries", len(spec.Schema))
	}
	if o.op.Deprecated {
		o.warnf("deprecated")
	}
	if len(o.op.Callbacks) > 0 {
		o.warnf("its callbacks are not imported")
	}
}

// schema is the one of all arguments.
func (o *operation) schema() (json.RawMessage, error) {
	schema := map[string]any{"type": "object", "properties": o.args, "additionalProperties": false}
	if len(o.required) > 0 {
		slices.Sort(o.required)
		schema["required"] = slices.Compact(o.required)
	}
	if defs := o.schemas.definitions(o.args); len(defs) > 0 {
		schema["$defs"] = defs
	}
	text, err := json.Marshal(schema)
	if err != nil {
		return nil, fmt.Errorf("write the schema: %w", err)
	}
	return text, nil
}

// pathParameter is a parameter of a path template.
var pathParameter = regexp.MustCompile(`\{([^{}]*)\}`)

// url is the base with the path, whose parameters become arguments.
func (o *operation) url(base string) (string, error) {
	var unknown []string
	path := pathParameter.ReplaceAllStringFunc(o.path, func(ref string) string {
		arg, ok := o.pathArgs[ref[1:len(ref)-1]]
		if !ok {
			unknown = append(unknown, ref)
		}
		return "{" + arg + "}"
	})
	if len(unknown) > 0 {
		return "", fmt.Errorf("its path has %s, which is no parameter", strings.Join(unknown, ", "))
	}
	return base + path, nil
}

// notInName is what providers take in no name of a tool.
var notInName = regexp.MustCompile(`[^a-zA-Z0-9_-]+`)

// name is the operation's id, as far as it can be a tool's, or its method and path.
func (o *operation) name() string {
	id := cmp.Or(o.op.OperationID, strings.ToLower(o.method)+o.path)
	name := o.opts.Prefix + strings.Trim(notInName.ReplaceAllString(id, "_"), "_")
	return unique(cut(name, 64), 64, o.names)
}

// cut shortens a name of single-byte characters.
func cut(name string, length int) string { return name[:min(len(name), length)] }

// unique numbers a name that is taken.
func unique[V any](name string, length int, taken map[string]V) string {
	candidate := name
	for n := 2; ; n++ {
		if _, ok := taken[candidate]; !ok {
			return candidate
		}
		suffix := fmt.Sprintf("_%d", n)
		candidate = cut(name, length-len(suffix)) + suffix
	}
}

// description is what the document says about the operation.
func (o *operation) description() string {
	text := strings.TrimSpace(o.op.Summary + "\n" + o.op.Description)
	if len(text) <= maxDescriptionBytes {
		return text
	}
	o.warnf("its description is cut to %d bytes", maxDescriptionBytes)
	return string(trimPartialRune([]byte(text[:maxDescriptionBytes-len("…")]))) + "…"
}
