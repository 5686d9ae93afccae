package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/loopd/loopd/internal/loop"
)

// toolName is what all providers accept as a tool's name.
var toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// ValidateSpec returns what is wrong with a tool's definition, each problem
// naming the field and the fix, or none. It looks at syntax only: whether a
// secret is set and a host can be reached is known when the tool is called.
func ValidateSpec(spec loop.ToolSpec) []string {
	var problems []string
	add := func(field, format string, args ...any) {
		problems = append(problems, field+": "+fmt.Sprintf(format, args...))
	}
	if !toolName.MatchString(spec.Name) {
		add("name", "%q must be 1 to 64 letters, digits, _ or -", spec.Name)
	}
	if !knownEffect(spec.Effect) {
		add("effect", "%q is none of READ_ONLY, IDEMPOTENT, SIDE_EFFECT, IRREVERSIBLE", spec.Effect)
	}
	if spec.Timeout < 0 {
		add("timeout", "%s is negative", spec.Timeout)
	}
	if spec.MaxResultBytes < 0 {
		add("max_result_bytes", "%d is negative", spec.MaxResultBytes)
	}
	args, err := argumentsShape(spec.Schema)
	if err != nil {
		problems = append(problems, err.Error())
	}
	switch kinds := kindsOf(spec); {
	case len(kinds) == 0:
		add("http", "is missing: give a method and a URL, or make it a tool of another kind")
	case len(kinds) > 1:
		add(kinds[1], "stands beside %s; a tool is of one kind", kinds[0])
	case spec.HTTP != nil:
		problems = append(problems, validateHTTP(*spec.HTTP, args)...)
	}
	return problems
}

// kindsOf are the fields that say how a tool is run; there must be one. All but
// http are checked by those who run such tools.
func kindsOf(spec loop.ToolSpec) []string {
	var kinds []string
	for _, k := range []struct {
		name string
		set  bool
	}{
		{"http", spec.HTTP != nil}, {"mcp", spec.MCP != nil}, {"client", spec.Client != nil}, {"child", spec.Child != nil}, {"builtin", spec.Builtin != ""},
	} {
		if k.set {
			kinds = append(kinds, k.name)
		}
	}
	return kinds
}

// ValidateSchema returns what is wrong with an output contract, or none. It
// must compile without references to other documents.
func ValidateSchema(schema []byte) []string {
	if _, err := compile(schema); err != nil {
		return []string{err.Error()}
	}
	return nil
}

// shape is the part of a schema that templates are checked against.
type shape struct {
	Type       any                        `json:"type"`
	Required   []string                   `json:"required"`
	Properties map[string]json.RawMessage `json:"properties"`
	// Any of these may bring arguments from elsewhere.
	Ref     json.RawMessage `json:"$ref"`
	AllOf   json.RawMessage `json:"allOf"`
	AnyOf   json.RawMessage `json:"anyOf"`
	OneOf   json.RawMessage `json:"oneOf"`
	Pattern json.RawMessage `json:"patternProperties"`
}

// open reports whether the top of the schema does not name all arguments.
func (s *shape) open() bool {
	return s == nil || len(s.Ref)+len(s.AllOf)+len(s.AnyOf)+len(s.OneOf)+len(s.Pattern) > 0
}

// lacks returns the first argument of a template that the schema does not have.
func (s *shape) lacks(pieces []piece) (name string, lacks bool) {
	if s.open() {
		return "", false
	}
	for name := range arguments(pieces) {
		if _, ok := s.Properties[name]; !ok {
			return name, true
		}
	}
	return "", false
}

// argumentsShape compiles the schema of a tool's arguments, which must be an object's.
func argumentsShape(schema []byte) (*shape, error) {
	if _, err := compile(schema); err != nil {
		return nil, err
	}
	var s shape
	if err := json.Unmarshal(schema, &s); err != nil || s.Type != "object" {
		return nil, errors.New(`schema: must have "type": "object" at its top, because a call's arguments are an object`)
	}
	return &s, nil
}

func validateHTTP(spec loop.HTTPSpec, args *shape) []string {
	var problems []string
	add := func(field, problem string) {
		if problem != "" {
			problems = append(problems, field+": "+problem)
		}
	}
	switch spec.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		add("http.method", fmt.Sprintf("%q is none of GET, HEAD, POST, PUT, PATCH, DELETE", spec.Method))
	}
	add("http.url", urlProblem(spec.URL, args))
	for _, name := range slices.Sorted(maps.Keys(spec.Headers)) {
		add(fmt.Sprintf("http.headers[%q]", name), headerProblem(name, spec.Headers[name], args))
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Query)) {
		add(fmt.Sprintf("http.query[%q]", name), templateProblem(spec.Query[name], args))
	}
	for _, problem := range bodyProblems(spec, args) {
		problems = append(problems, "http."+problem)
	}
	if _, err := pointerTokens(spec.Result); err != nil {
		add("http.result", err.Error())
	}
	if name := spec.SigningSecret; name != "" && !secretName.MatchString(name) {
		add("http.signing_secret", "is the name of a secret, with letters, digits, _, . and - in it, without ${secret:}")
	}
	return problems
}

