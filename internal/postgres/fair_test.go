package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/loopd/loopd/internal/loop"
)

// createFor creates runs of a tenant that have waited for so long.
func createFor(t *testing.T, s *Store, tenant string, n int, priority loop.Priority, waited time.Duration) {
	t.Helper()
	const query = `INSERT INTO runs (tenant_id, run_id, agent, agent_version, input, limits, labels, source, has_output_schema,
			priority, next_seq, state, phase, available_at)
		SELECT $1, gen_random_uuid(), 'agents/support', 1, '""', '{}', '{}', '', false, $2, 2, 'QUEUED', 'queue', now() - make_interval(secs => $3)
		FROM generate_series(1, $4)`
	if _, err := s.pool.Exec(t.Context(), query, tenant, priority.Rank(), waited.Seconds(), n); err != nil {
		t.Fatal(err)
	}
}

// claimFairly says whose runs a worker gets.
func claimFairly(t *testing.T, s *Store, room loop.Room) map[string]int {
	t.Helper()
	renew(t, s, "w1", time.Minute)
	leases, err := s.ClaimFairly(t.Context(), "w1", room)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, lease := range leases {
		got[lease.Run.Tenant]++
	}
	return got
}

// A tenant that asks for much takes nothing from one that asks for little, be its queue
// short enough to be looked at as a whole, or not.
func TestTenantsTakeTurns(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		room loop.Room
		want map[string]int
	}{
		{"in turn", loop.Room{Free: 6}, map[string]int{"loud": 3, "some": 2, "one": 1}},
		{"who has most comes last", loop.Room{Free: 6, Driven: map[string]int{"loud": 5, "some": 1}}, map[string]int{"loud": 2, "some": 3, "one": 1}},
		{"a bound leaves room free", loop.Room{Free: 20, PerTenant: 2, Driven: map[string]int{"some": 1}}, map[string]int{"loud": 2, "some": 1, "one": 1}},
	} {
		for queue, runs := range map[string]int{"short": 30, "long": 500} {
			t.Run(test.name+", "+queue+" queue", func(t *testing.T) {
				t.Parallel()
				s := openStore(t)
				createFor(t, s, "loud", runs, loop.PriorityHigh, time.Hour)
				createFor(t, s, "some", 3, loop.PriorityNormal, time.Minute)
				createFor(t, s, "one", 1, loop.PriorityLow, time.Second)
				if diff := cmp.Diff(test.want, claimFairly(t, s, test.room)); diff != "" {
					t.Errorf("claimed runs by tenant (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// A priority is a head start, not a right: whoever has waited long enough is next.
func TestPrioritiesAreHeadStarts(t *testing.T) {
	t.Parallel()
	for queue, others := range map[string]int{"short": 0, "long": 200} {
		t.Run(queue+" queue", func(t *testing.T) {
			t.Parallel()
			s := openStore(t)
			createFor(t, s, tenant, 1, loop.PriorityLow, 10*time.Second)
			createFor(t, s, tenant, 1, loop.PriorityNormal, 5*time.Second)
			createFor(t, s, tenant, 1, loop.PriorityHigh, time.Second)
			createFor(t, s, tenant, 1, loop.PriorityLow, 130*time.Second)
			createFor(t, s, tenant, others, loop.PriorityLow, 0)
			renew(t, s, "w1", time.Minute)
			var got []string
			for range 4 {
				run := claim(t, s, "w1", 1)[0].Run
				got = append(got, scalar[string](t, s, "SELECT priority || ' after ' || round(extract(epoch FROM now() - available_at), -1) FROM runs WHERE run_id = '"+run.ID+"'"))
			}
			want := []string{"-1 after 130", "1 after 0", "0 after 10", "-1 after 10"}
			if got[2] == "0 after 0" { // 5 s are rounded either way
				want[2] = got[2]
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("in this order (-want +got):\n%s", diff)
			}
		})
	}
}

// A claim reads what it takes, not the table.
func TestClaimsAreFoundByIndexes(t *testing.T) {
	t.Parallel()
	s := openURL(t, Config{URL: openStore(t).direct, MaxConns: 1})
	fill(t, s)
	claimFairly(t, s, loop.Room{Free: 1})
	plan := planOf(t, s, "ClaimRuns", []string{"w1", "c1", "{t2}", "{01900000-0000-7000-8000-000000000001}", "66", "{t1}", "{3}", "0", "1"})
	for _, index := range []string{"runs_claim", "runs_claim_fair"} {
		if !strings.Contains(plan, " "+index+" ") {
			t.Errorf("the plan does not use %s", index)
		}
	}
	// The table of the test is small enough to be read whole for the last look at what was
	// chosen; what chooses must not.
	chooses, _, _ := strings.Cut(plan, "CTE claimable")
	if strings.Contains(chooses, "Seq Scan on runs") || strings.Count(plan, "Seq Scan on runs") > 1 {
		t.Error("the plan reads the whole table")
	}
	if strings.Count(plan, "using runs_claim_fair") < 2 {
		t.Error("a tenant's next are not found by their index")
	}
	if t.Failed() {
		t.Log(plan)
	}
}

// Creates that arrive together are one commit; one that is refused fails alone, and a key
// makes one run whoever else is in the commit.
func TestCreatesShareACommit(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	s.creates.lead <- struct{}{} // somebody commits
	const n = 20
	ids, errs := make([]string, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			idem := Idempotency{Method: "CreateRun", Key: fmt.Sprint("k", i/2), Fingerprint: []byte("same")} // each key twice
			ids[i], _, errs[i] = s.CreateRun(t.Context(), newRef(), spec(), idem)
		})
	}
	for queued := 0; queued < n; {
		s.creates.mu.Lock()
		queued = len(s.creates.queue)
		s.creates.mu.Unlock()
	}
	<-s.creates.lead
	wg.Wait()

	for i := range n {
		if errs[i] != nil || ids[i] != ids[i/2*2] {
			t.Errorf("create %d made %s, its twin %s: %v", i, ids[i], ids[i/2*2], errs[i])
		}
	}
	if commits := scalar[int](t, s, "SELECT count(DISTINCT xmin::text) FROM runs"); commits != 1 {
		t.Errorf("%d commits made the runs, want 1", commits)
	}
	for what, query := range map[string]string{"runs": "runs", "first events": "events WHERE seq = 1 AND kind = 'created'", "accounts": "accounts", "keys": "idempotency"} {
		if got := scalar[int](t, s, "SELECT count(*) FROM "+query); got != n/2 {
			t.Errorf("%d %s, want %d", got, what, n/2)
		}
	}
}

func TestACreateThatIsRefusedFailsAlone(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	s.creates.lead <- struct{}{}
	var wg sync.WaitGroup
	var good, bad error
	wg.Go(func() { _, _, good = s.CreateRun(t.Context(), newRef(), spec(), Idempotency{}) })
	wg.Go(func() {
		_, _, bad = s.CreateRun(t.Context(), loop.RunRef{Tenant: tenant, ID: "no UUID"}, spec(), Idempotency{})
	})
	for queued := 0; queued < 2; {
		s.creates.mu.Lock()
		queued = len(s.creates.queue)
		s.creates.mu.Unlock()
	}
	<-s.creates.lead
	wg.Wait()
	if good != nil || bad == nil {
		t.Errorf("the good one ended with %v, the bad one with %v", good, bad)
	}
}

// A create whose caller has gone before it was sent is not made.
func TestACreateIsWithdrawn(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	s.creates.lead <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err := s.CreateRun(ctx, newRef(), spec(), Idempotency{})
	<-s.creates.lead
	if n := scalar[int](t, s, "SELECT count(*) FROM runs"); err == nil || n != 0 {
		t.Errorf("ended with %v, and %d runs", err, n)
	}
}

func TestPressure(t *testing.T) {
	t.Parallel()
	s := openURL(t, Config{URL: openStore(t).direct, MaxConns: 1})
	createFor(t, s, "loud", 1, loop.PriorityNormal, time.Hour)
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.Pressure(ctx); err == nil {
		t.Error("nobody had to wait for the only connection")
	}
	conn.Release()
	p, err := s.Pressure(t.Context())
	if err != nil || p.QueueAge < time.Hour || p.QueueAge > time.Hour+time.Minute {
		t.Errorf("pressure %+v, %v", p, err)
	}
	if n, err := s.QueuedRuns(t.Context(), "loud", 5); n != 1 || err != nil {
		t.Errorf("%d runs are queued, %v", n, err)
	}
}

// What a worker leaves to others takes no place among those it looks at, however long the
// queue is.
func TestSkippedRunsFillNoWindow(t *testing.T) {
	t.Parallel()
	for queue, others := range map[string]int{"short": 3, "long": 300} {
		t.Run(queue, func(t *testing.T) {
			t.Parallel()
			s := openStore(t)
			createFor(t, s, "acme", claimSlack+10, loop.PriorityNormal, time.Hour)
			createFor(t, s, "acme", others, loop.PriorityNormal, time.Minute)
			old := func(owned string) []string {
				rows, err := s.pool.Query(t.Context(), `SELECT run_id::text FROM runs WHERE available_at < now() - interval '30 minutes' AND `+owned)
				if err != nil {
					t.Fatal(err)
				}
				ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
				if err != nil {
					t.Fatal(err)
				}
				return ids
			}
			room := loop.Room{Free: 3}
			for _, id := range old("true") {
				room.Skip = append(room.Skip, loop.RunRef{Tenant: "acme", ID: id})
			}

			got := claimFairly(t, s, room)

			if taken := old("lease_owner IS NOT NULL"); got["acme"] != 3 || len(taken) > 0 {
				t.Errorf("claimed %v, of those to be skipped %v, want 3 others", got, taken)
			}
		})
	}
}

// A claim may take fewer runs than it has room for although more wait, as it looks at a few
// of each tenant only. Then it takes eight at least, by which its worker knows that it
// should ask again.
func TestWhoGetsFewHasGotAll(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	createFor(t, s, "loud", 900, loop.PriorityNormal, time.Hour)
	for i := range 3 {
		createFor(t, s, fmt.Sprint("quiet ", i), 1, loop.PriorityNormal, time.Minute)
	}
	const room = 256
	taken := 0
	for claims := 1; taken < room; claims++ {
		sum := 0
		for _, n := range claimFairly(t, s, loop.Room{Free: room - taken}) {
			sum += n
		}
		if taken += sum; sum < 8 && taken < room {
			t.Fatalf("claim %d took %d runs, %d so far, though there is room for %d and 903 wait", claims, sum, taken, room)
		}
	}
}
