package engine_test

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// TestMain also holds the whole suite to move every metric of the engine. Some tests
// alone are not expected to.
func TestMain(m *testing.M) {
	flag.Parse()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		still := everMoved.still()
		if all := flag.Lookup("test.run").Value.String() == ""; all && code == 0 && len(still) > 0 {
			fmt.Fprintln(os.Stderr, "FAIL: no test moves these metrics:", still)
			code = 1
		}
		os.Exit(code)
	}))
}

var everMoved = &moved{names: map[string]bool{}}

// world is what outlives every worker: the store, the model and the tools.
type world struct {
	*testing.T
	store    *enginetest.Fake
	model    *enginetest.Model
	tools    *enginetest.Tools
	registry *prometheus.Registry // of the newest worker
	tracer   trace.Tracer         // of all workers
	runs     int
	workers  []*enginetest.Worker
	engines  sync.WaitGroup
}

// bubble runs a test in a world of its own, in time of its own.
func bubble(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, store: enginetest.NewFake(), model: &enginetest.Model{Final: "the end"}, tools: &enginetest.Tools{}, tracer: noop.NewTracerProvider().Tracer("")}
		defer w.stop()
		test(w)
	})
}

// stop ends all workers and waits until nothing is left of them.
func (w *world) stop() {
	w.note()
	w.store.SetDown(false)
	for _, worker := range w.workers {
		worker.Drain()
	}
	w.engines.Wait()
}

// create makes a run that is to be claimed.
func (w *world) create(spec loop.Spec) loop.RunRef {
	w.Helper()
	return w.createFor("acme", spec)
}

// createFor is create for a tenant.
func (w *world) createFor(tenant string, spec loop.Spec) loop.RunRef {
	w.Helper()
	w.runs++
	run := loop.RunRef{Tenant: tenant, ID: fmt.Sprintf("r%d", w.runs)}
	if err := w.store.CreateRun(w.Context(), run, spec); err != nil {
		w.Fatalf("create run: %v", err)
	}
	return run
}

// worker makes a process. It does nothing before it is started.
func (w *world) worker() *enginetest.Worker { return enginetest.NewWorker(w.Context(), w.store) }

// start starts the engine of a process.
func (w *world) start(worker *enginetest.Worker, tweak ...func(*engine.Config)) *engine.Engine {
	w.Helper()
	w.note()
	w.workers = append(w.workers, worker)
	w.registry = prometheus.NewRegistry()
	cfg := engine.Config{
		Journal: worker, Leases: worker, Accounts: worker, Tools: worker.Tools(w.tools), Checker: enginetest.Checker(enginetest.AcceptJSON),
		Asserts: enginetest.Assertions{Holds: simply},
		Models:  map[string]engine.Model{"fake": worker.Model(w.model)}, Worker: fmt.Sprintf("w%d", len(w.workers)),
		Log: slog.New(slog.DiscardHandler), Tracer: w.tracer, Registerer: w.registry,
	}
	for _, change := range tweak {
		change(&cfg)
	}
	e, err := engine.New(cfg)
	if err != nil {
		w.Fatalf("new engine: %v", err)
	}
	w.engines.Go(func() {
		if err := e.Run(worker.Context()); err != nil && worker.Context().Err() == nil {
			w.Errorf("run engine: %v", err)
		}
	})
	return e
}

// started starts a process that nothing happens to.
func (w *world) started() *enginetest.Worker {
	w.Helper()
	worker := w.worker()
	w.start(worker)
	return worker
}

// finish waits until the run has ended and returns its head.
func (w *world) finish(run loop.RunRef) loop.Head {
	w.Helper()
	w.until("the run ends", func() bool { return w.store.Head(run).State.Terminal() })
	return w.store.Head(run)
}

// await waits until the run is in a state.
func (w *world) await(run loop.RunRef, state loop.RunState) loop.Head {
	w.Helper()
	w.until(fmt.Sprintf("the run is %s", state), func() bool { return w.store.Head(run).State == state })
	return w.store.Head(run)
}

