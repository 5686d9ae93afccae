-- Journals in partitions by time, so that dropping old ones is one statement, and what
-- the retention of runs needs besides.
--
-- The ids of runs begin with the time of their creation (version 7; those of child runs
-- with their root's), so the id is what the tables are divided by: keys stay as they
-- were, and a run with all that it started is in one partition. The tables that are
-- there become the first partition as they are. Only journals of child runs from before
-- their ids said so are moved.
--
-- Not one transaction, so that reading a large table for its new constraint stops
-- nobody. Whatever was done is passed over when the file is run again.

-- +goose NO TRANSACTION
-- +goose Up

CREATE TABLE IF NOT EXISTS journal_partitions (
    suffix  text        PRIMARY KEY CHECK (suffix ~ '^[a-z0-9]+$'),
    from_id uuid        NOT NULL,
    to_id   uuid        NOT NULL CHECK (to_id > from_id),
    to_time timestamptz NOT NULL
);
COMMENT ON TABLE journal_partitions IS 'The partitions of events, results and attachments, named TABLE_SUFFIX. Not those for ids that tell no time, _other and _default.';
COMMENT ON COLUMN journal_partitions.to_id IS 'The least id behind the partition.';
COMMENT ON COLUMN journal_partitions.to_time IS 'Runs created then or later are in other partitions.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION run_id_at(at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION run_id_at(timestamptz) IS 'The least id of a run that is created then.';

-- +goose StatementBegin
DO $$
DECLARE
    -- One that has begun before this is over would refuse what is written meanwhile.
    bound uuid := run_id_at(date_trunc('week', now() + interval '8 days', 'UTC'));
    tab   text;
BEGIN
    FOREACH tab IN ARRAY '{events,results,attachments}'::text[] LOOP
        IF (SELECT relkind = 'r' FROM pg_class WHERE oid = to_regclass(tab))
           AND NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = to_regclass(tab) AND conname = tab || '_first')
           AND NOT EXISTS (SELECT FROM runs WHERE run_id >= bound)
        THEN
            EXECUTE format('ALTER TABLE %I ADD CONSTRAINT %I CHECK (run_id < %L) NOT VALID', tab, tab || '_first', bound);
        END IF;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- Reads the table beside its writers. Afterwards nobody has to read it under a lock.
-- +goose StatementBegin
DO $$
DECLARE
    tab text;
BEGIN
    FOREACH tab IN ARRAY '{events,results,attachments}'::text[] LOOP
        IF EXISTS (SELECT FROM pg_constraint WHERE conrelid = to_regclass(tab) AND conname = tab || '_first' AND NOT convalidated) THEN
            EXECUTE format('ALTER TABLE %I VALIDATE CONSTRAINT %I', tab, tab || '_first');
        END IF;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- Makes a table a partition of its namesake. What there is of it in the default partition
-- moves over.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION make_journal_partition(new_suffix text, since uuid, until uuid) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    tab  text;
    part text;
BEGIN
    IF NOT has_table_privilege(current_setting('session_authorization')::name, 'events', 'INSERT') THEN
        RAISE EXCEPTION 'only who writes journals makes room for them' USING ERRCODE = 'insufficient_privilege';
    END IF;
    FOREACH tab IN ARRAY '{events,results,attachments}'::text[] LOOP
        part := tab || '_' || new_suffix;
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', part, tab);
        IF tab = 'events' THEN -- bodies of a few kilobytes stay in the row
            EXECUTE format('ALTER TABLE %I SET (toast_tuple_target = 8160)', part);
        END IF;
        EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION events_are_append_only()', tab || '_no_truncate', part);
        IF to_regclass(tab || '_default') IS NOT NULL THEN
            EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', tab || '_default');
            PERFORM set_config('loopd.retention', 'on', true);
            EXECUTE format('WITH moved AS (DELETE FROM %I WHERE run_id >= %L AND run_id < %L RETURNING *) INSERT INTO %I SELECT * FROM moved',
                tab || '_default', since, until, part);
            PERFORM set_config('loopd.retention', '', true);
        END IF;
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', tab, part, since, until);
    END LOOP;
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION make_journal_partition(text, uuid, uuid) IS 'Makes one partition of each table of journals. Runs as its owner, so that a program which may not change the schema can call it.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION make_journal_partitions(until timestamptz) RETURNS integer LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    week date;
    made integer := 0;
