-- name: AppendEvents :batchone
-- One append is one statement, so it is one transaction and one round trip. The
-- update of the run's row is the fence, the lock and the gapless sequence number;
-- everything else hangs on the row that it returns. A cancel that the server has
-- acknowledged stays visible until the run has ended.
WITH fence AS (
    UPDATE runs r SET
        next_seq = r.next_seq + cardinality(@seqs::bigint[]),
        state = CASE WHEN r.state = 'CANCELLING' AND sqlc.narg('ended_at')::timestamptz IS NULL
                     THEN r.state ELSE @state::text END,
        signals = CASE WHEN r.signals <= @signals_seen::bigint THEN 0 ELSE r.signals END,
        lease_owner = CASE WHEN @release::boolean THEN NULL ELSE r.lease_owner END,
        available_at = CASE WHEN NOT @release::boolean THEN r.available_at
                            WHEN r.state = 'CANCELLING' OR r.signals > @signals_seen::bigint THEN now()
                            WHEN sqlc.narg('wake_at')::timestamptz IS NOT NULL THEN sqlc.narg('wake_at')::timestamptz
                            WHEN @state::text IN ('REQUIRES_ACTION', 'PAUSED') THEN 'infinity'
                            ELSE now() END,
        phase = @phase::text,
        iterations = @iterations::integer,
        model_calls = @model_calls::integer,
        tool_calls = @tool_calls::integer,
        attempts = @attempts::integer,
        usage = @usage::json,
        cost = @cost::json,
        cost_pico = @cost_pico::bigint,
        estimated_pico = @estimated_pico::bigint,
        held_pico = @held_pico::bigint,
        answer = @answer::json,
        partial = @partial::boolean,
        stop = sqlc.narg('stop')::json,
        required_actions = @required_actions::json,
        started_at = sqlc.narg('started_at')::timestamptz,
        wake_at = sqlc.narg('wake_at')::timestamptz,
        ended_at = sqlc.narg('ended_at')::timestamptz
    WHERE r.tenant_id = @tenant_id::text AND r.run_id = @run_id::uuid
      AND r.lease_epoch = @epoch::bigint AND r.lease_owner = @owner::text
      AND r.next_seq = @first_seq::bigint
      AND (NOT @intent::boolean OR r.signals <= @signals_seen::bigint)
    RETURNING r.tenant_id, r.run_id
), appended AS (
    INSERT INTO events (tenant_id, run_id, seq, kind, at, epoch, body)
    SELECT f.tenant_id, f.run_id, e.seq, e.kind, e.at, @epoch::bigint, e.body::json
    FROM fence f, (
        SELECT unnest(@seqs::bigint[]) AS seq, unnest(@kinds::text[]) AS kind,
               unnest(@ats::timestamptz[]) AS at, unnest(@bodies::text[]) AS body
    ) e
), calls AS (
    INSERT INTO tool_calls AS t (tenant_id, run_id, call_id, ordinal, tool, call, iteration, args_sha256,
        effect, state, outcome, attempt, idem_key, result, cut, bytes, started_at, finished_at)
    SELECT f.tenant_id, f.run_id, c.call_id,
           c.place + (SELECT coalesce(max(o.ordinal), 0) FROM tool_calls o
                      WHERE o.tenant_id = f.tenant_id AND o.run_id = f.run_id),
           c.tool, c.call::json, c.iteration, c.args_sha256,
           c.effect, c.state, c.outcome, c.attempt, c.idem_key, c.result::json, c.cut, c.bytes,
           -- Go's zero time is "not yet".
           nullif(c.started_at, '0001-01-01 00:00:00+00'), nullif(c.finished_at, '0001-01-01 00:00:00+00')
    FROM fence f, (
        SELECT generate_subscripts(@call_ids::text[], 1) AS place, unnest(@call_ids::text[]) AS call_id,
               unnest(@call_tools::text[]) AS tool, unnest(@calls::text[]) AS call,
               unnest(@call_iterations::integer[]) AS iteration, unnest(@call_hashes::text[]) AS args_sha256,
               unnest(@call_effects::text[]) AS effect, unnest(@call_states::text[]) AS state,
               unnest(@call_outcomes::text[]) AS outcome, unnest(@call_attempts::integer[]) AS attempt,
               unnest(@call_keys::text[]) AS idem_key, unnest(@call_results::text[]) AS result,
               unnest(@call_cuts::boolean[]) AS cut, unnest(@call_bytes::bigint[]) AS bytes,
               unnest(@call_started::timestamptz[]) AS started_at, unnest(@call_finished::timestamptz[]) AS finished_at
    ) c
    ON CONFLICT (tenant_id, run_id, call_id) DO UPDATE SET
        tool = excluded.tool, call = excluded.call, iteration = excluded.iteration, args_sha256 = excluded.args_sha256,
        effect = excluded.effect, state = excluded.state, outcome = excluded.outcome, attempt = excluded.attempt,
        idem_key = excluded.idem_key, result = excluded.result, cut = excluded.cut, bytes = excluded.bytes,
        started_at = excluded.started_at, finished_at = excluded.finished_at
), opened AS (
    INSERT INTO holds (tenant_id, run_id, call, amount_pico)
    SELECT f.tenant_id, f.run_id, h.call, h.amount
    FROM fence f, (SELECT unnest(@hold_calls::integer[]) AS call, unnest(@hold_amounts::bigint[]) AS amount) h
    RETURNING amount_pico
), settled AS (
    UPDATE holds h SET state = 'settled', settled_pico = s.cost, settled_at = now()
    FROM fence f, (SELECT unnest(@settled_calls::integer[]) AS call, unnest(@settled_costs::bigint[]) AS cost) s
    WHERE h.tenant_id = f.tenant_id AND h.run_id = f.run_id AND h.call = s.call AND h.state = 'open'
    RETURNING h.amount_pico, h.settled_pico
), balance AS (
    UPDATE accounts a SET
        committed_pico = a.committed_pico + coalesce((SELECT sum(settled_pico) FROM settled), 0)::bigint,
        held_pico = a.held_pico + coalesce((SELECT sum(amount_pico) FROM opened), 0)::bigint
                                - coalesce((SELECT sum(amount_pico) FROM settled), 0)::bigint
    FROM fence f
    WHERE a.tenant_id = f.tenant_id AND a.account = 'run:' || f.run_id::text
      -- An empty list arrives as null.
      AND (cardinality(@hold_calls::integer[]) > 0 OR cardinality(@settled_calls::integer[]) > 0)
), taken AS (
    DELETE FROM run_signals s USING fence f
    WHERE s.tenant_id = f.tenant_id AND s.run_id = f.run_id AND s.id <= @signals_seen::bigint
)
SELECT (pg_notify('loopd_events', f.run_id::text) IS NOT NULL)::boolean AS told,
       (CASE WHEN @release::boolean THEN pg_notify('loopd_wake', '') END IS NOT NULL)::boolean AS woke
FROM fence f;

-- name: LockLease :one
-- Waits for an append that is still being committed, so that what is read
-- afterwards is the truth.
SELECT coalesce(lease_owner, '') AS owner, lease_epoch, next_seq, signals
FROM runs WHERE tenant_id = @tenant_id AND run_id = @run_id
FOR UPDATE;

-- name: EventEpoch :one
SELECT epoch FROM events WHERE tenant_id = @tenant_id AND run_id = @run_id AND seq = @seq;

-- name: ListEvents :many
SELECT seq, kind, at, epoch, body FROM events
WHERE tenant_id = @tenant_id AND run_id = @run_id AND seq > @after_seq
ORDER BY seq LIMIT sqlc.narg('page_size')::bigint;

-- name: ListSignals :many
SELECT id, kind, body FROM run_signals
WHERE tenant_id = @tenant_id AND run_id = @run_id
ORDER BY id;
