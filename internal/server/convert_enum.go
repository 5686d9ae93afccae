package server

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
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

func callStateProto(s loop.CallState) loopdv1.ToolCallState {
	return loopdv1.ToolCallState(enumNumber(loopdv1.ToolCallState(0), "TOOL_CALL_STATE_", string(s)))
}

func effectProto(e loop.Effect) loopdv1.Effect {
	return loopdv1.Effect(enumNumber(loopdv1.Effect(0), "EFFECT_", string(e)))
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
