-- name: InsertRun :execrows
-- A repeated try finds the run that an earlier one committed unheard.
INSERT INTO runs (tenant_id, run_id, agent, agent_version, input, limits, labels, source, has_output_schema,
    parent_run_id, parent_call_id, root_run_id, depth, priority, next_seq, state, phase)
VALUES (@tenant_id, @run_id, @agent, @agent_version, @input, @limits, @labels, @source, @has_output_schema,
    @parent_run_id, @parent_call_id, @root_run_id, @depth, @priority, 2, 'QUEUED', 'queue')
ON CONFLICT (tenant_id, run_id) DO NOTHING;

-- name: InsertFirstEvent :exec
INSERT INTO events (tenant_id, run_id, seq, kind, at, epoch, body)
VALUES (@tenant_id, @run_id, 1, @kind, now(), 0, @body);

-- name: InsertRunAccount :exec
INSERT INTO accounts (tenant_id, account, limit_pico)
VALUES (@tenant_id, @account, @limit_pico);

-- name: RunExists :one
SELECT EXISTS (SELECT 1 FROM runs WHERE tenant_id = @tenant_id AND run_id = @run_id);

-- name: NotifyWake :exec
SELECT pg_notify('loopd_wake', '');

-- name: GetRun :one
SELECT tenant_id, run_id, agent, agent_version, input, limits, labels, source, has_output_schema, created_at, next_seq,
    state, phase, iterations, model_calls, tool_calls, attempts, usage, cost, estimated_pico, held_pico,
    answer, partial, unverified, stop, required_actions, side_effects, started_at, wake_at, ended_at,
    parent_run_id, parent_call_id, root_run_id, depth, priority
FROM runs WHERE tenant_id = @tenant_id AND run_id = @run_id;

-- name: GetRunState :one
SELECT state FROM runs WHERE tenant_id = @tenant_id AND run_id = @run_id;

-- name: ListRuns :many
SELECT tenant_id, run_id, agent, agent_version, input, limits, labels, source, has_output_schema, created_at, next_seq,
    state, phase, iterations, model_calls, tool_calls, attempts, usage, cost, estimated_pico, held_pico,
    answer, partial, unverified, stop, required_actions, side_effects, started_at, wake_at, ended_at,
    parent_run_id, parent_call_id, root_run_id, depth, priority
FROM runs
WHERE tenant_id = @tenant_id
  AND (created_at, run_id) < (@before_time::timestamptz, @before_id::uuid)
  AND (@agent::text = '' OR agent = @agent::text)
  AND (cardinality(@states::text[]) = 0 OR state = ANY (@states::text[]))
ORDER BY created_at DESC, run_id DESC
LIMIT @page_size::integer;

-- name: ListChildRuns :many
SELECT tenant_id, run_id, agent, agent_version, input, limits, labels, source, has_output_schema, created_at, next_seq,
    state, phase, iterations, model_calls, tool_calls, attempts, usage, cost, estimated_pico, held_pico,
    answer, partial, unverified, stop, required_actions, side_effects, started_at, wake_at, ended_at,
    parent_run_id, parent_call_id, root_run_id, depth, priority
FROM runs
WHERE tenant_id = @tenant_id AND parent_run_id = @parent_run_id::uuid
  AND (created_at, run_id) < (@before_time::timestamptz, @before_id::uuid)
  AND (@agent::text = '' OR agent = @agent::text)
  AND (cardinality(@states::text[]) = 0 OR state = ANY (@states::text[]))
ORDER BY created_at DESC, run_id DESC
LIMIT @page_size::integer;

-- name: ListToolCalls :many
SELECT * FROM tool_calls WHERE tenant_id = @tenant_id AND run_id = @run_id
ORDER BY ordinal;

-- name: LockRun :one
SELECT state FROM runs WHERE tenant_id = @tenant_id AND run_id = @run_id FOR UPDATE;

-- name: InsertSignal :one
INSERT INTO run_signals (tenant_id, run_id, kind, body)
VALUES (@tenant_id, @run_id, @kind, @body)
RETURNING id;

-- name: SignalRun :exec
UPDATE runs SET signals = @signal, available_at = least(available_at, now()),
    state = CASE WHEN @cancel::boolean THEN 'CANCELLING' ELSE state END
WHERE tenant_id = @tenant_id AND run_id = @run_id;

-- name: CountLiveRuns :many
SELECT state, count(*) AS runs FROM runs WHERE ended_at IS NULL GROUP BY state;
