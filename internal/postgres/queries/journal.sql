-- name: AppendEvents :batchone
-- One append is one statement, so it is one transaction and one round trip. The
-- update of the run's row is the fence, the lock and the gapless sequence number;
-- everything else hangs on the row that it returns. A cancel that the server has
-- acknowledged stays visible until the run has ended.
--
-- Whoever locks more than one row locks them all first, in one order for everybody:
-- the first append of a group does so for the group, if there is need.
WITH locked AS (
    SELECT r.run_id FROM runs r
    WHERE (r.tenant_id, r.run_id) IN (SELECT unnest(@lock_tenants::text[]), unnest(@lock_runs::text[])::uuid)
    ORDER BY r.tenant_id COLLATE "C", r.run_id
    FOR UPDATE OF r
), fence AS (
    UPDATE runs r SET
        next_seq = r.next_seq + cardinality(@seqs::bigint[]),
        state = CASE WHEN r.state = 'CANCELLING' AND sqlc.narg('ended_at')::timestamptz IS NULL
                     THEN r.state ELSE @state::text END,
        signals = CASE WHEN r.signals <= @signals_seen::bigint THEN 0 ELSE r.signals END,
        lease_owner = CASE WHEN @release::boolean THEN NULL ELSE r.lease_owner END,
        available_at = CASE WHEN NOT @release::boolean THEN r.available_at
                            WHEN r.signals > @signals_seen::bigint THEN now()
                            WHEN sqlc.narg('wake_at')::timestamptz IS NOT NULL THEN sqlc.narg('wake_at')::timestamptz
                            WHEN @state::text IN ('REQUIRES_ACTION', 'PAUSED') THEN 'infinity'
                            ELSE now() END,
        phase = @phase::text,
        limits = coalesce(sqlc.narg('limits')::json, r.limits),
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
        unverified = @unverified::boolean,
        stop = sqlc.narg('stop')::json,
        required_actions = @required_actions::json,
        side_effects = @side_effects::json,
        started_at = sqlc.narg('started_at')::timestamptz,
        wake_at = sqlc.narg('wake_at')::timestamptz,
        ended_at = sqlc.narg('ended_at')::timestamptz
    WHERE (SELECT count(*) FROM locked) >= 0 -- has them locked before anything else
      AND r.tenant_id = @tenant_id::text AND r.run_id = @run_id::uuid
      AND r.lease_epoch = @epoch::bigint AND r.lease_owner = @owner::text
      AND r.next_seq = @first_seq::bigint
      AND (NOT @intent::boolean OR r.signals <= @signals_seen::bigint)
    RETURNING r.tenant_id, r.run_id, r.priority, r.lease_owner IS NULL AND r.ended_at IS NULL AND r.available_at <= now() AS claimable
), appended AS (
    INSERT INTO events (tenant_id, run_id, seq, kind, at, epoch, body)
    SELECT f.tenant_id, f.run_id, e.seq, e.kind, e.at, @epoch::bigint, e.body::json
    FROM fence f, (
        SELECT unnest(@seqs::bigint[]) AS seq, unnest(@kinds::text[]) AS kind,
               unnest(@ats::timestamptz[]) AS at, unnest(@bodies::text[]) AS body
    ) e
), calls AS (
    INSERT INTO tool_calls AS t (tenant_id, run_id, call_id, ordinal, tool, call, iteration, args_sha256,
        effect, state, outcome, attempt, idem_key, result, result_seq, cut, bytes, started_at, finished_at,
        until_at, child_id, owed, asked, asked_at, decided_at, decided_by, decision, edited)
    SELECT f.tenant_id, f.run_id, c.call_id, c.ordinal, c.tool, c.call::json, c.iteration, c.args_sha256,
           c.effect, c.state, c.outcome, c.attempt, c.idem_key, c.result::json, nullif(c.result_seq, 0), c.cut, c.bytes,
           -- Go's zero time is "not yet".
           nullif(c.started_at, '0001-01-01 00:00:00+00'), nullif(c.finished_at, '0001-01-01 00:00:00+00'),
           nullif(c.until_at, '0001-01-01 00:00:00+00'), nullif(c.child_id, '')::uuid, c.owed, c.asked::json,
           nullif(c.asked_at, '0001-01-01 00:00:00+00'), nullif(c.decided_at, '0001-01-01 00:00:00+00'),
           c.decided_by, c.decision::json, c.edited::json
    FROM fence f, (
        SELECT unnest(@call_ids::text[]) AS call_id, unnest(@call_ordinals::integer[]) AS ordinal,
               unnest(@call_tools::text[]) AS tool, unnest(@calls::text[]) AS call,
               unnest(@call_iterations::integer[]) AS iteration, unnest(@call_hashes::text[]) AS args_sha256,
               unnest(@call_effects::text[]) AS effect, unnest(@call_states::text[]) AS state,
               unnest(@call_outcomes::text[]) AS outcome, unnest(@call_attempts::integer[]) AS attempt,
               unnest(@call_keys::text[]) AS idem_key, unnest(@call_results::text[]) AS result,
               unnest(@call_result_seqs::bigint[]) AS result_seq,
               unnest(@call_cuts::boolean[]) AS cut, unnest(@call_bytes::bigint[]) AS bytes,
               unnest(@call_started::timestamptz[]) AS started_at, unnest(@call_finished::timestamptz[]) AS finished_at,
               unnest(@call_untils::timestamptz[]) AS until_at, unnest(@call_children::text[]) AS child_id,
               unnest(@call_owed::text[]) AS owed, unnest(@call_asked::text[]) AS asked,
               unnest(@call_asked_at::timestamptz[]) AS asked_at, unnest(@call_decided_at::timestamptz[]) AS decided_at,
               unnest(@call_decided_by::text[]) AS decided_by, unnest(@call_decisions::text[]) AS decision,
               unnest(@call_edited::text[]) AS edited
    ) c
    ON CONFLICT (tenant_id, run_id, call_id) DO UPDATE SET
        tool = excluded.tool, call = excluded.call, iteration = excluded.iteration, args_sha256 = excluded.args_sha256,
        effect = excluded.effect, state = excluded.state, outcome = excluded.outcome, attempt = excluded.attempt,
        idem_key = excluded.idem_key, result = excluded.result, result_seq = excluded.result_seq, cut = excluded.cut, bytes = excluded.bytes,
        started_at = excluded.started_at, finished_at = excluded.finished_at, until_at = excluded.until_at,
        child_id = excluded.child_id, decided_at = excluded.decided_at, decided_by = excluded.decided_by,
        asked = excluded.asked, decision = excluded.decision, edited = excluded.edited,
        -- A question stays one when it has its answer.
        owed = CASE WHEN excluded.owed = '' THEN t.owed ELSE excluded.owed END,
        asked_at = coalesce(excluded.asked_at, t.asked_at)
), opened AS (
    INSERT INTO holds (tenant_id, run_id, call, amount_pico, model, purpose, price_version)
    SELECT f.tenant_id, f.run_id, h.call, h.amount, h.model, h.purpose, h.price_version
    FROM fence f, (
        SELECT unnest(@hold_calls::integer[]) AS call, unnest(@hold_amounts::bigint[]) AS amount,
               unnest(@hold_models::text[]) AS model, unnest(@hold_purposes::text[]) AS purpose,
               unnest(@hold_prices::text[]) AS price_version
    ) h
    RETURNING call, amount_pico
), settled AS (
    UPDATE holds h SET state = 'settled', settled_pico = s.cost, settled_at = now(),
        input_uncached = s.input_uncached, cache_read = s.cache_read, cache_write_5m = s.cache_write_5m,
        cache_write_1h = s.cache_write_1h, output = s.output, reasoning = s.reasoning,
        estimated = s.estimated, saved_pico = s.saved, iteration = nullif(s.iteration, 0), tools = nullif(s.tools, '')::text[]
    FROM fence f, (
        SELECT unnest(@settled_calls::integer[]) AS call, unnest(@settled_costs::bigint[]) AS cost,
               unnest(@settled_inputs::bigint[]) AS input_uncached, unnest(@settled_reads::bigint[]) AS cache_read,
               unnest(@settled_writes_5m::bigint[]) AS cache_write_5m, unnest(@settled_writes_1h::bigint[]) AS cache_write_1h,
               unnest(@settled_outputs::bigint[]) AS output, unnest(@settled_reasonings::bigint[]) AS reasoning,
               unnest(@settled_estimated::boolean[]) AS estimated, unnest(@settled_saved::bigint[]) AS saved,
               unnest(@settled_iterations::integer[]) AS iteration, unnest(@settled_tools::text[]) AS tools
    ) s
    WHERE h.tenant_id = f.tenant_id AND h.run_id = f.run_id AND h.call = s.call AND h.state = 'open'
    RETURNING h.call, h.amount_pico, h.settled_pico
), balance AS (
    UPDATE accounts a SET
        limit_pico = coalesce(sqlc.narg('limit_pico')::bigint, a.limit_pico),
        committed_pico = a.committed_pico + coalesce((SELECT sum(settled_pico) FROM settled), 0)::bigint,
        held_pico = a.held_pico + coalesce((SELECT sum(amount_pico) FROM opened), 0)::bigint
                                - coalesce((SELECT sum(amount_pico) FROM settled), 0)::bigint
    FROM fence f
    WHERE a.tenant_id = f.tenant_id AND a.account = 'run:' || f.run_id::text
      -- An empty list arrives as null.
      AND (cardinality(@hold_calls::integer[]) > 0 OR cardinality(@settled_calls::integer[]) > 0
           OR sqlc.narg('limit_pico')::bigint IS NOT NULL)
), portions AS (
    -- The same in what the run has drawn from budgets. A hold is taken from the chunks
    -- that are open, and settled in them, whatever has become of them meanwhile.
    UPDATE chunks c SET
        spent_pico = c.spent_pico + CASE WHEN c.call = s.call THEN s.settled_pico ELSE 0 END,
        held_pico = CASE WHEN c.state = 'open' AND o.call IS NOT NULL THEN o.amount_pico WHEN c.call = s.call THEN 0 ELSE c.held_pico END,
        call = CASE WHEN c.state = 'open' AND o.call IS NOT NULL THEN o.call ELSE c.call END,
        state = CASE WHEN c.state NOT IN ('open', 'short') THEN c.state
                     WHEN @release::boolean THEN 'closed'
                     WHEN c.call = s.call AND c.spent_pico + s.settled_pico > c.drawn_pico THEN 'short'
                     ELSE c.state END
    FROM fence f LEFT JOIN opened o ON true LEFT JOIN settled s ON true
    WHERE c.tenant_id = f.tenant_id AND c.run_id = f.run_id
      AND (cardinality(@hold_calls::integer[]) > 0 OR cardinality(@settled_calls::integer[]) > 0 OR @release::boolean)
      AND (c.state = 'open' AND o.call IS NOT NULL OR c.call = s.call OR @release::boolean AND c.state IN ('open', 'short'))
), taken AS (
    DELETE FROM run_signals s USING fence f
    WHERE s.tenant_id = f.tenant_id AND s.run_id = f.run_id AND s.id <= @signals_seen::bigint
), kept AS (
    INSERT INTO results (tenant_id, run_id, call_id, attempt, text)
    SELECT f.tenant_id, f.run_id, k.call_id, k.attempt, k.text::json
    FROM fence f, (
        SELECT unnest(@full_calls::text[]) AS call_id, unnest(@full_attempts::integer[]) AS attempt, unnest(@full_texts::text[]) AS text
    ) k
), children AS (
    INSERT INTO runs (tenant_id, run_id, agent, agent_version, input, limits, labels, source, has_output_schema,
        next_seq, state, phase, parent_run_id, parent_call_id, root_run_id, depth, priority)
    SELECT f.tenant_id, c.run_id::uuid, c.agent, c.agent_version, c.input::json, c.limits::json, c.labels::json, c.source,
           c.has_output_schema, 2, 'QUEUED', 'queue', f.run_id, c.call_id, c.root_id::uuid, c.depth, f.priority
    FROM fence f, (
        SELECT unnest(@child_ids::text[]) AS run_id, unnest(@child_agents::text[]) AS agent,
               unnest(@child_versions::bigint[]) AS agent_version, unnest(@child_inputs::text[]) AS input,
               unnest(@child_limits::text[]) AS limits, unnest(@child_labels::text[]) AS labels,
               unnest(@child_sources::text[]) AS source, unnest(@child_output_schemas::boolean[]) AS has_output_schema,
               unnest(@child_calls::text[]) AS call_id, unnest(@child_roots::text[]) AS root_id,
               unnest(@child_depths::integer[]) AS depth
    ) c
), child_events AS (
    INSERT INTO events (tenant_id, run_id, seq, kind, at, epoch, body)
    SELECT f.tenant_id, c.run_id::uuid, 1, 'created', now(), 0, c.body::json
    FROM fence f, (SELECT unnest(@child_ids::text[]) AS run_id, unnest(@child_bodies::text[]) AS body) c
), child_accounts AS (
    INSERT INTO accounts (tenant_id, account, limit_pico)
    SELECT f.tenant_id, 'run:' || c.run_id, c.limit_pico
    FROM fence f, (SELECT unnest(@child_ids::text[]) AS run_id, unnest(@child_money::bigint[]) AS limit_pico) c
), hearers AS (
    -- What a run that has ended is told is of no use to anybody.
    SELECT r.tenant_id, r.run_id, r.state FROM fence f JOIN runs r ON r.tenant_id = f.tenant_id
    WHERE r.run_id = ANY (CAST(@outgoing_runs::text[] AS uuid[])) AND r.ended_at IS NULL
    ORDER BY r.run_id
    FOR UPDATE OF r
), outgoing AS (
    INSERT INTO run_signals (tenant_id, run_id, kind, body)
    SELECT h.tenant_id, h.run_id, o.kind, o.body::json
    FROM hearers h JOIN (
        SELECT generate_subscripts(@outgoing_runs::text[], 1) AS place, unnest(@outgoing_runs::text[])::uuid AS run_id,
               unnest(@outgoing_kinds::text[]) AS kind, unnest(@outgoing_bodies::text[]) AS body
    ) o USING (run_id)
    WHERE o.kind <> 'cancel_requested' OR h.state <> 'CANCELLING' -- a second cancel changes nothing
    ORDER BY o.place
    RETURNING tenant_id, run_id, id, kind
), heard AS (
    UPDATE runs r SET signals = o.id, available_at = least(r.available_at, now()),
        state = CASE WHEN o.cancel THEN 'CANCELLING' ELSE r.state END
    FROM (SELECT tenant_id, run_id, max(id) AS id, bool_or(kind = 'cancel_requested') AS cancel
          FROM outgoing GROUP BY tenant_id, run_id) o
    WHERE r.tenant_id = o.tenant_id AND r.run_id = o.run_id
)
SELECT (pg_notify('loopd_events', f.run_id::text) IS NOT NULL)::boolean AS told,
       (CASE WHEN @release::boolean THEN pg_notify('loopd_events', 'released ' || f.run_id) END IS NOT NULL)::boolean AS freed,
       (CASE WHEN f.claimable OR cardinality(@child_ids::text[]) > 0 OR cardinality(@outgoing_runs::text[]) > 0
             THEN pg_notify('loopd_wake', '') END IS NOT NULL)::boolean AS woke
