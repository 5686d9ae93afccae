-- Answers that are checked: whether the answer of a run can be relied on.

-- +goose Up

ALTER TABLE runs ADD COLUMN unverified boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN runs.unverified IS 'The answer failed the agent''s output contract, or nobody could check it.';
