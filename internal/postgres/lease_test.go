package postgres

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/loopd/loopd/internal/loop"
)

// expire lets a worker's row expire without waiting for it.
func expire(t *testing.T, s *Store, worker string) {
	t.Helper()
	const query = "UPDATE workers SET expires_at = clock_timestamp() - interval '1 ms' WHERE worker_id = $1"
	if _, err := s.pool.Exec(t.Context(), query, worker); err != nil {
		t.Fatal(err)
	}
}

func TestEachRunIsClaimedOnce(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	const runs = 40
	for range runs {
		create(t, s)
	}
	var mu sync.Mutex
	owners := map[string][]string{}
	var wg sync.WaitGroup
	for _, worker := range []string{"w1", "w2", "w3"} {
		renew(t, s, worker, time.Minute)
		wg.Go(func() {
			for {
				leases, err := s.Claim(t.Context(), worker, 3)
				if err != nil {
					t.Error(err)
				}
				if len(leases) == 0 || err != nil {
					return
				}
				mu.Lock()
				for _, l := range leases {
					owners[l.Run.ID] = append(owners[l.Run.ID], l.Owner)
					if l.Epoch != 1 {
						t.Errorf("first claim of run %s has epoch %d", l.Run.ID, l.Epoch)
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(owners) != runs {
		t.Errorf("%d runs were claimed, want %d", len(owners), runs)
	}
	for run, who := range owners {
		if len(who) != 1 {
			t.Errorf("run %s was claimed by %v", run, who)
		}
	}
}

func TestOnlyALiveWorkerClaims(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	create(t, s)
	if leases := claim(t, s, "nobody", 1); len(leases) > 0 {
		t.Errorf("a worker without a row claimed %v", leases)
	}
	renew(t, s, "late", -time.Second)
	if leases := claim(t, s, "late", 1); len(leases) > 0 {
		t.Errorf("an expired worker claimed %v", leases)
	}
	claimOne(t, s, "late") // renewed
}

func TestTakeOver(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		end  func(t *testing.T, s *Store)
	}{
		{"found by a claim", func(t *testing.T, s *Store) { expire(t, s, "w1") }},
		{"found by a renewal", func(t *testing.T, s *Store) {
			expire(t, s, "w1")
			renew(t, s, "w3", time.Minute)
			if owned := scalar[int](t, s, "SELECT count(*) FROM runs WHERE lease_owner IS NOT NULL"); owned != 0 {
				t.Errorf("%d runs still have an owner", owned)
			}
		}},
		{"retired", func(t *testing.T, s *Store) {
			if err := s.Retire(t.Context(), "w1"); err != nil {
				t.Fatal(err)
			}
		}},
		{"released", func(t *testing.T, s *Store) {
			if err := s.Release(t.Context(), loop.Lease{Run: loop.RunRef{Tenant: tenant, ID: scalar[string](t, s, "SELECT run_id::text FROM runs")}, Owner: "w1", Epoch: 1}); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := openStore(t)
			ref := create(t, s)
			old := claimOne(t, s, "w1")
			mustAppend(t, s, old, batch(old, 2, claimed(old)))
			renew(t, s, "w2", time.Minute)
			if leases := claim(t, s, "w2", 1); len(leases) > 0 {
				t.Fatal("a run was taken from a living worker")
			}

			test.end(t, s)

			lease := claimOne(t, s, "w2")
			if age := time.Since(lease.ClaimedAt); age < -time.Minute || age > time.Minute {
				t.Errorf("claimed at %v", lease.ClaimedAt)
			}
			lease.ClaimedAt = time.Time{}
			diff(t, "lease", lease, loop.Lease{Run: ref, Owner: "w2", Epoch: 2})
			// The old worker comes back to life: too late.
			renew(t, s, "w1", time.Minute)
			wantErr(t, s.Append(t.Context(), old, batch(old, 3, loop.AnswerAccepted{})), loop.ErrLeaseLost)
			if n := testutil.ToFloat64(s.metrics.fenced); n != 1 {
				t.Errorf("loopd_fenced_writes_total = %v, want 1", n)
			}
			mustAppend(t, s, lease, batch(lease, 3, claimed(lease)))
			lastSeq(t, s, ref)
		})
	}
}

// What is released comes back when its time or a signal comes, and not before.
func TestReleasedRunsWait(t *testing.T) {
	t.Parallel()
	soon, late := time.Now().Add(-time.Second), time.Now().Add(time.Hour)
	for _, test := range []struct {
		name  string
		state loop.RunState
		until time.Time
		now   bool // claimable at once
	}{
		{"drained", loop.StateQueued, time.Time{}, true},
		{"backoff over", loop.StateQueued, soon, true},
		{"backoff", loop.StateQueued, late, false},
		{"approval", loop.StateRequiresAction, late, false},
		{"approval expired", loop.StateRequiresAction, soon, true},
		{"no deadline", loop.StateRequiresAction, time.Time{}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := openStore(t)
			ref := create(t, s)
			lease := claimOne(t, s, "w1")
			b := batch(lease, 2, loop.Suspended{Reason: loop.WaitApproval, Until: test.until})
			b.Head.State, b.Head.WaitUntil, b.Release = test.state, test.until, true
			mustAppend(t, s, lease, b)

			if leases := claim(t, s, "w1", 1); (len(leases) == 1) != test.now {
				t.Fatalf("claimed %v, want claimable = %v", leases, test.now)
			}
			if test.now {
				return
			}
			if err := s.Signal(t.Context(), ref, loop.ApprovalDecided{CallID: "c1-1"}, Idempotency{}); err != nil {
				t.Fatal(err)
			}
			next := claimOne(t, s, "w1")
			if next.Epoch != lease.Epoch+1 {
				t.Errorf("epoch %d after %d", next.Epoch, lease.Epoch)
			}
			if state := getRun(t, s, ref).Head.State; state != loop.StateRunning {
				t.Errorf("a claimed run is %s", state)
			}
		})
	}
}

func TestListenIsWoken(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	wakes, events := make(chan struct{}, 100), make(chan string, 100)
	ended := make(chan error, 2)
	go func() { ended <- s.Listen(ctx, func() { wakes <- struct{}{} }) }()
	go func() { ended <- s.ListenEvents(ctx, func(run string) { events <- run }) }()
	<-wakes // they listen now
	if run := <-events; run != "" {
		t.Fatalf("first notice is of run %s", run)
	}

	ref := create(t, s)
	<-wakes
	lease := claimOne(t, s, "w1")
	mustAppend(t, s, lease, batch(lease, 2, claimed(lease)))
	if run := <-events; run != ref.ID {
		t.Errorf("notice of run %q, want %s", run, ref.ID)
	}
	b := batch(lease, 3, loop.Suspended{Reason: loop.WaitDrain})
	b.Head.State, b.Release = loop.StateQueued, true
	mustAppend(t, s, lease, b)
	<-wakes
	if err := s.Signal(t.Context(), ref, loop.CancelRequested{}, Idempotency{}); err != nil {
		t.Fatal(err)
	}
	<-wakes
	if err := s.Retire(t.Context(), "w1"); err != nil {
		t.Fatal(err)
	}
	<-wakes
	renew(t, s, "w2", -time.Minute) // and reaps itself
	<-wakes

	cancel()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Listen ended with %v", err)
		}
	}
}

// A run that is given back wakes workers if it can be claimed: not at its end, and not
// where it waits for somebody.
func TestOnlyWhatIsClaimableWakes(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	conn, err := pgx.Connect(t.Context(), s.direct)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // nothing to save
	for range 6 {
		create(t, s)
	}
	renew(t, s, "w1", time.Minute)
	leases := claim(t, s, "w1", 6)
	if _, err := conn.Exec(t.Context(), "LISTEN "+channelWake); err != nil {
		t.Fatal(err)
	}
	for i, head := range []loop.Head{
		{State: loop.StateSucceeded, EndedAt: at(9), Stop: &loop.Stop{Reason: loop.Completed}},
		{State: loop.StatePaused},
		{State: loop.StateQueued},
	} {
		for n, results := range fences {
			lease := leases[2*i+n]
			b := batch(lease, 2, claimed(lease))
			b.Head, b.Release, b.Results = head, true, results
			mustAppend(t, s, lease, b)
			if _, err := s.pool.Exec(t.Context(), "SELECT pg_notify($1, $2)", channelWake, "next"); err != nil {
				t.Fatal(err)
			}
			wakes := 0
			for {
				notice, err := conn.WaitForNotification(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if notice.Payload == "next" {
					break
				}
				wakes++
			}
			if want := map[bool]int{true: 1}[head.State == loop.StateQueued]; wakes != want {
				t.Errorf("%s, by statement %d: %d wakes, want %d", head.State, n, wakes, want)
			}
		}
	}
}

func TestListenReportsALostConnection(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ended, listening := make(chan error, 1), make(chan struct{}, 1)
	go func() { ended <- s.Listen(t.Context(), func() { listening <- struct{}{} }) }()
	<-listening
	const end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'loopd listen' AND datname = current_database()"
	if n := scalar[int](t, s, end); n != 1 {
		t.Fatalf("ended %d listeners", n)
	}
	if err := <-ended; err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("Listen ended with %v", err)
	}
}

func TestSignalled(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	first, second := create(t, s), create(t, s)
	renew(t, s, "w1", time.Minute)
	if n := len(claim(t, s, "w1", 2)); n != 2 {
		t.Fatalf("claimed %d", n)
	}
	create(t, s) // not w1's
	for _, ref := range []loop.RunRef{second, first, first} {
		if err := s.Signal(t.Context(), ref, loop.CancelRequested{}, Idempotency{}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Signalled(t.Context(), "w1")
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got, func(a, b loop.RunRef) int { return slices.Compare([]byte(a.ID), []byte(b.ID)) })
	diff(t, "signalled", got, []loop.RunRef{first, second})
}
