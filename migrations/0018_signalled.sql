-- Workers look for signals at each wake: those of 10,000 runs are found without reading
-- 10,000 rows. Most runs never have one, and then no update of theirs pays for it.

-- +goose NO TRANSACTION
-- +goose Up

-- What a build that was cut off has left behind is of no use.
-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('runs_signalled') AND NOT indisvalid) THEN
        DROP INDEX runs_signalled;
    END IF;
END
$$;
-- +goose StatementEnd

CREATE INDEX CONCURRENTLY IF NOT EXISTS runs_signalled ON runs (lease_owner) WHERE signals > 0;
