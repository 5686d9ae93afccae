package postgres

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/pgtest"
)

// BenchmarkAppend is the hot path of everything: the hold of a model call and its
// settlement, one append each, alone and in the company of other runs.
func BenchmarkAppend(b *testing.B) {
	for _, runs := range []int{1, 32} {
		b.Run(fmt.Sprintf("runs=%d", runs), func(b *testing.B) {
			leases := benchLeases(b, runs)
			b.ResetTimer()
			b.RunParallel(leases.appendAll)
		})
	}
}

type benchRuns struct {
	store *Store
	free  chan benchRun
}

type benchRun struct {
	lease loop.Lease
	seq   int64
	call  int
	drawn loop.USD
}

func benchLeases(b *testing.B, runs int) benchRuns {
	b.Helper()
	ctx := context.Background()
	s, err := Open(ctx, Config{URL: pgtest.URL(b)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	if err := s.Renew(ctx, "worker", time.Hour); err != nil {
		b.Fatal(err)
	}
	all := benchRuns{s, make(chan benchRun, runs)}
	for range runs {
		ref, spec := newRef(), spec()
		spec.Limits.Cost = 1000 * loop.OneUSD
		if _, _, err := s.CreateRun(ctx, ref, spec, Idempotency{}); err != nil {
			b.Fatal(err)
		}
	}
	leases, err := s.Claim(ctx, "worker", runs)
	if err != nil || len(leases) != runs {
		b.Fatalf("claimed %d of %d runs: %v", len(leases), runs, err)
	}
	for _, l := range leases {
		all.free <- benchRun{lease: l, seq: 2, call: 1}
	}
	b.SetParallelism(runs) // goroutines per core; a run is driven by one at a time
	return all
}

func (r benchRuns) appendAll(pb *testing.PB) {
	for pb.Next() {
		run := <-r.free
		hold := batch(run.lease, run.seq, loop.ModelStarted{Call: run.call, Model: "scripted/demo", Hold: loop.MilliUSD})
		cost := batch(run.lease, run.seq+1, loop.ModelAnswered{Call: run.call, Finish: loop.FinishDone, Cost: loop.Cost{Output: loop.MicroUSD}})
		for _, batch := range []Batch{hold, cost} {
			if err := r.store.Append(context.Background(), run.lease, batch); err != nil {
				panic(err)
			}
		}
		run.seq, run.call = run.seq+2, run.call+1
		r.free <- run
	}
}

// BenchmarkDraw is what budgets cost a model call: nothing without them, one question
// while what was drawn is enough, and a transaction else.
func BenchmarkDraw(b *testing.B) {
	all := benchLeases(b, 1)
	run := <-all.free
	ctx := context.Background()
	draw := func(b *testing.B, amount func(i int) loop.USD) {
		b.Helper()
		for i := 0; b.Loop(); i++ {
			if refused, err := all.store.Draw(ctx, run.lease, need(amount(i))); err != nil || refused != nil {
				b.Fatalf("draw: %+v, %v", refused, err)
			}
		}
	}
	same := func(int) loop.USD { return loop.MilliUSD }
	b.Run("none", func(b *testing.B) { draw(b, same) })
	budget := Budget{Name: "daily", Window: WindowDay, TimeZone: "UTC", Amount: 1_000_000 * loop.OneUSD, Act: loop.VerdictStop}
	if _, err := all.store.CreateBudget(ctx, tenant, budget, BudgetAuthor{}, Idempotency{}); err != nil {
		b.Fatal(err)
	}
	b.Run("enough", func(b *testing.B) { draw(b, same) })
	most := loop.USD(0)
	b.Run("drawn", func(b *testing.B) {
		draw(b, func(int) loop.USD { most += loop.OneUSD; return most })
	})
}

// BenchmarkSharedDraw is many runs that draw on one budget at once: each waits for those
// before it, for as long as they hold the account.
func BenchmarkSharedDraw(b *testing.B) {
	const runs = 64
	all := benchLeases(b, runs)
	ctx := context.Background()
	budget := Budget{Name: "daily", Window: WindowDay, TimeZone: "UTC", Amount: 9_000_000 * loop.OneUSD, Act: loop.VerdictStop}
	if _, err := all.store.CreateBudget(ctx, tenant, budget, BudgetAuthor{}, Idempotency{}); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			run := <-all.free
			run.drawn += loop.OneUSD
			if refused, err := all.store.Draw(ctx, run.lease, need(run.drawn)); err != nil || refused != nil {
				panic(fmt.Sprintf("draw: %+v, %v", refused, err))
			}
			all.free <- run
		}
	})
}
