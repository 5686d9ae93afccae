package postgres

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/loopd/loopd/internal/loop"
)

// usedRun and usedCall are what a test knows of a run and of a model call of it.
type usedRun struct {
	ref     loop.RunRef
	agent   string
	version int64
	state   loop.RunState
	reason  string // empty: it has not ended
	labels  map[string]string
}

type usedCall struct {
	run             *usedRun
	call            int
	model, purpose  string
	cost, saved     int64
	usage           loop.Usage
	estimated       bool
	tools, failures []string // one entry for each tool call
	settled         time.Time
}

// usageWorld draws runs and calls whose amounts divide badly, around the hours that
// Berlin had twice and not at all.
func usageWorld(r *rand.Rand) (runs []*usedRun, calls []*usedCall) {
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	begin := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)
	for range 40 {
		run := &usedRun{ref: newRef(), agent: "agents/" + pick("a", "b"), version: r.Int64N(2) + 1, state: loop.StateRunning, labels: map[string]string{}}
		if team := pick("care", "a\x00b", `"`, "-"); team != "-" {
			run.labels["team"] = team
		}
		if r.IntN(4) > 0 {
			run.state = []loop.RunState{loop.StateSucceeded, loop.StateStopped, loop.StateFailed}[r.IntN(3)]
			run.reason = pick("COMPLETED", "REPEAT_CALL")
		}
		runs = append(runs, run)
		for call := range r.IntN(12) {
			c := &usedCall{
				run: run, call: call + 1, model: pick("acme/large", "acme/small", ""), purpose: pick("", "judge"), estimated: r.IntN(5) == 0,
				cost: r.Int64N(1_000_000_007), saved: r.Int64N(2001) - 1000,
				usage: loop.Usage{
					InputUncached: r.Int64N(1000), CacheRead: r.Int64N(9000), CacheWrite5m: r.Int64N(50), CacheWrite1h: r.Int64N(50),
					Output: r.Int64N(300), Reasoning: r.Int64N(20),
				},
				settled: begin.Add(time.Duration(r.Int64N(int64(48 * time.Hour)))).Truncate(time.Microsecond),
			}
			if r.IntN(3) == 0 { // the autumn's hours
				c.settled = c.settled.AddDate(0, 0, 210)
			}
			for range max(0, r.IntN(6)-2) {
				c.tools = append(c.tools, pick("look", "pay", `odd"\{},`))
				if r.IntN(3) == 0 {
					c.failures = append(c.failures, c.tools[len(c.tools)-1])
				}
			}
			calls = append(calls, c)
		}
	}
	return runs, calls
}

// put writes the world as appends would have, but for the times.
func put(t *testing.T, s *Store, runs []*usedRun, calls []*usedCall) {
	t.Helper()
	b := &pgx.Batch{}
	for _, r := range runs {
		var labels, stop []byte
		if err := encode(&labels, r.labels); err != nil {
			t.Fatal(err)
		}
		var ended *time.Time
		if r.reason != "" {
			if err := encode(&stop, loop.Stop{Reason: loop.StopReason(r.reason), Message: "\x00"}); err != nil {
				t.Fatal(err)
			}
			ended = new(at(0))
		}
		b.Queue(`INSERT INTO runs (tenant_id, run_id, agent, agent_version, input, limits, labels, source, has_output_schema, next_seq, state, phase, stop, ended_at)
			VALUES ($1, $2, $3, $4, '""', '{}', $5, '', false, 2, $6, '', $7, $8)`, r.ref.Tenant, r.ref.ID, r.agent, r.version, labels, string(r.state), stop, ended)
	}
	for _, c := range calls {
		var iteration *int
		if c.tools != nil {
			iteration = &c.call
		}
		b.Queue(`INSERT INTO holds (tenant_id, run_id, call, amount_pico, state, settled_pico, settled_at, model, purpose, input_uncached, cache_read,
				cache_write_5m, cache_write_1h, output, reasoning, estimated, saved_pico, iteration, tools)
			VALUES ($1, $2, $3, $4, 'settled', $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)`,
			c.run.ref.Tenant, c.run.ref.ID, c.call, c.cost, c.settled, c.model, c.purpose, c.usage.InputUncached, c.usage.CacheRead,
			c.usage.CacheWrite5m, c.usage.CacheWrite1h, c.usage.Output, c.usage.Reasoning, c.estimated, c.saved, iteration, c.tools)
		failures := slices.Clone(c.failures)
		for i, tool := range c.tools {
			state := "SUCCEEDED"
			if j := slices.Index(failures, tool); j >= 0 {
				state, failures = []string{"FAILED", "REJECTED", "IN_DOUBT", "NOT_SENT"}[i%4], slices.Delete(failures, j, j+1)
			}
			b.Queue(`INSERT INTO tool_calls (tenant_id, run_id, call_id, ordinal, tool, call, iteration, args_sha256, effect, state, outcome, attempt, idem_key, result, cut, bytes)
				VALUES ($1, $2, $3, $4, $5, '{}', $6, '', '', $7, '', 1, 'k', '""', false, 0)`,
				c.run.ref.Tenant, c.run.ref.ID, fmt.Sprintf("c%d-%d", c.call, i+1), i+1, tool, c.call, state)
		}
	}
	if err := s.pool.SendBatch(t.Context(), b).Close(); err != nil {
		t.Fatal(err)
	}
}

