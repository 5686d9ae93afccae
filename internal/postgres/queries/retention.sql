-- name: LeadRetention :one
-- One replica deletes at a time, for one transaction.
SELECT pg_try_advisory_xact_lock(@key::bigint)::boolean AS leads;

-- name: AllowDeletion :exec
-- For one transaction. What needs the lock of a whole table gives up soon, as everybody
-- else waits behind it.
SELECT set_config('loopd.retention', 'on', true), set_config('lock_timeout', '200ms', true), set_config('statement_timeout', '60s', true);

-- name: MakeJournalPartitions :one
SELECT make_journal_partitions(now() + interval '5 weeks')::integer AS made;

-- name: ListJournalPartitions :many
SELECT suffix, from_id, to_id, to_time FROM journal_partitions ORDER BY from_id;

-- name: PartitionIsKept :one
-- Whether a run in the partition is kept, or one that belongs to the tree of such a run.
-- Tenant by tenant, as all keys begin with the tenant.
WITH RECURSIVE tenants AS (
    (SELECT r.tenant_id FROM runs r ORDER BY r.tenant_id LIMIT 1)
    UNION ALL
    SELECT n.tenant_id FROM tenants t
    CROSS JOIN LATERAL (SELECT r.tenant_id FROM runs r WHERE r.tenant_id > t.tenant_id ORDER BY r.tenant_id LIMIT 1) n
)
SELECT (EXISTS (
    SELECT 1 FROM tenants t
    CROSS JOIN LATERAL (
        SELECT 1 FROM runs r
        WHERE r.tenant_id = t.tenant_id AND r.run_id >= @from_id::uuid AND r.run_id < @to_id::uuid
          AND (NOT expired(r, @otherwise::bigint) OR r.root_run_id < @from_id::uuid OR r.root_run_id >= @to_id::uuid)
        LIMIT 1) kept
) OR EXISTS (
    SELECT 1 FROM tenants t
    CROSS JOIN LATERAL (
        SELECT 1 FROM runs r
        WHERE r.tenant_id = t.tenant_id AND r.root_run_id >= @from_id::uuid AND r.root_run_id < @to_id::uuid
          AND NOT expired(r, @otherwise::bigint)
        LIMIT 1) kept
))::boolean AS kept;

-- name: DropJournalPartition :exec
SELECT drop_journal_partition(@suffix);

-- name: ListRunAgents :many
-- The agents whose runs have ended, with their oldest: one look into the index for each.
WITH RECURSIVE pairs AS (
    (SELECT r.tenant_id, r.agent, r.ended_at FROM runs r
     WHERE r.ended_at IS NOT NULL AND r.parent_run_id IS NULL
     ORDER BY r.tenant_id, r.agent, r.ended_at, r.run_id LIMIT 1)
    UNION ALL
    SELECT n.tenant_id, n.agent, n.ended_at FROM pairs p
    CROSS JOIN LATERAL (
        SELECT r.tenant_id, r.agent, r.ended_at FROM runs r
        WHERE r.ended_at IS NOT NULL AND r.parent_run_id IS NULL AND (r.tenant_id, r.agent) > (p.tenant_id, p.agent)
        ORDER BY r.tenant_id, r.agent, r.ended_at, r.run_id LIMIT 1) n
)
SELECT p.tenant_id, p.agent, p.ended_at::timestamptz AS oldest, keep_seconds(p.tenant_id, p.agent, @otherwise::bigint)::bigint AS keep_seconds
FROM pairs p;

-- name: ListExpiredRoots :many
-- Runs that are nobody's children, behind a place, the one that ended first before all
-- others. Those in the span from defer_from are left for their partition to end.
SELECT r.run_id, r.ended_at::timestamptz AS ended_at FROM runs r
WHERE r.tenant_id = @tenant_id AND r.agent = @agent AND r.ended_at IS NOT NULL AND r.parent_run_id IS NULL
  AND r.ended_at < now() - make_interval(secs => @keep_seconds::double precision)
  AND (r.ended_at, r.run_id) > (@after_time::timestamptz, @after_id::uuid)
  AND (r.run_id < @defer_from::uuid OR r.run_id >= @defer_to::uuid)
ORDER BY r.ended_at, r.run_id
LIMIT @page_size::integer;

-- name: ListTrees :many
SELECT r.run_id, r.run_id AS root_id, expired(r, @otherwise::bigint)::boolean AS expired FROM runs r
WHERE r.tenant_id = @tenant_id AND r.run_id = ANY (CAST(@roots::text[] AS uuid[]))
UNION ALL
SELECT r.run_id, r.root_run_id::uuid, expired(r, @otherwise::bigint)::boolean FROM runs r
WHERE r.tenant_id = @tenant_id AND r.root_run_id = ANY (CAST(@roots::text[] AS uuid[]));

-- name: ListUnfoldedChunks :many
SELECT run_id, budget_id, starts_at FROM chunks
WHERE tenant_id = @tenant_id AND run_id = ANY (CAST(@runs::text[] AS uuid[])) AND state <> 'folded'
ORDER BY budget_id COLLATE "C", starts_at;

-- name: KeepUsage :exec
-- What deleted runs cost stays known, by day.
INSERT INTO usage_deleted AS u (tenant_id, day, agent, model, model_calls, cost_pico)
SELECT h.tenant_id, (h.settled_at AT TIME ZONE 'UTC')::date, r.agent, h.model, count(*), sum(h.settled_pico)
FROM holds h JOIN runs r USING (tenant_id, run_id)
WHERE h.tenant_id = @tenant_id AND h.run_id = ANY (CAST(@runs::text[] AS uuid[])) AND h.settled_at IS NOT NULL
GROUP BY 1, 2, 3, 4
ORDER BY 1, 2, 3, 4
ON CONFLICT (tenant_id, day, agent, model) DO UPDATE SET
    model_calls = u.model_calls + excluded.model_calls, cost_pico = u.cost_pico + excluded.cost_pico;

