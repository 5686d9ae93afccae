-- The view of approvals takes results from where they are. It is in a file of its own, as
-- its readers lock it before they lock the calls.

-- +goose Up

SET LOCAL lock_timeout = '5s'; -- whoever waits for a lock holds up all others

-- As before, but for the result.
CREATE OR REPLACE VIEW approvals AS
SELECT t.tenant_id, t.run_id, t.call_id, r.agent, r.agent_version,
       (CASE WHEN t.owed = 'answer' THEN 'ANSWER' ELSE 'APPROVE' END)::text AS kind,
       (CASE
           WHEN t.owed = 'answer' AND t.submitted_attempt > 0 AND t.submitted_attempt = t.attempt
               THEN CASE WHEN t.submitted_outcome = 'ok' THEN 'APPROVED' ELSE 'DENIED' END
           WHEN t.owed = 'answer' AND t.state = 'AWAITING_RESULT' AND r.ended_at IS NULL THEN 'PENDING'
           WHEN t.owed = 'answer' AND t.state = 'FAILED' THEN 'EXPIRED'
           WHEN t.owed = 'answer' THEN 'CANCELLED'
           WHEN t.decided_at IS NOT NULL AND t.state <> 'DENIED' THEN 'APPROVED'
           -- Whoever approved a moment too late is not the one who denied.
           WHEN t.decided_at IS NOT NULL AND (t.decided_by <> '' OR NOT t.verdict_approved) THEN 'DENIED'
           WHEN t.decided_at IS NOT NULL THEN 'EXPIRED'
           WHEN t.state <> 'AWAITING_APPROVAL' OR r.ended_at IS NOT NULL THEN 'CANCELLED'
           WHEN t.verdict IS NULL THEN 'PENDING'
           WHEN t.verdict_approved THEN 'APPROVED'
           ELSE 'DENIED'
        END)::text AS approval,
       (r.ended_at IS NULL
           AND ((t.state = 'AWAITING_APPROVAL' AND t.verdict IS NULL)
             OR (t.state = 'AWAITING_RESULT' AND t.owed = 'answer' AND t.submitted_attempt < t.attempt)))::boolean AS waits,
       t.tool, t.call, t.iteration, t.args_sha256, t.effect, t.state, t.outcome, t.attempt, t.idem_key,
       (CASE WHEN t.result_seq IS NULL OR t.result::text <> '""' THEN t.result
             ELSE (SELECT readable(e.body) -> 'content' FROM events e WHERE e.tenant_id = t.tenant_id AND e.run_id = t.run_id AND e.seq = t.result_seq)
        END)::json AS result, t.cut, t.bytes,
       t.started_at, t.finished_at, t.until_at, t.child_id, t.asked, t.asked_at, t.decided_at, t.decided_by, t.decision, t.edited,
       t.verdict, t.verdict_at
FROM tool_calls t JOIN runs r USING (tenant_id, run_id)
WHERE t.asked_at IS NOT NULL;
