package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
	"github.com/loopd/loopd/internal/tool"
	"github.com/loopd/loopd/internal/tool/mcp"
)

// toolbox makes the ways to run tools fit the engine's port: HTTP endpoints, MCP
// servers, and the built-ins: notes, and the results of earlier calls.
type toolbox struct {
	*tool.Runner

	mcp     *mcp.Client
	notes   noteStore
	results resultStore
}

// noteStore is what the built-in memory needs of the store.
type noteStore interface {
	GetNote(ctx context.Context, owner postgres.NoteOwner, key string) (postgres.Note, error)
	PutNote(ctx context.Context, owner postgres.NoteOwner, key, text string) error
	SearchNotes(ctx context.Context, owner postgres.NoteOwner, query string) ([]postgres.Note, error)
}

func (t toolbox) Call(ctx context.Context, req engine.ToolRequest) loop.ToolReply {
	switch {
	case req.Spec.MCP != nil:
		return t.mcp.Call(ctx, tool.Request(req))
	case req.Spec.Builtin == loop.BuiltinReadResult:
		return t.readResult(ctx, req)
	case req.Spec.Builtin != "":
		return t.remember(ctx, req)
	}
	return t.Runner.Call(ctx, tool.Request(req))
}

// callOnce sends one call for somebody who sets a tool up.
func (t toolbox) callOnce(ctx context.Context, run loop.RunRef, spec loop.ToolSpec, args, key string) loop.ToolReply {
	return t.Call(ctx, engine.ToolRequest{
		Run: run, Spec: spec, Call: loop.ToolCall{ID: "c1-1", Name: spec.Name, Args: args}, Key: key, Attempt: 1,
	})
}

// remember runs the built-in notes. An agent has notes for each subject, and those
// of runs about nobody in particular.
func (t toolbox) remember(ctx context.Context, req engine.ToolRequest) loop.ToolReply {
	var args struct {
		Key   string `json:"key"`
		Text  string `json:"text"`
		Query string `json:"query"`
	}
	if err := json.Unmarshal([]byte(req.Call.Args), &args); err != nil {
		return noteReply(loop.OutcomeInvalidArgs, map[string]any{"error": "the arguments cannot be read: " + err.Error()})
	}
	owner := postgres.NoteOwner{Tenant: req.Run.Tenant, Agent: req.Agent, Subject: req.Subject}
	switch req.Spec.Builtin {
	case loop.BuiltinMemoryGet:
		note, err := t.notes.GetNote(ctx, owner, args.Key)
		if errors.Is(err, loop.ErrNotFound) {
			return noteReply(loop.OutcomeOK, map[string]any{"found": false})
		}
		return t.said(ctx, err, map[string]any{"found": true, "text": note.Text, "updated": note.UpdatedAt})
	case loop.BuiltinMemoryPut:
		return t.said(ctx, t.notes.PutNote(ctx, owner, args.Key, args.Text), map[string]any{"stored": true})
	case loop.BuiltinMemorySearch:
		notes, err := t.notes.SearchNotes(ctx, owner, args.Query)
		found := make([]map[string]any, 0, len(notes))
		for _, n := range notes {
			found = append(found, map[string]any{"key": n.Key, "text": n.Text})
		}
		return t.said(ctx, err, map[string]any{"notes": found})
	}
	return noteReply(loop.OutcomePermanent, map[string]any{"error": fmt.Sprintf("this worker has no built-in %q", req.Spec.Builtin)})
}

// said is the reply with what the store did, or why it did not.
func (t toolbox) said(ctx context.Context, err error, done map[string]any) loop.ToolReply {
	switch {
	case err == nil:
		return noteReply(loop.OutcomeOK, done)
	case errors.Is(err, postgres.ErrNoteBound):
		return noteReply(loop.OutcomePermanent, map[string]any{"error": err.Error()})
	case ctx.Err() != nil:
		return noteReply(loop.OutcomeTimeout, map[string]any{"error": "the notes did not answer in time"})
	}
	return noteReply(loop.OutcomeRetryable, map[string]any{"error": "the notes cannot be reached; try again later"})
}

func noteReply(outcome loop.Outcome, content map[string]any) loop.ToolReply {
	text, err := json.Marshal(content)
	if err != nil {
		return loop.ToolReply{Outcome: loop.OutcomePermanent, Content: err.Error()}
	}
	return loop.ToolReply{Outcome: outcome, Content: string(text), Bytes: int64(len(text))}
}
