package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// invariant is a query that must find no row. Each column is text.
type invariant struct{ name, query string }

// invariants are those that Postgres can judge, with the ledgers beside it: see
// importLedgers for the tables led, asked, acked and approved.
func invariants() []invariant { return slices.Concat(ofJournals(), ofMoney(), ofRuns()) }

// ofJournals are those about events and the calls that they tell of.
func ofJournals() []invariant {
	return []invariant{
		{"I1 a run that was acknowledged does not exist", `SELECT a.tag, a.run FROM acked a WHERE NOT EXISTS (SELECT FROM runs r WHERE r.run_id::text = a.run)`},
		{"I1 two runs of one key", `SELECT input::text, string_agg(run_id::text, ' ') FROM runs WHERE depth = 0 GROUP BY tenant_id, input::text HAVING count(*) > 1`},
		{"I1 one key was answered with two runs", `SELECT tag, string_agg(run, ' ') FROM acked GROUP BY tag HAVING count(DISTINCT run) > 1`},
		{"I2 a run has neither ended nor a wait with a deadline nor an owner", `SELECT run_id::text, state, phase FROM runs
			WHERE ended_at IS NULL AND (wake_at IS NULL OR wake_at < clock_timestamp()) AND lease_owner IS NULL AND available_at < clock_timestamp() - interval '10 s'`},
		{"I2 a run is owned by nobody alive", `SELECT run_id::text, state, lease_owner FROM runs WHERE lease_owner IS NOT NULL
			AND NOT EXISTS (SELECT FROM workers w WHERE w.worker_id = lease_owner AND w.expires_at > clock_timestamp() - interval '10 s')`},
		{"I3 a journal has gaps", `SELECT run_id::text, count(*)::text, max(seq)::text FROM events GROUP BY 1 HAVING count(*) <> max(seq) OR min(seq) <> 1`},
		{"I3 next_seq is not after the journal's end", `SELECT r.run_id::text, r.next_seq::text, max(e.seq)::text FROM runs r JOIN events e USING (tenant_id, run_id) GROUP BY 1, r.next_seq HAVING max(e.seq) <> r.next_seq - 1`},
		{"I3 a reader of the stream saw something else than the journal", `SELECT w.run, w.fault, w.seen::text FROM watched w WHERE w.fault <> '' OR w.ended AND w.kinds <>
			(SELECT string_agg(kind, ' ' ORDER BY seq) FROM events e WHERE e.run_id::text = w.run)`},
		{"I3 a stream did not end with its run", `SELECT w.run, w.seen::text, r.state FROM watched w JOIN runs r ON r.run_id::text = w.run
			WHERE NOT w.ended AND r.ended_at < clock_timestamp() - interval '30 s'`},
		{"I4 the model was asked before each call had its one result", `SELECT run, tag, fault FROM asked WHERE fault <> ''`},
		{"I4 a call has two ends", `SELECT run_id::text, body ->> 'call_id' AS call, string_agg(kind, ' ') FROM events
			WHERE kind IN ('call_finished', 'call_refused', 'doubt_told', 'child_finished', 'result_submitted') GROUP BY run_id, call HAVING count(*) > 1`},
		{"I5 a request arrived before its intent was durable", `SELECT run, call, attempt::text, key FROM led WHERE intent = 'no'`},
		{"I5 a request has no intent", `SELECT run, call, attempt::text, key FROM led l WHERE NOT EXISTS (SELECT FROM events e WHERE e.run_id::text = l.run AND e.kind = 'call_started'
			AND e.body ->> 'call_id' = l.call AND (e.body ->> 'attempt')::int = l.attempt AND e.body ->> 'key' = l.key)`},
		{"I5 the model was asked without an intent", `SELECT a.run, count(*)::text, min(s.n)::text FROM asked a
			JOIN (SELECT run_id::text AS run, count(*) AS n FROM events WHERE kind = 'model_started' GROUP BY 1) s USING (run) GROUP BY a.run, s.n HAVING count(*) > s.n`},
		{"I6 a risky call arrived twice in one attempt", `SELECT run, call, attempt::text, count(*)::text FROM led WHERE risky GROUP BY 1, 2, 3 HAVING count(*) > 1`},
		{"I6 a call arrived under two keys", `SELECT run, call, string_agg(DISTINCT key, ' ') FROM led GROUP BY 1, 2 HAVING count(DISTINCT key) > 1`},
		{"I6 two calls arrived under one key", `SELECT key, string_agg(DISTINCT run || '/' || call, ' ') FROM led GROUP BY 1 HAVING count(DISTINCT run || '/' || call) > 1`},
		{"I6 a risky call was sent again without authority", `SELECT l.run, l.call, l.attempt::text FROM led l WHERE l.risky AND l.attempt > 1
			AND NOT EXISTS (SELECT FROM events e WHERE e.run_id::text = l.run AND e.kind = 'call_resolved' AND e.body ->> 'call_id' = l.call AND e.body ->> 'resolution' = 'retry')`},
		{"I7 a call took effect and is recorded as not sent or failed", `SELECT l.run, l.call, t.state FROM led l JOIN tool_calls t ON t.run_id::text = l.run AND t.call_id = l.call
			WHERE l.risky AND l.applied AND t.state NOT IN ('SUCCEEDED', 'IN_DOUBT', 'STARTED')`},
		{"I7 a call succeeded that never arrived", `SELECT t.run_id::text, t.call_id, t.tool FROM tool_calls t WHERE t.state = 'SUCCEEDED' AND t.tool IN ('effect', 'final', 'read', 'keyed')
			AND NOT EXISTS (SELECT FROM led l WHERE l.run = t.run_id::text AND l.call = t.call_id)`},
		// A worker that was lost doubts under the epoch of the next. What is left after a
		// fault, such as a restart, takes some seconds.
		{"I7 a call is in doubt although it was answered and nothing broke", `SELECT d.run_id::text, l.call, l.key, d.at::text FROM events d
			JOIN events s ON s.tenant_id = d.tenant_id AND s.run_id = d.run_id AND s.kind = 'call_started' AND s.epoch = d.epoch
				AND s.body ->> 'call_id' = d.body ->> 'call_id' AND s.body ->> 'attempt' = d.body ->> 'attempt'
			JOIN led l ON l.run = d.run_id::text AND l.call = d.body ->> 'call_id' AND l.attempt = (d.body ->> 'attempt')::int
			JOIN answered a ON a.key = l.key AND a.attempt = l.attempt AND a.at < d.at AND a.at < s.at + interval '3 s'
			WHERE d.kind = 'call_in_doubt'
				AND NOT EXISTS (SELECT FROM faults f WHERE f.began < d.at AND f.ended + interval '3 s' > s.at - interval '1 s')`},
		{"I8 a call was left started", `SELECT t.run_id::text, t.call_id, t.state FROM tool_calls t JOIN runs r USING (tenant_id, run_id) WHERE t.state IN ('STARTED', 'AWAITING_RESULT', 'AWAITING_APPROVAL') AND r.ended_at IS NOT NULL`},
		{"I9 an event is of an older epoch than one before it", `SELECT run_id::text, seq::text, epoch::text FROM
			(SELECT run_id, seq, epoch, max(epoch) OVER (PARTITION BY tenant_id, run_id ORDER BY seq) AS newest FROM events) e WHERE epoch < newest`},
		{"I10 an irreversible call was sent without its approval", `SELECT l.run, l.call, l.key FROM led l WHERE l.tool = 'final' AND NOT EXISTS (
			SELECT FROM events d JOIN events s ON s.run_id = d.run_id AND s.kind = 'call_started' AND s.body ->> 'call_id' = l.call AND s.seq > d.seq
			JOIN tool_calls t ON t.run_id = d.run_id AND t.call_id = l.call AND t.args_sha256 = d.body ->> 'args_hash'
			WHERE d.run_id::text = l.run AND d.kind = 'approval_decided' AND d.body ->> 'call_id' = l.call AND (d.body ->> 'approved')::boolean)`},
		{"I10 a call was approved by nobody", `SELECT l.run, l.call FROM led l WHERE l.tool = 'final' AND NOT EXISTS (
			SELECT FROM approved p JOIN tool_calls t ON t.run_id::text = l.run AND t.call_id = l.call AND t.args_sha256 = p.hash
			WHERE p.call = 'runs/' || l.run || '/toolCalls/' || l.call)`},
		{"I10 a call was approved twice", `SELECT run_id::text, body ->> 'call_id' AS call, count(*)::text FROM events WHERE kind = 'approval_decided' GROUP BY 1, 2 HAVING count(*) > 1`},
	}
}

