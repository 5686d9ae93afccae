package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// approvalService is the inbox of people. An approval is a view of a tool call, and
// what is decided goes to the run's worker as a signal.
type approvalService struct {
	loopdv1.UnsafeApprovalServiceServer // a method that is missing does not compile

	s *Server
}

// ListApprovals lists approvals.
func (a *approvalService) ListApprovals(ctx context.Context, req *loopdv1.ListApprovalsRequest) (*loopdv1.ListApprovalsResponse, error) {
	cursor, err := cursorOf(req)
	if err != nil {
		return nil, err
	}
	after, err := approvalCursorOf(cursor)
	if err != nil {
		return nil, err
	}
	rows, next, err := a.s.store.ListApprovals(ctx, tenant(ctx), postgres.ApprovalFilter{
		State: approvalStateOf(req.GetState()), Agent: req.GetAgent(), Tool: req.GetTool(), Run: runRef("", req.GetRun()).ID,
		PageSize: pageSize(req.GetPageSize()), After: after,
	})
	if err != nil {
		return nil, err
	}
	resp := &loopdv1.ListApprovalsResponse{}
	if next != (postgres.ApprovalCursor{}) {
		resp.NextPageToken = pageToken(req, next.At.Format(time.RFC3339Nano)+" "+next.RunID+" "+next.CallID)
	}
	for _, row := range rows {
		resp.Approvals = append(resp.Approvals, approvalProto(row))
	}
	return resp, nil
}

// approvalCursorOf reads a place in the list of approvals.
func approvalCursorOf(cursor string) (postgres.ApprovalCursor, error) {
	if cursor == "" {
		return postgres.ApprovalCursor{}, nil
	}
	words := strings.Split(cursor, " ")
	if len(words) != 3 || uuid.Validate(words[1]) != nil {
		return postgres.ApprovalCursor{}, errPageToken()
	}
	at, err := time.Parse(time.RFC3339Nano, words[0])
	if err != nil {
		return postgres.ApprovalCursor{}, errPageToken()
	}
	return postgres.ApprovalCursor{At: at, RunID: words[1], CallID: words[2]}, nil
}

