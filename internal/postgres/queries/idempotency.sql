-- name: ClaimKey :execrows
-- Waits for a transaction that holds the same key, so that one of them is first.
INSERT INTO idempotency (tenant_id, method, key, fingerprint, resource)
VALUES (@tenant_id, @method, @key, @fingerprint, @resource)
ON CONFLICT (tenant_id, method, key) DO NOTHING;

-- name: GetKey :one
SELECT fingerprint, resource FROM idempotency
WHERE tenant_id = @tenant_id AND method = @method AND key = @key;

-- name: SetKeyResource :exec
UPDATE idempotency SET resource = @resource
WHERE tenant_id = @tenant_id AND method = @method AND key = @key;
