package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// randomScript draws what the models of some agents say: answers, calls of tools that
// exist and of others, bad arguments, failures, and circles.
func randomScript(r *rand.Rand, agents int) string {
	var s strings.Builder
	s.WriteString("models:\n")
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	for i := range agents {
		fmt.Fprintf(&s, "  a%d:\n    answers:\n", i)
		for n := range 1 + r.IntN(6) {
			fmt.Fprintf(&s, "      - usage: {input: %d, cache_read: %d, cache_write: %d, cache_write_1h: %d, output: %d, reasoning: %d}\n",
				1+r.IntN(3000), r.IntN(5000), r.IntN(400), r.IntN(90), 1+r.IntN(300), r.IntN(50))
			if i == 0 && n == 0 { // more failures than this would open the provider's circuit
				fmt.Fprintf(&s, "        errors: [{class: %s}]\n", pick("timeout", "not_started", "server"))
			}
			fmt.Fprintf(&s, "        calls: [{name: %s, args: %s}, {name: %s, args: {n: %d}}]\n",
				pick("look", "touch", "pay", "made_up", "fail"), pick("{n: 1}", `"no JSON"`, "{}"), pick("look", "touch"), r.IntN(3))
		}
		if i > 1 && r.IntN(3) == 0 {
			s.WriteString("    loop_from: 1\n")
			continue
		}
		s.WriteString("      - text: that is all\n")
		if i == 1 || r.IntN(4) == 0 {
			s.WriteString("        usage: {missing: true}\n")
		}
	}
	return s.String()
}

// truths are series as the journal has them, by metric: the labels in the order of
// their names, and the value.
var truths = map[string]struct {
	labels []string
	query  string
}{
	"loopd_cost_usd_total": {[]string{"agent", "kind", "model"}, `
		SELECT substr(r.agent, 8), k.key, h.model, sum(k.value::numeric)::float8 FROM events e JOIN runs r USING (tenant_id, run_id)
		JOIN holds h ON h.tenant_id = e.tenant_id AND h.run_id = e.run_id AND h.call = (e.body->>'call')::int, json_each_text(e.body->'cost') k
		WHERE e.kind IN ('model_answered', 'model_failed') GROUP BY 1, 2, 3`},
	"loopd_tokens_total": {[]string{"agent", "kind", "model"}, `
		SELECT substr(r.agent, 8), CASE WHEN k.key LIKE 'cache_write%' THEN 'cache_write' ELSE k.key END, h.model, sum(k.value::numeric)::float8
		FROM events e JOIN runs r USING (tenant_id, run_id)
		JOIN holds h ON h.tenant_id = e.tenant_id AND h.run_id = e.run_id AND h.call = (e.body->>'call')::int, json_each_text(e.body->'usage') k
		WHERE e.kind IN ('model_answered', 'model_failed') GROUP BY 1, 2, 3`},
	"loopd_tenant_cost_usd_total": {[]string{"tenant"}, `SELECT '_other', (sum(settled_pico) / 1e12)::float8 FROM holds WHERE state = 'settled'`},
	"loopd_purpose_cost_usd_total": {[]string{"agent", "purpose"}, `
		SELECT substr(r.agent, 8), coalesce(nullif(h.purpose, ''), 'work'), (sum(h.settled_pico) / 1e12)::float8
		FROM holds h JOIN runs r USING (tenant_id, run_id) WHERE h.state = 'settled' GROUP BY 1, 2`},
	"loopd_run_cost_usd_sum": {[]string{"agent", "outcome"}, `SELECT substr(agent, 8), state, (sum(cost_pico) / 1e12)::float8 FROM runs GROUP BY 1, 2`},
	"loopd_iterations_total": {[]string{"agent"}, `SELECT substr(agent, 8), sum(iterations)::float8 FROM runs GROUP BY 1`},
	"loopd_guard_trips_total": {[]string{"action", "agent", "guard"}, `
		SELECT e.body->>'verdict', substr(r.agent, 8), e.body->>'guard', count(*)::float8
		FROM events e JOIN runs r USING (tenant_id, run_id) WHERE e.kind = 'tripped' GROUP BY 1, 2, 3`},
	"loopd_tool_calls_total": {[]string{"outcome", "tool"}, `
		SELECT CASE e.kind WHEN 'call_in_doubt' THEN 'unknown' ELSE e.body->>'outcome' END,
			CASE t.tool WHEN 'made_up' THEN '_unknown' ELSE t.tool END, count(*)::float8
		FROM events e JOIN tool_calls t ON t.tenant_id = e.tenant_id AND t.run_id = e.run_id AND t.call_id = e.body->>'call_id'
		WHERE e.kind IN ('call_finished', 'call_refused', 'call_in_doubt') GROUP BY 1, 2`},
	"loopd_approvals_total": {[]string{"decision", "tool"}, `
		SELECT CASE approval WHEN 'APPROVED' THEN 'approved' WHEN 'DENIED' THEN 'denied' ELSE lower(approval) END, tool, count(*)::float8
		FROM approvals GROUP BY 1, 2`},
	"loopd_runs_finished_total": {[]string{"agent", "stop_reason"}, `
		SELECT substr(r.agent, 8), e.body->'stop'->>'reason', count(*)::float8
		FROM events e JOIN runs r USING (tenant_id, run_id) WHERE e.kind = 'finished' GROUP BY 1, 2`},
	"loopd_unpriced_calls_total": {[]string{"model"}, `
		SELECT h.model, count(*)::float8 FROM events e JOIN holds h ON h.tenant_id = e.tenant_id AND h.run_id = e.run_id AND h.call = (e.body->>'call')::int
		WHERE e.kind = 'model_answered' AND e.body->>'estimated' = 'true' GROUP BY 1`},
}

