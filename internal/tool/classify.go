package tool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// exchange is one request and what is known about it.
type exchange struct {
	runner *Runner
	req    Request
	used   secrets
	// sent: the request was given a connection, so its bytes may have left.
	sent atomic.Bool
}

// do sends the request, unless the tool's breaker is open, and reads the answer.
func (x *exchange) do(ctx context.Context) (reply loop.ToolReply) {
	timeout := x.req.Spec.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	limited := ctx
	if ends, ok := ctx.Deadline(); !ok || time.Until(ends) > timeout { // whoever calls mostly bounds it as well
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}

	// Resolve, dial and TLS all come before GotConn.
	traced := httptrace.WithClientTrace(limited, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { x.sent.Store(true) }})
	hr, used, err := x.runner.newRequest(traced, x.req)
	if err != nil {
		return x.unsendable(err)
	}
	x.used = used
	key := breakerKey{tenant: x.req.Run.Tenant, tool: x.req.Spec.Name, host: hr.URL.Host}
	p, wait, ok := x.runner.breakers.enter(key, time.Now())
	if !ok {
		return x.fail(loop.OutcomeNotSent, problem{Kind: "tool_unavailable", Message: unavailable, RetryAfter: inSeconds(wait)})
	}
	defer func() { // also when something panics: the reply is empty then
		v := judge(reply)
		if errors.Is(ctx.Err(), context.Canceled) {
			v = silent
		}
		x.runner.breakers.leave(p, v, time.Now())
	}()
	client := x.runner.single
	if x.req.Spec.Effect.Repeatable() {
		client = x.runner.repeatable
	}
	resp, err := client.Do(hr)
	if err != nil {
		return x.broken(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }() // the answer is read or given up by then
	b, err := readBody(resp, x.runner.cfg.MaxReadBytes)
	if err != nil {
		reply = x.broken(ctx, err)
		reply.Status, reply.Bytes = resp.StatusCode, b.size
		return reply
	}
	return x.answered(resp, b)
}

// unavailable is what the breaker tells the model.
const unavailable = "The tool failed several times in a row, so it is not called for a while. Nothing was sent."

// unsendable is a request that could not be built: a definite failure.
func (x *exchange) unsendable(err error) loop.ToolReply {
	if argument, ok := errors.AsType[*argumentError](err); ok {
		return x.fail(loop.OutcomeInvalidArgs, problem{Kind: "invalid_arguments", Message: argument.problem + ". Nothing was sent."})
	}
	return x.fail(loop.OutcomePermanent, problem{Kind: "configuration", Message: err.Error() + ". Nothing was sent."})
}

// broken is a request without a complete answer.
func (x *exchange) broken(ctx context.Context, err error) loop.ToolReply {
	sent, repeatable := x.sent.Load(), x.req.Spec.Effect.Repeatable()
	cancelled := errors.Is(ctx.Err(), context.Canceled)
	switch {
	case sent && !repeatable:
		return x.fail(loop.OutcomeUnknown, problem{Kind: "outcome_unknown", Message: "The request was sent, but no complete answer came back (" + x.why(err) + "). " + mayHaveRun})
	case cancelled && sent:
		return x.fail(loop.OutcomeCancelled, problem{Kind: "cancelled", Message: "The call was given up before its answer came."})
	case cancelled:
		return x.fail(loop.OutcomeCancelled, problem{Kind: "cancelled", Message: "The call was given up before anything was sent."})
	case AddressRefused(err):
		return x.fail(loop.OutcomePermanent, problem{Kind: "address_refused", Message: "The tool's address is not one that this deployment lets tools use: hosts that are not listed, private, link-local and special addresses and ports other than 80 and 443 are refused."})
	case !sent:
		return x.fail(loop.OutcomeNotSent, problem{Kind: "not_sent", Message: "The tool could not be reached (" + x.why(err) + "). Nothing was sent."})
	case errors.Is(err, errRedirect):
		return x.fail(loop.OutcomePermanent, problem{Kind: "redirect", Message: "The tool answered with a redirect that is not followed (" + x.why(err) + ")."})
	case isTimeout(err):
		return x.fail(loop.OutcomeTimeout, problem{Kind: "timeout", Message: "The tool did not answer in time."})
	}
	return x.fail(loop.OutcomeRetryable, problem{Kind: "connection", Message: "The connection to the tool broke before its answer was complete (" + x.why(err) + ")."})
}

// mayHaveRun is the truth about a call in doubt.
const mayHaveRun = "The call may have run. Do not repeat it; check the state of what it acts on."

