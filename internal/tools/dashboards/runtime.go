package main

// runtime answers: is it loopd itself, or the database under it.
func runtime() board {
	return board{"runtime", "loopd / Runtime", "Is it loopd itself, or the database under it?", []panel{
		{title: "Queue", about: "Runs that a worker could take now.", queries: one("max by (priority) ("+in("queue_depth", "")+")", "{{priority}}"), runs: "RUN_STATE_QUEUED"},
		{title: "First in the queue", about: "How long it has been waiting. Above 60 s for 5 minutes somebody is woken.", unit: "s", queries: one("max("+in("queue_oldest_age_seconds", "")+")", "age"), runs: "RUN_STATE_QUEUED"},
		{title: "Wait for a worker", about: "From a run's creation until a worker took it.", kind: heat, unit: "s", queries: []query{{buckets(in("queue_wait_seconds", "")), "{{le}}", false}}},
		{title: "Worker slots", about: "Runs that workers drive and could drive.", kind: stack, queries: one("sum by (state) ("+in("worker_slots", "")+")", "{{state}}"), runs: "RUN_STATE_RUNNING"},
		{title: "Leases", about: "Per second, by what happened to them.", unit: "ops", queries: one(rate("event", in("lease_events_total", "")), "{{event}}")},
		{title: "Safety nets", about: "Over the time shown: runs taken over, writes that the fence refused, panics, scrapes that could not count the database.", kind: stat, queries: []query{
			{expr: total("", in("runs_recovered_total", "")) + orZero, legend: "taken over"}, {expr: total("", in("fenced_writes_total", "")), legend: "fenced"},
			{expr: total("", in("panics_total", "")) + orZero, legend: "panics"}, {expr: total("", in("census_failures_total", "")), legend: "census failed"},
		}},
		{title: "Commit", about: "Time of appending to the journal. Every iteration waits for two commits.", unit: "s", queries: quantiles(in("db_query_duration_seconds", "", `query=~"Append.*"`))},
		{title: "Slowest statements", about: "The ten with the highest p99.", unit: "s", queries: one("topk(10, "+quantile("0.99", "query", in("db_query_duration_seconds", ""))+")", "{{query}}")},
		{title: "Statements", about: "Per second, the ten most frequent.", unit: "ops", queries: one("topk(10, "+rate("query", count(in("db_query_duration_seconds", "")))+")", "{{query}}")},
		{title: "Database connections", about: "Of the main pools, by state.", queries: one("sum by (state) ("+in("db_pool_connections", "")+")", "{{state}}")},
		{title: "Database errors", about: "Over the time shown, by class.", kind: stat, queries: []query{
			{expr: total("class", in("db_errors_total", "")) + orZero, legend: "{{class}}"}, {expr: total("", in("db_lost_commits_total", "")) + orZero, legend: "commits lost at a failover"},
		}},
		{title: "Event streams", about: "Open now, taken up again, and cut because nobody read them.", queries: []query{
			{expr: "sum(" + in("sse_streams", "") + ")", legend: "open"}, {expr: rate("", in("sse_resumes_total", "")) + " * 60", legend: "resumed a minute"},
			{expr: rate("", in("sse_slow_readers_total", "")) + " * 60", legend: "cut a minute"},
		}},
		{title: "Refused for load", about: "Requests per second that were told to come back later, by what was asked and why.", unit: "reqps", queries: one(rate("call, why", in("shed_requests_total", ""))+orZero, "{{call}} {{why}}")},
		{title: "Retention", about: "Over the time shown: runs deleted and exported, weeks of journals dropped, and passes that failed.", kind: stat, queries: []query{
			{expr: total("", in("retention_runs_deleted_total", "")) + orZero, legend: "deleted"}, {expr: total("", in("retention_runs_exported_total", "")) + orZero, legend: "exported"},
			{expr: total("", in("retention_partitions_dropped_total", "")) + orZero, legend: "weeks dropped"}, {expr: total("", in("retention_failures_total", "")) + orZero, legend: "failures"},
		}},
		{title: "Oldest run that is kept", about: "Time since it ended, as of the last pass of retention.", kind: stat, unit: "s", queries: one("max("+in("retention_oldest_run_age_seconds", "")+")", "age")},
		{title: "Requests again", about: "Requests with a request id, per second: new, replayed, or with another content.", unit: "ops", queries: one(rate("result", in("idempotency_total", "")), "{{result}}")},
		{title: "Results of callers' tools", about: "Submitted over the time shown, by what became of them.", kind: stat, queries: one(total("status", in("results_submitted_total", ""))+orZero, "{{status}}")},
		{title: "REST", about: "Requests per second, by status.", kind: stack, unit: "reqps", queries: one(`sum by (code) (rate(http_requests_total{namespace=~"$namespace"}[$__rate_interval]))`, "{{code}}")},
		{title: "REST latency", about: "p95 by method; streams are as long as somebody reads them.", unit: "s", queries: one(`histogram_quantile(0.95, sum by (le, method) (rate(http_request_duration_seconds_bucket{namespace=~"$namespace"}[$__rate_interval])))`, "{{method}}")},
		{title: "gRPC", about: "Calls per second, by code; those that REST makes are among them.", kind: stack, unit: "reqps", queries: one(`sum by (grpc_code) (rate(grpc_server_handled_total{namespace=~"$namespace"}[$__rate_interval]))`, "{{grpc_code}}")},
		{title: "Goroutines", about: "One for each run that is driven, and some.", queries: one(`go_goroutines{namespace=~"$namespace", job="loopd"}`, "{{instance}}")},
		{title: "Memory", about: "Resident.", unit: "bytes", queries: one(`process_resident_memory_bytes{namespace=~"$namespace", job="loopd"}`, "{{instance}}")},
		{title: "CPU", about: "Cores.", queries: one(`rate(process_cpu_seconds_total{namespace=~"$namespace", job="loopd"}[$__rate_interval])`, "{{instance}}")},
		{title: "Replicas", about: "Version, configuration and schema of each. They should be equal.", kind: rows, width: 16, queries: one(
			in("build_info", "")+" * on (instance) group_left (hash) "+in("config_info", ""), "{{instance}} {{version}} {{hash}}")},
		{title: "Handing over", about: "Replicas that hand their runs over to end, and the schema's version.", kind: stat, queries: []query{
			{expr: "sum(" + in("draining", "") + ")", legend: "draining"}, {expr: "max(" + in("schema_version", "") + ")", legend: "schema"},
			{expr: total("", in("label_overflow_total", "")), legend: "label overflows"},
		}},
	}}
}
