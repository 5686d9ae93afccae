package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
	"github.com/loopd/loopd/internal/postgres/pgtest"
)

// What the store does when Postgres says no, and where it is tried:
//
//	commit outcome unknown       re-read, then repeat or report  TestUnknownOutcomeOf*: create, append, release, claim, signal, decision
//	40001, 40P01, 55P03          the whole transaction again, at most 3 times, never a part  TestConflictsAreRepeated, TestLockedRow
//	57014                        not repeated: it has waited already  TestErrorsAreNotRepeated
//	53100, 53300                 refused as unavailable, nothing written  TestErrorsAreNotRepeated, TestFullPool
//	25006                        refused as unavailable, all connections anew  TestReadOnlyDatabase, TestPromotedPrimaryIsFound
//	57P01, 57P02                 as an unknown outcome  TestEndedSessions
//	commit that was a rollback   a failure, never a success  TestRollbackAtCommit, TestFailureAtCommit
//	22021, 22P02, 22P05          never sent: text is made valid before  TestAnyTextIsKept
//	events or epoch gone back    refused, counted, told as ErrCommitsLost  TestLostCommits
//	frozen in a transaction      ended by the server  TestFrozenOwnerLetsGo

// failing makes inserts of events fail with a code: the first times of them, all if it
// is negative. It returns a function that counts the tries.
func failing(t *testing.T, s *Store, code string, times int) (tries func() int) {
	t.Helper()
	for _, query := range []string{
		"CREATE SEQUENCE tries",
		fmt.Sprintf(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE n bigint := nextval('tries'); BEGIN
			IF n <= %d OR %d < 0 THEN RAISE EXCEPTION 'bad luck' USING ERRCODE = '%s'; END IF;
			RETURN NEW;
		END $$`, times, times, code),
		`CREATE TRIGGER fail BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION fail()`,
	} {
		if _, err := s.pool.Exec(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	return func() int {
		return scalar[int](t, s, "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tries")
	}
}

func TestConflictsAreRepeated(t *testing.T) {
	t.Parallel()
	for _, code := range []string{codeSerialization, codeDeadlock, codeLockTimeout} {
		for _, times := range []int{2, -1} {
			t.Run(fmt.Sprint(code, times), func(t *testing.T) {
				t.Parallel()
				s := openStore(t)
				ref := create(t, s)
				lease := claimOne(t, s, "w1")
				tries := failing(t, s, code, times)

				err := s.Append(t.Context(), lease, batch(lease, 2, claimed(lease), loop.AnswerAccepted{}))

				if want := map[bool]int64{true: 3, false: 1}[times > 0]; (err == nil) != (times > 0) || lastSeq(t, s, ref) != want {
					t.Errorf("error %v, the journal has %d events, want %d", err, lastSeq(t, s, ref), want)
				}
				if n := tries(); times < 0 && n != maxTries {
					t.Errorf("%d tries, want %d", n, maxTries)
				}
				if _, _, err := s.CreateRun(t.Context(), newRef(), spec(), Idempotency{}); (err == nil) != (times > 0) {
					t.Errorf("create: %v", err)
				}
			})
		}
	}
}

// What would fail again is told at once, as a reason to come back later.
func TestErrorsAreNotRepeated(t *testing.T) {
	t.Parallel()
	for _, code := range []string{codeQueryCanceled, codeDiskFull, codeTooManyConnections} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			s := openStore(t)
			ref := create(t, s)
			lease := claimOne(t, s, "w1")
			tries := failing(t, s, code, -1)

			wantErr(t, s.Append(t.Context(), lease, batch(lease, 2, claimed(lease))), ErrUnavailable)
			_, _, err := s.CreateRun(t.Context(), newRef(), spec(), Idempotency{Method: "CreateRun", Key: "k", Fingerprint: []byte("f")})
			wantErr(t, err, ErrUnavailable)

			if n := tries(); n != 2 {
				t.Errorf("%d tries of two writes", n)
			}
			if n := scalar[int](t, s, "SELECT count(*) FROM runs"); n != 1 || lastSeq(t, s, ref) != 1 {
				t.Errorf("%d runs and %d events are there", n, lastSeq(t, s, ref))
			}
			if n := scalar[int](t, s, "SELECT count(*) FROM idempotency"); n != 0 {
				t.Errorf("%d keys were kept of creates that failed", n)
			}
		})
	}
}

// A worker renews, and its runs append, while requests use up the pool; those wait no
// longer than they want to.
func TestFullPool(t *testing.T) {
	t.Parallel()
	s := openURL(t, Config{URL: pgtest.URL(t), MaxConns: 2})
	create(t, s)
	lease := claimOne(t, s, "w1")
	for range 2 {
		conn, err := s.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}

	renew(t, s, "w1", time.Minute)
	if err := s.Append(t.Context(), lease, batch(lease, 2, claimed(lease))); err != nil {
		t.Errorf("append: %v", err)
	}
	if err := s.Retire(t.Context(), "w1"); err != nil {
		t.Errorf("retire: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err := s.CreateRun(ctx, newRef(), spec(), Idempotency{})
	wantErr(t, err, ErrUnavailable)
}

// Sessions that are ended from outside, as by a shutdown, in the middle of a write.
func TestEndedSessions(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	mustAppend(t, s, lease, batch(lease, 2, claimed(lease)))
	blocker, err := pgx.Connect(t.Context(), s.pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer blocker.Close(context.Background())
	if _, err := blocker.Exec(t.Context(), "BEGIN; SELECT 1 FROM runs FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- s.Append(t.Context(), lease, batch(lease, 3, loop.AnswerAccepted{})) }()
	const blocked = `FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
	waitFor(t, s, "SELECT count(*) > 0 "+blocked)

	if n := scalar[int](t, s, "SELECT count(pg_terminate_backend(pid)) "+blocked); n == 0 {
		t.Fatal("no session was ended")
	}
	if _, err := blocker.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}

	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if seq := lastSeq(t, s, ref); seq != 3 {
		t.Errorf("the journal has %d events, want 3", seq)
	}
}

// Postgres answers the commit of a failed transaction with a rollback, and no error.
func TestRollbackAtCommit(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	err := s.inTx(t.Context(), true, func(q *db.Queries) error {
		_, _ = q.LockRun(t.Context(), db.LockRunParams{TenantID: tenant, RunID: "no uuid"})
		return nil // somebody forgot
	})
	wantErr(t, err, pgx.ErrTxCommitRollback)
	if errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("the outcome is known: %v", err)
	}
}

