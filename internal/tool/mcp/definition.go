package mcp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/loopd/loopd/internal/loop"
)

const (
	// A definition is believed this long without a look at the server's list, and
	// only seconds before a call that cannot be taken back.
	freshRepeatable = time.Minute
	freshSingle     = 5 * time.Second

	// A server has no more tools than a person can read through.
	maxTools = 1024
	maxPages = 64
)

// Definition is what a server says about one of its tools. All of it is the
// server's word.
type Definition struct {
	Name         string
	Description  string
	Schema       json.RawMessage // of the arguments
	OutputSchema json.RawMessage // of the structured result; nil: none
	Annotations  json.RawMessage // hints; nil: none

	// Hash is the SHA-256 of all of the above, in lower-case hex. It changes
	// whenever something changes that a person or a model may have relied on.
	Hash string

	// Suggested is the effect that the annotations claim. Without any it is
	// IRREVERSIBLE.
	Suggested loop.Effect
	// Untrusted: the suggestion is looser than IRREVERSIBLE on nothing but the
	// server's word, so a person must confirm it before it is used.
	Untrusted bool

	destructive bool // says so in as many words
}

// Tighten is the effect of a tool that a person has declared as such: the
// declared one, or the stricter one that the server itself claims.
func (d Definition) Tighten(declared loop.Effect) loop.Effect {
	switch declared {
	case loop.ReadOnly, loop.Idempotent, loop.SideEffect:
		if !d.destructive {
			return declared
		}
	}
	return loop.Irreversible
}

// List returns the tools of the server that spec leads to, in the server's
// order; spec.Tool and spec.Hash play no part. It always asks the server.
func (c *Client) List(ctx context.Context, spec loop.MCPSpec) ([]Definition, error) {
	to, err := c.resolve("", spec)
	if err != nil {
		return nil, err
	}
	definitions, err := c.list(ctx, to)
	if err != nil {
		return nil, errors.New(to.used.redact(fmt.Sprintf("list the tools of the MCP server: %v", err)))
	}
	return definitions, nil
}

func (c *Client) list(ctx context.Context, to server) ([]Definition, error) {
	for {
		s, fresh, err := c.enter(ctx, to)
		if err != nil {
			return nil, err
		}
		var maxAge time.Duration
		if fresh { // it was asked just now
			maxAge = freshSingle
		}
		definitions, err := s.list(ctx, maxAge)
		if err != nil && ctx.Err() == nil {
			c.retire(s)
		}
		c.leave(s)
		// A session that was open before may be one that the server has forgotten.
		if err == nil || fresh || ctx.Err() != nil {
			return definitions, err
		}
	}
}

// list returns definitions that are at most that old.
func (s *session) list(ctx context.Context, maxAge time.Duration) ([]Definition, error) {
	s.mu.Lock()
	known, age, changes := s.definitions, time.Since(s.listed), s.changes
	s.mu.Unlock()
	if age <= maxAge {
		return known, nil
	}
	asked := time.Now()
	definitions, err := s.ask(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changes == changes {
		s.definitions, s.listed = definitions, asked
	}
	return definitions, nil
}

// ask reads the list of tools, page by page.
func (s *session) ask(ctx context.Context) ([]Definition, error) {
	definitions := []Definition{}
	cursor := ""
	for range maxPages {
		page, err := s.page(ctx, cursor)
		if err != nil {
			return nil, err
		}
		for _, t := range page.Tools {
			d, err := define(t)
			if err != nil {
				return nil, err
			}
			definitions = append(definitions, d)
		}
		if len(definitions) > maxTools {
			return nil, fmt.Errorf("the server has more than %d tools", maxTools)
		}
		if cursor = page.NextCursor; cursor == "" {
			return definitions, nil
		}
	}
	return nil, fmt.Errorf("the server's list of tools has more than %d pages", maxPages)
}

func (s *session) page(ctx context.Context, cursor string) (*sdk.ListToolsResult, error) {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	page, err := s.sdk.ListTools(withFlight(ctx, &flight{giveUp: giveUp}), &sdk.ListToolsParams{Cursor: cursor})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the list of tools: %w", err)
	}
	return page, nil
}

// canonical is what a definition's hash covers. Members of objects are sorted by
// encoding/json, so the order in which a server writes them plays no part.
type canonical struct {
	Name         string `json:"name"`
	Description  string `json:"description"`
	InputSchema  any    `json:"input_schema"`
	OutputSchema any    `json:"output_schema"`
	Annotations  any    `json:"annotations"`
}

