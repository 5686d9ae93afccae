-- name: RenewWorker :one
-- Returns the newest migration that all programs on the database have.
INSERT INTO workers (worker_id, expires_at, knows)
VALUES (@worker_id, clock_timestamp() + make_interval(secs => @ttl_seconds::double precision), @knows::bigint)
ON CONFLICT (worker_id) DO UPDATE SET expires_at = excluded.expires_at
RETURNING least(@knows::bigint, (SELECT min(w.knows) FROM workers w))::bigint AS all_know;

-- name: DeleteExpiredWorkers :execrows
-- The foreign key of runs.lease_owner gives their runs back. Two reapers share the
-- work instead of waiting for each other.
WITH expired AS (
    DELETE FROM workers WHERE worker_id IN (
        SELECT w.worker_id FROM workers w WHERE w.expires_at < clock_timestamp() FOR UPDATE SKIP LOCKED)
    RETURNING worker_id
)
SELECT pg_notify('loopd_wake', '') FROM expired;

-- name: DeleteWorker :exec
WITH retired AS (
    DELETE FROM workers WHERE worker_id = @worker_id RETURNING worker_id
)
SELECT pg_notify('loopd_wake', '') FROM retired;

-- name: ClaimRuns :many
-- Tenants take turns: of each one's runs the first is next, before anybody's second;
-- what the worker drives already counts as taken. Within a tenant the longest wait goes
-- first, a priority being a head start of a minute, so that nobody starves.
--
-- While few runs wait they are all looked at. When there are more than the window holds,
-- each tenant's next are found by a probe of an index, or the first tenant in line
-- would hide the others. Of each at least eight are looked at, so that who gets fewer than
-- eight runs has got all. What the worker leaves to others must not fill the window.
WITH RECURSIVE oldest AS MATERIALIZED (
    SELECT r.tenant_id, r.run_id, r.priority, r.available_at FROM runs r
    WHERE r.lease_owner IS NULL AND r.ended_at IS NULL AND r.available_at <= now()
      AND EXISTS (SELECT 1 FROM workers w WHERE w.worker_id = @worker_id::text AND w.expires_at > clock_timestamp())
      AND (r.tenant_id, r.run_id) NOT IN (SELECT unnest(@skipped_tenants::text[]), unnest(@skipped_runs::text[])::uuid)
    ORDER BY r.available_at LIMIT @claim_window::integer
), more AS (
    SELECT 1 FROM oldest HAVING count(*) >= @claim_window::integer
), tenants (tenant_id) AS (
    SELECT (SELECT min(r.tenant_id) FROM runs r WHERE r.lease_owner IS NULL AND r.ended_at IS NULL) FROM more
    UNION ALL
    SELECT (SELECT min(r.tenant_id) FROM runs r WHERE r.lease_owner IS NULL AND r.ended_at IS NULL AND r.tenant_id > t.tenant_id)
    FROM tenants t WHERE t.tenant_id IS NOT NULL
), share AS (
    SELECT 8 + (SELECT count(*) FROM oldest) / (count(*) + 1) AS most FROM tenants
), candidates AS (
    SELECT o.tenant_id, o.run_id, o.priority, o.available_at FROM oldest o WHERE NOT EXISTS (SELECT 1 FROM tenants)
    UNION ALL
    SELECT q.tenant_id, q.run_id, q.priority, q.available_at
    FROM tenants t CROSS JOIN LATERAL (
        SELECT r.tenant_id, r.run_id, r.priority, r.available_at FROM runs r
        WHERE r.tenant_id = t.tenant_id AND claim_order(r.available_at, r.priority) <= now() + interval '1 minute'
          AND r.lease_owner IS NULL AND r.ended_at IS NULL AND r.available_at <= now()
          AND (r.tenant_id, r.run_id) NOT IN (SELECT unnest(@skipped_tenants::text[]), unnest(@skipped_runs::text[])::uuid)
        ORDER BY claim_order(r.available_at, r.priority) LIMIT (SELECT h.most FROM share h)
    ) q
), ranked AS (
    SELECT w.tenant_id, w.run_id, w.since, coalesce(d.runs, 0)
         + row_number() OVER (PARTITION BY w.tenant_id ORDER BY w.since, w.run_id) AS place
    FROM (SELECT c.tenant_id, c.run_id, claim_order(c.available_at, c.priority) AS since FROM candidates c) w
    LEFT JOIN (SELECT unnest(@driven_tenants::text[]) AS tenant_id, unnest(@driven_runs::integer[]) AS runs) d USING (tenant_id)
), first AS (
    SELECT k.tenant_id, k.run_id, k.place, k.since FROM ranked k
    WHERE @per_tenant::integer = 0 OR k.place <= @per_tenant::integer
    ORDER BY k.place, k.since LIMIT @claim_window::integer
), claimable AS (
    -- What somebody else has taken meanwhile is skipped: there are more candidates than room.
    SELECT r.tenant_id, r.run_id FROM first k JOIN runs r ON r.tenant_id = k.tenant_id AND r.run_id = k.run_id
    WHERE r.lease_owner IS NULL AND r.ended_at IS NULL AND r.available_at <= now()
    ORDER BY k.place, k.since LIMIT @max_runs::integer
    FOR UPDATE OF r SKIP LOCKED
)
UPDATE runs r SET
    lease_owner = @worker_id::text,
    lease_epoch = r.lease_epoch + 1,
    claim_id = @claim_id::text,
    state = CASE WHEN r.state = 'CANCELLING' THEN r.state ELSE 'RUNNING' END
FROM claimable c
WHERE r.tenant_id = c.tenant_id AND r.run_id = c.run_id
RETURNING r.tenant_id, r.run_id, r.lease_epoch, clock_timestamp()::timestamptz AS claimed_at;

-- name: QueueAge :one
-- How long the run that waits longest has been waiting to be claimed, in seconds; 0: none waits.
SELECT coalesce((SELECT extract(epoch FROM now() - r.available_at) FROM runs r
    WHERE r.lease_owner IS NULL AND r.ended_at IS NULL AND r.available_at <= now()
    ORDER BY r.available_at LIMIT 1), 0)::double precision AS seconds;

-- name: QueuedRuns :one
-- How many of a tenant's runs wait to be claimed, as far as they are counted.
SELECT count(*)::integer AS runs FROM (
    SELECT 1 FROM runs r
    WHERE r.tenant_id = @tenant_id AND r.lease_owner IS NULL AND r.ended_at IS NULL AND r.state = 'QUEUED' AND r.available_at <= now()
    LIMIT @most::integer) q;

-- name: ListSignalledRuns :many
SELECT tenant_id, run_id FROM runs WHERE lease_owner = @worker_id::text AND signals > 0;

-- name: ListReturnedWorkers :many
SELECT DISTINCT w.worker_id FROM workers w
JOIN (SELECT unnest(@worker_ids::text[]) AS worker_id, unnest(@since::timestamptz[]) AS since) lost ON lost.worker_id = w.worker_id
WHERE w.started_at > lost.since;

-- name: ListClaim :many
SELECT tenant_id, run_id, lease_epoch, clock_timestamp()::timestamptz AS listed_at FROM runs
WHERE lease_owner = @worker_id::text AND claim_id = @claim_id::text;
