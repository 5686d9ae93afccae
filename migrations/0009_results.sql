-- Results of tools in full, where the model was shown a part, and what is said in a
-- run besides: summaries, pauses, checkpoints, budgets.

-- +goose Up

CREATE TABLE results (
    tenant_id text    NOT NULL,
    run_id    uuid    NOT NULL,
    call_id   text    NOT NULL,
    attempt   integer NOT NULL CHECK (attempt >= 1),
    text      json    NOT NULL,
    PRIMARY KEY (tenant_id, run_id, call_id, attempt),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs
);
COMMENT ON TABLE results IS 'What tools answered, all that loopd read of it, where that is more than the model was shown. Written with the event of the result, and as unchangeable as that.';
COMMENT ON COLUMN results.text IS 'A JSON string.';

CREATE TRIGGER results_append_only BEFORE UPDATE OR DELETE ON results
    FOR EACH ROW EXECUTE FUNCTION events_are_append_only();
CREATE TRIGGER results_no_truncate BEFORE TRUNCATE ON results
    FOR EACH STATEMENT EXECUTE FUNCTION events_are_append_only();

-- As before, with what is new. The answers of calls beside the conversation are no
-- iterations.
CREATE OR REPLACE VIEW transcript AS
WITH read AS (
    SELECT e.tenant_id, e.run_id, e.seq, e.at, e.kind, readable(e.body) AS body,
           count(*) FILTER (WHERE e.kind = 'model_started')
               OVER (PARTITION BY e.tenant_id, e.run_id ORDER BY e.seq) AS calls
    FROM events e
), asked AS (
    -- What is said in a call beside the conversation is no part of it.
    SELECT r.*, nullif(max(CASE WHEN r.kind = 'model_started' THEN r.body ->> 'purpose' END)
               OVER (PARTITION BY r.tenant_id, r.run_id, r.calls), 'wrap_up') AS beside
    FROM read r
), told AS (
    SELECT a.*, count(*) FILTER (WHERE a.kind = 'model_answered' AND a.beside IS NULL)
               OVER (PARTITION BY a.tenant_id, a.run_id ORDER BY a.seq) AS answers
    FROM asked a
)
SELECT t.tenant_id, t.run_id, t.seq, t.at, t.answers AS iteration, l.speaker, l.text
FROM told t
CROSS JOIN LATERAL (
    SELECT 0::bigint AS place, 'user' AS speaker, t.body -> 'spec' ->> 'input' AS text
    WHERE t.kind = 'created'
    UNION ALL
    SELECT p.place,
           coalesce(t.beside, CASE p.part ->> 'kind' WHEN 'reasoning' THEN 'reasoning' WHEN 'refusal' THEN 'refusal'
                                                     WHEN 'tool_call' THEN 'calls' ELSE 'assistant' END),
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
    SELECT 0, 'person', CASE t.kind WHEN 'resumed' THEN 'resume' ELSE 'pause' END || coalesce(': ' || (t.body ->> 'reason'), '')
    WHERE t.kind IN ('pause_requested', 'resumed')
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
    SELECT 0, 'guard', (t.body ->> 'checkpoint') || CASE WHEN t.body -> 'problems' IS NULL THEN ': holds'
        ELSE ': ' || (SELECT string_agg(p.problem, '; ') FROM json_array_elements_text(t.body -> 'problems') AS p (problem)) END
    WHERE t.kind = 'checkpoint_judged'
    UNION ALL
    SELECT 0, 'guard', (t.body ->> 'budget') || ' has no room: ' || (t.body ->> 'needed') || ' USD needed, '
        || (t.body ->> 'committed') || ' of ' || (t.body ->> 'limit') || ' USD spent or held'
    WHERE t.kind = 'account_refused'
    UNION ALL
    SELECT 0, 'guard', 'compaction: ' || coalesce(t.body ->> 'failure', t.body ->> 'summary',
        'left out the results of ' || (SELECT string_agg(c.call, ', ') FROM json_array_elements_text(t.body -> 'cleared') AS c (call)))
    WHERE t.kind = 'compacted'
    UNION ALL
    SELECT 0, 'provider', (t.body ->> 'class') || coalesce(': ' || (t.body ->> 'message'), '')
    WHERE t.kind = 'model_failed'
    UNION ALL
    SELECT 0, 'loopd', (t.body ->> 'state') || ' ' || (t.body -> 'stop' ->> 'reason') || ': ' || (t.body -> 'stop' ->> 'message')
    WHERE t.kind = 'finished'
) l
ORDER BY t.tenant_id, t.run_id, t.seq, l.place;
