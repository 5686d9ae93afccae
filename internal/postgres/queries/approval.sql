-- name: DecideCall :one
-- One statement checks and takes the decision, on the database's clock. The run's
-- row is locked first, as by whoever appends to the run, then the call's: what is
-- read of both is the newest, however long that took.
WITH run AS (
    SELECT r.tenant_id, r.run_id, r.ended_at IS NOT NULL AS ended
    FROM runs r WHERE r.tenant_id = @tenant_id AND r.run_id = @run_id
    FOR UPDATE
), call AS (
    SELECT t.tenant_id, t.run_id, t.call_id, run.ended, t.state, t.attempt, t.args_sha256, t.until_at,
           t.verdict, t.verdict_approved, t.decided_at, t.decided_by, t.decision, t.edited
    FROM tool_calls t JOIN run USING (tenant_id, run_id)
    WHERE t.call_id = @call_id
    FOR UPDATE OF t
), decided AS (
    UPDATE tool_calls t SET verdict = @body::json, verdict_approved = @approved::boolean, verdict_at = clock_timestamp()
    FROM call c
    WHERE t.tenant_id = c.tenant_id AND t.run_id = c.run_id AND t.call_id = c.call_id
      AND NOT c.ended AND c.state = 'AWAITING_APPROVAL' AND c.verdict IS NULL AND c.args_sha256 = @args_sha256::text
      AND coalesce(c.until_at, 'infinity') > clock_timestamp()
    RETURNING t.tenant_id, t.run_id
), signal AS (
    INSERT INTO run_signals (tenant_id, run_id, kind, body)
    SELECT d.tenant_id, d.run_id, 'approval_decided', @body::json FROM decided d
    RETURNING tenant_id, run_id, id
), heard AS (
    UPDATE runs r SET signals = s.id, available_at = least(r.available_at, now())
    FROM signal s WHERE r.tenant_id = s.tenant_id AND r.run_id = s.run_id
    RETURNING pg_notify('loopd_wake', '')
)
SELECT (EXISTS (SELECT 1 FROM heard))::boolean AS accepted, c.ended::boolean AS ended, c.state, c.attempt, c.args_sha256,
       (coalesce(c.until_at, 'infinity') <= clock_timestamp())::boolean AS expired,
       c.verdict, c.verdict_approved, c.decided_at, c.decided_by, c.decision, c.edited
FROM call c;

-- name: SubmitResult :one
-- As DecideCall. Only clients and people give results, each once for an attempt.
WITH run AS (
    SELECT r.tenant_id, r.run_id, r.ended_at IS NOT NULL AS ended
    FROM runs r WHERE r.tenant_id = @tenant_id AND r.run_id = @run_id
    FOR UPDATE
), call AS (
    SELECT t.tenant_id, t.run_id, t.call_id, run.ended, t.state, t.attempt, t.owed, t.until_at,
           t.submitted_attempt, t.submitted_sha256
    FROM tool_calls t JOIN run USING (tenant_id, run_id)
    WHERE t.call_id = @call_id
    FOR UPDATE OF t
), accepted AS (
    UPDATE tool_calls t SET submitted_attempt = c.attempt, submitted_sha256 = @sha256, submitted_outcome = @outcome
    FROM call c
    WHERE t.tenant_id = c.tenant_id AND t.run_id = c.run_id AND t.call_id = c.call_id
      AND NOT c.ended AND c.state = 'AWAITING_RESULT' AND c.owed <> ''
      AND c.attempt = @attempt::integer AND c.submitted_attempt < c.attempt
      AND coalesce(c.until_at, 'infinity') > clock_timestamp()
    RETURNING t.tenant_id, t.run_id
), signal AS (
    INSERT INTO run_signals (tenant_id, run_id, kind, body)
    SELECT a.tenant_id, a.run_id, 'result_submitted', @body::json FROM accepted a
    RETURNING tenant_id, run_id, id
), heard AS (
    UPDATE runs r SET signals = s.id, available_at = least(r.available_at, now())
    FROM signal s WHERE r.tenant_id = s.tenant_id AND r.run_id = s.run_id
    RETURNING pg_notify('loopd_wake', '')
)
SELECT (EXISTS (SELECT 1 FROM heard))::boolean AS accepted, c.ended::boolean AS ended, c.state, c.attempt, c.owed,
       (coalesce(c.until_at, 'infinity') <= clock_timestamp())::boolean AS expired, c.submitted_attempt, c.submitted_sha256
FROM call c;

-- name: GetApproval :one
SELECT * FROM approvals WHERE tenant_id = @tenant_id AND run_id = @run_id AND call_id = @call_id;

-- name: ListWaitingApprovals :many
SELECT * FROM approvals
WHERE tenant_id = @tenant_id AND waits
  AND (until_at, run_id, call_id) > (@after_until::timestamptz, @after_run::uuid, @after_call::text)
  AND (@agent::text = '' OR agent = @agent::text) AND (@tool::text = '' OR tool = @tool::text)
ORDER BY until_at, run_id, call_id
LIMIT @page_size::integer;

-- name: ListAskedApprovals :many
SELECT * FROM approvals
WHERE tenant_id = @tenant_id
  AND (asked_at, run_id, call_id) < (@before_asked::timestamptz, @before_run::uuid, @before_call::text)
  AND (@approval::text = '' OR approval = @approval::text)
  AND (@agent::text = '' OR agent = @agent::text) AND (@tool::text = '' OR tool = @tool::text)
ORDER BY asked_at DESC, run_id DESC, call_id DESC
LIMIT @page_size::integer;

-- name: ListRunApprovals :many
SELECT * FROM approvals WHERE tenant_id = @tenant_id AND run_id = @run_id;

-- name: ListWaitingCalls :many
SELECT sqlc.embed(t), r.agent FROM tool_calls t JOIN runs r USING (tenant_id, run_id)
WHERE t.tenant_id = @tenant_id AND t.state IN ('AWAITING_APPROVAL', 'AWAITING_RESULT', 'IN_DOUBT') AND r.ended_at IS NULL
  AND (t.run_id, t.ordinal) > (@after_run::uuid, @after_ordinal::integer)
  AND (cardinality(@states::text[]) = 0 OR t.state = ANY (@states::text[]))
  AND (@tool::text = '' OR t.tool = @tool::text)
ORDER BY t.run_id, t.ordinal
LIMIT @page_size::integer;

-- name: CountWaitingCalls :many
SELECT t.state, count(*) AS calls FROM tool_calls t JOIN runs r USING (tenant_id, run_id)
WHERE t.state IN ('AWAITING_APPROVAL', 'AWAITING_RESULT', 'IN_DOUBT') AND r.ended_at IS NULL
GROUP BY t.state;
