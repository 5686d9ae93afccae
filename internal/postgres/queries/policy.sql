-- name: InsertPolicy :execrows
INSERT INTO policies (tenant_id, policy_id, tool, latest_version)
VALUES (@tenant_id, @policy_id, @tool, 1)
ON CONFLICT (tenant_id, policy_id) DO NOTHING;

-- name: InsertPolicyVersion :exec
INSERT INTO policy_versions (tenant_id, policy_id, version, body)
VALUES (@tenant_id, @policy_id, @version, @body);

-- name: NextPolicyVersion :one
-- The row lock orders updates that arrive together.
UPDATE policies SET tool = @tool, latest_version = latest_version + 1
WHERE tenant_id = @tenant_id AND policy_id = @policy_id AND archived_at IS NULL
RETURNING latest_version;

-- name: ArchivePolicy :exec
UPDATE policies SET archived_at = coalesce(archived_at, now())
WHERE tenant_id = @tenant_id AND policy_id = @policy_id;

-- name: GetPolicy :one
SELECT p.policy_id, p.archived_at, v.version, v.body, v.created_at
FROM policies p JOIN policy_versions v USING (tenant_id, policy_id)
WHERE p.tenant_id = @tenant_id AND p.policy_id = @policy_id
  AND v.version = CASE WHEN @version::bigint = 0 THEN p.latest_version ELSE @version::bigint END;

-- name: PolicyExists :one
SELECT EXISTS (SELECT 1 FROM policies WHERE tenant_id = @tenant_id AND policy_id = @policy_id);

-- name: ListPolicies :many
SELECT p.policy_id, p.archived_at, v.version, v.body, v.created_at
FROM policies p JOIN policy_versions v
  ON v.tenant_id = p.tenant_id AND v.policy_id = p.policy_id AND v.version = p.latest_version
WHERE p.tenant_id = @tenant_id AND p.policy_id > @after_id
  AND (@show_archived::boolean OR p.archived_at IS NULL)
ORDER BY p.policy_id
LIMIT @page_size::integer;

-- name: ListToolPolicies :many
SELECT p.policy_id, p.archived_at, v.version, v.body, v.created_at
FROM policies p JOIN policy_versions v
  ON v.tenant_id = p.tenant_id AND v.policy_id = p.policy_id AND v.version = p.latest_version
WHERE p.tenant_id = @tenant_id AND p.tool = @tool AND p.archived_at IS NULL
ORDER BY p.policy_id;

-- name: UsePolicy :execrows
-- A version that somebody has replaced or archived approves nothing any more.
INSERT INTO policy_uses AS u (tenant_id, policy_id, day, uses)
SELECT p.tenant_id, p.policy_id, @day::date, 1 FROM policies p
WHERE p.tenant_id = @tenant_id AND p.policy_id = @policy_id AND p.latest_version = @version AND p.archived_at IS NULL
  AND @max_uses::integer >= 1
FOR SHARE OF p
ON CONFLICT (tenant_id, policy_id, day) DO UPDATE SET uses = u.uses + 1 WHERE u.uses < @max_uses::integer;
