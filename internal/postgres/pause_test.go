package postgres

import (
	"errors"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// hold suspends a run as the core does, with what it requires.
func hold(t *testing.T, s *Store, lease loop.Lease, seq int64, state loop.RunState, wait loop.Wait, required ...loop.RequiredAction) {
	t.Helper()
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	b := batch(lease, seq, loop.Suspended{Reason: wait, Until: until})
	b.Head.State, b.Head.Phase, b.Head.WaitUntil, b.Head.RequiredActions, b.Release = state, string(wait), until, required, true
	mustAppend(t, s, lease, b)
}

// keyed is an idempotency key for a request that says so.
func keyed(key, fingerprint string) Idempotency {
	return Idempotency{Method: "test", Key: key, Fingerprint: []byte(fingerprint)}
}

// unchanged resumes without raising anything.
func unchanged(Run) (loop.Resumed, error) { return loop.Resumed{By: "ann"}, nil }

func TestPause(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	pause := loop.PauseRequested{By: "ann", Reason: "nul \x00"}
	for range 2 { // the second changes nothing
		if err := s.Pause(t.Context(), ref, pause, Idempotency{}); err != nil {
			t.Fatal(err)
		}
	}
	got := signals(t, s, lease)
	if len(got) != 1 {
		t.Fatalf("two pauses left %d signals, want 1", len(got))
	}
	diff(t, "signal", got[0].Body, loop.Body(pause))
	if state := getRun(t, s, ref).Head.State; state != loop.StateRunning {
		t.Errorf("the run is %s before the pause has happened", state)
	}

	taken := batch(lease, 2, pause)
	taken.SignalsSeen = got[0].ID
	mustAppend(t, s, lease, taken)
	hold(t, s, lease, 3, loop.StatePaused, loop.WaitPaused)
	if state := getRun(t, s, ref).Head.State; state != loop.StatePaused {
		t.Errorf("after the pause the run is %s", state)
	}
	if err := s.Pause(t.Context(), ref, pause, Idempotency{}); err != nil {
		t.Fatal(err)
	}
	if leases := claim(t, s, "w1", 1); len(leases) != 0 {
		t.Errorf("a pause woke a paused run: %v", leases)
	}

	if err := s.Resume(t.Context(), ref, unchanged, Idempotency{}); err != nil {
		t.Fatal(err)
	}
	diff(t, "signals of the woken run", signals(t, s, claimOne(t, s, "w1"))[0].Body, loop.Body(loop.Resumed{By: "ann"}))
	wantErr(t, s.Resume(t.Context(), ref, unchanged, Idempotency{}), ErrNotPaused) // it is on its way
	if err := s.Pause(t.Context(), ref, pause, Idempotency{}); err != nil {        // and may be paused again
		t.Fatal(err)
	}
	if err := s.Resume(t.Context(), ref, unchanged, Idempotency{}); err != nil { // and that taken back
		t.Fatal(err)
	}
	if n := len(signals(t, s, lease)); n != 3 {
		t.Errorf("%d signals wait, want resume, pause, resume", n)
	}
}

func TestPauseAndResumeAreRefused(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	resume := func() error { return s.Resume(t.Context(), ref, unchanged, Idempotency{}) }
	pause := func() error { return s.Pause(t.Context(), ref, loop.PauseRequested{}, Idempotency{}) }

	wantErr(t, resume(), ErrNotPaused)
	wantErr(t, s.Pause(t.Context(), newRef(), loop.PauseRequested{}, Idempotency{}), loop.ErrNotFound)
	wantErr(t, s.Resume(t.Context(), newRef(), unchanged, Idempotency{}), loop.ErrNotFound)
	signal(t, s, ref, loop.CancelRequested{}, "")
	wantErr(t, pause(), ErrRunCancelling)
	wantErr(t, resume(), ErrRunCancelling)

	lease := claimOne(t, s, "w1")
	end := batch(lease, 2, loop.Finished{State: loop.StateCancelled, Stop: loop.Stop{Reason: loop.Cancelled}})
	end.Head = loop.Head{State: loop.StateCancelled, EndedAt: at(5), Stop: &loop.Stop{Reason: loop.Cancelled}}
	mustAppend(t, s, lease, end)
	wantErr(t, pause(), ErrRunFinished)
	wantErr(t, resume(), ErrRunFinished)
	if n := scalar[int](t, s, "SELECT count(*) FROM run_signals WHERE kind <> 'cancel_requested'"); n != 0 {
		t.Errorf("%d signals were left by requests that were refused", n)
	}
}

func TestPauseAndResumeOncePerKey(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	count := func() int { return scalar[int](t, s, "SELECT count(*) FROM run_signals") }
	for range 2 {
		if err := s.Pause(t.Context(), ref, loop.PauseRequested{}, keyed("p", "x")); err != nil {
			t.Fatal(err)
		}
	}
	wantErr(t, s.Pause(t.Context(), ref, loop.PauseRequested{}, keyed("p", "y")), ErrKeyReused)
	for range 2 { // the second time the run is not paused any more, and is told the same
		if err := s.Resume(t.Context(), ref, unchanged, keyed("r", "x")); err != nil {
			t.Fatal(err)
		}
	}
	wantErr(t, s.Resume(t.Context(), ref, unchanged, keyed("r", "y")), ErrKeyReused)
	if n := count(); n != 2 {
		t.Errorf("%d signals, want one pause and one resume", n)
	}

	// A request that was refused has not used its key up.
	wantErr(t, s.Resume(t.Context(), ref, unchanged, keyed("later", "x")), ErrNotPaused)
	if err := s.Pause(t.Context(), ref, loop.PauseRequested{}, Idempotency{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(t.Context(), ref, unchanged, keyed("later", "x")); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 4 {
		t.Errorf("%d signals, want 4", n)
	}
}

// Whoever decides about a resume sees the limits in force and what is required.
func TestResumeSeesTheRun(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	raise := loop.RequiredAction{Kind: loop.RequireRaise, Guard: "cost", Field: "max_cost_usd", Observed: "0.9 USD", Deadline: at(9)}
	hold(t, s, lease, 2, loop.StateRequiresAction, loop.WaitRaise, raise)

	refusal := errors.New("not enough")
	err := s.Resume(t.Context(), ref, func(run Run) (loop.Resumed, error) {
		diff(t, "limits", run.Limits, spec().Limits)
		diff(t, "required", run.Head.RequiredActions, []loop.RequiredAction{raise})
		return loop.Resumed{}, refusal
	}, Idempotency{})
	wantErr(t, err, refusal)
	if n := scalar[int](t, s, "SELECT count(*) FROM run_signals"); n != 0 {
		t.Errorf("a refused resume left %d signals", n)
	}

	raised := spec().Limits
	raised.Cost *= 2
	if err := s.Resume(t.Context(), ref, func(Run) (loop.Resumed, error) { return loop.Resumed{Limits: &raised}, nil }, Idempotency{}); err != nil {
		t.Fatal(err)
	}
	// The raise has not been taken by any worker yet, and counts already.
	if err := s.Pause(t.Context(), ref, loop.PauseRequested{}, Idempotency{}); err != nil {
		t.Fatal(err)
	}
	err = s.Resume(t.Context(), ref, func(run Run) (loop.Resumed, error) {
		diff(t, "limits after a raise", run.Limits, raised)
		diff(t, "required after a raise", run.Head.RequiredActions, []loop.RequiredAction(nil))
		return loop.Resumed{}, refusal
	}, Idempotency{})
	wantErr(t, err, refusal)
}

// A raised limit is in force for readers and for the account, and what was spent
// counts on.
func TestRaisedLimitsAreInForce(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	limit := spec().Limits.Cost
	mustAppend(t, s, lease, batch(lease, 2, claimed(lease), loop.ModelStarted{Call: 1, Hold: limit}))
	paid := answer(1, "{}")
	paid.Cost = loop.Cost{Output: limit}
	mustAppend(t, s, lease, batch(lease, 4, paid))
	wantErr(t, s.Append(t.Context(), lease, batch(lease, 5, loop.ModelStarted{Call: 2, Hold: 1})), ErrOverBudget)

	raised := spec().Limits
	raised.Cost += 10
	mustAppend(t, s, lease, batch(lease, 5, loop.PauseRequested{}, loop.Resumed{Limits: &raised, Input: "go on", Reason: "worth it"}))

	diff(t, "limits", getRun(t, s, ref).Limits, raised)
	wantErr(t, s.Append(t.Context(), lease, batch(lease, 7, loop.ModelStarted{Call: 2, Hold: 11})), ErrOverBudget)
	mustAppend(t, s, lease, batch(lease, 7, loop.ModelStarted{Call: 2, Hold: 10}))
	mustAppend(t, s, lease, batch(lease, 8, loop.Resumed{})) // raises nothing
	diff(t, "limits", getRun(t, s, ref).Limits, raised)
	diff(t, "transcript", told(t, s, "SELECT speaker || ': ' || text FROM transcript WHERE seq IN (5, 6)"), []string{
		"person: pause", "person: resume: worth it", "user: go on",
	})
	first, err := s.GetSpec(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "limits that the run was created with", first.Limits, spec().Limits)
}
