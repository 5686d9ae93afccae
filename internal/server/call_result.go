package server

import (
	"context"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// GetToolCallResult reads the result of a call in full.
func (r *runService) GetToolCallResult(ctx context.Context, req *loopdv1.GetToolCallResultRequest) (*loopdv1.ToolCallResult, error) {
	if _, err := r.call(ctx, req.GetName()); err != nil { // says what there is not: the run or the call
		return nil, err
	}
	run, id := splitCall(req.GetName())
	text, call, err := r.s.store.FullResult(ctx, runRef(tenant(ctx), run), id)
	if err != nil {
		return nil, err
	}
	return &loopdv1.ToolCallResult{
		ToolCall: req.GetName(), Tool: call.Call.Name, Outcome: string(call.Outcome), Text: text, ResultBytes: call.Bytes,
	}, nil
}