// answered is a complete answer, or one that is longer than loopd reads.
func (x *exchange) answered(resp *http.Response, b body) loop.ToolReply {
	outcome, kind := classify(resp.StatusCode, x.req.Spec.Effect)
	if b.cut && !x.req.Spec.Effect.Repeatable() && outcome != loop.OutcomeUnknown {
		outcome, kind = loop.OutcomeUnknown, "answer_too_large"
	}
	reply := loop.ToolReply{Outcome: outcome, Bytes: b.size, Cut: b.cut, Status: resp.StatusCode}
	if outcome == loop.OutcomeOK {
		x.show(&reply, b)
		return reply
	}
	p := problem{Kind: kind, Status: resp.StatusCode, Message: answerMessage(outcome, resp.StatusCode), Body: excerpt(x.text(b))}
	if outcome == loop.OutcomeRetryable { // of a call in doubt, or one that fails again, it would mislead
		p.RetryAfter = retryAfter(resp.Header)
	}
	reply.Content = p.encode()
	return reply
}

// text is the body as the model may see it.
func (x *exchange) text(b body) string {
	text := x.used.redact(b.text())
	if b.cut {
		text = x.used.trimPartial(text)
	}
	return text
}

// show puts into a reply what the model is to see of a good answer. That the
// wanted part is not there does not undo what the tool did: only a call that does
// nothing else has failed then.
func (x *exchange) show(reply *loop.ToolReply, b body) {
	pointer := x.req.Spec.HTTP.Result
	if pointer == "" {
		reply.Content = x.text(b)
		return
	}
	part, err := b.pointed(pointer)
	if err == nil {
		reply.Content = x.used.redact(part)
		return
	}
	said := "The call succeeded, but "
	if x.req.Spec.Effect == loop.ReadOnly {
		said, reply.Outcome = "The tool answered, but ", loop.OutcomePermanent
	}
	reply.Content = problem{Kind: "result_missing", Status: reply.Status, Message: said + x.used.redact(err.Error()) + ".", Body: excerpt(x.text(b))}.encode()
}

// classify maps a complete answer to what it says about the call. 408, 409, 425
// and 5xx leave it open whether the call ran, and so does a redirect, which some
// services send after they have acted; 429 says that it did not.
func classify(status int, effect loop.Effect) (outcome loop.Outcome, kind string) {
	switch {
	case status >= 200 && status <= 299:
		return loop.OutcomeOK, ""
	case status == http.StatusTooManyRequests:
		return loop.OutcomeRetryable, "rate_limited"
	}
	definite := status >= 400 && status <= 499 &&
		status != http.StatusRequestTimeout && status != http.StatusConflict && status != http.StatusTooEarly
	if !definite && !effect.Repeatable() {
		return loop.OutcomeUnknown, "outcome_unknown"
	}
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return loop.OutcomeRetryable, "unavailable"
	case http.StatusConflict:
		if effect == loop.Idempotent { // the first request with this key may still be running
			return loop.OutcomeRetryable, "conflict"
		}
		return loop.OutcomePermanent, "conflict"
	}
	switch {
	case status >= 500:
		return loop.OutcomePermanent, "server_error"
	case status < 400:
		return loop.OutcomePermanent, "redirect"
	}
	return loop.OutcomePermanent, "refused"
}

// answerMessage says in words what classify decided.
func answerMessage(outcome loop.Outcome, status int) string {
	said := fmt.Sprintf("The tool answered %d", status)
	if text := http.StatusText(status); text != "" {
		said += " " + text
	}
	switch outcome {
	case loop.OutcomeUnknown:
		return said + ", which does not say whether the call ran. " + mayHaveRun
	case loop.OutcomeRetryable:
		return said + ". It may succeed later."
	}
	return said + ". The same call will fail again."
}

// why is the innermost reason of a failed request, without the URL around it.
func (x *exchange) why(err error) string {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	if isTimeout(err) {
		return "timeout"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		err = op.Err
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return dns.Err // the rest names this deployment's name server
	}
	text := x.used.redact(err.Error())
	if len(text) > maxReasonBytes { // it may quote what the tool sent
		text = string(trimPartialRune([]byte(text[:maxReasonBytes]))) + "…"
	}
	return text
}

// maxReasonBytes bounds the reason of a failure in a message.
const maxReasonBytes = 300

func isTimeout(err error) bool {
	var ne net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &ne) && ne.Timeout()
}

// fail is a reply that tells the model what went wrong.
func (x *exchange) fail(outcome loop.Outcome, p problem) loop.ToolReply {
	return loop.ToolReply{Outcome: outcome, Content: p.encode()}
}
