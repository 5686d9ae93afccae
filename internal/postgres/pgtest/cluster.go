package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/loopd/loopd/internal/devpg"
)

// cluster is a server with a migrated template.
type cluster struct {
	url string // of the server, naming any database
	// admin has one connection, so that clones queue: they are bound by the same
	// disk, and Postgres refuses to copy a template while it is in use.
	admin *pgxpool.Pool
	// prefix begins the names of all databases of this process. It is unique, as a
	// given server may serve many processes.
	prefix string
	clones atomic.Int64

	private *private // nil when the server was given
}

func newCluster(ctx context.Context, migrate func(context.Context, string) error) (_ *cluster, err error) {
	c := &cluster{
		url:    os.Getenv("LOOPD_TEST_DATABASE_URL"),
		prefix: "loopd_test_" + strings.ToLower(rand.Text()[:12]) + "_",
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close(ctx))
		}
	}()
	if c.url == "" {
		if c.private, err = startPrivate(ctx); err != nil {
			return nil, err
		}
		c.url = c.private.server.URL()
	}
	if err := c.connect(ctx); err != nil {
		return nil, err
	}
	if err := c.makeTemplate(ctx, migrate); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *cluster) connect(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(c.url)
	if err != nil {
		return fmt.Errorf("parse LOOPD_TEST_DATABASE_URL: %w", err)
	}
	config.MaxConns = 1
	if c.admin, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return fmt.Errorf("connect to the test server: %w", err)
	}
	return nil
}

func (c *cluster) template() string { return c.prefix + "template" }

// makeTemplate migrates a database and closes it to everyone, for a template with
// connections cannot be copied.
func (c *cluster) makeTemplate(ctx context.Context, migrate func(context.Context, string) error) error {
	if err := c.exec(ctx, "CREATE DATABASE %s", c.template()); err != nil {
		return err
	}
	url, err := c.databaseURL(c.template())
	if err != nil {
		return err
	}
	if err := migrate(ctx, url); err != nil {
		return fmt.Errorf("migrate the template database: %w", err)
	}
	if err := c.exec(ctx, "ALTER DATABASE %s WITH ALLOW_CONNECTIONS false", c.template()); err != nil {
		return err
	}
	const end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"
	if _, err := c.admin.Exec(ctx, end, c.template()); err != nil {
		return fmt.Errorf("end connections to the template database: %w", err)
	}
	return nil
}

// clone makes a database and returns its connection string.
func (c *cluster) clone(ctx context.Context) (string, error) {
	name := fmt.Sprintf("%s%d", c.prefix, c.clones.Add(1))
	if err := c.exec(ctx, "CREATE DATABASE %s TEMPLATE %s", name, c.template()); err != nil {
		return "", err
	}
	return c.databaseURL(name)
}

// exec runs a statement about databases, which take no parameters.
func (c *cluster) exec(ctx context.Context, statement string, databases ...string) error {
	quoted := make([]any, len(databases))
	for i, name := range databases {
		quoted[i] = pgx.Identifier{name}.Sanitize()
	}
	statement = fmt.Sprintf(statement, quoted...)
	if _, err := c.admin.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

func (c *cluster) databaseURL(name string) (string, error) {
	u, err := url.Parse(c.url)
	if err != nil || u.Scheme == "" {
		return "", errors.New("LOOPD_TEST_DATABASE_URL must be of the form postgres://user@host/database")
	}
	u.Path = "/" + name
	return u.String(), nil
}

// close stops the server of this process, or removes what it put on a given one:
// at the end and in one go, as dropping a database takes longer than a clone.
func (c *cluster) close(ctx context.Context) error {
	var errs []error
	if c.private == nil && c.admin != nil {
		errs = append(errs, c.dropAll(ctx))
	}
	if c.admin != nil {
		c.admin.Close()
	}
	if c.private != nil {
		errs = append(errs, c.private.stop(ctx))
	}
	return errors.Join(errs...)
}

func (c *cluster) dropAll(ctx context.Context) error {
	rows, err := c.admin.Query(ctx, "SELECT datname FROM pg_database WHERE starts_with(datname, $1)", c.prefix)
	if err != nil {
		return fmt.Errorf("list test databases: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("list test databases: %w", err)
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, c.exec(ctx, "DROP DATABASE %s WITH (FORCE)", name))
	}
	return errors.Join(errs...)
}

// private is a server of this process alone.
type private struct {
	dir    string
	server *devpg.Server
}

func startPrivate(ctx context.Context) (*private, error) {
	sweep(tempParent, staleAge)
	dir, err := os.MkdirTemp(tempParent, tempPrefix)
	if err != nil {
		return nil, fmt.Errorf("make the directory of the test server: %w", err)
	}
	p := &private{dir: dir}
	// Root's server runs as another user, who has to get to its files.
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, errors.Join(fmt.Errorf("open the directory of the test server: %w", err), p.stop(ctx))
	}
	p.server, err = devpg.Start(ctx, devpg.Config{
		DataDir: dir,
		BinDir:  os.Getenv("LOOPD_PG_BINDIR"),
		Settings: map[string]string{
			// Nobody misses these data after a crash.
			"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
			// Tests run in parallel, each with a pool of its own.
			"max_connections": "200",
		},
	})
	if err != nil {
		return nil, errors.Join(err, p.stop(ctx))
	}
	return p, nil
}

// stop ends the server and removes its directory, also after half a start.
func (p *private) stop(ctx context.Context) error {
	var errs []error
	if p.server != nil {
		errs = append(errs, p.server.Stop(ctx))
	}
	errs = append(errs, os.RemoveAll(p.dir))
	return errors.Join(errs...)
}
