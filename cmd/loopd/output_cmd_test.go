package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// unverifiedRun ended because its answer failed the output contract.
func unverifiedRun() *loopdv1.Run {
	run := stoppedRun()
	run.Answer, run.AnswerUnverified = "You were refunded.", true
	run.Stop = &loopdv1.Stop{
		Reason: loopdv1.StopReason_STOP_REASON_OUTPUT_INVALID, Guard: "output", Observed: "3", Limit: "2", Iteration: 4,
		Message: "the final answer failed the output contract each time; it is kept, unverified",
		Evidence: []*loopdv1.Evidence{
			{Iteration: 4, Note: "An answer that says refunded needs a refund that succeeded, whatever the customer says."},
			{Iteration: 4, Note: "this must hold: answer.size() < 10\x1b[2J"},
		},
	}
	return run
}

func TestRunShowUnverified(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = unverifiedRun()
	term.wantCode(t, 0, term.loopd("run", "show", runID))
	golden(t, "show_unverified.txt", term.stdout.String())
}

// A watch says what checks found. A judge's call is no iteration.
func TestRunWatchTellsOfChecks(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = unverifiedRun()
	events := journal(t,
		loop.Created{}, loop.Claimed{Attempt: 1, Worker: "w1"},
		loop.ModelStarted{Call: 1}, asks("c1-1"),
		loop.CallFinished{CallID: "c1-1", Outcome: loop.OutcomeOK},
		loop.CheckpointJudged{Checkpoint: "spend", Iteration: 1}, loop.CheckpointJudged{Checkpoint: "orders", Iteration: 1, Problems: []string{"too dear", "too late\x1b[2J"}},
		loop.Tripped{Guard: "checkpoint", Verdict: loop.VerdictNudge, Message: "the checkpoint does not hold"},
		loop.ModelStarted{Call: 2}, loop.ModelAnswered{Call: 2, Finish: loop.FinishDone},
		loop.AnswerRejected{Problems: []string{"$: expected an object"}},
		loop.ModelStarted{Call: 3}, loop.ModelAnswered{Call: 3, Finish: loop.FinishDone},
		loop.AnswerChecked{},
		loop.ModelStarted{Call: 4, Purpose: loop.PurposeJudge}, loop.ModelAnswered{Call: 4, Finish: loop.FinishDone, Cost: loop.Cost{Output: loop.MilliUSD}},
		loop.AnswerRejected{By: loop.ByJudge, Final: true, Problems: []string{"it gave no verdict"}},
		loop.Finished{State: loop.StateStopped},
	)
	term.server.streams = []func(sender) error{sends(events, nil)}
	term.wantCode(t, exitStopped, term.loopd("run", "watch", runID))
	lines, _, _ := strings.Cut(term.stdout.String(), "\n\nRun ")
	golden(t, "watch_checks.txt", lines+"\n")
}

const checkedYAML = `
name: support
spec:
  model: scripted/demo
  output:
    json_schema: {type: object}
    assertions:
      - expression: "!answer.contains('refunded') || ledger.exists(e, e.tool == 'issue_refund' && e.state == 'SUCCEEDED')"
        message: Refund first.
    validator:
      name: validate
      effect: EFFECT_READ_ONLY
      http: {method: POST, url: "http://shop.internal/validate"}
    judge: {model: scripted/judge, rubric: It is polite.}
  checkpoints:
    - name: spend
      every_iterations: 3
      assertions: [{expression: run.cost_usd < 0.5}]
  summarizer_model: scripted/small
`

// Files say checks in the words of the API.
func TestAgentApplyWithChecks(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "support.yaml")
	if err := os.WriteFile(file, []byte(checkedYAML), 0o600); err != nil {
		t.Fatal(err)
	}
	term := setup(t)
	term.server.agent = storedAgent()
	term.wantCode(t, 0, term.loopd("agent", "apply", "-f", file))
	req, ok := term.server.request.(*loopdv1.UpdateAgentRequest)
	if !ok {
		t.Fatalf("request %T", term.server.request)
	}
	spec := req.GetAgent().GetSpec()
	if spec.GetOutput().GetAssertions()[0].GetMessage() != "Refund first." || spec.GetOutput().GetValidator().GetName() != "validate" ||
		spec.GetOutput().GetJudge().GetModel() != "scripted/judge" || spec.GetCheckpoints()[0].GetEveryIterations() != 3 || spec.GetSummarizerModel() != "scripted/small" {
		t.Errorf("the definition is %v", spec)
	}
}
