package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// heldRun is paused by guards: two that want a raise, the second of which would take
// an input.
func heldRun() *loopdv1.Run {
	run := waitingRun()
	run.Phase, run.WaitUntil = "waiting", stamp(23*time.Hour)
	run.RequiredActions = []*loopdv1.RequiredAction{
		{
			Kind: loopdv1.RequiredAction_KIND_RAISE, Guard: "cost", LimitField: "max_cost_usd", Observed: "0.98 USD spent",
			Reason: "the next model call could pass the budget", Deadline: stamp(23 * time.Hour),
		},
		{
			Kind: loopdv1.RequiredAction_KIND_RAISE, Guard: "deadline", LimitField: "deadline", Observed: "9m31s",
			Reason: "the run's active time is used up", Deadline: stamp(23 * time.Hour), TakesInput: true,
		},
	}
	run.Limits.Deadline = durationpb.New(10 * time.Minute)
	return run
}

func TestRunPause(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = &loopdv1.Run{Name: fullRun, State: loopdv1.RunState_RUN_STATE_RUNNING}
	term.wantCode(t, 0, term.loopd("run", "pause", runID, "--reason", "let me look"))
	term.wantRequest(t, &loopdv1.PauseRunRequest{Name: fullRun, Reason: "let me look"})
	if term.stdout.String() != fullRun+" RUNNING\n" || !strings.Contains(term.stderr.String(), "when what is under way has ended") {
		t.Errorf("stdout %q, stderr %q", term.stdout.String(), term.stderr.String())
	}
	term.server.run.State = loopdv1.RunState_RUN_STATE_PAUSED
	term.wantCode(t, 0, term.loopd("run", "pause", runID))
	if term.stdout.String() != fullRun+" PAUSED\n" || term.stderr.Len() > 0 {
		t.Errorf("stdout %q, stderr %q", term.stdout.String(), term.stderr.String())
	}
}

func TestRunResume(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = &loopdv1.Run{Name: fullRun, State: loopdv1.RunState_RUN_STATE_QUEUED}
	term.stdin = "Ask the warehouse."
	term.wantCode(t, 0, term.loopd("run", "resume", runID, "--raise", "max_cost_usd=2.50", "--raise", "deadline=20m", "--raise", "max_iterations=18",
		"--raise", "max_total_tokens=900000", "--raise", "context_stop_at=0.9", "--raise", "no_progress_stop=true", "--input", "-", "--reason", "worth it", "--request-id", "once"))
	term.wantRequest(t, &loopdv1.ResumeRunRequest{
		Name: fullRun, Input: "Ask the warehouse.", Reason: "worth it", RequestId: "once",
		Limits: &loopdv1.Limits{
			MaxCostUsd: new("2.50"), Deadline: durationpb.New(20 * time.Minute), MaxIterations: proto.Int32(18),
			MaxTotalTokens: proto.Int64(900_000), ContextStopAt: new(0.9), NoProgressStop: new(true),
		},
	})
	if term.stdout.String() != fullRun+" QUEUED\n" {
		t.Errorf("stdout %q", term.stdout.String())
	}
	term.wantCode(t, 0, term.loopd("run", "resume", runID))
	term.wantRequest(t, &loopdv1.ResumeRunRequest{Name: fullRun})

	term.server.err = refusal(t, codes.FailedPrecondition, "guard cost paused the run: raise max_cost_usd above the 1 in force", "LIMIT_NOT_RAISED")
	term.wantCode(t, exitConflict, term.loopd("run", "resume", runID))
	if want := "loopd: guard cost paused the run: raise max_cost_usd above the 1 in force (LIMIT_NOT_RAISED)\n"; term.stderr.String() != want {
		t.Errorf("stderr %q, want %q", term.stderr.String(), want)
	}
}

// A run that waits for a raise is shown with the command that raises it, which loopd
// itself understands.
func TestRunShowRaise(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = heldRun()
	term.wantCode(t, 0, term.loopd("run", "show", runID))
	golden(t, "show_raise.txt", term.stdout.String())
	for line := range strings.Lines(term.stdout.String()) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "loopd" || words[2] != "resume" {
			continue
		}
		term.wantCode(t, 0, term.loopd(words[1:]...))
		term.wantRequest(t, &loopdv1.ResumeRunRequest{Name: fullRun, Limits: &loopdv1.Limits{
			MaxCostUsd: new("1.5"), Deadline: durationpb.New(15 * time.Minute),
		}})
		return
	}
	t.Error("no command raises the limits")
}

