package postgres

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/pgtest"
)

// proxy stands between the store and Postgres and cuts a connection once.
type proxy struct {
	url  string
	cuts atomic.Pointer[cut]
	done atomic.Int64 // cuts made
	down atomic.Bool  // true: connections are refused
	door atomic.Pointer[door]
}

// cut ends the connection whose client sends the text.
type cut struct {
	text  string
	reply bool // true: after the server has acted, before the client hears of it
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	config, err := pgx.ParseConfig(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	network, address := "tcp", fmt.Sprintf("%s:%d", config.Host, config.Port)
	if config.Host[0] == '/' {
		network, address = "unix", fmt.Sprintf("%s/.s.PGSQL.%d", config.Host, config.Port)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	port := listener.Addr().(*net.TCPAddr).Port
	p := &proxy{url: fmt.Sprintf("host=127.0.0.1 port=%d user=%s password='%s' dbname=%s sslmode=disable",
		port, config.User, config.Password, config.Database)}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(client, network, address)
		}
	}()
	return p
}

func (p *proxy) serve(client net.Conn, network, address string) {
	defer client.Close()
	if d := p.door.Load(); d != nil {
		d.pass()
	}
	if p.down.Load() {
		return
	}
	server, err := net.Dial(network, address)
	if err != nil {
		return
	}
	defer server.Close()
	var deaf atomic.Bool
	go pipe(client, server, func(sent []byte) bool {
		rule := p.cuts.Load()
		if rule == nil || !bytes.Contains(sent, []byte(rule.text)) || !p.cuts.CompareAndSwap(rule, nil) {
			return true
		}
		p.done.Add(1)
		deaf.Store(true)
		return rule.reply
	})
	pipe(server, client, func([]byte) bool { return !deaf.Load() })
}

// pipe copies until an end closes or pass refuses, and closes both.
func pipe(from, to net.Conn, pass func([]byte) bool) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 1<<16)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if !pass(buffer[:n]) {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// faults are the two ways in which an answer can be missing.
var faults = map[string]bool{"reply lost": true, "request lost": false}

func TestUnknownOutcomeOfAnAppend(t *testing.T) {
	t.Parallel()
	for name, reply := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			s := openURL(t, Config{URL: p.url})
			ref := create(t, s)
			lease := claimOne(t, s, "w1")
			mustAppend(t, s, lease, batch(lease, 2, claimed(lease))) // the statement is prepared now

			p.cuts.Store(&cut{text: "needle", reply: reply})
			mustAppend(t, s, lease, batch(lease, 3,
				loop.ModelStarted{Call: 1, Purpose: "needle", Hold: 10 * loop.MilliUSD}))

			if n := p.done.Load(); n != 1 {
				t.Fatalf("%d connections were cut, want 1", n)
			}
			if seq := lastSeq(t, s, ref); seq != 3 {
				t.Errorf("the journal has %d events, want 3", seq)
			}
			if _, held := account(t, s, ref); held != 10*loop.MilliUSD {
				t.Errorf("held %s, want 0.01 once", held)
			}
			mustAppend(t, s, lease, batch(lease, 4, loop.AnswerAccepted{}))
		})
	}
}

// The append was committed, and released the run, and another worker went on:
// still it was written.
func TestUnknownOutcomeOfARelease(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	s := openURL(t, Config{URL: p.url})
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	mustAppend(t, s, lease, batch(lease, 2, claimed(lease)))

	p.cuts.Store(&cut{text: "suspended", reply: true})
	b := batch(lease, 3, loop.Suspended{Reason: loop.WaitDrain})
	b.Head.State, b.Release = loop.StateQueued, true
	mustAppend(t, s, lease, b)

	next := claimOne(t, s, "w2")
	mustAppend(t, s, next, batch(next, 4, claimed(next)))
	lastSeq(t, s, ref)
}

// While Postgres is away nothing can be settled. Then the truth is told.
func TestUnknownOutcomeIsSettledWhenPostgresReturns(t *testing.T) {
	t.Parallel()
	for name, reply := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			s := openURL(t, Config{URL: p.url})
			ref := create(t, s)
			lease := claimOne(t, s, "w1")
			mustAppend(t, s, lease, batch(lease, 2, claimed(lease)))
			s.pool.Reset() // so that settling needs a new connection
			mustAppend(t, s, lease, batch(lease, 3, loop.AnswerAccepted{}))

			p.down.Store(true)
			p.cuts.Store(&cut{text: "needle", reply: reply})
			result := make(chan error, 1)
			go func() {
				result <- s.Append(t.Context(), lease, batch(lease, 4, loop.ModelStarted{Call: 1, Purpose: "needle"}))
			}()
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for p.done.Load() == 0 {
				<-tick.C
			}
			select {
			case err := <-result:
				t.Fatalf("the append ended with %v while nothing was known", err)
			case <-time.After(100 * time.Millisecond):
			}

			p.down.Store(false)

			if err := <-result; err != nil {
				t.Fatal(err)
			}
			if seq := lastSeq(t, s, ref); seq != 4 {
				t.Errorf("the journal has %d events, want 4", seq)
			}
		})
	}
}

