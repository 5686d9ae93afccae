-- Lookups of a run by its key, before there are statistics.
--
-- On a table that was never analyzed the planner finds all indexes that begin with the
-- tenant and have the run's id somewhere equally cheap, and takes the one made last. Of
-- runs that was runs_list_agent: each append, and each foreign key's check, read the
-- entries of all runs of the tenant. Building the primary key's index anew makes it the
-- last. Nothing else changes; nobody is stopped.

-- +goose NO TRANSACTION
-- +goose Up

-- What a build that was cut off has left behind is of no use.
-- +goose StatementBegin
DO $$
DECLARE
    broken text;
BEGIN
    FOR broken IN SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE NOT i.indisvalid AND i.indrelid = 'runs'::regclass AND c.relname LIKE 'runs\_pkey\_cc%'
    LOOP
        EXECUTE format('DROP INDEX %I', broken);
    END LOOP;
END
$$;
-- +goose StatementEnd

REINDEX INDEX CONCURRENTLY runs_pkey;
