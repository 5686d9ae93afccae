package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/loopd/loopd/internal/loop"
)

// spans makes the trace of one attempt: an invoke_agent span, under it one for each
// iteration, and under these a chat span per model call and an execute_tool span per tool
// call. All attempts of a run share one trace, that of the caller if there is one; each
// is linked to the one before. No span stays open while nobody drives the run: waits for
// people are written when they are over.
type spans struct {
	tracer  trace.Tracer
	content Content
	state   *loop.State
	root    trace.Span

	iteration trace.Span // the newest; nil before the first
	number    int        // of it
}

// span is one of them.
type span struct {
	trace.Span
	content Content
}

func (e *Engine) startSpans(ctx context.Context, s *loop.State) *spans {
	spec, run, attempt := s.Spec(), s.Run(), s.Attempts()
	agent := strings.TrimPrefix(spec.Agent, "agents/")
	options := []trace.SpanStartOption{trace.WithAttributes(
		attribute.String(attrOperation, opInvokeAgent), attribute.String(attrAgent, agent), attribute.Int64(attrAgentVersion, spec.AgentVersion),
		attribute.String(attrConversation, run.ID), attribute.String(attrRun, run.ID), attribute.String(attrTenant, run.Tenant),
		attribute.String(attrModel, spec.Definition.Model), attribute.Int(attrAttempt, attempt),
	)}
	if attempt > 1 {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: attemptContext(run, spec.Traceparent, attempt-1)}))
	}
	ctx = trace.ContextWithRemoteSpanContext(ctx, parentContext(run, spec.Traceparent, attempt))
	ctx = context.WithValue(ctx, forcedKey{}, attemptContext(run, spec.Traceparent, attempt))
	_, root := e.cfg.Tracer.Start(ctx, opInvokeAgent+" "+agent, options...)
	return &spans{tracer: e.cfg.Tracer, content: e.cfg.Content, root: root, state: s}
}

// callerContext is where the caller of the API was, invalid if it did not say.
func callerContext(traceparent string) trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceparent})
	return trace.SpanContextFromContext(ctx)
}

// traceID is the caller's, or follows from the run's id, so that every attempt on every
// worker has the same.
func traceID(run loop.RunRef, traceparent string) trace.TraceID {
	if caller := callerContext(traceparent); caller.IsValid() {
		return caller.TraceID()
	}
	var id trace.TraceID
	if raw, err := hex.DecodeString(strings.ReplaceAll(run.ID, "-", "")); err == nil && len(raw) == len(id) {
		return trace.TraceID(raw)
	}
	sum := sha256.Sum256([]byte(run.Tenant + "/" + run.ID))
	return trace.TraceID(sum[:len(id)])
}

// parentContext is what an attempt's span hangs under: the caller's span, else the first
// attempt, which is the root then.
func parentContext(run loop.RunRef, traceparent string, attempt int) trace.SpanContext {
	if caller := callerContext(traceparent); caller.IsValid() {
		return caller
	}
	if attempt == 1 {
		return trace.SpanContext{}
	}
	return attemptContext(run, traceparent, 1)
}

// attemptContext is that of an attempt's invoke_agent span, whoever made it.
func attemptContext(run loop.RunRef, traceparent string, attempt int) trace.SpanContext {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(run.Tenant+"/"+run.ID+"/"), uint64(attempt)))
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID(run, traceparent), SpanID: trace.SpanID(sum[:8]), TraceFlags: trace.FlagsSampled, Remote: true,
	})
}

// forcedKey is where a context says which ids a new span gets.
type forcedKey struct{}

// SpanIDs gives the span of an attempt ids that follow from the run, so that the next
// attempt can be linked to it although its worker is gone. All other ids are random. It
// is an IDGenerator of the OpenTelemetry SDK.
type SpanIDs struct{}

