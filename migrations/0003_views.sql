-- Views for people in psql. No program reads them.

-- +goose Up

-- Postgres stores what its JSON functions cannot read: \u0000 and lone surrogates.
-- One of them must not hide a whole transcript.
CREATE FUNCTION readable(body json) RETURNS json LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT regexp_replace(regexp_replace(regexp_replace(body::text,
        '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g'),
        '(?<!\\)((?:\\\\)*)\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])', '\1\\ufffd', 'g'),
        '(?<!\\)(?<!\\u[dD][89abAB][0-9a-fA-F]{2})((?:\\\\)*)\\u[dD][c-fC-F][0-9a-fA-F]{2}', '\1\\ufffd', 'g')::json
$$;
COMMENT ON FUNCTION readable(json) IS 'The document with U+FFFD for what the JSON functions of Postgres refuse.';

CREATE VIEW transcript AS
WITH told AS (
    SELECT e.tenant_id, e.run_id, e.seq, e.at, e.kind, readable(e.body) AS body,
           count(*) FILTER (WHERE e.kind = 'model_answered')
               OVER (PARTITION BY e.tenant_id, e.run_id ORDER BY e.seq) AS answers
    FROM events e
)
SELECT t.tenant_id, t.run_id, t.seq, t.at, t.answers AS iteration, l.speaker, l.text
FROM told t
CROSS JOIN LATERAL (
    SELECT 0::bigint AS place, 'user' AS speaker, t.body -> 'spec' ->> 'input' AS text
    WHERE t.kind = 'created'
    UNION ALL
    SELECT p.place,
           CASE p.part ->> 'kind' WHEN 'reasoning' THEN 'reasoning' WHEN 'refusal' THEN 'refusal'
                                  WHEN 'tool_call' THEN 'calls' ELSE 'assistant' END,
           CASE p.part ->> 'kind' WHEN 'tool_call'
                THEN (p.part -> 'call' ->> 'id') || ': ' || (p.part -> 'call' ->> 'name') || '(' || (p.part -> 'call' ->> 'args') || ')'
                ELSE coalesce(p.part ->> 'text', '') END
    FROM json_array_elements(CASE WHEN t.kind = 'model_answered' AND json_typeof(t.body -> 'message' -> 'parts') = 'array'
                                  THEN t.body -> 'message' -> 'parts' ELSE '[]' END) WITH ORDINALITY AS p (part, place)
    UNION ALL
    SELECT 0, 'tool', (t.body ->> 'call_id') || ' ' || (t.body ->> 'outcome') || ': ' || (t.body ->> 'content')
    WHERE t.kind IN ('call_finished', 'call_refused')
    UNION ALL
    SELECT 0, 'tool', (t.body ->> 'call_id') || ' in doubt: ' || (t.body ->> 'reason')
    WHERE t.kind = 'call_in_doubt'
    UNION ALL
    SELECT 0, 'person', (t.body ->> 'call_id') || ' resolved as ' || (t.body ->> 'resolution')
        || coalesce(': ' || (t.body ->> 'result'), '')
    WHERE t.kind = 'call_resolved'
    UNION ALL
    SELECT 0, 'person', (t.body ->> 'call_id') || CASE WHEN (t.body ->> 'approved')::boolean THEN ' approved' ELSE ' denied' END
        || coalesce(': ' || (t.body ->> 'reason'), '')
    WHERE t.kind = 'approval_decided'
    UNION ALL
    SELECT 0, 'person', 'cancel' || coalesce(': ' || (t.body ->> 'reason'), '')
    WHERE t.kind = 'cancel_requested'
    UNION ALL
    SELECT 0, 'guard', (t.body ->> 'guard') || ': ' || coalesce(t.body ->> 'say', t.body ->> 'message')
    WHERE t.kind = 'tripped'
    UNION ALL
    SELECT 0, 'guard', 'output: ' || (t.body ->> 'say')
    WHERE t.kind = 'answer_rejected'
    UNION ALL
    SELECT 0, 'provider', (t.body ->> 'class') || coalesce(': ' || (t.body ->> 'message'), '')
    WHERE t.kind = 'model_failed'
    UNION ALL
    SELECT 0, 'loopd', (t.body ->> 'state') || ' ' || (t.body -> 'stop' ->> 'reason') || ': ' || (t.body -> 'stop' ->> 'message')
    WHERE t.kind = 'finished'
) l
ORDER BY t.tenant_id, t.run_id, t.seq, l.place;
COMMENT ON VIEW transcript IS 'Who said what in a run, in order. Ask for one run: WHERE run_id = ...';

CREATE VIEW run_summary AS
SELECT r.tenant_id, r.run_id, r.agent, r.agent_version, r.state, r.phase,
       readable(r.stop) ->> 'reason' AS stop_reason,
       readable(r.stop) ->> 'message' AS stop_message,
       r.iterations, r.model_calls, r.tool_calls, r.attempts,
       (r.cost_pico::numeric / 1000000000000)::numeric(20, 12) AS cost_usd,
       (r.held_pico::numeric / 1000000000000)::numeric(20, 12) AS held_usd,
       (SELECT coalesce(sum(u.value::bigint), 0)::bigint FROM json_each_text(r.usage) u
        WHERE u.key IN ('input_uncached', 'cache_read', 'cache_write_5m', 'cache_write_1h')) AS input_tokens,
       (SELECT coalesce(sum(u.value::bigint), 0)::bigint FROM json_each_text(r.usage) u
        WHERE u.key IN ('output', 'reasoning')) AS output_tokens,
       r.created_at, r.started_at, r.wake_at, r.ended_at, coalesce(r.ended_at, now()) - r.created_at AS age
FROM runs r;
COMMENT ON VIEW run_summary IS 'One line per run: where it stands, why it ended, what it cost.';

CREATE VIEW trips AS
SELECT e.tenant_id, e.run_id, e.seq, e.at, r.agent,
       b.body ->> 'guard' AS guard, b.body ->> 'verdict' AS verdict, b.body ->> 'reason' AS reason,
       b.body ->> 'observed' AS observed, b.body ->> 'limit' AS "limit", b.body ->> 'message' AS message,
       (b.body ->> 'iteration')::integer AS iteration, b.body -> 'evidence' AS evidence
FROM events e
JOIN runs r USING (tenant_id, run_id)
CROSS JOIN LATERAL (SELECT readable(e.body) AS body) b
WHERE e.kind = 'tripped';
COMMENT ON VIEW trips IS 'Every verdict of a guard that changed a run, with its evidence.';

CREATE INDEX events_trips ON events (tenant_id, at) WHERE kind = 'tripped';
