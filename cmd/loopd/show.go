package main

import (
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// showRun explains a run to a person: where it stands, what it spent of what it
// may, why it ended with the proof, what it and its child runs did, and what to do
// next.
func showRun(w io.Writer, run *loopdv1.Run, children []childRun) error {
	if err := table(w, headRows(run)); err != nil {
		return err
	}
	if err := showEvidence(w, run.GetStop().GetEvidence()); err != nil {
		return err
	}
	if err := showChildren(w, run, children); err != nil {
		return err
	}
	if err := showSideEffects(w, run); err != nil {
		return err
	}
	if run.GetAnswer() != "" {
		fmt.Fprintf(w, "\n%s\n%s\n", answerTitle(run), indent(run.GetAnswer()))
	}
	if next := nextMoves(run, children); len(next) > 0 {
		fmt.Fprintf(w, "\nNext\n")
		for _, move := range next {
			fmt.Fprintf(w, "  %s\n", oneLine(move))
		}
	}
	return nil
}

// answerTitle says how far the answer can be relied on.
func answerTitle(run *loopdv1.Run) string {
	switch {
	case run.GetAnswerUnverified():
		return "Answer, unverified: it did not pass the agent's output contract"
	case run.GetAnswerPartial():
		return "Partial answer, not accepted"
	}
	return "Answer"
}

// headRows are a run at a glance.
func headRows(run *loopdv1.Run) [][]string {
	state := stateOf(run)
	if guard := run.GetStop().GetGuard(); guard != "" {
		state += " by guard " + guard
	}
	rows := [][]string{
		{"Run", run.GetName()},
		{"State", state},
		{"Agent", fmt.Sprintf("%s, version %d", run.GetAgent(), run.GetAgentVersion())},
	}
	if run.GetParent() != "" {
		rows = append(rows, []string{"Parent", fmt.Sprintf("%s, call %s", run.GetParent(), path.Base(run.GetParentCall()))})
	}
	rows = append(rows, []string{"Cost", spent(run)}, []string{"Used", used(run)}, []string{"Time", span(run)})
	if run.GetWaitUntil() != nil {
		rows = append(rows, []string{"Waits", fmt.Sprintf("phase %s, until %s", dash(run.GetPhase()), clock(run.GetWaitUntil()))})
	}
	if stop := run.GetStop(); stop != nil {
		rows = append(rows, []string{"Why", word(stop.GetReason(), "STOP_REASON_") + ": " + stop.GetMessage()})
		if stop.GetObserved() != "" {
			rows = append(rows, []string{"Observed", stop.GetObserved()}, []string{"Limit", stop.GetLimit()})
		}
	}
	return rows
}

func spent(run *loopdv1.Run) string {
	text := run.GetCostUsd() + " of " + usd(run.GetLimits().GetMaxCostUsd())
	if run.GetCostEstimatedUsd() != "" && run.GetCostEstimatedUsd() != "0" {
		text += ", of which " + usd(run.GetCostEstimatedUsd()) + " at its upper bound: usage was not reported"
	}
	if run.GetCostHeldUsd() != "" && run.GetCostHeldUsd() != "0" {
		text += ", and " + usd(run.GetCostHeldUsd()) + " held for the model call in flight"
	}
	return text
}

func used(run *loopdv1.Run) string {
	limits, usage := run.GetLimits(), run.GetUsage()
	tokens := usage.GetInputUncachedTokens() + usage.GetCacheReadTokens() + usage.GetCacheWriteTokens() +
		usage.GetOutputTokens() + usage.GetReasoningTokens()
	return fmt.Sprintf("%d of %s, %d of %s, %d of %d tokens",
		run.GetIterations(), count(limits.GetMaxIterations(), "iteration"),
		run.GetToolCalls(), count(limits.GetMaxToolCalls(), "tool call"),
		tokens, limits.GetMaxTotalTokens())
}

func span(run *loopdv1.Run) string {
	text := "created " + clock(run.GetCreateTime())
	if run.GetEndTime() != nil {
		took := run.GetEndTime().AsTime().Sub(run.GetCreateTime().AsTime())
		text += ", ended " + clock(run.GetEndTime()) + " after " + took.Round(time.Millisecond).String()
	}
	return text
}

// showEvidence writes the proof of a trip: the calls side by side, and whether
// they and their results are the same as the ones before.
func showEvidence(w io.Writer, evidence []*loopdv1.Evidence) error {
	if len(evidence) == 0 {
		return nil
	}
	if ofChecks(evidence) {
		fmt.Fprintln(w, "\nProblems")
		for _, e := range evidence {
			fmt.Fprintf(w, "  - %s\n", oneLine(e.GetNote()))
		}
		return nil
	}
	fmt.Fprintln(w, "\nEvidence")
	rows := [][]string{{"ITERATION", "CALL", "TOOL", "ARGUMENTS", "RESULT", "SAME AS BEFORE", "NOTE"}}
	var before *loopdv1.Evidence
	for _, e := range evidence {
		rows = append(rows, []string{
			strconv.Itoa(int(e.GetIteration())), dash(e.GetCallId()), dash(e.GetTool()),
			dash(cut(e.GetArguments(), 40)), dash(cut(e.GetResult(), 48)), same(before, e), dash(cut(e.GetNote(), 60)),
		})
		before = e
	}
	return indentedTable(w, "  ", rows)
}

// ofChecks reports whether the proof is what checks found: words, and no calls.
func ofChecks(evidence []*loopdv1.Evidence) bool {
	for _, e := range evidence {
		if e.GetTool() != "" || e.GetCallId() != "" {
			return false
		}
	}
	return true
}

// same says what two lines of evidence have in common, by their fingerprints.
func same(before, e *loopdv1.Evidence) string {
	var equal []string
	if h := e.GetArgumentsHash(); h != "" && h == before.GetArgumentsHash() {
		equal = append(equal, "arguments")
	}
	if h := e.GetResultHash(); h != "" && h == before.GetResultHash() {
		equal = append(equal, "result")
	}
	return dash(strings.Join(equal, ", "))
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// nextMoves lists what a person can do about a run as it stands.
func nextMoves(run *loopdv1.Run, children []childRun) []string {
	var moves []string
	for _, action := range run.GetRequiredActions() {
		if action.GetKind() != loopdv1.RequiredAction_KIND_RAISE {
			moves = append(moves, answerMoves(action)...)
		}
	}
	moves = append(moves, raiseMoves(run)...)
	if run.GetState() == loopdv1.RunState_RUN_STATE_PAUSED {
		moves = append(moves, "loopd run resume "+run.GetName())
	}
	for _, child := range children {
		if child.run.GetState() == loopdv1.RunState_RUN_STATE_REQUIRES_ACTION {
			moves = append(moves, "A child run waits for somebody:", "loopd run show "+child.run.GetName())
		}
	}
	if advice := advices[run.GetStop().GetReason()]; advice != "" {
		moves = append(moves, advice)
	}
	if run.GetStop().GetGuard() != "" {
		moves = append(moves, "loopd guard explain "+run.GetName())
	}
	if !run.GetDone() && len(moves) == 0 {
		moves = append(moves, "loopd run watch "+run.GetName())
	}
	return moves
}

// answerMoves say what one action asks for, and the commands that give it.
func answerMoves(action *loopdv1.RequiredAction) []string {
	call, approval := shortCall(action.GetToolCall()), approvalID(action.GetToolCall())
	why := ""
	if action.GetReason() != "" {
		why = " (" + action.GetReason() + ")"
	}
	about := fmt.Sprintf("%s %s%s, until %s:", action.GetTool(), cut(action.GetArgumentsJson(), 80), why, clock(action.GetDeadline()))
	switch action.GetKind() {
	case loopdv1.RequiredAction_KIND_APPROVE:
		return []string{"Decide on " + about, "loopd approval approve " + approval, "loopd approval deny " + approval + " --reason WHY"}
	case loopdv1.RequiredAction_KIND_RESOLVE:
		return []string{"Find out what became of " + about, "loopd run resolve " + call + " --as succeeded|not-executed|retry"}
	case loopdv1.RequiredAction_KIND_SUBMIT:
		return []string{
			"Run " + about, "loopd run submit " + call + " --result TEXT|@FILE",
			"loopd run submit " + call + " --failed --result WHY",
		}
	case loopdv1.RequiredAction_KIND_ANSWER:
		return []string{"Answer " + about, "loopd approval answer " + approval}
	default:
		return []string{"Update this loopd to act on " + about} // of a newer server
	}
}

// advices say what to do about a run that ended for a reason. A run that
// completed or was cancelled needs none.
var advices = map[loopdv1.StopReason]string{
	loopdv1.StopReason_STOP_REASON_ITERATION_CAP:        "Read the transcript: if the run was getting somewhere, raise limits.max_iterations; if not, narrow the instructions.",
	loopdv1.StopReason_STOP_REASON_MODEL_CALL_CAP:       "Look for model calls that failed and were repeated; raise limits.max_model_calls only if they were worth it.",
	loopdv1.StopReason_STOP_REASON_TOKEN_BUDGET:         "Cap tool results (max_result_bytes) before raising limits.max_total_tokens or limits.max_output_tokens.",
	loopdv1.StopReason_STOP_REASON_CONTEXT_WINDOW:       "The next request does not fit the model: cap tool results (max_result_bytes) or choose a model with a larger window.",
	loopdv1.StopReason_STOP_REASON_CONTEXT_ROT:          "The transcript filled the window: cap tool results (max_result_bytes) or cut the work into several runs.",
	loopdv1.StopReason_STOP_REASON_COMPACTION_STUCK:     "The transcript filled the window and could not be made shorter: `loopd run watch` says why. Cap tool results (max_result_bytes), give the agent BUILTIN_READ_RESULT, or cut the work into several runs.",
	loopdv1.StopReason_STOP_REASON_COST_BUDGET:          "Read where the money went with `loopd run watch`; raise limits.max_cost_usd only if the run was getting somewhere.",
	loopdv1.StopReason_STOP_REASON_COST_UNPRICED:        "Add the model's price to the price book: without it no budget can hold.",
	loopdv1.StopReason_STOP_REASON_DEADLINE:             "Look for slow tools first, then raise limits.deadline.",
	loopdv1.StopReason_STOP_REASON_WALL_TIME:            "The run waited too long, for people or for its queue: decide sooner, or raise limits.max_wall_time.",
	loopdv1.StopReason_STOP_REASON_TOOL_CALL_CAP:        "See which tool was called so often; raise limits.max_tool_calls only if the calls differ.",
	loopdv1.StopReason_STOP_REASON_REPEAT_CALL:          "Fix the tool that keeps giving this result. If asking again is its purpose, mark it pollable.",
	loopdv1.StopReason_STOP_REASON_CYCLE:                "The agent goes in circles between the calls above: say in the instructions what to do when they bring nothing new.",
	loopdv1.StopReason_STOP_REASON_FREQUENT_REPEAT:      "Fix the tool that keeps giving this result. If asking again is its purpose, mark it pollable.",
	loopdv1.StopReason_STOP_REASON_NEAR_DUPLICATE:       "The tool gives one result whatever it is asked: check it, or say in the result that there is nothing.",
	loopdv1.StopReason_STOP_REASON_NO_NOVELTY:           "The tools bring nothing new: add one that does, or narrow what is asked.",
	loopdv1.StopReason_STOP_REASON_MONOLOGUE:            "The model repeats its own words: check the instructions, or try another model.",
	loopdv1.StopReason_STOP_REASON_TEXT_LOOP:            "The model writes the same words without end: see what above leads it there, or try another model or a higher temperature.",
	loopdv1.StopReason_STOP_REASON_ERROR_STREAK:         "Check the tools above from outside loopd: they only failed. The run can be started again once they answer.",
	loopdv1.StopReason_STOP_REASON_UNKNOWN_TOOL:         "The model asks for tools that the agent lacks: add them, or stop mentioning them in the instructions.",
	loopdv1.StopReason_STOP_REASON_INVALID_ARGS:         "Make the tool's input_schema and description clearer: the model cannot write arguments that fit.",
	loopdv1.StopReason_STOP_REASON_TRUNCATED:            "Raise limits.answer_max_output_tokens, or ask for shorter answers.",
	loopdv1.StopReason_STOP_REASON_EMPTY_RESPONSE:       "The model says nothing: check the instructions, or try another model.",
	loopdv1.StopReason_STOP_REASON_PAUSE_LOOP:           "The provider kept pausing its answer: try again later, or use another model.",
	loopdv1.StopReason_STOP_REASON_REFUSAL:              "The model refuses this input: change the input or the instructions.",
	loopdv1.StopReason_STOP_REASON_UNKNOWN_STOP_REASON:  "The provider ended its answer with a word that this loopd does not know: update loopd.",
	loopdv1.StopReason_STOP_REASON_OUTPUT_INVALID:       "The answer did not pass the output contract, as listed above: relax it, show an example in the instructions, or see why the validator or the judge could not be asked.",
	loopdv1.StopReason_STOP_REASON_ACCOUNT_BUDGET:       "A budget that this run shares with others was spent: loopd budget list shows it; raise it, or wait until its window ends.",
	loopdv1.StopReason_STOP_REASON_CHECKPOINT_FAILED:    "What the checkpoint asserts did not hold twice, as listed above: say so in the instructions, or correct the assertion.",
	loopdv1.StopReason_STOP_REASON_IN_DOUBT_UNRESOLVED:  "Nobody said in time what became of a call: check that system by hand before you start the run again.",
	loopdv1.StopReason_STOP_REASON_PROVIDER_ERROR:       "The provider refused the request: check the model's name, the key and the account's credit.",
	loopdv1.StopReason_STOP_REASON_PROVIDER_UNAVAILABLE: "The provider did not answer: start the run again when it does.",
	loopdv1.StopReason_STOP_REASON_RECOVERY_EXHAUSTED:   "Its attempts crashed, or their workers died, as listed above: look into those workers' logs before you start it again.",
	loopdv1.StopReason_STOP_REASON_GUARD_INTERNAL:       "A guard failed, so the run was stopped to be safe: report this, with the worker's log.",
	loopdv1.StopReason_STOP_REASON_INTERNAL_ERROR:       "This is a fault of loopd: report it, with the worker's log.",
}
