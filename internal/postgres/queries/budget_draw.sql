-- name: ListBudgetsInForce :many
SELECT budget_id, display_name, agent, label_key, label_value, span, time_zone, amount_pico, act, created_by, created_at, updated_at, archived_at
FROM budgets WHERE tenant_id = @tenant_id AND archived_at IS NULL
ORDER BY budget_id COLLATE "C";

-- name: GetOpenChunks :one
-- What a run can still hold within what it has drawn.
SELECT now()::timestamptz AS at, coalesce(array_agg(c.budget_id), '{}')::text[] AS budgets,
       coalesce(array_agg(c.starts_at), '{}')::timestamptz[] AS starts,
       coalesce(array_agg(c.drawn_pico - c.held_pico - c.spent_pico), '{}')::bigint[] AS rooms
FROM chunks c
WHERE c.tenant_id = @tenant_id AND c.run_id = @run_id AND c.state = 'open';

-- name: ShareLease :one
-- The fence of a draw: the lease cannot be lost before the transaction ends.
SELECT now()::timestamptz AS at FROM runs
WHERE tenant_id = @tenant_id AND run_id = @run_id AND lease_epoch = @epoch AND lease_owner = @owner::text
FOR SHARE;

-- name: LockBudgetAccounts :exec
SELECT 1 FROM budget_accounts a
JOIN (SELECT unnest(@budget_ids::text[]) AS budget_id, unnest(@starts::timestamptz[]) AS starts_at) w USING (budget_id, starts_at)
WHERE a.tenant_id = @tenant_id
ORDER BY a.budget_id COLLATE "C"
FOR UPDATE OF a;

-- name: OpenBudgetAccounts :exec
-- The first draw of a window makes its account.
INSERT INTO budget_accounts (tenant_id, budget_id, starts_at, ends_at, limit_pico)
SELECT b.tenant_id, b.budget_id, w.starts_at, nullif(w.ends_at, '0001-01-01 00:00:00+00'), b.amount_pico
FROM budgets b
JOIN (SELECT unnest(@budget_ids::text[]) AS budget_id, unnest(@starts::timestamptz[]) AS starts_at,
             unnest(@ends::timestamptz[]) AS ends_at) w USING (budget_id)
WHERE b.tenant_id = @tenant_id AND b.archived_at IS NULL
ORDER BY b.budget_id COLLATE "C"
ON CONFLICT (tenant_id, budget_id, starts_at) DO NOTHING;

-- name: FoldChunks :exec
-- Gives back what closed chunks did not spend. Nobody else writes to them: their runs
-- must draw first, and a draw locks the account.
WITH due AS (
    SELECT l.tenant_id, l.run_id, l.budget_id, l.starts_at, l.drawn_pico, l.spent_pico + l.uncounted_pico AS spent_pico, l.call
    FROM live_chunks l
    JOIN (SELECT unnest(@budget_ids::text[]) AS budget_id, unnest(@starts::timestamptz[]) AS starts_at) w USING (budget_id, starts_at)
    WHERE l.tenant_id = @tenant_id AND l.state = 'closed' AND l.held_pico = 0
), folded AS (
    UPDATE chunks c SET state = 'folded', drawn_pico = 0, spent_pico = 0, call = d.call
    FROM due d
    WHERE c.tenant_id = d.tenant_id AND c.run_id = d.run_id AND c.budget_id = d.budget_id AND c.starts_at = d.starts_at
    RETURNING c.budget_id, c.starts_at, d.drawn_pico, d.spent_pico
)
UPDATE budget_accounts a SET
    held_pico = a.held_pico - f.drawn,
    committed_pico = a.committed_pico + f.spent,
    excess_pico = greatest(least(a.excess_pico + f.beyond, a.committed_pico + f.spent + a.held_pico - f.drawn - a.limit_pico), 0)
FROM (
    SELECT budget_id, starts_at, sum(drawn_pico)::bigint AS drawn, sum(spent_pico)::bigint AS spent,
           sum(greatest(spent_pico - drawn_pico, 0))::bigint AS beyond
    FROM folded GROUP BY budget_id, starts_at
) f
WHERE a.tenant_id = @tenant_id AND a.budget_id = f.budget_id AND a.starts_at = f.starts_at;

