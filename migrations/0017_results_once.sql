-- A tool's result is in the journal; the call's head says where, instead of having a copy.

-- +goose Up

SET LOCAL lock_timeout = '5s'; -- whoever waits for a lock holds up all others

ALTER TABLE tool_calls ADD COLUMN result_seq bigint; -- no CHECK: it would read the whole table
COMMENT ON COLUMN tool_calls.result IS 'What the model reads, a JSON string. Empty if result_seq says where it is.';
COMMENT ON COLUMN tool_calls.result_seq IS 'The event of the run that holds the result. Null: the result is here.';

ALTER TABLE workers ADD COLUMN knows bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN workers.knows IS 'The newest migration that the program has. What older programs cannot read is not written while any of them lives. 0: one from before this column.';
