package postgres

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/loopd/loopd/internal/loop"
)

// Each member of a group gets its own answer, whichever statement writes it: one that
// the fence holds back costs the others nothing, and a run that is in the group twice
// goes on where its first append ended.
func TestAGroupAnswersEachOfItsAppends(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	for range 3 {
		create(t, s)
	}
	renew(t, s, "w1", time.Minute)
	leases := claim(t, s, "w1", 3)
	if len(leases) != 3 {
		t.Fatalf("claimed %d runs, want 3", len(leases))
	}
	lost := leases[1]
	lost.Epoch--
	whole := batch(leases[2], 2, claimed(leases[2]))
	whole.Results = []loop.FullResult{{CallID: "c1-1", Attempt: 1, Text: "all of it"}}
	first := member(t, leases[0], batch(leases[0], 2, claimed(leases[0])))
	second := member(t, leases[0], batch(leases[0], 3, loop.ModelStarted{Call: 1, Hold: loop.MilliUSD}))
	fenced, unusual := member(t, lost, batch(lost, 2, claimed(lost))), member(t, leases[2], whole)

	usual, others := divide([]*pending{first, second, fenced, unusual})
	diff(t, "usual, others", []int{len(usual), len(others)}, []int{2, 2})
	s.commitGroup([]*pending{first, second, fenced, unusual})

	for name, test := range map[string]struct {
		of   *pending
		want error
	}{"first": {first, nil}, "second": {second, nil}, "fenced": {fenced, pgx.ErrNoRows}, "unusual": {unusual, nil}} {
		if err := <-test.of.done; !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	for i, want := range []int64{3, 1, 2} {
		if seq := lastSeq(t, s, leases[i].Run); seq != want {
			t.Errorf("run %d has %d events, want %d", i, seq, want)
		}
	}
	if _, held := account(t, s, leases[0].Run); held != loop.MilliUSD {
		t.Errorf("held %s, want %s", held, loop.MilliUSD)
	}
}

// Two tenants can have a run of one id. What the fence holds back of the one is not
// written beside what the other writes.
func TestAGroupTellsTenantsApart(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	create(t, s) // sorted, it comes between the two
	other := loop.RunRef{Tenant: "globex", ID: ref.ID}
	if _, _, err := s.CreateRun(t.Context(), other, spec(), Idempotency{}); err != nil {
		t.Fatal(err)
	}
	renew(t, s, "w1", time.Minute)
	var group []*pending
	for _, lease := range claim(t, s, "w1", 3) {
		b := batch(lease, 2, claimed(lease))
		if lease.Run == other {
			lease.Epoch--
		}
		group = append(group, member(t, lease, b))
	}
	s.commitGroup(group)
	for _, p := range group {
		want, seq := error(nil), int64(2)
		if p.params.TenantID == other.Tenant {
			want, seq = pgx.ErrNoRows, 1
		}
		if err := <-p.done; !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", p.params.TenantID, err, want)
		}
		if got := lastSeq(t, s, loop.RunRef{Tenant: p.params.TenantID, ID: p.params.RunID}); got != seq {
			t.Errorf("%s: %d events, want %d", p.params.TenantID, got, seq)
		}
	}
}

// member is an append as its group knows it.
func member(t *testing.T, lease loop.Lease, b Batch) *pending {
	t.Helper()
	params, err := appendParams(lease, b, false)
	if err != nil {
		t.Fatal(err)
	}
	return &pending{params: params, done: make(chan error, 1)}
}
