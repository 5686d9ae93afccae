package main

import (
	"context"
	"fmt"
	"io"
)

// enough is how often a worker must have been lost at a point before that point counts
// as tried.
const enough = 5

// points asks where runs lost their workers: after which event, of a call of which
// effect. An event that the next worker found last is what the lost one wrote last. A
// run that lost its worker twice in a row did so after "claimed" the second time.
const points = `
	WITH lost AS (
		SELECT p.kind, CASE WHEN p.kind IN ('call_started', 'call_finished') THEN t.effect END AS effect
		FROM events c JOIN events p ON p.tenant_id = c.tenant_id AND p.run_id = c.run_id AND p.seq = c.seq - 1
		LEFT JOIN tool_calls t ON t.tenant_id = p.tenant_id AND t.run_id = p.run_id AND t.call_id = p.body ->> 'call_id'
		WHERE c.kind = 'claimed' AND c.body ->> 'recovered' = 'true'
	), known (kind, effect) AS (
		SELECT unnest(ARRAY['claimed', 'model_started', 'model_answered', 'model_failed', 'approval_requested', 'approval_decided',
			'call_handed_out', 'result_submitted', 'child_finished', 'call_in_doubt', 'call_resolved', 'pause_requested', 'resumed', 'cancel_requested']), NULL
		UNION ALL SELECT kind, effect FROM unnest(ARRAY['call_started', 'call_finished']) kind, unnest(ARRAY['READ_ONLY', 'IDEMPOTENT', 'SIDE_EFFECT', 'IRREVERSIBLE']) effect
		UNION SELECT kind, effect FROM lost
	)
	SELECT k.kind || coalesce(' ' || k.effect, ''), (SELECT count(*) FROM lost l WHERE l.kind = k.kind AND l.effect IS NOT DISTINCT FROM k.effect)
	FROM known k ORDER BY 1`

// reportPoints prints how often each point was tried.
func (w *world) reportPoints(ctx context.Context, out io.Writer) {
	fmt.Fprintf(out, "\nlast event before the worker was lost (fewer than %d: not tried):\n", enough)
	rows, err := w.db.Query(ctx, points)
	if err != nil {
		fmt.Fprintln(out, err)
		return
	}
	defer rows.Close()
	tried, all := 0, 0
	for rows.Next() {
		var what string
		var n int
		if err := rows.Scan(&what, &n); err != nil {
			fmt.Fprintln(out, err)
			return
		}
		note := ""
		all++
		if n < enough {
			note = "  (not tried)"
		} else {
			tried++
		}
		fmt.Fprintf(out, "%6d  %s%s\n", n, what, note)
	}
	fmt.Fprintf(out, "%6d  of %d points tried\n", tried, all)
}
