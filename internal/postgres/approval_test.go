package postgres

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/loopd/loopd/internal/loop"
)

// soon is a deadline that no test sees pass, to the microsecond as Postgres keeps it.
func soon() time.Time { return time.Now().UTC().Truncate(time.Microsecond).Add(time.Hour) }

// asked is a call that waits for approval.
func asked(id string, until time.Time) loop.CallHead {
	return loop.CallHead{
		Call: loop.ToolCall{ID: id, Name: "issue_refund", Args: `{"amount":40}`}, Iteration: 1, Effect: loop.Irreversible,
		State: loop.CallAwaitingApproval, ArgsHash: "hash-" + id, Asked: "IRREVERSIBLE \x00", AskedAt: at(2), Until: until,
	}
}

// question is a call of ask_human that waits for its answer, and offered one that
// waits for the result of a client.
func question(id string, until time.Time) loop.CallHead {
	return loop.CallHead{
		Call: loop.ToolCall{ID: id, Name: "ask_human", Args: `{"question":"Which order?"}`}, Iteration: 1, Effect: loop.ReadOnly,
		State: loop.CallOffered, Attempt: 1, Key: "k", ArgsHash: "hash-" + id, StartedAt: at(3), Until: until,
	}
}

func offered(id string, until time.Time) loop.CallHead {
	c := question(id, until)
	c.Call.Name = "browser"
	return c
}

// park creates a run whose calls wait, and gives it back. The next worker that
// claims it gets the lease.
func park(t *testing.T, s *Store, calls ...loop.CallHead) loop.RunRef {
	t.Helper()
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	b := batch(lease, 2, loop.Suspended{Reason: loop.WaitApproval})
	b.Calls, b.Release = calls, true
	b.Head.State, b.Head.Phase = loop.StateRequiresAction, "approval"
	b.Head.RequiredActions = actions(calls)
	mustAppend(t, s, lease, b)
	return ref
}

// actions are those that the core requires for calls.
func actions(calls []loop.CallHead) (list []loop.RequiredAction) {
	for _, c := range calls {
		kind := map[string]string{"ask_human": "answer", "browser": "submit"}[c.Call.Name]
		switch {
		case c.State == loop.CallAwaitingApproval:
			kind = "approve"
		case c.State != loop.CallOffered || kind == "":
			continue
		}
		list = append(list, loop.RequiredAction{Kind: kind, CallID: c.Call.ID, Attempt: c.Attempt})
	}
	return list
}

func approve(id string) loop.ApprovalDecided {
	return loop.ApprovalDecided{CallID: id, ArgsHash: "hash-" + id, Approved: true, By: "ann", Reason: "fine \x00"}
}

func getApproval(t *testing.T, s *Store, ref loop.RunRef, id string) ApprovalRow {
	t.Helper()
	row, err := s.GetApproval(t.Context(), ref, id)
	if err != nil {
		t.Fatal(err)
	}
	return row
}

