-- Runs, their journals and the heads beside them.
--
-- Bodies are json, not jsonb: json keeps the exact bytes and accepts \u0000, which
-- models and tools do write. For the same reason text from outside is kept as a
-- JSON string.

-- +goose Up

CREATE TABLE workers (
    worker_id  text        PRIMARY KEY CHECK (worker_id <> ''),
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
);
COMMENT ON TABLE workers IS 'Processes that drive runs. One row each, renewed for all runs that the worker owns; deleting it gives them back.';
COMMENT ON COLUMN workers.worker_id IS 'Fresh for every process.';
COMMENT ON COLUMN workers.expires_at IS 'Database time. Afterwards the row is deleted by whoever notices.';

CREATE TABLE runs (
    tenant_id         text        NOT NULL CHECK (tenant_id <> ''),
    run_id            uuid        NOT NULL,
    agent             text        NOT NULL,
    agent_version     bigint      NOT NULL CHECK (agent_version >= 0),
    input             json        NOT NULL,
    limits            json        NOT NULL,
    labels            json        NOT NULL,
    source            text        NOT NULL,
    has_output_schema boolean     NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT now(),

    next_seq     bigint      NOT NULL CHECK (next_seq >= 2),
    lease_owner  text        REFERENCES workers (worker_id) ON DELETE SET NULL,
    lease_epoch  bigint      NOT NULL DEFAULT 0 CHECK (lease_epoch >= 0),
    claim_id     text        NOT NULL DEFAULT '',
    signals      bigint      NOT NULL DEFAULT 0 CHECK (signals >= 0),
    available_at timestamptz NOT NULL DEFAULT now(),

    state            text        NOT NULL CHECK (state IN
        ('QUEUED', 'RUNNING', 'REQUIRES_ACTION', 'PAUSED', 'CANCELLING', 'SUCCEEDED', 'STOPPED', 'FAILED', 'CANCELLED')),
    phase            text        NOT NULL,
    iterations       integer     NOT NULL DEFAULT 0 CHECK (iterations >= 0),
    model_calls      integer     NOT NULL DEFAULT 0 CHECK (model_calls >= 0),
    tool_calls       integer     NOT NULL DEFAULT 0 CHECK (tool_calls >= 0),
    attempts         integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    usage            json        NOT NULL DEFAULT '{}',
    cost             json        NOT NULL DEFAULT '{}',
    cost_pico        bigint      NOT NULL DEFAULT 0 CHECK (cost_pico >= 0),
    estimated_pico   bigint      NOT NULL DEFAULT 0 CHECK (estimated_pico >= 0),
    held_pico        bigint      NOT NULL DEFAULT 0 CHECK (held_pico >= 0),
    answer           json        NOT NULL DEFAULT '""',
    partial          boolean     NOT NULL DEFAULT false,
    stop             json,
    required_actions json        NOT NULL DEFAULT '[]',
    started_at       timestamptz,
    wake_at          timestamptz,
    ended_at         timestamptz,

    PRIMARY KEY (tenant_id, run_id),
    CONSTRAINT runs_end CHECK ((ended_at IS NOT NULL) = (state IN ('SUCCEEDED', 'STOPPED', 'FAILED', 'CANCELLED'))),
    CONSTRAINT runs_ended_unowned CHECK (ended_at IS NULL OR lease_owner IS NULL),
    CONSTRAINT runs_ended_because CHECK (ended_at IS NULL OR stop IS NOT NULL)
) WITH (fillfactor = 70); -- room on the page, so that head updates stay heap-only
COMMENT ON TABLE runs IS 'One row per run: what it was created with, who may write it (the lease), and its head. The head follows from the journal and is never read to decide.';
COMMENT ON COLUMN runs.agent IS 'Resource name, agents/{agent}.';
COMMENT ON COLUMN runs.input IS 'A JSON string.';
COMMENT ON COLUMN runs.limits IS 'The limits in force, every one present.';
COMMENT ON COLUMN runs.has_output_schema IS 'The agent version asks for an answer of a given shape.';
COMMENT ON COLUMN runs.next_seq IS 'Sequence number of the next event. Taken by the fenced update that starts every append.';
COMMENT ON COLUMN runs.lease_owner IS 'The worker that may append. Null: nobody.';
COMMENT ON COLUMN runs.lease_epoch IS 'Fencing number, raised by every claim.';
COMMENT ON COLUMN runs.claim_id IS 'Names the claim that brought the epoch, for a worker that did not hear the answer.';
COMMENT ON COLUMN runs.signals IS 'Highest id in run_signals that waits for the owner. 0: none.';
COMMENT ON COLUMN runs.available_at IS 'When an unowned run may be claimed. infinity: when a signal comes.';
COMMENT ON COLUMN runs.cost IS 'The cost by kind, decimal USD.';
COMMENT ON COLUMN runs.cost_pico IS 'The cost so far in 1e-12 USD.';
COMMENT ON COLUMN runs.estimated_pico IS 'Part of cost_pico that was charged without reported usage.';
COMMENT ON COLUMN runs.held_pico IS 'Reserved for the model call in flight, in 1e-12 USD.';
COMMENT ON COLUMN runs.answer IS 'A JSON string.';
COMMENT ON COLUMN runs.partial IS 'The answer is the best there was, not an accepted one.';
COMMENT ON COLUMN runs.wake_at IS 'When a wait ends at the latest.';