// GetApproval reads an approval.
func (a *approvalService) GetApproval(ctx context.Context, req *loopdv1.GetApprovalRequest) (*loopdv1.Approval, error) {
	row, err := a.approval(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	return approvalProto(row), nil
}

// approval reads an approval by its name.
func (a *approvalService) approval(ctx context.Context, name string) (postgres.ApprovalRow, error) {
	run, call := splitApproval(tenant(ctx), name)
	row, err := a.s.store.GetApproval(ctx, run, call)
	return row, named(err, loopdv1.ErrorReason_ERROR_REASON_APPROVAL_NOT_FOUND, "approval", name)
}

// Approve approves a call, as it is or with edited arguments.
func (a *approvalService) Approve(ctx context.Context, req *loopdv1.ApproveRequest) (*loopdv1.Approval, error) {
	row, err := a.approval(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	edited := req.GetEditedArgumentsJson()
	if edited == row.Call.Call.Args {
		edited = ""
	}
	if edited != "" {
		if err := a.s.checkEdited(ctx, row, edited); err != nil {
			return nil, err
		}
	}
	return a.decide(ctx, req, loop.ApprovalDecided{
		CallID: row.Call.Call.ID, ArgsHash: req.GetExpectedArgumentsHash(), Approved: true, Reason: req.GetReason(), Args: edited,
	}, row)
}

// checkEdited checks arguments that an approver wrote against the tool's schema.
func (s *Server) checkEdited(ctx context.Context, row postgres.ApprovalRow, edited string) error {
	if row.Kind != postgres.KindApprove {
		return nil // which is refused for that
	}
	spec, err := s.spec(ctx, row.Run)
	if err != nil {
		return err
	}
	tool, ok := spec.Definition.Tool(row.Call.Call.Name)
	if !ok {
		return fmt.Errorf("run %s has no tool %q, which asks for approval: %w", row.Run.ID, row.Call.Call.Name, loop.ErrImpossible)
	}
	if problem := s.cfg.ValidateArguments(tool, edited); problem != "" {
		return invalid(fieldError{"edited_arguments_json", problem})
	}
	return nil
}

// Deny denies a call.
func (a *approvalService) Deny(ctx context.Context, req *loopdv1.DenyRequest) (*loopdv1.Approval, error) {
	row, err := a.approval(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	return a.decide(ctx, req, loop.ApprovalDecided{CallID: row.Call.Call.ID, ArgsHash: row.Call.ArgsHash, Reason: req.GetReason()}, row)
}

// namedRequest is a request about a resource that may be repeated.
type namedRequest interface {
	repeatableRequest
	GetName() string
}

func (a *approvalService) decide(ctx context.Context, req namedRequest, decision loop.ApprovalDecided, row postgres.ApprovalRow) (*loopdv1.Approval, error) {
	if _, err := requestID(ctx, req.GetRequestId()); err != nil {
		return nil, err
	}
	if err := a.s.decide(ctx, row.Run, row.Call, decision); err != nil {
		return nil, err
	}
	decided, err := a.approval(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	return approvalProto(decided), nil
}

// decide hands a decision about a call to the run's worker. The first one counts; to
// repeat it changes nothing.
func (s *Server) decide(ctx context.Context, run loop.RunRef, call loop.CallHead, decision loop.ApprovalDecided) error {
	name := callName(runName(run.ID), call.Call.ID)
	decision.By = subject(ctx)
	replayed, err := s.store.Decide(ctx, run, decision)
	if errors.Is(err, postgres.ErrStaleHash) {
		return refuse(loopdv1.ErrorReason_ERROR_REASON_ARGUMENTS_CHANGED,
			name+": the hash is not that of the call's arguments: read the call again and decide on what it has now",
			"tool_call", name, "arguments_sha256", call.ArgsHash)
	}
	if waits, ok := errors.AsType[*postgres.NotWaitingError](err); ok {
		return notWaiting(loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_AWAITING_APPROVAL, name, waits.State)
	}
	if err != nil {
		return named(err, loopdv1.ErrorReason_ERROR_REASON_TOOL_CALL_NOT_FOUND, "tool_call", name)
	}
	return markReplayed(ctx, replayed)
}

// notWaiting refuses a word about a call that does not wait for it, or not any more.
func notWaiting(reason loopdv1.ErrorReason, name string, state loop.CallState) *refusal {
	row := rowOf(reason)
	return refuse(reason, name+" is "+string(state)+" or was decided a moment ago. "+row.title+". "+row.help,
		"tool_call", name, "state", callStateProto(state).String())
}

// Answer answers a question of the model.
func (a *approvalService) Answer(ctx context.Context, req *loopdv1.AnswerRequest) (*loopdv1.Approval, error) {
	if _, err := requestID(ctx, req.GetRequestId()); err != nil {
		return nil, err
	}
	row, err := a.approval(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	name := callName(runName(row.Run.ID), row.Call.Call.ID)
	if row.Kind != postgres.KindAnswer {
		return nil, refuse(loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_AWAITING_RESULT,
			req.GetName()+" is no question: approve or deny it", "tool_call", name, "state", callStateProto(row.Call.State).String())
	}
	answer := req.GetText()
	if choice := req.GetChoice(); choice != "" {
		if offered := choices(row.Call.Call.Args); !slices.Contains(offered, choice) {
			return nil, invalid(fieldError{"choice", fmt.Sprintf("%q is none of the choices %q: send one of them, or text", excerpt(choice), offered)})
		}
		answer = choice
	}
	replayed, err := a.s.submit(ctx, row.Run, row.Call, loop.ResultSubmitted{
		CallID: row.Call.Call.ID, Attempt: row.Call.Attempt, Outcome: loop.OutcomeOK, Content: answer,
	})
	if err != nil {
		return nil, err
	}
	if err := markReplayed(ctx, replayed); err != nil {
		return nil, err
	}
	answered, err := a.approval(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	return approvalProto(answered), nil
}

// choices are those that a question offers.
func choices(args string) []string {
	var question struct {
		Choices []string `json:"choices"`
	}
	if json.Unmarshal([]byte(args), &question) != nil {
		return nil
	}
	return question.Choices
}

// approvalProto shows an approval.
func approvalProto(row postgres.ApprovalRow) *loopdv1.Approval {
	c, run := row.Call, runName(row.Run.ID)
	p := &loopdv1.Approval{
		Name: approvalName(row.Run.ID, c.Call.ID), Kind: approvalKindProto(row.Kind), State: approvalStateProto(row.State),
		Run: run, ToolCall: callName(run, c.Call.ID), Agent: row.Agent, AgentVersion: row.AgentVersion,
		Tool: c.Call.Name, Effect: effectProto(c.Effect), ArgumentsJson: c.Call.Args, ArgumentsSha256: c.ArgsHash, Reason: c.Asked,
		CreateTime: timeProto(c.AskedAt), DecideTime: timeProto(c.DecidedAt), DecidedBy: c.DecidedBy, Comment: c.Decision,
		EditedArgumentsJson: c.Edited,
	}
	if row.State == postgres.ApprovalPending {
		p.ExpireTime = timeProto(c.Until)
	}
	if row.Kind == postgres.KindAnswer {
		p.Answer = c.Result
		if c.AskedAt.IsZero() {
			p.CreateTime = timeProto(c.StartedAt)
		}
	}
	return p
}
