package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/pgtest"
)

func text(s string) loop.Delta { return loop.Delta{Kind: loop.PartText, Text: s} }

// eventually waits until done is true.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(20 * time.Second)
	defer late.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-late.C:
			t.Fatalf("waited 20 s for %s", what)
		}
	}
}

// worker runs a sender of deltas.
func worker(t *testing.T, s *Store) *Deltas {
	t.Helper()
	d := NewDeltas(s)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	for _, part := range d.Parts() {
		go func() { ended <- part(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range d.Parts() {
			if err := <-ended; err != nil {
				t.Errorf("a part of the deltas failed: %v", err)
			}
		}
	})
	return d
}

// listener hears all deltas of the database. It hears when the function returns.
func listener(t *testing.T, s *Store) <-chan DeltaBatch {
	t.Helper()
	heard, ended := make(chan DeltaBatch, 1000), make(chan error)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- s.ListenDeltas(ctx, func(b DeltaBatch) { heard <- b }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("listening for deltas ended with %v", err)
		}
	})
	waitFor(t, s, `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN "loopd_deltas"' AND state = 'idle'`)
	return heard
}

// watch says that a run is watched until the worker knows.
func watch(t *testing.T, s *Store, d *Deltas, run loop.RunRef) {
	t.Helper()
	eventually(t, "the worker to hear that a run is watched", func() bool {
		if err := s.Watch(t.Context(), run); err != nil {
			t.Fatal(err)
		}
		return d.Watched(run)
	})
}

func TestDeltasReachWhoWatchesOnAnotherReplica(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	s, other := openURL(t, Config{URL: url}), openURL(t, Config{URL: url})
	d, heard := worker(t, s), listener(t, other)
	run := newRef()
	watch(t, other, d, run)

	d.Emit(run, 3, loop.Delta{Kind: loop.PartReasoning, Text: "hm"})
	d.Emit(run, 3, text("On "))
	d.Emit(run, 3, text("its\x00 <way>."))
	d.Emit(run, 3, loop.Delta{Kind: loop.PartToolCall, Tool: "get_order"})
	d.Emit(run, 3, loop.Delta{Kind: loop.PartToolCall, Text: `{"id":`})
	d.Emit(run, 3, loop.Delta{Kind: loop.PartToolCall, Text: `1}`})
	var got []fragment
	for n := int64(1); len(got) == 0 || got[len(got)-1].Text != `{"id":1}`; n++ {
		b := <-heard
		if b.Run != run || b.Call != 3 || b.N != n {
			t.Fatalf("batch %d is %+v", n, b)
		}
		for _, f := range b.Fragments {
			got = join(got, fragment(f))
		}
	}
	want := []fragment{
		{Kind: loop.PartReasoning, Text: "hm"},
		{Kind: loop.PartText, Text: "On its\x00 <way>."},
		{Kind: loop.PartToolCall, Tool: "get_order", Text: `{"id":1}`},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fragments (-want +got):\n%s", diff)
	}
}

// TestNothingIsPublishedUnwatched: notices come in the order of their commits, so
// what is heard first was sent first.
func TestNothingIsPublishedUnwatched(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	d, heard := worker(t, s), listener(t, s)
	watched, unwatched := newRef(), newRef()
	for range 100 {
		d.Emit(unwatched, 1, text("for nobody"))
	}
	watch(t, s, d, watched)
	d.Emit(unwatched, 1, text("for nobody"))
	d.Emit(watched, 1, text("for you"))

	want := DeltaBatch{Run: watched, Call: 1, N: 1, Fragments: []loop.Delta{text("for you")}}
	if diff := cmp.Diff(want, <-heard); diff != "" {
		t.Errorf("the first notice (-want +got):\n%s", diff)
	}
	if d.Watched(unwatched) {
		t.Error("a run that nobody watches counts as watched")
	}
}

func TestWhoComesLateSeesAGap(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	d, heard := worker(t, s), listener(t, s)
	run := newRef()
	d.Emit(run, 1, text("missed"))
	watch(t, s, d, run)
	d.Emit(run, 1, text("seen"))
	first := <-heard
	d.Emit(run, 2, text("all of it"))
	second := <-heard

	if first.N != 2 || second.Call != 2 || second.N != 1 {
		t.Errorf("the batches have the numbers %d and %d (call %d), want 2 and 1 (call 2)", first.N, second.N, second.Call)
	}
}

// TestDeltasNeverBlock: without a flush everything beyond a bound is dropped, and the
// next batch shows it.
func TestDeltasNeverBlock(t *testing.T) {
	t.Parallel()
	d := NewDeltas(openStore(t))
	runs := make([]loop.RunRef, 2*maxPending/maxRunPending)
	for i := range runs {
		runs[i] = newRef()
		d.watch(runs[i].ID)
		for range 2 * maxRunPending / 100 {
			d.Emit(runs[i], 1, text(strings.Repeat("x", 100)))
		}
	}
	if d.pending > maxPending || d.streams[runs[0]].bytes > maxRunPending {
		t.Errorf("%d bytes wait, %d of one run, want at most %d and %d", d.pending, d.streams[runs[0]].bytes, maxPending, maxRunPending)
	}

	sent := func() []DeltaBatch {
		var batches []DeltaBatch
		for _, taken := range d.take() {
			for _, payload := range taken.encode() {
				batches = append(batches, decodeNotice(t, payload))
			}
		}
		return batches
	}
	before := sent()
	var last int64
	for _, b := range before {
		if b.Run == runs[0] {
			last++
			if b.N != last {
				t.Errorf("batch %d has the number %d", last, b.N)
			}
		}
	}
	d.Emit(runs[0], 1, text("afterwards"))
	want := []DeltaBatch{{Run: runs[0], Call: 1, N: last + 2, Fragments: []loop.Delta{text("afterwards")}}}
	if diff := cmp.Diff(want, sent()); diff != "" {
		t.Errorf("after the loss (-want +got):\n%s", diff)
	}
	if d.pending != 0 {
		t.Errorf("%d bytes wait after everything was taken", d.pending)
	}
}

