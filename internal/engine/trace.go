package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/loopd/loopd/internal/loop"
)

// Names of the OpenTelemetry GenAI conventions v0.1.0, which are not in the Go
// semconv packages any more. loopd's own begin with "loopd.".
const (
	attrOperation    = "gen_ai.operation.name"
	attrProvider     = "gen_ai.provider.name"
	attrModel        = "gen_ai.request.model"
	attrAgent        = "gen_ai.agent.name"
	attrConversation = "gen_ai.conversation.id"
	attrInputTokens  = "gen_ai.usage.input_tokens"
	attrOutputTokens = "gen_ai.usage.output_tokens"
	attrFinish       = "gen_ai.response.finish_reasons"
	attrTool         = "gen_ai.tool.name"
	attrToolCall     = "gen_ai.tool.call.id"
	attrRun          = "loopd.run.id"
	attrAttempt      = "loopd.attempt"
	attrCost         = "loopd.cost.usd"
	attrStopReason   = "loopd.stop.reason"
	attrOutcome      = "loopd.tool.outcome"
)

// spans makes the trace of one attempt: one invoke_agent span, and under it a
// chat span per model call and an execute_tool span per tool call. All attempts
// of a run share one trace.
type spans struct {
	tracer trace.Tracer
	ctx    context.Context //nolint:containedctx // the parent of all spans of this attempt
	root   trace.Span
	state  *loop.State
}

// span is one of them.
type span struct{ trace.Span }

func (e *Engine) startSpans(ctx context.Context, s *loop.State) *spans {
	spec := s.Spec()
	agent := strings.TrimPrefix(spec.Agent, "agents/")
	parent := trace.ContextWithRemoteSpanContext(ctx, runContext(s.Run(), spec.Traceparent))
	ctx, root := e.cfg.Tracer.Start(parent, "invoke_agent "+agent, trace.WithAttributes(
		attribute.String(attrOperation, "invoke_agent"), attribute.String(attrAgent, agent),
		attribute.String(attrConversation, s.Run().ID), attribute.String(attrRun, s.Run().ID),
		attribute.Int(attrAttempt, s.Attempts()),
	))
	return &spans{tracer: e.cfg.Tracer, ctx: ctx, root: root, state: s}
}

// runContext is the caller's trace context, or one derived from the run's id, so
// that every attempt on every worker finds the same trace.
func runContext(run loop.RunRef, traceparent string) trace.SpanContext {
	carrier := propagation.MapCarrier{"traceparent": traceparent}
	ctx := propagation.TraceContext{}.Extract(context.Background(), carrier)
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		return sc
	}
	sum := sha256.Sum256([]byte(run.Tenant + "/" + run.ID))
	var id trace.TraceID
	copy(id[:], sum[:16])
	if raw, err := hex.DecodeString(strings.ReplaceAll(run.ID, "-", "")); err == nil && len(raw) == len(id) {
		copy(id[:], raw)
	}
	var parent trace.SpanID
	copy(parent[:], sum[16:24])
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: parent, TraceFlags: trace.FlagsSampled, Remote: true})
}

func (t *spans) chat(ctx context.Context, a loop.CallModel) span {
	_, s := t.tracer.Start(trace.ContextWithSpan(ctx, t.root), "chat "+a.Request.Model, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String(attrOperation, "chat"), attribute.String(attrProvider, a.Request.Provider),
		attribute.String(attrModel, a.Request.Model), attribute.String(attrRun, t.state.Run().ID),
	))
	return span{s}
}

func (t *spans) tool(ctx context.Context, send loop.Send) (context.Context, span) {
	ctx, s := t.tracer.Start(trace.ContextWithSpan(ctx, t.root), "execute_tool "+send.Spec.Name, trace.WithAttributes(
		attribute.String(attrOperation, "execute_tool"), attribute.String(attrTool, send.Spec.Name),
		attribute.String(attrToolCall, send.Call.ID), attribute.String(attrRun, t.state.Run().ID),
	))
	return ctx, span{s}
}

// endModel closes a chat span with what was recorded.
func (s span) endModel(record loop.Body) {
	switch b := record.(type) {
	case loop.ModelAnswered:
		s.SetAttributes(attribute.Int64(attrInputTokens, b.Usage.Input()), attribute.Int64(attrOutputTokens, b.Usage.AllOutput()),
			attribute.StringSlice(attrFinish, []string{string(b.Finish)}), attribute.Float64(attrCost, b.Cost.Total().Float()))
	case loop.ModelFailed:
		s.SetAttributes(attribute.Float64(attrCost, b.Cost.Total().Float()))
		s.SetStatus(codes.Error, string(b.Class))
	}
	s.End()
}

// endTool closes an execute_tool span.
func (s span) endTool(r loop.ToolReply) {
	s.SetAttributes(attribute.String(attrOutcome, string(r.Outcome)))
	if r.Outcome.Failed() {
		s.SetStatus(codes.Error, string(r.Outcome))
	}
	s.End()
}

// end closes the attempt's span.
func (t *spans) end(s *loop.State) {
	h := s.Head()
	t.root.SetAttributes(attribute.Float64(attrCost, h.Cost.Total().Float()), attribute.Int64(attrInputTokens, h.Usage.Input()),
		attribute.Int64(attrOutputTokens, h.Usage.AllOutput()))
	if h.Stop != nil {
		t.root.SetAttributes(attribute.String(attrStopReason, string(h.Stop.Reason)))
		if h.State == loop.StateFailed {
			t.root.SetStatus(codes.Error, string(h.Stop.Reason))
		}
	}
	t.root.End()
}
