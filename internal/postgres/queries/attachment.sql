-- name: InsertAttachments :exec
INSERT INTO attachments (tenant_id, run_id, place, data)
SELECT @tenant_id::text, @run_id::uuid, a.place, a.data
FROM (SELECT unnest(@places::integer[]) AS place, unnest(@data::bytea[]) AS data) a;

-- name: ListAttachments :many
SELECT place, data FROM attachments
WHERE tenant_id = @tenant_id AND run_id = @run_id
ORDER BY place;

-- name: ListAttachmentSizes :many
-- The size of a value that is stored out of line is known without reading it.
SELECT place, octet_length(data)::bigint AS size FROM attachments
WHERE tenant_id = @tenant_id AND run_id = @run_id;
