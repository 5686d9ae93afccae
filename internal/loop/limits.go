package loop

import (
	"fmt"
	"time"
)

// Limits are the ceilings of one run, every one of them set. A request leaves
// out what it does not care about; Defaults fills the rest in before the run is
// created, so that a later change of defaults changes no run that exists.
type Limits struct {
	Iterations     int           `json:"iterations"`       // accepted model answers, wrap-up included
	ModelCalls     int           `json:"model_calls"`      // requests sent to models, retries included
	Cost           USD           `json:"cost_usd"`         // hard: committed plus held never passes it
	TotalTokens    int64         `json:"total_tokens"`     // input (cached included) plus output
	OutputTokens   int64         `json:"output_tokens"`    // output, reasoning included
	Deadline       time.Duration `json:"deadline"`         // active time; waits do not count
	WallTime       time.Duration `json:"wall_time"`        // since creation, waits included
	ToolCalls      int           `json:"tool_calls"`       // started calls in the run
	CallsPerAnswer int           `json:"calls_per_answer"` // started calls of one answer
	ParallelCalls  int           `json:"parallel_calls"`   // running at once
	IdenticalIters int           `json:"identical_iters"`  // equal iterations in a row that end the run
	ErrorIters     int           `json:"error_iters"`      // iterations of nothing but errors in a row that end the run
	InvalidIters   int           `json:"invalid_iters"`    // iterations of nothing but unknown tools or invalid arguments

	// Of the guards that look for progress. Zero, as in journals that are older than
	// the guard: it is off.
	SameCallIters   int `json:"same_call_iters,omitempty"`  // iterations in a row with equal calls, whatever they bring
	Cycles          int `json:"cycles,omitempty"`           // full cycles of 2 or 3 iterations; of 4 or 5, one less
	FrequentRepeats int `json:"frequent_repeats,omitempty"` // of the last 10 iterations with the same call and result
	NearDuplicates  int `json:"near_duplicates,omitempty"`  // of the last 12 iterations with the same result for other arguments
	NoveltyIters    int `json:"novelty_iters,omitempty"`    // iterations in a row that brought nothing new
	CallFailures    int `json:"call_failures,omitempty"`    // failures of the same call
	ToolFailures    int `json:"tool_failures,omitempty"`    // iterations in which a tool failed in the same way
	Monologue       int `json:"monologue,omitempty"`        // answers without a call in the same words

	FinalOutput  int64   `json:"final_output_tokens"` // output cap of the wrap-up answer
	AnswerOutput int64   `json:"answer_output_tokens"`
	Reasks       int     `json:"reasks"`  // times a final answer is sent back for correction
	StopAt       float64 `json:"stop_at"` // share of the context window at which the run wraps up
	// CompactAt is the share of the window at which the transcript is made shorter.
	// Zero, as in journals that are older: never.
	CompactAt   float64 `json:"compact_at,omitempty"`
	Compactions int     `json:"compactions,omitempty"` // in the whole run, failed ones included

	CountInput      bool `json:"count_input,omitempty"` // true: where the bound by bytes fits no budget, the provider's own count plus a margin is trusted instead
	ChildDepth      int  `json:"child_depth,omitempty"` // how deep runs may start runs
	ActiveChildren  int  `json:"active_children,omitempty"`
	Children        int  `json:"children,omitempty"` // child runs started, in the whole run
	NoProgressStops bool `json:"no_progress_stop"`   // true: a no-progress trip stops at once, without a wrap-up call
}

// Defaults are the limits of a run whose agent and request set none. The
// figures come from the incident loopd was built after: a good run of that
// agent took 4 iterations and 0.20 USD. Those of the guards that look for
// progress were measured on recorded runs: see GUARDS.md.
func Defaults() Limits {
	return Limits{
		Iterations: 12, ModelCalls: 36, Cost: OneUSD, TotalTokens: 500_000, OutputTokens: 60_000,
		Deadline: 10 * time.Minute, WallTime: 24 * time.Hour,
		ToolCalls: 40, CallsPerAnswer: 8, ParallelCalls: 4,
		IdenticalIters: 3, ErrorIters: 4, InvalidIters: 3,
		SameCallIters: 6, Cycles: 3, FrequentRepeats: 6, NearDuplicates: 6, NoveltyIters: 9,
		CallFailures: 3, ToolFailures: 5, Monologue: 3,
		FinalOutput: 1024, AnswerOutput: 4096, Reasks: 2, StopAt: 0.80, CompactAt: 0.60, Compactions: 3,
		ChildDepth: 1, ActiveChildren: 4, Children: 16,
	}
}

// Ceilings are the most that an operator lets a run ask for.
func Ceilings() Limits {
	return Limits{
		Iterations: 20, ModelCalls: 60, Cost: 50 * OneUSD, TotalTokens: 10_000_000, OutputTokens: 1_000_000,
		Deadline: 24 * time.Hour, WallTime: 7 * 24 * time.Hour,
		ToolCalls: 500, CallsPerAnswer: 64, ParallelCalls: 16,
		IdenticalIters: 10, ErrorIters: 10, InvalidIters: 10,
		SameCallIters: 20, Cycles: 10, FrequentRepeats: frequencyWindow, NearDuplicates: nearWindow, NoveltyIters: 50,
		CallFailures: 10, ToolFailures: 20, Monologue: 10,
		FinalOutput: 32_768, AnswerOutput: 128_000, Reasks: 5, StopAt: 0.95, CompactAt: 0.95, Compactions: 10,
		ChildDepth: 2, ActiveChildren: 16, Children: 64,
	}
}