// NewIDs makes the ids of a root span.
func (SpanIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if forced, ok := ctx.Value(forcedKey{}).(trace.SpanContext); ok {
		return forced.TraceID(), forced.SpanID()
	}
	var id trace.TraceID
	binary.BigEndian.PutUint64(id[:8], rand.Uint64())
	binary.BigEndian.PutUint64(id[8:], rand.Uint64()|1) // never all zero
	return id, randomSpanID()
}

// NewSpanID makes the id of a span in a trace.
func (SpanIDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	if forced, ok := ctx.Value(forcedKey{}).(trace.SpanContext); ok {
		return forced.SpanID()
	}
	return randomSpanID()
}

func randomSpanID() (id trace.SpanID) {
	binary.BigEndian.PutUint64(id[:], rand.Uint64()|1)
	return id
}

// current is the span that calls hang under.
func (t *spans) current() trace.Span {
	if t.iteration != nil {
		return t.iteration
	}
	return t.root
}

// iterate begins the span of an iteration, unless it is there already. Calls beside the
// conversation, and tries of the same call, make none.
func (t *spans) iterate(ctx context.Context, number int) {
	if t.iteration != nil && t.number == number {
		return
	}
	t.endIteration()
	_, t.iteration = t.tracer.Start(trace.ContextWithSpan(ctx, t.root), spanIteration, trace.WithAttributes(
		attribute.String(attrRun, t.state.Run().ID), attribute.Int(attrIteration, number)))
	t.number = number
}

func (t *spans) endIteration() {
	if t.iteration != nil {
		t.iteration.End()
	}
}

// unrecorded is what stands for the spans of a trace that nobody keeps: what a call passes
// on of it is the same, and there is nothing to write down.
func (t *spans) unrecorded(ctx context.Context) (context.Context, span) {
	return trace.ContextWithSpan(ctx, t.root), span{Span: t.root}
}

func (t *spans) chat(ctx context.Context, a loop.CallModel) (context.Context, span) {
	if !t.root.IsRecording() {
		return t.unrecorded(ctx)
	}
	if !a.Beside() {
		t.iterate(ctx, t.state.Iterations()+1)
	}
	ctx, s := t.tracer.Start(trace.ContextWithSpan(ctx, t.current()), opChat+" "+a.Request.Model, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String(attrOperation, opChat), attribute.String(attrProvider, a.Request.Provider),
		attribute.String(attrModel, a.Request.Model), attribute.Int64(attrMaxTokens, a.Request.MaxOutputTokens),
		attribute.String(attrConversation, t.state.Run().ID), attribute.String(attrRun, t.state.Run().ID),
	))
	if a.Started.Purpose != "" {
		s.SetAttributes(attribute.String(attrPurpose, a.Started.Purpose))
	}
	return ctx, span{s, t.content}
}

func (t *spans) tool(ctx context.Context, send loop.Send) (context.Context, span) {
	if !t.root.IsRecording() {
		return t.unrecorded(ctx)
	}
	ctx, s := t.tracer.Start(trace.ContextWithSpan(ctx, t.current()), opExecuteTool+" "+send.Spec.Name, trace.WithAttributes(
		attribute.String(attrOperation, opExecuteTool), attribute.String(attrTool, send.Spec.Name), attribute.String(attrToolType, "function"),
		attribute.String(attrToolCall, send.Call.ID), attribute.String(attrRun, t.state.Run().ID),
		attribute.String(attrEffect, string(send.Spec.Effect)), attribute.Int(attrAttempt, send.Attempt),
	))
	return ctx, span{s, t.content}
}