// sums are a row before its amounts are written as decimals.
type sums struct {
	UsageRow
	cost, estimated, saved, wasted int64
	runs                           map[*usedRun]bool
}

// add adds a share of a call: everything but its tool calls.
func (s *sums) add(c *usedCall, place, among int64) {
	part := func(n int64) int64 {
		if place == 0 {
			return n/among + n%among
		}
		return n / among
	}
	s.runs[c.run] = true
	s.cost, s.saved = s.cost+part(c.cost), s.saved+part(c.saved)
	if c.estimated {
		s.estimated += part(c.cost)
	}
	if c.run.reason != "" && c.run.state != loop.StateSucceeded {
		s.wasted += part(c.cost)
	}
	s.InputUncached += part(c.usage.InputUncached)
	s.CacheRead += part(c.usage.CacheRead)
	s.CacheWrite += part(c.usage.CacheWrite5m + c.usage.CacheWrite1h)
	s.Output += part(c.usage.Output)
	s.Reasoning += part(c.usage.Reasoning)
}

// row writes the sums as the store does.
func (s *sums) row(keys []string) UsageRow {
	r := s.UsageRow
	r.Keys, r.Runs = keys, int64(len(s.runs))
	for run := range s.runs {
		if run.state == loop.StateSucceeded {
			r.Succeeded++
		}
	}
	r.Cost, r.Estimated, r.Saved, r.Wasted = loop.USD(s.cost).String(), loop.USD(s.estimated).String(), loop.USD(s.saved).String(), loop.USD(s.wasted).String()
	if s.cost > 0 {
		r.WastedShare = float64(s.wasted) / float64(s.cost)
	}
	if r.Succeeded > 0 {
		r.PerSuccess = loop.USD(s.cost / r.Succeeded).String()
	}
	return r
}

