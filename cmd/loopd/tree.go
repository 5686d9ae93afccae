package main

import (
	"context"
	"fmt"
	"io"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// childRun is a run that a call of another run started.
type childRun struct {
	run  *loopdv1.Run
	call string // id of the call
	// settled: the parent has booked what the child cost. Until then the parent's cost
	// does not have it.
	settled bool
}

// childRuns reads the child runs that a run started itself, in the order of its calls.
func (c *client) childRuns(ctx context.Context, run *loopdv1.Run) ([]childRun, error) {
	list, err := c.listRuns(ctx, &loopdv1.ListRunsRequest{Parent: run.GetName()}, 0)
	if err != nil || len(list.GetRuns()) == 0 {
		return nil, err
	}
	byName := map[string]*loopdv1.Run{}
	for _, child := range list.GetRuns() {
		byName[child.GetName()] = child
	}
	calls, err := c.listCalls(ctx, run.GetName())
	if err != nil {
		return nil, err
	}
	var children []childRun
	for _, call := range calls.GetToolCalls() {
		if child := byName[call.GetChildRun()]; child != nil {
			settled := call.GetState() != loopdv1.ToolCallState_TOOL_CALL_STATE_AWAITING_RESULT
			children = append(children, childRun{run: child, call: call.GetCallId(), settled: settled})
		}
	}
	return children, nil
}

// showChildren writes what each child run cost, and what that makes for the whole tree.
func showChildren(w io.Writer, run *loopdv1.Run, children []childRun) error {
	if len(children) == 0 {
		return nil
	}
	own, together, err := rollUp(run, children)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "\nChild runs")
	rows := [][]string{{"RUN", "CALL", "AGENT", "STATE", "WHY", "ITERATIONS", "COST USD"}}
	for _, child := range children {
		rows = append(rows, append([]string{child.run.GetName(), child.call}, append(childCells(child.run), child.run.GetCostUsd())...))
	}
	rows = append(rows, append([]string{"this run itself", "-"}, append(childCells(run), own.String())...),
		[]string{"together", "-", "-", "-", "-", "-", together.String()})
	return indentedTable(w, "  ", rows)
}

func childCells(run *loopdv1.Run) []string {
	why := "-"
	if run.GetStop() != nil {
		why = word(run.GetStop().GetReason(), "STOP_REASON_")
	}
	return []string{run.GetAgent(), stateOf(run), why, fmt.Sprintf("%d/%d", run.GetIterations(), run.GetLimits().GetMaxIterations())}
}

// rollUp is what a run spent on its own model calls, and what it and its child runs
// spent together so far. A child that was given up is booked at all that was held for
// it; what that is above its cost counts as the run's own.
func rollUp(run *loopdv1.Run, children []childRun) (own, together loop.USD, err error) {
	if own, err = loop.ParseUSD(run.GetCostUsd()); err != nil {
		return 0, 0, fmt.Errorf("read the cost of %s: %w", run.GetName(), err)
	}
	together = own
	for _, child := range children {
		cost, err := loop.ParseUSD(child.run.GetCostUsd())
		if err != nil {
			return 0, 0, fmt.Errorf("read the cost of %s: %w", child.run.GetName(), err)
		}
		if child.settled {
			own -= cost
		} else {
			together += cost
		}
	}
	return own, together, nil
}

// showSideEffects writes the ledger of what a run and its child runs did, or may have
// done, in the world.
func showSideEffects(w io.Writer, run *loopdv1.Run) error {
	if len(run.GetSideEffects()) == 0 {
		return nil
	}
	fmt.Fprintln(w, "\nSide effects")
	rows := [][]string{{"CALL", "TOOL", "EFFECT", "STATE", "OUTCOME", "ARGUMENTS SHA-256", "KEY"}}
	for _, e := range run.GetSideEffects() {
		rows = append(rows, []string{
			shortCall(e.GetToolCall()), e.GetTool(), word(e.GetEffect(), "EFFECT_"), word(e.GetState(), "TOOL_CALL_STATE_"),
			dash(e.GetOutcome()), cut(e.GetArgumentsSha256(), 13), dash(e.GetIdempotencyKey()),
		})
	}
	return indentedTable(w, "  ", rows)
}
