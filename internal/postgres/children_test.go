package postgres

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/loopd/loopd/internal/loop"
)

// childOf is a child run for a call of the parent.
func childOf(parent loop.RunRef, call string) loop.ChildStart {
	sp := spec()
	sp.Agent, sp.Source, sp.Input = "agents/researcher", "run", hostile
	sp.Limits.Cost = 7 * loop.MilliUSD
	sp.Definition.OutputSchema = []byte(`{"type":"object"}`)
	sp.Attachments = []loop.Part{{Kind: loop.PartImage, Media: &loop.Media{Type: "image/png", Data: []byte("png")}}}
	sp.Parent = &loop.ParentRef{RunID: parent.ID, CallID: call, RootID: parent.ID, Depth: 1}
	return loop.ChildStart{ID: newRef().ID, Spec: sp}
}

// handOut is the batch with which a parent starts child runs.
func handOut(lease loop.Lease, seq int64, children ...loop.ChildStart) Batch {
	b := batch(lease, seq, loop.Suspended{Reason: loop.WaitChild})
	b.Children = children
	return b
}

// claimOf claims all runs that wait and returns the lease of one.
func claimOf(t *testing.T, s *Store, worker string, ref loop.RunRef) loop.Lease {
	t.Helper()
	renew(t, s, worker, time.Minute)
	for _, lease := range claim(t, s, worker, 100) {
		if lease.Run == ref {
			return lease
		}
	}
	t.Fatalf("run %s is not to be claimed", ref.ID)
	return loop.Lease{}
}

func TestParentAndChildTogether(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	parent := create(t, s)
	lease := claimOne(t, s, "w1")
	one, two := childOf(parent, "c1-1"), childOf(parent, "c1-2")
	b := handOut(lease, 2, one, two)
	b.Calls = []loop.CallHead{{
		Call: loop.ToolCall{ID: "c1-1", Name: "researcher"}, State: loop.CallOffered, Attempt: 1, Key: "k", Until: soon(), ChildID: one.ID,
	}}
	mustAppend(t, s, lease, b)
	calls, err := s.ToolCalls(t.Context(), parent)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "tool calls", calls, b.Calls)

	ref := loop.RunRef{Tenant: tenant, ID: one.ID}
	diff(t, "child", getRun(t, s, ref), Run{
		Ref: ref, Agent: "agents/researcher", AgentVersion: 3, Input: hostile, Limits: one.Spec.Limits, Labels: one.Spec.Labels,
		Source: "run", Priority: loop.PriorityNormal, HasOutputSchema: true, LastSeq: 1, Parent: one.Spec.Parent,
		Head: loop.Head{State: loop.StateQueued, Phase: "queue"},
	}, cmpopts.IgnoreFields(Run{}, "CreatedAt"), cmpopts.EquateEmpty())
	if parent := getRun(t, s, parent).Parent; parent != nil {
		t.Errorf("the parent has the parent %+v", parent)
	}
	got, err := s.GetSpec(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "spec of the child", got, one.Spec)
	if limit := scalar[loop.USD](t, s, "SELECT limit_pico FROM accounts WHERE account = 'run:' || $1", one.ID); limit != 7*loop.MilliUSD {
		t.Errorf("the child may spend %s", limit)
	}

	// Children are claimed like all runs.
	childLease := claimOf(t, s, "w2", ref)
	mustAppend(t, s, childLease, batch(childLease, 2, claimed(childLease)))
	lastSeq(t, s, ref)

	var listed []string
	runs, err := s.ListRuns(t.Context(), tenant, RunFilter{Parent: parent.ID}, RunCursor{}, 1)
	for err == nil && len(runs) == 1 {
		listed = append(listed, runs[0].Ref.ID)
		runs, err = s.ListRuns(t.Context(), tenant, RunFilter{Parent: parent.ID}, RunCursor{runs[0].CreatedAt, runs[0].Ref.ID}, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "children", listed, []string{two.ID, one.ID}, cmpopts.SortSlices(func(a, b string) bool { return a < b }))
	for _, test := range []struct {
		filter RunFilter
		want   int
	}{
		{RunFilter{Parent: parent.ID, Agent: "agents/researcher", States: []loop.RunState{loop.StateRunning}}, 2},
		{RunFilter{Parent: parent.ID, States: []loop.RunState{loop.StateQueued}}, 0},
		{RunFilter{Parent: parent.ID, Agent: "agents/other"}, 0},
		{RunFilter{Parent: one.ID}, 0},
		{RunFilter{}, 3},
	} {
		if runs, err := s.ListRuns(t.Context(), tenant, test.filter, RunCursor{}, 10); err != nil || len(runs) != test.want {
			t.Errorf("%+v: %d runs, %v, want %d", test.filter, len(runs), err, test.want)
		}
	}
	if runs, err := s.ListRuns(t.Context(), "globex", RunFilter{Parent: parent.ID}, RunCursor{}, 10); err != nil || len(runs) != 0 {
		t.Errorf("another tenant sees %d children, %v", len(runs), err)
	}
}