CREATE INDEX runs_claim ON runs (available_at) WHERE lease_owner IS NULL AND ended_at IS NULL;
CREATE INDEX runs_owned ON runs (lease_owner) WHERE lease_owner IS NOT NULL;
CREATE INDEX runs_list ON runs (tenant_id, created_at DESC, run_id DESC);
CREATE INDEX runs_list_agent ON runs (tenant_id, agent, created_at DESC, run_id DESC);
CREATE INDEX runs_live ON runs (tenant_id, created_at DESC, run_id DESC) WHERE ended_at IS NULL;

CREATE TABLE events (
    tenant_id text        NOT NULL,
    run_id    uuid        NOT NULL,
    seq       bigint      NOT NULL CHECK (seq >= 1),
    kind      text        NOT NULL,
    at        timestamptz NOT NULL,
    epoch     bigint      NOT NULL CHECK (epoch >= 0),
    body      json        NOT NULL,
    PRIMARY KEY (tenant_id, run_id, seq),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs
) WITH (toast_tuple_target = 8160); -- bodies of a few kilobytes stay in the row: measured 24 % more commits
COMMENT ON TABLE events IS 'The journals: the facts of each run, numbered from 1 without gaps. Append-only; what happened is nowhere else.';
COMMENT ON COLUMN events.epoch IS 'Epoch of the lease that it was written under. 0: before any worker owned the run.';