-- name: ListDrawable :many
-- All that a draw decides on, under the locks of the accounts. The run's own chunk is
-- in drawn and spent; beyond is what the others spent past what they drew. A budget that
-- was archived binds nobody any more.
SELECT b.budget_id, (b.archived_at IS NOT NULL)::boolean AS archived, b.act, b.amount_pico, a.starts_at, a.ends_at, a.committed_pico, a.held_pico AS drawn_by_all_pico, a.warned,
       coalesce(c.drawn_pico, 0)::bigint AS drawn_pico, coalesce(c.held_pico, 0)::bigint AS held_pico,
       (coalesce(c.spent_pico, 0) + u.cost)::bigint AS spent_pico, u.call::integer AS call, u.cost::bigint AS uncounted_pico,
       (SELECT coalesce(sum(greatest(l.spent_pico::numeric + l.uncounted_pico - l.drawn_pico, 0)), 0)
        FROM live_chunks l
        WHERE l.tenant_id = a.tenant_id AND l.budget_id = a.budget_id AND l.starts_at = a.starts_at
          AND l.state IN ('short', 'closed') AND l.run_id <> @run_id)::bigint AS beyond_pico
FROM budgets b
JOIN budget_accounts a USING (tenant_id, budget_id)
JOIN (SELECT unnest(@budget_ids::text[]) AS budget_id, unnest(@starts::timestamptz[]) AS starts_at) w USING (budget_id, starts_at)
LEFT JOIN chunks c ON c.tenant_id = a.tenant_id AND c.run_id = @run_id AND c.budget_id = a.budget_id AND c.starts_at = a.starts_at
CROSS JOIN LATERAL (
    SELECT least(coalesce(sum(h.settled_pico), 0), 9223372036854775807) AS cost, coalesce(max(h.call), 0) AS call
    FROM holds h
    WHERE h.tenant_id = a.tenant_id AND h.run_id = @run_id AND h.state = 'settled' AND h.opened_at >= a.starts_at
      AND h.call > (SELECT coalesce(max(k.call), 0) FROM chunks k
                    WHERE k.tenant_id = a.tenant_id AND k.run_id = @run_id AND k.budget_id = a.budget_id)
) u
WHERE b.tenant_id = @tenant_id
ORDER BY b.budget_id COLLATE "C";

-- name: DrawChunks :exec
WITH w AS (
    SELECT unnest(@budget_ids::text[]) AS budget_id, unnest(@starts::timestamptz[]) AS starts_at,
           unnest(@amounts::bigint[]) AS amount, unnest(@uncounted::bigint[]) AS uncounted, unnest(@calls::integer[]) AS call
), own AS (
    INSERT INTO chunks AS c (tenant_id, run_id, budget_id, starts_at, drawn_pico, spent_pico, call, state)
    SELECT @tenant_id, @run_id, w.budget_id, w.starts_at, w.amount, w.uncounted, w.call, @state FROM w
    ON CONFLICT (tenant_id, run_id, budget_id, starts_at) DO UPDATE SET
        state = excluded.state, drawn_pico = c.drawn_pico + excluded.drawn_pico, spent_pico = c.spent_pico + excluded.spent_pico,
        call = greatest(c.call, excluded.call)
)
UPDATE budget_accounts a SET
    held_pico = a.held_pico + w.amount,
    limit_pico = b.amount_pico,
    excess_pico = greatest(a.committed_pico + a.held_pico - b.amount_pico, 0)
FROM w JOIN budgets b ON b.tenant_id = @tenant_id AND b.budget_id = w.budget_id
WHERE a.tenant_id = @tenant_id AND a.budget_id = w.budget_id AND a.starts_at = w.starts_at;

-- name: CloseOtherChunks :exec
-- Of windows that are over, and of budgets that bind the run no more.
UPDATE chunks c SET state = 'closed'
WHERE c.tenant_id = @tenant_id AND c.run_id = @run_id AND c.state IN ('open', 'short')
  AND NOT EXISTS (SELECT 1 FROM (SELECT unnest(@budget_ids::text[]) AS budget_id, unnest(@starts::timestamptz[]) AS starts_at) w
                  WHERE w.budget_id = c.budget_id AND w.starts_at = c.starts_at);