// After random runs, what Prometheus adds up is what SQL adds up over the journal: money
// to the last unit of 1e-12 USD, each token, iteration, trip, outcome and decision.
func TestMetricsAreTheTruth(t *testing.T) {
	t.Parallel()
	const agents, runs = 12, 48
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	draw := rand.New(rand.NewPCG(seed, 1))
	db, tools := pgURL(t), newShop(t)
	p := start(t, db, randomScript(draw, agents))
	fail := tools.tool("fail", "fail", readOnly)
	fail.GetHttp().Url = tools.URL + "/nowhere"
	for i := range agents {
		p.define(fmt.Sprint("a", i), &loopdv1.AgentSpec{Tools: []*loopdv1.Tool{
			tools.tool("look", "look", readOnly), tools.tool("touch", "touch", loopdv1.Effect_EFFECT_IDEMPOTENT), tools.tool("pay", "pay", irreversible), fail,
		}})
	}
	var names []string
	for i := range runs {
		names = append(names, p.start(fmt.Sprint("a", i%agents)).GetName())
	}
	for _, name := range names {
		p.decideAtRandom(draw, name)
	}
	compareMetrics(t, p.finished(runs), connect(t, db))
}

// decideAtRandom approves and denies what a run asks for, until it has ended.
func (p *process) decideAtRandom(draw *rand.Rand, run string) {
	p.t.Helper()
	for {
		r := p.wait(run)
		if r.GetEndTime() != nil {
			return
		}
		for _, a := range p.approvals(run) {
			if draw.IntN(2) == 0 {
				p.approve(a)
			} else {
				p.ask(http.MethodPost, "/v1/"+a.GetName()+":deny", `{"reason": "no"}`, &loopdv1.Approval{})
			}
		}
	}
}

// finished scrapes until that many runs are counted, which is right after their last
// commit.
func (p *process) finished(runs int) map[string]float64 {
	p.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		var ended float64
		metrics := scrape(p.t, "http://"+p.admin+"/metrics")
		for series, n := range metrics {
			if strings.HasPrefix(series, "loopd_run_duration_seconds_count{") {
				ended += n
			}
		}
		if int(ended) == runs {
			return metrics
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%v of %d runs are counted", ended, runs)
		}
	}
}

// compareMetrics compares all truths with the metrics of the only process there is.
func compareMetrics(t *testing.T, metrics map[string]float64, db *pgxpool.Pool) {
	t.Helper()
	for name, truth := range truths {
		want, got := seriesOf(t, db, name, truth.labels, truth.query), map[string]float64{}
		for series, v := range metrics {
			if strings.HasPrefix(series, name+"{") && v != 0 {
				got[series] = v
			}
		}
		if len(want) == 0 {
			t.Errorf("%s: the journal has none, so that nothing is compared", name)
		}
		for series, v := range got {
			if _, ok := want[series]; !ok {
				t.Errorf("%s is %v, and the journal has no such thing", series, v)
			}
		}
		for series, v := range want {
			if diff := got[series] - v; math.Abs(diff) > 0.5e-12 {
				t.Errorf("%s is %v, the journal says %v", series, got[series], v)
			}
		}
	}
}

// seriesOf runs a query whose columns are the labels and the value. What is 0 is left out.
func seriesOf(t *testing.T, db *pgxpool.Pool, name string, labels []string, query string) map[string]float64 {
	t.Helper()
	rows, err := db.Query(t.Context(), query)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	defer rows.Close()
	series := map[string]float64{}
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var pairs []string
		for i, l := range labels {
			pairs = append(pairs, fmt.Sprintf("%s=%q", l, values[i]))
		}
		if v, ok := values[len(labels)].(float64); ok && v != 0 {
			series[name+"{"+strings.Join(pairs, ",")+"}"] = v
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return series
}
