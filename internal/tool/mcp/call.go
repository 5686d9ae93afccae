package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"code.dny.dev/ssrf"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/propagation"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/tool"
)

// exchange is one call and what is known about it.
type exchange struct {
	client *Client
	req    tool.Request
	server server
	flight *flight // nil: no tools/call was made
}

// do makes the call, on a new session if the one at hand is gone.
func (x *exchange) do(ctx context.Context) loop.ToolReply {
	timeout := x.req.Spec.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	reply, again := x.try(limited)
	if again {
		reply, _ = x.try(limited)
	}
	return reply
}

// try makes the call on one session. It asks to be called again when nothing was
// sent, or the call is repeatable and certainly did not run, because the session
// turned out to be gone.
func (x *exchange) try(ctx context.Context) (reply loop.ToolReply, again bool) {
	x.flight = nil
	s, fresh, err := x.client.enter(ctx, x.server)
	if err != nil {
		return x.unreachable(ctx, err), false
	}
	defer x.client.leave(s)
	spec := *x.req.Spec.MCP
	once := !x.req.Spec.Effect.Repeatable()
	maxAge := freshRepeatable
	if once {
		maxAge = freshSingle
	}
	definitions, err := s.list(ctx, maxAge)
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return x.unreachable(ctx, err), false
		}
		x.client.retire(s)
		return x.unreachable(ctx, err), !fresh && ctx.Err() == nil
	}
	if refused, ok := x.refuse(spec, definitions); ok {
		return refused, false
	}
	x.flight = &flight{once: once}
	err = s.call(ctx, x.flight, spec.Tool, json.RawMessage(argsText(x.req.Call.Args)), x.meta(ctx))
	saw := x.flight.seen()
	gone := saw.forgotten || saw.answer == nil && errors.Is(err, sdk.ErrConnectionClosed)
	if gone || saw.status != nil && denied(saw.status.code) {
		x.client.retire(s)
	}
	return x.reply(ctx, saw, err), gone && !fresh && (!saw.sent || saw.forgotten && !once)
}

// refuse holds a call back that the server's list does not allow.
func (x *exchange) refuse(spec loop.MCPSpec, definitions []Definition) (loop.ToolReply, bool) {
	d, ok := find(definitions, spec.Tool)
	if !ok {
		return fail(loop.OutcomePermanent, problemNote{Kind: "tool_gone", Message: fmt.Sprintf("The MCP server has no tool %q any more. Nothing was sent.", spec.Tool)}), true
	}
	if why := quarantined(spec, d); why != "" {
		return fail(loop.OutcomePermanent, problemNote{Kind: "quarantined", Message: why}), true
	}
	return loop.ToolReply{}, false
}

// meta tells the server whose call it is. MCP has no idempotency key of its own,
// so the names are loopd's; those of the trace are as OpenTelemetry writes them.
func (x *exchange) meta(ctx context.Context) sdk.Meta {
	meta := sdk.Meta{
		"loopd/idempotency-key": x.req.Key,
		"loopd/run":             x.req.Run.ID,
		"loopd/call":            x.req.Call.ID,
		"loopd/attempt":         x.req.Attempt,
	}
	trace := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, trace)
	for name, value := range trace {
		meta[name] = value
	}
	return meta
}

// reply says what came of a call that was made.
func (x *exchange) reply(ctx context.Context, saw seen, err error) loop.ToolReply {
	var reply loop.ToolReply
	switch {
	case saw.answer != nil && saw.answer.Error != nil:
		reply = x.protocolError(saw.answer.Error)
	case saw.answer != nil:
		reply = x.result(saw.answer.Result)
	case saw.status != nil:
		reply = x.status(saw)
	default:
		reply = x.broken(ctx, err)
	}
	reply.Bytes = saw.bytes
	return reply
}