func TestRefusedParentsHaveNoChildren(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	parent := create(t, s)
	lease := claimOne(t, s, "w1")
	stale := lease
	stale.Epoch--
	signal(t, s, parent, loop.CallResolved{CallID: "c1-1"}, "")
	taken := childOf(parent, "c1-1")
	taken.ID = parent.ID
	stranger := childOf(newRef(), "c1-1")
	orphan := childOf(parent, "c1-1")
	orphan.Spec.Parent = nil
	intent := handOut(lease, 2, childOf(parent, "c1-1"))
	intent.Intent = true
	twice := childOf(parent, "c1-1")
	overBudget := handOut(lease, 2, childOf(parent, "c1-1"))
	overBudget.Events[0].Body = loop.ModelStarted{Call: 1, Hold: loop.OneUSD}
	heard := handOut(stale, 2)
	other := create(t, s)
	heard.Outgoing = []loop.Outgoing{{RunID: other.ID, Body: loop.CancelRequested{}}}
	itself := handOut(lease, 2)
	itself.Outgoing = []loop.Outgoing{{RunID: parent.ID, Body: loop.CancelRequested{}}}

	for _, test := range []struct {
		name  string
		lease loop.Lease
		batch Batch
		want  error
	}{
		{"stale epoch", stale, handOut(stale, 2, childOf(parent, "c1-1")), loop.ErrLeaseLost},
		{"intent over a signal", lease, intent, loop.ErrSignalled},
		{"wrong seq", lease, handOut(lease, 3, childOf(parent, "c1-1")), ErrWrongSeq},
		{"over budget", lease, overBudget, ErrOverBudget},
		{"id is taken", lease, handOut(lease, 2, taken), loop.ErrRefused},
		{"one id twice", lease, handOut(lease, 2, twice, twice), loop.ErrRefused},
		{"child of another", lease, handOut(lease, 2, stranger), loop.ErrRefused},
		{"nobody's child", lease, handOut(lease, 2, orphan), loop.ErrRefused},
		{"stale epoch, with a word to others", stale, heard, loop.ErrLeaseLost},
		{"word to itself", lease, itself, loop.ErrRefused},
	} {
		t.Run(test.name, func(t *testing.T) {
			wantErr(t, s.Append(t.Context(), test.lease, test.batch), test.want)
			if seq := lastSeq(t, s, parent); seq != 1 {
				t.Errorf("the parent has %d events, want 1", seq)
			}
			for query, want := range map[string]int{
				"SELECT count(*) FROM runs": 2, "SELECT count(*) FROM events": 2, "SELECT count(*) FROM accounts": 2,
				"SELECT count(*) FROM run_signals": 1,
			} {
				if n := scalar[int](t, s, query); n != want {
					t.Errorf("%s = %d, want %d", query, n, want)
				}
			}
		})
	}
}

