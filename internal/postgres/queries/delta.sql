-- name: NotifyDeltas :exec
-- One statement for all that waits: NOTIFY takes a lock that every commit with a
-- notice needs, and nothing else is done under it here.
SELECT pg_notify('loopd_deltas', d.payload) FROM unnest(@payloads::text[]) AS d (payload);

-- name: NotifyWatch :exec
SELECT pg_notify('loopd_watch', w.run_id) FROM unnest(@run_ids::text[]) AS w (run_id);
