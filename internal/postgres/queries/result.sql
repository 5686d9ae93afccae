-- name: GetFullResult :one
-- Of a call that was sent more than once the newest attempt counts, as in its head.
SELECT r.text FROM results r
WHERE r.tenant_id = @tenant_id AND r.run_id = @run_id AND r.call_id = @call_id
ORDER BY r.attempt DESC LIMIT 1;

-- name: GetToolCall :one
SELECT sqlc.embed(t), e.kind, e.body
FROM tool_calls t LEFT JOIN events e ON e.tenant_id = @tenant_id AND e.run_id = @run_id AND e.seq = t.result_seq
WHERE t.tenant_id = @tenant_id AND t.run_id = @run_id AND t.call_id = @call_id;
