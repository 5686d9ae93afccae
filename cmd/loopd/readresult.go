package main

import (
	"context"
	"errors"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/tool"
)

// resultStore is what the built-in that reads results needs of the store.
type resultStore interface {
	FullResult(ctx context.Context, run loop.RunRef, callID string) (string, loop.CallHead, error)
	ToolCalls(ctx context.Context, run loop.RunRef) ([]loop.CallHead, error)
}

// readResult reads the result of an earlier call of the same run.
func (t toolbox) readResult(ctx context.Context, req engine.ToolRequest) loop.ToolReply {
	query, err := tool.ParseResultQuery(req.Call.Args)
	if err != nil {
		return noteReply(loop.OutcomeInvalidArgs, map[string]any{"error": err.Error()})
	}
	text, _, err := t.results.FullResult(ctx, req.Run, query.Call)
	if errors.Is(err, loop.ErrNotFound) {
		var have []loop.CallHead
		if have, err = t.results.ToolCalls(ctx, req.Run); err == nil {
			return tool.NoSuchResult(query.Call, have)
		}
	}
	switch {
	case err == nil:
		return query.Read(text, req.MaxResult)
	case ctx.Err() != nil:
		return noteReply(loop.OutcomeTimeout, map[string]any{"error": "the results did not answer in time"})
	}
	return noteReply(loop.OutcomeRetryable, map[string]any{"error": "the results cannot be reached; try again later"})
}
