package main

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// BenchmarkTakeover measures how long a run is without a worker, from the signal to the
// claim by another one, at the default lease of 15 s: after SIGKILL between two renewals,
// and after SIGTERM. One iteration ends ten workers, a third of a second apart:
//
//	go test -run '^$' -bench Takeover -benchtime 2x -timeout 10m ./cmd/loopd
func BenchmarkTakeover(b *testing.B) {
	for _, bench := range []struct {
		name string
		end  func(p *process)
	}{
		{"kill", func(p *process) { p.kill() }},
		{"terminate", func(p *process) { p.terminate() }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var took []float64
			for b.Loop() {
				took = append(took, takeovers(b, bench.end)...)
			}
			slices.Sort(took)
			b.ReportMetric(took[len(took)/2], "p50-s")
			b.ReportMetric(took[(len(took)*99+99)/100-1], "p99-s")
			b.ReportMetric(float64(len(took)), "takeovers")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// takeovers ends ten workers that each drive one run, and returns the seconds until
// the survivor claimed each.
func takeovers(b *testing.B, end func(p *process)) []float64 {
	const victims = 10
	db, tools := pgURL(b), newToolServer(b)
	defer close(tools.release)
	var runs []string
	var workers []*process
	for range victims {
		p := start(b, db, callThenAnswer, "--lease-ttl", "15s", "--max-runs", "1", "--drain-grace", "100ms")
		p.agent("worker", tools.tool("act", loopdv1.Effect_EFFECT_READ_ONLY))
		runs = append(runs, p.start("worker").GetName())
		tools.next(b)
		workers = append(workers, p)
	}
	start(b, db, callThenAnswer, "--lease-ttl", "15s")
	pool := connect(b, db)
	tick := time.NewTicker(333 * time.Millisecond)
	defer tick.Stop()
	began := make([]time.Time, victims)
	for i, p := range workers {
		<-tick.C
		// The database's time, which the claim is told in.
		if err := pool.QueryRow(b.Context(), "SELECT clock_timestamp()").Scan(&began[i]); err != nil {
			b.Fatal(err)
		}
		end(p)
	}
	var took []float64
	for i := range runs {
		tools.next(b) // sent again
		took = append(took, claimedAgain(b, pool, runs[i]).Sub(began[i]).Seconds())
	}
	return took
}

// claimedAgain waits until the run is claimed a second time, and returns when that was.
func claimedAgain(b *testing.B, pool *pgxpool.Pool, run string) time.Time {
	const query = `SELECT at FROM events WHERE kind = 'claimed' AND run_id = $1 ORDER BY seq OFFSET 1 LIMIT 1`
	id := run[len("runs/"):]
	for tick := time.NewTicker(50 * time.Millisecond); ; <-tick.C {
		var at time.Time
		if err := pool.QueryRow(b.Context(), query, id).Scan(&at); err == nil {
			return at
		}
		if b.Context().Err() != nil {
			b.Fatal("never claimed again")
		}
	}
}