FROM fence f;

-- name: AppendGroup :batchmany
-- The usual appends of many runs as one statement: what AppendEvents does for each, but
-- for children, signals to other runs, whole results and raised limits, and with at most
-- one hold and one settlement for each run. A run is in it once.
--
-- The rows of runs are locked in the order of the arrays, which is that of AppendEvents.
WITH batch AS MATERIALIZED (
    SELECT unnest(@places::integer[]) AS place, unnest(@tenant_ids::text[]) AS tenant_id, unnest(@run_ids::text[])::uuid AS run_id,
           unnest(@epochs::bigint[]) AS epoch, unnest(@owners::text[]) AS owner,
           unnest(@first_seqs::bigint[]) AS first_seq, unnest(@counts::integer[]) AS events,
           unnest(@intents::boolean[]) AS intent, unnest(@seens::bigint[]) AS seen, unnest(@releases::boolean[]) AS release,
           unnest(@states::text[]) AS state, unnest(@phases::text[]) AS phase,
           unnest(@iterations::integer[]) AS iterations, unnest(@model_calls::integer[]) AS model_calls,
           unnest(@tool_calls::integer[]) AS tool_calls, unnest(@attempts::integer[]) AS attempts,
           unnest(@usages::text[]) AS usage, unnest(@costs::text[]) AS cost,
           unnest(@cost_picos::bigint[]) AS cost_pico, unnest(@estimated_picos::bigint[]) AS estimated_pico,
           unnest(@held_picos::bigint[]) AS held_pico, unnest(@answers::text[]) AS answer,
           unnest(@partials::boolean[]) AS partial, unnest(@unverifieds::boolean[]) AS unverified,
           unnest(@stops::text[]) AS stop, unnest(@required_actions::text[]) AS required_actions,
           unnest(@side_effects::text[]) AS side_effects,
           unnest(@starts::timestamptz[]) AS started_at, unnest(@wakes::timestamptz[]) AS wake_at, unnest(@ends::timestamptz[]) AS ended_at,
           unnest(@hold_calls::integer[]) AS hold_call, unnest(@hold_amounts::bigint[]) AS hold_amount,
           unnest(@hold_models::text[]) AS hold_model, unnest(@hold_purposes::text[]) AS hold_purpose, unnest(@hold_prices::text[]) AS hold_price,
           unnest(@settled_calls::integer[]) AS settled_call, unnest(@settled_costs::bigint[]) AS settled_cost,
           unnest(@settled_inputs::bigint[]) AS input_uncached, unnest(@settled_reads::bigint[]) AS cache_read,
           unnest(@settled_writes_5m::bigint[]) AS cache_write_5m, unnest(@settled_writes_1h::bigint[]) AS cache_write_1h,
           unnest(@settled_outputs::bigint[]) AS output, unnest(@settled_reasonings::bigint[]) AS reasoning,
           unnest(@settled_estimated::boolean[]) AS estimated, unnest(@settled_saved::bigint[]) AS saved,
           unnest(@settled_iterations::integer[]) AS iteration, unnest(@settled_tools::text[]) AS tools
    -- It bounds nothing. It has the planner expect one row (a tenth of the ten that it
    -- expects of arrays, so there is no generate_subscripts: of that it expects 1,000), so
    -- that it looks up all others by their keys, in the order of the arrays, also if the
    -- tables are still small when the plan is made.
    LIMIT cardinality(@run_ids::text[])
), fence AS (
    UPDATE runs r SET
        next_seq = r.next_seq + b.events,
        state = CASE WHEN r.state = 'CANCELLING' AND b.ended_at = '0001-01-01 00:00:00+00' THEN r.state ELSE b.state END,
        signals = CASE WHEN r.signals <= b.seen THEN 0 ELSE r.signals END,
        lease_owner = CASE WHEN b.release THEN NULL ELSE r.lease_owner END,
        available_at = CASE WHEN NOT b.release THEN r.available_at
                            WHEN r.signals > b.seen THEN now()
                            WHEN b.wake_at <> '0001-01-01 00:00:00+00' THEN b.wake_at
                            WHEN b.state IN ('REQUIRES_ACTION', 'PAUSED') THEN 'infinity'
                            ELSE now() END,
        phase = b.phase, iterations = b.iterations, model_calls = b.model_calls, tool_calls = b.tool_calls, attempts = b.attempts,
        usage = b.usage::json, cost = b.cost::json, cost_pico = b.cost_pico, estimated_pico = b.estimated_pico, held_pico = b.held_pico,
        answer = b.answer::json, partial = b.partial, unverified = b.unverified, stop = nullif(b.stop, '')::json,
        required_actions = b.required_actions::json, side_effects = b.side_effects::json,
        started_at = nullif(b.started_at, '0001-01-01 00:00:00+00'), wake_at = nullif(b.wake_at, '0001-01-01 00:00:00+00'),
        ended_at = nullif(b.ended_at, '0001-01-01 00:00:00+00')
    FROM batch b
    WHERE r.tenant_id = b.tenant_id AND r.run_id = b.run_id
      AND r.lease_epoch = b.epoch AND r.lease_owner = b.owner AND r.next_seq = b.first_seq
      AND (NOT b.intent OR r.signals <= b.seen)
    RETURNING r.tenant_id, r.run_id, r.lease_owner IS NULL AND r.ended_at IS NULL AND r.available_at <= now() AS claimable,
        b.place, b.seen, b.release, b.hold_call, b.hold_amount, b.hold_model, b.hold_purpose, b.hold_price,
        b.settled_call, b.settled_cost, b.input_uncached, b.cache_read, b.cache_write_5m, b.cache_write_1h,
        b.output, b.reasoning, b.estimated, b.saved, b.iteration, b.tools
), appended AS (
    INSERT INTO events (tenant_id, run_id, seq, kind, at, epoch, body)
    SELECT e.tenant_id, e.run_id, e.seq, e.kind, e.at, e.epoch, e.body::json
    FROM (
        SELECT unnest(@event_tenants::text[]) AS tenant_id, unnest(@event_runs::text[])::uuid AS run_id,
               unnest(@event_seqs::bigint[]) AS seq, unnest(@event_kinds::text[]) AS kind, unnest(@event_ats::timestamptz[]) AS at,
               unnest(@event_epochs::bigint[]) AS epoch, unnest(@event_bodies::text[]) AS body
    ) e
    WHERE e.run_id = ANY (ARRAY(SELECT f.run_id FROM fence f))
), calls AS (
    INSERT INTO tool_calls AS t (tenant_id, run_id, call_id, ordinal, tool, call, iteration, args_sha256,
        effect, state, outcome, attempt, idem_key, result, result_seq, cut, bytes, started_at, finished_at,
        until_at, child_id, owed, asked, asked_at, decided_at, decided_by, decision, edited)
    SELECT c.tenant_id, c.run_id, c.call_id, c.ordinal, c.tool, c.call::json, c.iteration, c.args_sha256,
           c.effect, c.state, c.outcome, c.attempt, c.idem_key, c.result::json, nullif(c.result_seq, 0), c.cut, c.bytes,
           nullif(c.started_at, '0001-01-01 00:00:00+00'), nullif(c.finished_at, '0001-01-01 00:00:00+00'),
           nullif(c.until_at, '0001-01-01 00:00:00+00'), nullif(c.child_id, '')::uuid, c.owed, c.asked::json,
           nullif(c.asked_at, '0001-01-01 00:00:00+00'), nullif(c.decided_at, '0001-01-01 00:00:00+00'),
           c.decided_by, c.decision::json, c.edited::json
    FROM (
        SELECT unnest(@call_tenants::text[]) AS tenant_id, unnest(@call_runs::text[])::uuid AS run_id,
               unnest(@call_ids::text[]) AS call_id, unnest(@call_ordinals::integer[]) AS ordinal,
               unnest(@call_tools::text[]) AS tool, unnest(@calls::text[]) AS call,
               unnest(@call_iterations::integer[]) AS iteration, unnest(@call_hashes::text[]) AS args_sha256,
               unnest(@call_effects::text[]) AS effect, unnest(@call_states::text[]) AS state,
               unnest(@call_outcomes::text[]) AS outcome, unnest(@call_attempts::integer[]) AS attempt,
               unnest(@call_keys::text[]) AS idem_key, unnest(@call_results::text[]) AS result,
               unnest(@call_result_seqs::bigint[]) AS result_seq,
               unnest(@call_cuts::boolean[]) AS cut, unnest(@call_bytes::bigint[]) AS bytes,
               unnest(@call_started::timestamptz[]) AS started_at, unnest(@call_finished::timestamptz[]) AS finished_at,
               unnest(@call_untils::timestamptz[]) AS until_at, unnest(@call_children::text[]) AS child_id,
               unnest(@call_owed::text[]) AS owed, unnest(@call_asked::text[]) AS asked,
               unnest(@call_asked_at::timestamptz[]) AS asked_at, unnest(@call_decided_at::timestamptz[]) AS decided_at,
               unnest(@call_decided_by::text[]) AS decided_by, unnest(@call_decisions::text[]) AS decision,
               unnest(@call_edited::text[]) AS edited
    ) c
    WHERE c.run_id = ANY (ARRAY(SELECT f.run_id FROM fence f))
    ON CONFLICT (tenant_id, run_id, call_id) DO UPDATE SET
        tool = excluded.tool, call = excluded.call, iteration = excluded.iteration, args_sha256 = excluded.args_sha256,
        effect = excluded.effect, state = excluded.state, outcome = excluded.outcome, attempt = excluded.attempt,
        idem_key = excluded.idem_key, result = excluded.result, result_seq = excluded.result_seq, cut = excluded.cut, bytes = excluded.bytes,
        started_at = excluded.started_at, finished_at = excluded.finished_at, until_at = excluded.until_at,
        child_id = excluded.child_id, decided_at = excluded.decided_at, decided_by = excluded.decided_by,
        asked = excluded.asked, decision = excluded.decision, edited = excluded.edited,
        owed = CASE WHEN excluded.owed = '' THEN t.owed ELSE excluded.owed END,
        asked_at = coalesce(excluded.asked_at, t.asked_at)
), opened AS (
    INSERT INTO holds (tenant_id, run_id, call, amount_pico, model, purpose, price_version)
    SELECT f.tenant_id, f.run_id, f.hold_call, f.hold_amount, f.hold_model, f.hold_purpose, f.hold_price
    FROM fence f WHERE f.hold_call > 0
), settled AS (
    UPDATE holds h SET state = 'settled', settled_pico = f.settled_cost, settled_at = now(),
        input_uncached = f.input_uncached, cache_read = f.cache_read, cache_write_5m = f.cache_write_5m,
        cache_write_1h = f.cache_write_1h, output = f.output, reasoning = f.reasoning,
        estimated = f.estimated, saved_pico = f.saved, iteration = nullif(f.iteration, 0), tools = nullif(f.tools, '')::text[]
    FROM fence f
    WHERE f.settled_call > 0
      AND h.tenant_id = f.tenant_id AND h.run_id = f.run_id AND h.call = f.settled_call AND h.state = 'open'
    RETURNING h.run_id, h.call, h.amount_pico, h.settled_pico
), balance AS (
    UPDATE accounts a SET
        committed_pico = a.committed_pico + coalesce(s.settled_pico, 0),
        held_pico = a.held_pico + f.hold_amount - coalesce(s.amount_pico, 0)
    FROM fence f LEFT JOIN settled s ON s.run_id = f.run_id
    WHERE (f.hold_call > 0 OR f.settled_call > 0)
      AND a.tenant_id = f.tenant_id AND a.account = 'run:' || f.run_id::text
), portions AS (
    UPDATE chunks c SET
        spent_pico = c.spent_pico + CASE WHEN c.call = s.call THEN s.settled_pico ELSE 0 END,
        held_pico = CASE WHEN c.state = 'open' AND f.hold_call > 0 THEN f.hold_amount WHEN c.call = s.call THEN 0 ELSE c.held_pico END,
        call = CASE WHEN c.state = 'open' AND f.hold_call > 0 THEN f.hold_call ELSE c.call END,
        state = CASE WHEN c.state NOT IN ('open', 'short') THEN c.state
                     WHEN f.release THEN 'closed'
                     WHEN c.call = s.call AND c.spent_pico + s.settled_pico > c.drawn_pico THEN 'short'
                     ELSE c.state END
    FROM fence f LEFT JOIN settled s ON s.run_id = f.run_id
    WHERE (f.hold_call > 0 OR f.settled_call > 0 OR f.release)
      AND c.tenant_id = f.tenant_id AND c.run_id = f.run_id
      AND (c.state = 'open' AND f.hold_call > 0 OR c.call = s.call OR f.release AND c.state IN ('open', 'short'))
), taken AS (
    DELETE FROM run_signals s USING fence f
    WHERE f.seen > 0 AND s.tenant_id = f.tenant_id AND s.run_id = f.run_id AND s.id <= f.seen
)
SELECT f.place::integer AS place, (pg_notify('loopd_events', f.run_id::text) IS NOT NULL)::boolean AS told,
       (CASE WHEN f.release THEN pg_notify('loopd_events', 'released ' || f.run_id) END IS NOT NULL)::boolean AS freed,
       (CASE WHEN f.claimable THEN pg_notify('loopd_wake', '') END IS NOT NULL)::boolean AS woke
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
