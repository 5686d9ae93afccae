package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func (f *fakeServer) SubmitToolResults(_ context.Context, req *loopdv1.SubmitToolResultsRequest) (*loopdv1.SubmitToolResultsResponse, error) {
	return f.submitted, f.got(req)
}

// ListToolCalls serves all calls at once.
func (f *fakeServer) ListToolCalls(_ context.Context, req *loopdv1.ListToolCallsRequest) (*loopdv1.ListToolCallsResponse, error) {
	if req.GetParent() == "runs/-" {
		if err := f.got(req); err != nil {
			return nil, err
		}
	}
	return &loopdv1.ListToolCallsResponse{ToolCalls: f.calls}, nil
}

// doubts are calls in doubt: one that may have paid, and one that pays once.
func doubts() []*loopdv1.ToolCall {
	return []*loopdv1.ToolCall{
		{
			Name: fullCall, CallId: "c2-1", Tool: "issue_refund", Effect: loopdv1.Effect_EFFECT_IRREVERSIBLE, Attempt: 1,
			ArgumentsJson: `{"amount":129}`, EditedArgumentsJson: `{"amount":100}`, IdempotencyKey: "k-1",
			State: loopdv1.ToolCallState_TOOL_CALL_STATE_IN_DOUBT, StartTime: stamp(0), WaitUntil: stamp(7 * 24 * time.Hour),
		},
		{
			Name: fullRun + "/toolCalls/c2-2", CallId: "c2-2", Tool: "pay_once", Effect: loopdv1.Effect_EFFECT_IDEMPOTENT, Attempt: 2,
			ArgumentsJson: `{"to":"\u202e"}`, IdempotencyKey: "k-2", State: loopdv1.ToolCallState_TOOL_CALL_STATE_IN_DOUBT, StartTime: stamp(0),
		},
	}
}

func TestRunDoubts(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.calls = doubts()
	term.wantCode(t, 0, term.loopd("run", "doubts"))
	term.wantRequest(t, &loopdv1.ListToolCallsRequest{
		Parent: "runs/-", PageSize: 200, States: []loopdv1.ToolCallState{loopdv1.ToolCallState_TOOL_CALL_STATE_IN_DOUBT},
	})
	golden(t, "doubts.txt", term.stdout.String())
}

// submittingRun waits for two results from outside.
func submittingRun() *loopdv1.Run {
	run := waitingRun()
	run.RequiredActions = []*loopdv1.RequiredAction{
		{Kind: loopdv1.RequiredAction_KIND_APPROVE, ToolCall: fullCall, Tool: "issue_refund"},
		{Kind: loopdv1.RequiredAction_KIND_SUBMIT, ToolCall: fullRun + "/toolCalls/c2-3", Tool: "read_screen", ArgumentsJson: "{}", Attempt: 2},
	}
	return run
}

func TestRunSubmit(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "result.txt")
	if err := os.WriteFile(file, []byte("a screen\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	submits := func(attempt int32, text string) *loopdv1.SubmitToolResultsRequest {
		input := &loopdv1.ToolResultInput{Call: "c2-3", Attempt: attempt, Outcome: &loopdv1.ToolResultInput_Content{Content: text}}
		return &loopdv1.SubmitToolResultsRequest{Name: fullRun, Results: []*loopdv1.ToolResultInput{input}}
	}
	failed := submits(2, "")
	failed.Results[0].Outcome = &loopdv1.ToolResultInput_Error{Error: "no screen"}
	read := &loopdv1.GetRunRequest{Name: fullRun}
	tests := []struct {
		name, stdin string
		line        []string
		code        int
		want        proto.Message
	}{
		{"text", "", []string{runID, "c2-3", "--result", "seen"}, 0, submits(2, "seen")},
		{"nothing to say", "", []string{runID + "/c2-3", "--result", ""}, 0, submits(2, "")},
		{"file", "", []string{runID, "c2-3", "--result", "@" + file}, 0, submits(2, "a screen\n")},
		{"standard input", "piped", []string{fullRun, "c2-3", "--result", "@-"}, 0, submits(2, "piped")},
		{"failed", "", []string{runID, "c2-3", "--failed", "--result", "no screen"}, 0, failed},
		{"attempt", "", []string{runID, "c2-3", "--attempt", "1", "--result", "seen"}, 0, submits(1, "seen")},
		{"a call that waits for something else", "", []string{runID, "c2-1", "--result", "seen"}, exitConflict, read},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.server.run = submittingRun()
			term.server.submitted = &loopdv1.SubmitToolResultsResponse{Results: []*loopdv1.ToolResultStatus{
				{Call: "c2-3", Status: loopdv1.ToolResultStatus_STATUS_ACCEPTED},
			}}
			term.stdin = test.stdin
			term.wantCode(t, test.code, term.loopd(append([]string{"run", "submit"}, test.line...)...))
			term.wantRequest(t, test.want)
			if want := fullRun + "/toolCalls/c2-3 ACCEPTED\n"; test.code == 0 && term.stdout.String() != want {
				t.Errorf("stdout %q, want %q", term.stdout.String(), want)
			}
		})
	}
}

func TestRunSubmitRefused(t *testing.T) {
	t.Parallel()
	for reason, want := range map[loopdv1.ErrorReason]int{
		loopdv1.ErrorReason_ERROR_REASON_RESULT_CONFLICT:          exitConflict,
		loopdv1.ErrorReason_ERROR_REASON_CALL_NOT_AWAITING_RESULT: exitConflict,
		loopdv1.ErrorReason_ERROR_REASON_FIELD_INVALID:            exitUsage,
		loopdv1.ErrorReason_ERROR_REASON_TOOL_CALL_NOT_FOUND:      exitNotFound,
	} {
		t.Run(reason.String(), func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.server.submitted = &loopdv1.SubmitToolResultsResponse{Results: []*loopdv1.ToolResultStatus{
				{Call: "c2-3", Status: loopdv1.ToolResultStatus_STATUS_REFUSED, Reason: reason, Message: "refused for the test"},
			}}
			term.wantCode(t, want, term.loopd("run", "submit", runID, "c2-3", "--attempt", "1", "--result", "x"))
			if got := term.stderr.String(); got != "loopd: refused for the test ("+word(reason, "ERROR_REASON_")+")\n" || term.stdout.Len() > 0 {
				t.Errorf("stderr %q, stdout %q", got, term.stdout.String())
			}
		})
	}
}
