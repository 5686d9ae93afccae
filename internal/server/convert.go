package server

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// clampInt32 fits a count into the API's int32. No count of a run comes near it.
func clampInt32(n int) int32 { return int32(min(max(n, math.MinInt32), math.MaxInt32)) }

// timeProto is nil for the zero time: absent, not 1 January of the year 1.
func timeProto(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// runProto shows a run.
func runProto(run postgres.Run) *loopdv1.Run {
	name, head := runName(run.Ref.ID), run.Head
	p := &loopdv1.Run{
		Name: name, Agent: run.Agent, AgentVersion: run.AgentVersion, Input: run.Input,
		State: runStateProto(head.State), Done: head.State.Terminal(), Phase: phaseWord(head),
		Limits: limitsProto(run.Limits), Labels: run.Labels,
		CreateTime: timeProto(run.CreatedAt), StartTime: timeProto(head.StartedAt), EndTime: timeProto(head.EndedAt),
		WaitUntil:  timeProto(head.WaitUntil),
		Iterations: clampInt32(head.Iterations), ModelCalls: clampInt32(head.ModelCalls),
		ToolCalls: clampInt32(head.ToolCalls), Attempts: clampInt32(head.Attempts),
		Usage: usageProto(head.Usage), CostUsd: head.Cost.Total().String(),
		CostEstimatedUsd: head.Estimated.String(), CostHeldUsd: head.Held.String(),
		Answer: head.Answer, AnswerPartial: head.Partial, AnswerUnverified: head.Unverified, AnswerJson: answerJSON(run),
		Stop: stopProto(head.Stop), RequiredActions: requiredProto(run.Ref.ID, head),
		SideEffects: sideEffectsProto(run.Ref.ID, head.SideEffects), Root: name, Priority: priorityProto(run.Priority),
	}
	if parent := run.Parent; parent != nil {
		p.Parent, p.Root, p.Depth = runName(parent.RunID), runName(parent.RootID), clampInt32(parent.Depth)
		p.ParentCall = callName(p.Parent, parent.CallID)
	}
	return p
}

// sideEffectsProto shows the ledger of the run with the given id.
func sideEffectsProto(run string, ledger []loop.SideEffectHead) []*loopdv1.SideEffect {
	shown := make([]*loopdv1.SideEffect, len(ledger))
	for i, e := range ledger {
		shown[i] = &loopdv1.SideEffect{
			ToolCall: callName(runName(cmp.Or(e.RunID, run)), e.CallID), Tool: e.Tool, Effect: effectProto(e.Effect),
			ArgumentsSha256: e.ArgsHash, IdempotencyKey: e.Key, State: callStateProto(e.State), Outcome: string(e.Outcome),
		}
	}
	return shown
}

// phaseWord is the phase in the API's words: what a run waits for is told by its
// required actions.
func phaseWord(head loop.Head) string {
	switch head.Phase {
	case string(loop.WaitApproval), string(loop.WaitInDoubt), string(loop.WaitResult), string(loop.WaitRaise):
		return "waiting"
	case string(loop.WaitChild):
		return "children"
	case string(loop.WaitDrain):
		return "queue"
	}
	return head.Phase
}

func usageProto(u loop.Usage) *loopdv1.Usage {
	return &loopdv1.Usage{
		InputUncachedTokens: u.InputUncached, CacheReadTokens: u.CacheRead, CacheWriteTokens: u.CacheWrite5m + u.CacheWrite1h,
		OutputTokens: u.Output, ReasoningTokens: u.Reasoning,
	}
}

// answerJSON is an accepted answer of an agent with an output schema, if it is an
// object.
func answerJSON(run postgres.Run) *structpb.Struct {
	if !run.HasOutputSchema || run.Head.State != loop.StateSucceeded || run.Head.Partial {
		return nil
	}
	object := &structpb.Struct{}
	if err := object.UnmarshalJSON([]byte(run.Head.Answer)); err != nil {
		return nil // an array or a bare value: the field cannot hold it, answer has it
	}
	return object
}

func stopProto(s *loop.Stop) *loopdv1.Stop {
	if s == nil {
		return nil
	}
	return &loopdv1.Stop{
		Reason: stopReasonProto(s.Reason), Guard: s.Guard, Observed: s.Observed, Limit: s.Limit,
		Message: s.Message, Iteration: clampInt32(s.Iteration), Evidence: evidenceProto(s.Evidence),
	}
}

// requiredProto lists what must be done while the run with the given id waits for it,
// and nothing before or afterwards.
func requiredProto(run string, head loop.Head) []*loopdv1.RequiredAction {
	if head.State != loop.StateRequiresAction {
		return nil
	}
	actions := make([]*loopdv1.RequiredAction, len(head.RequiredActions))
	for i, a := range head.RequiredActions {
		if a.Kind == loop.RequireRaise {
			actions[i] = raiseProto(a)
			continue
		}
		actions[i] = &loopdv1.RequiredAction{
			Kind: requiredKindProto(a.Kind), ToolCall: callName(runName(run), a.CallID), Tool: a.Tool,
			ArgumentsJson: a.Args, ArgumentsSha256: a.ArgsHash, Deadline: timeProto(a.Deadline), Attempt: clampInt32(a.Attempt),
		}
		switch actions[i].GetKind() {
		case loopdv1.RequiredAction_KIND_APPROVE, loopdv1.RequiredAction_KIND_ANSWER:
			actions[i].Approval = approvalName(run, a.CallID)
		}
	}
	return actions
}

// raiseProto shows what a run requires that a guard paused: it is about no call.
func raiseProto(a loop.RequiredAction) *loopdv1.RequiredAction {
	return &loopdv1.RequiredAction{
		Kind: requiredKindProto(a.Kind), Guard: a.Guard, LimitField: a.Field, Observed: a.Observed, TakesInput: a.TakesInput,
		Deadline: timeProto(a.Deadline), Reason: a.Reason,
	}
}

// toolCallProto shows a tool call of the run with the given name.
func toolCallProto(run string, c loop.CallHead) *loopdv1.ToolCall {
	p := &loopdv1.ToolCall{
		Name: callName(run, c.Call.ID), CallId: c.Call.ID, ProviderCallId: c.Call.ProviderID, Tool: c.Call.Name,
		Iteration: clampInt32(c.Iteration), ArgumentsJson: c.Call.Args, ArgumentsSha256: c.ArgsHash,
		Effect: effectProto(c.Effect), State: callStateProto(c.State), Outcome: string(c.Outcome),
		Attempt: clampInt32(c.Attempt), IdempotencyKey: c.Key,
		Result: c.Result, ResultTruncated: c.Cut, ResultBytes: c.Bytes,
		StartTime: timeProto(c.StartedAt), EndTime: timeProto(c.FinishedAt),
		WaitUntil: timeProto(c.Until), EditedArgumentsJson: c.Edited,
	}
	if c.ChildID != "" {
		p.ChildRun = runName(c.ChildID)
	}
	if !c.AskedAt.IsZero() {
		p.Approval = approvalName(runRef("", run).ID, c.Call.ID)
	}
	return p
}

// messageProto shows one entry of a transcript, without any wire format. sizes are
// those of the run's attachments, which the input begins with.
func messageProto(m loop.Message, sizes map[int]int64) *loopdv1.Message {
	p := &loopdv1.Message{
		Seq: m.Seq, Iteration: clampInt32(m.Iteration), Role: roleProto(m.Role),
		CreateTime: timeProto(m.At), Source: string(m.Source),
	}
	if p.Source == "" && m.Role == loop.RoleAssistant {
		p.Source = string(loop.SourceModel) // providers name no source
	}
	for i, part := range m.Parts {
		switch part.Kind {
		case loop.PartImage:
			p.Parts = append(p.Parts, &loopdv1.Part{Kind: &loopdv1.Part_Image{Image: mediaProto(part.Media, sizes[i])}})
		case loop.PartDocument:
			p.Parts = append(p.Parts, &loopdv1.Part{Kind: &loopdv1.Part_Document{Document: mediaProto(part.Media, sizes[i])}})
		default:
			p.Parts = append(p.Parts, partProto(part))
		}
	}
	return p
}

func partProto(p loop.Part) *loopdv1.Part {
	switch p.Kind {
	case loop.PartReasoning:
		return &loopdv1.Part{Kind: &loopdv1.Part_Reasoning{Reasoning: &loopdv1.Reasoning{Text: p.Text}}}
	case loop.PartRefusal:
		return &loopdv1.Part{Kind: &loopdv1.Part_Refusal{Refusal: &loopdv1.Refusal{Text: p.Text}}}
	case loop.PartToolCall:
		return &loopdv1.Part{Kind: &loopdv1.Part_ToolCall{ToolCall: &loopdv1.ToolCallPart{
			CallId: p.Call.ID, Tool: p.Call.Name, ArgumentsJson: p.Call.Args,
		}}}
	case loop.PartToolResult:
		return &loopdv1.Part{Kind: &loopdv1.Part_ToolResult{ToolResult: &loopdv1.ToolResultPart{
			CallId: p.Result.CallID, Tool: p.Result.Name, Outcome: string(p.Result.Outcome), Text: p.Result.Content,
		}}}
	default:
		return &loopdv1.Part{Kind: &loopdv1.Part_Text{Text: &loopdv1.Text{Text: p.Text}}}
	}
}

// eventProto shows an event. What only a provider can read, such as signatures of
// its reasoning, stays in the journal. sizes are those of the attachments in the
// first event.
func eventProto(e loop.Event, iteration int, sizes map[int]int64) (*loopdv1.Event, error) {
	body := e.Body
	if answered, ok := body.(loop.ModelAnswered); ok {
		answered.Message.Native = nil
		body = answered
	}
	kind, encoded, err := loop.EncodeBody(body)
	if err != nil {
		return nil, err
	}
	var members map[string]any
	if err := json.Unmarshal(encoded, &members); err != nil {
		return nil, fmt.Errorf("read event %d as an object: %w", e.Seq, err)
	}
	showSizes(members, sizes)
	view, err := structpb.NewStruct(members)
	if err != nil {
		return nil, fmt.Errorf("show event %d: %w", e.Seq, err)
	}
	return &loopdv1.Event{
		Seq: e.Seq, Kind: kind, CreateTime: timeProto(e.At), Iteration: clampInt32(iteration), Epoch: e.Epoch, Body: view,
	}, nil
}
