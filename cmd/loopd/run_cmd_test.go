package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

const (
	runID    = "0193e9a4-5c1e-7b60-8f0a-0d6a3c1f2b4d"
	fullRun  = "runs/" + runID
	fullCall = fullRun + "/toolCalls/c2-1"
)

// noon is when the runs of these tests were created.
var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func stamp(after time.Duration) *timestamppb.Timestamp { return timestamppb.New(noon.Add(after)) }

// stoppedRun is the incident: a tool that answers 429 each time it is asked.
func stoppedRun() *loopdv1.Run {
	run := &loopdv1.Run{
		Name: fullRun, Agent: "agents/support", AgentVersion: 3, Input: "Where is ORD-4892?",
		State: loopdv1.RunState_RUN_STATE_STOPPED, Done: true,
		Limits: &loopdv1.Limits{
			MaxIterations: proto.Int32(12), MaxCostUsd: new("1"), MaxToolCalls: proto.Int32(40), MaxTotalTokens: proto.Int64(500_000),
		},
		CreateTime: stamp(0), EndTime: stamp(7 * time.Second), Iterations: 4, ToolCalls: 3,
		Usage:   &loopdv1.Usage{InputUncachedTokens: 4000, CacheReadTokens: 2000, OutputTokens: 500},
		CostUsd: "0.0213", CostEstimatedUsd: "0", CostHeldUsd: "0",
		Answer: "I could not read the order:\nthe shop answers 429.", AnswerPartial: true,
		Stop: &loopdv1.Stop{
			Reason: loopdv1.StopReason_STOP_REASON_REPEAT_CALL, Guard: "repeat_call",
			Observed: "3 equal iterations in a row", Limit: "3",
			Message: "get_order_status brought the same result 3 times", Iteration: 3,
		},
	}
	for i := int32(1); i <= 3; i++ {
		run.Stop.Evidence = append(run.Stop.Evidence, &loopdv1.Evidence{
			Iteration: i, CallId: "c" + string('0'+i) + "-1", Tool: "get_order_status",
			Arguments: `{"order": "ORD-4892"}`, ArgumentsHash: "9f3a", Result: "429: try again later", ResultHash: "e41c",
		})
	}
	return run
}

// waitingRun waits for an approval and for a word about a call in doubt.
func waitingRun() *loopdv1.Run {
	run := stoppedRun()
	run.State, run.Done, run.Stop, run.Answer, run.EndTime = loopdv1.RunState_RUN_STATE_REQUIRES_ACTION, false, nil, "", nil
	run.CostHeldUsd, run.CostEstimatedUsd = "0.05", "0.01"
	run.RequiredActions = []*loopdv1.RequiredAction{
		{
			Kind: loopdv1.RequiredAction_KIND_APPROVE, ToolCall: fullCall, Tool: "issue_refund",
			ArgumentsJson: `{"order":"ORD-4892","amount":"129.00"}`, ArgumentsSha256: strings.Repeat("ab", 32), Deadline: stamp(24 * time.Hour),
		},
		{
			Kind: loopdv1.RequiredAction_KIND_RESOLVE, ToolCall: fullRun + "/toolCalls/c2-2", Tool: "send_mail",
			ArgumentsJson: `{"to":"a@example.com"}`, Deadline: stamp(24 * time.Hour),
		},
	}
	return run
}

func TestRunStart(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "run.yaml")
	text := "agent: support\ninput: from the file\nlimits: {max_cost_usd: \"0.20\", deadline: 90s}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	term := setup(t)
	term.server.run = stoppedRun()
	term.stdin = "from standard input"
	term.wantCode(t, 0, term.loopd("run", "start", "-f", file, "--input", "-", "--request-id", "once"))
	if got := term.stdout.String(); got != fullRun+"\n" {
		t.Errorf("stdout %q", got)
	}
	req, ok := term.server.request.(*loopdv1.CreateRunRequest)
	if !ok {
		t.Fatalf("request %T", term.server.request)
	}
	if req.GetAgent() != "agents/support" || req.GetInput() != "from standard input" || req.GetRequestId() != "once" ||
		req.GetLimits().GetMaxCostUsd() != "0.20" || req.GetLimits().GetDeadline().AsDuration() != 90*time.Second {
		t.Errorf("request %v", req)
	}
}

func TestRunShow(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]*loopdv1.Run{"show_stopped.txt": stoppedRun(), "show_waiting.txt": waitingRun(), "show_tree.txt": treeRun()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.server.run = run
			if name == "show_tree.txt" {
				term.server.children, term.server.calls = children()
			}
			term.wantCode(t, 0, term.loopd("run", "show", runID))
			term.wantRequest(t, &loopdv1.GetRunRequest{Name: fullRun})
			golden(t, name, term.stdout.String())
		})
	}
}

