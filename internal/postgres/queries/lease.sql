-- name: RenewWorker :exec
INSERT INTO workers (worker_id, expires_at)
VALUES (@worker_id, clock_timestamp() + make_interval(secs => @ttl_seconds::double precision))
ON CONFLICT (worker_id) DO UPDATE SET expires_at = excluded.expires_at;

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
WITH claimable AS (
    SELECT r.tenant_id, r.run_id FROM runs r
    WHERE r.lease_owner IS NULL AND r.ended_at IS NULL AND r.available_at <= now()
      AND EXISTS (SELECT 1 FROM workers w WHERE w.worker_id = @worker_id::text AND w.expires_at > clock_timestamp())
    ORDER BY r.available_at LIMIT @max_runs::integer
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

-- name: ListSignalledRuns :many
SELECT tenant_id, run_id FROM runs WHERE lease_owner = @worker_id::text AND signals > 0;

-- name: ListReturnedWorkers :many
SELECT DISTINCT w.worker_id FROM workers w
JOIN (SELECT unnest(@worker_ids::text[]) AS worker_id, unnest(@since::timestamptz[]) AS since) lost ON lost.worker_id = w.worker_id
WHERE w.started_at > lost.since;

-- name: ListClaim :many
SELECT tenant_id, run_id, lease_epoch, clock_timestamp()::timestamptz AS listed_at FROM runs
WHERE lease_owner = @worker_id::text AND claim_id = @claim_id::text;