// ofMoney are those about accounts, budgets and what runs cost.
func ofMoney() []invariant {
	return []invariant{
		{"I11 an account is above its limit", `SELECT account, committed_pico::text, held_pico::text, limit_pico::text FROM accounts WHERE committed_pico::numeric + held_pico > limit_pico`},
		{"I11 a run that ended holds money", `SELECT r.run_id::text, r.held_pico::text FROM runs r JOIN accounts a ON a.tenant_id = r.tenant_id AND a.account = 'run:' || r.run_id
			WHERE r.ended_at IS NOT NULL AND (a.held_pico > 0 OR r.held_pico > 0 OR EXISTS (SELECT FROM holds h WHERE h.run_id = r.run_id AND h.state = 'open'))`},
		{"I11 an account is not the sum of its run's calls", `SELECT h.run_id::text, sum(h.settled_pico)::text, a.committed_pico::text FROM holds h
			JOIN accounts a ON a.tenant_id = h.tenant_id AND a.account = 'run:' || h.run_id GROUP BY h.run_id, a.committed_pico HAVING sum(h.settled_pico) <> a.committed_pico`},
		{"I11 a run's cost is not that of its calls and children", `SELECT r.run_id::text, r.cost_pico::text, a.committed_pico::text FROM runs r JOIN accounts a ON a.tenant_id = r.tenant_id AND a.account = 'run:' || r.run_id
			WHERE r.ended_at IS NOT NULL AND r.cost_pico <> a.committed_pico + (SELECT coalesce(sum(c.cost_pico), 0) FROM runs c WHERE c.parent_run_id = r.run_id)`},
		{"I11 a budget is above its limit", `SELECT budget_id, committed_pico::text, held_pico::text FROM budget_standing WHERE committed_pico::numeric + held_pico > limit_pico`},
		{"I11 a budget's account is not the sum of its chunks", `SELECT a.budget_id, a.held_pico::text, sum(c.drawn_pico)::text FROM budget_accounts a
			LEFT JOIN chunks c ON c.budget_id = a.budget_id AND c.starts_at = a.starts_at AND c.state <> 'folded' GROUP BY a.budget_id, a.starts_at, a.held_pico HAVING a.held_pico <> coalesce(sum(c.drawn_pico), 0)`},
		{"I11 a budget does not have what its runs' calls cost", `SELECT s.budget_id, s.committed_pico::text, h.cost::text FROM budget_standing s,
			(SELECT coalesce(sum(settled_pico), 0) AS cost FROM holds) h WHERE s.committed_pico <> h.cost`},
		{"I11 less was charged, or is held, than the model billed", `SELECT a.run, sum(a.pico)::text, r.committed::text FROM asked a
			JOIN (SELECT run_id::text AS run, sum(CASE state WHEN 'open' THEN amount_pico ELSE settled_pico END) AS committed FROM holds GROUP BY 1) r USING (run) GROUP BY a.run, r.committed HAVING sum(a.pico) > r.committed`},
	}
}

