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

-- name: ListRunPlaces :many
SELECT r.tenant_id, r.run_id, r.next_seq, r.state FROM runs r
JOIN (SELECT unnest(@tenants::text[]) AS tenant_id, unnest(@runs::text[])::uuid AS run_id) a USING (tenant_id, run_id);

-- name: CreateRuns :many
-- Creates of many callers in one commit. A run whose key was used before, and one that is
-- there already, is left out of the result: its caller finds out alone what that means.
WITH asked AS (
    SELECT unnest(@tenants::text[]) AS tenant_id, unnest(@runs::text[])::uuid AS run_id,
           unnest(@agents::text[]) AS agent, unnest(@agent_versions::bigint[]) AS agent_version,
           unnest(@inputs::text[]) AS input, unnest(@limits::text[]) AS limits, unnest(@labels::text[]) AS labels,
           unnest(@sources::text[]) AS source, unnest(@output_schemas::boolean[]) AS has_output_schema,
           unnest(@priorities::smallint[]) AS priority, unnest(@bodies::text[]) AS body, unnest(@money::bigint[]) AS limit_pico,
           unnest(@methods::text[]) AS method, unnest(@keys::text[]) AS key, unnest(@fingerprints::bytea[]) AS fingerprint
), keyed AS (
    -- In the order of the keys, so that two of these never wait for each other.
    INSERT INTO idempotency (tenant_id, method, key, fingerprint, resource)
    SELECT a.tenant_id, a.method, a.key, a.fingerprint, a.run_id::text FROM asked a WHERE a.key <> ''
    ORDER BY a.tenant_id, a.method, a.key
    ON CONFLICT (tenant_id, method, key) DO NOTHING
    RETURNING tenant_id, resource
), made AS (
    INSERT INTO runs (tenant_id, run_id, agent, agent_version, input, limits, labels, source, has_output_schema,
        priority, next_seq, state, phase)
    SELECT a.tenant_id, a.run_id, a.agent, a.agent_version, a.input::json, a.limits::json, a.labels::json, a.source,
           a.has_output_schema, a.priority, 2, 'QUEUED', 'queue'
    FROM asked a LEFT JOIN keyed k ON k.tenant_id = a.tenant_id AND k.resource = a.run_id::text
    WHERE a.key = '' OR k.resource IS NOT NULL
    ON CONFLICT (tenant_id, run_id) DO NOTHING
    RETURNING tenant_id, run_id
), begun AS (
    INSERT INTO events (tenant_id, run_id, seq, kind, at, epoch, body)
    SELECT m.tenant_id, m.run_id, 1, 'created', now(), 0, a.body::json FROM made m JOIN asked a USING (tenant_id, run_id)
), funded AS (
    INSERT INTO accounts (tenant_id, account, limit_pico)
    SELECT m.tenant_id, 'run:' || m.run_id::text, a.limit_pico FROM made m JOIN asked a USING (tenant_id, run_id)
)
SELECT m.tenant_id, m.run_id, (pg_notify('loopd_wake', '') IS NOT NULL)::boolean AS woke FROM made m;

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

-- name: ListRunsIn :many
-- Only runs in some states: those that live have an index of their own, and those that
-- have ended one in which each state is in order.
SELECT tenant_id, run_id, agent, agent_version, input, limits, labels, source, has_output_schema, created_at, next_seq,
    state, phase, iterations, model_calls, tool_calls, attempts, usage, cost, estimated_pico, held_pico,
    answer, partial, unverified, stop, required_actions, side_effects, started_at, wake_at, ended_at,
    parent_run_id, parent_call_id, root_run_id, depth, priority
FROM (
    (SELECT l.* FROM runs l
     WHERE l.tenant_id = @tenant_id AND l.ended_at IS NULL AND l.state = ANY (@states::text[])
       AND (l.created_at, l.run_id) < (@before_time::timestamptz, @before_id::uuid)
     ORDER BY l.created_at DESC, l.run_id DESC LIMIT @page_size::integer)
    UNION ALL
    SELECT e.* FROM (SELECT unnest(@states::text[]) AS word) s CROSS JOIN LATERAL (
        SELECT r.* FROM runs r
        WHERE r.tenant_id = @tenant_id AND r.ended_at IS NOT NULL AND r.state = s.word
          AND (r.created_at, r.run_id) < (@before_time::timestamptz, @before_id::uuid)
        ORDER BY r.created_at DESC, r.run_id DESC LIMIT @page_size::integer) e
) found
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
-- With the events that hold their results.
SELECT sqlc.embed(t), e.kind, e.body
FROM tool_calls t LEFT JOIN events e ON e.tenant_id = @tenant_id AND e.run_id = @run_id AND e.seq = t.result_seq
WHERE t.tenant_id = @tenant_id AND t.run_id = @run_id
ORDER BY t.ordinal;

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
