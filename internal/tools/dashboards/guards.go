package main

// guards answers: what stops runs, is it right to, and how good are the answers.
func guards() board {
	trips := in("guard_trips_total", "agent")
	return board{"guards", "loopd / Guards and quality", "What stops runs, and is it right to?", []panel{
		{title: "Trips, by guard", about: "Verdicts that changed a run, per second.", kind: stack, unit: "ops", queries: one(rate("guard", trips), "{{guard}}"), runs: "RUN_STATE_STOPPED"},
		{title: "Trips, by agent", about: "Which agent runs into guards.", kind: stack, unit: "ops", queries: one(rate("agent", trips), "{{agent}}"), runs: "RUN_STATE_STOPPED"},
		{title: "Trips, by what they do", about: "nudge tells the model, final_turn lets it answer once more, pause waits for a raise, stop ends the run.", kind: stack, unit: "ops", queries: one(rate("action", trips), "{{action}}")},
		{title: "From nudge to stop", about: "Ends by a guard for each nudge. Near 0: nudges help. Above 1: most runs are ended without one.", queries: one(
			share(rate("agent", in("guard_trips_total", "agent", `action=~"final_turn|stop"`)), rate("agent", in("guard_trips_total", "agent", `action="nudge"`))), "{{agent}}")},
		{title: "Runs that guards stop", about: "Share of the runs that ended.", unit: "percentunit", queries: one(
			share(rate("agent", in("run_duration_seconds_count", "agent", `outcome="STOPPED"`)), rate("agent", in("run_duration_seconds_count", "agent"))), "{{agent}}"), runs: "RUN_STATE_STOPPED"},
		{title: "Stop reasons", about: "Over the time shown.", kind: stat, queries: one("sort_desc("+total("stop_reason", in("runs_finished_total", "agent"))+")", "{{stop_reason}}")},
		{title: "Iterations of a run", about: "The cap of a run that sets none is 12.", kind: heat, queries: []query{{buckets(in("run_iterations", "agent")), "{{le}}", false}}},
		{title: "Longest run in flight", about: "Iterations, by agent, over all replicas.", queries: one("max by (agent) ("+in("run_active_iterations_max", "agent")+")", "{{agent}}"), runs: "RUN_STATE_RUNNING"},
		{title: "Context used", about: "Share of the window, by iteration. From 0.6 transcripts are made shorter, at 0.8 runs wrap up.", kind: heat, unit: "percentunit", queries: []query{{buckets(in("context_used_ratio", "agent")), "{{le}}", false}}},
		{title: "Transcripts made shorter", about: "By method and outcome, per second.", unit: "ops", queries: one(rate("method, outcome", in("compactions_total", "")), "{{method}} {{outcome}}")},
		{title: "Guards that are asked", about: "Per second, by what they said. A guard that is missing here guards nothing.", unit: "ops", queries: one(rate("verdict", in("guard_evaluations_total", "")), "{{verdict}}")},
		{title: "Breaches", about: "Limits that were passed although guarded. Must stay 0.", kind: stat, width: 4, queries: one(total("guard", in("guard_breaches_total", "")), "{{guard}}")},
		{title: "Reported as wrong", about: "Trips that people reported as false, over the time shown.", kind: stat, width: 4, queries: one("sum(increase("+in("guard_false_positives_total", "")+"[$__range]))", "false trips")},
		{title: "Output checks", about: "Of final answers, by part of the contract and outcome.", unit: "ops", queries: one(rate("part, outcome", in("output_checks_total", "")), "{{part}} {{outcome}}")},
	}}
}
