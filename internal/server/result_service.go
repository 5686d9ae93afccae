package server

import (
	"context"
	"errors"
	"fmt"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// SubmitToolResults takes results of tools that the caller runs itself, each for
// itself: what is wrong with one does not hold up the others.
func (r *runService) SubmitToolResults(ctx context.Context, req *loopdv1.SubmitToolResultsRequest) (*loopdv1.SubmitToolResultsResponse, error) {
	if _, err := requestID(ctx, req.GetRequestId()); err != nil {
		return nil, err
	}
	if _, err := r.run(ctx, req.GetName()); err != nil {
		return nil, err
	}
	ref := runRef(tenant(ctx), req.GetName())
	spec, err := r.s.spec(ctx, ref)
	if err != nil {
		return nil, err
	}
	calls, err := r.s.store.ToolCalls(ctx, ref)
	if err != nil {
		return nil, err
	}
	byID := make(map[string]loop.CallHead, len(calls))
	for _, call := range calls {
		byID[call.Call.ID] = call
	}
	resp := &loopdv1.SubmitToolResultsResponse{}
	for _, input := range req.GetResults() {
		shown, err := r.submit(ctx, ref, spec.Definition, byID[input.GetCall()], input)
		if err != nil {
			return nil, err // nothing is lost: the results that count are repeated harmlessly
		}
		resp.Results = append(resp.Results, shown)
	}
	run, err := r.run(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	resp.Run, err = r.show(ctx, run)
	return resp, err
}

// submit takes one result and says what became of it. The error is one that says
// nothing about the result.
func (r *runService) submit(ctx context.Context, ref loop.RunRef, def loop.AgentSpec, call loop.CallHead, input *loopdv1.ToolResultInput) (*loopdv1.ToolResultStatus, error) {
	shown := &loopdv1.ToolResultStatus{Call: input.GetCall(), Status: loopdv1.ToolResultStatus_STATUS_ACCEPTED}
	result := loop.ResultSubmitted{CallID: input.GetCall(), Attempt: int(input.GetAttempt()), Outcome: loop.OutcomeOK, Content: input.GetContent()}
	if failure := input.GetError(); failure != "" {
		result.Outcome, result.Content = loop.OutcomePermanent, failure
	}
	err := submittable(runName(ref.ID), def, call, result)
	replayed := false
	if err == nil {
		replayed, err = r.s.submit(ctx, ref, call, result)
	}
	switch refused := classify(err); {
	case err == nil && replayed:
		shown.Status = loopdv1.ToolResultStatus_STATUS_REPEATED
	case err == nil:
	case refused == nil || rowOf(refused.reason).retryable:
		return nil, err
	default:
		shown.Status, shown.Reason, shown.Message = loopdv1.ToolResultStatus_STATUS_REFUSED, refused.reason, refused.detail
	}
	r.s.metrics.results.WithLabelValues(statusLabel(shown.GetStatus())).Inc()
	return shown, nil
}

// submittable says why a result cannot be taken, whatever became of its call.
func submittable(run string, def loop.AgentSpec, call loop.CallHead, result loop.ResultSubmitted) error {
	name := callName(run, result.CallID)
	if call.Call.ID == "" {
		return named(loop.ErrNotFound, loopdv1.ErrorReason_ERROR_REASON_TOOL_CALL_NOT_FOUND, "tool_call", name)
	}
	tool, _ := def.Tool(call.Call.Name)
	switch {
	case tool.Client == nil && tool.Builtin == loop.BuiltinAskHuman:
		return refuse(loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_AWAITING_RESULT,
			name+" is a question to a person: answer it as "+approvalName(runRef("", run).ID, result.CallID), "tool_call", name, "state", callStateProto(call.State).String())
	case tool.Client == nil:
		return refuse(loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_AWAITING_RESULT,
			fmt.Sprintf("%s: the caller does not run tool %q: leave its result out", name, call.Call.Name), "tool_call", name, "state", callStateProto(call.State).String())
	case int64(len(result.Content)) > tool.MaxResultBytes:
		return invalid(fieldError{"results", fmt.Sprintf("the result of %s has %d bytes, and the tool's max_result_bytes is %d: shorten it", name, len(result.Content), tool.MaxResultBytes)})
	}
	return nil
}

// submit hands a result to the run's worker. It counts once for each attempt of the
// call; replayed: the same one was taken before.
func (s *Server) submit(ctx context.Context, run loop.RunRef, call loop.CallHead, result loop.ResultSubmitted) (replayed bool, err error) {
	name := callName(runName(run.ID), call.Call.ID)
	result.By = subject(ctx)
	replayed, err = s.store.SubmitResult(ctx, run, result)
	if waits, ok := errors.AsType[*postgres.NotWaitingError](err); ok {
		refusal := notWaiting(loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_AWAITING_RESULT, name, waits.State)
		if waits.State == loop.CallOffered && waits.Attempt != result.Attempt {
			refusal.detail = fmt.Sprintf("%s: the result is of attempt %d, and attempt %d is awaited", name, result.Attempt, waits.Attempt)
		}
		return false, refusal
	}
	if errors.Is(err, postgres.ErrExpired) {
		return false, refuse(loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_AWAITING_RESULT,
			name+": its deadline has passed, so the result is not awaited any more", "tool_call", name, "state", callStateProto(call.State).String())
	}
	return replayed, named(err, loopdv1.ErrorReason_ERROR_REASON_TOOL_CALL_NOT_FOUND, "tool_call", name)
}

// spec reads what a run was created with, but for the data of its attachments.
func (s *Server) spec(ctx context.Context, run loop.RunRef) (loop.Spec, error) {
	events, err := s.store.Events(ctx, run, 0, 1)
	if err != nil {
		return loop.Spec{}, err
	}
	if len(events) == 1 {
		if created, ok := events[0].Body.(loop.Created); ok {
			return created.Spec, nil
		}
	}
	return loop.Spec{}, fmt.Errorf("run %s does not begin with its creation: %w", run.ID, loop.ErrImpossible)
}
