package main

// approvals answers: is anybody looking.
func approvals() board {
	decided := in("approvals_total", "tool")
	return board{"approvals", "loopd / Approvals", "Is anybody looking at what waits for a person?", []panel{
		{title: "Waiting now", about: "Calls that wait for a person.", kind: stat, queries: one("max("+in("approvals_pending", "")+")", "waiting"), runs: "RUN_STATE_REQUIRES_ACTION"},
		{title: "Longest wait", about: "How long the first of them has been waiting.", kind: stat, unit: "s", queries: one("max("+in("approval_oldest_pending_seconds", "")+")", "oldest"), runs: "RUN_STATE_REQUIRES_ACTION"},
		{title: "Time used up", about: "By the most pressing one, until it counts as denied. At half, an alert.", kind: stat, unit: "percentunit", queries: one("max("+in("approval_pending_used_ratio", "")+")", "used"), runs: "RUN_STATE_REQUIRES_ACTION"},
		{title: "Waiting", about: "Over time.", queries: one("max("+in("approvals_pending", "")+")", "waiting"), runs: "RUN_STATE_REQUIRES_ACTION"},
		{title: "Decisions", about: "Per second.", kind: stack, unit: "ops", queries: one(rate("decision", decided), "{{decision}}")},
		{title: "How long decisions take", about: "Median, by decision.", unit: "s", queries: one(quantile("0.5", "decision", in("approval_wait_seconds", "")), "{{decision}}")},
		{title: "Decisions, by tool", about: "Over the time shown. A tool that is always approved may want a policy; one that is always denied, another instruction.", kind: rows, width: 12, queries: one(total("tool, decision", decided), "{{tool}} {{decision}}")},
		{title: "Nobody decided", about: "Calls whose time ran out, or whose run was cancelled first, over the time shown.", kind: stat, width: 12, queries: one(total("decision", in("approvals_total", "tool", `decision=~"expired|cancelled"`))+orZero, "{{decision}}")},
		{title: "How long people take", about: "All decisions.", kind: heat, unit: "s", width: 24, queries: []query{{buckets(in("approval_wait_seconds", "")), "{{le}}", false}}},
	}}
}