func TestRunShowJSON(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = stoppedRun()
	term.wantCode(t, 0, term.loopd("run", "show", fullRun, "-o", "json"))
	golden(t, "show_stopped.json", term.stdout.String())
}

// Every reason has advice, except those that need none.
func TestAdviceIsComplete(t *testing.T) {
	t.Parallel()
	for number := range loopdv1.StopReason_name {
		reason := loopdv1.StopReason(number)
		switch reason {
		case loopdv1.StopReason_STOP_REASON_UNSPECIFIED, loopdv1.StopReason_STOP_REASON_COMPLETED, loopdv1.StopReason_STOP_REASON_CANCELLED:
			continue
		}
		if advices[reason] == "" {
			t.Errorf("%s has no advice in show.go", reason)
		}
	}
}

func TestRunList(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.pages = []*loopdv1.ListRunsResponse{
		{Runs: []*loopdv1.Run{stoppedRun()}, NextPageToken: "1"},
		{Runs: []*loopdv1.Run{waitingRun()}},
	}
	term.wantCode(t, 0, term.loopd("run", "list", "--agent", "support", "--state", "stopped,requires_action"))
	golden(t, "list.txt", term.stdout.String())
	term.wantRequest(t, &loopdv1.ListRunsRequest{
		PageSize: 49, PageToken: "1", Agent: "agents/support",
		States: []loopdv1.RunState{loopdv1.RunState_RUN_STATE_STOPPED, loopdv1.RunState_RUN_STATE_REQUIRES_ACTION},
	})
}

func TestRunCancel(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = &loopdv1.Run{Name: fullRun, State: loopdv1.RunState_RUN_STATE_CANCELLING}
	term.wantCode(t, 0, term.loopd("run", "cancel", runID, "--reason", "wrong order"))
	term.wantRequest(t, &loopdv1.CancelRunRequest{Name: fullRun, Reason: "wrong order"})
	if got := term.stdout.String(); got != fullRun+" CANCELLING\n" {
		t.Errorf("stdout %q", got)
	}
}

func TestDecisions(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("ab", 32)
	tests := []struct {
		name, stdin, line string
		code              int
		want              proto.Message
	}{
		{
			"approve what was shown", "y\n", "run approve " + runID + "/c2-1", 0,
			&loopdv1.ApproveToolCallRequest{Name: fullCall, ArgumentsSha256: hash},
		},
		{"approve, but not really", "\n", "run approve " + runID + "/c2-1", exitOther, &loopdv1.GetRunRequest{Name: fullRun}},
		{"approve, no answer", "", "run approve " + fullCall, exitOther, &loopdv1.GetRunRequest{Name: fullRun}},
		{"approve what waits for something else", "y\n", "run approve " + runID + "/c2-2", exitConflict, &loopdv1.GetRunRequest{Name: fullRun}},
		{
			"approve by hash", "", "run approve " + fullCall + " --arguments-sha256 " + hash + " --reason fine", 0,
			&loopdv1.ApproveToolCallRequest{Name: fullCall, ArgumentsSha256: hash, Reason: "fine"},
		},
		{
			"deny", "", "run deny " + runID + "/c2-1 --reason no", 0,
			&loopdv1.DenyToolCallRequest{Name: fullCall, Reason: "no"},
		},
		{
			"resolve as not executed", "", "run resolve " + runID + " c2-1 --as not-executed", 0,
			&loopdv1.ResolveToolCallRequest{Name: fullCall, Resolution: loopdv1.Resolution_RESOLUTION_NOT_EXECUTED},
		},
		{
			"retry, when asked", "yes\n", "run resolve " + fullCall + " --as retry", 0,
			&loopdv1.ResolveToolCallRequest{Name: fullCall, Resolution: loopdv1.Resolution_RESOLUTION_RETRY},
		},
		{
			"retry, rather not", "n\n", "run resolve " + fullCall + " --as retry", exitOther, nil,
		},
		{
			"retry without being asked", "", "run resolve " + fullCall + " --as retry --yes", 0,
			&loopdv1.ResolveToolCallRequest{Name: fullCall, Resolution: loopdv1.Resolution_RESOLUTION_RETRY},
		},
		{
			"retry what one key does once", "", "run resolve " + runID + "/c2-2 --as retry", 0,
			&loopdv1.ResolveToolCallRequest{Name: fullRun + "/toolCalls/c2-2", Resolution: loopdv1.Resolution_RESOLUTION_RETRY},
		},
		{"retry what is not in doubt", "", "run resolve " + runID + "/c9-9 --as retry", exitConflict, nil},
		{
			"resolve", "", "run resolve " + runID + "/c2-1 --as succeeded --result done --comment looked", 0,
			&loopdv1.ResolveToolCallRequest{Name: fullCall, Resolution: loopdv1.Resolution_RESOLUTION_SUCCEEDED, Result: "done", Comment: "looked"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.server.run = waitingRun()
			term.server.call = &loopdv1.ToolCall{Name: fullCall, Tool: "issue_refund", State: loopdv1.ToolCallState_TOOL_CALL_STATE_APPROVED}
			term.server.calls = doubts()
			term.stdin = test.stdin
			term.wantCode(t, test.code, term.loopd(strings.Fields(test.line)...))
			term.wantRequest(t, test.want)
			if want := fullCall + " issue_refund APPROVED\n"; test.code == 0 && term.stdout.String() != want {
				t.Errorf("stdout %q, want %q", term.stdout.String(), want)
			}
		})
	}
}