func TestDecideOnce(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	call := asked("c1-1", soon())
	ref := park(t, s, call)
	want := ApprovalRow{
		Run: ref, Agent: "agents/support", AgentVersion: 3, Kind: KindApprove, State: ApprovalPending, Call: call,
	}
	diff(t, "pending approval", getApproval(t, s, ref, "c1-1"), want)

	d := approve("c1-1")
	d.Args = `{"amount":30}`
	if replayed, err := s.Decide(t.Context(), ref, d); err != nil || replayed {
		t.Fatalf("first decision: replayed %v, %v", replayed, err)
	}
	want.State = ApprovalApproved
	want.Call.DecidedBy, want.Call.Decision, want.Call.Edited = "ann", d.Reason, d.Args
	diff(t, "decided approval", getApproval(t, s, ref, "c1-1"), want, cmpopts.IgnoreFields(loop.CallHead{}, "DecidedAt"))
	if replayed, err := s.Decide(t.Context(), ref, d); err != nil || !replayed {
		t.Errorf("same decision again: replayed %v, %v", replayed, err)
	}
	other := approve("c1-1")
	other.By = "bob"
	_, err := s.Decide(t.Context(), ref, other)
	wantErr(t, err, ErrNotWaiting)
	if e, ok := errors.AsType[*NotWaitingError](err); !ok || e.Earlier == nil || *e.Earlier != d {
		t.Errorf("error = %#v, want it to hold the decision of ann", err)
	}

	// The run's owner finds one signal, and nothing starts without it.
	lease := claimOne(t, s, "w2")
	got := signals(t, s, lease)
	if len(got) != 1 {
		t.Fatalf("signals = %+v, want one", got)
	}
	diff(t, "signal", got[0].Body, loop.Body(d))
	intent := batch(lease, 3, loop.CallBegun{CallID: "c1-1"})
	intent.Intent = true
	wantErr(t, s.Append(t.Context(), lease, intent), loop.ErrSignalled)

	// The decision outlives its signal.
	taken := batch(lease, 3, d)
	call.State, call.Until, call.DecidedAt, call.DecidedBy, call.Decision, call.Edited = loop.CallApproved, time.Time{}, at(9), "ann", d.Reason, d.Args
	call.Call.Args, call.ArgsHash = d.Args, "other hash"
	taken.Calls, taken.SignalsSeen = []loop.CallHead{call}, got[0].ID
	mustAppend(t, s, lease, taken)
	want.Call = call
	diff(t, "approval in the journal", getApproval(t, s, ref, "c1-1"), want)
	if replayed, err := s.Decide(t.Context(), ref, d); err != nil || !replayed {
		t.Errorf("same decision, after it was taken: replayed %v, %v", replayed, err)
	}
}

// Of many who decide at once, one is right, and the others hear who.
func TestOneOfManyDecides(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	const people = 50
	ref := park(t, s, asked("c1-1", soon()))
	errs := make([]error, people)
	var wg sync.WaitGroup
	for i := range people {
		wg.Go(func() {
			d := approve("c1-1")
			d.By, d.Approved = fmt.Sprint("person ", i), i%2 == 0
			_, errs[i] = s.Decide(t.Context(), ref, d)
		})
	}
	wg.Wait()

	winner := -1
	for i, err := range errs {
		if err == nil {
			if winner >= 0 {
				t.Errorf("persons %d and %d both decided", winner, i)
			}
			winner = i
		}
	}
	if winner < 0 {
		t.Fatalf("nobody decided: %v", errs)
	}
	for i, err := range errs {
		if i == winner {
			continue
		}
		e, ok := errors.AsType[*NotWaitingError](err)
		if !ok || e.Earlier == nil || e.Earlier.By != fmt.Sprint("person ", winner) {
			t.Errorf("person %d: %v, want the decision of person %d", i, err, winner)
		}
	}
	if n := scalar[int](t, s, "SELECT count(*) FROM run_signals"); n != 1 {
		t.Errorf("%d signals, want 1", n)
	}
}

// All who decide the same have decided.
func TestManyDecideTheSame(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := park(t, s, asked("c1-1", soon()))
	var mu sync.Mutex
	fresh := 0
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			replayed, err := s.Decide(t.Context(), ref, approve("c1-1"))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if !replayed {
				fresh++
			}
		})
	}
	wg.Wait()
	if n := scalar[int](t, s, "SELECT count(*) FROM run_signals"); n != 1 || fresh != 1 {
		t.Errorf("%d signals, %d fresh decisions, want one", n, fresh)
	}
}

