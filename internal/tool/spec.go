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
	if spec.HTTP == nil {
		add("http", "is missing: give a method and a URL")
		return problems
	}
	return append(problems, validateHTTP(*spec.HTTP, args)...)
}

// ValidateSchema returns what is wrong with an output contract, or none. It
// must compile without references to other documents.
func ValidateSchema(schema []byte) []string {
	if _, err := compile(schema); err != nil {
		return []string{err.Error()}
	}
	return nil
}

// shape is the part of a schema that a URL's placeholders are checked against.
type shape struct {
	Type     any      `json:"type"`
	Required []string `json:"required"`
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
	switch spec.Method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		problems = append(problems, fmt.Sprintf("http.method: %q is none of GET, POST, PUT, PATCH, DELETE", spec.Method))
	}
	if problem := urlProblem(spec.URL, args); problem != "" {
		problems = append(problems, "http.url: "+problem)
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Headers)) {
		if problem := headerProblem(name, spec.Headers[name]); problem != "" {
			problems = append(problems, fmt.Sprintf("http.headers[%q]: %s", name, problem))
		}
	}
	return problems
}

// urlProblem checks a URL and that its placeholders are always given, unless the
// schema is not known. They may stand in the path only: a model must not choose
// the host.
func urlProblem(text string, args *shape) string {
	names := placeholder.FindAllStringSubmatch(text, -1)
	u, err := url.Parse(placeholder.ReplaceAllString(text, "x"))
	switch {
	case err != nil:
		return fmt.Sprintf("%q is not a URL", text)
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Sprintf("%q must be absolute, with http or https and a host", text)
	case u.User != nil:
		return "must hold no user or password; put credentials into a header as ${secret:NAME}"
	case u.Fragment != "":
		return "must have no fragment"
	case secretRef.MatchString(text):
		return "must hold no secret; put it into a header, because URLs end up in logs"
	}
	authority, path, _ := strings.Cut(strings.SplitN(text, "://", 2)[1], "/")
	path, query, _ := strings.Cut(path, "?")
	if strings.ContainsAny(authority+query, "{}") {
		return "placeholders may stand in the path only"
	}
	if strings.ContainsAny(placeholder.ReplaceAllString(path, ""), "{}") {
		return "has a brace without its partner; a placeholder is {name}"
	}
	for _, name := range names {
		if args != nil && !slices.Contains(args.Required, name[1]) {
			return fmt.Sprintf("placeholder {%s} must be a required property of the schema", name[1])
		}
	}
	return ""
}

// reservedHeaders are set by loopd or by the HTTP library for each request.
var reservedHeaders = []string{
	"Connection", "Content-Length", "Host", "Idempotency-Key", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection",
	"Te", "Traceparent", "Tracestate", "Trailer", "Transfer-Encoding", "Upgrade", "X-Idempotency-Key",
}

func headerProblem(name, value string) string {
	canonical := http.CanonicalHeaderKey(name)
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return "not a valid header name"
	case slices.Contains(reservedHeaders, canonical) || strings.HasPrefix(canonical, "Loopd-"):
		return "set by loopd itself; remove it"
	case canonical == "Accept-Encoding":
		return "set by loopd itself, so that answers can be decompressed; remove it"
	case !httpguts.ValidHeaderFieldValue(value):
		return "the value has control characters"
	case strings.Contains(secretRef.ReplaceAllString(value, ""), "${"):
		return "a reference must read ${secret:NAME}, with letters, digits, _, . and - in the name"
	}
	return ""
}

// knownEffect reports whether e is one of the four classes.
func knownEffect(e loop.Effect) bool {
	switch e {
	case loop.ReadOnly, loop.Idempotent, loop.SideEffect, loop.Irreversible:
		return true
	}
	return false
}