// result is a complete result: what the tool said, or that it failed.
func (x *exchange) result(raw json.RawMessage) loop.ToolReply {
	var result sdk.CallToolResult
	if err := json.Unmarshal(raw, &result); err != nil {
		return x.doubtful("The MCP server's result is not one ("+x.why(err)+").", loop.OutcomePermanent, problemNote{Kind: "bad_result"})
	}
	if result.NeedsInput() {
		return fail(loop.OutcomePermanent, problemNote{Kind: "input_required", Message: "The tool asks for input from a person or a model before it goes on. loopd gives it none, so the call did not complete."})
	}
	text, cut := limitText(plain(x.server.used.redact(content(result, raw))), x.client.cfg.MaxReadBytes)
	if !result.IsError {
		return loop.ToolReply{Outcome: loop.OutcomeOK, Content: text, Cut: cut}
	}
	reply := fail(loop.OutcomePermanent, problemNote{Kind: "tool_error", Message: "The tool reports an error.", Body: excerpt(text)})
	reply.Cut = cut
	return reply
}

// protocolError is an answer that says the request failed. Some codes say that
// it was not taken at all; the others leave open how far it got.
func (x *exchange) protocolError(err error) loop.ToolReply {
	wire, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok {
		wire = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
	}
	body := excerpt(plain(x.server.used.redact(wire.Message)))
	switch wire.Code {
	case jsonrpc.CodeInvalidParams:
		return fail(loop.OutcomeInvalidArgs, problemNote{Kind: "invalid_arguments", Message: "The MCP server refused the arguments.", Body: body})
	case jsonrpc.CodeParseError, jsonrpc.CodeInvalidRequest, jsonrpc.CodeMethodNotFound:
		return fail(loop.OutcomePermanent, problemNote{Kind: "refused", Message: "The MCP server did not take the request. The same call will fail again.", Body: body})
	case sdk.CodeURLElicitationRequired:
		return fail(loop.OutcomePermanent, problemNote{Kind: "input_required", Message: "The tool wants a person to visit a page first, so the call did not complete.", Body: body})
	}
	return x.doubtful(fmt.Sprintf("The MCP server answered with error %d, which does not say whether the call ran.", wire.Code),
		loop.OutcomePermanent, problemNote{Kind: "server_error", Body: body})
}

// status is a complete answer that is no 2xx. 408, 409, 425 and 5xx leave it open
// whether the call ran, and so does a redirect; 429 says that it did not.
func (x *exchange) status(saw seen) loop.ToolReply {
	code := saw.status.code
	said := "The MCP server answered " + statusText(code)
	note := problemNote{Status: code, RetryAfter: saw.status.retryAfter, Body: excerpt(plain(x.server.used.redact(saw.status.text)))}
	outcome := loop.OutcomePermanent
	switch {
	case saw.forgotten:
		outcome, note.Kind, note.Message = loop.OutcomeRetryable, "session_lost", said+": it has forgotten the session. The call did not run; the next one opens a new session."
	case code == http.StatusTooManyRequests:
		outcome, note.Kind, note.Message = loop.OutcomeRetryable, "rate_limited", said+". It may succeed later."
	case definiteRefusal(code):
		note.Kind, note.Message = "refused", said+". The same call will fail again."
	case !x.req.Spec.Effect.Repeatable():
		outcome, note.Kind, note.Message = loop.OutcomeUnknown, "outcome_unknown", said+", which does not say whether the call ran. "+mayHaveRun
	case passes(code):
		outcome, note.Kind, note.Message = loop.OutcomeRetryable, "unavailable", said+". It may succeed later."
	default:
		note.Kind, note.Message = "server_error", said+". The same call will fail again."
	}
	reply := fail(outcome, note)
	reply.Status = code
	return reply
}

