package main

// providers answers: is it somebody else's fault.
func providers() board {
	asked, called := in("llm_requests_total", "model"), in("tool_calls_total", "tool")
	return board{"providers", "loopd / Providers and tools", "Is it a model's or a tool's fault?", []panel{
		{title: "Model requests, by code", about: "Per second, by how they ended.", kind: stack, unit: "ops", queries: one(rate("code", asked), "{{code}}")},
		{title: "Share of 429", about: "Of the requests to each model.", unit: "percentunit", queries: one(
			share(rate("model", in("llm_requests_total", "model", `code="429"`)), rate("model", asked)), "{{model}}")},
		{title: "Waiting for providers", about: "Runs that wait because of one, on average: seconds waited per second.", queries: one(rate("provider", in("llm_backoff_seconds_total", "")), "{{provider}}")},
		{title: "Providers cut off", about: "1 while no request is sent to a provider, because it has been failing; 0.5 while one tries.", queries: one("max by (provider) ("+in("provider_circuit_open", "")+")", "{{provider}}")},
		{title: "Waiting for a share of the rate limit", about: "Model calls, by provider, over all replicas.", queries: one("sum by (provider) ("+in("provider_waiting_requests", "")+")", "{{provider}}")},
		{title: "Model latency", about: "p95 by model. The points are runs: each leads to its trace.", unit: "s", queries: []query{{quantile("0.95", "model", in("llm_request_duration_seconds", "model")), "{{model}}", true}}},
		{title: "Time to the first token", about: "p95 by model, of answers that are streamed.", unit: "s", queries: one(quantile("0.95", "model", in("llm_ttft_seconds", "model")), "{{model}}")},
		{title: "Model latency, all requests", about: "How many took how long.", kind: heat, unit: "s", queries: []query{{buckets(in("llm_request_duration_seconds", "model")), "{{le}}", true}}},
		{title: "How tight bounds are", about: "Median share of its upper bound that a call used. Above 1 is a breach.", unit: "percentunit", queries: one(quantile("0.5", "of", in("llm_bound_used_ratio", "model")), "{{of}}")},
		{title: "Other models tried", about: "Runs that went on with a fallback model, over the time shown.", kind: stat, queries: one(total("from, to", in("llm_fallbacks_total", "")), "{{from}} to {{to}}")},
		{title: "Requests, by model", about: "Per second.", unit: "ops", queries: one(rate("model", asked), "{{model}}")},
		{title: "Tool calls, by outcome", about: "Per second.", kind: stack, unit: "ops", queries: one(rate("outcome", called), "{{outcome}}")},
		{title: "Tool errors", about: "Share of the calls that were sent.", unit: "percentunit", queries: one(
			share(rate("tool", in("tool_calls_total", "tool", `outcome=~"retryable|permanent|timeout|unknown|not_sent"`)), rate("tool", in("tool_calls_total", "tool", `outcome=~"ok|retryable|permanent|timeout|unknown|not_sent"`))), "{{tool}}")},
		{title: "Tool time", about: "p95 by tool.", unit: "s", queries: one(quantile("0.95", "tool", in("tool_duration_seconds", "tool")), "{{tool}}")},
		{title: "Open breakers", about: "Tools that a replica keeps calls from, because they have been failing.", queries: one("sum by (instance) ("+in("tool_breakers_open", "")+")", "{{instance}}")},
		{title: "Calls that models made up", about: "Per second: tools that do not exist, and arguments that do not fit.", unit: "ops", queries: one(rate("outcome", in("tool_calls_total", "", `outcome=~"unknown_tool|invalid_args"`)), "{{outcome}}")},
		{title: "Calls in doubt and waiting", about: "Tool calls of live runs that wait for somebody, by what for.", queries: one("max by (state) ("+in("tool_calls_waiting", "")+")", "{{state}}"), runs: "RUN_STATE_REQUIRES_ACTION"},
	}}
}
