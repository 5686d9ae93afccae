-- Whose run is next: tenants share a worker's room, and each may say which of its own
-- runs matter more.

-- +goose Up

ALTER TABLE runs ADD COLUMN priority smallint NOT NULL DEFAULT 0 CHECK (priority BETWEEN -1 AND 1);
COMMENT ON COLUMN runs.priority IS '1 is high, -1 is low: so many head starts over the tenant''s other runs that wait. Never an order between tenants.';

-- Minutes depend on no time zone, so it is immutable, though the operator is not.
-- +goose StatementBegin
CREATE FUNCTION claim_order(available_at timestamptz, priority smallint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$ SELECT available_at - priority * interval '1 minute' $$;
-- +goose StatementEnd
COMMENT ON FUNCTION claim_order(timestamptz, smallint) IS 'The order in which a tenant''s runs are claimed: by waiting time, a priority being a head start of a minute.';

-- Each tenant's next. runs_claim has the oldest of all. No other index has this order, so
-- none is read to its end for a tenant that has little in it.
CREATE INDEX runs_claim_fair ON runs (tenant_id, claim_order(available_at, priority)) WHERE lease_owner IS NULL AND ended_at IS NULL;
