-- name: QueryUsage :many
-- What the model calls that were settled in a range of time used and cost, by groups.
-- A call counts once, when it was settled and in its own run, so that sums over ranges
-- and over groups are those of the whole, which is the first row, at place 0. First the
-- calls of a run are added up, as runs are what most groups are made of, then the runs.
WITH calls AS NOT MATERIALIZED (
    SELECT h.tenant_id, h.run_id, h.call, h.iteration, h.tools, h.settled_pico, h.saved_pico, h.estimated,
           h.input_uncached, h.cache_read, h.cache_write_5m + h.cache_write_1h AS cache_write, h.output, h.reasoning,
           CASE WHEN 'model' = ANY (@group_by::text[]) THEN h.model ELSE '' END AS model,
           CASE WHEN 'purpose' = ANY (@group_by::text[]) THEN h.purpose ELSE '' END AS purpose,
           -- The smallest unit that is asked for: larger ones follow from it.
           CASE WHEN 'hour' = ANY (@group_by::text[]) THEN date_trunc('hour', h.settled_at, @zone::text)
                WHEN 'day' = ANY (@group_by::text[]) THEN date_trunc('day', h.settled_at, @zone::text)
                WHEN 'month' = ANY (@group_by::text[]) THEN date_trunc('month', h.settled_at, @zone::text) END AS since
    FROM holds h
    WHERE h.tenant_id = @tenant_id::text AND h.settled_at >= @start_time::timestamptz AND h.settled_at < @end_time::timestamptz
      AND (@model::text = '' OR h.model = @model::text)
), parts AS (
    SELECT c.run_id, c.model, c.purpose, c.since, '' AS tool, count(*) AS model_calls, count(*) AS own_calls,
           sum(coalesce(cardinality(c.tools), 0))::bigint AS tool_calls, 0::bigint AS tool_failures,
           sum(c.settled_pico)::bigint AS cost, coalesce(sum(c.settled_pico) FILTER (WHERE c.estimated), 0)::bigint AS estimated, sum(c.saved_pico)::bigint AS saved,
           sum(c.input_uncached)::bigint AS input_uncached, sum(c.cache_read)::bigint AS cache_read, sum(c.cache_write)::bigint AS cache_write,
           sum(c.output)::bigint AS output, sum(c.reasoning)::bigint AS reasoning
    FROM calls c
    WHERE NOT 'tool' = ANY (@group_by::text[])
    GROUP BY c.run_id, c.model, c.purpose, c.since
    UNION ALL
    -- A call that asked for several tools is shared out among them.
    SELECT c.run_id, c.model, c.purpose, c.since, coalesce(t.tool, ''), count(*) FILTER (WHERE t.place IS NULL OR t.place = array_position(c.tools, t.tool)),
           count(*) FILTER (WHERE t.place IS NULL OR t.place = 1), count(t.place), 0,
           sum(share(c.settled_pico, t.place, c.tools))::bigint,
           coalesce(sum(share(c.settled_pico, t.place, c.tools)) FILTER (WHERE c.estimated), 0)::bigint, sum(share(c.saved_pico, t.place, c.tools))::bigint,
           sum(share(c.input_uncached, t.place, c.tools))::bigint, sum(share(c.cache_read, t.place, c.tools))::bigint,
           sum(share(c.cache_write, t.place, c.tools))::bigint, sum(share(c.output, t.place, c.tools))::bigint, sum(share(c.reasoning, t.place, c.tools))::bigint
    FROM calls c LEFT JOIN LATERAL unnest(c.tools) WITH ORDINALITY AS t (tool, place) ON true
    WHERE 'tool' = ANY (@group_by::text[])
    GROUP BY c.run_id, c.model, c.purpose, c.since, t.tool
    UNION ALL
    SELECT c.run_id, c.model, c.purpose, c.since, CASE WHEN 'tool' = ANY (@group_by::text[]) THEN t.tool ELSE '' END, 0, 0, 0, count(*),
           0, 0, 0, 0, 0, 0, 0, 0
    FROM calls c JOIN tool_calls t ON t.tenant_id = c.tenant_id AND t.run_id = c.run_id AND t.iteration = c.iteration
    WHERE t.state IN ('FAILED', 'REJECTED', 'NOT_SENT', 'IN_DOUBT')
    GROUP BY 1, 2, 3, 4, 5
), spent AS (
    SELECT p.run_id, p.model, p.purpose, p.since, p.tool, sum(p.model_calls)::bigint AS model_calls, sum(p.own_calls)::bigint AS own_calls, sum(p.tool_calls)::bigint AS tool_calls,
           sum(p.tool_failures)::bigint AS tool_failures, sum(p.cost)::bigint AS cost, sum(p.estimated)::bigint AS estimated, sum(p.saved)::bigint AS saved,
           sum(p.input_uncached)::bigint AS input_uncached, sum(p.cache_read)::bigint AS cache_read, sum(p.cache_write)::bigint AS cache_write,
           sum(p.output)::bigint AS output, sum(p.reasoning)::bigint AS reasoning
    FROM parts p
    GROUP BY p.run_id, p.model, p.purpose, p.since, p.tool
), keyed AS (
    SELECT s.*, r.ended_at, r.state,
           ARRAY(SELECT CASE g.word
                        WHEN 'tenant' THEN r.tenant_id
                        WHEN 'agent' THEN r.agent
                        WHEN 'agent_version' THEN r.agent || '@' || r.agent_version
                        WHEN 'state' THEN r.state
                        WHEN 'stop_reason' THEN coalesce(stop_reason(r.stop), '')
                        WHEN 'model' THEN s.model
                        WHEN 'purpose' THEN s.purpose
                        WHEN 'tool' THEN s.tool
                        -- Seconds since 1970: they sort, and an hour that a zone has twice is two.
                        WHEN 'hour' THEN extract(epoch FROM s.since)::bigint::text
                        WHEN 'day' THEN extract(epoch FROM date_trunc('day', s.since, @zone::text))::bigint::text
                        WHEN 'month' THEN extract(epoch FROM date_trunc('month', s.since, @zone::text))::bigint::text
                        ELSE coalesce(label(r.labels, substr(g.word, 7)), '') END -- label:KEY
                 FROM unnest(@group_by::text[]) AS g (word)) AS keys
    -- Row by row: a plan that reads all runs of the tenant gets no chance.
    FROM spent s CROSS JOIN LATERAL (SELECT * FROM runs o WHERE o.tenant_id = @tenant_id::text AND o.run_id = s.run_id LIMIT 1) r
    WHERE (@agent::text = '' OR r.agent = @agent::text)
      AND (cardinality(@states::text[]) = 0 OR r.state = ANY (@states::text[]))
      AND NOT EXISTS (
          SELECT 1 FROM (SELECT unnest(@label_keys::text[]) AS key, unnest(@label_values::text[]) AS value) l
          WHERE label(r.labels, l.key) IS DISTINCT FROM l.value)
), added AS (
    -- A run has one row for the same keys, so that rows are runs.
    SELECT k.keys, count(*) AS runs, count(*) FILTER (WHERE k.state = 'SUCCEEDED') AS succeeded,
           sum(k.model_calls) AS model_calls, sum(k.own_calls) AS own_calls, sum(k.tool_calls) AS tool_calls, sum(k.tool_failures) AS tool_failures,
           sum(k.cost) AS cost, sum(k.estimated) AS estimated, sum(k.saved) AS saved,
           coalesce(sum(k.cost) FILTER (WHERE k.ended_at IS NOT NULL AND k.state <> 'SUCCEEDED'), 0) AS wasted,
           sum(k.input_uncached) AS input_uncached, sum(k.cache_read) AS cache_read, sum(k.cache_write) AS cache_write,
           sum(k.output) AS output, sum(k.reasoning) AS reasoning
    FROM keyed k
    GROUP BY k.keys
), placed AS (
    SELECT a.*, row_number() OVER (ORDER BY CASE WHEN @time_place::integer > 0 THEN a.keys[@time_place::integer] END, a.cost DESC, a.keys) AS place
    FROM added a
    UNION ALL
    -- The whole. A run is in one group or in several, and so is a call that asked for
    -- several tools.
    SELECT '{}', (SELECT count(DISTINCT k.run_id) FROM keyed k), (SELECT count(DISTINCT k.run_id) FROM keyed k WHERE k.state = 'SUCCEEDED'),
           coalesce(sum(a.own_calls), 0), 0, coalesce(sum(a.tool_calls), 0), coalesce(sum(a.tool_failures), 0),
           coalesce(sum(a.cost), 0), coalesce(sum(a.estimated), 0), coalesce(sum(a.saved), 0), coalesce(sum(a.wasted), 0),
           coalesce(sum(a.input_uncached), 0), coalesce(sum(a.cache_read), 0), coalesce(sum(a.cache_write), 0),
           coalesce(sum(a.output), 0), coalesce(sum(a.reasoning), 0), 0
    FROM added a
)
SELECT p.place, p.keys::text[] AS keys, p.runs, p.succeeded, p.model_calls::bigint AS model_calls, p.tool_calls::bigint AS tool_calls,
       p.tool_failures::bigint AS tool_failures, p.input_uncached::bigint AS input_uncached, p.cache_read::bigint AS cache_read,
       p.cache_write::bigint AS cache_write, p.output::bigint AS output, p.reasoning::bigint AS reasoning,
       usd(p.cost)::text AS cost_usd, usd(p.estimated)::text AS estimated_usd, usd(p.saved)::text AS saved_usd, usd(p.wasted)::text AS wasted_usd,
       coalesce(p.wasted / nullif(p.cost, 0), 0)::double precision AS wasted_share,
       coalesce(usd(div(p.cost, nullif(p.succeeded, 0))), '')::text AS success_usd
FROM placed p
WHERE p.place = 0 OR p.place > @skip::bigint
ORDER BY p.place
LIMIT @most::integer;

-- name: PrepareReport :exec
-- For one transaction. A report reads more than any other statement may, its plan
-- depends on what is asked, compiling it takes longer than running it, and one core is
-- enough for it.
SELECT set_config('statement_timeout', @timeout::text, true), set_config('plan_cache_mode', 'force_custom_plan', true),
       set_config('jit', 'off', true), set_config('work_mem', '64MB', true),
       set_config('max_parallel_workers_per_gather', '0', true);
