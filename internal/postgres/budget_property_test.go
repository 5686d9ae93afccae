package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	"github.com/loopd/loopd/internal/loop"
)

// TestBudgetsAreNeverOvershot lives random runs under random budgets, on a real database:
// draws, holds, settlements (also above their holds), lost workers, waits, ends, new
// windows, new budgets in the middle of calls, raises and cuts. After every operation, in
// one snapshot, each account must be within its limit, and must know exactly what the
// calls of its runs cost. The truth is in the table of holds, which no budget touches.
func TestBudgetsAreNeverOvershot(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	tried := map[string]int{}
	live := func(t *rapid.T) {
		w := &moneyWorld{t: t, s: s, ctx: context.Background(), tenant: uuid.NewString(), tried: tried, excused: map[string]bool{}, zone: noonZone(), honest: rapid.IntRange(0, 2).Draw(t, "honest") > 0}
		w.newBudget()
		w.newRun()
		t.Repeat(map[string]func(*rapid.T){
			"":              func(*rapid.T) { w.check() },
			"new run":       func(*rapid.T) { w.newRun() },
			"new budget":    func(*rapid.T) { w.newBudget() },
			"draw":          func(*rapid.T) { w.draw() },
			"draw again":    func(*rapid.T) { w.draw() },
			"hold":          func(*rapid.T) { w.hold() },
			"hold again":    func(*rapid.T) { w.hold() },
			"settle":        func(*rapid.T) { w.settle() },
			"settle again":  func(*rapid.T) { w.settle() },
			"lose a worker": func(*rapid.T) { w.lose() },
			"suspend":       func(*rapid.T) { w.suspend() },
			"end":           func(*rapid.T) { w.end() },
			"next window":   func(*rapid.T) { w.nextWindow() },
			"change amount": func(*rapid.T) { w.changeAmount() },
			"archive":       func(*rapid.T) { w.archive() },
		})
	}
	rapid.Check(t, live)
	// The rarest of these come up in one life of a hundred, so a hundred lives may miss
	// them: chance gets more goes.
	untried := func(what string) bool { return tried[what] == 0 }
	for range 5 {
		if !slices.ContainsFunc(moneyTries, untried) {
			break
		}
		rapid.Check(t, live)
	}
	t.Logf("tried: %v", tried)
	for _, what := range moneyTries {
		if untried(what) {
			t.Errorf("nothing was %s: the test does not try what it promises", what)
		}
	}
}

// moneyTries must come up in some life.
var moneyTries = []string{"drawn", "enough", "refused", "above hold", "uncounted", "new window", "lost", "cut", "late budget"}

// moneyWorld is one tenant.
type moneyWorld struct {
	t       *rapid.T
	s       *Store
	ctx     context.Context
	tenant  string
	runs    []*moneyRun
	budgets []*Budget
	zone    string          // in which it is about noon
	honest  bool            // providers never charge more than a hold
	windows int             // that are over
	excused map[string]bool // accounts that may be above their limit, by budget
	tried   map[string]int

	silentRuns  []string // with silentCalls: sent before their run heard of some budget
	silentCalls []int32
}

// noonZone is a time zone in which no window with an end is over during the test.
func noonZone() string {
	east := 12 - time.Now().UTC().Hour()
	return fmt.Sprintf("Etc/GMT%+d", -east)
}

type moneyRun struct {
	lease  loop.Lease
	agent  string
	labels map[string]string
	seq    int64 // next
	call   int   // newest
	open   loop.USD
	busy   bool     // a call is in flight
	drawn  loop.USD // may be held now; -1: it must draw first
	silent bool     // its newest draw or call came before some budget
	ended  bool
}

func (w *moneyWorld) no(err error, attempted string) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("%s: %v", attempted, err)
	}
}

func (w *moneyWorld) amount(most loop.USD) loop.USD {
	return loop.USD(rapid.Int64Range(0, int64(most/loop.MilliUSD)).Draw(w.t, "amount")) * loop.MilliUSD
}