// A standby that was promoted, or an address that leads to another server now: the
// sessions of before go on refusing, so they are given up.
func TestPromotedPrimaryIsFound(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	create(t, s)
	lease := claimOne(t, s, "w1")
	admin, err := pgx.Connect(t.Context(), s.pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	alter := func(how string) {
		t.Helper()
		name := pgx.Identifier{admin.Config().Database}.Sanitize()
		if _, err := admin.Exec(t.Context(), "SET default_transaction_read_only = off; ALTER DATABASE "+name+" "+how); err != nil {
			t.Fatal(err)
		}
	}
	alter("SET default_transaction_read_only = on")
	s.reconnect()
	s.reconnected.Store(0)
	wantErr(t, s.Append(t.Context(), lease, batch(lease, 2, claimed(lease))), ErrUnavailable)
	wantErr(t, s.Renew(t.Context(), "w1", time.Minute), ErrUnavailable)

	alter("RESET default_transaction_read_only")

	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for name, try := range map[string]func() error{
		"append": func() error { return s.Append(t.Context(), lease, batch(lease, 2, claimed(lease))) },
		"renew":  func() error { return s.Renew(t.Context(), "w1", time.Minute) },
		"create": func() error { _, _, err := s.CreateRun(t.Context(), newRef(), spec(), Idempotency{}); return err },
	} {
		for err := try(); err != nil; err = try() {
			select {
			case <-tick.C:
			case <-t.Context().Done():
				t.Fatalf("%s never works again: %v", name, err)
			}
		}
	}
}

// Text that Postgres would not take as it is comes back as near to it as JSON can.
func TestAnyTextIsKept(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	for name, text := range map[string]string{
		"NUL": "a\x00b", "invalid UTF-8": "a\xff\xfeb", "half a rune": "a\xe2\x82", "lone surrogate": "a\xed\xa0\x80b",
		"escaped NUL": `a\u0000b`, "bidi": "a\u202eb\u200b", "no text at all": "\x00", "planes": "\U0010ffff",
	} {
		t.Run(name, func(t *testing.T) {
			ref, sp := newRef(), spec()
			sp.Input, sp.Labels = text, map[string]string{"l": text}
			if _, _, err := s.CreateRun(t.Context(), ref, sp, Idempotency{Method: "CreateRun", Key: "k" + name, Fingerprint: []byte(text)}); err != nil {
				t.Fatal(err)
			}
			lease := claimOne(t, s, "w1")
			tool := loop.ToolCall{ID: "c1-1", Name: text, Args: text}
			b := batch(lease, 2, claimed(lease), loop.ModelStarted{Call: 1},
				loop.ModelAnswered{Call: 1, ResponseID: text, ResponseModel: text, NativeFinish: text, Message: loop.Message{Parts: []loop.Part{loop.TextPart(text), {Kind: loop.PartToolCall, Call: &tool}}}},
				loop.ApprovalDecided{CallID: "c1-1", By: text, Reason: text}, loop.Crashed(text))
			b.Head.Answer, b.Head.State, b.Release = text, loop.StateRequiresAction, true
			b.Calls = []loop.CallHead{{Call: tool, Iteration: 1, Effect: loop.ReadOnly, State: loop.CallAwaitingApproval, DecidedBy: text, Result: text, Asked: text}}
			mustAppend(t, s, lease, b)

			want := string([]rune(text)) // as JSON has it: a mark for each byte that is no UTF-8
			got := getRun(t, s, ref)
			diff(t, "input", got.Input, want)
			diff(t, "answer", got.Head.Answer, want)
			events, err := s.Events(t.Context(), ref, 0, 10)
			if err != nil {
				t.Fatal(err)
			}
			diff(t, "answer in the journal", events[3].Body.(loop.ModelAnswered).Message.Text(), want)
			if name == "NUL" || name == "bidi" {
				diff(t, "nothing is lost", want, text)
			}
		})
	}
}

// A failover to a standby that lagged behind: what was acknowledged is gone. The
// worker that knows of it writes nothing more, and says so.
func TestLostCommits(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lose string // what the failover did
		want []error
	}{
		"events": {"UPDATE runs SET next_seq = 3", []error{loop.ErrCommitsLost, loop.ErrRefused, ErrWrongSeq}},
		"claim":  {"UPDATE runs SET lease_epoch = 0, lease_owner = NULL", []error{loop.ErrCommitsLost, loop.ErrLeaseLost}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openStore(t)
			create(t, s)
			lease := claimOne(t, s, "w1")
			mustAppend(t, s, lease, batch(lease, 2, claimed(lease)))
			mustAppend(t, s, lease, batch(lease, 3, loop.ModelStarted{Call: 1}))
			if _, err := s.pool.Exec(t.Context(), test.lose); err != nil {
				t.Fatal(err)
			}

			err := s.Append(t.Context(), lease, batch(lease, 4, loop.AnswerAccepted{}))

			for _, want := range test.want {
				wantErr(t, err, want)
			}
			if n := testutil.ToFloat64(s.metrics.lost); n != 1 {
				t.Errorf("loopd_db_lost_commits_total = %v, want 1", n)
			}
		})
	}
}

