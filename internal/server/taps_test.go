package server

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

func TestTapsDropTheOldest(t *testing.T) {
	t.Parallel()
	taps := newTaps()
	a, b := loop.RunRef{Tenant: "x", ID: "a"}, loop.RunRef{Tenant: "x", ID: "b"}
	deltas, leave := taps.subscribe(a)
	others, leaveOthers := taps.subscribe(b)
	for n := range int64(tapBatches + 3) {
		taps.send(postgres.DeltaBatch{Run: a, N: n + 1})
	}
	taps.send(postgres.DeltaBatch{Run: loop.RunRef{Tenant: "y", ID: "b"}, N: 1}) // another tenant's

	if got := (<-deltas).N; got != 4 || len(deltas) != tapBatches-1 {
		t.Errorf("the first batch is %d and %d more wait, want 4 and %d", got, len(deltas), tapBatches-1)
	}
	if len(others) != 0 {
		t.Errorf("%d batches of somebody else's run arrived", len(others))
	}
	leave()
	taps.send(postgres.DeltaBatch{Run: a, N: 99})
	leaveOthers()
	if len(taps.all()) != 0 || len(deltas) != tapBatches-1 {
		t.Errorf("after leaving, %v is open and %d batches wait", taps.all(), len(deltas))
	}
}

func TestTapsAnnounceEachRunOnceAtOnce(t *testing.T) {
	t.Parallel()
	taps := newTaps()
	a := loop.RunRef{Tenant: "x", ID: "a"}
	_, leave := taps.subscribe(a)
	_, leaveToo := taps.subscribe(a)
	if len(taps.opened) != 1 {
		t.Error("nobody was told that a run is shown")
	}
	if diff := cmp.Diff([]loop.RunRef{a}, taps.takeFresh()); diff != "" {
		t.Errorf("fresh runs (-want +got):\n%s", diff)
	}
	leave()
	if fresh := taps.takeFresh(); len(fresh) != 0 {
		t.Errorf("%v is fresh again", fresh)
	}
	if diff := cmp.Diff([]loop.RunRef{a}, taps.all()); diff != "" {
		t.Errorf("open runs (-want +got):\n%s", diff)
	}
	leaveToo()
}