// pick is one of the runs that pass, or nil.
func (w *moneyWorld) pick(passes func(*moneyRun) bool) *moneyRun {
	var some []*moneyRun
	for _, r := range w.runs {
		if !r.ended && passes(r) {
			some = append(some, r)
		}
	}
	if len(some) == 0 {
		return nil
	}
	return rapid.SampledFrom(some).Draw(w.t, "run")
}

func (w *moneyWorld) newRun() {
	if len(w.runs) > 8 {
		return
	}
	r := &moneyRun{
		agent: rapid.SampledFrom([]string{"agents/a", "agents/b"}).Draw(w.t, "agent"), seq: 2, drawn: -1,
		labels: map[string]string{"team": rapid.SampledFrom([]string{"care", "sales"}).Draw(w.t, "team")},
	}
	spec := spec()
	spec.Agent, spec.Labels, spec.Limits.Cost = r.agent, r.labels, 1000*loop.OneUSD
	r.lease.Run = loop.RunRef{Tenant: w.tenant, ID: uuid.Must(uuid.NewV7()).String()}
	_, _, err := w.s.CreateRun(w.ctx, r.lease.Run, spec, Idempotency{})
	w.no(err, "create a run")
	w.runs = append(w.runs, r)
	w.claim(r)
}

// claim gives the run to a worker of its own, so that tenants do not meet.
func (w *moneyWorld) claim(r *moneyRun) {
	r.lease.Owner = uuid.NewString()
	w.no(w.s.Renew(w.ctx, r.lease.Owner, time.Hour), "renew")
	err := w.s.pool.QueryRow(w.ctx, `UPDATE runs SET lease_owner = $3, lease_epoch = lease_epoch + 1
		WHERE tenant_id = $1 AND run_id = $2 RETURNING lease_epoch`, w.tenant, r.lease.Run.ID, r.lease.Owner).Scan(&r.lease.Epoch)
	w.no(err, "claim")
	r.drawn = -1
}

func (w *moneyWorld) append(r *moneyRun, body loop.Body, state loop.RunState, release bool) error {
	b := batch(r.lease, r.seq, body)
	b.Head.State, b.Release = state, release
	if state.Terminal() {
		b.Head.Stop, b.Head.EndedAt = &loop.Stop{Reason: loop.Completed}, at(60)
	}
	err := w.s.Append(w.ctx, r.lease, b)
	if err == nil {
		r.seq++
	}
	return err
}

func (w *moneyWorld) newBudget() {
	if len(w.budgets) > 4 {
		return
	}
	b := Budget{
		Name: fmt.Sprintf("b%d", len(w.budgets)), TimeZone: w.zone,
		Window: rapid.SampledFrom([]BudgetWindow{WindowDay, WindowMonth, WindowTotal}).Draw(w.t, "window"), Amount: w.amount(2 * loop.OneUSD),
		Act:   rapid.SampledFrom([]loop.Verdict{loop.VerdictFinalTurn, loop.VerdictPause, loop.VerdictStop}).Draw(w.t, "act"),
		Scope: rapid.SampledFrom([]BudgetScope{{}, {Agent: "agents/a"}, {LabelKey: "team", LabelValue: "care"}}).Draw(w.t, "scope"),
	}
	_, err := w.s.CreateBudget(w.ctx, w.tenant, b, BudgetAuthor{}, Idempotency{})
	w.no(err, "create a budget")
	w.budgets = append(w.budgets, &b)
	for _, r := range w.runs {
		if !b.Scope.Binds(r.agent, r.labels) || r.ended {
			continue
		}
		if r.busy {
			w.tried["late budget"]++
		}
		if r.drawn >= 0 { // what it is about to hold was drawn without this budget
			r.silent, w.excused[b.Name] = true, true
		}
	}
	if spent := w.standing(b.Name); spent > b.Amount {
		w.excused[b.Name] = true
	}
}

