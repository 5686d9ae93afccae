package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// maxOpening is how many connections a pool opens at once. A log-in is a new process
	// for Postgres and a handshake for both, so that a crowd of them takes the CPU from
	// which they would all have been done in turn.
	maxOpening = 3
	// loginTimeout is for one address, from the dial to the first prompt. A busy Postgres
	// takes seconds; giving up only adds to what it has to do. An address at which nobody
	// is costs connectTimeout.
	loginTimeout = 15 * time.Second
	// lookAgain is how often those who pause after a failure look whether somebody else
	// got in meanwhile.
	lookAgain = 100 * time.Millisecond
	// linger is how long a statement may go on once its caller has left: as long as the
	// server itself lets it (statementTimeout).
	linger = 5 * time.Second
)

// poolShape is what the pools of a store differ in.
type poolShape struct {
	conns   int
	login   time.Duration   // bounds a log-in
	opening int             // bounds how many are opened at once, and slows down after failures; 0: not
	linger  time.Duration   // see lingering
	prepare func(*pgx.Conn) // what is done to each connection; nil: nothing
}

// shape gives the pool's connections their bounds.
func (p poolShape) shape(config *pgxpool.Config, t *tracer) {
	config.MaxConns = int32(p.conns)
	config.ConnConfig.ConnectTimeout = p.login
	config.ConnConfig.Tracer = t
	if p.opening > 0 {
		t.gate = newGate(p.opening)
		t.gates.add(t.gate)
		config.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error { return t.gate.enter(ctx) }
	}
	if p.prepare != nil {
		config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
			p.prepare(conn)
			return nil
		}
	}
	if p.linger > 0 {
		config.ConnConfig.BuildContextWatcherHandler = lingering(p.linger)
	}
}

// lingering lets a statement whose context has ended go on for a while. Breaking it off
// costs the connection and ends nothing: Postgres goes on until it has something to say,
// and then has to log in whoever comes next. Nor is the server asked to cancel: that takes
// a connection of its own, and what comes late may hit a commit, or through a pooler
// somebody else's statement.
func lingering(d time.Duration) func(*pgconn.PgConn) ctxwatch.Handler {
	return func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn(), DeadlineDelay: d}
	}
}

// gate is what all connections of a pool are opened through: a few at once, and after a
// failure none for a random while that doubles with each. A try that fails answers for all
// who came before it began, so that the queue of a server that is away does not outlive
// the patience of those in it.
type gate struct {
	slots chan struct{}

	mu       sync.Mutex
	failures int       // in a row
	failure  error     // the last of them
	from     time.Time // when the try began that failed with it
	next     time.Time // nothing is tried before
}

func newGate(opening int) *gate { return &gate{slots: make(chan struct{}, opening)} }

// enter waits until a connection may be opened; leave must follow. The error is the
// failure of another try, or that of ctx.
func (g *gate) enter(ctx context.Context) error {
	came := time.Now()
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		wait, err := g.look(came)
		if err == nil && wait <= 0 {
			return nil
		}
		if err == nil {
			err = sleep(ctx, min(wait, lookAgain)) // it may be over sooner
		}
		if err != nil {
			<-g.slots
			return err
		}
	}
}

// look says how long who came then has still to wait, or what failed meanwhile.
func (g *gate) look(came time.Time) (time.Duration, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failure != nil && g.from.After(came) {
		return 0, fmt.Errorf("another try to connect has just failed: %w", g.failure)
	}
	return time.Until(g.next), nil
}

// leave says how the try went that began then.
func (g *gate) leave(began time.Time, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	<-g.slots
	if err == nil {
		g.failures, g.failure, g.next = 0, nil, time.Time{}
		return
	}
	g.failures++
	g.failure, g.from, g.next = err, began, time.Now().Add(pauseOf(g.failures))
}

// reopen ends the pause: the server lets somebody in again. Still only a few try at once.
func (g *gate) reopen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failures, g.next = 0, time.Time{}
}

// gates are those of all pools of a store, which lead to one server: who gets in through
// one of them, or past them, as renewals do, ends the pauses of all. Without that, what
// has failed most would wait longest once the server is back.
type gates struct {
	mu  sync.Mutex
	all []*gate
}

func (g *gates) add(one *gate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = append(g.all, one)
}

func (g *gates) reopen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, one := range g.all {
		one.reopen()
	}
}

type connectKey struct{}

// TraceConnectStart notes when a try to connect began.
func (t *tracer) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	return context.WithValue(ctx, connectKey{}, time.Now())
}

// TraceConnectEnd makes room at the gate, and opens the others after a success.
func (t *tracer) TraceConnectEnd(ctx context.Context, data pgx.TraceConnectEndData) {
	if data.Err == nil {
		t.gates.reopen()
	}
	if began, ok := ctx.Value(connectKey{}).(time.Time); ok && t.gate != nil {
		t.gate.leave(began, data.Err)
	}
}
