-- name: ReleaseRun :execrows
-- Gives a run back without a word in its journal, as if its worker had died.
WITH released AS (
    UPDATE runs SET lease_owner = NULL, available_at = now()
    WHERE tenant_id = @tenant_id AND run_id = @run_id AND lease_owner = @owner::text AND lease_epoch = @epoch
    RETURNING run_id
)
SELECT pg_notify('loopd_wake', '') FROM released;
