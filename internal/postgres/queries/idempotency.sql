-- name: ClaimKey :execrows
-- Waits for a transaction that holds the same key, so that one of them is first.
INSERT INTO idempotency (tenant_id, method, key, fingerprint, resource)
VALUES (@tenant_id, @method, @key, @fingerprint, @resource)
ON CONFLICT (tenant_id, method, key) DO NOTHING;

-- name: GetKey :one
SELECT fingerprint, resource FROM idempotency
WHERE tenant_id = @tenant_id AND method = @method AND key = @key;

-- name: ConfirmKey :one
-- Locks the row, which writes to the log: the commit after it waits for synchronous
-- standbys, and so for all that was committed before. A plain read does not wait, and
-- may show what a primary that dies now takes with it: see Idempotency.once.
SELECT fingerprint, resource FROM idempotency
WHERE tenant_id = @tenant_id AND method = @method AND key = @key
FOR SHARE;

-- name: SetKeyResource :exec
UPDATE idempotency SET resource = @resource
WHERE tenant_id = @tenant_id AND method = @method AND key = @key;