// addUp is the specification: what QueryUsage must answer, the dearest first.
func addUp(calls []*usedCall, q UsageQuery) (total UsageRow, rows []UsageRow) {
	zone, _ := time.LoadLocation(q.Zone)
	whole, groups := &sums{runs: map[*usedRun]bool{}}, map[string]*sums{}
	for _, c := range calls {
		if c.settled.Before(q.From) || !c.settled.Before(q.To) || q.Model != "" && q.Model != c.model || q.Agent != "" && q.Agent != c.run.agent ||
			len(q.States) > 0 && !slices.Contains(q.States, c.run.state) || q.Labels != nil && q.Labels["team"] != c.run.labels["team"] {
			continue
		}
		whole.add(c, 0, 1)
		whole.ModelCalls++
		whole.ToolCalls += int64(len(c.tools))
		whole.ToolFailures += int64(len(c.failures))
		shares := []string{""}
		if slices.Contains(q.GroupBy, "tool") && c.tools != nil {
			shares = c.tools
		}
		for i, tool := range shares {
			key := strings.Join(keysOf(c, tool, q.GroupBy, zone), "\x01")
			g := groups[key]
			if g == nil {
				g = &sums{runs: map[*usedRun]bool{}}
				groups[key] = g
			}
			g.add(c, int64(i), int64(len(shares)))
			if slices.Index(shares, tool) == i {
				g.ModelCalls++
			}
			switch {
			case tool != "":
				g.ToolCalls++
			default:
				g.ToolCalls += int64(len(c.tools))
				g.ToolFailures += int64(len(c.failures))
			}
			if tool != "" && slices.Index(shares, tool) == i {
				for _, failed := range c.failures {
					if failed == tool {
						g.ToolFailures++
					}
				}
			}
		}
	}
	for key, g := range groups {
		rows = append(rows, g.row(strings.Split(key, "\x01")))
	}
	slices.SortFunc(rows, func(a, b UsageRow) int {
		return cmp.Or(-cmp.Compare(pico(a.Cost), pico(b.Cost)), slices.Compare(a.Keys, b.Keys))
	})
	return whole.row([]string{}), rows
}

func keysOf(c *usedCall, tool string, groupBy []string, zone *time.Location) (keys []string) {
	local := c.settled.In(zone)
	for _, word := range groupBy {
		keys = append(keys, map[string]string{
			"tenant": tenant, "agent": c.run.agent, "agent_version": fmt.Sprintf("%s@%d", c.run.agent, c.run.version), "model": c.model, "tool": tool,
			"stop_reason": c.run.reason, "state": string(c.run.state), "purpose": c.purpose, "label:team": printable(c.run.labels["team"]),
			"hour":  fmt.Sprint(c.settled.Unix() - c.settled.Unix()%3600),
			"day":   fmt.Sprint(time.Date(local.Year(), local.Month(), local.Day(), 0, 0, 0, 0, zone).Unix()),
			"month": fmt.Sprint(time.Date(local.Year(), local.Month(), 1, 0, 0, 0, 0, zone).Unix()),
		}[word])
	}
	return keys
}

func pico(usd string) loop.USD {
	var u loop.USD
	_ = u.UnmarshalText([]byte(usd))
	return u
}

// usage asks for all rows.
func usage(t *testing.T, s *Store, q UsageQuery) (total UsageRow, rows []UsageRow) {
	t.Helper()
	q.Limit = 1000
	total, rows, more, err := s.QueryUsage(t.Context(), tenant, q)
	if err != nil || more {
		t.Fatalf("usage by %v: more: %t, %v", q.GroupBy, more, err)
	}
	return total, rows
}

// Every group of every kind is what a program in a few lines makes of the same calls,
// to the last pico-dollar.
func TestUsageIsExact(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	seed := rand.Uint64()
	runs, calls := usageWorld(rand.New(rand.NewPCG(seed, 0)))
	put(t, s, runs, calls)
	all := UsageQuery{From: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), To: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC), Zone: "Europe/Berlin"}
	queries := []UsageQuery{all}
	for _, word := range append(UsageGroups(), GroupLabel+"team") {
		q := all
		q.GroupBy = []string{word}
		queries = append(queries, q)
	}
	for _, words := range [][]string{{"tool", "agent", "hour"}, {"month", "day", "tool", "model"}, {"label:team", "stop_reason", "purpose"}, {"state", "hour", "day"}} {
		q := all
		q.GroupBy = words
		queries = append(queries, q)
		q.Agent, q.Model, q.States = "agents/a", "acme/large", []loop.RunState{loop.StateFailed, loop.StateSucceeded}
		queries = append(queries, q)
		q.Agent, q.Model, q.States, q.Labels = "", "", nil, map[string]string{"team": "care"}
		q.From, q.To = all.From.AddDate(0, 0, 28), all.From.AddDate(0, 0, 29)
		queries = append(queries, q)
	}
	for _, q := range queries {
		wantTotal, want := addUp(calls, q)
		total, got := usage(t, s, q)
		if q.GroupBy == nil {
			want = nil
		}
		what := fmt.Sprintf("seed %d: usage by %v from %s of %+v", seed, q.GroupBy, q.From, q.Labels)
		diff(t, what, got, want, cmpopts.EquateApprox(1e-12, 0))
		diff(t, what+": total", total, wantTotal, cmpopts.EquateApprox(1e-12, 0))
	}
}