// committed adds what durable events say that no call does: verdicts, and waits for people.
func (t *spans) committed(ctx context.Context, events []loop.Event) {
	if t == nil { // the attempt is about to begin
		return
	}
	for _, e := range events {
		switch b := e.Body.(type) {
		case loop.Tripped:
			t.current().AddEvent(eventVerdict, trace.WithTimestamp(e.At), trace.WithAttributes(
				attribute.String("loopd.guard.name", b.Guard), attribute.String("loopd.guard.verdict", string(b.Verdict)),
				attribute.String("loopd.guard.observed", b.Observed), attribute.String("loopd.guard.limit", b.Limit)))
		case loop.ApprovalDecided:
			if call, ok := t.state.Call(b.CallID); ok {
				t.waited(ctx, call, decisionOf(b))
			}
		case loop.CallRefused:
			if call, ok := t.state.Call(b.CallID); ok && undecided(call) {
				t.waited(ctx, call, lapsedAs(b))
			}
		}
	}
}

// waited is the span of a wait that is over.
func (t *spans) waited(ctx context.Context, call loop.CallHead, decision string) {
	end := call.DecidedAt
	if end.IsZero() {
		end = time.Now()
	}
	_, s := t.tracer.Start(trace.ContextWithSpan(ctx, t.root), spanApprovalWait, trace.WithTimestamp(call.AskedAt), trace.WithAttributes(
		attribute.String(attrRun, t.state.Run().ID), attribute.String(attrTool, t.state.ToolLabel(call.Call.ID)),
		attribute.String(attrToolCall, call.Call.ID), attribute.String(attrDecision, decision)))
	s.End(trace.WithTimestamp(end))
}

// endModel closes a chat span with what was recorded.
func (s span) endModel(request loop.ModelRequest, record loop.Body) {
	if !s.IsRecording() {
		return
	}
	switch b := record.(type) {
	case loop.ModelAnswered:
		s.SetAttributes(usageAttributes(b.Usage)...)
		s.SetAttributes(attribute.StringSlice(attrFinish, []string{string(b.Finish)}), attribute.Float64(attrCost, b.Cost.Total().Float()))
		if b.ResponseModel != "" {
			s.SetAttributes(attribute.String(attrAnsweredBy, b.ResponseModel))
		}
		if b.ResponseID != "" {
			s.SetAttributes(attribute.String(attrResponse, b.ResponseID))
		}
		s.content.ofModel(s.Span, request, b)
	case loop.ModelFailed:
		s.SetAttributes(attribute.Float64(attrCost, b.Cost.Total().Float()))
		s.fail(string(b.Class))
	}
	s.End()
}

// fail marks a span. The description is a word of loopd's, never a server's.
func (s span) fail(class string) {
	s.SetAttributes(attribute.String(attrError, class))
	s.SetStatus(codes.Error, class)
}

// endTool closes an execute_tool span.
func (s span) endTool(call loop.ToolCall, r loop.ToolReply) {
	if !s.IsRecording() {
		return
	}
	s.SetAttributes(attribute.String(attrOutcome, string(r.Outcome)))
	if r.Outcome.Failed() {
		s.fail(string(r.Outcome))
	}
	s.content.ofTool(s.Span, call, r)
	s.End()
}

// end closes the attempt's span.
func (t *spans) end(s *loop.State) {
	t.endIteration()
	if !t.root.IsRecording() {
		return
	}
	h := s.Head()
	t.root.SetAttributes(usageAttributes(h.Usage)...)
	t.root.SetAttributes(attribute.Float64(attrCost, h.Cost.Total().Float()), attribute.String(attrState, string(h.State)))
	if h.Stop != nil {
		t.root.SetAttributes(attribute.String(attrStopReason, string(h.Stop.Reason)))
		if h.State == loop.StateFailed {
			span{Span: t.root}.fail(string(h.Stop.Reason))
		}
	}
	t.root.End()
}

// usageAttributes are the tokens in the convention's terms, where the kinds of input are
// parts of it.
func usageAttributes(u loop.Usage) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.Int64(attrInputTokens, u.Input()), attribute.Int64(attrOutputTokens, u.AllOutput()),
		attribute.Int64(attrCacheRead, u.CacheRead), attribute.Int64(attrCacheCreation, u.CacheWrite5m+u.CacheWrite1h),
		attribute.Int64(attrReasoning, u.Reasoning),
	}
}
