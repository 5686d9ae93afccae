package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// benchMeter reads what a measurement costs.
type benchMeter struct {
	conn       *pgx.Conn
	postmaster int // its process id; 0 if Postgres is not on this machine
}

// benchCounters are counters that only grow.
type benchCounters struct {
	commits, logged, rows int64
	updates, hot          [2]int64      // of runs and of tool calls; a second late
	process, server       time.Duration // CPU time; 0 where it cannot be read
	objects, bytes        uint64        // that this process has put on its heap
}

func newBenchMeter(ctx context.Context, url string) (*benchMeter, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect to measure: %w", err)
	}
	m := &benchMeter{conn: conn}
	if backend, ok := readProcess(int(conn.PgConn().PID())); ok && strings.HasPrefix(backend.name, "postgres") {
		m.postmaster = backend.parent
	}
	return m, nil
}

func (m *benchMeter) close(ctx context.Context) { _ = m.conn.Close(context.WithoutCancel(ctx)) }

// read reads all counters. The statistics of Postgres are late by a second, so commits
// are the transaction ids that were given out: those of the transactions that wrote.
func (m *benchMeter) read(ctx context.Context) (c benchCounters, err error) {
	const query = `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, (pg_current_wal_insert_lsn() - '0/0')::bigint,
		(SELECT count(*) FROM events) + (SELECT count(*) FROM tool_calls) + (SELECT count(*) FROM holds) +
		(SELECT count(*) FROM runs) + (SELECT count(*) FROM accounts) + (SELECT count(*) FROM results),
		r.n_tup_upd, r.n_tup_hot_upd, t.n_tup_upd, t.n_tup_hot_upd
		FROM pg_stat_user_tables r, pg_stat_user_tables t
		WHERE r.relid = 'runs'::regclass AND t.relid = 'tool_calls'::regclass`
	if err := m.conn.QueryRow(ctx, query).Scan(&c.commits, &c.logged, &c.rows, &c.updates[0], &c.hot[0], &c.updates[1], &c.hot[1]); err != nil {
		return c, fmt.Errorf("read the counters of Postgres: %w", err)
	}
	if self, ok := readProcess(os.Getpid()); ok {
		c.process = self.cpu
	}
	if m.postmaster != 0 {
		c.server = familyCPU(m.postmaster)
	}
	c.objects, c.bytes = allocated()
	return c, nil
}

// since is what so many runs and iterations took since the counters were read before.
func (c benchCounters) since(before benchCounters, runs, iterations int) benchCell {
	each := func(n int64, of int) float64 { return float64(n) / float64(max(1, of)) }
	perThousand := func(cpu time.Duration) float64 { return cpu.Seconds() * 1000 / float64(max(1, iterations)) }
	return benchCell{
		Runs:             runs,
		Objects:          each(int64(c.objects-before.objects), iterations),
		Bytes:            each(int64(c.bytes-before.bytes), iterations),
		CommitsPerRun:    each(c.commits-before.commits, runs),
		WALPerRun:        each(c.logged-before.logged, runs),
		RowsPerIteration: each(c.rows-before.rows, iterations),
		CPUProcess:       perThousand(c.process - before.process),
		CPUPostgres:      perThousand(c.server - before.server),
		HotRuns:          100 * each(c.hot[0]-before.hot[0], int(c.updates[0]-before.updates[0])),
		HotCalls:         100 * each(c.hot[1]-before.hot[1], int(c.updates[1]-before.updates[1])),
	}
}

// procStat is what Linux says about a process.
type procStat struct {
	name   string
	parent int
	cpu    time.Duration // its own and that of its children that have ended
}

// clockTick is the unit of times in /proc: 1/100 s on every Linux that Go runs on.
const clockTick = 10 * time.Millisecond

// readProcess reads /proc. It is not there on other systems than Linux.
func readProcess(pid int) (procStat, bool) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return procStat{}, false
	}
	// The name is in parentheses and may hold anything; after it come the state, the
	// parent, and as 12th to 15th the times.
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return procStat{}, false
	}
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 15 {
		return procStat{}, false
	}
	p := procStat{name: string(text[open+1 : end])}
	p.parent, _ = strconv.Atoi(fields[1])
	for _, field := range fields[11:15] {
		ticks, _ := strconv.ParseInt(field, 10, 64)
		p.cpu += time.Duration(ticks) * clockTick
	}
	return p, true
}

// familyCPU is the CPU time of a process and of its children, dead and alive.
func familyCPU(parent int) time.Duration {
	own, _ := readProcess(parent)
	sum := own.cpu
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		pid, _ := strconv.Atoi(filepath.Base(name))
		if p, ok := readProcess(pid); ok && p.parent == parent {
			sum += p.cpu
		}
	}
	return sum
}

// percentiles are the median and the 99th percentile, in milliseconds; 0 of nothing.
func percentiles(of []time.Duration) (p50, p99 float64) {
	if len(of) == 0 {
		return 0, 0
	}
	slices.Sort(of)
	at := func(part float64) float64 {
		return float64(of[int(part*float64(len(of)-1))]) / float64(time.Millisecond)
	}
	return at(0.5), at(0.99)
}
