package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// world is everything that takes part.
type world struct {
	dir      string
	log      *slog.Logger
	all      group
	database *database
	direct   *link // to Postgres, for the judge: no fault touches it
	toolLink *link // all replicas share it, since a tool has one address
	replicas []*replica
	model    *model
	tools    *toolServer
	db       *pgxpool.Pool
	client   *client
	breaker  *breaker
	servers  []*http.Server
	upgraded upgraded           // by plan; zero: there was none
	endRuns  context.CancelFunc // ends the replicas
}

// links are those that faults break.
func (w *world) links() []*link {
	links := []*link{w.toolLink}
	for _, r := range w.replicas {
		links = append(links, r.database, r.model)
	}
	return links
}

// progress rises with whatever loopd does: requests to the model and to tools.
func (w *world) progress() int { return w.model.ledger.size() + w.tools.ledger.size() }

// newWorld starts everything, whole. What it returns is to be closed, with an error
// too.
func newWorld(ctx context.Context, s settings, log *slog.Logger) (*world, error) {
	w := &world{dir: s.dir, log: log, endRuns: func() {}}
	return w, w.start(ctx, s)
}

func (w *world) start(ctx context.Context, s settings) error {
	if w.dir == "" {
		dir, err := os.MkdirTemp("", "loopd-torture-")
		if err != nil {
			return fmt.Errorf("make a directory: %w", err)
		}
		w.dir = dir
		if err := os.Chmod(dir, 0o755); err != nil {
			return fmt.Errorf("open the directory: %w", err)
		}
	}
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		return fmt.Errorf("make the directory: %w", err)
	}
	var err error
	if w.database, err = s.database(ctx, w.dir+"/postgres"); err != nil {
		return err
	}
	if err := w.serve(ctx); err != nil {
		return err
	}
	if err := w.migrate(ctx, s.first()); err != nil {
		return err
	}
	if err := w.replicate(ctx, s); err != nil {
		return err
	}
	w.client = newClient(w.replicas, w.tools)
	w.client.urgent = s.previous == ""
	w.breaker = &breaker{w: w, rand: rand.New(rand.NewPCG(s.seed, 2)), busy: map[string]bool{}, done: map[string]int{}}
	return w.prepare(ctx)
}

// serve starts the model and the tool server with their ledgers and links.
func (w *world) serve(ctx context.Context) error {
	var err error
	if w.direct, err = newLink(ctx, &w.all, "judge", w.database.dial); err != nil {
		return err
	}
	if w.db, err = pgxpool.New(ctx, "postgres://loopd@"+w.direct.addr()+"/loopd?sslmode=disable&pool_max_conns=8"+w.database.judging()); err != nil {
		return fmt.Errorf("open the judge's database: %w", err)
	}
	w.model = &model{seen: map[uint32]bool{}}
	if w.model.ledger, err = openLedger[asked](w.dir + "/model.jsonl"); err != nil {
		return err
	}
	w.tools = &toolServer{db: w.db, applied: map[string]bool{}, broke: map[string]bool{}}
	if w.tools.ledger, err = openLedger[delivery](w.dir + "/tools.jsonl"); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /{tool}", w.tools)
	mux.Handle("POST /v1/chat/completions", w.model)
	addr, err := w.listen(ctx, mux)
	if err != nil {
		return err
	}
	w.toolLink, err = newLink(ctx, &w.all, "tools", dialTCP(addr))
	return err
}

func (w *world) listen(ctx context.Context, handler http.Handler) (string, error) {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen: %w", err)
	}
	server := &http.Server{Addr: lis.Addr().String(), Handler: handler, ReadHeaderTimeout: 30 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	w.servers = append(w.servers, server)
	w.all.do(func() { _ = server.Serve(lis) })
	return lis.Addr().String(), nil
}

func dialTCP(addr string) func() (net.Conn, error) {
	return func() (net.Conn, error) { return (&net.Dialer{Timeout: time.Second}).Dial("tcp", addr) }
}

