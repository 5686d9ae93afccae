-- What every model call was: who answered, why it was asked, what it used, by which
-- price. With it the spending of any group of runs is a sum over calls.

-- +goose Up

ALTER TABLE holds
    ADD COLUMN model          text    NOT NULL DEFAULT '',
    ADD COLUMN purpose        text    NOT NULL DEFAULT '',
    ADD COLUMN price_version  text    NOT NULL DEFAULT '',
    ADD COLUMN input_uncached bigint  NOT NULL DEFAULT 0 CHECK (input_uncached >= 0),
    ADD COLUMN cache_read     bigint  NOT NULL DEFAULT 0 CHECK (cache_read >= 0),
    ADD COLUMN cache_write_5m bigint  NOT NULL DEFAULT 0 CHECK (cache_write_5m >= 0),
    ADD COLUMN cache_write_1h bigint  NOT NULL DEFAULT 0 CHECK (cache_write_1h >= 0),
    ADD COLUMN output         bigint  NOT NULL DEFAULT 0 CHECK (output >= 0),
    ADD COLUMN reasoning      bigint  NOT NULL DEFAULT 0 CHECK (reasoning >= 0),
    ADD COLUMN estimated      boolean NOT NULL DEFAULT false,
    ADD COLUMN saved_pico     bigint  NOT NULL DEFAULT 0,
    ADD COLUMN iteration      integer CHECK (iteration >= 1),
    ADD COLUMN tools          text[],
    ADD CONSTRAINT holds_tools CHECK ((iteration IS NULL) = (tools IS NULL));
COMMENT ON COLUMN holds.model IS 'Who was asked, provider/model. Empty, as purpose and price_version: the call is older than this column.';
COMMENT ON COLUMN holds.purpose IS 'Why: a word of the journal, empty for a call of the conversation.';
COMMENT ON COLUMN holds.price_version IS 'Version of the price book whose row the cost follows from. The row itself is in the run''s first event.';
COMMENT ON COLUMN holds.input_uncached IS 'Tokens, as the other buckets, which are disjoint.';
COMMENT ON COLUMN holds.estimated IS 'The usage was not reported, or not all of it: the call is charged at its hold.';
COMMENT ON COLUMN holds.saved_pico IS 'What the input would have cost without a prompt cache, less what it cost. Below zero: writing into the cache cost more than reading from it saved.';
COMMENT ON COLUMN holds.iteration IS 'Of the answer, if it asked for tool calls that were taken up.';
COMMENT ON COLUMN holds.tools IS 'The tools that it asked for, one entry for each call, in order.';

CREATE INDEX holds_settled ON holds (tenant_id, settled_at) WHERE settled_at IS NOT NULL;

-- Few calls fail, so this costs the others nothing.
CREATE INDEX tool_calls_failed ON tool_calls (tenant_id, run_id, iteration, tool)
    WHERE state IN ('FAILED', 'REJECTED', 'NOT_SENT', 'IN_DOUBT');

-- Postgres' JSON functions refuse whole documents for one \u0000 in them.
CREATE FUNCTION label(labels json, key text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN labels::text LIKE '%\\u%' THEN readable(labels) ELSE labels END ->> key
$$;
COMMENT ON FUNCTION label(json, text) IS 'Value of a run''s label. Null: the run has none of that key.';

CREATE FUNCTION stop_reason(stop json) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substring(stop::text FROM '^\{"reason":"([A-Z_]+)"')
$$;
COMMENT ON FUNCTION stop_reason(json) IS 'The reason in runs.stop. loopd writes it first, so that nobody has to read the evidence for it.';

CREATE FUNCTION share(amount bigint, place bigint, among text[]) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN place IS NULL THEN amount
                ELSE amount / cardinality(among) + CASE WHEN place = 1 THEN amount % cardinality(among) ELSE 0 END END
$$;
COMMENT ON FUNCTION share(bigint, bigint, text[]) IS 'What one of several bears of an amount: equal whole parts, and the first what is left over. All of it where there are none.';

CREATE FUNCTION usd(pico numeric) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT trim_scale(pico * 0.000000000001)::text
$$;
COMMENT ON FUNCTION usd(numeric) IS 'An amount in 1e-12 USD as decimal USD, exactly.';
