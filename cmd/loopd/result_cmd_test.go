package main

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

func (f *fakeServer) GetToolCallResult(_ context.Context, req *loopdv1.GetToolCallResultRequest) (*loopdv1.ToolCallResult, error) {
	return f.result, f.got(req)
}

func TestRunResult(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.result = &loopdv1.ToolCallResult{ToolCall: fullCall, Tool: "search", Outcome: "ok", Text: "first\x1b[2J\nsecond", ResultBytes: 17}
	term.wantCode(t, 0, term.loopd("run", "result", runID, "c2-1"))
	term.wantRequest(t, &loopdv1.GetToolCallResultRequest{Name: fullCall})
	if got := term.stdout.String(); got != "first\ufffd[2J\nsecond\n" {
		t.Errorf("stdout %q", got)
	}
	term.stdout.Reset()
	term.wantCode(t, 0, term.loopd("run", "result", runID+"/c2-1", "-o", "json"))
	if got := term.stdout.String(); !strings.Contains(got, `"text": "first\u001b[2J\nsecond"`) {
		t.Errorf("stdout %q", got)
	}
	term.server.err = refusal(t, codes.NotFound, "no such call", "TOOL_CALL_NOT_FOUND")
	term.wantCode(t, exitNotFound, term.loopd("run", "result", runID, "c9-9"))
}

// Who watches learns that the transcript was made shorter, what the summary cost, and
// that it is no iteration.
func TestRunWatchCompaction(t *testing.T) {
	t.Parallel()
	term := setup(t)
	summary := loop.ModelAnswered{Call: 2, Message: loop.Message{Role: loop.RoleAssistant, Parts: []loop.Part{loop.TextPart("All is well.")}}, Cost: loop.Cost{Output: loop.MilliUSD}}
	term.server.run = stoppedRun()
	term.server.streams = []func(sender) error{sends(journal(t,
		loop.Created{}, loop.Claimed{Attempt: 1, Worker: "w1"},
		loop.ModelStarted{Call: 1}, asks("c1-1"), loop.CallFinished{CallID: "c1-1", Outcome: loop.OutcomeOK},
		loop.Compacted{Method: loop.CompactClear, Before: 13_000, After: 10_000, Cleared: []string{"c1-1"}},
		loop.ModelStarted{Call: 2, Purpose: loop.PurposeSummary}, summary,
		loop.Compacted{Method: loop.CompactSummarize, Before: 13_000, After: 9_000, Summary: "All is well."},
		loop.Compacted{Method: loop.CompactSummarize, Failure: "the summary is empty"},
		loop.ModelStarted{Call: 3}, asks("c3-1"), loop.Finished{State: loop.StateStopped},
	), nil)}
	term.wantCode(t, exitStopped, term.loopd("run", "watch", runID))
	got, _, _ := strings.Cut(term.stdout.String(), "\nRun ")
	for _, want := range []string{
		"from about 13000 to 10000 tokens: 1 old results were left out", "from about 13000 to 9000 tokens: its oldest part was summed up",
		"could not be made shorter: the summary is empty", "0.013 of ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no line says %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "All is well.") || strings.Count(got, "get_order_status") != 2 || strings.Contains(got, "  answer\n") {
		t.Errorf("the summary is shown as an iteration:\n%s", got)
	}
}
