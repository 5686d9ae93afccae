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
	member := func(lease loop.Lease, b Batch) *pending {
		params, err := appendParams(lease, b)
		if err != nil {
			t.Fatal(err)
		}
		return &pending{params: params, done: make(chan error, 1)}
	}
	lost := leases[1]
	lost.Epoch--
	whole := batch(leases[2], 2, claimed(leases[2]))
	whole.Results = []loop.FullResult{{CallID: "c1-1", Attempt: 1, Text: "all of it"}}
	first := member(leases[0], batch(leases[0], 2, claimed(leases[0])))
	second := member(leases[0], batch(leases[0], 3, loop.ModelStarted{Call: 1, Hold: loop.MilliUSD}))
	fenced, unusual := member(lost, batch(lost, 2, claimed(lost))), member(leases[2], whole)

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