func (w *world) migrate(ctx context.Context, binary string) error {
	url := "postgres://loopd@" + w.direct.addr() + "/loopd?sslmode=disable"
	said, err := exec.CommandContext(ctx, binary, "migrate", "up", "--database-url", url).CombinedOutput()
	if err != nil {
		return fmt.Errorf("migrate with %s (build it with make build): %w\n%s", binary, err, said)
	}
	return nil
}

func (w *world) replicate(ctx context.Context, s settings) error {
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	w.endRuns = end
	for i := range s.replicas {
		name := "replica-" + strconv.Itoa(i+1)
		db, err := newLink(ctx, &w.all, name+" postgres", w.database.dialPooled)
		if err != nil {
			return err
		}
		models, err := newLink(ctx, &w.all, name+" model", dialTCP(w.servers[0].Addr))
		if err != nil {
			return err
		}
		r, err := newReplica(ctx, name, s.first(), w.dir, db, models)
		if err != nil {
			return err
		}
		r.more = w.database.more(r)
		w.replicas = append(w.replicas, r)
		w.all.do(func() { r.keep(running) })
	}
	return nil
}

// prepare defines the agents as soon as a replica answers.
func (w *world) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := define(ctx, w.replicas[0], w.toolLink)
		if err == nil || !unclear(err) {
			return err
		}
		if !pause(ctx, 200*time.Millisecond) {
			return err
		}
	}
}

// suffer makes the runs while things break, heals, and waits until all runs have
// ended. It returns what did not become quiet.
func (w *world) suffer(ctx context.Context, s settings) ([]string, error) {
	of, err := pick(s.faults)
	if err != nil {
		return nil, err
	}
	people, endPeople := context.WithCancel(ctx)
	defer endPeople()
	var clients group
	w.all.do(func() { w.client.decide(people) })
	breaking, heal := context.WithTimeout(ctx, s.duration)
	defer heal()
	w.all.do(func() { w.create(people, breaking, s, &clients) })
	w.breaker.all.do(func() { w.carryOut(breaking, s) })
	w.breaker.run(breaking, of)
	<-breaking.Done()
	w.breaker.heal()
	if w.breaker.error != nil {
		return nil, w.breaker.error
	}
	// A request that a fault held back has arrived by then, or never will.
	if !pause(ctx, toolTimeout+leaseTTL+2*time.Second) {
		return nil, ctx.Err()
	}
	w.client.healed.Store(true)
	late, err := w.settle(ctx, s)
	pause(ctx, 3*time.Second) // the readers of streams hear of the end
	endPeople()
	clients.wait()
	return late, err
}

// create makes the runs, evenly.
func (w *world) create(people, until context.Context, s settings, clients *group) {
	draw := rand.New(rand.NewPCG(s.seed, 1))
	for i := range s.runs {
		own := rand.New(rand.NewPCG(s.seed, uint64(100+i)))
		p := drawPlan(draw, strconv.Itoa(i+1))
		clients.do(func() { w.client.create(people, own, p) })
		if !pause(until, s.duration/time.Duration(s.runs)) {
			return
		}
	}
}

// settle waits for the end of all runs, and tries each replica once more.
func (w *world) settle(ctx context.Context, s settings) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.quiet)
	defer cancel()
	late := w.last(ctx)
	for {
		var open int
		err := w.db.QueryRow(ctx, `SELECT count(*) FROM runs WHERE ended_at IS NULL`).Scan(&open)
		if err == nil && open == 0 {
			return late, nil
		}
		if !pause(ctx, 200*time.Millisecond) {
			return append(late, fmt.Sprintf("I16 liveness: %d runs have not ended %s after healing", open, s.quiet)), nil
		}
	}
}

// last makes five runs at each replica, which must succeed. It returns those that do not.
func (w *world) last(ctx context.Context) []string {
	late := make([][]string, len(w.replicas))
	var clients group
	for i, r := range w.replicas {
		clients.do(func() {
			for n := range 5 {
				tag := fmt.Sprintf("last-%s-%d", r.name, n+1)
				if err := w.client.last(ctx, r, plan{tag: tag, iterations: [][]wish{{{"read", "ok"}, {"effect", "ok"}}}}); err != nil {
					late[i] = append(late[i], fmt.Sprintf("I16 liveness: run %s after healing: %v", tag, err))
				}
			}
		})
	}
	clients.wait()
	return slices.Concat(late...)
}

