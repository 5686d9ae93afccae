package tool

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/propagation"
)

var (
	placeholder = regexp.MustCompile(`\{([^{}/]*)\}`)
	secretRef   = regexp.MustCompile(`\$\{secret:([A-Za-z0-9_.-]+)\}`)
)

// argumentError is a call whose arguments cannot be put into the tool's URL.
type argumentError struct{ problem string }

// Error names the argument and what is wrong with it.
func (e *argumentError) Error() string { return e.problem }

// secrets are the values that were put into one request, by name.
type secrets map[string]string

// newRequest builds the HTTP request of a call. It sends nothing.
func (r *Runner) newRequest(ctx context.Context, req Request) (*http.Request, secrets, error) {
	spec := req.Spec.HTTP
	if spec == nil {
		return nil, nil, fmt.Errorf("tool %q has no http section, so it cannot be called", req.Spec.Name)
	}
	args, err := topLevel(req.Call.Args)
	if err != nil {
		return nil, nil, err
	}
	target, left, err := fillPath(spec.URL, args)
	if err != nil {
		return nil, nil, err
	}
	var body io.Reader
	if bodyless(spec.Method) {
		addQuery(target, left)
	} else {
		body = bytes.NewReader([]byte(argsText(req.Call.Args)))
	}
	hr, err := http.NewRequestWithContext(ctx, spec.Method, target.String(), body)
	if err != nil {
		return nil, nil, fmt.Errorf("build the request of tool %q: %w", req.Spec.Name, err)
	}
	if !req.Spec.Effect.Repeatable() {
		hr.GetBody = nil // a body that cannot be rewound cannot be sent twice
	}
	used, err := r.setHeaders(ctx, hr, req)
	return hr, used, err
}

// setHeaders sets loopd's headers, and the configured ones with their secrets.
func (r *Runner) setHeaders(ctx context.Context, hr *http.Request, req Request) (secrets, error) {
	h := hr.Header
	h.Set("Accept", "application/json, */*;q=0.5")
	h.Set("User-Agent", "loopd")
	if hr.Body != nil {
		h.Set("Content-Type", "application/json")
	}
	used := secrets{}
	for name, value := range req.Spec.HTTP.Headers {
		resolved, err := r.resolve(value, used)
		if err != nil {
			return nil, fmt.Errorf("header %s of tool %q: %w", name, req.Spec.Name, err)
		}
		h.Set(name, resolved)
	}
	h.Set("Idempotency-Key", req.Key)
	h.Set("Loopd-Run-Id", req.Run.ID)
	h.Set("Loopd-Call-Id", req.Call.ID)
	h.Set("Loopd-Attempt", strconv.Itoa(req.Attempt))
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
	return used, nil
}

// resolve replaces ${secret:NAME} and notes which secrets it used.
func (r *Runner) resolve(value string, used secrets) (string, error) {
	var missing error
	resolved := secretRef.ReplaceAllStringFunc(value, func(ref string) string {
		name := secretRef.FindStringSubmatch(ref)[1]
		secret, ok := r.cfg.Secrets(name)
		switch {
		case !ok:
			missing = fmt.Errorf("secret %q is not set in this deployment", name)
		case strings.ContainsAny(secret, "\r\n\x00"):
			// Here, because net/http would put the header's value into its error.
			missing = fmt.Errorf("secret %q holds a line break, so it cannot be sent in a header", name)
		}
		used[name] = secret
		return secret
	})
	return resolved, missing
}

// bodyless reports whether a method carries its arguments in the query.
func bodyless(method string) bool { return method == http.MethodGet || method == http.MethodDelete }

// argsText is the text of the arguments. Models leave it empty when a tool takes
// none; that is the one thing loopd reads as something else.
func argsText(args string) string {
	if strings.TrimSpace(args) == "" {
		return "{}"
	}
	return args
}

// topLevel splits arguments into members, each as the model wrote it.
func topLevel(args string) (map[string]json.RawMessage, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(argsText(args)), &members); err != nil || members == nil {
		return nil, &argumentError{"arguments: expected a JSON object"}
	}
	return members, nil
}

// fillPath puts arguments into the placeholders of a URL and returns it with the
// arguments that are left for the query.
func fillPath(template string, args map[string]json.RawMessage) (*url.URL, map[string]json.RawMessage, error) {
	left := make(map[string]json.RawMessage, len(args))
	maps.Copy(left, args)
	var problem error
	filled := placeholder.ReplaceAllStringFunc(template, func(match string) string {
		name := match[1 : len(match)-1]
		segment, err := pathSegment(name, args[name])
		if err != nil {
			problem = errors.Join(problem, err)
		}
		delete(left, name)
		return segment
	})
	if problem != nil {
		return nil, nil, &argumentError{problem.Error()}
	}
	u, err := url.Parse(filled)
	if err != nil {
		return nil, nil, errors.New("the tool's configured URL is not one; have the agent's owner correct it")
	}
	return u, left, nil
}

// pathSegment escapes an argument so that it stays one segment of the path.
func pathSegment(name string, value json.RawMessage) (string, error) {
	text, ok := scalarText(value)
	if !ok {
		return "", fmt.Errorf("arguments.%s: expected a string, number or boolean, because it is part of the tool's URL", name)
	}
	if text == "" || text == "." || text == ".." {
		return "", fmt.Errorf("arguments.%s: %q cannot be part of the tool's URL", name, text)
	}
	return url.PathEscape(text), nil
}

// addQuery adds arguments to the query: scalars as text, objects and arrays as
// JSON. Null is left out, as an argument that was not given.
func addQuery(u *url.URL, args map[string]json.RawMessage) {
	query := u.Query()
	for name, value := range args {
		if text, ok := scalarText(value); ok {
			query.Set(name, text)
		} else if string(value) != "null" {
			query.Set(name, string(value))
		}
	}
	u.RawQuery = query.Encode()
}

// scalarText is the text of a string, number or boolean.
func scalarText(value json.RawMessage) (string, bool) {
	if len(value) == 0 {
		return "", false
	}
	switch value[0] {
	case '"':
		var s string
		err := json.Unmarshal(value, &s)
		return s, err == nil
	case '{', '[', 'n':
		return "", false
	}
	return string(value), true
}

// redact replaces the secrets of a request where an answer repeats them, as they
// are or as JSON writes them. The longest goes first: one may begin another.
func (s secrets) redact(text string) string {
	names := slices.SortedFunc(maps.Keys(s), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(s[b]), len(s[a])), cmp.Compare(a, b))
	})
	for _, name := range names {
		value, mark := s[name], "[secret:"+name+"]"
		if value == "" {
			continue
		}
		text = strings.ReplaceAll(text, value, mark)
		if quoted, err := json.Marshal(value); err == nil {
			text = strings.ReplaceAll(text, string(quoted[1:len(quoted)-1]), mark)
		}
	}
	return text
}