BEGIN
    FOR week IN SELECT generate_series(date_trunc('week', now(), 'UTC') AT TIME ZONE 'UTC', until AT TIME ZONE 'UTC', interval '7 days')::date LOOP
        CONTINUE WHEN EXISTS (SELECT FROM journal_partitions p
            WHERE p.to_id > run_id_at(week::timestamp AT TIME ZONE 'UTC') AND p.from_id < run_id_at((week + 7)::timestamp AT TIME ZONE 'UTC'));
        PERFORM make_journal_partition(to_char(week, 'YYYYMMDD'), run_id_at(week::timestamp AT TIME ZONE 'UTC'), run_id_at((week + 7)::timestamp AT TIME ZONE 'UTC'));
        INSERT INTO journal_partitions (suffix, from_id, to_id, to_time)
        VALUES (to_char(week, 'YYYYMMDD'), run_id_at(week::timestamp AT TIME ZONE 'UTC'), run_id_at((week + 7)::timestamp AT TIME ZONE 'UTC'),
                (week + 7)::timestamp AT TIME ZONE 'UTC');
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION make_journal_partitions(timestamptz) IS 'Makes the weeks (UTC) that are missing, from this one up to that of a time, and says how many these were.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION drop_journal_partition(old_suffix text) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF current_setting('loopd.retention', true) IS DISTINCT FROM 'on' OR NOT has_table_privilege(current_setting('session_authorization')::name, 'events', 'DELETE') THEN
        RAISE EXCEPTION 'journals are dropped by retention only' USING ERRCODE = 'restrict_violation';
    END IF;
    DELETE FROM journal_partitions WHERE suffix = old_suffix;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no partition %', old_suffix USING ERRCODE = 'undefined_table';
    END IF;
    EXECUTE format('DROP TABLE %I, %I, %I', 'events_' || old_suffix, 'results_' || old_suffix, 'attachments_' || old_suffix);
END
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION drop_journal_partition(text) IS 'Drops the journals of all runs in a partition. Whoever calls it has made sure that none of them is kept.';

-- The swap itself: no rows are read, but for child runs whose ids are above the bound.
-- +goose StatementBegin
DO $$
DECLARE
    tab    text;
    bound  uuid;
    keys   text;
    view   text;
    said   text[] := ARRAY(SELECT format('CREATE OR REPLACE VIEW %I AS %s', viewname, definition) FROM pg_views
                           WHERE schemaname = current_schema() AND definition ~ '\m(events|results|attachments)\M');
    far    constant uuid := run_id_at('2100-01-01 00:00:00+00');
    moving boolean;