func TestDecisionsThatAreRefused(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	started := asked("c1-3", time.Time{})
	started.State, started.AskedAt, started.Asked = loop.CallStarted, time.Time{}, ""
	started.Key = "k"
	denied := asked("c1-4", time.Time{})
	denied.State, denied.DecidedAt, denied.DecidedBy, denied.Decision = loop.CallDenied, at(4), "policies/p@1", "too much"
	ref := park(t, s, asked("c1-1", soon()), asked("c1-2", time.Now().Add(-time.Second)), started, denied)
	wrongHash := approve("c1-1")
	wrongHash.ArgsHash = "hash of other arguments"
	ended := park(t, s, asked("c1-1", soon()))
	finish(t, s, ended)

	for _, test := range []struct {
		name     string
		run      loop.RunRef
		decision loop.ApprovalDecided
		want     error
	}{
		{"other arguments", ref, wrongHash, ErrStaleHash},
		{"deadline has passed", ref, approve("c1-2"), ErrExpired},
		{"does not wait", ref, approve("c1-3"), ErrNotWaiting},
		{"decided by a policy", ref, approve("c1-4"), ErrNotWaiting},
		{"no such call", ref, approve("c9-9"), loop.ErrNotFound},
		{"no such run", newRef(), approve("c1-1"), loop.ErrNotFound},
		{"other tenant", loop.RunRef{Tenant: "globex", ID: ref.ID}, approve("c1-1"), loop.ErrNotFound},
		{"ended run", ended, approve("c1-1"), ErrRunFinished},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := s.Decide(t.Context(), test.run, test.decision)
			wantErr(t, err, test.want)
		})
	}
	if n := scalar[int](t, s, "SELECT count(*) FROM run_signals"); n != 0 {
		t.Errorf("refused decisions left %d signals", n)
	}
	_, err := s.Decide(t.Context(), ref, approve("c1-4"))
	if e, ok := errors.AsType[*NotWaitingError](err); !ok || e.Earlier == nil || e.Earlier.By != "policies/p@1" || e.Earlier.Reason != "too much" {
		t.Errorf("error = %v, want the decision of the policy", err)
	}
	same := loop.ApprovalDecided{CallID: "c1-4", ArgsHash: "hash-c1-4", By: "policies/p@1", Reason: "too much"}
	if replayed, err := s.Decide(t.Context(), ref, same); err != nil || !replayed {
		t.Errorf("the policy's decision again: replayed %v, %v", replayed, err)
	}
}

// finish ends a run that nobody owns.
func finish(t *testing.T, s *Store, ref loop.RunRef, calls ...loop.CallHead) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), "UPDATE runs SET available_at = now() - interval '1 day' WHERE run_id = $1", ref.ID); err != nil {
		t.Fatal(err)
	}
	renew(t, s, "finisher", time.Minute)
	leases := claim(t, s, "finisher", 1)
	if len(leases) != 1 || leases[0].Run != ref {
		t.Fatalf("claimed %v, want run %s", leases, ref.ID)
	}
	stop := &loop.Stop{Reason: loop.Completed}
	b := batch(leases[0], getRun(t, s, ref).LastSeq+1, loop.Finished{State: loop.StateSucceeded, Stop: *stop})
	b.Head, b.Calls, b.SignalsSeen = loop.Head{State: loop.StateSucceeded, EndedAt: at(9), Stop: stop}, calls, 1<<60
	mustAppend(t, s, leases[0], b)
}

