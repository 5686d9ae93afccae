package main

// overview answers: does it work, and what is the one thing that does not.
func overview() board {
	finished := in("run_duration_seconds_count", "agent")
	starts := in("queue_wait_seconds", "")
	return board{"overview", "loopd / Overview", "Does it work? If not, the panel that is red says which dashboard to open next.", []panel{
		{title: "Runs now", about: "All live runs in the database, by state.", kind: stack, queries: one("max by (state) ("+in("runs", "")+")", "{{state}}"), runs: "RUN_STATE_RUNNING"},
		{title: "Started and ended", about: "Runs per second: created, by the door they came through, and ended, by outcome.", unit: "ops", queries: []query{
			{expr: rate("source", in("runs_started_total", "agent")), legend: "started over {{source}}"}, {expr: rate("outcome", finished), legend: "{{outcome}}"},
		}},
		{title: "Alerts that fire", about: "The alerts of this Prometheus that fire now. None is good: the number is then 0.", kind: stat, width: 4, queries: one(`count(ALERTS{alertstate="firing", alertname!=""}) or vector(0)`, "firing")},
		{title: "Error budget left", about: "Of the 0.5 % of runs that may fail, over the last three days. Stops by guards are no failures.", kind: stat, unit: "percentunit", width: 4, queries: one(`1 - ((loopd:run_errors:ratio_3d or vector(0)) / 0.005)`, "left"), runs: "RUN_STATE_FAILED"},
		{title: "Spend against the budget of the day", about: "What the day costs at the pace of the last hour, and the budgets of whole tenants.", unit: "currencyUSD", queries: []query{
			{expr: "loopd:spend:usd_per_day_1h", legend: "a day at this pace"}, {expr: "max(" + in("budget_usd", "", `scope="daily"`) + ")", legend: "budget of a day"},
		}},
		{title: "Start p99", about: "From a run's creation until a worker took it. The objective is 99 % within 10 s.", unit: "s", queries: []query{
			{expr: quantile("0.99", "", starts), legend: "p99"}, {expr: quantile("0.5", "", starts), legend: "p50"},
		}, runs: "RUN_STATE_QUEUED"},
		{title: "Where the time of runs goes", about: "Approval is any wait for a person, backoff any wait for a provider.", kind: stack, unit: "percentunit", queries: one(
			rate("phase", in("run_phase_seconds_total", "agent"))+" / on () group_left () ("+rate("", in("run_phase_seconds_total", "agent"))+" > 0)", "{{phase}}")},
		{title: "Dearest agents", about: "The five that spend the most, in USD an hour.", unit: "currencyUSD", queries: one(
			"topk(5, "+rate("agent", in("cost_usd_total", "agent"))+" * 3600)", "{{agent}}")},
		{title: "How runs end", about: "Share of each stop reason.", kind: stack, unit: "percentunit", queries: one(
			rate("stop_reason", in("runs_finished_total", "agent"))+" / on () group_left () ("+rate("", in("runs_finished_total", "agent"))+" > 0)", "{{stop_reason}}"), runs: "RUN_STATE_STOPPED"},
		{title: "Iterations", about: "Is anything moving? Iterations per second, by agent.", unit: "ops", queries: one(rate("agent", in("iterations_total", "agent")), "{{agent}}"), runs: "RUN_STATE_RUNNING"},
		{title: "Runs that ended, by tenant", about: "Per second. Tenants that are listed in --metric-tenants; the others together are _other.", unit: "ops", queries: one(rate("tenant, outcome", in("tenant_runs_finished_total", "tenant")), "{{tenant}} {{outcome}}")},
	}}
}
