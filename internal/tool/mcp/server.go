package mcp

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
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

var secretRef = regexp.MustCompile(`\$\{secret:([A-Za-z0-9_.-]+)\}`)

// server is where a session leads, with everything resolved.
type server struct {
	url     string
	header  http.Header
	command []string
	used    secrets // in header, by name
	key     string  // the same for the same tenant, address and headers
}

// resolve finds out where a spec leads.
func (c *Client) resolve(tenant string, spec loop.MCPSpec) (server, error) {
	s := server{url: spec.URL, command: spec.Command, header: http.Header{}, used: secrets{}}
	if (spec.URL == "") == (len(spec.Command) == 0) {
		return s, errors.New("mcp: give either a url or a command")
	}
	if len(spec.Command) > 0 && !c.cfg.AllowCommands {
		return s, errors.New("mcp.command: this deployment starts no commands; give the url of a streamable HTTP server")
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Headers)) {
		value, err := c.fill(spec.Headers[name], s.used)
		if err != nil {
			return s, fmt.Errorf("mcp.headers[%q]: %w", name, err)
		}
		s.header.Set(name, value)
	}
	identity, err := json.Marshal([]any{tenant, s.url, s.command, s.header})
	if err != nil {
		return s, fmt.Errorf("name the server: %w", err)
	}
	sum := sha256.Sum256(identity)
	s.key = hex.EncodeToString(sum[:])
	return s, nil
}

// fill replaces ${secret:NAME} and notes which secrets it used.
func (c *Client) fill(value string, used secrets) (string, error) {
	var missing error
	filled := secretRef.ReplaceAllStringFunc(value, func(ref string) string {
		name := secretRef.FindStringSubmatch(ref)[1]
		secret, ok := c.cfg.Secrets(name)
		switch {
		case !ok:
			missing = fmt.Errorf("secret %q is not set in this deployment", name)
		case !httpguts.ValidHeaderFieldValue(secret):
			// Here, because net/http would put the header's value into its error.
			missing = fmt.Errorf("secret %q holds characters that cannot be sent in a header", name)
		}
		used[name] = secret
		return secret
	})
	return filled, missing
}

// secrets are the values that are sent to one server, by name.
type secrets map[string]string

// redact replaces the secrets where an answer repeats them, as they are or as
// JSON writes them. The longest goes first: one may begin another.
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

// Problems returns what is wrong with a spec, each problem naming the field and
// the fix, or none. It looks at syntax only and calls nobody.
func Problems(spec loop.MCPSpec) []string {
	var problems []string
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	switch {
	case (spec.URL == "") == (len(spec.Command) == 0):
		add("mcp: give either a url or a command")
	case spec.URL != "":
		if problem := urlProblem(spec.URL); problem != "" {
			add("mcp.url: %s", problem)
		}
	case spec.Command[0] == "":
		add("mcp.command: its first word must name a program")
	}
	if spec.Tool == "" {
		add("mcp.tool: is missing: give the tool's name on the server")
	}
	if spec.Hash != "" && !sha256Hex.MatchString(spec.Hash) {
		add("mcp.hash: %q is not a SHA-256 in lower-case hex", spec.Hash)
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Headers)) {
		if problem := headerProblem(name, spec.Headers[name]); problem != "" {
			add("mcp.headers[%q]: %s", name, problem)
		}
	}
	return problems
}

var sha256Hex = regexp.MustCompile(`^[0-9a-f]{64}$`)

func urlProblem(text string) string {
	u, err := url.Parse(text)
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
	return ""
}

// reservedHeaders are set by loopd, the protocol or the HTTP library.
var reservedHeaders = [...]string{
	"Accept", "Accept-Encoding", "Connection", "Content-Length", "Content-Type", "Host", "Keep-Alive", "Last-Event-Id",
	"Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

func headerProblem(name, value string) string {
	canonical := http.CanonicalHeaderKey(name)
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return "not a valid header name"
	case slices.Contains(reservedHeaders[:], canonical) || strings.HasPrefix(canonical, "Mcp-") || strings.HasPrefix(canonical, "Loopd-"):
		return "set by loopd itself; remove it"
	case !httpguts.ValidHeaderFieldValue(value):
		return "the value has control characters"
	case strings.Contains(secretRef.ReplaceAllString(value, ""), "${"):
		return "a reference must read ${secret:NAME}, with letters, digits, _, . and - in the name"
	}
	return ""
}
