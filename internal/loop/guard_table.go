package loop

// Phase is where in the loop a guard is asked.
type Phase string

// The phases, in the order of an iteration.
const (
	BeforeModel  Phase = "before_model"  // before a request is sent to a model
	AfterAnswer  Phase = "after_answer"  // after the model's answer, before its calls
	BeforeTool   Phase = "before_tool"   // before a tool call is sent
	AfterResults Phase = "after_results" // after the results of all calls of an answer
	FinalAnswer  Phase = "final_answer"  // before a final answer is accepted
)

// GuardInfo describes a guard to people and to what must know the whole set.
type GuardInfo struct {
	Name  string
	Phase Phase
	// Fields are those of Limits in the API that set its limit: "max_iterations".
	// Empty: its limit is fixed, or no number.
	Fields []string
	// Acts are what an agent may have it do when it would end the run. Empty: that is
	// for the budget to say whose guard it is.
	Acts []Verdict
	// Advice is what to change so that it does not trip again, for people.
	Advice string
}

// Guards lists every guard that can end a run, in order of precedence where several
// are asked at once: first those of guards, then those that other parts of the loop
// ask by themselves.
func Guards() []GuardInfo {
	var all []GuardInfo
	for _, part := range guardParts() {
		all = append(all, part()...)
	}
	return all
}

// guardParts are the parts of the list.
func guardParts() []func() []GuardInfo {
	return []func() []GuardInfo{budgetGuards, progressGuards, answerGuards}
}

// GuardNamed finds a guard by its name.
func GuardNamed(name string) (GuardInfo, bool) {
	for _, part := range guardParts() {
		for _, g := range part() {
			if g.Name == name {
				return g, true
			}
		}
	}
	return GuardInfo{}, false
}

func guardNames() []string {
	var names []string
	for _, g := range Guards() {
		names = append(names, g.Name)
	}
	return names
}

// budgetGuards keep a run within what it may use. They are never merely observed.
func budgetGuards() []GuardInfo {
	all := []Verdict{VerdictFinalTurn, VerdictPause, VerdictStop}
	return []GuardInfo{
		{"deadline", BeforeModel, []string{"deadline"}, all, "Find the slow calls in the run's events and shorten them (a tool's timeout, a faster model), or raise deadline."},
		{"account", BeforeModel, nil, nil, "Raise the budget, or wait until its window ends."},
		{"cost", BeforeModel, []string{"max_cost_usd"}, all, "See in the run's usage what cost most: cap tool results (max_result_bytes), choose a cheaper model, or raise max_cost_usd."},
		{"tokens", BeforeModel, []string{"max_total_tokens", "max_output_tokens"}, all, "Cap tool results (max_result_bytes) and answers (answer_max_output_tokens), or raise max_total_tokens or max_output_tokens."},
		{"model_calls", BeforeModel, []string{"max_model_calls"}, []Verdict{VerdictPause, VerdictStop}, "See whether retries or child runs used the calls up, or raise max_model_calls."},
		{"iterations", BeforeModel, []string{"max_iterations"}, all, "Read the iterations before raising max_iterations: a run that needs many is often missing a tool or an instruction."},
		{"context", BeforeModel, []string{"context_stop_at"}, all, "Cap tool results (max_result_bytes), let the transcript be made shorter earlier (context_compact_at), or choose a model with a larger window."},
		{"tool_calls", BeforeTool, []string{"max_tool_calls"}, all, "See which tool took the calls: let it take many items in one call, or raise max_tool_calls."},
	}
}

// progressGuards look for progress. They may be told to observe only.
func progressGuards() []GuardInfo {
	all := []Verdict{VerdictNudge, VerdictFinalTurn, VerdictPause, VerdictStop}
	return []GuardInfo{
		{"repeat", AfterResults, []string{"max_identical_iterations"}, all, "Say in the tool's description when its result will not change; set pollable on a tool that is there to be polled."},
		{"same_call", AfterResults, []string{"max_same_call_iterations"}, all, "Give the agent the built-in wait instead of having it ask again and again, or set pollable on the tool."},
		{"cycle", AfterResults, []string{"max_cycles"}, all, "Compare the calls of the cycle: mostly one of them returns too little to go on with. Say more in its result."},
		{"frequency", AfterResults, []string{"max_frequent_repeats"}, all, "The model forgets that it has this result: make the result shorter and clearer, or say in the instructions to keep notes."},
		{"near_duplicate", AfterResults, []string{"max_near_duplicates"}, all, "Have the tool say that there is nothing to be found, and what it can be asked instead."},
		{"novelty", AfterResults, []string{"max_iterations_without_novelty"}, all, "The agent is missing a tool or a fact to get on: see what it was looking for."},
		{"monologue", AfterAnswer, []string{"max_monologue_answers"}, all, "Read why the answer was sent back: the output contract may ask for what the model cannot know."},
		{"invalid_calls", AfterResults, []string{"max_invalid_iterations"}, all, "Give the tool a simpler schema with descriptions and examples; name only tools in the instructions that the agent has."},
		{"call_errors", AfterResults, []string{"max_call_failures"}, all, "Read the error: the tool is out of order, or its message does not tell the model what to change."},
		{"tool_errors", AfterResults, []string{"max_tool_failures"}, all, "Read the error: the tool is out of order, or its message does not tell the model what to change."},
		{"errors", AfterResults, []string{"max_error_iterations"}, all, "Read the errors of the last iterations: when tools fail together, look for what they share, such as a credential."},
	}
}

// answerGuards end a run by themselves, where no last answer and no pause makes sense.
func answerGuards() []GuardInfo {
	stop := []Verdict{VerdictStop}
	return []GuardInfo{
		{"wall_time", BeforeModel, []string{"max_wall_time"}, stop, "See what the run waited for: decide sooner, or raise max_wall_time."},
		{"refusal", AfterAnswer, nil, stop, "Read what was refused. If the request is legitimate, say so in the instructions, or give the agent a fallback model."},
		{"truncated", AfterAnswer, nil, stop, "Raise answer_max_output_tokens, or have the agent write in smaller parts."},
		{"empty", AfterAnswer, nil, stop, "Mostly a fault of the model or its server: try another model, or give the agent a fallback model."},
		{"pause", AfterAnswer, nil, stop, "The provider's own tools did not come to an end: see its status, or do without them."},
		{"unknown_stop", AfterAnswer, nil, stop, "The provider gave a stop reason that this version of loopd does not know: update loopd, or choose another model."},
		{"text_loop", AfterAnswer, nil, stop, "The model went round in circles while it wrote: lower the temperature if it is high, or choose another model."},
		{"in_doubt", BeforeTool, nil, stop, "Resolve calls in doubt sooner, give the tool a verify tool, or set on_doubt to ON_DOUBT_TELL_MODEL."},
		{"checkpoint", AfterResults, nil, stop, "Read which assertion failed, and say in the instructions what must hold by then."},
		{"output", FinalAnswer, []string{"max_reasks"}, stop, "Read what the answers were sent back for, and say in the instructions what the answer must look like."},
	}
}
