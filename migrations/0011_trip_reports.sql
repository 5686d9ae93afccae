-- What people say about trips of guards that were wrong.

-- +goose Up

CREATE TABLE trip_reports (
    tenant_id   text        NOT NULL,
    run_id      uuid        NOT NULL,
    seq         bigint      NOT NULL,
    guard       text        NOT NULL CHECK (guard <> ''),
    reported_by text        NOT NULL,
    reason      json        NOT NULL,
    reported_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, run_id, seq),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs
);
COMMENT ON TABLE trip_reports IS 'Trips that a person reported as false positives. Not facts of the run: its journal stays as it is.';
COMMENT ON COLUMN trip_reports.seq IS 'The event of kind tripped.';
COMMENT ON COLUMN trip_reports.reason IS 'A JSON string.';