func decodeNotice(t *testing.T, payload string) DeltaBatch {
	t.Helper()
	var n notice
	if err := decode("payload", []byte(payload), &n); err != nil {
		t.Fatal(err)
	}
	return n.batch()
}

// TestNoticesFitAndLoseNothing over texts of all kinds and sizes.
func TestNoticesFitAndLoseNothing(t *testing.T) {
	t.Parallel()
	for name, unit := range map[string]string{
		"letters": "abc", "quotes": `"\`, "control": "\x00\x1f", "wide": "日本🙂", "markup": "<a href='x'>&amp;</a>", "lines": "\n\r\t\u2028",
	} {
		for _, size := range []int{1, 7_000, 7_800, 7_900, 20_000, maxRunPending} {
			whole := strings.Repeat(unit, size/len(unit)+1)
			in := taken{stream: &stream{run: newRef(), call: 7}, fragments: []fragment{
				{Kind: loop.PartReasoning, Text: "short"}, {Kind: loop.PartToolCall, Tool: "find", Text: whole}, {Kind: loop.PartText, Text: whole},
			}}
			var got []fragment
			for i, payload := range in.encode() {
				if len(payload) > maxNotice {
					t.Errorf("%s of %d bytes: a payload has %d bytes", name, size, len(payload))
				}
				b := decodeNotice(t, payload)
				if b.N != int64(i+1) {
					t.Errorf("%s of %d bytes: payload %d has the number %d", name, size, i+1, b.N)
				}
				for _, f := range b.Fragments {
					got = join(got, fragment(f))
				}
			}
			if diff := cmp.Diff(in.fragments, got); diff != "" {
				t.Errorf("%s of %d bytes (-sent +received):\n%s", name, size, diff)
			}
		}
	}
}

// TestRunsShareOneFlush: NOTIFY takes a lock of the whole database, so a flush takes
// it once.
func TestRunsShareOneFlush(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	s := openURL(t, Config{URL: pgtest.URL(t), Registerer: registry})
	d, heard := NewDeltas(s), listener(t, s)
	const runs = 20
	for i := range runs {
		run := newRef()
		d.watch(run.ID)
		d.Emit(run, 1, text(fmt.Sprint(i)))
	}
	if err := d.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for i := range runs {
		b := <-heard
		got, want = append(got, b.Fragments[0].Text), append(want, fmt.Sprint(i))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("notices (-want +got):\n%s", diff)
	}
	if n := statements(t, registry, "NotifyDeltas"); n != 1 {
		t.Errorf("they took %d statements, want 1", n)
	}
}

// statements counts how often a query was sent.
func statements(t *testing.T, registry *prometheus.Registry, query string) uint64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "loopd_db_query_duration_seconds" && metric.GetLabel()[0].GetValue() == query {
				return metric.GetHistogram().GetSampleCount()
			}
		}
	}
	return 0
}

func TestWatchesAndAnswersAreForgotten(t *testing.T) {
	t.Parallel()
	d := NewDeltas(openStore(t))
	run, late := newRef(), newRef()
	d.watch(run.ID)
	d.Emit(late, 1, text("x"))
	if !d.Watched(run) {
		t.Fatal("the run is not watched")
	}

	d.sweep(time.Now().Add(2 * WatchEvery))
	if !d.Watched(run) || len(d.streams) != 1 {
		t.Error("a watch that is two repetitions old was forgotten, or an answer that goes on")
	}
	d.sweep(time.Now().Add(2 * streamIdle))
	if d.Watched(run) || len(d.watched) != 0 || len(d.streams) != 0 {
		t.Errorf("%d watches and %d answers are still known", len(d.watched), len(d.streams))
	}
}

func TestWhatAnOlderCallWroteIsDropped(t *testing.T) {
	t.Parallel()
	d := NewDeltas(openStore(t))
	run := newRef()
	d.watch(run.ID)
	d.Emit(run, 2, text("new"))
	d.Emit(run, 1, text("old"))
	all := d.take()
	if len(all) != 1 || all[0].stream.call != 2 || all[0].fragments[0].Text != "new" {
		t.Errorf("waiting: %+v", all)
	}
}

// BenchmarkEmitUnwatched is what streaming costs a run that nobody watches.
func BenchmarkEmitUnwatched(b *testing.B) {
	d := NewDeltas(&Store{})
	run := newRef()
	for b.Loop() {
		d.Emit(run, 1, text("some words"))
	}
}