func TestUnknownOutcomeOfACreate(t *testing.T) {
	t.Parallel()
	type oneCreate struct {
		key   string
		alone bool // in a transaction of its own, as one with attachments is
	}
	for name, reply := range faults {
		for _, c := range []oneCreate{{"", false}, {"key", false}, {"", true}, {"key", true}} {
			t.Run(fmt.Sprintf("%s key=%q alone=%v", name, c.key, c.alone), func(t *testing.T) {
				t.Parallel()
				p := newProxy(t)
				s := openURL(t, Config{URL: p.url})
				ref, key, sp, text := newRef(), c.key, spec(), "ORD-4892"
				if c.alone {
					sp, text = attached(), "commit\x00"
				}

				p.cuts.Store(&cut{text: text, reply: reply})
				id, replayed, err := s.CreateRun(t.Context(), ref, sp, Idempotency{Method: "CreateRun", Key: key, Fingerprint: []byte("f")})

				if err != nil || id != ref.ID || replayed {
					t.Fatalf("CreateRun = %s, %v, %v", id, replayed, err)
				}
				if n := p.done.Load(); n != 1 {
					t.Fatalf("%d connections were cut, want 1", n)
				}
				if n := scalar[int](t, s, "SELECT count(*) FROM events"); n != 1 {
					t.Errorf("%d events, want 1", n)
				}
			})
		}
	}
}

// Without a key a signal must not be repeated blindly: it could count twice.
func TestUnknownOutcomeOfASignal(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		key     string
		reply   bool
		signals int
		want    error
	}{
		{"key", true, 1, nil},
		{"key", false, 1, nil},
		{"", true, 1, ErrUnknownOutcome},
		{"", false, 0, ErrUnknownOutcome},
	} {
		t.Run(fmt.Sprintf("key=%q reply=%v", test.key, test.reply), func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			s := openURL(t, Config{URL: p.url})
			ref := create(t, s)

			p.cuts.Store(&cut{text: "commit\x00", reply: test.reply})
			err := s.Signal(t.Context(), ref, loop.CallResolved{CallID: "c1-1", Resolution: loop.ResolvedRetry},
				Idempotency{Method: "Resolve", Key: test.key, Fingerprint: []byte("f")})

			wantErr(t, err, test.want)
			if n := scalar[int](t, s, "SELECT count(*) FROM run_signals"); n != test.signals {
				t.Errorf("%d signals, want %d", n, test.signals)
			}
		})
	}
}

// Whatever is lost on the way, a family is told once.
func TestUnknownOutcomeOfAFamily(t *testing.T) {
	t.Parallel()
	for name, reply := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			s := openURL(t, Config{URL: p.url})
			hearer := park(t, s)
			parent := create(t, s)
			lease := claimOne(t, s, "w1")
			mustAppend(t, s, lease, batch(lease, 2, claimed(lease))) // the statement is prepared now

			b := handOut(lease, 3, childOf(parent, "c1-1"))
			b.Outgoing = []loop.Outgoing{{RunID: hearer.ID, Body: loop.CallResolved{CallID: "needle"}}}
			p.cuts.Store(&cut{text: "needle", reply: reply})
			mustAppend(t, s, lease, b)

			if n := p.done.Load(); n != 1 {
				t.Fatalf("%d connections were cut, want 1", n)
			}
			if n := scalar[int](t, s, "SELECT count(*) FROM runs WHERE depth = 1"); n != 1 {
				t.Errorf("%d children, want 1", n)
			}
			if n := scalar[int](t, s, "SELECT count(*) FROM run_signals"); n != 1 {
				t.Errorf("%d signals, want 1", n)
			}
		})
	}
}

// Decisions and results need no key: they are recognized when they are repeated.
func TestUnknownOutcomeOfADecision(t *testing.T) {
	t.Parallel()
	for name, reply := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			s := openURL(t, Config{URL: p.url})
			ref := park(t, s, asked("c1-1", soon()), asked("c1-2", soon()), offered("c1-3", soon()), offered("c1-4", soon()))
			decide := func(id, reason string) error {
				d := approve(id)
				d.Reason = reason
				_, err := s.Decide(t.Context(), ref, d)
				return err
			}
			submit := func(id, content string) error {
				_, err := s.SubmitResult(t.Context(), ref, result(id, 1, content))
				return err
			}
			for i, err := range []error{decide("c1-1", ""), submit("c1-3", "")} { // the statements are prepared now
				if err != nil {
					t.Fatalf("%d: %v", i, err)
				}
			}
			for i, do := range []func() error{
				func() error { return decide("c1-2", "needle") }, func() error { return submit("c1-4", "needle") },
			} {
				p.cuts.Store(&cut{text: "needle", reply: reply})
				if err := do(); err != nil {
					t.Errorf("%d: %v", i, err)
				}
			}
			if n := p.done.Load(); n != 2 {
				t.Errorf("%d connections were cut, want 2", n)
			}
			if n := scalar[int](t, s, "SELECT count(*) FROM run_signals"); n != 4 {
				t.Errorf("%d signals, want 4", n)
			}
		})
	}
}