// journal numbers bodies from 1 and spaces them one second apart. It gives what
// belongs to an iteration its number, as the server does.
func journal(t *testing.T, bodies ...loop.Body) []*loopdv1.StreamEventsResponse {
	t.Helper()
	var out []*loopdv1.StreamEventsResponse
	iteration := int32(0)
	for i, b := range bodies {
		kind, raw, err := loop.EncodeBody(b)
		if err != nil {
			t.Fatal(err)
		}
		members := map[string]any{}
		if err := json.Unmarshal(raw, &members); err != nil {
			t.Fatal(err)
		}
		view, err := structpb.NewStruct(members)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := b.(loop.ModelAnswered); ok {
			iteration++
		}
		out = append(out, &loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_Event{Event: &loopdv1.Event{
			Seq: int64(i + 1), Kind: kind, CreateTime: stamp(time.Duration(i) * time.Second), Iteration: iteration, Body: view,
		}}})
	}
	return out
}

// asks is an answer that calls a tool.
func asks(id string) loop.ModelAnswered {
	call := loop.ToolCall{ID: id, Name: "get_order_status", Args: `{"order":"ORD-4892"}`}
	return loop.ModelAnswered{
		Message: loop.Message{Role: loop.RoleAssistant, Parts: []loop.Part{{Kind: loop.PartToolCall, Call: &call}}},
		Finish:  loop.FinishToolCalls, Cost: loop.Cost{Input: 4 * loop.MilliUSD, Output: 2 * loop.MilliUSD},
	}
}

// incident is the journal of stoppedRun.
func incident(t *testing.T) []*loopdv1.StreamEventsResponse {
	return journal(t,
		loop.Created{}, loop.Claimed{Attempt: 1, Worker: "w1"},
		loop.ModelStarted{Call: 1}, asks("c1-1"), loop.CallBegun{CallID: "c1-1"},
		loop.CallFinished{CallID: "c1-1", Outcome: loop.OutcomeRetryable},
		loop.ModelStarted{Call: 2}, loop.ModelFailed{Call: 2, Class: loop.ErrorServer, Message: "overloaded"},
		loop.Claimed{Attempt: 2, Worker: "w2", Recovered: true},
		loop.ModelStarted{Call: 3}, asks("c3-1"), loop.CallFinished{CallID: "c3-1", Outcome: loop.OutcomeRetryable},
		loop.Suspended{Reason: loop.WaitApproval}, loop.Claimed{Attempt: 3, Worker: "w1"},
		loop.ModelStarted{Call: 4}, asks("c4-1"), loop.CallRefused{CallID: "c4-1", Outcome: loop.OutcomeDenied},
		loop.Tripped{Guard: "repeat_call", Verdict: loop.VerdictStop, Message: "the same result 3 times"},
		loop.Finished{State: loop.StateStopped},
	)
}

type sender = grpc.ServerStreamingServer[loopdv1.StreamEventsResponse]

// sends streams messages and then ends with err; without err it says End first.
func sends(messages []*loopdv1.StreamEventsResponse, err error) func(sender) error {
	return func(s sender) error {
		first := &loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_Heartbeat{Heartbeat: &loopdv1.Heartbeat{}}}
		for _, m := range append([]*loopdv1.StreamEventsResponse{first}, messages...) {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		return s.Send(&loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_End{End: &loopdv1.End{}}})
	}
}

