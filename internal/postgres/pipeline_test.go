package postgres

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/loopd/loopd/internal/postgres/db"
)

// What is written in a pipeline is committed as a whole or not at all, whoever is the
// first to hear of a failure, and a failure costs no connection.
func TestPipeline(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	fails := errors.New("it fails")
	worker, runs := "", 0
	write := func(q *db.Queries, ttl float64) error {
		_, err := q.RenewWorker(t.Context(), db.RenewWorkerParams{WorkerID: worker, TtlSeconds: ttl})
		return err
	}
	ask := func(q *db.Queries, tenant string) error {
		_, err := q.LockRun(t.Context(), db.LockRunParams{TenantID: tenant, RunID: ref.ID})
		return err
	}
	for name, c := range map[string]struct {
		fn      func(q *db.Queries) error
		err     error
		state   string
		written bool
	}{
		"nothing":             {fn: func(*db.Queries) error { return nil }},
		"written":             {written: true, fn: func(q *db.Queries) error { return write(q, 60) }},
		"written, then asked": {written: true, fn: func(q *db.Queries) error { return errors.Join(write(q, 60), ask(q, ref.Tenant)) }},
		"asked, then written": {written: true, fn: func(q *db.Queries) error { return errors.Join(ask(q, ref.Tenant), write(q, 60)) }},
		"no row":              {err: pgx.ErrNoRows, fn: func(q *db.Queries) error { return errors.Join(write(q, 60), ask(q, "nobody")) }},
		"given up":            {err: fails, fn: func(q *db.Queries) error { return errors.Join(write(q, 60), fails) }},
		"given up later":      {err: fails, fn: func(q *db.Queries) error { return errors.Join(write(q, 60), ask(q, ref.Tenant), fails) }},
		"told by a question":  {state: "22008", fn: func(q *db.Queries) error { return errors.Join(write(q, math.Inf(1)), ask(q, ref.Tenant)) }},
		"told by the commit":  {state: "22008", fn: func(q *db.Queries) error { return errors.Join(write(q, 60), write(q, math.Inf(1))) }},
	} {
		runs++
		worker = fmt.Sprint("w", runs)
		opened := s.pool.Stat().NewConnsCount()

		err := s.inPipeline(t.Context(), c.fn)

		if sqlState(err) != c.state || c.state == "" && !errors.Is(err, c.err) {
			t.Errorf("%s: error %v", name, err)
		}
		if now := s.pool.Stat(); now.NewConnsCount() != opened || now.AcquiredConns() != 0 {
			t.Errorf("%s: %d connections were opened, %d are in use", name, now.NewConnsCount()-opened, now.AcquiredConns())
		}
		var written bool
		if err := s.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT 1 FROM workers WHERE worker_id = $1)`, worker).Scan(&written); err != nil || written != c.written {
			t.Errorf("%s: written: %v, error %v", name, written, err)
		}
	}
}
