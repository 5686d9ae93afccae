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