-- name: WarnOfThresholds :many
-- Notes the thresholds that an account has passed and nobody was told of.
WITH w AS (
    SELECT unnest(@budget_ids::text[]) AS budget_id, unnest(@starts::timestamptz[]) AS starts_at, unnest(@percents::integer[]) AS percent,
           unnest(@totals::bigint[]) AS total
), warned AS (
    UPDATE budget_accounts a SET warned = w.percent
    FROM w, budget_accounts before
    WHERE a.tenant_id = @tenant_id AND a.budget_id = w.budget_id AND a.starts_at = w.starts_at AND a.warned < w.percent
      AND before.tenant_id = a.tenant_id AND before.budget_id = a.budget_id AND before.starts_at = a.starts_at
    RETURNING a.tenant_id, a.budget_id, a.starts_at, a.limit_pico, w.total, before.warned AS earlier, w.percent
)
INSERT INTO budget_events (tenant_id, budget_id, kind, starts_at, threshold, limit_pico, committed_pico)
SELECT x.tenant_id, x.budget_id, 'threshold', x.starts_at, t.percent, x.limit_pico, x.total
FROM warned x CROSS JOIN unnest('{50,80,100}'::smallint[]) AS t (percent)
WHERE t.percent > x.earlier AND t.percent <= x.percent
ORDER BY x.budget_id, t.percent
RETURNING threshold::smallint;

-- name: AllowLongRead :exec
SET LOCAL statement_timeout = '60s';

-- name: StartBudgetAccount :exec
-- Starts the account of a new budget with what its runs spent in the window before. In
-- one snapshot: runs that have ended are in committed_pico, and each that lives gets a
-- chunk which says up to which call it was counted.
WITH binding AS (
    SELECT r.tenant_id, r.run_id, r.ended_at IS NOT NULL AS ended, b.budget_id
    FROM budgets b JOIN runs r USING (tenant_id)
    WHERE b.tenant_id = @tenant_id AND b.budget_id = @budget_id
      AND CASE b.scope WHEN 'AGENT' THEN r.agent = b.agent
                       WHEN 'LABEL' THEN readable(r.labels) ->> b.label_key = b.label_value
                       ELSE true END
), spent AS (
    SELECT n.run_id, n.ended, sum(h.settled_pico) FILTER (WHERE h.state = 'settled') AS cost, max(h.call) FILTER (WHERE h.state = 'settled') AS call
    FROM binding n JOIN holds h USING (tenant_id, run_id)
    WHERE h.opened_at >= @starts_at
    GROUP BY n.run_id, n.ended
), account AS (
    INSERT INTO budget_accounts (tenant_id, budget_id, starts_at, ends_at, limit_pico, committed_pico, excess_pico)
    SELECT b.tenant_id, b.budget_id, @starts_at, sqlc.narg('ends_at'), b.amount_pico, e.cost, greatest(e.cost - b.amount_pico, 0)
    FROM budgets b, (SELECT coalesce(sum(cost), 0)::bigint AS cost FROM spent WHERE ended) e
    WHERE b.tenant_id = @tenant_id AND b.budget_id = @budget_id
)
INSERT INTO chunks (tenant_id, run_id, budget_id, starts_at, spent_pico, call, state)
SELECT @tenant_id, s.run_id, @budget_id, @starts_at, coalesce(s.cost, 0)::bigint, coalesce(s.call, 0), 'short'
FROM spent s WHERE NOT s.ended;

-- name: ListBudgetTotals :many
-- Of the windows that are not over.
SELECT starts_at, limit_pico, (committed_pico + held_pico)::bigint AS total_pico
FROM budget_standing
WHERE tenant_id = @tenant_id AND budget_id = @budget_id AND (ends_at IS NULL OR ends_at > now());

-- name: LockBudgetAccount :exec
SELECT 1 FROM budget_accounts
WHERE tenant_id = @tenant_id AND budget_id = @budget_id
ORDER BY starts_at
FOR UPDATE;

-- name: RelimitBudgetAccount :exec
-- The window that is not over gets the budget's amount.
UPDATE budget_accounts a SET
    limit_pico = b.amount_pico,
    excess_pico = greatest(a.committed_pico + a.held_pico - b.amount_pico, 0)
FROM budgets b
WHERE b.tenant_id = @tenant_id AND b.budget_id = @budget_id AND a.tenant_id = b.tenant_id AND a.budget_id = b.budget_id
  AND (a.ends_at IS NULL OR a.ends_at > now());

-- name: CloseBudgetChunks :exec
WITH held AS (
    SELECT c.tenant_id, c.run_id, c.budget_id, c.starts_at FROM chunks c
    WHERE c.tenant_id = @tenant_id AND c.budget_id = @budget_id AND c.state IN ('open', 'short')
    ORDER BY c.run_id
    FOR UPDATE
)
UPDATE chunks c SET state = 'closed' FROM held h
WHERE c.tenant_id = h.tenant_id AND c.run_id = h.run_id AND c.budget_id = h.budget_id AND c.starts_at = h.starts_at;
