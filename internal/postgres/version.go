package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// Agents, tools and policies have versions that never change. What they have in
// common is here.

// change is a request to change a thing that has versions.
type change struct {
	tenant, id string
	attempted  string
	idem       Idempotency
}

// changed applies a change once and reads the version that it made; 0 is the newest.
func changed[T any](ctx context.Context, s *Store, c change,
	apply func(q *db.Queries) (version int64, err error),
	read func(q *db.Queries, version int64) (T, error),
) (thing T, err error) {
	err = s.inTx(ctx, c.idem.Key != "", func(q *db.Queries) error {
		earlier, used, err := c.idem.once(ctx, q, c.tenant, c.id)
		if err != nil {
			return err
		}
		var version int64
		if used {
			// The fingerprint covers the id, so that only the version is of interest.
			_, number, _ := strings.Cut(earlier, "@")
			if version, err = strconv.ParseInt(number, 10, 64); err != nil {
				return fmt.Errorf("idempotency record of %q: %w", earlier, err)
			}
		} else if version, err = apply(q); err != nil {
			return err
		}
		if !used {
			if err := c.idem.keep(ctx, q, c.tenant, c.id+"@"+strconv.FormatInt(version, 10)); err != nil {
				return err
			}
		}
		thing, err = read(q, version)
		return err
	})
	if err != nil {
		var none T
		return none, wrap(c.attempted, err)
	}
	return thing, nil
}

// orMissing explains a row that was not found: the thing exists and only lacks what
// was asked for, or there is no such thing.
func orMissing(err error, exists func() (bool, error), lacks error) error {
	if !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	there, err := exists()
	if err == nil && there {
		err = lacks
	} else if err == nil {
		err = loop.ErrNotFound
	}
	return err
}