BEGIN
    IF (SELECT relkind = 'p' FROM pg_class WHERE oid = 'events'::regclass) THEN
        RETURN;
    END IF;
    PERFORM set_config('lock_timeout', '5s', true); -- whoever waits for a lock holds up all others
    LOCK TABLE runs IN SHARE ROW EXCLUSIVE MODE;
    LOCK TABLE events, results, attachments IN ACCESS EXCLUSIVE MODE;
    SELECT substring(pg_get_constraintdef(oid) FROM '[0-9a-f-]{36}')::uuid INTO bound
    FROM pg_constraint WHERE conrelid = 'events'::regclass AND conname = 'events_first';
    moving := bound IS NULL;
    bound := coalesce(bound, run_id_at(date_trunc('week', now() + interval '8 days', 'UTC')));
    FOREACH tab IN ARRAY '{events,results,attachments}'::text[] LOOP
        EXECUTE format('ALTER TABLE %I RENAME TO %I', tab, tab || '_first');
        EXECUTE format('ALTER INDEX %I RENAME TO %I', tab || '_pkey', tab || '_first_pkey');
        EXECUTE format('DROP TRIGGER %I ON %I', tab || '_append_only', tab || '_first');
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING STORAGE INCLUDING COMMENTS) PARTITION BY RANGE (run_id)', tab, tab || '_first');
        -- The same checks, keys and indexes, so that those of the first partition are taken as they are.
        FOR keys IN SELECT format('ALTER TABLE %I ADD CONSTRAINT %I %s', tab, replace(conname, '_first_pkey', '_pkey'), pg_get_constraintdef(oid))
            FROM pg_constraint WHERE conrelid = to_regclass(tab || '_first') AND contype IN ('c', 'p', 'f') AND conname <> tab || '_first'
            ORDER BY contype
        LOOP
            EXECUTE keys;
        END LOOP;
        FOR keys IN SELECT format('GRANT %s ON %I TO %s', a.privilege_type, tab, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
            FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = to_regclass(tab || '_first')
        LOOP
            EXECUTE keys;
        END LOOP;
        EXECUTE format('COMMENT ON TABLE %I IS %L', tab, obj_description(to_regclass(tab || '_first'), 'pg_class'));
        EXECUTE format('CREATE TRIGGER %I BEFORE UPDATE OR DELETE ON %I FOR EACH ROW EXECUTE FUNCTION events_are_append_only()', tab || '_append_only', tab);
        EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION events_are_append_only()', tab || '_no_truncate', tab);
    END LOOP;
    ALTER INDEX events_trips RENAME TO events_first_trips;
    CREATE INDEX events_trips ON events (tenant_id, at) WHERE kind = 'tripped';
    PERFORM make_journal_partition('other', far, 'ffffffff-ffff-ffff-ffff-ffffffffffff');
    FOREACH tab IN ARRAY '{events,results,attachments}'::text[] LOOP
        EXECUTE format('CREATE TABLE %I PARTITION OF %I DEFAULT', tab || '_default', tab);
        EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION events_are_append_only()', tab || '_no_truncate', tab || '_default');
        IF moving THEN
            EXECUTE format('INSERT INTO %I SELECT * FROM %I WHERE run_id >= %L', tab, tab || '_first', bound);
            EXECUTE format('DELETE FROM %I WHERE run_id >= %L', tab || '_first', bound); -- its trigger is not there
            EXECUTE format('ALTER TABLE %I ADD CONSTRAINT %I CHECK (run_id < %L)', tab || '_first', tab || '_first', bound);
        END IF;
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (MINVALUE) TO (%L)', tab, tab || '_first', bound);
    END LOOP;
    ALTER TABLE events_default SET (toast_tuple_target = 8160);
    INSERT INTO journal_partitions (suffix, from_id, to_id, to_time)
    VALUES ('first', '00000000-0000-0000-0000-000000000000', bound,
            to_timestamp(('x' || lpad(substr(replace(bound::text, '-', ''), 1, 12), 16, '0'))::bit(64)::bigint / 1000.0));
    PERFORM make_journal_partitions(now() + interval '5 weeks');
    -- Views were made for the tables that are now the first partition.
    FOREACH view IN ARRAY said LOOP
        EXECUTE view;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- What a build that was cut off has left behind is of no use.
-- +goose StatementBegin
DO $$
DECLARE
    broken text;
BEGIN
    FOR broken IN SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE NOT i.indisvalid AND c.relname IN ('runs_tree', 'runs_list_ended', 'runs_ended') AND i.indrelid = 'runs'::regclass
    LOOP
        EXECUTE format('DROP INDEX %I', broken);
    END LOOP;
END
$$;
-- +goose StatementEnd

-- Trees of runs and those that have ended by age, which retention looks for, and those
-- that ended in one way, which people do. No update pays for it: a state changes only
-- with columns that have an index already.
CREATE INDEX CONCURRENTLY IF NOT EXISTS runs_tree ON runs (tenant_id, root_run_id) WHERE root_run_id IS NOT NULL;
CREATE INDEX CONCURRENTLY IF NOT EXISTS runs_list_ended ON runs (tenant_id, state, created_at DESC, run_id DESC) WHERE ended_at IS NOT NULL;
CREATE INDEX CONCURRENTLY IF NOT EXISTS runs_ended ON runs (tenant_id, agent, ended_at, run_id) WHERE ended_at IS NOT NULL AND parent_run_id IS NULL;

CREATE TABLE IF NOT EXISTS retentions (
    tenant_id    text        NOT NULL CHECK (tenant_id <> ''),
    agent        text        NOT NULL,
    keep_seconds bigint      CHECK (keep_seconds >= 3600),
    changed_by   text        NOT NULL,
    changed_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, agent)
);
COMMENT ON TABLE retentions IS 'How long runs are kept after they ended, where that is not the operator''s default.';
COMMENT ON COLUMN retentions.agent IS 'Resource name, agents/{agent}. Empty: all agents of the tenant without a row of their own.';
COMMENT ON COLUMN retentions.keep_seconds IS 'Null: for ever.';

CREATE TABLE IF NOT EXISTS usage_deleted (
    tenant_id   text   NOT NULL,
    day         date   NOT NULL,
    agent       text   NOT NULL,
    model       text   NOT NULL,
    model_calls bigint NOT NULL CHECK (model_calls >= 0),
    cost_pico   bigint NOT NULL CHECK (cost_pico >= 0),
    PRIMARY KEY (tenant_id, day, agent, model)
);
COMMENT ON TABLE usage_deleted IS 'What the model calls of deleted runs cost, so that nobody takes the sums over the others for all there was.';
COMMENT ON COLUMN usage_deleted.day IS 'UTC day on which the calls were settled.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION keep_seconds(tenant text, agent_name text, otherwise bigint) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce((SELECT coalesce(k.keep_seconds, 0) FROM retentions k
                     WHERE k.tenant_id = tenant AND k.agent IN (agent_name, '') ORDER BY k.agent DESC LIMIT 1), otherwise)
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION keep_seconds(text, text, bigint) IS 'How long the runs of an agent are kept after they ended. 0: for ever.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION expired(run runs, otherwise bigint) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce(run.ended_at < now() - nullif(keep_seconds(run.tenant_id, run.agent, otherwise), 0) * interval '1 second', false)
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION expired(runs, bigint) IS 'The run has ended, and was kept for as long as it had to be.';
