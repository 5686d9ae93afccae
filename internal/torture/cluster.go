package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// betweenFailovers is how long the cluster is left whole.
const betweenFailovers = 8 * time.Second

// cluster is a Postgres of several nodes that a script runs: see deploy/ha/cluster.
type cluster struct {
	script         string
	pooled, direct *url.URL // through PgBouncer, and past it; both to the primary
	nodes          []string // URLs, in the order of the script's numbers

	mu      sync.Mutex
	outages []outage
}

// outage is one change of the primary.
type outage struct {
	kind     string
	to       int       // number of the new primary
	began    time.Time // the old one was told, or killed
	writable time.Time // the new one was seen to be no standby any more
}

// database is the one that the settings ask for, empty.
func (s settings) database(ctx context.Context, dir string) (*database, error) {
	if s.cluster == "" {
		return startDatabase(ctx, dir)
	}
	c := &cluster{script: s.cluster}
	if _, err := c.run(ctx, "fresh"); err != nil {
		return nil, err
	}
	said, err := c.run(ctx, "urls")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(said) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "pooled":
			c.pooled, err = url.Parse(value)
		case "direct":
			c.direct, err = url.Parse(value)
		case "nodes":
			c.nodes = strings.Fields(value)
		}
		if err != nil {
			return nil, fmt.Errorf("%s urls: %w", s.cluster, err)
		}
	}
	if c.pooled == nil || c.direct == nil || len(c.nodes) < 2 {
		return nil, fmt.Errorf("%s urls: lacks pooled, direct or nodes: %s", s.cluster, said)
	}
	return &database{dir: dir, cluster: c}, nil
}

// run calls the script and returns what it printed.
func (c *cluster) run(ctx context.Context, command string) (string, error) {
	cmd := exec.CommandContext(ctx, c.script, command)
	var said, wrong bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &wrong
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s (start the cluster first): %w\n%s", c.script, command, err, wrong.Bytes())
	}
	return said.String(), nil
}

func (c *cluster) dial(at *url.URL) (net.Conn, error) {
	return (&net.Dialer{Timeout: time.Second}).Dial("tcp", at.Host)
}

// dialPooled connects as replicas do, through the cluster's pooler if there is one.
func (d *database) dialPooled() (net.Conn, error) {
	if d.cluster == nil {
		return d.dial()
	}
	return d.cluster.dial(d.cluster.pooled)
}

// judging is what the judge's connection string has besides: it must not read from a
// standby what is not there yet.
func (d *database) judging() string {
	if d.cluster == nil {
		return ""
	}
	return "&target_session_attrs=read-write"
}

// more are the arguments of a replica on a cluster: the pooler through the replica's
// link, LISTEN past the pooler, and the lease that loopd has in production.
func (d *database) more(r *replica) []string {
	if d.cluster == nil {
		return nil
	}
	pooled := *d.cluster.pooled
	pooled.Host = r.database.addr()
	return []string{"--database-url", pooled.String(), "--database-direct-url", d.cluster.direct.String(), "--lease-ttl", "15s"}
}

// failOver kills the primary and switches over, in turns, until ctx ends. The cluster
// is whole afterwards.
func (w *world) failOver(ctx context.Context) error {
	c := w.database.cluster
	for i := 0; pause(ctx, betweenFailovers); i++ {
		command := []string{"fail", "switchover"}[i%2]
		var err error
		w.breaker.takeSoon(ctx, command, "postgres", func() { err = c.change(context.WithoutCancel(ctx), command) })
		if err != nil {
			return err
		}
	}
	return nil
}

// change has the cluster change its primary, notes when, and waits until it is whole.
func (c *cluster) change(ctx context.Context, command string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	before, err := c.primary(ctx, -1)
	if err != nil {
		return err
	}
	o := outage{kind: command, began: time.Now()}
	var done group
	var ordered error
	done.do(func() { _, ordered = c.run(ctx, command) })
	o.to, err = c.primary(ctx, before)
	o.writable = time.Now()
	done.wait()
	if err = errors.Join(ordered, err); err != nil {
		return err
	}
	c.mu.Lock()
	c.outages = append(c.outages, o)
	c.mu.Unlock()
	_, err = c.run(ctx, "heal")
	return err
}

// primary waits until a node other than the given one is no standby, and returns its
// index.
func (c *cluster) primary(ctx context.Context, besides int) (int, error) {
	for {
		for i, node := range c.nodes {
			if i != besides && accepts(ctx, node) {
				return i, nil
			}
		}
		if !pause(ctx, 20*time.Millisecond) {
			return 0, fmt.Errorf("wait for a primary: %w", ctx.Err())
		}
	}
}

// accepts reports whether a node takes writes.
func accepts(ctx context.Context, node string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, node)
	if err != nil {
		return false
	}
	defer conn.Close(ctx)
	var standby bool
	return conn.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&standby) == nil && !standby
}

// reportFailovers prints how long each change of the primary was felt. Times after the
// new primary was writable are those of commits, on the database's own clock, and of
// the model's ledger, which a request reaches only after its intent is committed.
func (w *world) reportFailovers(ctx context.Context, out io.Writer) {
	c := w.database.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(out, "\nchanges of the primary:\n  %-10s  %-4s  %12s  | from then to: %-15s  %-15s  %s\n",
		"how", "to", "writable", "first creation", "run's commit", "model asked")
	for _, o := range c.outages {
		created, drove := w.firstCommit(ctx, o, "="), w.firstCommit(ctx, o, "<>")
		asked := -time.Nanosecond
		for _, line := range w.model.ledger.all() {
			if d := line.At.Sub(o.writable); d > 0 && (asked < 0 || d < asked) {
				asked = d
			}
		}
		fmt.Fprintf(out, "  %-10s  %-4d  %12s  | %13s %-15s  %-15s  %s\n", o.kind, o.to+1,
			milliseconds(o.writable.Sub(o.began)), "", milliseconds(created), milliseconds(drove), milliseconds(asked))
	}
}

// firstCommit is how long after the new primary was writable a creation (is "=") or
// anything else of a run ("<>") was committed. Below 0: it was not.
func (w *world) firstCommit(ctx context.Context, o outage, is string) time.Duration {
	var at *time.Time
	err := w.db.QueryRow(ctx, `SELECT min(pg_xact_commit_timestamp(xmin)) FROM events
		WHERE kind `+is+` 'created' AND pg_xact_commit_timestamp(xmin) > $1`, o.writable).Scan(&at)
	if err != nil || at == nil {
		return -1
	}
	return at.Sub(o.writable)
}
