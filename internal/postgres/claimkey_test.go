package postgres

import (
	"errors"
	"testing"
)

func TestClaimKey(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	idem := Idempotency{Method: "CallTool", Key: "k1", Fingerprint: []byte("a")}
	for _, claim := range []struct {
		tenant, name string
		idem         Idempotency
		want         string
		err          error
	}{
		{tenant, "first", idem, "first", nil},
		{tenant, "second", idem, "first", nil},
		{tenant, "third", Idempotency{Method: "CallTool", Key: "k1", Fingerprint: []byte("b")}, "", ErrKeyReused},
		{tenant, "fourth", Idempotency{}, "fourth", nil},
		{tenant, "fifth", Idempotency{}, "fifth", nil},
		{"other", "sixth", idem, "sixth", nil},
	} {
		got, err := s.ClaimKey(t.Context(), claim.tenant, claim.name, claim.idem)
		if !errors.Is(err, claim.err) || claim.err == nil && got != claim.want {
			t.Errorf("%s: got %q, %v, want %q, %v", claim.name, got, err, claim.want, claim.err)
		}
	}
}

// A claim whose answer was lost is the request's own, not that of an earlier one.
func TestUnknownOutcomeOfAClaimedKey(t *testing.T) {
	t.Parallel()
	for name, reply := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			s := openURL(t, Config{URL: p.url})
			if _, err := s.ClaimKey(t.Context(), tenant, "x", Idempotency{Method: "CallTool", Key: "k0", Fingerprint: []byte("a")}); err != nil {
				t.Fatal(err) // the statements are prepared now
			}

			p.cuts.Store(&cut{text: "commit", reply: reply})
			got, err := s.ClaimKey(t.Context(), tenant, "mine", Idempotency{Method: "CallTool", Key: "k1", Fingerprint: []byte("a")})

			if err != nil || got != "mine" || p.done.Load() != 1 {
				t.Errorf("got %q, %v after %d cuts, want its own name", got, err, p.done.Load())
			}
		})
	}
}

// TestReplayIsNoPlainRead: a request that finds its key used writes to the log, so that
// its commit waits for synchronous standbys as the first one's did. Otherwise an answer
// could tell of a commit that a failover loses.
func TestReplayIsNoPlainRead(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	idem := Idempotency{Method: "CreateRun", Key: "k1", Fingerprint: []byte("a")}
	if _, err := s.ClaimKey(t.Context(), tenant, "first", idem); err != nil {
		t.Fatal(err)
	}
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	earlier, replayed, err := idem.once(t.Context(), s.q.WithTx(tx), tenant, "second")
	if err != nil || !replayed || earlier != "first" {
		t.Fatalf("got %q, %v, %v", earlier, replayed, err)
	}
	var writes bool
	if err := tx.QueryRow(t.Context(), `SELECT pg_current_xact_id_if_assigned() IS NOT NULL`).Scan(&writes); err != nil || !writes {
		t.Errorf("the replay wrote nothing: %v", err)
	}
}