// A watch goes on where a broken stream ended, and shows each event once also
// when the server repeats some.
func TestRunWatchResumes(t *testing.T) {
	t.Parallel()
	term := setup(t)
	events := incident(t)
	term.server.run = stoppedRun()
	term.server.streams = []func(sender) error{
		sends(events[:5], status.Error(codes.Unavailable, "drain")),
		sends(events[3:11], status.Error(codes.Unavailable, "drain")),
		sends(events[11:], nil),
	}
	term.wantCode(t, exitStopped, term.loopd("run", "watch", runID))
	if diff := cmp.Diff([]int64{0, 5, 11}, term.server.after); diff != "" {
		t.Errorf("asked for events after (-want +got):\n%s", diff)
	}
	golden(t, "watch.txt", term.stdout.String())
}

func TestRunWatchJSON(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = stoppedRun()
	term.server.streams = []func(sender) error{sends(incident(t)[:2], nil)}
	term.wantCode(t, exitStopped, term.loopd("run", "watch", runID, "-o", "json"))
	golden(t, "watch.jsonl", term.stdout.String())
}

func TestRunWatchGivesUp(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = stoppedRun()
	term.wantCode(t, exitOther, term.loopd("run", "watch", runID))
	if got := len(term.server.after); got != 4 {
		t.Errorf("%d streams, want the first and 3 tries", got)
	}
}

// A stream that falls silent is given up and asked for again.
func TestRunWatchLeavesSilence(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.client.silence = 50 * time.Millisecond
	term.server.run = stoppedRun()
	term.server.streams = []func(sender) error{
		func(s sender) error { <-s.Context().Done(); return s.Context().Err() },
		sends(incident(t), nil),
	}
	term.wantCode(t, exitStopped, term.loopd("run", "watch", runID))
}

func TestRunStartWaits(t *testing.T) {
	t.Parallel()
	for state, want := range map[loopdv1.RunState]int{
		loopdv1.RunState_RUN_STATE_SUCCEEDED: 0, loopdv1.RunState_RUN_STATE_STOPPED: 3,
		loopdv1.RunState_RUN_STATE_FAILED: 9, loopdv1.RunState_RUN_STATE_CANCELLED: 10,
	} {
		t.Run(state.String(), func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.server.run = stoppedRun()
			term.server.run.State = state
			term.server.streams = []func(sender) error{sends(incident(t), nil)}
			term.wantCode(t, want, term.loopd("run", "start", "--agent", "support", "--input", "x", "--wait", "-o", "json"))
			if out := term.stdout.String(); !json.Valid([]byte(out)) {
				t.Errorf("standard output is not one JSON document:\n%s", out)
			}
			if !strings.Contains(term.stderr.String(), "  1/12  0.006 of 1 USD") {
				t.Errorf("no progress on standard error:\n%s", term.stderr.String())
			}
		})
	}
}

func TestRunStartDoesNotWaitForPeople(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = waitingRun()
	hangs := func(s sender) error {
		if err := sends(incident(t)[:13], nil)(&withoutEnd{s}); err != nil {
			return err
		}
		<-s.Context().Done()
		return s.Context().Err()
	}
	term.server.streams = []func(sender) error{hangs}
	term.wantCode(t, exitApproval, term.loopd("run", "watch", runID, "--no-wait-approval"))
}

// withoutEnd leaves the End out.
type withoutEnd struct{ sender }

func (s *withoutEnd) Send(m *loopdv1.StreamEventsResponse) error {
	if m.GetEnd() != nil {
		return nil
	}
	return s.sender.Send(m)
}

func TestRunWatchTimeout(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = waitingRun()
	hang := func(s sender) error { <-s.Context().Done(); return s.Context().Err() }
	term.server.streams = []func(sender) error{hang}
	term.wantCode(t, exitTimeout, term.loopd("run", "watch", runID, "--timeout", "100ms"))
}

func TestRunWatchInterrupted(t *testing.T) {
	t.Parallel()
	term := setup(t)
	ctx, interrupt := context.WithCancel(t.Context())
	term.ctx = ctx
	term.server.run = waitingRun()
	term.server.streams = []func(sender) error{func(s sender) error {
		interrupt()
		<-s.Context().Done()
		return s.Context().Err()
	}}
	term.wantCode(t, exitInterrupted, term.loopd("run", "watch", runID))
	if want := "detached: the run goes on. To cancel it: loopd run cancel " + fullRun + "\n"; term.stderr.String() != want {
		t.Errorf("stderr %q, want %q", term.stderr.String(), want)
	}
}