// A claim that was committed unheard must not leave runs that nobody drives.
func TestUnknownOutcomeOfAClaim(t *testing.T) {
	t.Parallel()
	for name, reply := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			s := openURL(t, Config{URL: p.url})
			renew(t, s, "needle", time.Minute)
			claim(t, s, "needle", 2) // the statement is prepared now
			first, second := create(t, s), create(t, s)

			p.cuts.Store(&cut{text: "needle", reply: reply})
			if leases, err := s.Claim(t.Context(), "needle", 2); err == nil {
				t.Fatalf("the cut claim returned %v", leases)
			}

			var got []loop.RunRef
			for _, lease := range append(claim(t, s, "needle", 5), claim(t, s, "needle", 5)...) {
				got = append(got, lease.Run)
				mustAppend(t, s, lease, batch(lease, 2, claimed(lease)))
			}
			diff(t, "claimed runs", got, []loop.RunRef{first, second})
		})
	}
}

// An append whose context ends while its fate is unknown still tells the truth.
func TestCancelledAppendTellsTheTruth(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	s := openURL(t, Config{URL: p.url})
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	mustAppend(t, s, lease, batch(lease, 2, claimed(lease)))

	// Somebody holds the row for a moment.
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT 1 FROM runs FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- s.Append(ctx, lease, batch(lease, 3, loop.AnswerAccepted{})) }()
	waitFor(t, s, "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted")
	cancel()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	err = <-result
	if written := lastSeq(t, s, ref) == 3; written != (err == nil) {
		t.Errorf("written = %v, but the error is %v", written, err)
	}
}

// A takeover that commits while an append waits for the row is seen by the append: the
// epoch is read where the events are written, not before.
func TestTakeOverDuringAnAppend(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	mustAppend(t, s, lease, batch(lease, 2, claimed(lease)))
	renew(t, s, "w2", time.Minute)
	for _, results := range fences {
		tx, err := s.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), "UPDATE runs SET lease_owner = 'w2', lease_epoch = lease_epoch + 1"); err != nil {
			t.Fatal(err)
		}
		late := batch(lease, 3, loop.AnswerAccepted{})
		late.Results = results
		result := make(chan error, 1)
		go func() { result <- s.Append(t.Context(), lease, late) }()
		waitFor(t, s, "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted")
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}

		wantErr(t, <-result, loop.ErrLeaseLost)
		if seq := lastSeq(t, s, ref); seq != 2 {
			t.Errorf("the journal has %d events, want 2", seq)
		}
		lease.Owner, lease.Epoch = "w2", lease.Epoch+1
	}
}

// waitFor polls the database until the query is true.
func waitFor(t *testing.T, s *Store, query string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !scalar[bool](t, s, query) {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("never true: %s", query)
		}
	}
}

// A row that stays locked costs the append its tries, and nothing is written.
func TestLockedRow(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT 1 FROM runs FOR UPDATE"); err != nil {
		t.Fatal(err)
	}

	wantErr(t, s.Append(t.Context(), lease, batch(lease, 2, claimed(lease))), ErrUnavailable)

	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if seq := lastSeq(t, s, ref); seq != 1 {
		t.Errorf("the journal has %d events, want 1", seq)
	}
}

// A commit that fails after the statement succeeded is a failure.
func TestFailureAtCommit(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	for _, query := range []string{
		`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'at commit'; END $$`,
		`CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail()`,
	} {
		if _, err := s.pool.Exec(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Append(t.Context(), lease, batch(lease, 2, claimed(lease))); err == nil {
		t.Error("an append that was rolled back at commit was reported as written")
	}
	if seq := lastSeq(t, s, ref); seq != 1 {
		t.Errorf("the journal has %d events, want 1", seq)
	}
}

// A standby, or a primary that was demoted.
func TestReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	create(t, s)
	lease := claimOne(t, s, "w1")
	name := scalar[string](t, s, "SELECT current_database()")
	if _, err := s.pool.Exec(t.Context(), "ALTER DATABASE "+name+" SET default_transaction_read_only = on"); err != nil {
		t.Fatal(err)
	}
	s.pool.Reset()
	s.appends.Reset()
	wantErr(t, s.Append(t.Context(), lease, batch(lease, 2, claimed(lease))), ErrUnavailable)
	_, _, err := s.CreateRun(t.Context(), newRef(), spec(), Idempotency{})
	wantErr(t, err, ErrUnavailable)
}