// halt ends the replicas: what is judged must not move.
func (w *world) halt(ctx context.Context) {
	w.endRuns()
	for _, r := range w.replicas {
		r.signal(syscall.SIGCONT)
		r.end(ctx, syscall.SIGKILL, 0)
	}
}

// close ends everything.
func (w *world) close(ctx context.Context) {
	w.halt(ctx)
	for _, r := range w.replicas {
		_ = r.conn.Close()
	}
	for _, s := range w.servers {
		_ = s.Close()
	}
	if w.db != nil {
		w.db.Close()
	}
	for _, l := range append(w.links(), w.direct) {
		if l != nil {
			l.close()
		}
	}
	w.all.wait()
	if w.database != nil {
		w.database.stop(ctx)
	}
}

// report prints what happened, whatever the verdict.
func (w *world) report(ctx context.Context, out io.Writer) {
	fmt.Fprintln(out, "\nfaults:")
	for _, row := range w.breaker.counts() {
		fmt.Fprintln(out, row)
	}
	cuts, starts := 0, 0
	for _, r := range w.replicas {
		cuts += r.database.cuts
		starts += r.starts
	}
	fmt.Fprintf(out, "%6d  replies to COMMIT withheld\n%6d  starts of replicas\n", cuts, starts)
	w.reportPlanned(ctx, out)
	fmt.Fprintln(out, "\nruns by end:")
	w.count(ctx, out, `SELECT state || ' ' || coalesce(stop_reason(stop), ''), count(*) FROM runs GROUP BY 1 ORDER BY 1`)
	fmt.Fprintln(out, "\ntool calls by effect and end:")
	w.count(ctx, out, `SELECT effect || ' ' || state, count(*) FROM tool_calls GROUP BY 1 ORDER BY 1`)
	fmt.Fprintln(out, "\nevents of note:")
	w.count(ctx, out, `SELECT CASE kind WHEN 'claimed' THEN CASE WHEN body ->> 'recovered' = 'true' THEN 'claimed, recovered' ELSE kind END ELSE kind END, count(*)
		FROM events WHERE kind IN ('claimed', 'call_in_doubt', 'call_resolved', 'model_failed', 'cancel_requested', 'pause_requested', 'resumed', 'approval_decided', 'result_submitted', 'child_finished')
		GROUP BY 1 ORDER BY 1`)
	w.reportPoints(ctx, out)
	readers := 0
	for _, seen := range w.client.watched {
		readers += len(seen.kinds)
	}
	intents := map[string]int{}
	for _, d := range w.tools.ledger.all() {
		intents["deliveries, intent seen at receipt: "+d.Intent]++
	}
	fmt.Fprintln(out, "\nledgers:")
	fmt.Fprintf(out, "%6d  model requests\n", len(w.model.ledger.all()))
	fmt.Fprintf(out, "%6d  events read by %d readers of streams\n", readers, len(w.client.watched))
	for _, row := range table(intents) {
		fmt.Fprintln(out, row)
	}
	fmt.Fprintln(out, "\nrequests of clients:")
	w.client.mu.Lock()
	defer w.client.mu.Unlock()
	for _, row := range table(w.client.counts) {
		fmt.Fprintln(out, row)
	}
	fmt.Fprintln(out)
}

func (w *world) count(ctx context.Context, out io.Writer, query string) {
	rows, err := w.db.Query(ctx, query)
	if err != nil {
		fmt.Fprintln(out, err)
		return
	}
	defer rows.Close()
	for rows.Next() {
		var what string
		var n int
		if err := rows.Scan(&what, &n); err != nil {
			fmt.Fprintln(out, err)
			return
		}
		fmt.Fprintf(out, "%6d  %s\n", n, what)
	}
}