// The sums of hours are the sum of the day, in a query and across queries.
func TestUsageAddsUp(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	runs, calls := usageWorld(rand.New(rand.NewPCG(1, 2)))
	put(t, s, runs, calls)
	from, to := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for _, by := range []string{"hour", "day", "month", "tool", "agent", "model"} {
		total, rows := usage(t, s, UsageQuery{From: from, To: to, Zone: "Europe/Berlin", GroupBy: []string{by}})
		var cost, saved, wasted loop.USD
		for _, row := range rows {
			cost, saved, wasted = cost+pico(row.Cost), saved+pico(row.Saved), wasted+pico(row.Wasted)
		}
		diff(t, "sums by "+by, []string{cost.String(), saved.String(), wasted.String()}, []string{total.Cost, total.Saved, total.Wasted})
	}
	whole, _ := usage(t, s, UsageQuery{From: from, To: to, Zone: "UTC"})
	var cost loop.USD
	var modelCalls int64
	cuts := []time.Time{from, calls[0].settled, calls[0].settled.Add(time.Microsecond), calls[1].settled, to}
	slices.SortFunc(cuts, time.Time.Compare)
	for i := range cuts[1:] {
		part, _ := usage(t, s, UsageQuery{From: cuts[i], To: cuts[i+1], Zone: "UTC"})
		cost, modelCalls = cost+pico(part.Cost), modelCalls+part.ModelCalls
	}
	diff(t, "sum of the ranges", []any{cost.String(), modelCalls}, []any{whole.Cost, whole.ModelCalls})
}

func TestUsagePages(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	runs, calls := usageWorld(rand.New(rand.NewPCG(3, 4)))
	put(t, s, runs, calls)
	q := UsageQuery{From: at(0).AddDate(-1, 0, 0), To: at(0).AddDate(1, 0, 0), Zone: "UTC", GroupBy: []string{"agent", "hour"}, ByTime: true}
	wholeTotal, whole := usage(t, s, q)
	if !slices.IsSortedFunc(whole, func(a, b UsageRow) int { return strings.Compare(a.Keys[1], b.Keys[1]) }) || len(whole) < 20 {
		t.Errorf("%d rows, or not in order of time", len(whole))
	}
	var paged []UsageRow
	for more := true; more; {
		var page []UsageRow
		var total UsageRow
		var err error
		q.Skip, q.Limit = len(paged), 7
		if total, page, more, err = s.QueryUsage(t.Context(), tenant, q); err != nil {
			t.Fatal(err)
		}
		diff(t, "total of a page", total, wholeTotal)
		if more != (len(page) == 7 && len(paged)+7 < len(whole)) {
			t.Fatalf("more is %t after %d of %d rows", more, len(paged)+len(page), len(whole))
		}
		paged = append(paged, page...)
	}
	diff(t, "all pages", paged, whole)

	none, rows, more, err := s.QueryUsage(t.Context(), "nobody", q)
	diff(t, "a tenant without runs", none, UsageRow{Keys: []string{}, Cost: "0", Estimated: "0", Saved: "0", Wasted: "0"})
	if err != nil || rows != nil || more {
		t.Errorf("a tenant without runs has %v, %t, %v", rows, more, err)
	}
}

// A report that takes too long says so, and is no outage.
func TestUsageOfTooMuch(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	total, _, _, err := s.queryUsage(t.Context(), tenant, UsageQuery{From: at(0), To: at(1), Zone: "UTC"}, "1ms")
	wantErr(t, err, ErrTooMuch)
	if errors.Is(err, ErrUnavailable) {
		t.Errorf("it counts as an outage: %+v, %v", total, err)
	}
}

// heldCall is a row of holds.
type heldCall struct {
	Call, Amount                int64
	State, Model, Purpose, Book string
	Cost                        int64
	Uncached, Read, W5, W1      int64
	Output, Reasoning           int64
	Estimated                   bool
	Saved                       int64
	Iteration                   *int64
	Tools                       []string
}