// ofRuns are those about how runs end, where they are kept, and how urgent they are.
func ofRuns() []invariant {
	return []invariant{
		{"I12 something started after an acknowledged cancel", `SELECT e.run_id::text, e.seq::text, e.kind, e.at::text, a.cancelled::text FROM events e JOIN acked a ON a.run = e.run_id::text
			WHERE a.cancelled IS NOT NULL AND e.at > a.cancelled AND e.kind IN ('model_started', 'call_started', 'call_handed_out')`},
		{"I12 something started after the cancel in the journal", `SELECT e.run_id::text, e.seq::text, e.kind FROM events e JOIN events c USING (tenant_id, run_id)
			WHERE c.kind = 'cancel_requested' AND e.seq > c.seq AND e.kind IN ('model_started', 'call_started', 'call_handed_out')`},
		{"I12 an acknowledged cancel was lost", `SELECT a.run, r.state FROM acked a JOIN runs r ON r.run_id::text = a.run WHERE a.cancelled IS NOT NULL AND r.state <> 'CANCELLED' AND a.cancelled < r.ended_at - interval '1 s'`},
		{"I12 twins: one run made the same effect twice", `SELECT run, n, count(DISTINCT call)::text FROM led WHERE risky AND applied GROUP BY 1, 2 HAVING count(DISTINCT call) > 1`},
		{"I15 finished is not the last event, once", `SELECT r.run_id::text, r.state, count(e.*)::text FROM runs r LEFT JOIN events e ON e.run_id = r.run_id AND e.kind = 'finished'
			GROUP BY r.run_id, r.state, r.next_seq, r.ended_at HAVING (r.ended_at IS NOT NULL)::int <> count(e.*) OR max(e.seq) <> r.next_seq - 1`},
		{"I15 the head and the journal end differently", `SELECT r.run_id::text, r.state, e.body ->> 'state' FROM runs r JOIN events e ON e.run_id = r.run_id AND e.kind = 'finished' WHERE r.state <> e.body ->> 'state'`},
		{"P2 one call has two child runs", `SELECT parent_run_id::text, parent_call_id, count(*)::text FROM runs WHERE depth > 0 GROUP BY 1, 2 HAVING count(*) > 1`},
		{"P3 rows of a run that does not exist", `SELECT o.kept, o.run_id::text, count(*)::text FROM (SELECT 'events' AS kept, tenant_id, run_id FROM events UNION ALL SELECT 'results', tenant_id, run_id FROM results
				UNION ALL SELECT 'attachments', tenant_id, run_id FROM attachments UNION ALL SELECT 'tool_calls', tenant_id, run_id FROM tool_calls UNION ALL SELECT 'holds', tenant_id, run_id FROM holds
				UNION ALL SELECT 'chunks', tenant_id, run_id FROM chunks UNION ALL SELECT 'run_signals', tenant_id, run_id FROM run_signals
				UNION ALL SELECT 'accounts', tenant_id, substr(account, 5)::uuid FROM accounts WHERE account LIKE 'run:%') o
			WHERE NOT EXISTS (SELECT FROM runs r WHERE r.tenant_id = o.tenant_id AND r.run_id = o.run_id) GROUP BY 1, 2`},
		{"P3 a journal is where no partition was made for it", `SELECT 'events', run_id::text FROM events_default UNION SELECT 'results', run_id::text FROM results_default
			UNION SELECT 'attachments', run_id::text FROM attachments_default`},
		{"P3 a child's journal is in another partition than its root's", `SELECT r.root_run_id::text, r.run_id::text, c.tableoid::regclass::text FROM runs r
			JOIN events c ON c.tenant_id = r.tenant_id AND c.run_id = r.run_id AND c.seq = 1 JOIN events p ON p.tenant_id = r.tenant_id AND p.run_id = r.root_run_id AND p.seq = 1
			WHERE r.root_run_id IS NOT NULL AND c.tableoid <> p.tableoid`},
		{"P4 a run is not as urgent as its client asked for", `SELECT a.tag, a.run, a.priority::text, r.priority::text FROM acked a JOIN runs r ON r.run_id::text = a.run WHERE a.priority <> r.priority`},
		{"P4 a child is not as urgent as its parent", `SELECT c.run_id::text, c.priority::text, p.priority::text FROM runs c JOIN runs p ON p.tenant_id = c.tenant_id AND p.run_id = c.parent_run_id WHERE c.priority <> p.priority`},
		{"P5 something was deleted, though all is kept for ever", `SELECT tenant_id, day::text, agent, model_calls::text FROM usage_deleted`},
	}
}

