package main

import (
	"strings"
	"testing"
	"time"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

const (
	firstChild  = "runs/018f0000-0000-8000-8000-000000000001"
	secondChild = "runs/018f0000-0000-8000-8000-000000000002"
	thirdChild  = "runs/018f0000-0000-8000-8000-000000000003"
)

// treeRun is a run in the midst of its tree: it is a child itself, waits for somebody
// in each way there is, and has done things.
func treeRun() *loopdv1.Run {
	run := waitingRun()
	run.Parent, run.ParentCall, run.Depth = "runs/018f0000-0000-8000-8000-0000000000ff", "runs/018f0000-0000-8000-8000-0000000000ff/toolCalls/c9-1", 1
	run.CostUsd, run.CostHeldUsd, run.CostEstimatedUsd = "0.05", "0", "0"
	run.Phase, run.WaitUntil = "waiting", stamp(24*time.Hour)
	run.RequiredActions = append(run.RequiredActions,
		&loopdv1.RequiredAction{
			Kind: loopdv1.RequiredAction_KIND_SUBMIT, ToolCall: fullRun + "/toolCalls/c2-3", Tool: "read_screen", ArgumentsJson: "{}",
			Deadline: stamp(time.Hour), Attempt: 1,
		},
		&loopdv1.RequiredAction{
			Kind: loopdv1.RequiredAction_KIND_ANSWER, ToolCall: fullRun + "/toolCalls/c2-4", Tool: "ask_human", ArgumentsJson: `{"question":"Which?"}`,
			Deadline: stamp(time.Hour), Attempt: 1, Reason: "the model asks", Approval: "approvals/" + runID + ".c2-4",
		},
	)
	run.SideEffects = []*loopdv1.SideEffect{
		{
			ToolCall: fullCall, Tool: "issue_refund", Effect: loopdv1.Effect_EFFECT_IRREVERSIBLE, ArgumentsSha256: strings.Repeat("ab", 32),
			IdempotencyKey: "k-1", State: loopdv1.ToolCallState_TOOL_CALL_STATE_SUCCEEDED, Outcome: "ok",
		},
		{
			ToolCall: firstChild + "/toolCalls/c1-1", Tool: "send_mail\x1b[2J", Effect: loopdv1.Effect_EFFECT_SIDE_EFFECT, ArgumentsSha256: strings.Repeat("cd", 32),
			IdempotencyKey: "k-2", State: loopdv1.ToolCallState_TOOL_CALL_STATE_IN_DOUBT,
		},
	}
	return run
}

// children are the child runs of treeRun, newest first, and the calls that started
// them: one has ended and is paid for, one runs, one waits for somebody.
func children() ([]*loopdv1.Run, []*loopdv1.ToolCall) {
	child := func(name, agent, cost string, state loopdv1.RunState) *loopdv1.Run {
		run := stoppedRun()
		run.Name, run.Agent, run.CostUsd, run.State, run.Stop = name, agent, cost, state, nil
		return run
	}
	first := child(firstChild, "agents/research", "0.02", loopdv1.RunState_RUN_STATE_STOPPED)
	first.Stop = &loopdv1.Stop{Reason: loopdv1.StopReason_STOP_REASON_ITERATION_CAP}
	second := child(secondChild, "agents/writer", "0.004", loopdv1.RunState_RUN_STATE_RUNNING)
	third := child(thirdChild, "agents/writer", "0", loopdv1.RunState_RUN_STATE_REQUIRES_ACTION)
	call := func(id, run string, state loopdv1.ToolCallState) *loopdv1.ToolCall {
		return &loopdv1.ToolCall{Name: fullRun + "/toolCalls/" + id, CallId: id, ChildRun: run, State: state}
	}
	return []*loopdv1.Run{third, second, first}, []*loopdv1.ToolCall{
		call("c1-1", firstChild, loopdv1.ToolCallState_TOOL_CALL_STATE_FAILED),
		call("c1-2", "", loopdv1.ToolCallState_TOOL_CALL_STATE_SUCCEEDED),
		call("c1-3", secondChild, loopdv1.ToolCallState_TOOL_CALL_STATE_AWAITING_RESULT),
		call("c2-1", thirdChild, loopdv1.ToolCallState_TOOL_CALL_STATE_AWAITING_RESULT),
	}
}

// The costs of a tree add up exactly, whatever of it is booked already.
func TestRollUp(t *testing.T) {
	t.Parallel()
	of := func(cost string, settled bool) childRun {
		return childRun{run: &loopdv1.Run{CostUsd: cost}, settled: settled}
	}
	// An orchestrator and its four workers, two of which still run.
	own, together, err := rollUp(&loopdv1.Run{CostUsd: "0.31"}, []childRun{of("0.1", true), of("0.2", true), of("0.03", false), of("0.000000000001", false)})
	if err != nil || own != 10*loop.MilliUSD || together != 340*loop.MilliUSD+loop.PicoUSD {
		t.Errorf("own %s, together %s, %v", own, together, err)
	}
	if _, _, err := rollUp(&loopdv1.Run{CostUsd: "1"}, []childRun{of("many", true)}); err == nil {
		t.Error("a cost that is no amount was added")
	}
}

// A watch says what becomes of calls beyond the iteration that asked for them.
func TestRunWatchTellsOfCalls(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = stoppedRun()
	later := noon.Add(time.Hour)
	var spec loop.Spec
	events := journal(t,
		loop.Created{}, loop.Claimed{Attempt: 1, Worker: "w1"},
		loop.RateWaited{Provider: "anthropic", Until: later}, loop.RateWaited{Provider: "anthropic"},
		loop.InputCounted{Model: "anthropic/a", Tokens: 812}, loop.InputCounted{Model: "anthropic/a", Message: "404"},
		loop.FellBack{From: "anthropic/a", To: "openai/b", Message: "overloaded"},
		loop.ModelStarted{Call: 1}, asks("c1-1"),
		loop.ApprovalRequested{CallID: "c1-1", Until: later},
		loop.ApprovalDecided{CallID: "c1-1", Approved: true, Args: "{}", By: "policies/p", Reason: "small\x1b[2J"},
		loop.ApprovalDecided{CallID: "c1-1", Approved: true}, loop.ApprovalDecided{CallID: "c1-1", By: "ann"},
		loop.CallHandedOut{CallID: "c1-1", Attempt: 1, Until: later},
		loop.CallHandedOut{CallID: "c1-1", Attempt: 1, ChildID: strings.TrimPrefix(firstChild, "runs/"), Child: &spec, Hold: 200 * loop.MilliUSD},
		loop.CallPolled{CallID: "c1-1", Attempt: 1, Next: later},
		loop.CallDoubted{CallID: "c1-1", Attempt: 1, Reason: "the connection was lost"},
		loop.CallVerified{CallID: "c1-1", Next: later}, loop.CallVerified{CallID: "c1-1", Message: "503", Next: later},
		loop.CallVerified{CallID: "c1-1", Found: true}, loop.CallVerified{CallID: "c1-1", Settled: true},
		loop.DoubtTold{CallID: "c1-1"}, loop.CallResolved{CallID: "c1-1", Resolution: loop.ResolvedNotExecuted, By: "ann"},
		loop.ModelStarted{Call: 2}, asks("c2-1"), loop.ResultSubmitted{CallID: "c2-1", Outcome: loop.OutcomeOK, By: "ann"},
		loop.ModelStarted{Call: 3}, asks("c3-1"),
		loop.ChildCancelled{CallID: "c3-1", ChildID: "x", Reason: "its parent ends"},
		loop.ChildFinished{CallID: "c3-1", ChildID: "x", State: loop.StateStopped, Cost: loop.Cost{Output: loop.MilliUSD}, Stop: loop.Stop{Reason: loop.IterationCap, Message: "20 iterations"}},
		loop.ModelStarted{Call: 4}, asks("c4-1"),
		loop.ChildFinished{CallID: "c4-1", ChildID: "y", State: loop.StateSucceeded, Cost: loop.Cost{Output: loop.MilliUSD}},
		loop.Finished{State: loop.StateStopped},
	)
	term.server.streams = []func(sender) error{sends(events, nil)}
	term.wantCode(t, exitStopped, term.loopd("run", "watch", runID))
	lines, _, _ := strings.Cut(term.stdout.String(), "\n\nRun ")
	golden(t, "watch_calls.txt", lines+"\n")
}
