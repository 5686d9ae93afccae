package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// flightOptions are the flags of `loopd bench flight`.
type flightOptions struct {
	benchOptions

	depth     int
	heapFile  string // where to keep the replica's heap profile at the peak
	stackFile string // the same of its goroutines
}

func benchFlight(env Env) *cobra.Command {
	var o flightOptions
	cmd := &cobra.Command{
		Use: "flight", Short: "Measure the memory of runs in flight, all of which wait for the model", Args: cobra.NoArgs,
		Long: "Creates --runs runs on one `loopd serve`, a process of its own. The model server, in this process, sends\n" +
			"the headers of each run's last answer at once and the answer to nobody until all runs ask for it. Then\n" +
			"the replica's memory is read: live heap and stacks after a collection, and what is resident. The transcript\n" +
			"is what the request holds; the connection is that of net/http, idle, measured in another process.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.runs < 1:
				return usagef("--runs is %d: use at least 1", o.runs)
			case o.depth < 1 || o.depth > benchMostIterations:
				return usagef("--iterations is %d: use 1 to %d", o.depth, benchMostIterations)
			}
			return o.measureAll(cmd.Context(), env)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.runs, "runs", 10000, "runs in flight at once; each takes a file of this process and one of the replica (ulimit -n)")
	f.IntVar(&o.depth, "iterations", 2, "model calls of a run; it waits in the last one")
	f.StringVar(&o.heapFile, "memprofile", "", "write the replica's heap profile at the peak to this file")
	f.StringVar(&o.stackFile, "goroutines", "", "write what the replica's goroutines do at the peak to this file")
	f.StringVar(&o.databaseURL, "database-url", "", "an empty Postgres database to use, instead of a fresh server")
	f.StringVar(&o.binDir, "pg-bindir", env.Getenv("LOOPD_PG_BINDIR"), "Postgres binaries to use [LOOPD_PG_BINDIR]")
	return cmd
}

// flightPeer is a model that lets nobody have a last answer until all wait for it.
type flightPeer struct {
	*benchPeer

	want    int64
	waiting atomic.Int64
	sizes   atomic.Int64 // of the requests that wait
	all     chan struct{}
	land    chan struct{} // closed to answer all
}

// flightWarmUp are runs before those that are measured: they wait for nobody.
const flightWarmUp = "warm"

// ServeHTTP answers the calls of the model and of the tool.
func (p *flightPeer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	last := bytes.Count(body, []byte(`"role":"assistant"`))+1 == p.iterations
	if strings.HasSuffix(r.URL.Path, "/completions") && last && !bytes.Contains(body, []byte("run="+flightWarmUp)) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // who has left is seen below
		p.sizes.Add(int64(len(body)))
		if p.waiting.Add(1) == p.want {
			close(p.all)
		}
		select {
		case <-p.land:
		case <-r.Context().Done():
			return
		}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	p.benchPeer.ServeHTTP(w, r)
}

func (o *flightOptions) measureAll(ctx context.Context, env Env) error {
	peer := &flightPeer{benchPeer: newBenchPeer(o.depth, 0), want: int64(o.runs), all: make(chan struct{}), land: make(chan struct{})}
	return o.onBenchGround(ctx, peer, func(ctx context.Context) error {
		connection, err := o.connectionBytes(ctx)
		if err != nil {
			return err
		}
		f := o.fleet()
		f.args = append(benchNeverSheds(), "--max-runs", strconv.Itoa(o.runs))
		return f.with(ctx, 1, func(ctx context.Context, replicas []*benchChild) error {
			seen, err := o.fly(ctx, replicas[0], peer)
			if err != nil {
				return err
			}
			return seen.print(env, o.runs, connection, float64(peer.sizes.Load())/float64(o.runs))
		})
	})
}

// flightSeen is what a flight showed.
type flightSeen struct {
	before, peak            flightMemory
	created, waiting, ended time.Duration // since the first create
	claims                  float64
	renewed, failed         float64 // renewals of the lease
	connections             int
	complaints              string
}

// flightMemory is the memory of a process.
type flightMemory struct {
	live, stacks, resident, resting float64 // bytes; live and stacks after a collection, resident before it and after
	goroutines                      float64
}

// fly creates the runs, measures while all wait, and lets them end.
func (o *flightOptions) fly(ctx context.Context, r *benchChild, peer *flightPeer) (seen flightSeen, err error) {
	agent, err := registerFor(ctx, r, o.benchOptions, benchSetting{iterations: o.depth})
	if err != nil {
		return seen, err
	}
	meter, err := newBenchMeter(ctx, o.databaseURL)
	if err != nil {
		return seen, err
	}
	defer meter.close(ctx)
	runs := loopdv1.NewRunServiceClient(r.conn)
	create := func(name string) func(context.Context, int) error {
		return func(ctx context.Context, i int) error {
			_, err := runs.CreateRun(ctx, &loopdv1.CreateRunRequest{Agent: agent, Input: "run=" + name + strconv.Itoa(i) + " find what the order needs"})
			if err != nil {
				return fmt.Errorf("create a run: %w", err)
			}
			return nil
		}
	}
	const warm = 20
	if err := crowd(ctx, warm, 1, create(flightWarmUp)); err != nil {
		return seen, err
	}
	if err := meter.ended(ctx, warm); err != nil {
		return seen, err
	}
	if seen.before, err = r.memory(ctx); err != nil {
		return seen, err
	}
	began := time.Now()
	if err := crowd(ctx, o.runs, 1, create("flight")); err != nil {
		return seen, err
	}
	seen.created = time.Since(began)
	if err := arrive(ctx, peer.all); err != nil {
		return seen, err
	}
	seen.waiting = time.Since(began)
	if err := seen.look(ctx, r, meter); err != nil {
		return seen, err
	}
	if err := o.keep(ctx, r); err != nil {
		return seen, err
	}
	landing := time.Now()
	close(peer.land)
	err = meter.ended(ctx, warm+o.runs)
	seen.ended, seen.complaints = time.Since(landing), r.says.complaints()
	return seen, err
}

