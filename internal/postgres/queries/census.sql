-- name: EldestWorker :one
-- One of the live workers, the same for all who ask. Two may believe it of themselves
-- for the moment in which one dies.
SELECT worker_id FROM workers WHERE expires_at > clock_timestamp() ORDER BY started_at, worker_id LIMIT 1;

-- name: MeasureQueue :one
-- Runs that a worker could take now.
SELECT count(*) FILTER (WHERE priority > 0) AS high, count(*) FILTER (WHERE priority = 0) AS normal, count(*) FILTER (WHERE priority < 0) AS low,
       greatest(coalesce(extract(epoch FROM clock_timestamp() - min(available_at)), 0), 0)::double precision AS oldest_seconds
FROM runs WHERE lease_owner IS NULL AND ended_at IS NULL AND available_at <= clock_timestamp();

-- name: MeasureApprovals :one
-- What waits for a person, for how long, and how much of the time that there is.
SELECT count(*) AS calls,
       greatest(coalesce(max(extract(epoch FROM clock_timestamp() - asked_at)), 0), 0)::double precision AS oldest_seconds,
       greatest(coalesce(max(extract(epoch FROM clock_timestamp() - asked_at)
           / nullif(extract(epoch FROM until_at - asked_at), 0)), 0), 0)::double precision AS used_ratio
FROM approvals WHERE waits;

-- name: MeasureMoney :one
SELECT (SELECT coalesce(sum(held_pico), 0) FROM runs WHERE ended_at IS NULL)::bigint AS held_pico,
       (SELECT coalesce(sum(amount_pico), 0) FROM budgets WHERE archived_at IS NULL AND scope = 'TENANT' AND span = 'DAY')::bigint AS daily_pico,
       (SELECT coalesce(sum(amount_pico), 0) FROM budgets WHERE archived_at IS NULL AND scope = 'TENANT' AND span = 'MONTH')::bigint AS monthly_pico;
