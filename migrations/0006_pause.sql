-- Runs can be paused, by people and by guards, and resumed under raised limits.

-- +goose Up

ALTER TABLE run_signals
    DROP CONSTRAINT run_signals_kind_check,
    ADD CONSTRAINT run_signals_kind_check CHECK (kind IN
        ('cancel_requested', 'approval_decided', 'call_resolved', 'result_submitted', 'child_finished',
         'pause_requested', 'resumed'));
COMMENT ON COLUMN runs.limits IS 'The limits in force, every one present: those that the run was created with, as far as nobody raised them since.';

-- As before, with pauses.
CREATE OR REPLACE VIEW transcript AS
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
    SELECT 0, 'tool', (t.body ->> 'call_id') || ' ' || (t.body ->> 'outcome') || ': ' || (t.body ->> 'content')
        || coalesce(' (by ' || (t.body ->> 'by') || ')', '')
    WHERE t.kind = 'result_submitted'
    UNION ALL
    SELECT 0, 'tool', (t.body ->> 'call_id') || ' unknown: ' || (t.body ->> 'content')
    WHERE t.kind = 'doubt_told'
    UNION ALL
    SELECT 0, 'loopd', (t.body ->> 'call_id') || ' started run ' || (t.body ->> 'child_id')
    WHERE t.kind = 'call_handed_out' AND t.body ->> 'child_id' IS NOT NULL
    UNION ALL
    SELECT 0, 'child', (t.body ->> 'call_id') || ' ' || (t.body ->> 'state') || ': '
        || coalesce(t.body ->> 'answer', t.body -> 'stop' ->> 'message')
    WHERE t.kind = 'child_finished'
    UNION ALL
    SELECT 0, 'loopd', (t.body ->> 'call_id')
        || CASE WHEN (t.body ->> 'found')::boolean THEN ' took effect'
                WHEN (t.body ->> 'settled')::boolean THEN ' did not take effect'
                ELSE ' may have taken effect' END
        || coalesce(': ' || coalesce(t.body ->> 'result', t.body ->> 'message'), '')
    WHERE t.kind = 'call_verified'
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
    SELECT 0, 'person', 'pause' || coalesce(': ' || (t.body ->> 'reason'), '')
    WHERE t.kind = 'pause_requested'
    UNION ALL
    SELECT 0, 'person', 'resume' || coalesce(': ' || (t.body ->> 'reason'), '')
    WHERE t.kind = 'resumed'
    UNION ALL
    SELECT 1, 'user', t.body ->> 'input'
    WHERE t.kind = 'resumed' AND t.body ->> 'input' IS NOT NULL
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
