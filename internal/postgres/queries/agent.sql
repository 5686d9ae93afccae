-- name: InsertAgent :execrows
INSERT INTO agents (tenant_id, agent_id, display_name, labels, latest_version)
VALUES (@tenant_id, @agent_id, @display_name, @labels, 1)
ON CONFLICT (tenant_id, agent_id) DO NOTHING;

-- name: InsertAgentVersion :exec
INSERT INTO agent_versions (tenant_id, agent_id, version, spec, limits)
VALUES (@tenant_id, @agent_id, @version, @spec, @limits);

-- name: NextAgentVersion :one
-- The row lock orders updates that arrive together.
UPDATE agents SET display_name = @display_name, labels = @labels, latest_version = latest_version + 1
WHERE tenant_id = @tenant_id AND agent_id = @agent_id AND archived_at IS NULL
RETURNING latest_version;

-- name: ArchiveAgent :exec
UPDATE agents SET archived_at = coalesce(archived_at, now())
WHERE tenant_id = @tenant_id AND agent_id = @agent_id;

-- name: GetAgent :one
SELECT a.agent_id, a.display_name, a.labels, a.latest_version, a.created_at, a.archived_at,
    v.version, v.spec, v.limits, v.created_at AS updated_at
FROM agents a JOIN agent_versions v USING (tenant_id, agent_id)
WHERE a.tenant_id = @tenant_id AND a.agent_id = @agent_id
  AND v.version = CASE WHEN @version::bigint = 0 THEN a.latest_version ELSE @version::bigint END;

-- name: AgentExists :one
SELECT EXISTS (SELECT 1 FROM agents WHERE tenant_id = @tenant_id AND agent_id = @agent_id);

-- name: ListAgents :many
SELECT a.agent_id, a.display_name, a.labels, a.latest_version, a.created_at, a.archived_at,
    v.version, v.spec, v.limits, v.created_at AS updated_at
FROM agents a JOIN agent_versions v
  ON v.tenant_id = a.tenant_id AND v.agent_id = a.agent_id AND v.version = a.latest_version
WHERE a.tenant_id = @tenant_id AND a.agent_id > @after_id
  AND (@show_archived::boolean OR a.archived_at IS NULL)
ORDER BY a.agent_id
LIMIT @page_size::integer;
