-- Budgets: money that many runs share. A run does not update a budget's account for
-- every model call, or that row would be the hottest of all: it draws a chunk from the
-- account, and holds and settles within its own chunks.

-- +goose Up

CREATE TABLE budgets (
    tenant_id    text        NOT NULL CHECK (tenant_id <> ''),
    budget_id    text        NOT NULL CHECK (budget_id <> ''),
    display_name text        NOT NULL DEFAULT '',
    scope        text        NOT NULL CHECK (scope IN ('TENANT', 'AGENT', 'LABEL')),
    agent        text        NOT NULL DEFAULT '',
    label_key    text        NOT NULL DEFAULT '',
    label_value  text        NOT NULL DEFAULT '',
    span         text        NOT NULL CHECK (span IN ('RUN', 'HOUR', 'DAY', 'MONTH', 'TOTAL')),
    time_zone    text        NOT NULL DEFAULT 'UTC' CHECK (time_zone <> ''),
    amount_pico  bigint      NOT NULL CHECK (amount_pico >= 0),
    act          text        NOT NULL DEFAULT 'final_turn' CHECK (act IN ('final_turn', 'pause', 'stop')),
    created_by   text        NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    archived_at  timestamptz,
    PRIMARY KEY (tenant_id, budget_id),
    CONSTRAINT budgets_scope CHECK ((scope = 'AGENT') = (agent <> '') AND (scope = 'LABEL') = (label_key <> '')
        AND (label_value = '' OR label_key <> ''))
);
COMMENT ON TABLE budgets IS 'Ceilings on what the runs of a tenant may spend together. An id is never given out again; scope, span and time zone never change.';
COMMENT ON COLUMN budgets.scope IS 'Whose runs count: all of the tenant, those of one agent, or those with one label.';
COMMENT ON COLUMN budgets.agent IS 'Resource name, agents/{agent}.';
COMMENT ON COLUMN budgets.span IS 'What the amount is for: one run (a ceiling, with no account), or all runs of a calendar hour, day or month, or of all time.';
COMMENT ON COLUMN budgets.time_zone IS 'IANA name. The calendar that the span follows.';
COMMENT ON COLUMN budgets.act IS 'What a run does for which no money is left: it wraps up, waits for the next span or a raise, or stops at once.';
COMMENT ON COLUMN budgets.archived_at IS 'An archived budget binds nobody.';

CREATE TABLE budget_accounts (
    tenant_id      text        NOT NULL,
    budget_id      text        NOT NULL,
    starts_at      timestamptz NOT NULL,
    ends_at        timestamptz,
    limit_pico     bigint      NOT NULL CHECK (limit_pico >= 0),
    committed_pico bigint      NOT NULL DEFAULT 0 CHECK (committed_pico >= 0),
    held_pico      bigint      NOT NULL DEFAULT 0 CHECK (held_pico >= 0),
    excess_pico    bigint      NOT NULL DEFAULT 0 CHECK (excess_pico >= 0),
    warned         smallint    NOT NULL DEFAULT 0 CHECK (warned IN (0, 50, 80, 100)),
    PRIMARY KEY (tenant_id, budget_id, starts_at),
    FOREIGN KEY (tenant_id, budget_id) REFERENCES budgets,
    CONSTRAINT budget_accounts_span CHECK (ends_at > starts_at),
    CONSTRAINT budget_accounts_within_limit CHECK (committed_pico::numeric + held_pico <= limit_pico::numeric + excess_pico)
) WITH (fillfactor = 50); -- updated in place with every draw
COMMENT ON TABLE budget_accounts IS 'What the runs of a budget have spent and drawn in each of its spans. Whoever locks several locks them in the order of budget_id.';
COMMENT ON COLUMN budget_accounts.starts_at IS 'Start of the span. 0001-01-01 for all time.';
COMMENT ON COLUMN budget_accounts.ends_at IS 'When the next span begins. Null: never.';
COMMENT ON COLUMN budget_accounts.limit_pico IS 'The budget''s amount, as of the newest draw.';
COMMENT ON COLUMN budget_accounts.committed_pico IS 'Spent, as far as chunks were folded.';
COMMENT ON COLUMN budget_accounts.held_pico IS 'The sum of drawn_pico of the chunks of the span.';
COMMENT ON COLUMN budget_accounts.excess_pico IS 'How far the account may be above its limit: a provider charged more than its hold, or the amount was below what was spent already. Draws never add to it.';
COMMENT ON COLUMN budget_accounts.warned IS 'The highest threshold, in percent, that the span has an event for.';
COMMENT ON CONSTRAINT budget_accounts_within_limit ON budget_accounts IS 'The last line behind the draw: nothing is drawn that could pass the limit.';