-- +goose StatementBegin
CREATE FUNCTION events_are_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('loopd.retention', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'events are append-only: % refused', TG_OP
        USING ERRCODE = 'restrict_violation',
              HINT = 'Retention deletes whole runs, with loopd.retention set to on in its transaction.';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON events
    FOR EACH ROW EXECUTE FUNCTION events_are_append_only();
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION events_are_append_only();

CREATE TABLE tool_calls (
    tenant_id   text    NOT NULL,
    run_id      uuid    NOT NULL,
    call_id     text    NOT NULL,
    ordinal     integer NOT NULL CHECK (ordinal >= 1),
    tool        text    NOT NULL,
    call        json    NOT NULL,
    iteration   integer NOT NULL CHECK (iteration >= 0),
    args_sha256 text    NOT NULL,
    effect      text    NOT NULL CHECK (effect IN ('', 'READ_ONLY', 'IDEMPOTENT', 'SIDE_EFFECT', 'IRREVERSIBLE')),
    state       text    NOT NULL CHECK (state IN ('PLANNED', 'AWAITING_APPROVAL', 'APPROVED', 'REJECTED', 'DENIED', 'STARTED',
        'SUCCEEDED', 'FAILED', 'NOT_SENT', 'IN_DOUBT', 'SKIPPED', 'CANCELLED')),
    outcome     text    NOT NULL,
    attempt     integer NOT NULL CHECK (attempt >= 0),
    idem_key    text    NOT NULL,
    result      json    NOT NULL,
    cut         boolean NOT NULL,
    bytes       bigint  NOT NULL CHECK (bytes >= 0),
    started_at  timestamptz,
    finished_at timestamptz,
    PRIMARY KEY (tenant_id, run_id, call_id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs,
    CONSTRAINT tool_calls_keyed CHECK (state <> 'STARTED' OR idem_key <> '')
) WITH (fillfactor = 70);
COMMENT ON TABLE tool_calls IS 'Heads of the tool calls of each run.';
COMMENT ON COLUMN tool_calls.ordinal IS 'Rises in the order in which the model asked.';
COMMENT ON COLUMN tool_calls.tool IS 'The tool''s name for readers; call holds the exact one.';
COMMENT ON COLUMN tool_calls.call IS 'The call exactly as the model wrote it.';
COMMENT ON COLUMN tool_calls.args_sha256 IS 'What an approval is bound to: run, call, tool and exact arguments.';
COMMENT ON COLUMN tool_calls.attempt IS 'Sends of the call. 0: never sent.';
COMMENT ON COLUMN tool_calls.idem_key IS 'Idempotency key of every send.';
COMMENT ON COLUMN tool_calls.result IS 'What the model reads, a JSON string.';
COMMENT ON COLUMN tool_calls.cut IS 'The tool''s answer was longer than what the model reads.';
COMMENT ON COLUMN tool_calls.bytes IS 'Size of the tool''s answer as received.';

CREATE TABLE run_signals (
    tenant_id text        NOT NULL,
    run_id    uuid        NOT NULL,
    id        bigint      GENERATED ALWAYS AS IDENTITY,
    kind      text        NOT NULL CHECK (kind IN ('cancel_requested', 'approval_decided', 'call_resolved')),
    body      json        NOT NULL,
    at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, run_id, id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs
);
COMMENT ON TABLE run_signals IS 'What people said to a run and its owner has not yet put into the journal. Written under the lock of the run''s row, so ids rise in the order of commits.';

CREATE TABLE idempotency (
    tenant_id   text        NOT NULL,
    method      text        NOT NULL,
    key         text        NOT NULL CHECK (key <> ''),
    fingerprint bytea       NOT NULL,
    resource    text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, method, key)
);
COMMENT ON TABLE idempotency IS 'Requests that carried a key: at most one effect each. Written in the transaction of the effect.';
COMMENT ON COLUMN idempotency.fingerprint IS 'Hash of the request. Another one under the same key is refused.';
COMMENT ON COLUMN idempotency.resource IS 'What the request made or changed.';

CREATE TABLE agents (
    tenant_id      text        NOT NULL CHECK (tenant_id <> ''),
    agent_id       text        NOT NULL CHECK (agent_id <> ''),
    display_name   text        NOT NULL,
    labels         json        NOT NULL,
    latest_version bigint      NOT NULL CHECK (latest_version >= 1),
    created_at     timestamptz NOT NULL DEFAULT now(),
    archived_at    timestamptz,
    PRIMARY KEY (tenant_id, agent_id)
);
COMMENT ON TABLE agents IS 'Named agents. An id is never given out again.';
COMMENT ON COLUMN agents.archived_at IS 'An archived agent takes no changes and starts no runs.';

CREATE TABLE agent_versions (
    tenant_id  text        NOT NULL,
    agent_id   text        NOT NULL,
    version    bigint      NOT NULL CHECK (version >= 1),
    spec       json        NOT NULL,
    limits     json,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, agent_id, version),
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents
);
COMMENT ON TABLE agent_versions IS 'Definitions of agents. A version never changes.';
COMMENT ON COLUMN agent_versions.spec IS 'The definition, in the server''s own form.';
COMMENT ON COLUMN agent_versions.limits IS 'Limits of the agent''s runs, in the server''s own form. Null: none set.';
