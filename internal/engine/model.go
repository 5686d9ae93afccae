package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// longestRetryAfter is the longest wait that a provider may ask for. Whoever
// asks for more is not coming back soon.
const longestRetryAfter = time.Hour

// modelResult is what a model call brought: an answer or an error.
type modelResult struct {
	answer loop.ModelAnswer
	err    error
}

// modelCall is a request on its way. Its owner waits with it and with little else on the
// stack: a stack is four times what lies on it, and thousands of owners wait at once.
type modelCall struct {
	began   time.Time
	bounded context.Context //nolint:containedctx // the call's own: it ends with the call
	cancel  context.CancelCauseFunc
	stop    context.CancelFunc
	span    span
	request loop.ModelRequest
	results chan *modelResult
}

// end gives up what the call still holds.
func (c *modelCall) end() {
	c.stop()
	c.cancel(nil)
}

// callModel sends the request, at most once, and records what came back.
func (o *owner) callModel(ctx context.Context, a *loop.CallModel) error {
	call := o.send(ctx, a)
	defer call.end()
	return o.recordModel(ctx, a, call, o.awaitModel(ctx, call))
}

// send starts the request in a goroutine of its own.
func (o *owner) send(ctx context.Context, a *loop.CallModel) *modelCall {
	c := &modelCall{began: time.Now(), results: make(chan *modelResult, 1)}
	callCtx, cancel := context.WithCancelCause(ctx)
	c.cancel = cancel
	c.bounded, c.stop = context.WithDeadline(callCtx, earlier(a.Deadline, c.began.Add(o.e.cfg.ModelTimeout)))
	traced, span := o.spans.chat(c.bounded, *a)
	c.span = span

	refusal := o.place.refusal()
	c.request = o.prepare(*a)
	c.request.Emit = o.e.metrics.timeFirst(a.Started.Model, c.began, o.listen(*a, cancel))
	fork(o.e.sup, c.results, func() *modelResult { return o.generate(traced, &c.request, refusal) }, func(p any) *modelResult {
		return &modelResult{err: &loop.ModelError{Class: loop.ErrorInternal, Message: fmt.Sprintf("the provider's adapter panicked: %v", p)}}
	})
	return c
}

// awaitModel waits for what the request brings. A cancel of the run ends it.
func (o *owner) awaitModel(ctx context.Context, c *modelCall) *modelResult {
	for {
		select {
		case r := <-c.results:
			return r
		case <-o.poked:
			o.watchCancel(ctx, c.cancel)
		}
	}
}

// recordModel folds what the request brought.
func (o *owner) recordModel(ctx context.Context, a *loop.CallModel, c *modelCall, r *modelResult) error {
	record := o.settle(c.bounded, *a, *r, time.Since(c.began))
	c.span.endModel(c.request, record)
	if err := o.hold(ctx, batch{bodies: []loop.Body{record}}); err != nil {
		return err
	}
	if answered, ok := record.(loop.ModelAnswered); ok {
		o.e.metrics.compare(a.Started, answered)
	}
	return nil
}

// settle is what the journal keeps of how the request ended; the provider's lane
// learns it too.
func (o *owner) settle(ctx context.Context, a loop.CallModel, r modelResult, latency time.Duration) loop.Body {
	retryOf := o.retryOf
	o.retryOf = ""
	if r.err == nil {
		o.place.leave(endOf(r, "", retryOf))
		return o.answered(a, r.answer, latency)
	}
	failed := o.failed(ctx, a, r.err, latency)
	o.place.leave(endOf(r, failed.Class, retryOf))
	return failed
}

// memoKey is what an adapter's memo is good for: one model, and a transcript that
// only grows.
type memoKey struct {
	model    string
	rewrites int
}

// prepare adds to a request what is no part of the run: what the adapter remembers.
func (o *owner) prepare(a loop.CallModel) loop.ModelRequest {
	req := a.Request
	if a.Beside() { // nothing of it comes again
		return req
	}
	if key := (memoKey{a.Started.Model, o.state.Rewrites()}); o.memoOf != key {
		o.memo, o.memoOf = loop.Memo{}, key
	}
	req.Memo = &o.memo
	return req
}

func (o *owner) generate(ctx context.Context, req *loop.ModelRequest, refusal *loop.ModelError) *modelResult {
	model, ok := o.e.cfg.Models[req.Provider]
	if !ok {
		return &modelResult{err: &loop.ModelError{Class: loop.ErrorRequest, Message: fmt.Sprintf("this worker has no provider %q configured", req.Provider)}}
	}
	if refusal != nil {
		return &modelResult{err: refusal}
	}
	var r modelResult
	r.answer, r.err = model.Generate(ctx, *req)
	return &r
}