// A decision that had to wait for the run's row is measured against the clock when
// its turn comes, not when it was sent.
func TestDeadlineIsCheckedUnderTheLock(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := park(t, s, asked("c1-1", soon()))
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exec := func(query string) {
		t.Helper()
		if _, err := tx.Exec(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	exec("SELECT 1 FROM runs FOR UPDATE")
	result := make(chan error, 1)
	go func() {
		_, err := s.Decide(t.Context(), ref, approve("c1-1"))
		result <- err
	}()
	const blocked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
	for scalar[int](t, s, blocked) == 0 {
		if t.Context().Err() != nil {
			t.Fatal("the decision does not wait for the row")
		}
	}
	// Later than the statement began, and over before it goes on.
	exec("UPDATE tool_calls SET until_at = clock_timestamp()")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantErr(t, <-result, ErrExpired)
	if n := scalar[int](t, s, "SELECT count(*) FROM run_signals"); n != 0 {
		t.Errorf("a late decision left %d signals", n)
	}
}

// Decisions that race against the deadline, and against the worker that records it.
func TestDecideAgainstExpiry(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	const calls = 60
	var heads []loop.CallHead
	began := time.Now()
	for i := range calls { // some are over, some are not, the rest while the test runs
		heads = append(heads, asked(fmt.Sprintf("c1-%d", i+1), began.Add(time.Duration(i-5)*3*time.Millisecond)))
	}
	heads[calls-1].Until = soon()
	ref := park(t, s, heads...)
	accepted := make([]bool, calls)
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			_, err := s.Decide(t.Context(), ref, approve(fmt.Sprintf("c1-%d", i+1)))
			if accepted[i] = err == nil; err != nil && !errors.Is(err, ErrExpired) {
				t.Error(err)
			}
		})
	}
	wg.Wait()

	if accepted[0] || !accepted[calls-1] {
		t.Errorf("accepted after the deadline: %v, before: %v", accepted[0], accepted[calls-1])
	}
	if late := scalar[int](t, s, "SELECT count(*) FROM tool_calls WHERE verdict_at >= until_at"); late != 0 {
		t.Errorf("%d decisions were accepted after their deadline", late)
	}
	n := 0
	for _, ok := range accepted {
		if ok {
			n++
		}
	}
	if got := scalar[int](t, s, "SELECT count(*) FROM run_signals"); got != n {
		t.Errorf("%d decisions were accepted, %d signals wait", n, got)
	}

	// The worker records that nobody decided, before it looks at the decision.
	lease := claimOne(t, s, "w2")
	expired := heads[calls-1]
	expired.State, expired.DecidedAt, expired.Until = loop.CallDenied, at(9), time.Time{}
	b := batch(lease, 3, loop.ApprovalDecided{CallID: expired.Call.ID, ArgsHash: expired.ArgsHash})
	b.Calls = []loop.CallHead{expired}
	mustAppend(t, s, lease, b)
	if got := getApproval(t, s, ref, expired.Call.ID).State; got != ApprovalExpired {
		t.Errorf("an approval that came too late for the worker is %s", got)
	}
	_, err := s.Decide(t.Context(), ref, approve(expired.Call.ID))
	if e, ok := errors.AsType[*NotWaitingError](err); !ok || e.Earlier == nil || e.Earlier.Approved {
		t.Errorf("decide again: %v, want that it was denied", err)
	}
}