// What a model call was is kept with its hold, by the append that settles it.
func TestHoldsKeepWhatTheCallWas(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	started := func(call int, model, purpose string) loop.ModelStarted {
		return loop.ModelStarted{Call: call, Model: model, Purpose: purpose, PriceVersion: "2026-11-01", MaxOutput: 10, InputBound: 10, Hold: 900}
	}
	names := []string{"look", `odd "\ {},`, "nul\x00", "look"}
	answer := loop.Message{Role: loop.RoleAssistant, Parts: []loop.Part{loop.TextPart("a")}}
	var heads []loop.CallHead
	for i, name := range names {
		call := loop.ToolCall{ID: fmt.Sprintf("c1-%d", i+1), Name: name, Args: "{}"}
		answer.Parts = append(answer.Parts, loop.Part{Kind: loop.PartToolCall, Call: &call})
		if i != 3 { // not taken up
			heads = append(heads, loop.CallHead{Call: call, Iteration: 5, State: loop.CallPlanned})
		}
	}
	heads = append(heads, loop.CallHead{Call: loop.ToolCall{ID: "c0-1", Name: "older"}, Iteration: 4, State: loop.CallSucceeded})
	unknown := loop.Usage{InputUncached: 10, Output: 10}
	for i, body := range []loop.Body{
		claimed(lease),
		started(1, "acme/large", ""),
		loop.ModelAnswered{
			Call: 1, Message: answer, Cost: loop.Cost{Input: 300, CacheWrite: 20, Output: 1}, CacheSaved: -7,
			Usage: loop.Usage{InputUncached: 1, CacheRead: 2, CacheWrite5m: 3, CacheWrite1h: 4, Output: 5, Reasoning: 6},
		},
		started(2, "acme/small", loop.PurposeJudge),
		loop.ModelFailed{Call: 2, Class: loop.ErrorTimeout, Usage: unknown, Cost: loop.Cost{Output: 900}},
		started(3, "acme/small", ""),
		loop.ModelFailed{Call: 3, Class: loop.ErrorThrottle},
		started(4, "acme/small", ""),
		loop.ModelAnswered{Call: 4, Estimated: true, Cost: loop.Cost{Output: 900}, Usage: unknown},
		started(5, "acme/large", loop.PurposeWrapUp),
	} {
		b := batch(lease, int64(i+2), body)
		b.Calls = heads // of each batch: only the answer that asked for them counts
		mustAppend(t, s, lease, b)
	}

	rows, err := s.pool.Query(t.Context(), `SELECT call, amount_pico AS amount, state, model, purpose, price_version AS book, coalesce(settled_pico, -1) AS cost,
		input_uncached AS uncached, cache_read AS read, cache_write_5m AS w5, cache_write_1h AS w1, output, reasoning, estimated, saved_pico AS saved, iteration, tools
		FROM holds WHERE tenant_id = $1 AND run_id = $2 ORDER BY call`, ref.Tenant, ref.ID)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByName[heldCall])
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "holds", got, []heldCall{
		{
			Call: 1, Amount: 900, State: "settled", Model: "acme/large", Book: "2026-11-01", Cost: 321, Uncached: 1, Read: 2, W5: 3, W1: 4, Output: 5, Reasoning: 6,
			Saved: -7, Iteration: new(int64(5)), Tools: []string{"look", `odd "\ {},`, "nul\ufffd"},
		},
		{Call: 2, Amount: 900, State: "settled", Model: "acme/small", Purpose: "judge", Book: "2026-11-01", Cost: 900, Uncached: 10, Output: 10, Estimated: true},
		{Call: 3, Amount: 900, State: "settled", Model: "acme/small", Book: "2026-11-01"},
		{Call: 4, Amount: 900, State: "settled", Model: "acme/small", Book: "2026-11-01", Cost: 900, Uncached: 10, Output: 10, Estimated: true},
		{Call: 5, Amount: 900, State: "open", Model: "acme/large", Purpose: "wrap_up", Book: "2026-11-01", Cost: -1},
	})
}