// passes reports whether a status says that the trouble may pass.
func passes(code int) bool {
	switch code {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// mayHaveRun is the truth about a call in doubt.
const mayHaveRun = "The call may have run. Do not repeat it; check the state of what it acts on."

// doubtful is an answer that does not say whether the call ran.
func (x *exchange) doubtful(said string, repeatable loop.Outcome, note problemNote) loop.ToolReply {
	note.Message = said
	if x.req.Spec.Effect.Repeatable() {
		return fail(repeatable, note)
	}
	note.Kind, note.Message = "outcome_unknown", said+" "+mayHaveRun
	return fail(loop.OutcomeUnknown, note)
}

// broken is a call without an answer.
func (x *exchange) broken(ctx context.Context, err error) loop.ToolReply {
	sent := x.flight.seen().sent
	switch {
	case sent && !x.req.Spec.Effect.Repeatable():
		reply := x.doubtful("The call was sent, but no complete answer came back ("+x.why(err)+").", "", problemNote{})
		reply.Cut = errors.Is(err, errTooLarge)
		return reply
	case !sent:
		return x.unreachable(ctx, err)
	case errors.Is(ctx.Err(), context.Canceled):
		return fail(loop.OutcomeCancelled, problemNote{Kind: "cancelled", Message: "The call was given up before its answer came."})
	case errors.Is(err, errTooLarge):
		reply := fail(loop.OutcomePermanent, problemNote{Kind: "answer_too_large", Message: "The answer is larger than loopd reads. Ask for less, or for a narrower part."})
		reply.Cut = true
		return reply
	case errors.Is(err, errGarbage):
		return fail(loop.OutcomePermanent, problemNote{Kind: "bad_answer", Message: "The MCP server's answer cannot be read (" + x.why(err) + ")."})
	case isTimeout(err), errors.Is(err, errSilent):
		return fail(loop.OutcomeTimeout, problemNote{Kind: "timeout", Message: "The tool did not answer in time."})
	}
	return fail(loop.OutcomeRetryable, problemNote{Kind: "connection", Message: "The connection to the MCP server broke before its answer was complete (" + x.why(err) + ")."})
}

// unreachable is a call that was never sent.
func (x *exchange) unreachable(ctx context.Context, err error) loop.ToolReply {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fail(loop.OutcomeCancelled, problemNote{Kind: "cancelled", Message: "The call was given up before anything was sent."})
	}
	for _, refusal := range []error{ssrf.ErrProhibitedIP, ssrf.ErrProhibitedPort, ssrf.ErrProhibitedNetwork, ssrf.ErrInvalidHostPort} {
		if errors.Is(err, refusal) {
			return fail(loop.OutcomePermanent, problemNote{Kind: "address_refused", Message: "The MCP server's address is not one that this deployment lets tools use: private, link-local and special addresses and ports other than 80 and 443 are refused."})
		}
	}
	status, ok := errors.AsType[*statusError](err)
	if ok && definiteRefusal(status.code) && status.code != http.StatusTooManyRequests {
		reply := fail(loop.OutcomePermanent, problemNote{Kind: "server_refused", Status: status.code, Message: "The MCP server does not let loopd in (" + statusText(status.code) + "). The call was not sent.", Body: excerpt(plain(x.server.used.redact(status.text)))})
		reply.Status = status.code
		return reply
	}
	note := problemNote{Kind: "not_sent", Message: "The MCP server could not be used (" + x.why(err) + "). The call was not sent."}
	if ok {
		note.Status, note.RetryAfter = status.code, status.retryAfter
	}
	return fail(loop.OutcomeNotSent, note)
}

// misconfigured is a call that cannot be made as the tool is set up.
func (x *exchange) misconfigured(err error) loop.ToolReply {
	return fail(loop.OutcomePermanent, problemNote{Kind: "configuration", Message: err.Error() + ". Nothing was sent."})
}

// why is the innermost reason of a failure, without URLs and secrets.
func (x *exchange) why(err error) string {
	if isTimeout(err) {
		return "timeout"
	}
	for _, known := range []error{errGarbage, errTooLarge, errVanished, errSilent, errTwice, errClosed} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		err = op.Err
	} else if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	return excerpt(plain(x.server.used.redact(err.Error())))
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &ne) && ne.Timeout()
}
