package loop

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// measure is one limit as a number, by its name in the API. More is always wider.
type measure struct {
	field string
	n     int64
	text  string // for people
}

// measures are all limits that can be raised: every one that is no switch.
func measures(x Limits) []measure {
	count := func(field string, n int) measure { return measure{field, int64(n), fmt.Sprint(n)} }
	tokens := func(field string, n int64) measure { return measure{field, n, fmt.Sprint(n)} }
	span := func(field string, d time.Duration) measure { return measure{field, int64(d), d.String()} }
	share := func(field string, f float64) measure {
		return measure{field, int64(math.Round(f * 1e9)), fmt.Sprintf("%g", f)}
	}
	return []measure{
		count("max_iterations", x.Iterations), count("max_model_calls", x.ModelCalls),
		{"max_cost_usd", int64(x.Cost), x.Cost.String()},
		tokens("max_total_tokens", x.TotalTokens), tokens("max_output_tokens", x.OutputTokens),
		span("deadline", x.Deadline), span("max_wall_time", x.WallTime),
		count("max_tool_calls", x.ToolCalls), count("max_tool_calls_per_answer", x.CallsPerAnswer),
		count("max_parallel_tool_calls", x.ParallelCalls), count("max_identical_iterations", x.IdenticalIters),
		count("max_error_iterations", x.ErrorIters), count("max_invalid_iterations", x.InvalidIters),
		count("max_same_call_iterations", x.SameCallIters), count("max_cycles", x.Cycles),
		count("max_frequent_repeats", x.FrequentRepeats), count("max_near_duplicates", x.NearDuplicates),
		count("max_iterations_without_novelty", x.NoveltyIters), count("max_call_failures", x.CallFailures),
		count("max_tool_failures", x.ToolFailures), count("max_monologue_answers", x.Monologue),
		tokens("final_answer_max_output_tokens", x.FinalOutput), tokens("answer_max_output_tokens", x.AnswerOutput),
		count("max_reasks", x.Reasks), share("context_stop_at", x.StopAt), share("context_compact_at", x.CompactAt),
		count("max_compactions", x.Compactions), count("max_child_depth", x.ChildDepth),
		count("max_active_children", x.ActiveChildren), count("max_children", x.Children),
	}
}

// measureOf is the limit with that name in the API; its zero value if there is none.
func measureOf(x Limits, field string) measure {
	all := measures(x)
	if i := slices.IndexFunc(all, func(m measure) bool { return m.field == field }); i >= 0 {
		return all[i]
	}
	return measure{}
}

// LimitField names the limit that a guard holds runs to, as in the API:
// "max_iterations"; the first, if there are several. "": no limit does.
func LimitField(guard string) string {
	if info, known := GuardNamed(guard); known && len(info.Fields) > 0 {
		return info.Fields[0]
	}
	return ""
}

// The limits of the guard "tokens", which has two.
const (
	fieldTotalTokens  = "max_total_tokens"
	fieldOutputTokens = "max_output_tokens"
)

// heldByParent reports whether a child run has a limit because its parent holds as
// much for it, so that to raise it would let the tree spend what nobody holds.
func heldByParent(field string) bool {
	switch field {
	case "max_cost_usd", fieldTotalTokens, "max_model_calls", "deadline", "max_wall_time":
		return true
	}
	return false
}

// RaiseFaults reports every limit in which wanted is no raise of l, the limits in
// force, nor the same. child: the run is a child run, whose parent holds its share.
func (l Limits) RaiseFaults(wanted Limits, child bool) []*LimitError {
	var faults []*LimitError
	now := measures(l)
	for i, want := range measures(wanted) {
		switch {
		case want.n < now[i].n:
			faults = append(faults, &LimitError{Field: want.field, Reason: fmt.Sprintf(
				"%s is below the %s in force, and limits of a run are only raised; leave it out to keep it", want.text, now[i].text)})
		case want.n > now[i].n && child && heldByParent(want.field):
			faults = append(faults, &LimitError{Field: want.field, Reason: fmt.Sprintf(
				"a child run spends what its parent holds for it, so that %s cannot be raised to %s; leave it out, and give the agent more before the next run", now[i].text, want.text)})
		}
	}
	return faults
}

// Raised lists the limits, as in the API, in which wanted differs from l.
func (l Limits) Raised(wanted Limits) []string {
	var fields []string
	now := measures(l)
	for i, want := range measures(wanted) {
		if want.n != now[i].n {
			fields = append(fields, want.field)
		}
	}
	return fields
}

// NotRaisedError says why a run that a guard paused does not go on: nobody raised the
// limit.
type NotRaisedError struct {
	Guard      string
	Field      string // to raise, as in the API; "": an input is the only way
	InForce    string // the limit as it is, for people
	Observed   string // what the guard saw, for people
	TakesInput bool   // an input is enough too
}

// Error names the limit, what is in force, what was observed, and the fix.
func (e *NotRaisedError) Error() string {
	text := "guard " + e.Guard + " paused the run"
	if e.Observed != "" {
		text += " (observed: " + e.Observed + ")"
	}
	if e.Field == "" {
		return text + ": give an input to resume it"
	}
	text += ": raise " + e.Field
	if e.InForce != "" {
		text += " above the " + e.InForce + " in force"
	}
	if e.TakesInput {
		text += ", or give an input"
	}
	return text
}

// CheckResume is the rule for going on after guards paused a run: each tripped limit
// was raised, or, for guards that look for progress, the model is given a word. It
// returns nil, or a *NotRaisedError for the first guard that neither holds for.
// required is what the run requires, inForce are its limits.
func CheckResume(required []RequiredAction, inForce Limits, r Resumed) error {
	for _, a := range required {
		if a.Kind != RequireRaise || a.TakesInput && r.Input != "" {
			continue
		}
		now := measureOf(inForce, a.Field)
		if r.Limits == nil || now.field == "" || measureOf(*r.Limits, a.Field).n <= now.n {
			return &NotRaisedError{Guard: a.Guard, Field: a.Field, InForce: now.text, Observed: a.Observed, TakesInput: a.TakesInput}
		}
	}
	return nil
}

// Text is the limit with that name in the API, for people: "12", "1.5", "10m0s". "":
// there is none.
func (l Limits) Text(field string) string { return measureOf(l, field).text }