// secretName is what ${secret:NAME} may name.
var secretName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// templateProblem checks a template and that the schema has the arguments in it.
func templateProblem(text string, args *shape) string {
	pieces, err := parseTemplate(text)
	if err != nil {
		return err.Error()
	}
	if name, lacks := args.lacks(pieces); lacks {
		return fmt.Sprintf("{%s} is not an argument of the schema", name)
	}
	return ""
}

// urlProblem checks a URL and that its placeholders are always given, unless the
// schema is not known. They may stand in the path only: a model must not choose
// the host.
func urlProblem(text string, args *shape) string {
	if strings.Contains(text, "${secret:") {
		return "must hold no secret; put it into a header, because URLs end up in logs"
	}
	pieces, err := parseTemplate(text)
	if err != nil {
		return "has a brace without its partner; a placeholder is {name}"
	}
	var b strings.Builder
	for _, p := range pieces {
		if p.kind == argument {
			b.WriteString("x")
		} else {
			b.WriteString(p.text)
		}
	}
	u, err := url.Parse(b.String())
	switch {
	case err != nil:
		return fmt.Sprintf("%q is not a URL", text)
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Sprintf("%q must be absolute, with http or https and a host", text)
	case u.User != nil:
		return "must hold no user or password; put credentials into a header as ${secret:NAME}"
	case u.Fragment != "":
		return "must have no fragment"
	case hasDots(u.EscapedPath()):
		return `must have no "." or ".." in its path`
	}
	authority, path, _ := strings.Cut(strings.SplitN(text, "://", 2)[1], "/")
	_, query, _ := strings.Cut(path, "?")
	if strings.ContainsAny(authority+query, "{}") {
		return "placeholders may stand in the path only; put parameters into http.query"
	}
	if name, lacks := args.lacks(pieces); lacks {
		return fmt.Sprintf("{%s} is not an argument of the schema", name)
	}
	for name := range arguments(pieces) {
		if !args.open() && !slices.Contains(args.Required, name) {
			return fmt.Sprintf("{%s} must be required by the schema, because a path cannot do without it", name)
		}
	}
	return ""
}

// bodyProblems checks how arguments travel in the body.
func bodyProblems(spec loop.HTTPSpec, args *shape) []string {
	var problems []string
	switch spec.Body {
	case "", bodyJSON, bodyForm, bodyNone:
	default:
		problems = append(problems, fmt.Sprintf(`body: %q is none of "json", "form", "none"`, spec.Body))
	}
	bodyless := spec.Method == http.MethodGet || spec.Method == http.MethodHead
	if bodyless && (spec.Body == bodyJSON || spec.Body == bodyForm) {
		problems = append(problems, fmt.Sprintf("body: a %s request has none; remove it", spec.Method))
	}
	if !hasTemplate(spec) {
		return problems
	}
	if bodyless || spec.Body == bodyNone {
		problems = append(problems, "body_template: the request has no body; remove it")
	}
	value, err := decode("body_template", string(spec.BodyTemplate))
	if err != nil {
		return append(problems, err.Error())
	}
	if _, object := value.(map[string]any); spec.Body == bodyForm && !object {
		problems = append(problems, "body_template: of a form must be an object, whose members are the fields")
	}
	return append(problems, bodyTemplateProblems("body_template", value, args)...)
}

// bodyTemplateProblems walks the values of a template; each string is one itself.
func bodyTemplateProblems(path string, value any, args *shape) []string {
	var problems []string
	switch value := value.(type) {
	case string:
		if problem := templateProblem(value, args); problem != "" {
			return []string{path + ": " + problem}
		}
	case []any:
		for i, item := range value {
			problems = append(problems, bodyTemplateProblems(joinIndex(path, i), item, args)...)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			problems = append(problems, bodyTemplateProblems(joinKey(path, name), value[name], args)...)
		}
	}
	return problems
}

// reservedHeaders are set by loopd or by the HTTP library for each request.
var reservedHeaders = [...]string{
	"Connection", "Content-Length", "Expect", "Host", "Idempotency-Key", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection",
	"Te", "Traceparent", "Tracestate", "Trailer", "Transfer-Encoding", "Upgrade",
	"Webhook-Id", "Webhook-Signature", "Webhook-Timestamp", "X-Idempotency-Key",
}

// credentialHeaders say who is calling, which is not for a model to say.
var credentialHeaders = [...]string{"Authorization", "Cookie"}

func headerProblem(name, value string, args *shape) string {
	canonical := http.CanonicalHeaderKey(name)
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return "not a valid header name"
	case slices.Contains(reservedHeaders[:], canonical) || strings.HasPrefix(canonical, "Loopd-"):
		return "set by loopd itself; remove it"
	case canonical == "Accept-Encoding":
		return "set by loopd itself, so that answers can be decompressed; remove it"
	case !httpguts.ValidHeaderFieldValue(value):
		return "the value has control characters"
	}
	pieces, err := parseTemplate(value)
	if err == nil && has(pieces, argument) && slices.Contains(credentialHeaders[:], canonical) {
		return "says who is calling, so no argument may stand in it; use ${secret:NAME}"
	}
	return templateProblem(value, args)
}

// knownEffect reports whether e is one of the four classes.
func knownEffect(e loop.Effect) bool {
	switch e {
	case loop.ReadOnly, loop.Idempotent, loop.SideEffect, loop.Irreversible:
		return true
	}
	return false
}