CREATE TABLE chunks (
    tenant_id  text        NOT NULL,
    run_id     uuid        NOT NULL,
    budget_id  text        NOT NULL,
    starts_at  timestamptz NOT NULL,
    drawn_pico bigint      NOT NULL DEFAULT 0 CHECK (drawn_pico >= 0),
    held_pico  bigint      NOT NULL DEFAULT 0 CHECK (held_pico >= 0),
    spent_pico bigint      NOT NULL DEFAULT 0 CHECK (spent_pico >= 0),
    call       integer     NOT NULL DEFAULT 0 CHECK (call >= 0),
    state      text        NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'short', 'closed', 'folded')),
    PRIMARY KEY (tenant_id, run_id, budget_id, starts_at),
    FOREIGN KEY (tenant_id, budget_id, starts_at) REFERENCES budget_accounts,
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs,
    CONSTRAINT chunks_within_drawn CHECK (held_pico = 0 OR held_pico::numeric + spent_pico <= drawn_pico)
) WITH (fillfactor = 70); -- updated in place with every hold
COMMENT ON TABLE chunks IS 'What each run has drawn from the budgets that bind it. A run updates only its own, so that runs do not wait for each other.';
COMMENT ON COLUMN chunks.drawn_pico IS 'Taken from the account, and not folded yet.';
COMMENT ON COLUMN chunks.held_pico IS 'Reserved for the model call in flight.';
COMMENT ON COLUMN chunks.spent_pico IS 'Spent, and not folded yet. Above drawn_pico if a provider charged more than its hold, or the budget came after the spending.';
COMMENT ON COLUMN chunks.call IS 'The newest model call that the chunk knows of: the one in flight, or the last that is in spent_pico. A hold stays in the chunks that it was taken from.';
COMMENT ON COLUMN chunks.state IS 'open: holds are taken from it. short: more was spent than drawn, so that the run must draw before its next hold. closed: the run takes no more from it, and what is left goes back to the account when somebody next draws. folded: it went back.';
COMMENT ON CONSTRAINT chunks_within_drawn ON chunks IS 'No call starts that was not drawn for.';

-- Amounts are in no index, so that holds stay heap-only updates.
CREATE INDEX chunks_live ON chunks (tenant_id, budget_id, starts_at, state) WHERE state <> 'folded';

CREATE TABLE budget_events (
    tenant_id      text        NOT NULL,
    budget_id      text        NOT NULL,
    id             bigint      GENERATED ALWAYS AS IDENTITY,
    at             timestamptz NOT NULL DEFAULT now(),
    kind           text        NOT NULL CHECK (kind IN ('created', 'changed', 'archived', 'threshold')),
    actor          text        NOT NULL DEFAULT '',
    reason         text        NOT NULL DEFAULT '',
    before         json,
    after          json,
    starts_at      timestamptz,
    threshold      smallint    CHECK (threshold IN (50, 80, 100)),
    limit_pico     bigint      CHECK (limit_pico >= 0),
    committed_pico bigint      CHECK (committed_pico >= 0),
    PRIMARY KEY (tenant_id, budget_id, id),
    FOREIGN KEY (tenant_id, budget_id) REFERENCES budgets,
    CONSTRAINT budget_events_threshold CHECK ((kind = 'threshold') = (threshold IS NOT NULL)
        AND (threshold IS NULL) = (starts_at IS NULL) AND (threshold IS NULL) = (limit_pico IS NULL)
        AND (threshold IS NULL) = (committed_pico IS NULL))
);
COMMENT ON TABLE budget_events IS 'Every change of a budget, and every threshold that its spending passed: each once in a span.';
COMMENT ON COLUMN budget_events.actor IS 'Who changed it, as the request''s caller is known.';
COMMENT ON COLUMN budget_events.reason IS 'Why, in the words of whoever changed it.';
COMMENT ON COLUMN budget_events.before IS 'What was changed, in the server''s own form. Null: it did not exist.';
COMMENT ON COLUMN budget_events.threshold IS 'Percent of the limit that is spent and held. 100: no more could be drawn.';
COMMENT ON COLUMN budget_events.committed_pico IS 'Spent and held.';

-- Chunks that still matter to their account. Calls of a run that its chunk does not know
-- of were sent before the run heard of the budget: they count as what they cost, and in
-- flight as their hold.
CREATE VIEW live_chunks AS
SELECT c.tenant_id, c.run_id, c.budget_id, c.starts_at, c.state, c.drawn_pico, c.held_pico, c.spent_pico,
       least(coalesce(u.cost, 0), 9223372036854775807)::bigint AS uncounted_pico, greatest(c.call, coalesce(u.call, 0)) AS call
FROM chunks c
JOIN budget_accounts a USING (tenant_id, budget_id, starts_at)
CROSS JOIN LATERAL (
    SELECT sum(coalesce(h.settled_pico, h.amount_pico)) AS cost, max(h.call) AS call
    FROM holds h
    WHERE c.state <> 'open' AND h.tenant_id = c.tenant_id AND h.run_id = c.run_id AND h.call > c.call
      AND h.opened_at >= c.starts_at AND (a.ends_at IS NULL OR h.opened_at < a.ends_at)
) u
WHERE c.state <> 'folded';

CREATE VIEW budget_standing AS
SELECT a.tenant_id, a.budget_id, a.starts_at, a.ends_at, a.limit_pico, a.warned,
       (a.committed_pico + k.spent)::bigint AS committed_pico, k.held::bigint AS held_pico
FROM budget_accounts a
CROSS JOIN LATERAL (
    SELECT coalesce(sum(c.spent_pico::numeric + c.uncounted_pico), 0) AS spent,
           coalesce(sum(CASE c.state WHEN 'closed' THEN c.held_pico
                        ELSE greatest(c.drawn_pico::numeric - c.spent_pico - c.uncounted_pico, c.held_pico) END), 0) AS held
    FROM live_chunks c
    WHERE c.tenant_id = a.tenant_id AND c.budget_id = a.budget_id AND c.starts_at = a.starts_at
) k;
COMMENT ON VIEW budget_standing IS 'Where every account stands, with what chunks have not given back yet.';
COMMENT ON COLUMN budget_standing.committed_pico IS 'Spent.';
COMMENT ON COLUMN budget_standing.held_pico IS 'Drawn by runs, and not spent.';
