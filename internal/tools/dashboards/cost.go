package main

// cost answers: who spends what on what, and is it worth it.
func cost() board {
	spent, run := in("cost_usd_total", "agent model"), in("run_cost_usd", "agent")
	tokens := func(kinds string) string { return rate("", in("tokens_total", "agent model", kinds)) }
	return board{"cost", "loopd / Cost", "Who spends what on what?", []panel{
		{title: "USD an hour, by agent", about: "Money spent on models.", kind: stack, unit: "currencyUSD", queries: one(rate("agent", spent)+" * 3600", "{{agent}}"), runs: "RUN_STATE_RUNNING"},
		{title: "USD an hour, by model", about: "Money spent on models.", kind: stack, unit: "currencyUSD", queries: one(rate("model", spent)+" * 3600", "{{model}}")},
		{title: "USD an hour, by tenant", about: "Tenants that are listed in --metric-tenants; the others together are _other.", kind: stack, unit: "currencyUSD", queries: one(rate("tenant", in("tenant_cost_usd_total", "tenant"))+" * 3600", "{{tenant}}")},
		{title: "Cost of a run", about: "Whole runs. The points are runs: each leads to its trace.", unit: "currencyUSD", queries: quantiles(run)},
		{title: "Cost of a run, all of them", about: "How many runs cost how much.", kind: heat, unit: "currencyUSD", queries: []query{{buckets(run), "{{le}}", true}}},
		{title: "Dearest run in flight", about: "By agent, over all replicas. Compare with the cap of a run that sets none.", unit: "currencyUSD", queries: []query{
			{expr: "max by (agent) (" + in("run_active_cost_max_usd", "agent") + ")", legend: "{{agent}}"}, {expr: "max(" + in("budget_usd", "", `scope="run_default"`) + ")", legend: "cap by default"},
		}, runs: "RUN_STATE_RUNNING"},
		{title: "What the money is for", about: "Input that the provider's cache had, input that it had not, what it cost to put it there, and output.", kind: stack, unit: "currencyUSD", queries: one(rate("kind", spent)+" * 3600", "{{kind}}")},
		{title: "Purpose of the calls", about: "Work, last answers, judging answers, and summarising transcripts.", kind: stack, unit: "currencyUSD", queries: one(rate("purpose", in("purpose_cost_usd_total", "agent"))+" * 3600", "{{purpose}}")},
		{title: "Cache hits", about: "Share of the input tokens that the provider's cache had.", unit: "percentunit", queries: one(
			share(rate("agent, model", in("tokens_total", "agent model", `kind="cache_read"`)), rate("agent, model", in("tokens_total", "agent model", `kind=~"input_uncached|cache_read|cache_write"`))), "{{agent}} on {{model}}")},
		{title: "What the cache saves", about: "USD an hour: what the tokens that the cache had would cost at the price that is paid for the others, less what they cost.", unit: "currencyUSD", queries: one(
			"3600 * ("+tokens(`kind="cache_read"`)+" * (sum(rate("+in("cost_usd_total", "agent model", `kind=~"input|cache_write"`)+"[$__rate_interval])) / ("+
				tokens(`kind=~"input_uncached|cache_write"`)+" > 0)) - "+rate("", in("cost_usd_total", "agent model", `kind="cache_read"`))+")", "saved")},
		{title: "Tokens", about: "Per second, in kinds that do not overlap.", kind: stack, unit: "short", queries: one(rate("kind", in("tokens_total", "agent model")), "{{kind}}")},
		{title: "Calls without a known cost", about: "Refused for want of a price, or charged at their upper bound.", kind: stat, width: 4, queries: one(total("model", in("unpriced_calls_total", "model"))+orZero, "{{model}}")},
		{title: "The day at this pace", about: "USD, from the last hour.", kind: stat, unit: "currencyUSD", width: 4, queries: one("loopd:spend:usd_per_day_1h", "a day")},
		{title: "Budgets", about: "Daily and monthly budgets of whole tenants, and what is held for calls in flight.", unit: "currencyUSD", queries: one("max by (scope) ("+in("budget_usd", "")+")", "{{scope}}")},
		{title: "Draws on budgets", about: "Model calls under budgets: drawn, or refused because there was no room.", unit: "ops", queries: one(rate("outcome", in("budget_draws_total", "")), "{{outcome}}")},
		{title: "Thresholds that budgets reached", about: "In percent of the budget; each once in a window.", kind: stat, queries: one(total("percent", in("budget_thresholds_total", "")), "{{percent}} %")},
	}}
}
