-- Whose run is next: tenants share a worker's room, and each may say which of its own
-- runs matter more.

-- +goose Up

ALTER TABLE runs ADD COLUMN priority smallint NOT NULL DEFAULT 0 CHECK (priority BETWEEN -1 AND 1);
COMMENT ON COLUMN runs.priority IS '1 is high, -1 is low: so many head starts over the tenant''s other runs that wait. Never an order between tenants.';

-- The oldest of each tenant and priority. runs_claim is the oldest of all.
CREATE INDEX runs_claim_fair ON runs (tenant_id, priority, available_at) WHERE lease_owner IS NULL AND ended_at IS NULL;
