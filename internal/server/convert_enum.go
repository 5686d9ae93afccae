package server

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// The enums of the API are the words of loop with a prefix, so they convert by
// name. A test holds the two lists together.

// enumNumber finds the value whose name is prefix + word; 0, UNSPECIFIED, if none.
func enumNumber(enum protoreflect.Enum, prefix, word string) protoreflect.EnumNumber {
	v := enum.Descriptor().Values().ByName(protoreflect.Name(prefix + strings.ToUpper(word)))
	if v == nil {
		return 0
	}
	return v.Number()
}

func runStateProto(s loop.RunState) loopdv1.RunState {
	return loopdv1.RunState(enumNumber(loopdv1.RunState(0), "RUN_STATE_", string(s)))
}

func runStateOf(s loopdv1.RunState) loop.RunState {
	return loop.RunState(strings.TrimPrefix(s.String(), "RUN_STATE_"))
}

func stopReasonProto(r loop.StopReason) loopdv1.StopReason {
	return loopdv1.StopReason(enumNumber(loopdv1.StopReason(0), "STOP_REASON_", string(r)))
}

// priorityOf reads a priority; unset is normal, which journals leave out.
func priorityOf(p loopdv1.Priority) loop.Priority {
	if p == loopdv1.Priority_PRIORITY_UNSPECIFIED || p == loopdv1.Priority_PRIORITY_NORMAL {
		return ""
	}
	return loop.Priority(strings.TrimPrefix(p.String(), "PRIORITY_"))
}

func priorityProto(p loop.Priority) loopdv1.Priority {
	return loopdv1.Priority(enumNumber(loopdv1.Priority(0), "PRIORITY_", string(p)))
}

func callStateProto(s loop.CallState) loopdv1.ToolCallState {
	return loopdv1.ToolCallState(enumNumber(loopdv1.ToolCallState(0), "TOOL_CALL_STATE_", string(s)))
}

func effectProto(e loop.Effect) loopdv1.Effect {
	return loopdv1.Effect(enumNumber(loopdv1.Effect(0), "EFFECT_", string(e)))
}

// guardVerdictOf and guardVerdictProto know one word that journals have another for.
func guardVerdictOf(v loopdv1.GuardVerdict) loop.Verdict {
	switch v {
	case loopdv1.GuardVerdict_GUARD_VERDICT_UNSPECIFIED:
		return ""
	case loopdv1.GuardVerdict_GUARD_VERDICT_WRAP_UP:
		return loop.VerdictFinalTurn
	}
	return loop.Verdict(strings.ToLower(strings.TrimPrefix(v.String(), "GUARD_VERDICT_")))
}

func guardVerdictProto(v loop.Verdict) loopdv1.GuardVerdict {
	if v == loop.VerdictFinalTurn {
		return loopdv1.GuardVerdict_GUARD_VERDICT_WRAP_UP
	}
	return loopdv1.GuardVerdict(enumNumber(loopdv1.GuardVerdict(0), "GUARD_VERDICT_", string(v)))
}

// effectOf reads the effect of a tool. One that declares none is the most
// dangerous there is.
func effectOf(e loopdv1.Effect) loop.Effect {
	if e == loopdv1.Effect_EFFECT_UNSPECIFIED {
		return loop.Irreversible
	}
	return loop.Effect(strings.TrimPrefix(e.String(), "EFFECT_"))
}

func roleProto(r loop.Role) loopdv1.Role {
	return loopdv1.Role(enumNumber(loopdv1.Role(0), "ROLE_", string(r)))
}

func resolutionOf(r loopdv1.Resolution) loop.Resolution {
	return loop.Resolution(strings.ToLower(strings.TrimPrefix(r.String(), "RESOLUTION_")))
}

func requiredKindProto(kind string) loopdv1.RequiredAction_Kind {
	return loopdv1.RequiredAction_Kind(enumNumber(loopdv1.RequiredAction_Kind(0), "KIND_", kind))
}

func approvalModeOf(m loopdv1.ApprovalMode) loop.ApprovalMode {
	if m == loopdv1.ApprovalMode_APPROVAL_MODE_UNSPECIFIED {
		return ""
	}
	return loop.ApprovalMode(strings.ToLower(strings.TrimPrefix(m.String(), "APPROVAL_MODE_")))
}

func builtinOf(b loopdv1.Builtin) loop.Builtin {
	return loop.Builtin(strings.ToLower(strings.TrimPrefix(b.String(), "BUILTIN_")))
}

func doubtRuleOf(d loopdv1.OnDoubt) loop.DoubtRule {
	if d == loopdv1.OnDoubt_ON_DOUBT_UNSPECIFIED {
		return ""
	}
	return loop.DoubtRule(strings.ToLower(strings.TrimPrefix(d.String(), "ON_DOUBT_")))
}

func httpBodyOf(b loopdv1.HttpBody) string {
	if b == loopdv1.HttpBody_HTTP_BODY_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(b.String(), "HTTP_BODY_"))
}

func httpBodyProto(word string) loopdv1.HttpBody {
	return loopdv1.HttpBody(enumNumber(loopdv1.HttpBody(0), "HTTP_BODY_", word))
}

func callStateOf(s loopdv1.ToolCallState) loop.CallState {
	return loop.CallState(strings.TrimPrefix(s.String(), "TOOL_CALL_STATE_"))
}

func approvalStateProto(s postgres.ApprovalState) loopdv1.ApprovalState {
	return loopdv1.ApprovalState(enumNumber(loopdv1.ApprovalState(0), "APPROVAL_STATE_", string(s)))
}

func approvalStateOf(s loopdv1.ApprovalState) postgres.ApprovalState {
	if s == loopdv1.ApprovalState_APPROVAL_STATE_UNSPECIFIED {
		return ""
	}
	return postgres.ApprovalState(strings.TrimPrefix(s.String(), "APPROVAL_STATE_"))
}

func approvalKindProto(k postgres.ApprovalKind) loopdv1.Approval_Kind {
	return loopdv1.Approval_Kind(enumNumber(loopdv1.Approval_Kind(0), "KIND_", string(k)))
}