// A process that is frozen between BEGIN and COMMIT holds the row of a run. The server
// ends its session after 5 s (here: 0.2 s), and then the takeover works.
func TestFrozenOwnerLetsGo(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	create(t, s)
	old := claimOne(t, s, "w1")
	frozen, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer frozen.Release()
	if _, err := frozen.Exec(t.Context(), "SET idle_in_transaction_session_timeout = '200ms'"); err != nil {
		t.Fatal(err)
	}
	if _, err := frozen.Exec(t.Context(), "BEGIN; UPDATE runs SET phase = phase"); err != nil {
		t.Fatal(err)
	}
	expire(t, s, "w1")
	renew(t, s, "w2", time.Minute)

	var leases []loop.Lease
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for len(leases) == 0 {
		if leases, err = s.Claim(t.Context(), "w2", 1); err != nil {
			t.Fatal(err)
		}
		<-tick.C
	}
	if leases[0].Epoch != old.Epoch+1 {
		t.Errorf("epoch %d after %d", leases[0].Epoch, old.Epoch)
	}
	if _, err := frozen.Exec(t.Context(), "COMMIT"); err == nil {
		t.Error("the frozen transaction was committed")
	}
	wantErr(t, s.Append(t.Context(), old, batch(old, 2, claimed(old))), loop.ErrLeaseLost)
}
