package postgres

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

func TestCreateOncePerKey(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	const callers = 50
	idem := Idempotency{Method: "CreateRun", Key: "order-4892", Fingerprint: []byte("a")}
	ids, replays := make([]string, callers), make([]bool, callers)
	var wg sync.WaitGroup
	for i := range callers {
		ref := newRef()
		wg.Go(func() {
			var err error
			if ids[i], replays[i], err = s.CreateRun(t.Context(), ref, spec(), idem); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()

	slices.Sort(ids)
	if distinct := slices.Compact(ids); len(distinct) != 1 {
		t.Errorf("callers got the runs %v", distinct)
	}
	fresh := slices.DeleteFunc(replays, func(replayed bool) bool { return replayed })
	if len(fresh) != 1 {
		t.Errorf("%d callers created a run, want 1", len(fresh))
	}
	for _, table := range []string{"runs", "events", "accounts", "idempotency"} {
		if n := scalar[int](t, s, "SELECT count(*) FROM "+table); n != 1 {
			t.Errorf("%s has %d rows, want 1", table, n)
		}
	}

	other := idem
	other.Fingerprint = []byte("b")
	_, _, err := s.CreateRun(t.Context(), newRef(), spec(), other)
	wantErr(t, err, ErrKeyReused)
	// Another tenant and another method have keys of their own.
	globex := newRef()
	globex.Tenant = "globex"
	if id, replayed, err := s.CreateRun(t.Context(), globex, spec(), other); err != nil || replayed || id != globex.ID {
		t.Errorf("other tenant: %s, %v, %v", id, replayed, err)
	}
}

func TestRunsOfOthersAreNotFound(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	other := loop.RunRef{Tenant: "globex", ID: ref.ID}
	_, err := s.GetRun(t.Context(), other)
	wantErr(t, err, loop.ErrNotFound)
	_, err = s.Events(t.Context(), other, 0, 10)
	wantErr(t, err, loop.ErrNotFound)
	wantErr(t, s.Signal(t.Context(), other, loop.CancelRequested{}, Idempotency{}), loop.ErrNotFound)
	for what, list := range map[string]func() (int, error){
		"runs": func() (int, error) {
			l, err := s.ListRuns(t.Context(), "globex", RunFilter{}, RunCursor{}, 9)
			return len(l), err
		},
		"tool calls": func() (int, error) { l, err := s.ToolCalls(t.Context(), other); return len(l), err },
	} {
		if n, err := list(); n != 0 || err != nil {
			t.Errorf("%s of another tenant: %d, %v", what, n, err)
		}
	}
}

func TestListRuns(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	var refs []loop.RunRef
	for i := range 7 {
		ref, sp := newRef(), spec()
		sp.Agent = fmt.Sprintf("agents/a%d", i%2)
		if _, _, err := s.CreateRun(t.Context(), ref, sp, Idempotency{}); err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	// Runs that were created in the same microsecond are told apart by id.
	if _, err := s.pool.Exec(t.Context(), "UPDATE runs SET created_at = '2026-01-01Z' WHERE run_id::text >= $1", refs[3].ID); err != nil {
		t.Fatal(err)
	}
	if err := s.Signal(t.Context(), refs[5], loop.CancelRequested{}, Idempotency{}); err != nil {
		t.Fatal(err)
	}
	newest := []loop.RunRef{refs[2], refs[1], refs[0], refs[6], refs[5], refs[4], refs[3]}

	for _, test := range []struct {
		name   string
		filter RunFilter
		want   []loop.RunRef
	}{
		{"all", RunFilter{}, newest},
		{"agent", RunFilter{Agent: "agents/a1"}, []loop.RunRef{refs[1], refs[5], refs[3]}},
		{"states", RunFilter{States: []loop.RunState{loop.StateCancelling, loop.StateFailed}}, []loop.RunRef{refs[5]}},
		{"both", RunFilter{Agent: "agents/a0", States: []loop.RunState{loop.StateCancelling}}, nil},
	} {
		for _, size := range []int{1, 2, 100} {
			t.Run(fmt.Sprintf("%s by %d", test.name, size), func(t *testing.T) {
				var got []loop.RunRef
				var after RunCursor
				for {
					page, err := s.ListRuns(t.Context(), tenant, test.filter, after, size)
					if err != nil {
						t.Fatal(err)
					}
					if len(page) > size {
						t.Fatalf("a page of %d has %d runs", size, len(page))
					}
					for _, run := range page {
						got = append(got, run.Ref)
						after = RunCursor{CreatedAt: run.CreatedAt, ID: run.Ref.ID}
					}
					if len(page) < size {
						break
					}
				}
				diff(t, "runs", got, test.want)
			})
		}
	}

	counts, err := s.CountRuns(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "counts", counts, map[loop.RunState]int64{
		loop.StateQueued: 6, loop.StateCancelling: 1, loop.StateRunning: 0, loop.StateRequiresAction: 0, loop.StatePaused: 0,
	})
}
