package postgres

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/loopd/loopd/internal/loop"
)

func TestToolVersions(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ctx := t.Context()
	v1 := Tool{Tenant: tenant, ID: "issue_refund", DisplayName: "Refund", Description: "Pays back.", Labels: map[string]string{"a": "1"},
		Spec: []byte(`{"b":1,  "a":"\u0000"}`)}
	v2 := Tool{Tenant: tenant, ID: "issue_refund", DisplayName: "Refunds", Spec: []byte(`{"v":2}`)}
	key := func(k string) Idempotency { return Idempotency{Method: "tool", Key: k, Fingerprint: []byte(k)} }

	created, err := s.CreateTool(ctx, v1, key("create"))
	if err != nil {
		t.Fatal(err)
	}
	want := v1
	want.Version, want.LatestVersion = 1, 1
	times := cmpopts.IgnoreFields(Tool{}, "CreatedAt", "UpdatedAt")
	diff(t, "created", created, want, times)
	if created.CreatedAt.IsZero() || created.UpdatedAt.IsZero() {
		t.Errorf("created %+v without times", created)
	}
	_, err = s.CreateTool(ctx, v1, Idempotency{})
	wantErr(t, err, ErrToolExists)

	updated, err := s.UpdateTool(ctx, v2, key("update"))
	if err != nil {
		t.Fatal(err)
	}
	want = v2
	want.Version, want.LatestVersion, want.Labels = 2, 2, map[string]string{}
	diff(t, "updated", updated, want, times)

	// Repeated requests get the version that they made, and make none.
	if _, err := s.UpdateTool(ctx, v1, Idempotency{}); err != nil {
		t.Fatal(err)
	}
	again, err := s.UpdateTool(ctx, v2, key("update"))
	if err != nil || again.Version != 2 || again.LatestVersion != 3 {
		t.Errorf("repeated update: %+v, %v", again, err)
	}
	again, err = s.CreateTool(ctx, v1, key("create"))
	if err != nil || again.Version != 1 {
		t.Errorf("repeated create: %+v, %v", again, err)
	}
	old, err := s.GetTool(ctx, tenant, "issue_refund", 1)
	if err != nil || string(old.Spec) != string(v1.Spec) {
		t.Errorf("version 1: %s, %v, want the bytes %s", old.Spec, err, v1.Spec)
	}

	_, err = s.GetTool(ctx, tenant, "issue_refund", 9)
	wantErr(t, err, ErrToolVersionNotFound)
	wantErr(t, err, loop.ErrNotFound)
	if errors.Is(err, ErrVersionNotFound) {
		t.Errorf("a tool's version that is missing is an agent's: %v", err)
	}
	toolErr := func(_ Tool, err error) error { return err }
	for _, missing := range []error{
		toolErr(s.GetTool(ctx, tenant, "other", 0)), toolErr(s.GetTool(ctx, tenant, "other", 1)),
		toolErr(s.GetTool(ctx, "globex", "issue_refund", 0)), toolErr(s.ArchiveTool(ctx, tenant, "other", Idempotency{})),
		toolErr(s.UpdateTool(ctx, Tool{Tenant: tenant, ID: "other", Spec: v1.Spec}, key("other"))),
	} {
		wantErr(t, missing, loop.ErrNotFound)
	}

	var archivedAt time.Time
	for range 2 {
		archived, err := s.ArchiveTool(ctx, tenant, "issue_refund", Idempotency{})
		if err != nil || archived.ArchivedAt.IsZero() || !archivedAt.IsZero() && !archived.ArchivedAt.Equal(archivedAt) {
			t.Errorf("archived at %s, before at %s, %v", archived.ArchivedAt, archivedAt, err)
		}
		archivedAt = archived.ArchivedAt
	}
	_, err = s.UpdateTool(ctx, v2, Idempotency{})
	wantErr(t, err, ErrToolArchived)
	for _, id := range []string{"c", "a", "b"} {
		if _, err := s.CreateTool(ctx, Tool{Tenant: tenant, ID: id, Spec: []byte(`{}`)}, Idempotency{}); err != nil {
			t.Fatal(err)
		}
	}
	ids := func(after string, limit int, archived bool) (list string) {
		tools, err := s.ListTools(ctx, tenant, after, limit, archived)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range tools {
			list += fmt.Sprint(tool.ID, tool.Version, " ")
		}
		return list
	}
	diff(t, "tools in use", ids("", 10, false), "a1 b1 c1 ")
	diff(t, "all tools", ids("", 10, true), "a1 b1 c1 issue_refund3 ")
	diff(t, "second page", ids("a", 1, true), "b1 ")
}

// Updates that arrive together make one version each.
func TestToolUpdatesTakeTurns(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	tool := Tool{Tenant: tenant, ID: "a", Spec: []byte(`{}`)}
	if _, err := s.CreateTool(t.Context(), tool, Idempotency{}); err != nil {
		t.Fatal(err)
	}
	const updates = 30
	versions := make([]bool, updates+2)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range updates {
		wg.Go(func() {
			made, err := s.UpdateTool(t.Context(), tool, Idempotency{})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			versions[made.Version] = true
		})
	}
	wg.Wait()
	for v := 2; v < len(versions); v++ {
		if !versions[v] {
			t.Errorf("nobody made version %d", v)
		}
	}
}