-- name: DeleteEventsOfRuns :exec
DELETE FROM events WHERE tenant_id = @tenant_id AND run_id = ANY (CAST(@runs::text[] AS uuid[]));

-- name: DeleteResultsOfRuns :exec
DELETE FROM results WHERE tenant_id = @tenant_id AND run_id = ANY (CAST(@runs::text[] AS uuid[]));

-- name: DeleteAttachmentsOfRuns :exec
DELETE FROM attachments WHERE tenant_id = @tenant_id AND run_id = ANY (CAST(@runs::text[] AS uuid[]));

-- name: DeleteToolCallsOfRuns :exec
DELETE FROM tool_calls WHERE tenant_id = @tenant_id AND run_id = ANY (CAST(@runs::text[] AS uuid[]));

-- name: DeleteHoldsOfRuns :exec
DELETE FROM holds WHERE tenant_id = @tenant_id AND run_id = ANY (CAST(@runs::text[] AS uuid[]));

-- name: DeleteChunksOfRuns :exec
DELETE FROM chunks WHERE tenant_id = @tenant_id AND run_id = ANY (CAST(@runs::text[] AS uuid[]));

-- name: DeleteSignalsOfRuns :exec
DELETE FROM run_signals WHERE tenant_id = @tenant_id AND run_id = ANY (CAST(@runs::text[] AS uuid[]));

-- name: DeleteReportsOfRuns :exec
DELETE FROM trip_reports WHERE tenant_id = @tenant_id AND run_id = ANY (CAST(@runs::text[] AS uuid[]));

-- name: DeleteAccountsOfRuns :exec
DELETE FROM accounts WHERE tenant_id = @tenant_id AND account = ANY (SELECT 'run:' || unnest(@runs::text[]));

-- name: DeleteRuns :execrows
DELETE FROM runs WHERE tenant_id = @tenant_id AND run_id = ANY (CAST(@runs::text[] AS uuid[])) AND ended_at IS NOT NULL;

-- name: DeleteOldKeys :one
-- A page of keys, and those of them deleted that are older than a day and made no run
-- that there still is.
WITH page AS (
    SELECT i.tenant_id, i.method, i.key, i.resource, i.created_at FROM idempotency i
    WHERE (i.tenant_id, i.method, i.key) > (@after_tenant::text, @after_method::text, @after_key::text)
    ORDER BY i.tenant_id, i.method, i.key LIMIT @page_size::integer
), gone AS (
    DELETE FROM idempotency i USING page p
    WHERE i.tenant_id = p.tenant_id AND i.method = p.method AND i.key = p.key AND p.created_at < now() - interval '24 hours'
      AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.tenant_id = p.tenant_id
          AND r.run_id = CASE WHEN p.resource ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}' THEN left(p.resource, 36)::uuid END)
    RETURNING i.key
)
SELECT p.tenant_id, p.method, p.key, (SELECT count(*) FROM gone)::bigint AS deleted
FROM page p ORDER BY p.tenant_id DESC, p.method DESC, p.key DESC LIMIT 1;

-- name: SetRetention :exec
INSERT INTO retentions (tenant_id, agent, keep_seconds, changed_by)
VALUES (@tenant_id, @agent, sqlc.narg('keep_seconds'), @changed_by)
ON CONFLICT (tenant_id, agent) DO UPDATE SET keep_seconds = excluded.keep_seconds, changed_by = excluded.changed_by, changed_at = now();

-- name: UnsetRetention :exec
DELETE FROM retentions WHERE tenant_id = @tenant_id AND agent = @agent;

-- name: ListRetentions :many
SELECT agent, keep_seconds, changed_by, changed_at FROM retentions WHERE tenant_id = @tenant_id ORDER BY agent;

-- name: CountExpired :many
-- Of each agent of a tenant: its runs that have ended and are nobody's children, and those
-- of them that were kept for as long as they had to be.
WITH ended AS (
    SELECT r.agent, r.ended_at FROM runs r WHERE r.tenant_id = @tenant_id::text AND r.ended_at IS NOT NULL AND r.parent_run_id IS NULL
), agents AS (
    SELECT e.agent, count(*) AS ended, min(e.ended_at) AS oldest, keep_seconds(@tenant_id::text, e.agent, @otherwise::bigint) AS keep_seconds
    FROM ended e GROUP BY e.agent
)
SELECT a.agent, a.ended, a.oldest::timestamptz AS oldest, a.keep_seconds::bigint AS keep_seconds,
       (SELECT count(*) FROM ended e WHERE e.agent = a.agent AND a.keep_seconds > 0
        AND e.ended_at < now() - a.keep_seconds * interval '1 second')::bigint AS expired
FROM agents a ORDER BY a.agent;

-- name: SumDeletedUsage :one
SELECT coalesce(sum(model_calls), 0)::bigint AS model_calls, usd(coalesce(sum(cost_pico), 0))::text AS cost_usd
FROM usage_deleted
WHERE tenant_id = @tenant_id AND day >= @first_day::date AND day < @end_day::date
  AND (@agent::text = '' OR agent = @agent::text) AND (@model::text = '' OR model = @model::text);