// until lets time pass until it is so, for at most two hours.
func (w *world) until(what string, so func() bool) {
	w.Helper()
	for range 4 * 3600 {
		synctest.Wait()
		if so() {
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
	w.Fatalf("never: %s", what)
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

const budgetName = "daily"

// setBudget sets what all runs may spend together; whoever has no room waits.
func (w *world) setBudget(amount loop.USD) {
	w.Helper()
	if err := w.store.SetBudget(w.Context(), "acme", budgetName, amount, loop.VerdictPause); err != nil {
		w.Fatalf("set the budget: %v", err)
	}
}

func (w *world) signal(run loop.RunRef, body loop.Body) {
	w.Helper()
	if err := w.store.Signal(w.Context(), run, body); err != nil {
		w.Fatalf("signal: %v", err)
	}
}

// state folds the run's journal.
func (w *world) state(run loop.RunRef) *loop.State {
	w.Helper()
	s, err := loop.Fold(run, w.events(run))
	if err != nil {
		w.Fatalf("fold: %v", err)
	}
	return s
}

func (w *world) events(run loop.RunRef) []loop.Event {
	w.Helper()
	events, err := w.store.Events(run)
	if err != nil {
		w.Fatalf("read events: %v", err)
	}
	return events
}

// kinds lists the kinds of the run's events.
func (w *world) kinds(run loop.RunRef) []string {
	w.Helper()
	var kinds []string
	for _, e := range w.events(run) {
		kinds = append(kinds, e.Body.Kind())
	}
	return kinds
}

// bodies lists the run's events of one type.
func bodies[B loop.Body](w *world, run loop.RunRef) []B {
	w.Helper()
	var found []B
	for _, e := range w.events(run) {
		if b, ok := e.Body.(B); ok {
			found = append(found, b)
		}
	}
	return found
}

// wantEnd checks how a run ended.
func (w *world) wantEnd(h loop.Head, state loop.RunState, reason loop.StopReason, answer string) {
	w.Helper()
	if h.Stop == nil {
		w.Fatalf("the run is %s, want %s", h.State, state)
	}
	if h.State != state || h.Stop.Reason != reason || h.Answer != answer {
		w.Fatalf("the run ended as %s %s %q (%s), want %s %s %q", h.State, h.Stop.Reason, h.Answer, h.Stop.Message, state, reason, answer)
	}
}

// equal fails the test when two values differ.
func (w *world) equal(what string, want, got any) {
	w.Helper()
	if d := cmp.Diff(want, got); d != "" {
		w.Fatalf("%s differs (-want +got):\n%s", what, d)
	}
}

// sends lists what reached the tools, as "tool/attempt".
func (w *world) sends() []string {
	var sends []string
	for _, s := range w.tools.Sent() {
		sends = append(sends, fmt.Sprintf("%s/%d", s.Tool, s.Attempt))
	}
	return sends
}

// counted is the value of a counter of the newest worker, labels in any order.
func (w *world) counted(name string, labels map[string]string) (value float64) {
	w.Helper()
	value, _ = w.observed(name, labels)
	return value
}

// observed is the value of a counter of the newest worker, or the sum of a histogram
// and how much it has observed.
func (w *world) observed(name string, labels map[string]string) (sum float64, n uint64) {
	w.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.Fatalf("gather metrics: %v", err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			if cmp.Equal(labels, have) {
				return m.GetCounter().GetValue() + m.GetHistogram().GetSampleSum(), m.GetHistogram().GetSampleCount()
			}
		}
	}
	return 0, 0
}

// The tools of the tests, one for each effect.
var (
	look = enginetest.Tool("look", loop.ReadOnly)
	put  = enginetest.Tool("put", loop.Idempotent)
	send = enginetest.Tool("send", loop.SideEffect)
	wipe = enginetest.Tool("wipe", loop.Irreversible)
)

// call is a call of a tool without arguments.
func call(tool loop.ToolSpec) loop.ToolCall { return enginetest.Call(tool.Name, "{}") }
