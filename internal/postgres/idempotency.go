package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

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
// nothing. What is returned is safe to acknowledge once the transaction is committed.
//
// That takes more than reading. The commit of the earlier request may still have been
// waiting for a synchronous standby when its client gave up; Postgres then ends the wait,
// and everybody sees a commit that a failover would lose.
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
	row, err := q.ConfirmKey(ctx, db.ConfirmKeyParams{TenantID: tenant, Method: i.Method, Key: i.Key})
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

// ClaimKey claims the key of a request whose effect is outside of the database, before
// the effect. The effect bears name, which no other request has given. If an earlier
// request claimed the key it returns the name of that one's effect, else name. The
// error is ErrKeyReused if that was another request.
func (s *Store) ClaimKey(ctx context.Context, tenant, name string, idem Idempotency) (string, error) {
	if idem.Key == "" {
		return name, nil
	}
	claimed := name
	err := s.inTx(ctx, true, func(q *db.Queries) error {
		// A try whose commit was lost finds its own name.
		earlier, used, err := idem.once(ctx, q, tenant, name)
		if used {
			claimed = earlier
		}
		return err
	})
	return claimed, wrap("claim the key of "+idem.Method, err)
}

// Answered reports whether an earlier request claimed the key, so that repeating it
// brings an answer and no effect.
func (s *Store) Answered(ctx context.Context, tenant string, idem Idempotency) (bool, error) {
	if idem.Key == "" {
		return false, nil
	}
	_, err := s.q.GetKey(ctx, db.GetKeyParams{TenantID: tenant, Method: idem.Method, Key: idem.Key})
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, wrap("look up the key of "+idem.Method, err)
}
