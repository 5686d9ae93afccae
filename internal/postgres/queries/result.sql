-- name: GetFullResult :one
-- Of a call that was sent more than once the newest attempt counts, as in its head.
SELECT r.text FROM results r
WHERE r.tenant_id = @tenant_id AND r.run_id = @run_id AND r.call_id = @call_id
ORDER BY r.attempt DESC LIMIT 1;

-- name: GetToolCall :one
SELECT * FROM tool_calls WHERE tenant_id = @tenant_id AND run_id = @run_id AND call_id = @call_id;