// look reads what the replica holds while all runs wait.
func (s *flightSeen) look(ctx context.Context, r *benchChild, meter *benchMeter) (err error) {
	if s.peak, err = r.memory(ctx); err != nil {
		return err
	}
	series, err := r.metrics(ctx)
	if err != nil {
		return err
	}
	s.claims, s.renewed = series[acquired], series[`loopd_lease_events_total{event="renewed"}`]
	s.failed = series[`loopd_lease_events_total{event="expired"}`] + series[`loopd_lease_events_total{event="lost"}`]
	s.connections, err = meter.connections(ctx)
	return err
}

// keep writes the profiles that were asked for.
func (o *flightOptions) keep(ctx context.Context, r *benchChild) error {
	for _, p := range [][2]string{{o.heapFile, "/debug/pprof/heap"}, {o.stackFile, "/debug/pprof/goroutine?debug=1"}} {
		if p[0] == "" {
			continue
		}
		page, err := r.get(ctx, p[1])
		if err != nil {
			return err
		}
		if err := os.WriteFile(p[0], page, 0o600); err != nil {
			return fmt.Errorf("keep a profile: %w", err)
		}
	}
	return nil
}

// memory reads what the replica holds. A second collection frees what pools had kept over
// the first, and shrinks stacks.
func (r *benchChild) memory(ctx context.Context) (m flightMemory, err error) {
	series, err := r.metrics(ctx)
	if err != nil {
		return m, err
	}
	m.resident = series["process_resident_memory_bytes"]
	for range 5 {
		if _, err := r.get(ctx, "/debug/pprof/heap?gc=1"); err != nil {
			return m, err
		}
	}
	if series, err = r.metrics(ctx); err != nil {
		return m, err
	}
	m.live, m.stacks, m.resting = series["go_memstats_heap_alloc_bytes"], series["go_memstats_stack_inuse_bytes"], series["process_resident_memory_bytes"]
	m.goroutines = series["go_goroutines"]
	return m, nil
}

// ended waits until so many runs have ended well.
func (m *benchMeter) ended(ctx context.Context, want int) error {
	for {
		var well, badly int
		const query = "SELECT count(*) FILTER (WHERE state = 'SUCCEEDED'), count(*) FILTER (WHERE state <> 'SUCCEEDED') FROM runs WHERE ended_at IS NOT NULL"
		if err := m.conn.QueryRow(ctx, query).Scan(&well, &badly); err != nil {
			return fmt.Errorf("count the runs that have ended: %w", err)
		}
		switch {
		case badly > 0:
			return fmt.Errorf("%w: %d runs ended without success", errBench, badly)
		case well >= want:
			return nil
		}
		if err := linger(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// connectionBytes measures an idle connection of net/http in a process that has nothing
// else.
func (o *flightOptions) connectionBytes(ctx context.Context) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find this program: %w", err)
	}
	client := exec.CommandContext(ctx, self, "bench", "idle-connections", "--url", o.toolURL) //nolint:gosec // itself
	out, err := client.Output()
	if err != nil {
		return 0, fmt.Errorf("measure an idle connection: %w", err)
	}
	return strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
}

// print prints a table, and what else there is to say.
func (s flightSeen) print(env Env, runs int, connection, transcript float64) error {
	kb := func(bytes float64) string { return fmt.Sprintf("%.1f", bytes/1024/float64(runs)) }
	mb := func(bytes float64) string { return fmt.Sprintf("%.0f", bytes/(1<<20)) }
	own := s.peak.live + s.peak.stacks - s.before.live - s.before.stacks
	above := own - float64(runs)*(transcript+connection)
	err := table(env.Stdout, [][]string{
		{"RUNS", "LIVE HEAP MB", "STACKS MB", "GOROUTINES", "RESIDENT MB", "AFTER GC", "KB/RUN LIVE", "TRANSCRIPT", "CONNECTION", "ABOVE BOTH", "RESIDENT KB/RUN"},
		{
			"0", mb(s.before.live), mb(s.before.stacks), fmt.Sprint(s.before.goroutines), mb(s.before.resident), mb(s.before.resting), "-", "-", "-", "-", "-",
		},
		{
			strconv.Itoa(runs), mb(s.peak.live), mb(s.peak.stacks), fmt.Sprint(s.peak.goroutines), mb(s.peak.resident), mb(s.peak.resting),
			kb(own), fmt.Sprintf("%.1f", transcript/1024), fmt.Sprintf("%.1f", connection/1024), kb(above), kb(s.peak.resident - s.before.resident),
		},
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Stdout, "All created after %.1f s, all waiting after %.1f s, all ended %.1f s after the answer.\n"+
		"At the peak: %.0f runs claimed, %.0f renewals, %.0f leases lost, %d connections to Postgres.\n",
		s.created.Seconds(), s.waiting.Seconds(), s.ended.Seconds(), s.claims, s.renewed, s.failed, s.connections)
	if err == nil && s.complaints != "" {
		_, err = fmt.Fprintf(env.Stdout, "The replica's last warnings:\n%s\n", s.complaints)
	}
	return err
}
