package postgres

import (
	"bytes"
	"context"
	"fmt"

	"github.com/loopd/loopd/internal/postgres/db"
)

// Idempotency makes a request safe to repeat: under one key of a tenant and method
// there is at most one effect. The zero value makes none.
type Idempotency struct {
	Method      string // such as "CreateRun"
	Key         string // the caller's; empty: the request is not repeatable
	Fingerprint []byte // hash of the request; the same key with another one is ErrKeyReused
}

// once claims the key for resource in the caller's transaction. If an earlier
// request did so, it returns the resource of that one, and the caller changes
// nothing.
func (i Idempotency) once(ctx context.Context, q *db.Queries, tenant, resource string) (earlier string, replayed bool, err error) {
	if i.Key == "" {
		return "", false, nil
	}
	claimed, err := q.ClaimKey(ctx, db.ClaimKeyParams{
		TenantID: tenant, Method: i.Method, Key: i.Key, Fingerprint: i.Fingerprint, Resource: resource,
	})
	if err != nil || claimed == 1 {
		return "", false, err
	}
	row, err := q.GetKey(ctx, db.GetKeyParams{TenantID: tenant, Method: i.Method, Key: i.Key})
	if err != nil {
		return "", false, err
	}
	if !bytes.Equal(row.Fingerprint, i.Fingerprint) {
		return "", false, fmt.Errorf("%s: %w", i.Method, ErrKeyReused)
	}
	return row.Resource, true, nil
}

// keep corrects the resource of a key that the same transaction claimed.
func (i Idempotency) keep(ctx context.Context, q *db.Queries, tenant, resource string) error {
	if i.Key == "" {
		return nil
	}
	return q.SetKeyResource(ctx, db.SetKeyResourceParams{TenantID: tenant, Method: i.Method, Key: i.Key, Resource: resource})
}