// LimitError names a limit that asks for more than the operator allows, or for
// something no run can be held to.
type LimitError struct {
	Field  string // as in the API: "max_iterations"
	Reason string
	Above  bool // true: the value is legal, but above the operator's ceiling
}

// Error names the field and the fix.
func (e *LimitError) Error() string { return e.Field + ": " + e.Reason }

// Validate checks l against the operator's ceilings and reports every fault.
func (l Limits) Validate(ceiling Limits) []*LimitError {
	var errs []*LimitError
	check := func(field string, v, low, high int64) {
		switch {
		case v < low:
			errs = append(errs, &LimitError{Field: field, Reason: fmt.Sprintf("%d is below the smallest useful value %d", v, low)})
		case v > high:
			errs = append(errs, &LimitError{Field: field, Above: true, Reason: fmt.Sprintf("%d is above this deployment's ceiling %d; ask for less, or have the operator raise it", v, high)})
		}
	}
	check("max_iterations", int64(l.Iterations), 1, int64(ceiling.Iterations))
	check("max_model_calls", int64(l.ModelCalls), 1, int64(ceiling.ModelCalls))
	check("max_total_tokens", l.TotalTokens, 1, ceiling.TotalTokens)
	check("max_output_tokens", l.OutputTokens, 1, ceiling.OutputTokens)
	check("max_tool_calls", int64(l.ToolCalls), 0, int64(ceiling.ToolCalls))
	check("max_tool_calls_per_answer", int64(l.CallsPerAnswer), 1, int64(ceiling.CallsPerAnswer))
	check("max_parallel_tool_calls", int64(l.ParallelCalls), 1, int64(ceiling.ParallelCalls))
	check("max_identical_iterations", int64(l.IdenticalIters), 2, int64(ceiling.IdenticalIters))
	check("max_error_iterations", int64(l.ErrorIters), 1, int64(ceiling.ErrorIters))
	check("max_invalid_iterations", int64(l.InvalidIters), 1, int64(ceiling.InvalidIters))
	check("final_answer_max_output_tokens", l.FinalOutput, 16, ceiling.FinalOutput)
	check("answer_max_output_tokens", l.AnswerOutput, 16, ceiling.AnswerOutput)
	check("max_reasks", int64(l.Reasks), 0, int64(ceiling.Reasks))
	check("max_compactions", int64(l.Compactions), 0, int64(ceiling.Compactions))
	check("max_child_depth", int64(l.ChildDepth), 0, int64(ceiling.ChildDepth))
	check("max_active_children", int64(l.ActiveChildren), 0, int64(ceiling.ActiveChildren))
	check("max_children", int64(l.Children), 0, int64(ceiling.Children))
	check("max_same_call_iterations", int64(l.SameCallIters), 2, int64(ceiling.SameCallIters))
	check("max_cycles", int64(l.Cycles), 2, int64(ceiling.Cycles))
	check("max_frequent_repeats", int64(l.FrequentRepeats), 2, int64(ceiling.FrequentRepeats))
	check("max_near_duplicates", int64(l.NearDuplicates), 2, int64(ceiling.NearDuplicates))
	check("max_iterations_without_novelty", int64(l.NoveltyIters), 2, int64(ceiling.NoveltyIters))
	check("max_call_failures", int64(l.CallFailures), 1, int64(ceiling.CallFailures))
	check("max_tool_failures", int64(l.ToolFailures), 1, int64(ceiling.ToolFailures))
	check("max_monologue_answers", int64(l.Monologue), 2, int64(ceiling.Monologue))
	errs = append(errs, l.validateMeasures(ceiling)...)
	return errs
}

// validateMeasures checks the limits that are not plain counts.
func (l Limits) validateMeasures(ceiling Limits) []*LimitError {
	var errs []*LimitError
	if l.Cost < 0 || l.Cost > ceiling.Cost {
		errs = append(errs, &LimitError{Field: "max_cost_usd", Above: true, Reason: fmt.Sprintf("%s USD is above this deployment's ceiling %s USD", l.Cost, ceiling.Cost)})
	}
	if l.Deadline < time.Second || l.Deadline > ceiling.Deadline {
		errs = append(errs, &LimitError{Field: "deadline", Above: l.Deadline > ceiling.Deadline, Reason: fmt.Sprintf("%s is outside 1s to %s", l.Deadline, ceiling.Deadline)})
	}
	if l.WallTime < time.Second || l.WallTime > ceiling.WallTime {
		errs = append(errs, &LimitError{Field: "max_wall_time", Above: l.WallTime > ceiling.WallTime, Reason: fmt.Sprintf("%s is outside 1s to %s", l.WallTime, ceiling.WallTime)})
	}
	if l.StopAt <= 0 || l.StopAt > ceiling.StopAt {
		errs = append(errs, &LimitError{Field: "context_stop_at", Above: l.StopAt > ceiling.StopAt, Reason: fmt.Sprintf("%g is outside 0 to %g", l.StopAt, ceiling.StopAt)})
	}
	if l.CompactAt <= 0 || l.CompactAt > ceiling.CompactAt {
		errs = append(errs, &LimitError{Field: "context_compact_at", Above: l.CompactAt > ceiling.CompactAt, Reason: fmt.Sprintf("%g is outside 0 to %g", l.CompactAt, ceiling.CompactAt)})
	}
	return errs
}

// wrapUpSlice is the end of the deadline that is kept for the wrap-up answer:
// 30 seconds, but never more than a quarter of the whole.
func (l Limits) wrapUpSlice() time.Duration { return min(30*time.Second, l.Deadline/4) }