func (w *moneyWorld) draw() {
	r := w.pick(func(r *moneyRun) bool { return !r.busy })
	if r == nil {
		return
	}
	need := w.amount(loop.OneUSD / 2)
	before := w.metric("enough")
	refused, err := w.s.Draw(w.ctx, r.lease, loop.AccountNeed{Agent: r.agent, Labels: r.labels, Amount: need})
	w.no(err, "draw")
	r.silent = false
	switch {
	case refused == nil && w.metric("enough") > before:
		w.tried["enough"]++
	case refused == nil:
		w.tried["drawn"]++
	}
	if refused == nil {
		r.drawn = need
		return
	}
	w.tried["refused"]++
	r.drawn = -1
	for _, b := range w.budgets {
		if budgetRef(b.Name) != refused.Budget {
			continue
		}
		if refused.Limit != b.Amount || refused.Needed != need || refused.Act != b.Act || refused.ResetAt.IsZero() != (b.Window == WindowTotal) {
			w.t.Fatalf("refusal %+v of %+v to a draw of %s", refused, b, need)
		}
		if refused.Committed+need <= b.Amount {
			w.t.Fatalf("%s was refused although it fits: %+v", need, refused)
		}
		if all := w.standing(b.Name) - w.room(r, b.Name); refused.Committed != all {
			w.t.Fatalf("refused at %s USD, but %s are spent and held besides what the run has", refused.Committed, all)
		}
	}
}

// metric counts draws that asked for nothing.
func (w *moneyWorld) metric(outcome string) float64 {
	return testutil.ToFloat64(w.s.metrics.draws.WithLabelValues(outcome))
}

// room is what the run has drawn of a budget and may still hold.
func (w *moneyWorld) room(r *moneyRun, budget string) loop.USD {
	var room int64
	err := w.s.pool.QueryRow(w.ctx, `SELECT coalesce(sum(greatest(c.drawn_pico - c.spent_pico, 0)), 0) FROM chunks c
		JOIN budget_accounts a USING (tenant_id, budget_id, starts_at)
		WHERE tenant_id = $1 AND run_id = $2 AND budget_id = $3 AND (a.ends_at IS NULL OR a.ends_at > now()) AND c.state IN ('open', 'short')`,
		w.tenant, r.lease.Run.ID, budget).Scan(&room)
	w.no(err, "read what the run has drawn")
	return loop.USD(room)
}

func (w *moneyWorld) hold() {
	r := w.pick(func(r *moneyRun) bool { return !r.busy && r.drawn >= 0 })
	if r == nil {
		return
	}
	hold := w.amount(r.drawn)
	w.no(w.append(r, loop.ModelStarted{Call: r.call + 1, Model: "scripted/demo", Hold: hold}, loop.StateRunning, false), "hold what was drawn")
	r.call, r.open, r.busy, r.drawn = r.call+1, hold, true, -1
	if r.silent {
		w.tried["uncounted"]++
		w.silentRuns, w.silentCalls = append(w.silentRuns, r.lease.Run.ID), append(w.silentCalls, int32(r.call))
	}
}

func (w *moneyWorld) settle() {
	if r := w.pick(func(r *moneyRun) bool { return r.busy }); r != nil {
		cost := w.amount(r.open)
		if !w.honest && rapid.IntRange(0, 2).Draw(w.t, "breach") == 0 {
			cost = r.open + w.amount(loop.OneUSD/4)
			w.tried["above hold"]++
			w.excuse(r)
		}
		w.settleAt(r, cost)
	}
}

func (w *moneyWorld) settleAt(r *moneyRun, cost loop.USD) {
	w.no(w.append(r, loop.ModelFailed{Call: r.call, Class: loop.ErrorServer, Cost: loop.Cost{Output: cost}}, loop.StateRunning, false), "settle")
	r.busy = false
}

// excuse notes that the accounts of a run may be above their limits from now on.
func (w *moneyWorld) excuse(r *moneyRun) {
	for _, b := range w.budgets {
		if b.Scope.Binds(r.agent, r.labels) {
			w.excused[b.Name] = true
		}
	}
}

// lose takes the run from its worker. The next one settles what was in flight at its
// hold, as the core does.
func (w *moneyWorld) lose() {
	r := w.pick(func(*moneyRun) bool { return true })
	if r == nil {
		return
	}
	old := r.lease
	w.claim(r)
	w.tried["lost"]++
	_, err := w.s.Draw(w.ctx, old, loop.AccountNeed{Agent: r.agent, Labels: r.labels, Amount: 1000 * loop.OneUSD})
	if bound := slices.ContainsFunc(w.budgets, func(b *Budget) bool { return b.ArchivedAt.IsZero() && b.Scope.Binds(r.agent, r.labels) }); bound && !errors.Is(err, loop.ErrLeaseLost) {
		w.t.Fatalf("a lost worker draws: %v", err)
	}
	if r.busy {
		w.settleAt(r, r.open)
	}
}

