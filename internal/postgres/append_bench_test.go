package postgres

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/pgtest"
)

// BenchmarkAppendIteration writes one iteration as a worker does: a hold, an answer
// of 3 KB with two calls, their start, their results. Besides the time it reports the
// bytes that Postgres logs, which a busy machine does not change.
func BenchmarkAppendIteration(b *testing.B) {
	s, err := Open(b.Context(), Config{URL: pgtest.URL(b), MaxConns: 2})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	var w *benchWriter
	var logged int64
	for i := range b.N {
		if i%10 == 0 {
			b.StopTimer()
			w = newBenchWriter(b, s)
			b.StartTimer()
		}
		before := w.logged()
		w.iterate()
		logged += w.logged() - before
	}
	b.ReportMetric(float64(logged)/float64(b.N), "wal-B/op")
}

// benchWriter owns a run.
type benchWriter struct {
	b     *testing.B
	s     *Store
	lease loop.Lease
	state *loop.State
}

func newBenchWriter(b *testing.B, s *Store) *benchWriter {
	b.Helper()
	w := &benchWriter{b: b, s: s}
	ref, sp := newRef(), spec()
	sp.Limits.Cost = 100 * loop.OneUSD
	if _, _, err := s.CreateRun(b.Context(), ref, sp, Idempotency{}); err != nil {
		b.Fatal(err)
	}
	if err := s.Renew(b.Context(), "w1", time.Minute); err != nil {
		b.Fatal(err)
	}
	leases, err := s.Claim(b.Context(), "w1", 1)
	if err != nil || len(leases) != 1 {
		b.Fatalf("claimed %d runs: %v", len(leases), err)
	}
	w.lease = leases[0]
	events, err := s.Events(b.Context(), ref, 0, 10)
	if err != nil {
		b.Fatal(err)
	}
	if w.state, err = loop.Fold(ref, events); err != nil {
		b.Fatal(err)
	}
	w.append(loop.Claimed{Attempt: 1, Worker: "w1"})
	return w
}

func (w *benchWriter) iterate() {
	call := w.state.Head().ModelCalls + 1
	usage := loop.Usage{InputUncached: 200, CacheRead: 4000, CacheWrite5m: 500, Output: 120}
	w.append(loop.ModelStarted{Call: call, Model: "scripted/demo", MaxOutput: 1000, InputBound: 5000, Hold: loop.MilliUSD})
	parts := []loop.Part{loop.TextPart(strings.Repeat("word ", 600))}
	ids := []string{fmt.Sprintf("c%d-1", call), fmt.Sprintf("c%d-2", call)}
	for _, id := range ids {
		parts = append(parts, loop.Part{Kind: loop.PartToolCall, Call: &loop.ToolCall{ID: id, Name: "get_order", Args: `{"order":4892}`}})
	}
	w.append(loop.ModelAnswered{
		Call: call, Finish: loop.FinishToolCalls, Usage: usage, Cost: loop.Cost{Input: loop.MicroUSD},
		Message: loop.Message{Role: loop.RoleAssistant, Parts: parts},
	})
	var begun, done []loop.Body
	for _, id := range ids {
		begun = append(begun, loop.CallBegun{CallID: id, Attempt: 1, Key: "loopd:" + id})
		done = append(done, loop.CallFinished{CallID: id, Attempt: 1, Outcome: loop.OutcomeOK, Content: strings.Repeat("result ", 150), ResultHash: "0"})
	}
	w.append(begun...)
	w.append(done...)
}

func (w *benchWriter) append(bodies ...loop.Body) {
	var batch Batch
	for _, body := range bodies {
		e := loop.Event{Seq: w.state.Seq() + 1, At: at(0), Epoch: w.lease.Epoch, Body: body}
		if err := w.state.Apply(e); err != nil {
			w.b.Fatal(err)
		}
		batch.Events = append(batch.Events, e)
	}
	batch.Head, batch.Calls = w.state.Head(), w.state.TakeChangedCalls()
	if err := w.s.Append(w.b.Context(), w.lease, batch); err != nil {
		w.b.Fatal(err)
	}
}

// logged is how many bytes the server has logged so far, without its checkpoints'.
func (w *benchWriter) logged() (bytes int64) {
	w.b.StopTimer()
	defer w.b.StartTimer()
	const query = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"
	if err := w.s.pool.QueryRow(w.b.Context(), query).Scan(&bytes); err != nil {
		w.b.Fatal(err)
	}
	return bytes
}
