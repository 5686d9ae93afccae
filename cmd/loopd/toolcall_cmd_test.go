package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func (f *fakeServer) CallTool(ctx context.Context, req *loopdv1.CallToolRequest) (*loopdv1.CallToolResponse, error) {
	if until, ok := ctx.Deadline(); ok {
		f.toolPatience = time.Until(until)
	}
	return f.answer, f.got(req)
}

func TestToolCall(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "args.json")
	if err := os.WriteFile(file, []byte("{\"order\": 9007199254740993}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	call := func(text string, change func(*loopdv1.CallToolRequest)) *loopdv1.CallToolRequest {
		req := &loopdv1.CallToolRequest{Name: "tools/refund", Input: &loopdv1.CallToolRequest_ArgumentsJson{ArgumentsJson: text}}
		if change != nil {
			change(req)
		}
		return req
	}
	confirmed := call(`{"order": 1e2}`, func(req *loopdv1.CallToolRequest) {
		req.ConfirmEffect, req.RequestId, req.Version = loopdv1.Effect_EFFECT_SIDE_EFFECT, "r1", proto.Int64(2)
	})
	for _, test := range []struct {
		name string
		args []string
		code int
		want proto.Message // nil: nothing is asked for
	}{
		{"no arguments", []string{"refund"}, 0, &loopdv1.CallToolRequest{Name: "tools/refund"}},
		{"a file", []string{"tools/refund", "--args", file}, 0, call(`{"order": 9007199254740993}`, nil)},
		{"standard input", []string{"refund", "--args", "-"}, 0, call(`{"from": "stdin"}`, nil)},
		{"confirmed", []string{"refund", "--args", `{"order": 1e2}`, "--confirm", "SIDE_EFFECT", "--request-id", "r1", "--version", "2"}, 0, confirmed},
		{"confirmed in other words", []string{"refund", "--args", `{"order": 1e2}`, "--confirm", "side-effect", "--request-id", "r1", "--version", "2"}, 0, confirmed},
		{"an effect that is none", []string{"refund", "--confirm", "yes"}, exitUsage, nil},
		{"no effect", []string{"refund", "--confirm", "unspecified"}, exitUsage, nil},
		{"a list", []string{"refund", "--args", `{} []`}, exitUsage, nil},
		{"no tool", nil, exitUsage, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.stdin = `{"from": "stdin"}`
			term.server.answer = &loopdv1.CallToolResponse{Outcome: "ok"}
			term.wantCode(t, test.code, term.loopd(append([]string{"tool", "call"}, test.args...)...))
			term.wantRequest(t, test.want)
		})
	}
}

func TestToolCallShowsWhatCame(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.answer = &loopdv1.CallToolResponse{
		Outcome: "ok", Content: "{\"order\":\"ORD-1\",\"note\":\"\x1b[2J\u202e\"}", Status: 200, Bytes: 40, Latency: durationpb.New(12_345_678 * time.Nanosecond),
		IdempotencyKey: "loopd:tool-test-0193e9a4-5c1e-4b60-8f0a-0d6a3c1f2b4d:c1-1",
	}
	term.wantCode(t, 0, term.loopd("tool", "call", "order"))
	shown := term.stdout.String()

	term.stdout.Reset()
	term.server.answer = &loopdv1.CallToolResponse{
		Outcome: "timeout", Content: "no answer in time", Bytes: 70_000, Cut: true, Latency: durationpb.New(30 * time.Second), IdempotencyKey: "k",
	}
	term.wantCode(t, exitOther, term.loopd("tool", "call", "order"))
	golden(t, "tool_call.txt", shown+"\n---\n"+term.stdout.String())

	term.wantCode(t, exitOther, term.loopd("tool", "call", "order", "-o", "json"))
	term.server.err = refusal(t, codes.FailedPrecondition, "only a run calls it", "TOOL_NOT_CALLABLE")
	term.wantCode(t, exitConflict, term.loopd("tool", "call", "order"))
}

// A tool may take ten minutes, and whoever asked must hear what came of the call.
func TestToolCallWaitsAsLongAsAToolMayTake(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.answer = &loopdv1.CallToolResponse{Outcome: "ok"}
	term.wantCode(t, 0, term.loopd("tool", "call", "order"))
	if term.server.toolPatience < 10*time.Minute {
		t.Errorf("the call is given up after %s", term.server.toolPatience)
	}
}
