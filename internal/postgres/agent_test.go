package postgres

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/loopd/loopd/internal/loop"
)

func TestAgentVersions(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ctx := t.Context()
	v1 := Agent{Tenant: tenant, ID: "support", DisplayName: "Support", Labels: map[string]string{"a": "1"},
		Spec: []byte(`{"b":1,  "a":"\u0000"}`), Limits: []byte(`{}`)}
	v2 := Agent{Tenant: tenant, ID: "support", DisplayName: "Help", Spec: []byte(`{"v":2}`)}
	key := func(k string) Idempotency { return Idempotency{Method: "agent", Key: k, Fingerprint: []byte(k)} }

	created, err := s.CreateAgent(ctx, v1, key("create"))
	if err != nil {
		t.Fatal(err)
	}
	want1 := v1
	want1.Version, want1.LatestVersion = 1, 1
	times := cmpopts.IgnoreFields(Agent{}, "CreatedAt", "UpdatedAt")
	diff(t, "created", created, want1, times)
	if created.CreatedAt.IsZero() || created.UpdatedAt.IsZero() {
		t.Errorf("created %+v without times", created)
	}
	_, err = s.CreateAgent(ctx, v1, Idempotency{})
	wantErr(t, err, ErrAgentExists)

	updated, err := s.UpdateAgent(ctx, v2, key("update"))
	if err != nil {
		t.Fatal(err)
	}
	want2 := v2
	want2.Version, want2.LatestVersion, want2.Labels = 2, 2, map[string]string{}
	diff(t, "updated", updated, want2, times)

	// Repeated requests get the version that they made, and make none.
	if _, err := s.UpdateAgent(ctx, v1, Idempotency{}); err != nil {
		t.Fatal(err)
	}
	again, err := s.UpdateAgent(ctx, v2, key("update"))
	if err != nil || again.Version != 2 || again.LatestVersion != 3 {
		t.Errorf("repeated update: %+v, %v", again, err)
	}
	again, err = s.CreateAgent(ctx, v1, key("create"))
	if err != nil || again.Version != 1 {
		t.Errorf("repeated create: %+v, %v", again, err)
	}
	old, err := s.GetAgent(ctx, tenant, "support", 1)
	if err != nil || string(old.Spec) != string(v1.Spec) {
		t.Errorf("version 1: %s, %v, want the bytes %s", old.Spec, err, v1.Spec)
	}

	_, err = s.GetAgent(ctx, tenant, "support", 9)
	wantErr(t, err, ErrVersionNotFound)
	wantErr(t, err, loop.ErrNotFound)
	for _, missing := range []error{
		second(s.GetAgent(ctx, tenant, "sales", 0)), second(s.GetAgent(ctx, tenant, "sales", 1)),
		second(s.GetAgent(ctx, "globex", "support", 0)), second(s.ArchiveAgent(ctx, tenant, "sales", Idempotency{})),
		second(s.UpdateAgent(ctx, Agent{Tenant: tenant, ID: "sales", Spec: v1.Spec}, key("sales"))),
	} {
		wantErr(t, missing, loop.ErrNotFound)
	}
}

func second(_ Agent, err error) error { return err }

func TestArchiveAndListAgents(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	for _, id := range []string{"c", "a", "b"} {
		if _, err := s.CreateAgent(t.Context(), Agent{Tenant: tenant, ID: id, Spec: []byte(`{}`)}, Idempotency{}); err != nil {
			t.Fatal(err)
		}
	}
	var archivedAt time.Time
	for range 2 {
		archived, err := s.ArchiveAgent(t.Context(), tenant, "b", Idempotency{})
		if err != nil {
			t.Fatal(err)
		}
		if archived.ArchivedAt.IsZero() || (!archivedAt.IsZero() && !archived.ArchivedAt.Equal(archivedAt)) {
			t.Errorf("archived at %s, before at %s", archived.ArchivedAt, archivedAt)
		}
		archivedAt = archived.ArchivedAt
	}
	_, err := s.UpdateAgent(t.Context(), Agent{Tenant: tenant, ID: "b", Spec: []byte(`{}`)}, Idempotency{})
	wantErr(t, err, ErrAgentArchived)

	ids := func(after string, limit int, archived bool) string {
		agents, err := s.ListAgents(t.Context(), tenant, after, limit, archived)
		if err != nil {
			t.Fatal(err)
		}
		list := ""
		for _, a := range agents {
			list += a.ID
		}
		return list
	}
	diff(t, "agents in use", ids("", 10, false), "ac")
	diff(t, "all agents", ids("", 10, true), "abc")
	diff(t, "second page", ids("a", 1, true), "b")
}
