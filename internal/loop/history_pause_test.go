package loop_test

import (
	"errors"
	"slices"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// raises widen one limit, by its name in the API.
func raises() map[string]func(*loop.Limits) {
	return map[string]func(*loop.Limits){
		"max_iterations":           func(l *loop.Limits) { l.Iterations += 3 },
		"max_model_calls":          func(l *loop.Limits) { l.ModelCalls += 4 },
		"max_cost_usd":             func(l *loop.Limits) { l.Cost += loop.OneUSD / 4 },
		"max_total_tokens":         func(l *loop.Limits) { l.TotalTokens += 50_000 },
		"max_output_tokens":        func(l *loop.Limits) { l.OutputTokens += 5_000 },
		"deadline":                 func(l *loop.Limits) { l.Deadline += 3 * time.Minute },
		"max_tool_calls":           func(l *loop.Limits) { l.ToolCalls += 3 },
		"max_identical_iterations": func(l *loop.Limits) { l.IdenticalIters++ },
		"max_error_iterations":     func(l *loop.Limits) { l.ErrorIters++ },
		"context_stop_at":          func(l *loop.Limits) { l.StopAt += 0.05 },
		"max_same_call_iterations": func(l *loop.Limits) { l.SameCallIters++ },
		"max_cycles":               func(l *loop.Limits) { l.Cycles++ },
		"max_frequent_repeats":     func(l *loop.Limits) { l.FrequentRepeats++ },
		"max_near_duplicates":      func(l *loop.Limits) { l.NearDuplicates++ },
		"max_monologue_answers":    func(l *loop.Limits) { l.Monologue++ },
		"max_invalid_iterations":   func(l *loop.Limits) { l.InvalidIters++ },
		"max_call_failures":        func(l *loop.Limits) { l.CallFailures++ },
		"max_tool_failures":        func(l *loop.Limits) { l.ToolFailures++ },

		"max_iterations_without_novelty": func(l *loop.Limits) { l.NoveltyIters++ },
	}
}

// resume is somebody who lets a paused run go on: who has raised what is required,
// or something else, or has only a word for the model. What the core makes of it must
// be what the rule says.
func (h *history) resume() {
	r := loop.Resumed{By: "ann", Input: rarely(h, "", "go on", "try the other one")}
	inForce := h.state.Limits()
	wanted, widened := inForce, false
	for _, a := range h.state.Head().RequiredActions {
		if a.Kind == loop.RequireRaise && h.resumes > 0 && !h.odds(3) {
			raises()[a.Field](&wanted)
			widened = true
		}
	}
	if widened || h.odds(4) {
		r.Limits = &wanted
	}
	if r.Limits != nil && h.odds(8) { // something that was not asked for
		wanted.Iterations += h.below(3) - 1
	}
	faults := r.Limits != nil && len(inForce.RaiseFaults(wanted, false)) > 0
	err := loop.CheckResume(h.state.Head().RequiredActions, inForce, r)
	var unraised *loop.NotRaisedError
	if err != nil && (!errors.As(err, &unraised) || unraised.Guard == "") {
		h.t.Fatalf("a refusal that names no guard: %v", err)
	}
	if got, want := h.state.Accepts(r), err == nil && !faults; got != want && !h.audit.cancelled {
		h.t.Fatalf("accepts %+v: %v; the rule says %v, lowered %v", r, got, err, faults)
	}
	h.resumes--
	h.take(r)
}

// trippedPause follows what guards pause the run for.
func (a *audit) trippedPause(b loop.Tripped) {
	switch {
	case b.Verdict == loop.VerdictPause && b.Reason == loop.AccountBudget: // it waits for money, and asks again by itself
	case b.Verdict == loop.VerdictPause && !a.final && !a.stopped:
		a.paused, a.raise = true, append(a.raise, b)
		a.pauses["by a guard"]++
		if b.Purpose != "" {
			a.pauses["for a "+b.Purpose]++
		}
	case a.raise != nil && b.Verdict != loop.VerdictNudge: // nobody raised the limit in time
		a.paused, a.raise = false, nil
		a.pauses["nobody raised"]++
	}
}

// resumed says that no limit was lowered, and that every guard that paused the run
// has what it wants.
func (a *audit) resumed(b loop.Resumed) {
	if !a.paused && !a.waits {
		a.t.Fatalf("a run is resumed that is not paused")
	}
	a.pauses["resumed"]++
	if b.Input != "" {
		a.pauses["told"]++
	}
	var fields []string
	if b.Limits != nil {
		if faults := a.limits.RaiseFaults(*b.Limits, false); len(faults) > 0 {
			a.t.Fatalf("a resume lowers limits: %v", faults)
		}
		fields = a.limits.Raised(*b.Limits)
		a.limits = *b.Limits
	}
	for _, t := range a.raise {
		info, _ := loop.GuardNamed(t.Guard) // only those that look for progress may merely observe
		word := b.Input != "" && slices.Contains(info.Acts, loop.VerdictNudge)
		if !word && !slices.Contains(fields, t.Field) {
			a.t.Fatalf("the run goes on although %s was not raised: %+v", t.Field, t)
		}
		a.pauses["raised"]++
	}
	a.paused, a.waits, a.refused, a.raise = false, false, nil, nil
}