func (w *moneyWorld) suspend() {
	if r := w.pick(func(r *moneyRun) bool { return !r.busy }); r != nil {
		w.no(w.append(r, loop.Suspended{Reason: loop.WaitApproval}, loop.StateRequiresAction, true), "suspend")
		w.claim(r)
	}
}

func (w *moneyWorld) end() {
	r := w.pick(func(r *moneyRun) bool { return !r.busy })
	if r == nil {
		return
	}
	if r.silent { // else its last call might be one that no budget ever heard of
		_, err := w.s.Draw(w.ctx, r.lease, loop.AccountNeed{Agent: r.agent, Labels: r.labels})
		w.no(err, "draw")
	}
	w.no(w.append(r, loop.Finished{State: loop.StateSucceeded}, loop.StateSucceeded, true), "end")
	r.ended = true
}

// nextWindow lets so much time pass that every window with an end is over: by moving
// all that was into the past.
func (w *moneyWorld) nextWindow() {
	if w.windows == 9 || rapid.IntRange(0, 3).Draw(w.t, "window") > 0 {
		return
	}
	w.windows++
	w.tried["new window"]++
	tx, err := w.s.pool.Begin(w.ctx)
	w.no(err, "begin")
	defer tx.Rollback(w.ctx)
	for _, query := range []string{
		`SET LOCAL session_replication_role = replica`, // the keys of chunks move with those of their accounts
		`UPDATE holds SET opened_at = opened_at - interval '1 day' * $2 WHERE tenant_id = $1`,
		`UPDATE budgets SET created_at = created_at - interval '1 day' * $2 WHERE tenant_id = $1`,
		`UPDATE chunks c SET starts_at = c.starts_at - interval '1 day' * $2 FROM budgets b
		 WHERE c.tenant_id = $1 AND b.tenant_id = c.tenant_id AND b.budget_id = c.budget_id AND b.span <> 'TOTAL'`,
		`UPDATE budget_accounts a SET starts_at = a.starts_at - interval '1 day' * $2, ends_at = a.ends_at - interval '1 day' * $2 FROM budgets b
		 WHERE a.tenant_id = $1 AND b.tenant_id = a.tenant_id AND b.budget_id = a.budget_id AND b.span <> 'TOTAL'`,
	} {
		args := []any{w.tenant, 50 << w.windows} // never the same, or windows would meet
		if query[0] == 'S' {
			args = nil
		}
		_, err := tx.Exec(w.ctx, query, args...)
		w.no(err, query)
	}
	w.no(tx.Commit(w.ctx), "commit")
	for _, r := range w.runs { // the engine holds right after it has drawn
		r.drawn = -1
	}
}

func (w *moneyWorld) changeAmount() {
	b := rapid.SampledFrom(w.budgets).Draw(w.t, "budget")
	if !b.ArchivedAt.IsZero() {
		return
	}
	amount := w.amount(2 * loop.OneUSD)
	_, err := w.s.ChangeBudget(w.ctx, w.tenant, b.Name, BudgetAuthor{}, Idempotency{}, func(b Budget) (BudgetTerms, error) {
		b.Amount = amount
		return b.Terms(), nil
	})
	w.no(err, "change the amount")
	if amount < b.Amount {
		w.tried["cut"]++
		w.excused[b.Name] = w.excused[b.Name] || w.standing(b.Name) > amount
	}
	b.Amount = amount
}

func (w *moneyWorld) archive() {
	if len(w.budgets) < 4 { // seldom
		return
	}
	b := rapid.SampledFrom(w.budgets).Draw(w.t, "budget")
	_, err := w.s.ArchiveBudget(w.ctx, w.tenant, b.Name, BudgetAuthor{}, Idempotency{})
	w.no(err, "archive")
	b.ArchivedAt = time.Now()
}

