package server

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// CallTool calls a registered tool once, outside any run.
func (t *toolService) CallTool(ctx context.Context, req *loopdv1.CallToolRequest) (*loopdv1.CallToolResponse, error) {
	idem, err := idempotency(ctx, "CallTool", req)
	if err != nil {
		return nil, err
	}
	tool, err := t.s.tool(ctx, req.GetName(), req.GetVersion())
	if err != nil {
		return nil, err
	}
	spec, err := t.callable(req, tool)
	if err != nil {
		return nil, err
	}
	args, err := t.arguments(req, spec)
	if err != nil {
		return nil, err
	}
	run, err := t.claimCall(ctx, req, spec, idem)
	if err != nil {
		return nil, err
	}
	if !spec.Effect.Repeatable() {
		// A caller that hangs up does not put a call in doubt; the tool's timeout ends it.
		ctx = context.WithoutCancel(ctx)
	}
	key := testKey(run)
	reply := t.s.cfg.CallTool(ctx, run, spec, args, key)
	t.s.log.InfoContext(ctx, "a tool was called outside a run", slog.String("tool", req.GetName()), slog.Int64("version", tool.Version),
		slog.String("effect", string(spec.Effect)), slog.String("key", key), slog.String("outcome", string(reply.Outcome)),
		slog.String("by", subject(ctx)), slog.Duration("duration", reply.Duration))
	content, cut := loop.CutResult(reply.Content, spec.MaxResultBytes)
	return &loopdv1.CallToolResponse{
		Outcome: string(reply.Outcome), Content: content, Status: clampInt32(reply.Status), Bytes: reply.Bytes,
		Latency: durationpb.New(reply.Duration), Cut: cut || reply.Cut, IdempotencyKey: key,
	}, nil
}

// callable makes of a registered tool what is called, unless only a run may call it or
// the caller has not confirmed what it may change.
func (t *toolService) callable(req *loopdv1.CallToolRequest, tool postgres.Tool) (loop.ToolSpec, error) {
	name := req.GetName()
	def, err := decodeTool(tool.Spec)
	if err != nil {
		return loop.ToolSpec{}, fmt.Errorf("%s, version %d: %w", name, tool.Version, err)
	}
	if kind, why := onlyInRuns(def); why != "" {
		return loop.ToolSpec{}, refuse(loopdv1.ErrorReason_ERROR_REASON_TOOL_NOT_CALLABLE,
			name+" "+why+": start a run of an agent that has it", "tool", name, "kind", kind)
	}
	spec, err := t.s.toolOf("tool.spec", def, nil)
	if err != nil {
		return loop.ToolSpec{}, err
	}
	spec.Version = tool.Version
	effect, confirmed := effectProto(spec.Effect), req.GetConfirmEffect()
	asks := spec.Approval.Mode == loop.ApprovalAlways || spec.Approval.Mode == loop.ApprovalWhen
	switch {
	case spec.Effect == loop.Irreversible:
		return spec, refuse(loopdv1.ErrorReason_ERROR_REASON_TOOL_NOT_CALLABLE,
			name+" is EFFECT_IRREVERSIBLE, as is a tool that declares no effect: only a run calls it, under an approval of the exact arguments",
			"tool", name, "effect", effect.String())
	case confirmed != loopdv1.Effect_EFFECT_UNSPECIFIED && confirmed != effect:
		return spec, invalid(fieldError{"confirm_effect", fmt.Sprintf("%s is %s, not %s: read the tool again", name, effect, confirmed)})
	case confirmed == loopdv1.Effect_EFFECT_UNSPECIFIED && (asks || !spec.Effect.Repeatable()):
		return spec, invalid(fieldError{"confirm_effect", fmt.Sprintf("the call is made for real, and nobody else is asked: set %s to confirm what it may change", effect)})
	}
	return spec, nil
}

// onlyInRuns says why a tool of this kind cannot be called without a run, "" if it can.
func onlyInRuns(def *loopdv1.Tool) (kind, why string) {
	switch def.GetKind().(type) {
	case *loopdv1.Tool_Http, *loopdv1.Tool_Mcp:
		return "", ""
	case *loopdv1.Tool_Client:
		return "client", "is run by the caller of a run"
	case *loopdv1.Tool_Agent:
		return "agent", "is an agent, whose calls are child runs"
	case *loopdv1.Tool_Builtin:
		return "builtin", "is loopd's own, and means something in a run only"
	}
	return "unknown", "is of a kind that this loopd does not know"
}

// arguments is the text of the arguments to send, which satisfies the tool's schema.
func (t *toolService) arguments(req *loopdv1.CallToolRequest, spec loop.ToolSpec) (string, error) {
	field, args := "arguments", "{}"
	switch input := req.GetInput().(type) {
	case *loopdv1.CallToolRequest_ArgumentsJson:
		field, args = "arguments_json", input.ArgumentsJson
	case *loopdv1.CallToolRequest_Arguments:
		encoded, err := json.Marshal(input.Arguments.AsMap())
		if err != nil {
			return "", invalid(fieldError{field, err.Error()}) // a number that JSON does not have
		}
		args = string(encoded)
	}
	if problem := t.s.cfg.ValidateArguments(spec, args); problem != "" {
		return "", invalid(fieldError{field, problem})
	}
	return args, nil
}

// testKey is the key of the only call of a run that is none.
func testKey(run loop.RunRef) string { return loop.ToolCall{ID: "c1-1"}.Key(run) }

// claimCall names the run that the tool is told of. A request id that was used before
// brings the name of then, and with it the same idempotency key; but what must not be
// sent twice is refused. The claim is committed before anything is sent.
func (t *toolService) claimCall(ctx context.Context, req *loopdv1.CallToolRequest, spec loop.ToolSpec, idem postgres.Idempotency) (loop.RunRef, error) {
	run := loop.RunRef{Tenant: tenant(ctx), ID: "tool-test-" + uuid.NewString()}
	earlier, err := t.s.store.ClaimKey(ctx, run.Tenant, run.ID, idem)
	if err != nil {
		t.s.countMismatch(err)
		return run, err
	}
	replayed := earlier != run.ID
	run.ID = earlier
	if replayed && !spec.Effect.Repeatable() {
		key := testKey(run)
		return run, refuse(loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_REPEATABLE,
			fmt.Sprintf("%s was called under this request id before, with the key %s, and is not sent again: look there what became of it, and use a fresh id to call it once more", req.GetName(), key),
			"tool", req.GetName(), "idempotency_key", key)
	}
	return run, nil
}
