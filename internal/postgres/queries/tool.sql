-- name: InsertTool :execrows
INSERT INTO tools (tenant_id, tool_id, display_name, description, labels, latest_version)
VALUES (@tenant_id, @tool_id, @display_name, @description, @labels, 1)
ON CONFLICT (tenant_id, tool_id) DO NOTHING;

-- name: InsertToolVersion :exec
INSERT INTO tool_versions (tenant_id, tool_id, version, spec)
VALUES (@tenant_id, @tool_id, @version, @spec);

-- name: NextToolVersion :one
-- The row lock orders updates that arrive together.
UPDATE tools SET display_name = @display_name, description = @description, labels = @labels,
    latest_version = latest_version + 1
WHERE tenant_id = @tenant_id AND tool_id = @tool_id AND archived_at IS NULL
RETURNING latest_version;

-- name: ArchiveTool :exec
UPDATE tools SET archived_at = coalesce(archived_at, now())
WHERE tenant_id = @tenant_id AND tool_id = @tool_id;

-- name: GetTool :one
SELECT t.tool_id, t.display_name, t.description, t.labels, t.latest_version, t.created_at, t.archived_at,
    v.version, v.spec, v.created_at AS updated_at
FROM tools t JOIN tool_versions v USING (tenant_id, tool_id)
WHERE t.tenant_id = @tenant_id AND t.tool_id = @tool_id
  AND v.version = CASE WHEN @version::bigint = 0 THEN t.latest_version ELSE @version::bigint END;

-- name: ToolExists :one
SELECT EXISTS (SELECT 1 FROM tools WHERE tenant_id = @tenant_id AND tool_id = @tool_id);

-- name: ListTools :many
SELECT t.tool_id, t.display_name, t.description, t.labels, t.latest_version, t.created_at, t.archived_at,
    v.version, v.spec, v.created_at AS updated_at
FROM tools t JOIN tool_versions v
  ON v.tenant_id = t.tenant_id AND v.tool_id = t.tool_id AND v.version = t.latest_version
WHERE t.tenant_id = @tenant_id AND t.tool_id > @after_id
  AND (@show_archived::boolean OR t.archived_at IS NULL)
ORDER BY t.tool_id
LIMIT @page_size::integer;