// standing is what is spent and held of a budget in its current window.
func (w *moneyWorld) standing(budget string) loop.USD {
	status, err := w.s.GetBudget(w.ctx, w.tenant, budget)
	w.no(err, "read the budget")
	return status.Current.Committed + status.Current.Held
}

// check compares every account with the truth.
func (w *moneyWorld) check() {
	rows, err := w.s.pool.Query(w.ctx, moneyTruth, w.tenant, w.silentRuns, w.silentCalls)
	w.no(err, "read the accounts")
	defer rows.Close()
	for rows.Next() {
		var budget string
		var limit, excess, folded, drawn, spent, held, settled, uncounted, inFlight, chunks int64
		w.no(rows.Scan(&budget, &limit, &excess, &folded, &drawn, &spent, &held, &settled, &uncounted, &inFlight, &chunks), "scan")
		state := fmt.Sprintf("%s: limit %d, excess %d, folded %d, drawn %d; stands at %d spent, %d held; truly %d settled, %d in flight unheard of, %d in flight; chunks drawn %d",
			budget, limit, excess, folded, drawn, spent, held, settled, uncounted, inFlight, chunks)
		archived := slices.ContainsFunc(w.budgets, func(b *Budget) bool { return b.Name == budget && !b.ArchivedAt.IsZero() })
		switch {
		case !archived && spent != settled+uncounted:
			w.t.Fatalf("the account does not know what was spent: %s", state)
		case !archived && held < inFlight:
			w.t.Fatalf("the account holds less than is in flight: %s", state)
		case drawn != chunks:
			w.t.Fatalf("the account and its chunks differ: %s", state)
		case folded+drawn > limit+excess:
			w.t.Fatalf("more was drawn than there is: %s", state)
		case !archived && !w.excused[budget] && (spent+held > limit || settled+uncounted+inFlight > limit):
			w.t.Fatalf("the budget is overshot: %s", state)
		}
	}
	w.no(rows.Err(), "read the accounts")
}

// moneyTruth reads every account beside the calls of the runs that it binds.
const moneyTruth = `
SELECT a.budget_id, a.limit_pico, a.excess_pico, a.committed_pico, a.held_pico, s.committed_pico, s.held_pico,
       t.settled::bigint, t.uncounted::bigint, t.in_flight::bigint,
       (SELECT coalesce(sum(c.drawn_pico), 0)::bigint FROM chunks c
        WHERE c.tenant_id = a.tenant_id AND c.budget_id = a.budget_id AND c.starts_at = a.starts_at)
FROM budget_accounts a
JOIN budget_standing s USING (tenant_id, budget_id, starts_at)
JOIN budgets b USING (tenant_id, budget_id)
CROSS JOIN LATERAL (
    SELECT coalesce(sum(h.settled_pico), 0) AS settled,
           coalesce(sum(h.amount_pico) FILTER (WHERE h.state = 'open' AND NOT heard.of), 0) AS uncounted,
           coalesce(sum(h.amount_pico) FILTER (WHERE h.state = 'open' AND heard.of), 0) AS in_flight
    FROM holds h JOIN runs r USING (tenant_id, run_id)
    CROSS JOIN LATERAL (SELECT EXISTS (
        SELECT 1 FROM chunks c WHERE c.tenant_id = h.tenant_id AND c.run_id = h.run_id AND c.budget_id = b.budget_id AND c.call = h.call) AS of) heard
    WHERE r.tenant_id = a.tenant_id AND h.opened_at >= a.starts_at AND (a.ends_at IS NULL OR h.opened_at < a.ends_at)
      AND CASE b.scope WHEN 'AGENT' THEN r.agent = b.agent
                       WHEN 'LABEL' THEN r.labels ->> b.label_key = b.label_value ELSE true END
      AND (h.opened_at < b.created_at OR (h.run_id, h.call) NOT IN (SELECT unnest($2::text[])::uuid, unnest($3::integer[]))
        OR EXISTS (SELECT 1 FROM chunks c WHERE c.tenant_id = h.tenant_id AND c.run_id = h.run_id
                   AND c.budget_id = a.budget_id AND c.starts_at = a.starts_at))
) t
WHERE a.tenant_id = $1`
