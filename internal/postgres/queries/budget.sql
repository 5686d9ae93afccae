-- name: InsertBudget :execrows
INSERT INTO budgets (tenant_id, budget_id, display_name, scope, agent, label_key, label_value, span, time_zone, amount_pico, act, created_by)
VALUES (@tenant_id, @budget_id, @display_name, @scope, @agent, @label_key, @label_value, @span, @time_zone, @amount_pico, @act, @created_by)
ON CONFLICT (tenant_id, budget_id) DO NOTHING;

-- name: LockBudget :one
-- Changes wait for each other; draws go on meanwhile.
SELECT budget_id, display_name, agent, label_key, label_value, span, time_zone, amount_pico, act, created_by, created_at, updated_at, archived_at
FROM budgets WHERE tenant_id = @tenant_id AND budget_id = @budget_id
FOR NO KEY UPDATE;

-- name: ChangeBudget :exec
UPDATE budgets SET display_name = @display_name, amount_pico = @amount_pico, act = @act, updated_at = now()
WHERE tenant_id = @tenant_id AND budget_id = @budget_id;

-- name: ArchiveBudget :exec
UPDATE budgets SET archived_at = now(), updated_at = now()
WHERE tenant_id = @tenant_id AND budget_id = @budget_id AND archived_at IS NULL;

-- name: InsertBudgetChange :exec
INSERT INTO budget_events (tenant_id, budget_id, kind, actor, reason, before, after)
VALUES (@tenant_id, @budget_id, @kind, @actor, @reason, sqlc.narg('before'), sqlc.narg('after'));

-- name: WakeBudgetWaiters :execrows
-- Runs that wait for the budget. Each looks again, and waits anew if there is still
-- no room. Whoever has the row of one locked is claiming or signalling it, so that it
-- looks again by itself; a draw locks runs before accounts, and this comes after them.
WITH waiting AS (
    SELECT r.tenant_id, r.run_id FROM runs r
    WHERE r.tenant_id = @tenant_id AND r.ended_at IS NULL AND r.lease_owner IS NULL AND r.phase = 'budget' AND r.available_at > now()
      AND @budget::text = (SELECT e.body ->> 'budget' FROM events e
                           WHERE e.tenant_id = r.tenant_id AND e.run_id = r.run_id AND e.kind = 'account_refused'
                           ORDER BY e.seq DESC LIMIT 1)
    FOR NO KEY UPDATE OF r SKIP LOCKED
)
UPDATE runs r SET available_at = now()
FROM waiting w WHERE r.tenant_id = w.tenant_id AND r.run_id = w.run_id;

-- name: CountBudgetWaiters :many
SELECT w.budget, count(*) AS runs
FROM runs r CROSS JOIN LATERAL (
    SELECT (e.body ->> 'budget')::text AS budget FROM events e
    WHERE e.tenant_id = r.tenant_id AND e.run_id = r.run_id AND e.kind = 'account_refused'
    ORDER BY e.seq DESC LIMIT 1
) w
WHERE r.tenant_id = @tenant_id AND r.ended_at IS NULL AND r.lease_owner IS NULL AND r.phase = 'budget'
GROUP BY w.budget;

-- name: BudgetExists :one
SELECT EXISTS (SELECT 1 FROM budgets WHERE tenant_id = @tenant_id AND budget_id = @budget_id);

-- name: GetBudget :one
SELECT budget_id, display_name, agent, label_key, label_value, span, time_zone, amount_pico, act, created_by, created_at, updated_at, archived_at
FROM budgets WHERE tenant_id = @tenant_id AND budget_id = @budget_id;

-- name: ListBudgets :many
SELECT budget_id, display_name, agent, label_key, label_value, span, time_zone, amount_pico, act, created_by, created_at, updated_at, archived_at
FROM budgets
WHERE tenant_id = @tenant_id AND budget_id > @after_id AND (@show_archived::boolean OR archived_at IS NULL)
ORDER BY budget_id
LIMIT @page_size::integer;

-- name: ListBudgetStandings :many
-- Where budgets stand, each in one of its windows, in one snapshot.
SELECT a.budget_id, a.starts_at, a.limit_pico, a.committed_pico::bigint AS committed_pico, a.held_pico::bigint AS held_pico
FROM (SELECT unnest(@budget_ids::text[]) AS budget_id, unnest(@starts::timestamptz[]) AS starts_at) w
JOIN budget_standing a ON a.tenant_id = @tenant_id AND a.budget_id = w.budget_id AND a.starts_at = w.starts_at;

-- name: ListBudgetPeriods :many
SELECT starts_at, ends_at FROM budget_accounts
WHERE tenant_id = @tenant_id AND budget_id = @budget_id AND starts_at < @before_start
ORDER BY starts_at DESC
LIMIT @page_size::integer;

-- name: ListBudgetThresholds :many
SELECT e.budget_id, e.starts_at::timestamptz AS starts_at, e.threshold::smallint AS threshold, e.at
FROM (SELECT unnest(@budget_ids::text[]) AS budget_id, unnest(@starts::timestamptz[]) AS starts_at) w
JOIN budget_events e ON e.tenant_id = @tenant_id AND e.budget_id = w.budget_id AND e.kind = 'threshold' AND e.starts_at = w.starts_at
ORDER BY e.budget_id, e.starts_at, e.threshold;

-- name: ListBudgetEvents :many
SELECT id, at, kind, actor, reason, before, after, starts_at, threshold, limit_pico, committed_pico
FROM budget_events
WHERE tenant_id = @tenant_id AND budget_id = @budget_id AND id < @before_id
ORDER BY id DESC
LIMIT @page_size::integer;
