package postgres

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loopd/loopd/internal/postgres/db"
)

// door holds log-ins up, until open is given something for each.
type door struct {
	open         chan struct{}
	inside, most atomic.Int64
	came         atomic.Int64
}

func (d *door) pass() {
	d.came.Add(1)
	inside := d.inside.Add(1)
	for most := d.most.Load(); inside > most && !d.most.CompareAndSwap(most, inside); most = d.most.Load() {
	}
	<-d.open
	d.inside.Add(-1)
}

// until polls what no channel tells.
func until(t *testing.T, what string, reached func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !reached() {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("never: %s", what)
		}
	}
}

// Whoever waits for a slow log-in is not joined by all others.
func TestFewLogInsAtOnce(t *testing.T) {
	t.Parallel()
	const readers = 8
	p, d := newProxy(t), &door{open: make(chan struct{})}
	s := openURL(t, Config{URL: p.url, MaxConns: readers})
	p.door.Store(d)
	hasty, leave := context.WithCancel(t.Context())
	results := make(chan error, readers)
	for i := range readers {
		ctx := t.Context()
		if i%2 == 0 {
			ctx = hasty
		}
		go func() { results <- s.Ready(ctx) }()
	}
	until(t, "all want a connection", func() bool { return s.pool.Stat().ConstructingConns() == readers })
	leave() // half of them give up; their log-ins go on, for others

	for i := range int64(readers) {
		until(t, "the next log-in", func() bool { return d.came.Load() > i })
		d.open <- struct{}{}
	}
	failed := 0
	for range readers {
		if err := <-results; err != nil {
			failed++
		}
	}

	if d.most.Load() > maxOpening {
		t.Errorf("%d log-ins at once, want at most %d", d.most.Load(), maxOpening)
	}
	if failed > readers/2 {
		t.Errorf("%d readers got no connection, want those who left", failed)
	}
	until(t, "a full pool", func() bool { return s.pool.Stat().TotalConns() == readers && s.pool.Stat().ConstructingConns() == 0 })
	if err := s.Ready(t.Context()); err != nil || d.came.Load() != readers {
		t.Errorf("after %d log-ins: %v", d.came.Load(), err)
	}
}

// A server that is away is not beset, and those in the queue are told with the first.
func TestFailedLogInsAnswerForTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const callers = 20
		g, away, tries := newGate(maxOpening), errors.New("away"), 0
		told := make(chan error, callers)
		connect := func(err error) {
			if refused := g.enter(t.Context()); refused != nil {
				told <- refused
				return
			}
			tries++
			began := time.Now()
			time.Sleep(time.Second)
			g.leave(began, err)
			told <- err
		}
		start := time.Now()
		for range callers {
			go connect(away)
		}
		for range callers {
			if err := <-told; !errors.Is(err, away) {
				t.Errorf("told %v", err)
			}
		}
		if tries > 2*maxOpening || time.Since(start) > 4*time.Second {
			t.Errorf("%d tries in %s for %d callers", tries, time.Since(start), callers)
		}

		start = time.Now()
		connect(nil)

		if err := <-told; err != nil || time.Since(start) == time.Second || time.Since(start) > time.Second+longestPause {
			t.Errorf("the next got %v after %s, want a connection after a pause", err, time.Since(start))
		}
		if wait, err := g.look(start); wait > 0 || err != nil {
			t.Errorf("after a success the next waits %s, error %v", wait, err)
		}
	})
}

// Who leaves the gate's queue takes no place with him.
func TestGateForgetsWhoLeaves(t *testing.T) {
	t.Parallel()
	g := newGate(1)
	g.leaveAfter(t, errors.New("away"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.enter(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("enter = %v", err)
	}
	g.leaveAfter(t, nil)
}

func (g *gate) leaveAfter(t *testing.T, err error) {
	t.Helper()
	if err := g.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.leave(time.Now(), err)
}

// A caller who leaves in the middle of a read costs no connection, since the next would
// have to log in.
func TestCancelledReadKeepsItsConnection(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	tx, err := s.appends.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "LOCK TABLE runs"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { _, err := s.GetRun(ctx, ref); result <- err }()
	waitFor(t, s, "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted")
	before := s.pool.Stat().NewConnsCount()

	cancel()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-result

	until(t, "all connections are back", func() bool { return s.pool.Stat().AcquiredConns() == 0 })
	if stat := s.pool.Stat(); stat.NewConnsCount() != before || int64(stat.TotalConns()) != before {
		t.Errorf("%d of %d connections are left, %d were opened", stat.TotalConns(), before, stat.NewConnsCount())
	}
}

// Nor does one who leaves before his transaction is committed: it is rolled back.
func TestCancelledTransactionKeepsItsConnection(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	before := s.pool.Stat().NewConnsCount()

	_, err := s.tryTx(ctx, func(q *db.Queries) error {
		defer cancel()
		_, err := q.LockRun(ctx, db.LockRunParams{TenantID: ref.Tenant, RunID: ref.ID})
		return err
	})

	wantErr(t, err, context.Canceled)
	if stat := s.pool.Stat(); int64(stat.TotalConns()) != before || stat.AcquiredConns() != 0 {
		t.Errorf("%d of %d connections are left, %d in use", stat.TotalConns(), before, stat.AcquiredConns())
	}
}

// Who gets in past a gate ends the pause of all who wait at it.
func TestOnesLogInOpensTheOtherGates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(maxOpening)
		for range 10 { // the pause is at its longest, half a second and up
			g.leaveAfter(t, errors.New("away"))
		}
		all := gates{}
		all.add(g)
		began, told := time.Now(), make(chan error, 1)
		go func() { told <- g.enter(t.Context()) }()
		synctest.Wait()

		all.reopen()

		if err := <-told; err != nil || time.Since(began) > lookAgain {
			t.Errorf("got in after %s, error %v", time.Since(began), err)
		}
	})
}
