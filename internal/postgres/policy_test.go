package postgres

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/loopd/loopd/internal/loop"
)

func policy(name, tool string) Policy {
	return Policy{Name: name, Tool: tool, Agents: []string{"agents/support"}, Condition: "args.amount <= 50", MaxPerDay: 7, By: "ann"}
}

func TestPolicyVersions(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ctx := t.Context()
	key := func(k string) Idempotency { return Idempotency{Method: "policy", Key: k, Fingerprint: []byte(k)} }
	created, err := s.CreatePolicy(ctx, tenant, policy("small", "issue_refund"), key("create"))
	if err != nil {
		t.Fatal(err)
	}
	want := policy("small", "issue_refund")
	want.Version = 1
	times := cmpopts.IgnoreFields(Policy{}, "CreatedAt")
	diff(t, "created", created, want, times)
	if created.CreatedAt.IsZero() {
		t.Error("created without a time")
	}
	_, err = s.CreatePolicy(ctx, tenant, policy("small", "x"), Idempotency{})
	wantErr(t, err, ErrPolicyExists)
	again, err := s.CreatePolicy(ctx, tenant, policy("small", "issue_refund"), key("create"))
	if err != nil || again.Version != 1 {
		t.Errorf("repeated create: %+v, %v", again, err)
	}

	moved := Policy{Name: "small", Tool: "send_mail", Condition: "true", MaxPerDay: 1}
	updated, err := s.UpdatePolicy(ctx, tenant, moved, key("update"))
	if err != nil {
		t.Fatal(err)
	}
	moved.Version = 2
	diff(t, "updated", updated, moved, times)
	old, err := s.GetPolicy(ctx, tenant, "small", 1)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "version 1", old, want, times)
	newest, err := s.GetPolicy(ctx, tenant, "small", 0)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "newest", newest, moved, times)

	_, err = s.GetPolicy(ctx, tenant, "small", 9)
	wantErr(t, err, ErrPolicyVersionNotFound)
	policyErr := func(_ Policy, err error) error { return err }
	for _, missing := range []error{
		policyErr(s.GetPolicy(ctx, tenant, "other", 0)), policyErr(s.GetPolicy(ctx, "globex", "small", 0)),
		policyErr(s.UpdatePolicy(ctx, tenant, policy("other", "x"), Idempotency{})),
		policyErr(s.ArchivePolicy(ctx, tenant, "other", Idempotency{})),
	} {
		wantErr(t, missing, loop.ErrNotFound)
	}
}

func TestPoliciesOfATool(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ctx := t.Context()
	for _, p := range []Policy{policy("b", "issue_refund"), policy("a", "issue_refund"), policy("c", "issue_refund"), policy("d", "send_mail")} {
		if _, err := s.CreatePolicy(ctx, tenant, p, Idempotency{}); err != nil {
			t.Fatal(err)
		}
	}
	archived, err := s.ArchivePolicy(ctx, tenant, "c", Idempotency{})
	if err != nil || !archived.Archived {
		t.Errorf("archived: %+v, %v", archived, err)
	}
	_, err = s.UpdatePolicy(ctx, tenant, policy("c", "issue_refund"), Idempotency{})
	wantErr(t, err, ErrPolicyArchived)
	if _, err := s.UpdatePolicy(ctx, tenant, policy("b", "issue_refund"), Idempotency{}); err != nil {
		t.Fatal(err)
	}
	names := func(list []Policy, err error) (names string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			names += fmt.Sprint(p.Name, p.Version, " ")
		}
		return names
	}
	diff(t, "of the tool", names(s.Policies(ctx, tenant, "issue_refund")), "a1 b2 ")
	diff(t, "of another tenant", names(s.Policies(ctx, "globex", "issue_refund")), "")
	diff(t, "in use", names(s.ListPolicies(ctx, tenant, "", 10, false)), "a1 b2 d1 ")
	diff(t, "all", names(s.ListPolicies(ctx, tenant, "", 10, true)), "a1 b2 c1 d1 ")
	diff(t, "page", names(s.ListPolicies(ctx, tenant, "a", 2, true)), "b2 c1 ")
	if ok, err := s.UsePolicy(ctx, tenant, "c", 1, time.Now(), 9); ok || err != nil {
		t.Errorf("an archived policy approves: %v, %v", ok, err)
	}
}

func TestUsesOfAPolicyAreBounded(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ctx := t.Context()
	if _, err := s.CreatePolicy(ctx, tenant, policy("small", "issue_refund"), Idempotency{}); err != nil {
		t.Fatal(err)
	}
	use := func(tenant string, version int64, day time.Time, most int) bool {
		t.Helper()
		ok, err := s.UsePolicy(ctx, tenant, "small", version, day, most)
		if err != nil {
			t.Error(err)
		}
		return ok
	}
	today := time.Date(2026, 11, 30, 1, 30, 0, 0, time.FixedZone("CET", 3600)) // 0:30 in UTC
	var used atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if use(tenant, 1, today, 7) {
				used.Add(1)
			}
		})
	}
	wg.Wait()
	if used.Load() != 7 {
		t.Errorf("%d calls were approved, want 7", used.Load())
	}
	if day := scalar[string](t, s, "SELECT day::text || ' ' || uses FROM policy_uses"); day != "2026-11-30 7" {
		t.Errorf("counted %s", day)
	}
	for _, test := range []struct {
		name    string
		tenant  string
		version int64
		day     time.Time
		most    int
		want    bool
	}{
		{"the same day, by another clock", tenant, 1, today.Add(23 * time.Hour).UTC(), 7, false},
		{"a larger bound", tenant, 1, today, 8, true},
		{"the day before", tenant, 1, today.Add(-time.Hour), 7, true},
		{"no bound", tenant, 1, today.AddDate(0, 0, 1), 0, false},
		{"other version", tenant, 2, today.AddDate(0, 0, 1), 7, false},
		{"other tenant", "globex", 1, today.AddDate(0, 0, 1), 7, false},
	} {
		if got := use(test.tenant, test.version, test.day, test.most); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
	// Another version goes on counting, and the one before approves nothing.
	if _, err := s.UpdatePolicy(ctx, tenant, policy("small", "issue_refund"), Idempotency{}); err != nil {
		t.Fatal(err)
	}
	if use(tenant, 1, today, 100) || use(tenant, 2, today, 8) || !use(tenant, 2, today, 9) {
		t.Error("a new version starts to count anew, or the old one still approves")
	}
}