func TestRunShowPaused(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = waitingRun()
	term.server.run.State, term.server.run.RequiredActions = loopdv1.RunState_RUN_STATE_PAUSED, nil
	term.wantCode(t, 0, term.loopd("run", "show", runID))
	if !strings.HasSuffix(term.stdout.String(), "Next\n  loopd run resume "+fullRun+"\n") {
		t.Errorf("stdout %s", term.stdout.String())
	}
}

func TestSuggestions(t *testing.T) {
	t.Parallel()
	for field, c := range map[string]struct{ inForce, want string }{
		"max_iterations": {"12", "18"}, "max_tool_calls": {"0", "1"}, "max_cost_usd": {"0.2", "0.3"}, "deadline": {"10m0s", "15m0s"},
		"max_total_tokens": {"500000", "750000"}, "context_stop_at": {"0.8", "0.95"}, "of_the_future": {"", "VALUE"}, "max_cycles": {"", "VALUE"},
	} {
		if got := suggest(field, c.inForce); got != c.want {
			t.Errorf("%s above %q: %q, want %q", field, c.inForce, got, c.want)
		}
	}
}

// A watch tells of pauses, how to go on, and what was raised.
func TestRunWatchPauses(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = stoppedRun()
	limits := loop.Defaults()
	raised := limits
	raised.Cost, raised.Iterations = 2*loop.OneUSD, 15
	term.server.streams = []func(sender) error{sends(journal(t,
		loop.Created{Spec: loop.Spec{Limits: limits}}, loop.Claimed{Attempt: 1, Worker: "w1"},
		loop.PauseRequested{By: "ann", Reason: "let me look"}, loop.Suspended{Reason: loop.WaitPaused},
		loop.Claimed{Attempt: 2, Worker: "w1"}, loop.Resumed{By: "ann"},
		loop.ModelStarted{Call: 1}, asks("c1-1"), loop.CallFinished{CallID: "c1-1", Outcome: loop.OutcomeOK},
		loop.Tripped{Guard: "cost", Verdict: loop.VerdictPause, Message: "no money left", Field: "max_cost_usd"}, loop.Suspended{Reason: loop.WaitRaise},
		loop.Claimed{Attempt: 3, Worker: "w1"}, loop.Resumed{By: "ben", Reason: "worth it", Limits: &raised},
		loop.ModelStarted{Call: 2}, asks("c2-1"), loop.CallFinished{CallID: "c2-1", Outcome: loop.OutcomeOK},
		loop.Tripped{Guard: "checkpoint", Verdict: loop.VerdictPause, Message: "it does not add up"}, loop.Suspended{Reason: loop.WaitRaise},
		loop.Claimed{Attempt: 4, Worker: "w1"}, loop.Resumed{Input: "Count again."},
		loop.Finished{State: loop.StateStopped},
	), nil)}
	term.wantCode(t, exitStopped, term.loopd("run", "watch", runID))
	progress, _, _ := strings.Cut(term.stdout.String(), "\n\n")
	golden(t, "watch_pause.txt", progress+"\n")
}

// Whoever does not wait with a run leaves it when its limit must be raised.
func TestRunWatchLeavesARaise(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = heldRun()
	events := journal(t, loop.Created{}, loop.Claimed{Attempt: 1, Worker: "w1"}, loop.Suspended{Reason: loop.WaitRaise})
	term.server.streams = []func(sender) error{func(s sender) error {
		if err := sends(events, nil)(&withoutEnd{s}); err != nil {
			return err
		}
		<-s.Context().Done()
		return s.Context().Err()
	}}
	term.wantCode(t, exitApproval, term.loopd("run", "watch", runID, "--no-wait-approval"))
	if !strings.Contains(term.stdout.String(), "--raise max_cost_usd=1.5") {
		t.Errorf("stdout %s", term.stdout.String())
	}
}
