package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"golang.org/x/net/http/httpguts"

	"github.com/loopd/loopd/internal/loop"
)

// argumentError is a call whose arguments cannot be put into the tool's request.
type argumentError struct{ problem string }

// Error names the argument and what is wrong with it.
func (e *argumentError) Error() string { return e.problem }

// newRequest builds the HTTP request of a call. It sends nothing.
func (r *Runner) newRequest(ctx context.Context, req Request) (*http.Request, secrets, error) {
	spec := req.Spec.HTTP
	if spec == nil {
		return nil, nil, fmt.Errorf("tool %q has no http section, so it cannot be called", req.Spec.Name)
	}
	args := argsText(req.Call.Args)
	if !isObject(args) {
		return nil, nil, errNoObject()
	}
	fill := &filler{text: args, lookup: r.cfg.Secrets, secrets: secrets{}, named: map[string]bool{}}
	hr, err := r.build(ctx, req, fill)
	if err != nil {
		if wrong, ok := errors.AsType[*argumentError](err); ok {
			return nil, nil, wrong
		}
		return nil, nil, fmt.Errorf("tool %q: %w", req.Spec.Name, err)
	}
	return hr, fill.secrets, nil
}

// build fills the parts of a request: what they name first, and then those that
// take the arguments which nothing names.
func (r *Runner) build(ctx context.Context, req Request, fill *filler) (*http.Request, error) {
	spec := req.Spec.HTTP
	target, err := fillURL(spec.URL, fill)
	if err != nil {
		return nil, err
	}
	headers, err := fillHeaders(spec.Headers, fill)
	if err != nil {
		return nil, err
	}
	if target.RawQuery, err = fillQuery(target.Query(), *spec, fill); err != nil {
		return nil, err
	}
	before := fill.uses
	body, contentType, err := fillBody(*spec, fill.text, fill)
	if err != nil {
		return nil, err
	}
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	hr, err := http.NewRequestWithContext(ctx, spec.Method, target.String(), reader)
	if err != nil {
		return nil, errors.New("its URL cannot be requested; have the agent's owner correct it") // the cause would quote the URL
	}
	if !req.Spec.Effect.Repeatable() || fill.uses > before {
		hr.GetBody = nil // a body that cannot be rewound cannot be sent twice, nor to where a redirect wants its secrets
	}
	setHeaders(ctx, hr.Header, req, contentType, headers)
	if spec.SigningSecret == "" {
		return hr, nil
	}
	key, err := fill.secret(spec.SigningSecret)
	if err != nil {
		return nil, err
	}
	if err := sign(hr.Header, key, req.Key, time.Now(), body); err != nil {
		return nil, fmt.Errorf("secret %q: %w", spec.SigningSecret, err)
	}
	return hr, nil
}

// fillURL puts arguments into the path of a URL. All of them are needed there.
func fillURL(template string, fill *filler) (*url.URL, error) {
	pieces, err := parseTemplate(template)
	if err != nil {
		return nil, fmt.Errorf("its URL %w", err)
	}
	var missing []error
	for name := range arguments(pieces) {
		if isAbsent(fill.args()[name]) {
			missing = append(missing, fmt.Errorf("arguments.%s: required, but missing; it is part of the tool's URL", name))
		}
	}
	if len(missing) > 0 {
		return nil, &argumentError{errors.Join(missing...).Error()}
	}
	filled, _, err := fill.fill(pieces, pathSegment)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(filled)
	if err != nil {
		return nil, errors.New("its URL is not one; have the agent's owner correct it")
	}
	// Each argument was harmless; two of them side by side need not be.
	if hasDots(u.EscapedPath()) {
		return nil, &argumentError{`arguments: together they make ".." a part of the tool's URL`}
	}
	return u, nil
}

// pathSegment escapes an argument so that it stays one segment of the path, also
// for servers that undo the escaping before they look for "..".
func pathSegment(name, value string) (string, error) {
	if value == "" || hasDots(value) {
		return "", &argumentError{fmt.Sprintf("arguments.%s: %q cannot be part of the tool's URL", name, value)}
	}
	return url.PathEscape(value), nil
}

// hasDots reports whether a path climbs, or stays where it is.
func hasDots(path string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(path, func(r rune) bool { return r == '/' || r == '\\' }), func(segment string) bool {
		return segment == "." || segment == ".."
	})
}

// fillHeaders fills the configured headers. One whose argument is absent is left out.
func fillHeaders(templates map[string]string, fill *filler) (http.Header, error) {
	headers := http.Header{}
	for _, name := range slices.Sorted(maps.Keys(templates)) {
		pieces, err := parseTemplate(templates[name])
		if err != nil {
			return nil, fmt.Errorf("header %s %w", name, err)
		}
		value, absent, err := fill.fill(pieces, headerArgument)
		switch {
		case err != nil:
			return nil, within("header "+name, err)
		case absent:
		case !httpguts.ValidHeaderFieldValue(value):
			// Here, because net/http would put the value into its error.
			return nil, fmt.Errorf("header %s: a secret in it holds a line break or another control character, so it cannot be sent", name)
		default:
			headers.Set(name, value)
		}
	}
	return headers, nil
}

// headerArgument refuses what would end a header and begin another.
func headerArgument(name, value string) (string, error) {
	if !httpguts.ValidHeaderFieldValue(value) {
		return "", &argumentError{fmt.Sprintf("arguments.%s: holds a line break or another control character, which a header cannot carry", name)}
	}
	return value, nil
}

// within says where an error is, unless it is about an argument, which names its
// place itself.
func within(place string, err error) error {
	if _, ok := errors.AsType[*argumentError](err); ok {
		return err
	}
	return fmt.Errorf("%s: %w", place, err)
}

