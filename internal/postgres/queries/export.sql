-- name: ListModelCalls :many
SELECT call, amount_pico, settled_pico, opened_at, settled_at, model, purpose, price_version, input_uncached, cache_read,
    cache_write_5m, cache_write_1h, output, reasoning, estimated
FROM holds WHERE tenant_id = @tenant_id AND run_id = @run_id
ORDER BY call;

-- name: ListResultKeys :many
SELECT call_id, attempt FROM results WHERE tenant_id = @tenant_id AND run_id = @run_id ORDER BY call_id, attempt;

-- name: GetResultOf :one
SELECT text FROM results WHERE tenant_id = @tenant_id AND run_id = @run_id AND call_id = @call_id AND attempt = @attempt;
