-- Money: what a run may spend, has spent and has reserved. Amounts are whole
-- pico-dollars (1e-12 USD), so nothing rounds.

-- +goose Up

CREATE TABLE accounts (
    tenant_id      text   NOT NULL,
    account        text   NOT NULL,
    limit_pico     bigint NOT NULL CHECK (limit_pico >= 0),
    committed_pico bigint NOT NULL DEFAULT 0 CHECK (committed_pico >= 0),
    held_pico      bigint NOT NULL DEFAULT 0 CHECK (held_pico >= 0),
    PRIMARY KEY (tenant_id, account),
    CONSTRAINT accounts_within_limit CHECK (held_pico = 0 OR committed_pico::numeric + held_pico <= limit_pico)
);
COMMENT ON TABLE accounts IS 'Budgets. A run has the account run:{run_id}. Updated with every hold, in the transaction that records why.';
COMMENT ON COLUMN accounts.limit_pico IS 'The most that may be spent.';
COMMENT ON COLUMN accounts.committed_pico IS 'Spent.';
COMMENT ON COLUMN accounts.held_pico IS 'Reserved for calls in flight.';
COMMENT ON CONSTRAINT accounts_within_limit ON accounts IS 'The last line behind the cost guard: no call starts that could pass the limit. What was spent is recorded even if a provider charged more than its hold.';

CREATE TABLE holds (
    tenant_id    text        NOT NULL,
    run_id       uuid        NOT NULL,
    call         integer     NOT NULL CHECK (call >= 1),
    amount_pico  bigint      NOT NULL CHECK (amount_pico >= 0),
    state        text        NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'settled')),
    settled_pico bigint      CHECK (settled_pico >= 0),
    opened_at    timestamptz NOT NULL DEFAULT now(),
    settled_at   timestamptz,
    PRIMARY KEY (tenant_id, run_id, call),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs,
    CONSTRAINT holds_settled CHECK ((state = 'settled') = (settled_pico IS NOT NULL AND settled_at IS NOT NULL))
);
COMMENT ON TABLE holds IS 'The upper bound reserved before each model call, and what the call cost in the end.';
COMMENT ON COLUMN holds.call IS 'The model call, counted from 1 in its run.';