func define(t *sdk.Tool) (Definition, error) {
	d := Definition{Name: t.Name, Description: t.Description, Suggested: loop.Irreversible}
	schema := t.InputSchema
	if schema == nil {
		schema = map[string]any{"type": "object"}
	}
	var annotations any
	if t.Annotations != nil {
		annotations = t.Annotations
		d.Suggested, d.destructive = suggest(*t.Annotations)
		d.Untrusted = d.Suggested != loop.Irreversible
	}
	var err error
	encode := func(what string, value any) json.RawMessage {
		if value == nil {
			return nil
		}
		text, problem := json.Marshal(value)
		if problem != nil {
			err = errors.Join(err, fmt.Errorf("tool %q: encode its %s: %w", t.Name, what, problem))
		}
		return text
	}
	d.Schema = encode("input schema", schema)
	d.OutputSchema = encode("output schema", t.OutputSchema)
	d.Annotations = encode("annotations", annotations)
	sum := sha256.Sum256(encode("definition", canonical{t.Name, t.Description, schema, t.OutputSchema, annotations}))
	d.Hash = hex.EncodeToString(sum[:])
	return d, err
}

// suggest reads annotations. What contradicts itself is as dangerous as its
// worst claim.
func suggest(a sdk.ToolAnnotations) (effect loop.Effect, destructive bool) {
	switch {
	case a.DestructiveHint != nil && *a.DestructiveHint:
		return loop.Irreversible, true
	case a.ReadOnlyHint:
		return loop.ReadOnly, false
	case a.DestructiveHint == nil: // as good as true, says the protocol
		return loop.Irreversible, false
	case a.IdempotentHint:
		return loop.Idempotent, false
	}
	return loop.SideEffect, false
}

// defaultResultBytes is what a model sees of a result at most.
const defaultResultBytes = 16 << 10

// Specs turns definitions into the tools of an agent that calls server. Each is
// pinned to its definition's hash. Effects are what a person declared, by the
// tool's name on the server; the annotations make them stricter, and a tool that
// is not in effects is IRREVERSIBLE. Names are made to fit what providers accept.
func Specs(server loop.MCPSpec, definitions []Definition, effects map[string]loop.Effect) []loop.ToolSpec {
	taken := map[string]bool{}
	specs := make([]loop.ToolSpec, 0, len(definitions))
	for _, d := range definitions {
		at := server
		at.Tool, at.Hash = d.Name, d.Hash
		specs = append(specs, loop.ToolSpec{
			Name: fitName(d.Name, taken), Description: d.Description, Schema: d.Schema,
			Effect: d.Tighten(cmp.Or(effects[d.Name], loop.Irreversible)), Timeout: defaultTimeout,
			MaxResultBytes: defaultResultBytes, MCP: &at,
		})
	}
	return specs
}

var unfit = regexp.MustCompile(`[^a-zA-Z0-9_-]`)

// maxName is the length of a tool's name that all providers accept.
const maxName = 64

// fitName makes a name that is not taken yet, and takes it.
func fitName(name string, taken map[string]bool) string {
	base := cmp.Or(unfit.ReplaceAllString(name, "_"), "tool")
	fit := base[:min(len(base), maxName)]
	for n := 2; taken[fit]; n++ {
		suffix := fmt.Sprintf("_%d", n)
		fit = base[:min(len(base), maxName-len(suffix))] + suffix
	}
	taken[fit] = true
	return fit
}

// find looks for a tool by name.
func find(definitions []Definition, name string) (Definition, bool) {
	i := slices.IndexFunc(definitions, func(d Definition) bool { return d.Name == name })
	if i < 0 {
		return Definition{}, false
	}
	return definitions[i], true
}

// quarantined says why a call may not be made of what the server now offers, or "".
func quarantined(spec loop.MCPSpec, d Definition) string {
	if spec.Hash == "" || strings.EqualFold(spec.Hash, d.Hash) {
		return ""
	}
	return fmt.Sprintf("The MCP server's definition of tool %q has changed since a person accepted it (accepted: %s), so it is in quarantine and was not called. "+
		"A person must look at the new definition and accept hash %s.", d.Name, spec.Hash, d.Hash)
}
