package postgres

import (
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

func signal(t *testing.T, s *Store, ref loop.RunRef, body loop.Body, key string) {
	t.Helper()
	if err := s.Signal(t.Context(), ref, body, Idempotency{Method: "signal", Key: key, Fingerprint: []byte(key)}); err != nil {
		t.Fatal(err)
	}
}

func signals(t *testing.T, s *Store, lease loop.Lease) []loop.Signal {
	t.Helper()
	list, err := s.Signals(t.Context(), lease)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestIntentIsNotWrittenOverASignal(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	denied := loop.ApprovalDecided{CallID: "c1-1", ArgsHash: "h", Reason: "nul \x00"}
	signal(t, s, ref, denied, "k1")
	signal(t, s, ref, denied, "k1") // repeated by the client
	signal(t, s, ref, loop.CallResolved{CallID: "c2-1", Resolution: loop.ResolvedRetry}, "")

	intent := batch(lease, 2, loop.CallBegun{CallID: "c1-1"})
	intent.Intent = true
	wantErr(t, s.Append(t.Context(), lease, intent), loop.ErrSignalled)
	got := signals(t, s, lease)
	if len(got) != 2 {
		t.Fatalf("signals = %+v, want two", got)
	}
	diff(t, "first signal", got[0].Body, loop.Body(denied))

	// Seeing the first is not enough.
	intent.SignalsSeen = got[0].ID
	wantErr(t, s.Append(t.Context(), lease, intent), loop.ErrSignalled)
	if n := len(signals(t, s, lease)); n != 2 {
		t.Fatalf("%d signals are left after a refused intent, want 2", n)
	}

	// A record is written over signals, and takes those that it has seen.
	record := batch(lease, 2, denied)
	record.SignalsSeen = got[0].ID
	mustAppend(t, s, lease, record)
	diff(t, "signals that are left", signals(t, s, lease), got[1:])

	intent = batch(lease, 3, loop.CallBegun{CallID: "c1-1"})
	intent.Intent, intent.SignalsSeen = true, got[1].ID
	mustAppend(t, s, lease, intent)
	if left := signals(t, s, lease); len(left) != 0 {
		t.Errorf("signals that are left: %+v", left)
	}
	if mark := scalar[int64](t, s, "SELECT signals FROM runs"); mark != 0 {
		t.Errorf("the run's signal mark is %d after all were taken", mark)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	cancel := loop.CancelRequested{By: "ann"}
	for range 2 {
		signal(t, s, ref, cancel, "")
	}
	state := func() loop.RunState { return getRun(t, s, ref).Head.State }
	if got := state(); got != loop.StateCancelling {
		t.Errorf("after a cancel the run is %s", got)
	}
	if n := len(signals(t, s, lease)); n != 1 {
		t.Errorf("%d signals after two cancels, want 1", n)
	}

	// A record of the worker that has not heard yet does not hide it.
	mustAppend(t, s, lease, batch(lease, 2, claimed(lease)))
	if got := state(); got != loop.StateCancelling {
		t.Errorf("after a record the run is %s", got)
	}
	// Nor does a suspension: the next worker finds the run at once.
	b := batch(lease, 3, loop.Suspended{Reason: loop.WaitApproval})
	b.Head.State, b.Release = loop.StateRequiresAction, true
	mustAppend(t, s, lease, b)
	lease = claimOne(t, s, "w1")
	if got := state(); got != loop.StateCancelling {
		t.Errorf("after a claim the run is %s", got)
	}

	end := batch(lease, 4, cancel, loop.Finished{State: loop.StateCancelled, Stop: loop.Stop{Reason: loop.Cancelled}})
	end.SignalsSeen = signals(t, s, lease)[0].ID
	end.Head = loop.Head{State: loop.StateCancelled, EndedAt: at(5), Stop: &loop.Stop{Reason: loop.Cancelled}}
	mustAppend(t, s, lease, end)
	if got := state(); got != loop.StateCancelled {
		t.Errorf("at the end the run is %s", got)
	}
	wantErr(t, s.Signal(t.Context(), ref, cancel, Idempotency{}), ErrRunFinished)
	if leases := claim(t, s, "w1", 1); len(leases) != 0 {
		t.Errorf("an ended run was claimed: %v", leases)
	}
}

// A cancel reaches a run that nobody owns.
func TestCancelWakesWaitingRun(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	b := batch(lease, 2, loop.Suspended{Reason: loop.WaitApproval})
	b.Head.State, b.Release = loop.StateRequiresAction, true
	mustAppend(t, s, lease, b)

	signal(t, s, ref, loop.CancelRequested{}, "")

	claimOne(t, s, "w1")
}

func TestSignalKeysAndKinds(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	signal(t, s, ref, loop.CallResolved{CallID: "a"}, "k")
	err := s.Signal(t.Context(), ref, loop.CallResolved{CallID: "b"}, Idempotency{Method: "signal", Key: "k", Fingerprint: []byte("other")})
	wantErr(t, err, ErrKeyReused)
	if err := s.Signal(t.Context(), ref, loop.AnswerAccepted{}, Idempotency{}); err == nil {
		t.Error("anybody can accept an answer")
	}
	if n := scalar[int](t, s, "SELECT count(*) FROM run_signals"); n != 1 {
		t.Errorf("%d signals, want 1", n)
	}
}
