package provider

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/loopd/loopd/internal/loop"
)

// Settle corrects the finish that a provider named by what is really in the
// message, so that no call runs from an answer that may be cut:
//
//   - calls in an answer that claims to be done make it tool_calls;
//   - tool_calls without a call, or with one that has no name, is unknown;
//   - a call whose arguments stop in the middle makes it truncated, because some
//     servers report tool_calls although the output limit cut the answer. Any call
//     counts, not only the last: with calls streamed side by side, and with servers
//     that mix them up, the cut one need not be the last, and its siblings are then
//     no better known.
func Settle(finish loop.Finish, m loop.Message) loop.Finish {
	if finish != loop.FinishDone && finish != loop.FinishToolCalls {
		return finish
	}
	calls := m.Calls()
	switch {
	case len(calls) == 0 && finish == loop.FinishDone:
		return loop.FinishDone
	case slices.ContainsFunc(calls, func(c loop.ToolCall) bool { return unfinished(c.Args) }):
		return loop.FinishTruncated
	case len(calls) == 0, slices.ContainsFunc(calls, func(c loop.ToolCall) bool { return c.Name == "" }):
		return loop.FinishUnknown
	}
	return loop.FinishToolCalls
}

// unfinished reports whether args are the beginning of a JSON value. Arguments
// that are wrong in another way are the model's mistake and are answered as such.
func unfinished(args string) bool {
	if json.Valid([]byte(args)) { // as nearly all are
		return false
	}
	var v json.RawMessage
	err := json.NewDecoder(strings.NewReader(args)).Decode(&v)
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

// ObjectOr returns args if they are a JSON object, and {} otherwise: providers
// refuse a history with anything else in it, whatever their own model wrote.
func ObjectOr(args string) json.RawMessage {
	if raw := json.RawMessage(args); strings.HasPrefix(strings.TrimLeft(args, " \t\r\n"), "{") && json.Valid(raw) {
		return raw
	}
	return json.RawMessage("{}")
}

// Cut is the error for an answer that ended before it was complete.
func Cut(what string) *loop.ModelError {
	return &loop.ModelError{Class: noAnswer.class(), Message: what}
}

// WithUsage adds what a failed answer had already reported.
func WithUsage(err error, usage loop.Usage) error {
	if e, ok := errors.AsType[*loop.ModelError](err); ok {
		e.Usage = usage
		return e
	}
	return &loop.ModelError{Class: noAnswer.class(), Message: clip(err.Error()), Usage: usage}
}

// CallIDs decides which ids the calls of one request carry on the wire: the
// provider's own, so that its history is unchanged, or loopd's where those are
// empty or repeated. Results follow their calls.
type CallIDs struct {
	unique bool // ids may not repeat anywhere in the request
	used   map[string]bool
	wire   map[string]string // loopd's id -> id on the wire
}

// NewCallIDs starts a request. With unique, an id may occur only once in the
// whole request; otherwise once in a message.
func NewCallIDs(unique bool) *CallIDs {
	return &CallIDs{unique: unique, used: map[string]bool{}, wire: map[string]string{}}
}

// Assign returns the ids for the calls of one assistant message, and whether
// they are all as the provider wrote them.
func (c *CallIDs) Assign(calls []loop.ToolCall) (ids []string, own bool) {
	if !c.unique {
		clear(c.used)
	}
	own = true
	seen := map[string]bool{}
	for _, call := range calls {
		id := call.ProviderID
		own = own && id != "" && !seen[id] && !c.used[id]
		seen[id] = true
	}
	for _, call := range calls {
		id := call.ProviderID
		if !own {
			id = call.ID
		}
		c.used[id] = true
		if call.ID != "" {
			c.wire[call.ID] = id
		}
		ids = append(ids, id)
	}
	return ids, own
}

// Of returns the id of the call that a result answers.
func (c *CallIDs) Of(r loop.ToolResult) string {
	if id, ok := c.wire[r.CallID]; ok {
		return id
	}
	if r.ProviderID != "" {
		return r.ProviderID
	}
	return r.CallID
}