// check judges the database and the ledgers. Each violation is one line, with the
// rows that violate.
func (w *world) check(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := w.importLedgers(ctx); err != nil {
		return nil, err
	}
	var violations []string
	for _, r := range w.replicas {
		r.mu.Lock()
		violations = append(violations, r.faults...)
		r.mu.Unlock()
	}
	found, err := judge(ctx, w.db, invariants())
	if err != nil {
		return nil, err
	}
	unordered, err := w.judgeRegisters(ctx)
	return slices.Concat(violations, found, unordered), err
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// judge asks for the rows that break an invariant.
func judge(ctx context.Context, db querier, all []invariant) ([]string, error) {
	var violations []string
	for _, i := range all {
		rows, err := db.Query(ctx, i.query)
		if err != nil {
			return nil, fmt.Errorf("check %q: %w", i.name, err)
		}
		for n := 0; rows.Next(); n++ {
			values, err := rows.Values()
			if err != nil {
				return nil, fmt.Errorf("check %q: %w", i.name, err)
			}
			if n < 20 { // the rest says the same
				violations = append(violations, fmt.Sprint(i.name, ": ", values))
			}
		}
		if err := rows.Err(); err != nil {
			return nil, fmt.Errorf("check %q: %w", i.name, err)
		}
	}
	return violations, nil
}

// witnesses are the tables of what others than loopd wrote down.
const witnesses = `
	CREATE TABLE led (tool text, run text, call text, attempt int, key text, n text, applied boolean, risky boolean, intent text);
	CREATE TABLE asked (run text, tag text, fault text, pico numeric);
	CREATE TABLE acked (tag text, run text, cancelled timestamptz, priority int);
	CREATE TABLE watched (run text, kinds text, seen int, ended boolean, fault text);
	CREATE TABLE approved (call text, hash text);
	CREATE TABLE answered (key text, attempt int, at timestamptz);
	CREATE TABLE faults (kind text, began timestamptz, ended timestamptz)`

// importLedgers puts what the other witnesses wrote beside the tables of loopd.
func (w *world) importLedgers(ctx context.Context) error {
	if _, err := w.db.Exec(ctx, witnesses); err != nil {
		return fmt.Errorf("import the ledgers: %w", err)
	}
	lines := &pgx.Batch{}
	insert := func(query string, args ...any) { lines.Queue(query, args...) }
	for _, d := range w.tools.ledger.all() {
		insert(`INSERT INTO led VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`, d.Tool, d.Run, d.Call, d.Attempt, d.Key, d.N, d.Applied, risky(d.Tool), d.Intent)
	}
	for _, a := range w.tools.answered() {
		insert(`INSERT INTO answered VALUES ($1, $2, $3)`, a.key, a.attempt, a.at)
	}
	for _, f := range w.breaker.windows {
		insert(`INSERT INTO faults VALUES ($1, $2, $3)`, f.kind, f.began, f.ended)
	}
	for _, a := range w.model.ledger.all() {
		// gpt-4.1-mini, USD per million tokens: 0.40 in, 1.60 out; so 1e-12 USD per token is 400,000 and 1,600,000.
		insert(`INSERT INTO asked VALUES ($1, $2, $3, $4)`, a.Run, a.Tag, a.Fault, a.In*400_000+a.Out*1_600_000)
	}
	for _, c := range w.client.history() {
		for name := range c.names {
			var cancelled *time.Time
			if !c.cancelled.IsZero() {
				cancelled = &c.cancelled
			}
			insert(`INSERT INTO acked VALUES ($1, $2, $3, $4)`, c.key, name[len("runs/"):], cancelled, headStarts(c.priority))
		}
	}
	for _, seen := range w.client.watched {
		insert(`INSERT INTO watched VALUES ($1, $2, $3, $4, $5)`, seen.run, strings.Join(seen.kinds, " "), len(seen.kinds), seen.ended, seen.fault)
	}
	for call, hash := range w.client.approved {
		insert(`INSERT INTO approved VALUES ($1, $2)`, call, hash)
	}
	if err := w.db.SendBatch(ctx, lines).Close(); err != nil {
		return fmt.Errorf("import the ledgers: %w", err)
	}
	return nil
}