func TestOutgoing(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	parent, ended, sender := park(t, s), park(t, s), create(t, s)
	globex := loop.RunRef{Tenant: "globex", ID: newRef().ID}
	if _, _, err := s.CreateRun(t.Context(), globex, spec(), Idempotency{}); err != nil {
		t.Fatal(err)
	}
	finish(t, s, ended)
	lease := claimOf(t, s, "w1", sender)
	report := loop.ChildFinished{CallID: "c1-1", ChildID: sender.ID, State: loop.StateSucceeded, Answer: hostile}
	b := batch(lease, 2, claimed(lease))
	b.Outgoing = []loop.Outgoing{
		{RunID: parent.ID, Body: report},
		{RunID: ended.ID, Body: report},
		{RunID: globex.ID, Body: report},
		{RunID: newRef().ID, Body: report},
		{RunID: parent.ID, Body: loop.CancelRequested{Reason: "enough"}},
	}
	woken, stop := listen(t, s)
	mustAppend(t, s, lease, b)
	<-woken
	stop()

	if seq := lastSeq(t, s, sender); seq != 2 {
		t.Errorf("the sender has %d events, want 2", seq)
	}
	if n := scalar[int](t, s, "SELECT count(*) FROM run_signals WHERE run_id <> $1", parent.ID); n != 0 {
		t.Errorf("%d signals for runs that have ended, are not there or belong to others", n)
	}
	if state := getRun(t, s, parent).Head.State; state != loop.StateCancelling {
		t.Errorf("after a cancel the parent is %s", state)
	}
	hearer := claimOf(t, s, "w2", parent) // it waited for ever, and is woken
	got := signals(t, s, hearer)
	if len(got) != 2 {
		t.Fatalf("signals = %+v, want two", got)
	}
	diff(t, "first signal", got[0].Body, loop.Body(report))
	diff(t, "second signal", got[1].Body, loop.Body(loop.CancelRequested{Reason: "enough"}))
	intent := batch(hearer, 3, loop.CallBegun{CallID: "c1-1"})
	intent.Intent, intent.SignalsSeen = true, got[0].ID
	wantErr(t, s.Append(t.Context(), hearer, intent), loop.ErrSignalled)

	// A second cancel changes nothing.
	b = batch(lease, 3, loop.AnswerAccepted{})
	b.Outgoing = []loop.Outgoing{{RunID: parent.ID, Body: loop.CancelRequested{}}}
	mustAppend(t, s, lease, b)
	diff(t, "signals", signals(t, s, hearer), got)
	// What cannot be a signal is refused by the database, for its own run only.
	b = batch(lease, 4, loop.AnswerAccepted{})
	b.Outgoing = []loop.Outgoing{{RunID: parent.ID, Body: loop.AnswerAccepted{}}}
	wantErr(t, s.Append(t.Context(), lease, b), loop.ErrRefused)
}

// listen reports wakes until stop is called. It returns when it listens.
func listen(t *testing.T, s *Store) (woken <-chan struct{}, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	wakes, ended := make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Listen(ctx, func() { wakes <- struct{}{} })
	}()
	<-wakes // it begins with one
	return wakes, func() { cancel(); <-ended }
}

// Parents and children of two processes signal each other at once, in groups. Nobody
// waits for the other for ever: the database has no deadlock to break.
func TestFamiliesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	other := openURL(t, Config{URL: s.direct, MaxConns: 8})
	const families, rounds = 12, 15
	for range families {
		create(t, s)
	}
	renew(t, s, "parents", time.Minute)
	parents := claim(t, s, "parents", families)
	children := map[loop.RunRef]loop.RunRef{} // by parent
	for _, lease := range parents {
		child := childOf(lease.Run, "c1-1")
		mustAppend(t, s, lease, handOut(lease, 2, child))
		children[lease.Run] = loop.RunRef{Tenant: tenant, ID: child.ID}
	}
	renew(t, other, "children", time.Minute)
	leases := map[loop.RunRef]loop.Lease{}
	for _, lease := range claim(t, other, "children", families) {
		leases[lease.Run] = lease
	}
	if len(parents) != families || len(leases) != families {
		t.Fatalf("%d parents and %d children, want %d", len(parents), len(leases), families)
	}

	var wg sync.WaitGroup
	talk := func(store *Store, lease loop.Lease, seq int64, to []loop.RunRef) {
		wg.Go(func() {
			for n := range int64(rounds) {
				b := batch(lease, seq+n, loop.AnswerAccepted{})
				for _, run := range to {
					b.Outgoing = append(b.Outgoing, loop.Outgoing{RunID: run.ID, Body: loop.CallResolved{CallID: fmt.Sprint(n)}})
				}
				if err := store.Append(t.Context(), lease, b); err != nil {
					t.Errorf("%s: %v", lease.Owner, err)
				}
			}
		})
	}
	for i, lease := range parents {
		child := leases[children[lease.Run]]
		next := parents[(i+1)%families].Run
		talk(s, lease, 3, []loop.RunRef{child.Run, children[next]})
		talk(other, child, 2, []loop.RunRef{next, lease.Run})
	}
	wg.Wait()

	if n := scalar[int](t, s, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"); n != 0 {
		t.Errorf("the database broke %d deadlocks", n)
	}
	if n := scalar[int](t, s, "SELECT count(*) FROM run_signals"); n != 4*families*rounds {
		t.Errorf("%d signals, want %d", n, 4*families*rounds)
	}
	const wrong = "SELECT count(*) FROM runs r WHERE signals <> (SELECT max(id) FROM run_signals s WHERE s.run_id = r.run_id)"
	if n := scalar[int](t, s, wrong); n != 0 {
		t.Errorf("the signal marks of %d runs are not their last signal", n)
	}
}

