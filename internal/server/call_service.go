package server

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// anyRun is the parent of what belongs to any run.
const anyRun = "runs/-"

// ListToolCalls lists the tool calls of a run, or those that wait in all runs.
func (r *runService) ListToolCalls(ctx context.Context, req *loopdv1.ListToolCallsRequest) (*loopdv1.ListToolCallsResponse, error) {
	if req.GetParent() == anyRun {
		return r.listWaiting(ctx, req)
	}
	calls, err := r.calls(ctx, req.GetParent())
	if err != nil {
		return nil, err
	}
	begin, err := placeOf(req)
	if err != nil {
		return nil, err
	}
	resp := &loopdv1.ListToolCallsResponse{}
	for place := min(begin, len(calls)); place < len(calls); place++ {
		call := calls[place]
		if len(req.GetStates()) > 0 && !slices.Contains(req.GetStates(), callStateProto(call.State)) {
			continue
		}
		if len(resp.GetToolCalls()) == pageSize(req.GetPageSize()) {
			resp.NextPageToken = pageToken(req, strconv.Itoa(place))
			break
		}
		resp.ToolCalls = append(resp.ToolCalls, toolCallProto(req.GetParent(), call))
	}
	return resp, nil
}

// listWaiting lists the calls of all runs that wait for a word.
func (r *runService) listWaiting(ctx context.Context, req *loopdv1.ListToolCallsRequest) (*loopdv1.ListToolCallsResponse, error) {
	cursor, err := cursorOf(req)
	if err != nil {
		return nil, err
	}
	after, err := callCursorOf(cursor)
	if err != nil {
		return nil, err
	}
	filter := postgres.CallFilter{PageSize: pageSize(req.GetPageSize()), After: after}
	for _, state := range req.GetStates() {
		filter.States = append(filter.States, callStateOf(state))
	}
	calls, next, err := r.s.store.ListWaitingCalls(ctx, tenant(ctx), filter)
	if err != nil {
		return nil, err
	}
	resp := &loopdv1.ListToolCallsResponse{}
	if next != (postgres.CallCursor{}) {
		resp.NextPageToken = pageToken(req, next.RunID+" "+strconv.Itoa(next.Place))
	}
	for _, call := range calls {
		resp.ToolCalls = append(resp.ToolCalls, toolCallProto(runName(call.Run.ID), call.Call))
	}
	return resp, nil
}

// callCursorOf reads a place in the list of calls that wait.
func callCursorOf(cursor string) (postgres.CallCursor, error) {
	if cursor == "" {
		return postgres.CallCursor{}, nil
	}
	run, number, _ := strings.Cut(cursor, " ")
	place, err := strconv.Atoi(number)
	if err != nil || uuid.Validate(run) != nil {
		return postgres.CallCursor{}, errPageToken()
	}
	return postgres.CallCursor{RunID: run, Place: place}, nil
}

// slicePage cuts a page out of a list that was read as a whole: a run has at most
// some hundred messages or calls, and they only grow at the end.
func slicePage[E any](req pagedRequest, all []E) (page []E, next string, err error) {
	begin, err := placeOf(req)
	if err != nil {
		return nil, "", err
	}
	begin = min(begin, len(all))
	end := min(begin+pageSize(req.GetPageSize()), len(all))
	if end < len(all) {
		next = pageToken(req, strconv.Itoa(end))
	}
	return all[begin:end], next, nil
}

// placeOf reads where a page of such a list begins.
func placeOf(req pagedRequest) (int, error) {
	cursor, err := cursorOf(req)
	if err != nil || cursor == "" {
		return 0, err
	}
	begin, err := strconv.Atoi(cursor)
	if err != nil || begin < 0 {
		return 0, errPageToken()
	}
	return begin, nil
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
	return r.decide(ctx, req, func(loop.CallHead) loop.ApprovalDecided {
		return loop.ApprovalDecided{ArgsHash: req.GetArgumentsSha256(), Approved: true, Reason: req.GetReason()}
	})
}

// DenyToolCall denies a call that awaits approval.
func (r *runService) DenyToolCall(ctx context.Context, req *loopdv1.DenyToolCallRequest) (*loopdv1.ToolCall, error) {
	return r.decide(ctx, req, func(call loop.CallHead) loop.ApprovalDecided {
		return loop.ApprovalDecided{ArgsHash: call.ArgsHash, Reason: req.GetReason()}
	})
}

// decide hands a decision about a call to the run's worker. The head that comes back is
// the call's as it stands: the worker takes the decision in a moment.
func (r *runService) decide(ctx context.Context, req namedRequest, decision func(loop.CallHead) loop.ApprovalDecided) (*loopdv1.ToolCall, error) {
	if _, err := requestID(ctx, req.GetRequestId()); err != nil {
		return nil, err
	}
	call, err := r.call(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	run, id := splitCall(req.GetName())
	decided := decision(call)
	decided.CallID = id
	if err := r.s.decide(ctx, runRef(tenant(ctx), run), call, decided); err != nil {
		return nil, err
	}
	if call, err = r.call(ctx, req.GetName()); err != nil {
		return nil, err
	}
	return toolCallProto(run, call), nil
}

// ResolveToolCall says what became of a call in doubt. The first word counts; to repeat
// it changes nothing.
func (r *runService) ResolveToolCall(ctx context.Context, req *loopdv1.ResolveToolCallRequest) (*loopdv1.ToolCall, error) {
	idem, err := idempotency(ctx, "ResolveToolCall", req)
	if err != nil {
		return nil, err
	}
	call, err := r.call(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	run, id := splitCall(req.GetName())
	word := loop.CallResolved{
		CallID: id, Resolution: resolutionOf(req.GetResolution()), Result: req.GetResult(), By: subject(ctx), Reason: req.GetComment(),
	}
	waits := call.State == loop.CallInDoubt
	given, err := r.given(ctx, run, id, waits)
	if err != nil {
		return nil, err
	}
	switch {
	case waits && len(given) == 0:
		err := r.s.store.Signal(ctx, runRef(tenant(ctx), run), word, idem)
		r.s.countMismatch(err)
		if err != nil {
			return nil, named(err, loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "run", run)
		}
	case !slices.Contains(given, word):
		return nil, notWaiting(loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_IN_DOUBT, req.GetName(), call.State)
	default: // said before
		if err := r.s.store.Confirm(ctx, runRef(tenant(ctx), run)); err != nil {
			return nil, named(err, loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "run", run)
		}
	}
	return toolCallProto(run, call), nil
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

// given lists what was said of a call in doubt: while it waits the words that its worker
// has still to take, else those in the journal.
func (r *runService) given(ctx context.Context, run, call string, waits bool) ([]loop.CallResolved, error) {
	ref := runRef(tenant(ctx), run)
	var words []loop.CallResolved
	take := func(body loop.Body) {
		if word, ok := body.(loop.CallResolved); ok && word.CallID == call {
			words = append(words, word)
		}
	}
	if waits {
		signals, err := r.s.store.Signals(ctx, loop.Lease{Run: ref})
		for _, signal := range signals {
			take(signal.Body)
		}
		return words, err
	}
	events, err := r.s.allEvents(ctx, ref)
	for _, e := range events {
		take(e.Body)
	}
	return words, err
}