// answered is the record of an answer. The calls in it get loopd's own ids, and
// their arguments are checked here, because the core knows no schemas.
func (o *owner) answered(a loop.CallModel, m loop.ModelAnswer, latency time.Duration) loop.ModelAnswered {
	spec := o.state.Spec()
	m.Message.Role, m.Message.Source = loop.RoleAssistant, loop.SourceModel
	n := 0
	for i, p := range m.Message.Parts {
		m.Message.Parts[i].Text = strings.ToValidUTF8(p.Text, "�")
		if p.Kind != loop.PartToolCall {
			continue
		}
		n++
		c := *p.Call
		c.ID = fmt.Sprintf("c%d-%d", a.Started.Call, n)
		c.Args = strings.ToValidUTF8(c.Args, "�")
		if tool, known := spec.Definition.Tool(c.Name); known {
			c.Problem = o.e.cfg.Tools.Problem(tool, c.Args)
			c.Approval = o.needsApproval(tool, c)
		}
		m.Message.Parts[i].Call = &c
	}
	record := loop.ModelAnswered{
		Call: a.Started.Call, Message: m.Message, Finish: m.Finish, NativeFinish: m.NativeFinish,
		Usage: m.Usage, Cost: a.Price.Cost(m.Usage), CacheSaved: a.Price.CacheSaved(m.Usage), ResponseID: m.ResponseID, ResponseModel: m.ResponseModel,
		LatencyMS: latency.Milliseconds(),
	}
	if m.UsageMissing || m.Usage.Input() == 0 { // no request reads nothing
		record.Usage, record.Cost, record.Estimated = worstUsage(a.Started), loop.LostCost(loop.ErrorLost, a.Started.Hold), true
		record.CacheSaved = 0
	}
	if o.state.HearsTextLoops() && !a.Beside() {
		record.Chant = loop.TextLoopIn(m.Message, m.Finish)
	}
	if record.Cost.Total() > a.Started.Hold {
		o.e.metrics.breaches.WithLabelValues("cost").Inc()
		o.log.Error("a model call cost more than its hold", "hold_usd", a.Started.Hold.String(), "cost_usd", record.Cost.Total().String(), "call", a.Started.Call)
	}
	return record
}

// worstUsage is what a call is counted as when nobody says what it used.
func worstUsage(s loop.ModelStarted) loop.Usage {
	return loop.Usage{InputUncached: s.InputBound, Output: s.MaxOutput}
}

// failed is the record of a failure: its class, its price, and when to try again.
func (o *owner) failed(ctx context.Context, a loop.CallModel, err error, latency time.Duration) loop.ModelFailed {
	me := modelError(err)
	record := loop.ModelFailed{
		Call: a.Started.Call, Class: me.Class, Status: me.Status, Code: me.Code,
		Message: strings.ToValidUTF8(me.Message, "�"), LatencyMS: latency.Milliseconds(),
	}
	cause := context.Cause(ctx)
	round, chants := errors.AsType[*textLoopError](cause)
	switch {
	case chants:
		record.Class, record.Message = loop.ErrorTextLoop, round.Error()
	case errors.Is(cause, errCancelled), errors.Is(cause, errDraining), errors.Is(cause, loop.ErrLeaseLost):
		record.Class, record.Message = loop.ErrorCancelled, cause.Error()
	case errors.Is(cause, context.DeadlineExceeded):
		record.Class = loop.ErrorTimeout
	case me.RetryAfter > longestRetryAfter:
		record.Class = loop.ErrorQuota
		record.Message += fmt.Sprintf(" (asked to wait %s, more than the %s that loopd waits)", me.RetryAfter, longestRetryAfter)
	case me.Class.Retryable():
		record.RetryAt = o.clock.now().Add(max(me.RetryAfter, o.backoff())).Truncate(time.Microsecond)
		switch {
		case me.Code == loop.CodeCircuitOpen: // it was not sent
		case o.lane(a).TakeRetry(me.Class):
			o.retryOf = me.Class
		default:
			record.NoRetry = "this worker has used up its retries at the provider"
		}
	}
	if !record.Class.Free() {
		record.Usage, record.Cost = worstUsage(a.Started), loop.LostCost(record.Class, a.Started.Hold)
	}
	return record
}

// modelError is the error that every failure of a model comes down to.
func modelError(err error) *loop.ModelError {
	if me, ok := errors.AsType[*loop.ModelError](err); ok {
		return me
	}
	return &loop.ModelError{Class: loop.ErrorServer, Message: err.Error()}
}

// backoff is exponential with full jitter: many runs that fail together must
// not come back together.
func (o *owner) backoff() time.Duration {
	longest := min(o.e.cfg.RetryCap, o.e.cfg.RetryBase<<min(o.state.Failures(), 10))
	return rand.N(longest) + 1 //nolint:gosec // jitter, not a secret
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
