package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/loopd/loopd/migrations"
)

// A migrator waits for another one for two minutes, asking every second.
const (
	lockEverySeconds = 1
	lockTries        = 120
)

// Migration is one change in the schema's history.
type Migration struct {
	Version   int64
	File      string
	AppliedAt time.Time // zero: not yet
}

// Migrate brings the database to the newest schema. Several replicas may do so at
// once: they take turns. The URL must lead to Postgres directly, as the lock
// belongs to a session.
func Migrate(ctx context.Context, url string) error {
	return withProvider(url, func(p *goose.Provider) error {
		if _, err := p.Up(ctx); err != nil {
			return fmt.Errorf("migrate the database: %w", err)
		}
		return nil
	})
}

// MigrationStatus lists all migrations that this program has, in order.
func MigrationStatus(ctx context.Context, url string) ([]Migration, error) {
	var list []Migration
	err := withProvider(url, func(p *goose.Provider) error {
		status, err := p.Status(ctx)
		if err != nil {
			return fmt.Errorf("read the migration status: %w", err)
		}
		for _, m := range status {
			list = append(list, Migration{Version: m.Source.Version, File: m.Source.Path, AppliedAt: m.AppliedAt})
		}
		return nil
	})
	return list, err
}

func withProvider(url string, do func(*goose.Provider) error) (err error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("database URL: %w", err)
	}
	conn := stdlib.OpenDB(*config)
	defer func() { err = errors.Join(err, conn.Close()) }()
	provider, err := newProvider(conn)
	if err != nil {
		return err
	}
	return do(provider)
}

func newProvider(conn *sql.DB) (*goose.Provider, error) {
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(lockEverySeconds, lockTries))
	if err != nil {
		return nil, fmt.Errorf("prepare the migration lock: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, conn, migrations.FS, goose.WithSessionLocker(locker))
	if err != nil {
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	return provider, nil
}

// latestMigration is the version that this program needs.
func latestMigration() (int64, error) {
	files, err := migrations.FS.ReadDir(".")
	if err != nil {
		return 0, fmt.Errorf("read the migrations: %w", err)
	}
	var latest int64
	for _, file := range files {
		version, err := goose.NumericComponent(file.Name())
		if err != nil {
			return 0, fmt.Errorf("migration %s: %w", file.Name(), err)
		}
		latest = max(latest, version)
	}
	return latest, nil
}
