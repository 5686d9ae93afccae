package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/pressly/goose/v3"

	"github.com/loopd/loopd/internal/loop"
)

// keepDays is what the tests' operator says.
const keepDays = 30 * 24 * time.Hour

// runTables are all tables with rows of a run.
func runTables() []string {
	return []string{"runs", "events", "results", "attachments", "tool_calls", "holds", "chunks", "run_signals", "trip_reports"}
}

func retention(t *testing.T, s *Store, cfg RetentionConfig) *Retention {
	t.Helper()
	r, err := NewRetention(s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func pass(t *testing.T, r *Retention) Passed {
	t.Helper()
	p, err := r.Pass(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// weekOf names a run that was created so long ago, in a partition of its week.
func weekOf(t *testing.T, s *Store, ago time.Duration) loop.RunRef {
	t.Helper()
	at := time.Now().Add(-ago)
	execAll(t, s, fmt.Sprintf(`SELECT make_journal_partition(w.suffix, run_id_at(w.since), run_id_at(w.until)) FROM
		(SELECT to_char(date_trunc('week', at, 'UTC'), 'YYYYMMDD') AS suffix, date_trunc('week', at, 'UTC') AS since,
		        date_trunc('week', at, 'UTC') + interval '7 days' AS until FROM (SELECT '%s'::timestamptz AS at) a) w
		WHERE NOT EXISTS (SELECT FROM journal_partitions p WHERE p.suffix = w.suffix)`, at.Format(time.RFC3339)),
		fmt.Sprintf(`INSERT INTO journal_partitions SELECT to_char(w, 'YYYYMMDD'), run_id_at(w), run_id_at(w + interval '7 days'), w + interval '7 days'
		FROM date_trunc('week', '%s'::timestamptz, 'UTC') w ON CONFLICT DO NOTHING`, at.Format(time.RFC3339)))
	id := uuid.Must(uuid.NewV7())
	ms := uint64(at.UnixMilli())
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	return loop.RunRef{Tenant: tenant, ID: id.String()}
}

// weeks makes room before the first partition, which else has all that is older.
func weeks(t *testing.T, s *Store) {
	t.Helper()
	execAll(t, s,
		"ALTER TABLE events DETACH PARTITION events_first", "ALTER TABLE results DETACH PARTITION results_first",
		"ALTER TABLE attachments DETACH PARTITION attachments_first", "DELETE FROM journal_partitions WHERE suffix = 'first'")
}

func execAll(t *testing.T, s *Store, queries ...string) {
	t.Helper()
	for _, query := range queries {
		if _, err := s.pool.Exec(t.Context(), query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
}

// ended creates a run of an agent that ended so long ago.
func ended(t *testing.T, s *Store, ref loop.RunRef, agent string, ago time.Duration) loop.RunRef {
	t.Helper()
	sp := spec()
	sp.Agent = agent
	idem := Idempotency{Method: "CreateRun", Key: ref.ID, Fingerprint: []byte("f")}
	if _, _, err := s.CreateRun(t.Context(), ref, sp, idem); err != nil {
		t.Fatal(err)
	}
	finish(t, s, ref)
	endedAgo(t, s, ref, ago)
	return ref
}

func endedAgo(t *testing.T, s *Store, ref loop.RunRef, ago time.Duration) {
	t.Helper()
	execAll(t, s, fmt.Sprintf("UPDATE runs SET ended_at = now() - interval '%d seconds' WHERE run_id = '%s'", int64(ago.Seconds()), ref.ID),
		"UPDATE idempotency SET created_at = now() - interval '25 hours'")
}

// rowsOf counts what there is of a run.
func rowsOf(t *testing.T, s *Store, ref loop.RunRef) (n int) {
	t.Helper()
	for _, table := range runTables() {
		n += scalar[int](t, s, fmt.Sprintf("SELECT count(*) FROM %s WHERE run_id = '%s'", table, ref.ID))
	}
	return n + scalar[int](t, s, fmt.Sprintf("SELECT count(*) FROM accounts WHERE account = 'run:%s'", ref.ID)) +
		scalar[int](t, s, fmt.Sprintf("SELECT count(*) FROM idempotency WHERE resource = '%s'", ref.ID))
}

func TestRunsAreDeletedWhenTheyWereKeptForLongEnough(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	const day = 24 * time.Hour
	old := ended(t, s, newRef(), "agents/support", keepDays+time.Hour)
	young := ended(t, s, newRef(), "agents/support", keepDays-time.Hour)
	short := ended(t, s, newRef(), "agents/private", 2*day)
	long := ended(t, s, newRef(), "agents/legal", 100*day)
	live := create(t, s)
	for _, rule := range []KeepRule{{Agent: "agents/private", Keep: day, By: "alice"}, {Agent: "agents/legal"}} {
		if _, err := s.SetKeepRule(t.Context(), tenant, rule, Idempotency{}); err != nil {
			t.Fatal(err)
		}
	}
	r := retention(t, s, RetentionConfig{Keep: keepDays})

	if got, want := pass(t, r), (Passed{Runs: 2, Keys: 2}); got != want {
		t.Errorf("the pass did %+v, want %+v", got, want)
	}

	for name, run := range map[string]loop.RunRef{"old": old, "of an agent that keeps less": short} {
		if n := rowsOf(t, s, run); n != 0 {
			t.Errorf("%d rows are left of the run that is %s", n, name)
		}
	}
	for name, run := range map[string]loop.RunRef{"young": young, "of an agent that keeps all": long, "live": live} {
		if lastSeq(t, s, run) < 1 || rowsOf(t, s, run) < 3 {
			t.Errorf("the run that is %s lost something", name)
		}
	}
	if got := pass(t, r); got != (Passed{}) {
		t.Errorf("a second pass did %+v", got)
	}
}

func TestNothingIsDeletedUnlessSomebodySaysSo(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ended(t, s, newRef(), "agents/support", 10000*time.Hour)

	if got := pass(t, retention(t, s, RetentionConfig{})); got != (Passed{}) {
		t.Errorf("the pass did %+v", got)
	}
	if _, err := NewRetention(s, RetentionConfig{Keep: time.Minute}); err == nil {
		t.Error("runs may be kept for a minute")
	}
}

func TestATreeIsKeptAsLongAsOneOfItsRuns(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	parent := create(t, s)
	lease := claimOne(t, s, "w1")
	child := childOf(parent, "c1-1")
	mustAppend(t, s, lease, handOut(lease, 2, child))
	childRef := loop.RunRef{Tenant: tenant, ID: child.ID}
	stop := loop.Stop{Reason: loop.Completed}
	b := batch(lease, 3, loop.Finished{State: loop.StateSucceeded, Stop: stop})
	b.Head = loop.Head{State: loop.StateSucceeded, EndedAt: at(9), Stop: &stop}
	mustAppend(t, s, lease, b)
	endedAgo(t, s, parent, 2*keepDays)
	r := retention(t, s, RetentionConfig{Keep: keepDays})

	pass(t, r)
	if rowsOf(t, s, parent) == 0 {
		t.Fatal("the parent of a live run was deleted")
	}
	finish(t, s, childRef)
	endedAgo(t, s, childRef, keepDays/2)
	pass(t, r)
	if rowsOf(t, s, parent) == 0 || rowsOf(t, s, childRef) == 0 {
		t.Fatal("the parent of a run that is kept was deleted")
	}
	endedAgo(t, s, childRef, keepDays+time.Hour)
	if got := pass(t, r); got.Runs != 2 {
		t.Errorf("the pass deleted %d runs, want the whole tree", got.Runs)
	}
}

func TestDeletedRunsStayInTheSums(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	budgetIn(t, s, "monthly", WindowMonth, loop.MilliUSD*1000, BudgetScope{})
	run := create(t, s)
	lease := claimOne(t, s, "w1")
	if _, err := s.Draw(t.Context(), lease, need(3*loop.MilliUSD)); err != nil {
		t.Fatal(err)
	}
	spend(t, s, lease, 2*loop.MilliUSD)
	endedAgo(t, s, run, 2*keepDays)
	before := scalar[int64](t, s, "SELECT committed_pico FROM budget_standing")

	if got := pass(t, retention(t, s, RetentionConfig{Keep: keepDays})); got.Runs != 1 {
		t.Fatalf("the pass did %+v", got)
	}

	if after := scalar[int64](t, s, "SELECT committed_pico FROM budget_standing"); after != before || before == 0 {
		t.Errorf("the budget says %d were spent, before %d", after, before)
	}
	deleted, err := s.DeletedUsage(t.Context(), tenant, UsageQuery{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Hour), Agent: "agents/support"})
	if diff := cmp.Diff(DeletedUsage{ModelCalls: 1, Cost: "0.002"}, deleted); diff != "" || err != nil {
		t.Errorf("the usage of deleted runs: %v\n%s", err, diff)
	}
}

// spend makes a model call and ends the run.
func spend(t *testing.T, s *Store, lease loop.Lease, cost loop.USD) {
	t.Helper()
	mustAppend(t, s, lease, batch(lease, 2, loop.ModelStarted{Call: 1, Model: "scripted/demo", Hold: cost}))
	stop := loop.Stop{Reason: loop.Completed}
	b := batch(lease, 3, loop.ModelFailed{Call: 1, Class: loop.ErrorServer, Cost: loop.Cost{Output: cost}}, loop.Finished{State: loop.StateSucceeded, Stop: stop})
	b.Head = loop.Head{State: loop.StateSucceeded, EndedAt: at(9), Stop: &stop}
	mustAppend(t, s, lease, b)
}

func TestARunIsKeptWhenItsExportFails(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	good := ended(t, s, newRef(), "agents/support", 2*keepDays)
	bad := ended(t, s, newRef(), "agents/support", 2*keepDays)
	var exported []string
	export := func(_ context.Context, run loop.RunRef) error {
		if run == bad {
			return errors.New("the disk is full")
		}
		exported = append(exported, run.ID)
		return nil
	}

	got := pass(t, retention(t, s, RetentionConfig{Keep: keepDays, Export: export}))

	if got.Runs != 1 || got.NotExported != 1 || !cmp.Equal(exported, []string{good.ID}) {
		t.Errorf("the pass did %+v and exported %v", got, exported)
	}
	if rowsOf(t, s, bad) == 0 || rowsOf(t, s, good) != 0 {
		t.Error("not the run that was exported is gone")
	}
}

func TestAWeekIsDroppedWhenNobodyNeedsIt(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	weeks(t, s)
	const week = 7 * 24 * time.Hour
	over := ended(t, s, weekOf(t, s, keepDays+3*week), "agents/support", keepDays+2*week)
	kept := ended(t, s, weekOf(t, s, keepDays+5*week), "agents/support", keepDays+4*week)
	live := weekOf(t, s, keepDays+5*week)
	if _, _, err := s.CreateRun(t.Context(), live, spec(), Idempotency{}); err != nil {
		t.Fatal(err)
	}
	waiting := ended(t, s, weekOf(t, s, keepDays+2*time.Hour), "agents/support", keepDays+time.Hour)
	young := ended(t, s, weekOf(t, s, keepDays+2*time.Hour), "agents/support", keepDays-time.Hour) // their week may be dropped tomorrow

	got := pass(t, retention(t, s, RetentionConfig{Keep: keepDays}))

	if got.Dropped != 1 || got.Runs != 2 {
		t.Errorf("the pass did %+v, want one week dropped and two runs deleted", got)
	}
	for name, run := range map[string]loop.RunRef{"of the dropped week": over, "beside a live one": kept} {
		if n := rowsOf(t, s, run); n != 0 {
			t.Errorf("%d rows are left of the run %s", n, name)
		}
	}
	if lastSeq(t, s, live) != 1 {
		t.Error("the live run lost its journal")
	}
	if lastSeq(t, s, waiting) < 2 || lastSeq(t, s, young) < 2 {
		t.Error("a run was deleted although its week may be dropped soon")
	}
}

func TestPartitionsAreMadeAhead(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	if n := scalar[int](t, s, "SELECT count(*) FROM events_first"); n != 1 {
		t.Errorf("%d events are in the first partition", n)
	}
	far := loop.RunRef{Tenant: tenant}
	last := scalar[string](t, s, "SELECT max(suffix) FROM journal_partitions WHERE suffix <> 'first'")
	for _, table := range []string{"events", "results", "attachments"} {
		execAll(t, s, fmt.Sprintf("DROP TABLE %s_%s", table, last))
	}
	execAll(t, s, fmt.Sprintf("DELETE FROM journal_partitions WHERE suffix = '%s'", last))
	far.ID = scalar[string](t, s, fmt.Sprintf("SELECT run_id_at('%s'::timestamptz + interval '1 day')::text", last))
	if _, _, err := s.CreateRun(t.Context(), far, spec(), Idempotency{}); err != nil {
		t.Fatal(err)
	}
	if n := scalar[int](t, s, "SELECT count(*) FROM events_default"); n != 1 {
		t.Fatalf("%d events are in the default partition, want that without a week", n)
	}

	got := pass(t, retention(t, s, RetentionConfig{}))

	if got.Made != 1 || scalar[int](t, s, "SELECT count(*) FROM events_"+last) != 1 || scalar[int](t, s, "SELECT count(*) FROM events_default") != 0 {
		t.Errorf("the pass did %+v, and the event has not moved to its week", got)
	}
	for _, run := range []loop.RunRef{ref, far} {
		if lastSeq(t, s, run) != 1 {
			t.Errorf("run %s has no journal", run.ID)
		}
	}
}

func TestPartitionsAreAppendOnly(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	weeks(t, s)
	ref := ended(t, s, weekOf(t, s, time.Hour), "agents/support", time.Hour)
	part := scalar[string](t, s, "SELECT tableoid::regclass::text FROM events WHERE run_id = '"+ref.ID+"' LIMIT 1")
	for _, query := range []string{
		"UPDATE events SET kind = 'x'", "DELETE FROM events", "TRUNCATE events", "UPDATE " + part + " SET kind = 'x'", "DELETE FROM " + part,
		"TRUNCATE " + part, "TRUNCATE events_default", "TRUNCATE results_first", "SELECT drop_journal_partition('first')",
	} {
		if _, err := s.pool.Exec(t.Context(), query); sqlState(err) != "23001" {
			t.Errorf("%s: %v, want a refusal", query, err)
		}
	}
}

func TestKeepRules(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ended(t, s, newRef(), "agents/support", 3*time.Hour)
	set := func(rule KeepRule) {
		t.Helper()
		if _, err := s.SetKeepRule(t.Context(), tenant, rule, Idempotency{}); err != nil {
			t.Fatal(err)
		}
	}
	set(KeepRule{Agent: "agents/support", By: "alice"})
	set(KeepRule{Agent: "agents/support", Keep: 2 * time.Hour, By: "bob"})
	set(KeepRule{Keep: 0, By: "carol"})

	rules, err := s.KeepRules(t.Context(), tenant)
	if err != nil {
		t.Fatal(err)
	}
	for i := range rules {
		rules[i].At = time.Time{}
	}
	if diff := cmp.Diff([]KeepRule{{By: "carol"}, {Agent: "agents/support", Keep: 2 * time.Hour, By: "bob"}}, rules); diff != "" {
		t.Error(diff)
	}
	expired := func() int64 {
		t.Helper()
		kept, err := s.KeptRuns(t.Context(), tenant, time.Hour)
		if err != nil || len(kept) != 1 || kept[0].Ended != 1 {
			t.Fatalf("kept: %+v, %v", kept, err)
		}
		return kept[0].Expired
	}
	if expired() != 1 {
		t.Error("the agent's rule does not hold")
	}
	if _, err := s.UnsetKeepRule(t.Context(), tenant, "agents/support", Idempotency{}); err != nil {
		t.Fatal(err)
	}
	if expired() != 0 {
		t.Error("the tenant's rule does not hold")
	}
	if _, err := s.UnsetKeepRule(t.Context(), tenant, "", Idempotency{}); err != nil {
		t.Fatal(err)
	}
	if expired() != 1 {
		t.Error("the operator's default does not hold")
	}
}

// The journals that there are stay where they are; those of child runs whose ids said
// nothing of the time move.
func TestOldJournalsBecomeTheFirstPartition(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	err := withProvider(url, func(p *goose.Provider) error {
		_, err := p.UpTo(t.Context(), 11)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s := openURL(t, Config{URL: url})
	alter := func(how string) {
		t.Helper()
		if _, err := s.pool.Exec(t.Context(), "ALTER TABLE runs "+how); err != nil {
			t.Fatal(err)
		}
	}
	alter("ADD COLUMN priority smallint NOT NULL DEFAULT 0") // which this store writes, and a later migration adds
	run, child := newRef(), loop.RunRef{Tenant: tenant, ID: "9f3c62aa-52d5-8b7e-8d51-3f2f60a3a9c1"}
	for _, ref := range []loop.RunRef{run, child} {
		sp := spec()
		sp.Attachments = []loop.Part{{Kind: loop.PartImage, Media: &loop.Media{Type: "image/png", Data: []byte("png")}}}
		if _, _, err := s.CreateRun(t.Context(), ref, sp, Idempotency{}); err != nil {
			t.Fatal(err)
		}
	}
	file := scalar[uint32](t, s, "SELECT relfilenode FROM pg_class WHERE oid = 'events'::regclass")

	alter("DROP COLUMN priority")
	if err := Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}

	// The connections that knew the tables before go on.
	for _, ref := range []loop.RunRef{run, child} {
		if lastSeq(t, s, ref) != 1 {
			t.Errorf("run %s has no journal", ref.ID)
		}
		if spec, err := s.GetSpec(t.Context(), ref); err != nil || string(spec.Attachments[0].Media.Data) != "png" {
			t.Errorf("run %s has no attachment: %v", ref.ID, err)
		}
		finish(t, s, ref)
	}
	if after := scalar[uint32](t, s, "SELECT relfilenode FROM pg_class WHERE oid = 'events_first'::regclass"); after != file {
		t.Error("the table was copied")
	}
	if part := scalar[string](t, s, "SELECT DISTINCT tableoid::regclass::text FROM events WHERE run_id = $1", child.ID); part != "events_other" {
		t.Errorf("the child's journal is in %s", part)
	}
	if n := scalar[int](t, s, "SELECT count(*) FROM transcript"); n < 2 {
		t.Errorf("the view shows %d lines", n)
	}
}