// fillQuery adds the configured parameters to the fixed ones of the URL, or, when
// none are configured and no body carries the arguments, those that nothing names.
func fillQuery(query url.Values, spec loop.HTTPSpec, fill *filler) (string, error) {
	for _, name := range slices.Sorted(maps.Keys(spec.Query)) {
		values, err := fill.parameter(spec.Query[name])
		switch {
		case err != nil:
			return "", within("query parameter "+name, err)
		case len(values) > 0:
			query[name] = values
		}
	}
	if spec.Query == nil && bodyKind(spec) == bodyNone {
		for name, raw := range fill.unnamed() {
			if !query.Has(name) { // what the owner fixed is not the model's to change
				addParameter(query, name, raw)
			}
		}
	}
	return query.Encode(), nil
}

// parameter fills the template of a parameter, whose values may be none or, for
// an array, many.
func (f *filler) parameter(template string) ([]string, error) {
	pieces, err := parseTemplate(template)
	if err != nil {
		return nil, err
	}
	if len(pieces) == 1 && pieces[0].kind == argument {
		f.named[pieces[0].text] = true
		return parameterValues(f.args()[pieces[0].text]), nil
	}
	value, absent, err := f.fill(pieces, asIs)
	if err != nil || absent {
		return nil, err
	}
	return []string{value}, nil
}

// unnamed are the arguments that no template stands for.
func (f *filler) unnamed() map[string]json.RawMessage {
	left := maps.Clone(f.args())
	maps.DeleteFunc(left, func(name string, _ json.RawMessage) bool { return f.named[name] })
	return left
}

func addParameter(to url.Values, name string, raw json.RawMessage) {
	if values := parameterValues(raw); len(values) > 0 {
		to[name] = values
	}
}

// parameterValues is how an argument travels in a query or a form: scalars as
// text, an array of them as one parameter each, all else as JSON. Null is left
// out, as an argument that was not given.
func parameterValues(raw json.RawMessage) []string {
	if isAbsent(raw) {
		return nil
	}
	if text, ok := scalarText(raw); ok {
		return []string{text}
	}
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		return []string{string(raw)}
	}
	values := make([]string, 0, len(items))
	for _, item := range items {
		text, ok := scalarText(item)
		if !ok {
			return []string{string(raw)}
		}
		values = append(values, text)
	}
	return values
}

// How arguments travel in the body, as HTTPSpec.Body says it.
const (
	bodyJSON = "json"
	bodyForm = "form"
	bodyNone = "none"
)

// bodyKind is how a spec's arguments travel in the body. Of the methods without
// one by custom, DELETE has one when the spec says so.
func bodyKind(spec loop.HTTPSpec) string {
	switch {
	case spec.Method == http.MethodGet || spec.Method == http.MethodHead:
		return bodyNone
	case spec.Body != "":
		return spec.Body
	case spec.Method == http.MethodDelete && !hasTemplate(spec):
		return bodyNone
	}
	return bodyJSON
}

// hasTemplate reports whether the spec gives the body another shape than the arguments'.
func hasTemplate(spec loop.HTTPSpec) bool {
	return len(spec.BodyTemplate) > 0 && string(spec.BodyTemplate) != "null"
}

// fillBody makes the body of a request, nil for none. Without a template, JSON is
// all arguments as the model wrote them, and a form those that nothing names.
func fillBody(spec loop.HTTPSpec, args string, fill *filler) (body []byte, contentType string, err error) {
	kind := bodyKind(spec)
	if kind == bodyNone {
		return nil, "", nil
	}
	body = []byte(args)
	if hasTemplate(spec) {
		var absent bool
		if body, absent, err = fill.json(spec.BodyTemplate); err != nil {
			return nil, "", within("its body", err)
		} else if absent {
			return nil, "", nil
		}
	}
	if kind == bodyJSON {
		return body, "application/json", nil
	}
	fields := fill.unnamed()
	if hasTemplate(spec) {
		if fields, err = topLevel(string(body)); err != nil {
			return nil, "", errors.New("its body template is no object, so it cannot be a form")
		}
	}
	form := url.Values{}
	for name, raw := range fields {
		addParameter(form, name, raw)
	}
	return []byte(form.Encode()), "application/x-www-form-urlencoded", nil
}

// setHeaders sets the configured headers among loopd's own, which they cannot
// replace where those identify the call.
func setHeaders(ctx context.Context, h http.Header, req Request, contentType string, configured http.Header) {
	h.Set("Accept", "application/json, */*;q=0.5")
	h.Set("User-Agent", "loopd")
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	maps.Copy(h, configured)
	h.Set("Idempotency-Key", req.Key)
	h.Set("Loopd-Run-Id", req.Run.ID)
	h.Set("Loopd-Call-Id", req.Call.ID)
	h.Set("Loopd-Attempt", strconv.Itoa(req.Attempt))
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
}

// argsText is the text of the arguments. Models leave it empty when a tool takes
// none; that is the one thing loopd reads as something else.
func argsText(args string) string {
	if strings.TrimSpace(args) == "" {
		return "{}"
	}
	return args
}

func errNoObject() error { return &argumentError{"arguments: expected a JSON object"} }

// isObject reports whether a text is a JSON object and nothing else.
func isObject(text string) bool {
	return strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "{") && json.Valid([]byte(text))
}

// topLevel splits arguments into members, each as the model wrote it.
func topLevel(args string) (map[string]json.RawMessage, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(argsText(args)), &members); err != nil || members == nil {
		return nil, errNoObject()
	}
	return members, nil
}
