-- Tools that can be trusted with money: registered tools, approvals with an inbox,
-- results from outside, child runs, policies that approve, and notes that agents
-- keep.

-- +goose Up

ALTER TABLE runs
    ADD COLUMN parent_run_id  uuid,
    ADD COLUMN parent_call_id text,
    ADD COLUMN root_run_id    uuid,
    ADD COLUMN depth          integer NOT NULL DEFAULT 0 CHECK (depth >= 0),
    ADD COLUMN side_effects   json    NOT NULL DEFAULT '[]',
    ADD CONSTRAINT runs_child CHECK ((depth > 0) = (parent_run_id IS NOT NULL)
        AND (depth > 0) = (parent_call_id IS NOT NULL) AND (depth > 0) = (root_run_id IS NOT NULL));
COMMENT ON COLUMN runs.parent_run_id IS 'The run whose call this one answers. Null: nobody''s child.';
COMMENT ON COLUMN runs.root_run_id IS 'The run that the whole tree began with.';
COMMENT ON COLUMN runs.depth IS 'Runs above this one.';
COMMENT ON COLUMN runs.side_effects IS 'Calls of the run and its children that were sent and are not READ_ONLY.';

CREATE INDEX runs_children ON runs (tenant_id, parent_run_id, created_at DESC, run_id DESC) WHERE parent_run_id IS NOT NULL;

ALTER TABLE run_signals
    DROP CONSTRAINT run_signals_kind_check,
    ADD CONSTRAINT run_signals_kind_check CHECK (kind IN
        ('cancel_requested', 'approval_decided', 'call_resolved', 'result_submitted', 'child_finished'));

ALTER TABLE tool_calls
    ADD COLUMN until_at          timestamptz,
    ADD COLUMN child_id          uuid,
    ADD COLUMN owed              text    NOT NULL DEFAULT '' CHECK (owed IN ('', 'submit', 'answer')),
    ADD COLUMN asked             json    NOT NULL DEFAULT '""',
    ADD COLUMN asked_at          timestamptz,
    ADD COLUMN decided_at        timestamptz,
    ADD COLUMN decided_by        text    NOT NULL DEFAULT '',
    ADD COLUMN decision          json    NOT NULL DEFAULT '""',
    ADD COLUMN edited            json    NOT NULL DEFAULT '""',
    ADD COLUMN verdict           json,
    ADD COLUMN verdict_approved  boolean,
    ADD COLUMN verdict_at        timestamptz,
    ADD COLUMN submitted_attempt integer NOT NULL DEFAULT 0 CHECK (submitted_attempt >= 0),
    ADD COLUMN submitted_sha256  text    NOT NULL DEFAULT '',
    ADD COLUMN submitted_outcome text    NOT NULL DEFAULT '' CHECK (submitted_outcome IN ('', 'ok', 'permanent')),
    DROP CONSTRAINT tool_calls_state_check,
    ADD CONSTRAINT tool_calls_state_check CHECK (state IN ('PLANNED', 'AWAITING_APPROVAL', 'APPROVED', 'REJECTED', 'DENIED', 'STARTED',
        'AWAITING_RESULT', 'SUCCEEDED', 'FAILED', 'NOT_SENT', 'IN_DOUBT', 'SKIPPED', 'CANCELLED')),
    ADD CONSTRAINT tool_calls_deadline CHECK (asked_at IS NULL OR state NOT IN ('AWAITING_APPROVAL', 'AWAITING_RESULT') OR until_at IS NOT NULL),
    ADD CONSTRAINT tool_calls_verdict CHECK ((verdict IS NULL) = (verdict_approved IS NULL) AND (verdict IS NULL) = (verdict_at IS NULL)),
    ADD CONSTRAINT tool_calls_submitted CHECK ((submitted_attempt = 0) = (submitted_sha256 = '') AND (submitted_attempt = 0) = (submitted_outcome = ''));
COMMENT ON COLUMN tool_calls.until_at IS 'How long the call waits for a decision, a result or a word.';
COMMENT ON COLUMN tool_calls.child_id IS 'The run that the call started.';
COMMENT ON COLUMN tool_calls.owed IS 'Who gives the result: submit is a client, answer is a person. Empty: loopd itself.';
COMMENT ON COLUMN tool_calls.asked IS 'Why a person is asked, a JSON string.';
COMMENT ON COLUMN tool_calls.asked_at IS 'When the call was put before a person. Null: it needs nobody.';
COMMENT ON COLUMN tool_calls.decided_at IS 'When the decision came into the journal.';
COMMENT ON COLUMN tool_calls.edited IS 'Arguments that were approved instead of the model''s, a JSON string.';
COMMENT ON COLUMN tool_calls.verdict IS 'The one decision that was accepted, maybe before the owner of the run has taken it. Not part of the head: appends leave it alone.';
COMMENT ON COLUMN tool_calls.submitted_attempt IS 'The attempt for which a result from outside was accepted. Not part of the head. 0: none was.';
COMMENT ON COLUMN tool_calls.submitted_sha256 IS 'Tells a repeated submission from another one.';

-- The predicate is that of approvals.waits.
CREATE INDEX tool_calls_inbox ON tool_calls (tenant_id, until_at, run_id, call_id)
    WHERE asked_at IS NOT NULL
      AND ((state = 'AWAITING_APPROVAL' AND verdict IS NULL)
        OR (state = 'AWAITING_RESULT' AND owed = 'answer' AND submitted_attempt < attempt));
