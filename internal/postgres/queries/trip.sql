-- name: ListTrips :many
-- Out of the run's own events: OFFSET keeps the planner from taking those out of all trips
-- of the tenant, which have an index.
SELECT e.seq, e.at, e.epoch, e.kind, e.body, t.reported_by, t.reason, t.reported_at
FROM (SELECT v.tenant_id, v.run_id, v.seq, v.at, v.epoch, v.kind, v.body FROM events v
      WHERE v.tenant_id = @tenant_id AND v.run_id = @run_id OFFSET 0) e
LEFT JOIN trip_reports t ON t.tenant_id = e.tenant_id AND t.run_id = e.run_id AND t.seq = e.seq
WHERE e.kind = 'tripped'
ORDER BY e.seq;

-- name: InsertTripReport :execrows
INSERT INTO trip_reports (tenant_id, run_id, seq, guard, reported_by, reason)
VALUES (@tenant_id, @run_id, @seq, @guard, @reported_by, @reason)
ON CONFLICT (tenant_id, run_id, seq) DO NOTHING;

-- name: DeleteTripReport :exec
DELETE FROM trip_reports WHERE tenant_id = @tenant_id AND run_id = @run_id AND seq = @seq;

-- name: ListEndedRuns :many
-- Without an agent these are runs that are nobody's children: the cost of a child is in
-- that of its parent. Labels are compared only if there are any to compare.
SELECT run_id, created_at FROM runs
WHERE tenant_id = @tenant_id AND ended_at IS NOT NULL
  AND (created_at, run_id) < (@before_time::timestamptz, @before_id::uuid)
  AND created_at >= @since::timestamptz AND created_at < @until::timestamptz
  AND (@agent::text = '' AND parent_run_id IS NULL OR agent = @agent::text)
  AND CASE WHEN @labels::text = '{}' THEN true ELSE readable(labels)::jsonb @> readable(CAST(@labels::text AS json))::jsonb END
ORDER BY created_at DESC, run_id DESC
LIMIT @page_size::integer;