// A parent whose child cannot be created fails alone, whoever shares its commit.
func TestBadChildFailsAlone(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	const runs, bad = 20, 7
	for range runs {
		create(t, s)
	}
	renew(t, s, "w1", time.Minute)
	leases := claim(t, s, "w1", runs)
	errs := make([]error, len(leases))
	var wg sync.WaitGroup
	for i, lease := range leases {
		wg.Go(func() {
			child := childOf(lease.Run, "c1-1")
			if i == bad {
				child.ID = leases[0].Run.ID
			}
			errs[i] = s.Append(t.Context(), lease, handOut(lease, 2, child))
		})
	}
	wg.Wait()
	for i, lease := range leases {
		want := int64(2)
		if i == bad {
			want = 1
			wantErr(t, errs[i], loop.ErrRefused)
		} else if errs[i] != nil {
			t.Errorf("run %d: %v", i, errs[i])
		}
		if seq := lastSeq(t, s, lease.Run); seq != want {
			t.Errorf("run %d has %d events, want %d", i, seq, want)
		}
	}
	if n := scalar[int](t, s, "SELECT count(*) FROM runs WHERE depth = 1"); n != runs-1 {
		t.Errorf("%d children, want %d", n, runs-1)
	}
}

func TestSideEffectsOfARun(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	b := batch(lease, 2, claimed(lease))
	b.Head.SideEffects = []loop.SideEffectHead{
		{CallID: "c1-1", Tool: "issue_refund", Effect: loop.Irreversible, ArgsHash: "h", Key: "k", State: loop.CallInDoubt, Outcome: loop.OutcomeUnknown},
		{CallID: "c1-1", RunID: newRef().ID, Tool: "send\x00mail", Effect: loop.SideEffect, State: loop.CallSucceeded},
	}
	mustAppend(t, s, lease, b)
	diff(t, "side effects", getRun(t, s, ref).Head.SideEffects, b.Head.SideEffects)
}

func TestWaitingCalls(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	doubted := func(id string) loop.CallHead {
		c := offered(id, soon())
		c.Call.Name, c.State, c.Effect = "issue_refund", loop.CallInDoubt, loop.SideEffect
		return c
	}
	done := offered("c1-9", time.Time{})
	done.State = loop.CallSucceeded
	one := park(t, s, doubted("c1-1"), asked("c1-2", soon()), done, offered("c1-3", soon()))
	two := park(t, s, doubted("c1-1"), offered("c1-2", soon()))
	ended := park(t, s, doubted("c1-1"))
	finish(t, s, ended) // its doubt stays, and there is nothing to wait for
	all := func(filter CallFilter) (got []string) {
		t.Helper()
		for {
			page, next, err := s.ListWaitingCalls(t.Context(), tenant, filter)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range page {
				got = append(got, map[loop.RunRef]string{one: "one ", two: "two "}[c.Run]+c.Call.Call.ID+" "+string(c.Call.State))
				if c.Agent != "agents/support" || c.Call.Until.IsZero() {
					t.Errorf("call %+v lacks its agent or its deadline", c)
				}
			}
			if next == (CallCursor{}) {
				return got
			}
			filter.After = next
		}
	}
	everything := []string{
		"one c1-1 IN_DOUBT", "one c1-2 AWAITING_APPROVAL", "one c1-3 AWAITING_RESULT", "two c1-1 IN_DOUBT", "two c1-2 AWAITING_RESULT",
	}
	for _, size := range []int{0, 1, 2, 3, 100} {
		diff(t, "all", all(CallFilter{PageSize: size}), everything)
		diff(t, "in doubt", all(CallFilter{PageSize: size, States: []loop.CallState{loop.CallInDoubt}}), []string{everything[0], everything[3]})
		diff(t, "tool", all(CallFilter{PageSize: size, Tool: "browser"}), []string{everything[2], everything[4]})
	}
	if calls, _, err := s.ListWaitingCalls(t.Context(), "globex", CallFilter{PageSize: 9}); err != nil || len(calls) != 0 {
		t.Errorf("another tenant sees %v, %v", calls, err)
	}
	counts, err := s.CountWaitingCalls(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "counts", counts, map[loop.CallState]int64{loop.CallInDoubt: 2, loop.CallAwaitingApproval: 1, loop.CallOffered: 2})
}
