-- name: GetNote :one
SELECT key, text, updated_at FROM notes
WHERE tenant_id = @tenant_id AND agent = @agent AND subject = @subject AND key = @key;

-- name: LockNotes :exec
-- Whoever writes notes of one owner takes turns, so that their number is known.
SELECT pg_advisory_xact_lock(hashtextextended(concat_ws(E'\x1f', 'notes', @tenant_id::text, @agent::text, @subject::text), 0));

-- name: PutNote :execrows
INSERT INTO notes (tenant_id, agent, subject, key, text)
SELECT @tenant_id::text, @agent::text, @subject::text, @key::text, @text::text
WHERE (SELECT count(*) FROM notes n WHERE n.tenant_id = @tenant_id::text AND n.agent = @agent::text
         AND n.subject = @subject::text AND n.key <> @key::text) < @max_notes::integer
ON CONFLICT (tenant_id, agent, subject, key) DO UPDATE SET text = excluded.text, updated_at = now();

-- name: DeleteNote :exec
DELETE FROM notes WHERE tenant_id = @tenant_id AND agent = @agent AND subject = @subject AND key = @key;

-- name: SearchNotes :many
SELECT key, text, updated_at FROM notes
WHERE tenant_id = @tenant_id AND agent = @agent AND subject = @subject
  AND tsv @@ websearch_to_tsquery('simple', @query::text)
ORDER BY ts_rank(tsv, websearch_to_tsquery('simple', @query::text)) DESC, key
LIMIT @page_size::integer;
