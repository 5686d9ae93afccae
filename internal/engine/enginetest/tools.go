package enginetest

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
)

// Sent is one request that reached a tool.
type Sent struct {
	Run     string
	Tool    string
	CallID  string
	Key     string
	Attempt int
}

// Tools is the world's side of all tools. It keeps a ledger of every request
// that reached one, whoever sent it. Set its fields before it is used; safe for
// concurrent use.
type Tools struct {
	// Replies gives the reply of a tool by its name; n counts the requests that
	// reached it before. A tool that is not named answers "ok".
	Replies map[string]func(n int) loop.ToolReply
	// Gates hold the replies of a tool back until they are closed or the call is
	// given up.
	Gates map[string]<-chan struct{}

	mu   sync.Mutex
	sent []Sent
}

// OK is a good reply.
func OK(content string) loop.ToolReply {
	return loop.ToolReply{Outcome: loop.OutcomeOK, Content: content, Bytes: int64(len(content)), Status: 200}
}

// Problem implements engine.Tools: arguments must be JSON.
func (t *Tools) Problem(_ loop.ToolSpec, args string) string {
	if !json.Valid([]byte(args)) {
		return "expected JSON"
	}
	return ""
}

// Call implements engine.Tools.
func (t *Tools) Call(ctx context.Context, req engine.ToolRequest) loop.ToolReply {
	if ctx.Err() != nil {
		return loop.ToolReply{Outcome: loop.OutcomeNotSent, Content: "given up before anything was sent"}
	}
	n := t.send(req)
	if gate, ok := t.Gates[req.Spec.Name]; ok {
		select {
		case <-gate:
		case <-ctx.Done():
			return givenUp(ctx, req.Spec.Effect)
		}
	}
	if reply, ok := t.Replies[req.Spec.Name]; ok {
		return reply(n)
	}
	return OK("ok")
}

// givenUp is what an honest adapter says of a call that was sent and cut off.
func givenUp(ctx context.Context, effect loop.Effect) loop.ToolReply {
	switch {
	case !effect.Repeatable():
		return loop.ToolReply{Outcome: loop.OutcomeUnknown, Content: "no answer; it may have run"}
	case ctx.Err() == context.DeadlineExceeded:
		return loop.ToolReply{Outcome: loop.OutcomeTimeout, Content: "no answer in time"}
	}
	return loop.ToolReply{Outcome: loop.OutcomeCancelled, Content: "given up"}
}

// send notes the request and counts those to the same tool before it.
func (t *Tools) send(req engine.ToolRequest) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, s := range t.sent {
		if s.Tool == req.Spec.Name {
			n++
		}
	}
	t.sent = append(t.sent, Sent{Run: req.Run.ID, Tool: req.Spec.Name, CallID: req.Call.ID, Key: req.Key, Attempt: req.Attempt})
	return n
}

// Sent returns the ledger, in order of arrival.
func (t *Tools) Sent() []Sent {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.sent)
}

// Checker is an engine.Checker made of a function.
type Checker func(schema []byte, answer string) []string

// Check implements engine.Checker.
func (c Checker) Check(schema []byte, answer string) []string { return c(schema, answer) }

// AcceptJSON accepts every answer that is JSON.
func AcceptJSON(_ []byte, answer string) []string {
	if !json.Valid([]byte(answer)) {
		return []string{"$: expected JSON"}
	}
	return nil
}

// Assertions is an engine.Assertions that knows no CEL: an assertion holds when
// Holds says so of its expression. Safe for concurrent use if Holds is.
type Assertions struct {
	Holds func(expr string, facts loop.Facts) bool
}

// Assert implements engine.Assertions.
func (a Assertions) Assert(assertions []loop.Assertion, facts loop.Facts) []string {
	var problems []string
	for _, each := range assertions {
		if !a.Holds(each.Expr, facts) {
			problems = append(problems, "does not hold: "+each.Expr)
		}
	}
	return problems
}
