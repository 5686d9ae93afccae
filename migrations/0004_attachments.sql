-- The data of the images and documents that go with a run's input. It belongs to
-- the first event of the journal, and has a table of its own so that it is read by
-- whoever drives the run and by nobody who lists events.

-- +goose Up

CREATE TABLE attachments (
    tenant_id text    NOT NULL,
    run_id    uuid    NOT NULL,
    place     integer NOT NULL CHECK (place >= 0),
    data      bytea   NOT NULL,
    PRIMARY KEY (tenant_id, run_id, place),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs
);
ALTER TABLE attachments ALTER COLUMN data SET STORAGE EXTERNAL; -- pictures and PDF are compressed already
COMMENT ON TABLE attachments IS 'Data of attachments, left out of the body of event 1 and as unchangeable as that.';
COMMENT ON COLUMN attachments.place IS 'Index in the list of attachments in event 1, counted from 0.';

CREATE TRIGGER attachments_append_only BEFORE UPDATE OR DELETE ON attachments
    FOR EACH ROW EXECUTE FUNCTION events_are_append_only();
CREATE TRIGGER attachments_no_truncate BEFORE TRUNCATE ON attachments
    FOR EACH STATEMENT EXECUTE FUNCTION events_are_append_only();
