package server

import (
	"context"
	"slices"
	"strconv"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// ListToolCalls lists the tool calls of a run.
func (r *runService) ListToolCalls(ctx context.Context, req *loopdv1.ListToolCallsRequest) (*loopdv1.ListToolCallsResponse, error) {
	calls, err := r.calls(ctx, req.GetParent())
	if err != nil {
		return nil, err
	}
	page, token, err := slicePage(req, calls)
	if err != nil {
		return nil, err
	}
	resp := &loopdv1.ListToolCallsResponse{NextPageToken: token}
	for _, call := range page {
		resp.ToolCalls = append(resp.ToolCalls, toolCallProto(req.GetParent(), call))
	}
	return resp, nil
}

// slicePage cuts a page out of a list that was read as a whole: a run has at most
// some hundred messages or calls, and they only grow at the end.
func slicePage[E any](req pagedRequest, all []E) (page []E, next string, err error) {
	cursor, err := cursorOf(req)
	if err != nil {
		return nil, "", err
	}
	begin := 0
	if cursor != "" {
		if begin, err = strconv.Atoi(cursor); err != nil || begin < 0 {
			return nil, "", errPageToken()
		}
	}
	begin = min(begin, len(all))
	end := min(begin+pageSize(req.GetPageSize()), len(all))
	if end < len(all) {
		next = pageToken(req, strconv.Itoa(end))
	}
	return all[begin:end], next, nil
}

// calls reads the calls of a run that exists.
func (r *runService) calls(ctx context.Context, run string) ([]loop.CallHead, error) {
	calls, err := r.s.store.ToolCalls(ctx, runRef(tenant(ctx), run))
	if err == nil && len(calls) == 0 {
		_, err = r.run(ctx, run)
	}
	return calls, err
}

// ApproveToolCall approves a call that awaits it, for exactly its arguments.
func (r *runService) ApproveToolCall(ctx context.Context, req *loopdv1.ApproveToolCallRequest) (*loopdv1.ToolCall, error) {
	idem, err := idempotency(ctx, "ApproveToolCall", req)
	if err != nil {
		return nil, err
	}
	call, err := r.call(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if call.ArgsHash != req.GetArgumentsSha256() {
		return nil, refuse(loopdv1.ErrorReason_ERROR_REASON_ARGUMENTS_CHANGED,
			req.GetName()+": arguments_sha256 is not that of the call's arguments: read the call again and decide on what it has now",
			"tool_call", req.GetName(), "arguments_sha256", call.ArgsHash)
	}
	return r.decide(ctx, req.GetName(), call, idem, loop.ApprovalDecided{
		CallID: call.Call.ID, ArgsHash: call.ArgsHash, Approved: true, Reason: req.GetReason(),
	})
}

// DenyToolCall denies a call that awaits approval.
func (r *runService) DenyToolCall(ctx context.Context, req *loopdv1.DenyToolCallRequest) (*loopdv1.ToolCall, error) {
	idem, err := idempotency(ctx, "DenyToolCall", req)
	if err != nil {
		return nil, err
	}
	call, err := r.call(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	return r.decide(ctx, req.GetName(), call, idem, loop.ApprovalDecided{
		CallID: call.Call.ID, ArgsHash: call.ArgsHash, Approved: false, Reason: req.GetReason(),
	})
}

// ResolveToolCall says what became of a call in doubt.
func (r *runService) ResolveToolCall(ctx context.Context, req *loopdv1.ResolveToolCallRequest) (*loopdv1.ToolCall, error) {
	idem, err := idempotency(ctx, "ResolveToolCall", req)
	if err != nil {
		return nil, err
	}
	call, err := r.call(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	return r.decide(ctx, req.GetName(), call, idem, loop.CallResolved{
		CallID: call.Call.ID, Resolution: resolutionOf(req.GetResolution()), Result: req.GetResult(), Reason: req.GetComment(),
	})
}

// call reads one call by its name.
func (r *runService) call(ctx context.Context, name string) (loop.CallHead, error) {
	run, id := splitCall(name)
	calls, err := r.calls(ctx, run)
	if err != nil {
		return loop.CallHead{}, err
	}
	for _, call := range calls {
		if call.Call.ID == id {
			return call, nil
		}
	}
	return loop.CallHead{}, named(loop.ErrNotFound, loopdv1.ErrorReason_ERROR_REASON_TOOL_CALL_NOT_FOUND, "tool_call", name)
}

// decide hands a decision about a call to the run's worker. The head that comes back
// is the call's as it stands: the worker takes the decision in a moment. The first
// decision counts; to repeat it changes nothing.
func (r *runService) decide(ctx context.Context, name string, call loop.CallHead, idem postgres.Idempotency, decision loop.Body) (*loopdv1.ToolCall, error) {
	run, _ := splitCall(name)
	awaited, tooLate := loop.CallAwaitingApproval, loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_AWAITING_APPROVAL
	if _, ok := decision.(loop.CallResolved); ok {
		awaited, tooLate = loop.CallInDoubt, loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_IN_DOUBT
	}
	given, err := r.given(ctx, run, call, call.State == awaited)
	if err != nil {
		return nil, err
	}
	if call.State == awaited && len(given) == 0 {
		err := r.s.store.Signal(ctx, runRef(tenant(ctx), run), decision, idem)
		r.s.countMismatch(err)
		if err != nil {
			return nil, named(err, loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "run", run)
		}
		return toolCallProto(run, call), nil
	}
	if slices.Contains(given, decision) {
		return toolCallProto(run, call), nil
	}
	row := rowOf(tooLate)
	return nil, refuse(tooLate, name+" is "+string(call.State)+" or was decided a moment ago. "+row.title+". "+row.help,
		"tool_call", name, "state", callStateProto(call.State).String())
}

// given lists the decisions about a call: those that its worker has still to take
// while it waits for one, else those in the journal.
func (r *runService) given(ctx context.Context, run string, call loop.CallHead, waits bool) ([]loop.Body, error) {
	ref := runRef(tenant(ctx), run)
	var bodies []loop.Body
	if waits {
		signals, err := r.s.store.Signals(ctx, loop.Lease{Run: ref})
		if err != nil {
			return nil, err
		}
		for _, signal := range signals {
			bodies = append(bodies, signal.Body)
		}
	} else {
		events, err := r.s.allEvents(ctx, ref)
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			bodies = append(bodies, e.Body)
		}
	}
	return slices.DeleteFunc(bodies, func(body loop.Body) bool {
		switch b := body.(type) {
		case loop.ApprovalDecided:
			return b.CallID != call.Call.ID
		case loop.CallResolved:
			return b.CallID != call.Call.ID
		}
		return true
	}), nil
}