CREATE INDEX tool_calls_asked ON tool_calls (tenant_id, asked_at DESC, run_id DESC, call_id DESC) WHERE asked_at IS NOT NULL;
CREATE INDEX tool_calls_waiting ON tool_calls (tenant_id, run_id, ordinal, state)
    WHERE state IN ('AWAITING_APPROVAL', 'AWAITING_RESULT', 'IN_DOUBT');

CREATE VIEW approvals AS
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
       t.tool, t.call, t.iteration, t.args_sha256, t.effect, t.state, t.outcome, t.attempt, t.idem_key, t.result, t.cut, t.bytes,
       t.started_at, t.finished_at, t.until_at, t.child_id, t.asked, t.asked_at, t.decided_at, t.decided_by, t.decision, t.edited,
       t.verdict, t.verdict_at
FROM tool_calls t JOIN runs r USING (tenant_id, run_id)
WHERE t.asked_at IS NOT NULL;
COMMENT ON VIEW approvals IS 'What people were asked, and what became of it. It is the inbox of the API too.';

-- As before, with what comes from outside.
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

CREATE TABLE tools (
    tenant_id      text        NOT NULL CHECK (tenant_id <> ''),
    tool_id        text        NOT NULL CHECK (tool_id <> ''),
    display_name   text        NOT NULL,
    description    text        NOT NULL,
    labels         json        NOT NULL,
    latest_version bigint      NOT NULL CHECK (latest_version >= 1),
    created_at     timestamptz NOT NULL DEFAULT now(),
    archived_at    timestamptz,
    PRIMARY KEY (tenant_id, tool_id)
);
COMMENT ON TABLE tools IS 'Registered tools. An id is never given out again.';
COMMENT ON COLUMN tools.description IS 'For people. What models read is in the version.';
COMMENT ON COLUMN tools.archived_at IS 'An archived tool takes no changes and goes into no new agent version.';

CREATE TABLE tool_versions (
    tenant_id  text        NOT NULL,
    tool_id    text        NOT NULL,
    version    bigint      NOT NULL CHECK (version >= 1),
    spec       json        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, tool_id, version),
    FOREIGN KEY (tenant_id, tool_id) REFERENCES tools
);
COMMENT ON TABLE tool_versions IS 'Definitions of tools. A version never changes.';
COMMENT ON COLUMN tool_versions.spec IS 'The definition, in the server''s own form.';

CREATE TABLE policies (
    tenant_id      text        NOT NULL CHECK (tenant_id <> ''),
    policy_id      text        NOT NULL CHECK (policy_id <> ''),
    tool           text        NOT NULL CHECK (tool <> ''),
    latest_version bigint      NOT NULL CHECK (latest_version >= 1),
    created_at     timestamptz NOT NULL DEFAULT now(),
    archived_at    timestamptz,
    PRIMARY KEY (tenant_id, policy_id)
);
COMMENT ON TABLE policies IS 'Rules that approve calls instead of a person. An id is never given out again.';
COMMENT ON COLUMN policies.tool IS 'The tool of the newest version.';
COMMENT ON COLUMN policies.archived_at IS 'An archived policy takes no changes and approves nothing.';

CREATE INDEX policies_tool ON policies (tenant_id, tool, policy_id) WHERE archived_at IS NULL;

CREATE TABLE policy_versions (
    tenant_id  text        NOT NULL,
    policy_id  text        NOT NULL,
    version    bigint      NOT NULL CHECK (version >= 1),
    body       json        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, policy_id, version),
    FOREIGN KEY (tenant_id, policy_id) REFERENCES policies
);
COMMENT ON TABLE policy_versions IS 'What people wrote into policies. A version never changes.';

CREATE TABLE policy_uses (
    tenant_id text    NOT NULL,
    policy_id text    NOT NULL,
    day       date    NOT NULL,
    uses      integer NOT NULL CHECK (uses >= 1),
    PRIMARY KEY (tenant_id, policy_id, day),
    FOREIGN KEY (tenant_id, policy_id) REFERENCES policies
);
COMMENT ON TABLE policy_uses IS 'How often policies approved, by day in UTC. All versions of a policy count together.';

CREATE TABLE notes (
    tenant_id  text        NOT NULL CHECK (tenant_id <> ''),
    agent      text        NOT NULL CHECK (octet_length(agent) <= 256),
    subject    text        NOT NULL CHECK (octet_length(subject) <= 256),
    key        text        NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 256),
    text       text        NOT NULL CHECK (octet_length(text) <= 32768),
    updated_at timestamptz NOT NULL DEFAULT now(),
    tsv        tsvector    GENERATED ALWAYS AS (to_tsvector('simple'::regconfig, key || ' ' || text)) STORED,
    PRIMARY KEY (tenant_id, agent, subject, key)
);
COMMENT ON TABLE notes IS 'What agents remember about a subject, in runs that come later.';
COMMENT ON COLUMN notes.agent IS 'Resource name, agents/{agent}.';
COMMENT ON COLUMN notes.tsv IS 'Words of key and text. A search reads the notes of one agent and subject, at most a thousand, so it needs no index of its own: measured 40 ms for a thousand of the largest.';