func TestListApprovals(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	deadline := soon()
	waiting := func(id string, asks, until int) loop.CallHead {
		c := asked(id, deadline.Add(time.Duration(until)*time.Second))
		c.AskedAt = at(asks)
		return c
	}
	over := func(id string, asks int, state loop.CallState, by string) loop.CallHead {
		c := waiting(id, asks, 0)
		c.State, c.Until, c.DecidedBy = state, time.Time{}, by
		if state != loop.CallCancelled {
			c.DecidedAt = at(30)
		}
		return c
	}
	q := question("c2-1", deadline.Add(2*time.Second))
	q.StartedAt = at(12)
	never := offered("c2-2", deadline) // a client's call is nobody's to approve
	one := park(t, s, waiting("c1-1", 10, 5), waiting("c1-2", 11, 1), over("c1-3", 14, loop.CallSucceeded, "ann"),
		over("c1-4", 15, loop.CallDenied, "ann"), q, never)
	two := park(t, s, waiting("c1-1", 13, 5), waiting("c1-2", 16, 9), over("c1-3", 17, loop.CallDenied, ""), over("c1-4", 18, loop.CallCancelled, ""))
	if _, err := s.Decide(t.Context(), two, approve("c1-2")); err != nil {
		t.Fatal(err)
	}
	name := func(ref loop.RunRef, id string) string { return ref.ID[len(ref.ID)-2:] + "." + id }
	a := func(ids ...string) (list []string) {
		for _, id := range ids {
			ref := one
			if id[0] == '2' {
				ref = two
			}
			list = append(list, name(ref, id[2:]))
		}
		return list
	}

	for _, test := range []struct {
		name   string
		filter ApprovalFilter
		want   []string
	}{
		{"pending", ApprovalFilter{State: ApprovalPending}, a("1/c1-2", "1/c2-1", "1/c1-1", "2/c1-1")},
		{"all", ApprovalFilter{}, a("2/c1-4", "2/c1-3", "2/c1-2", "1/c1-4", "1/c1-3", "2/c1-1", "1/c2-1", "1/c1-2", "1/c1-1")},
		{"approved", ApprovalFilter{State: ApprovalApproved}, a("2/c1-2", "1/c1-3")},
		{"denied", ApprovalFilter{State: ApprovalDenied}, a("1/c1-4")},
		{"expired", ApprovalFilter{State: ApprovalExpired}, a("2/c1-3")},
		{"cancelled", ApprovalFilter{State: ApprovalCancelled}, a("2/c1-4")},
		{"pending of a run", ApprovalFilter{State: ApprovalPending, Run: one.ID}, a("1/c1-2", "1/c2-1", "1/c1-1")},
		{"all of a run", ApprovalFilter{Run: two.ID}, a("2/c1-4", "2/c1-3", "2/c1-2", "2/c1-1")},
		{"denied of a run", ApprovalFilter{Run: one.ID, State: ApprovalDenied}, a("1/c1-4")},
		{"tool", ApprovalFilter{Tool: "ask_human"}, a("1/c2-1")},
		{"tool, pending", ApprovalFilter{Tool: "ask_human", State: ApprovalPending}, a("1/c2-1")},
		{"tool of a run", ApprovalFilter{Tool: "ask_human", Run: two.ID}, nil},
		{"agent", ApprovalFilter{Agent: "agents/support", State: ApprovalDenied}, a("1/c1-4")},
		{"other agent", ApprovalFilter{Agent: "agents/sales"}, nil},
		{"other agent, pending", ApprovalFilter{Agent: "agents/sales", State: ApprovalPending}, nil},
	} {
		for _, size := range []int{0, 1, 2, 3, 100} {
			t.Run(fmt.Sprintf("%s by %d", test.name, size), func(t *testing.T) {
				var got []string
				filter := test.filter
				for filter.PageSize = size; ; {
					page, next, err := s.ListApprovals(t.Context(), tenant, filter)
					if err != nil {
						t.Fatal(err)
					}
					if len(page) > max(size, 1) {
						t.Fatalf("a page of %d has %d approvals", size, len(page))
					}
					for _, row := range page {
						got = append(got, name(row.Run, row.Call.Call.ID))
						if test.filter.State != "" && row.State != test.filter.State {
							t.Errorf("%s is %s", row.Call.Call.ID, row.State)
						}
					}
					if next == (ApprovalCursor{}) {
						break
					}
					filter.After = next
				}
				diff(t, "approvals", got, test.want)
			})
		}
	}
	if rows, _, err := s.ListApprovals(t.Context(), "globex", ApprovalFilter{PageSize: 10}); err != nil || len(rows) != 0 {
		t.Errorf("another tenant sees %v, %v", rows, err)
	}
	_, err := s.GetApproval(t.Context(), one, "c2-2")
	wantErr(t, err, loop.ErrNotFound)
	_, err = s.GetApproval(t.Context(), loop.RunRef{Tenant: "globex", ID: one.ID}, "c1-1")
	wantErr(t, err, loop.ErrNotFound)

	// What nobody can decide any more is in no inbox.
	finish(t, s, one)
	if got := getApproval(t, s, one, "c1-1").State; got != ApprovalCancelled {
		t.Errorf("after the end of the run its approval is %s", got)
	}
	rows, _, err := s.ListApprovals(t.Context(), tenant, ApprovalFilter{State: ApprovalPending, PageSize: 10})
	if err != nil || len(rows) != 1 || rows[0].Run != two {
		t.Errorf("pending after the end of the run: %+v, %v", rows, err)
	}
}

// Without a deadline a call would be in nobody's inbox: the database refuses it.
func TestApprovalNeedsDeadline(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	create(t, s)
	lease := claimOne(t, s, "w1")
	b := batch(lease, 2, claimed(lease))
	b.Calls = []loop.CallHead{asked("c1-1", time.Time{})}
	wantErr(t, s.Append(t.Context(), lease, b), loop.ErrRefused)
	if _, err := s.GetApproval(t.Context(), lease.Run, "c1-1"); !errors.Is(err, loop.ErrNotFound) || errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("error = %v, want none found", err)
	}
}
