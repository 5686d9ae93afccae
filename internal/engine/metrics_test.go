package engine_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/engine/traffic"
	"github.com/loopd/loopd/internal/label"
	"github.com/loopd/loopd/internal/loop"
)

// moved are the metrics that moved in any test of this package. One that never does is
// a defect: see TestMain.
type moved struct {
	mu    sync.Mutex
	names map[string]bool // false: it is there, and has not moved
}

// note keeps what a worker's registry has.
func (m *moved) note(families []*dto.MetricFamily) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range families {
		has := false
		for _, metric := range f.GetMetric() {
			has = has || metric.GetCounter().GetValue()+metric.GetGauge().GetValue() > 0 || metric.GetHistogram().GetSampleCount() > 0
		}
		m.names[f.GetName()] = m.names[f.GetName()] || has
	}
}

// still lists those that have not moved.
func (m *moved) still() (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, has := range m.names {
		if !has {
			names = append(names, name)
		}
	}
	return names
}

func TestPhasesAddUpToTheTimeOfARun(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate, answered := make(chan struct{}), make(chan struct{})
		w.model.Script = []enginetest.Answer{{Calls: []loop.ToolCall{call(look)}, Gate: answered, Fail: []error{&loop.ModelError{Class: loop.ErrorServer, Status: 503, Message: "busy", RetryAfter: 5 * time.Second}}}, enginetest.Ask(call(wipe))}
		w.tools.Gates = map[string]<-chan struct{}{"look": gate}
		run := w.create(enginetest.Spec(look, wipe))
		w.pass(7 * time.Second)
		w.started()
		w.until("it is asked again", func() bool { return len(w.model.Requests()) == 2 })
		w.pass(3 * time.Second)
		close(answered)
		w.until("it looks", func() bool { return len(w.sends()) == 1 })
		w.pass(11 * time.Second)
		close(gate)
		a := w.await(run, loop.StateRequiresAction).RequiredActions[0]
		w.pass(60 * time.Second)
		w.signal(run, loop.ApprovalDecided{CallID: a.CallID, ArgsHash: a.ArgsHash, Approved: true})
		w.finish(run)

		total := 0.0
		for phase, least := range map[string]float64{"queue": 7, "llm": 3, "tool": 11, "approval": 60, "backoff": 5, "persist": 0, "other": 0} {
			got := w.counted("loopd_run_phase_seconds_total", map[string]string{"agent": "test", "phase": phase})
			if got < least || got > least+3 {
				w.Errorf("%v seconds in phase %s, want %v or a little more", got, phase, least)
			}
			total += got
		}
		lived, _ := w.observed("loopd_run_duration_seconds", map[string]string{"agent": "test", "outcome": "SUCCEEDED"})
		if diff := total - lived; diff > 0.001 || diff < -0.001 {
			w.Errorf("the phases of a run of %v s add up to %v s", lived, total)
		}
		if got := w.counted("loopd_llm_backoff_seconds_total", map[string]string{"provider": "fake"}); got < 5 || got > 8 {
			w.Errorf("%v seconds lost to the provider, want 5", got)
		}
		waited, n := w.observed("loopd_queue_wait_seconds", map[string]string{"priority": "normal"})
		w.equal("starts", uint64(1), n)
		if waited < 7 || waited > 8 {
			w.Errorf("the run waited %v s for its start, want 7", waited)
		}
	})
}

func TestDecisionsAreCounted(t *testing.T) {
	t.Parallel()
	decide := func(d loop.ApprovalDecided) func(*world, loop.RunRef, loop.RequiredAction) {
		return func(w *world, run loop.RunRef, a loop.RequiredAction) {
			d.CallID, d.ArgsHash = a.CallID, a.ArgsHash
			w.pass(30 * time.Second)
			w.signal(run, d)
		}
	}
	for want, then := range map[string]func(*world, loop.RunRef, loop.RequiredAction){
		"approved":  decide(loop.ApprovalDecided{Approved: true, By: "ann"}),
		"edited":    decide(loop.ApprovalDecided{Approved: true, By: "ann", Args: `{"all":false}`}),
		"denied":    decide(loop.ApprovalDecided{By: "ann"}),
		"policy":    decide(loop.ApprovalDecided{Approved: true, By: "policies/small@1"}),
		"expired":   func(w *world, _ loop.RunRef, a loop.RequiredAction) { w.pass(time.Until(a.Deadline)) },
		"cancelled": func(w *world, run loop.RunRef, _ loop.RequiredAction) { w.signal(run, loop.CancelRequested{By: "ann"}) },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				spans := tracetest.NewSpanRecorder()
				w.tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("")
				run, a := awaitApproval(w)
				then(w, run, a)
				w.finish(run)
				w.equal("decision in the trace", []string{want}, decisionsIn(spans.Ended()))
				w.equal(want, 1.0, w.counted("loopd_approvals_total", map[string]string{"tool": "wipe", "decision": want}))
				if want == "approved" {
					waited, n := w.observed("loopd_approval_wait_seconds", map[string]string{"decision": want})
					w.equal("waits", uint64(1), n)
					if waited < 30 || waited > 33 {
						w.Errorf("the decision took %v s, want 30", waited)
					}
				}
			})
		})
	}
}

// decisionsIn lists how the waits for people ended that are in a trace.
func decisionsIn(spans []sdktrace.ReadOnlySpan) (decisions []string) {
	for _, s := range spans {
		for _, a := range s.Attributes() {
			if s.Name() == "loopd.approval_wait" && a.Key == "loopd.approval.decision" {
				decisions = append(decisions, a.Value.AsString())
			}
		}
	}
	return decisions
}

func TestGuardsAreSeenToBeAlive(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(look)), enginetest.Ask(call(look)), enginetest.Ask(call(look)), enginetest.Ask(call(look))}
		run := w.create(enginetest.Spec(look))
		w.started()
		w.finish(run)

		evaluated := func(guard, verdict string) float64 {
			return w.counted("loopd_guard_evaluations_total", map[string]string{"guard": guard, "verdict": verdict})
		}
		requests := float64(len(w.model.Requests()))
		w.equal("cost let each call pass", requests, evaluated("cost", "pass"))
		w.equal("nobody was refused an answer", requests, evaluated("refusal", "pass"))
		w.equal("repeat told the model", 1.0, evaluated("repeat", "warn"))
		w.equal("repeat ended the run", 1.0, evaluated("repeat", "trip"))
		w.equal("no contract, no check", 0.0, evaluated("output", "pass"))
	})
}

func TestTheDearestRunInFlightIsShown(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		gate := make(chan struct{})
		w.tools.Gates = map[string]<-chan struct{}{"put": gate}
		w.model.ByInput = map[string][]enginetest.Answer{
			"long":  {enginetest.Ask(call(look)), enginetest.Ask(call(put))},
			"short": {enginetest.Ask(call(put))},
		}
		var runs []loop.RunRef
		for _, input := range []string{"long", "short"} {
			spec := enginetest.Spec(look, put)
			spec.Input = input
			runs = append(runs, w.create(spec))
		}
		w.started()
		w.until("both put", func() bool { return strings.Count(fmt.Sprint(w.sends()), "put") == 2 })

		agent := map[string]string{"agent": "test"}
		w.equal("iterations", 2.0, w.gauge("loopd_run_active_iterations_max", agent))
		w.equal("cost", w.store.Head(runs[0]).Cost.Total().Float(), w.gauge("loopd_run_active_cost_max_usd", agent))
		close(gate)
		w.finish(runs[0])
		w.finish(runs[1])
		w.until("nothing is in flight", func() bool { return w.gauge("loopd_run_active_iterations_max", agent) == 0 })
	})
}

// Ten thousand runs of agents, tenants, models and tools with all kinds of names: there
// are never more series than the labels allow, and no word of a model is among them.
func TestHostileNamesMakeNoSeries(t *testing.T) {
	t.Parallel()
	const runs, agents = 10_000, 500
	bubble(t, func(w *world) {
		evil := []string{"look\x00", "rm -rf /", "ユニコード", "a\xff\xfe", strings.Repeat("x", 10_000), `"} 1`, "\n# HELP", "'; DROP TABLE events"}
		w.model.ByInput = map[string][]enginetest.Answer{}
		for i, name := range evil {
			w.model.ByInput[fmt.Sprint(i)] = []enginetest.Answer{enginetest.Ask(loop.ToolCall{Name: name, Args: "{}"})}
		}
		for i := range runs {
			tool := look
			tool.Name = fmt.Sprintf("tool-%d", i%agents)
			spec := enginetest.Spec(tool)
			spec.Agent, spec.Input = fmt.Sprintf("agents/a%d", i%agents), fmt.Sprint(i%(len(evil)+1))
			spec.Definition.Model = fmt.Sprintf("fake/m%d", i%agents)
			spec.Price.Model = spec.Definition.Model
			if i%(len(evil)+1) == len(evil) {
				w.model.ByInput[spec.Input] = nil // answers at once
			}
			w.createFor(fmt.Sprintf("tenant-%d", i%agents), spec)
		}
		worker := w.worker()
		w.start(worker, func(c *engine.Config) {
			c.Labels, c.MaxRuns = label.NewSet(c.Registerer, []string{"tenant-1"}), 2000
		})
		w.until("all runs have ended", func() bool { return w.ended() == runs })

		total := 0
		for _, f := range w.families() {
			most := map[string]map[string]bool{}
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if most[l.GetName()] == nil {
						most[l.GetName()] = map[string]bool{}
					}
					most[l.GetName()][l.GetValue()] = true
				}
			}
			total += len(f.GetMetric())
			for name, bound := range map[string]int{"agent": label.MaxAgents, "model": label.MaxModels, "tool": label.MaxTools, "tenant": 1} {
				if got := len(most[name]); got > bound+2 { // _other and _unknown
					w.Errorf("%s has %d values of %s", f.GetName(), got, name)
				}
			}
			for _, values := range most {
				for value := range values {
					if strings.ContainsAny(value, " \x00\n;\"") || len(value) > 64 {
						w.Errorf("%s has the label value %.40q", f.GetName(), value)
					}
				}
			}
		}
		if total > 1500 {
			w.Errorf("%d series", total)
		}
		w.equal("runs counted", float64(runs), w.sum("loopd_runs_finished_total"))
		w.equal("agents without series of their own are counted", true, w.sum("loopd_label_overflow_total") > 0)
	})
}

// note keeps which metrics the newest worker has moved.
func (w *world) note() {
	if w.registry != nil {
		everMoved.note(w.families())
	}
}

// ended counts the runs that have ended.
func (w *world) ended() (n int) {
	for _, run := range w.store.Runs() {
		if w.store.Head(run).State.Terminal() {
			n++
		}
	}
	return n
}

// families is what the newest worker's registry has.
func (w *world) families() []*dto.MetricFamily {
	w.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.Fatalf("gather metrics: %v", err)
	}
	return families
}

// sum adds the series of a counter up.
func (w *world) sum(name string) (sum float64) {
	for _, f := range w.families() {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue()
		}
	}
	return sum
}

// gauge is the value of a gauge, 0 if there is none.
func (w *world) gauge(name string, labels prometheus.Labels) float64 {
	for _, f := range w.families() {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) == len(labels) && m.GetLabel()[0].GetValue() == labels[m.GetLabel()[0].GetName()] {
				return m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

func TestABreachIsCounted(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{{Text: "the end", Used: loop.Usage{InputUncached: 100, Output: 1_000_000}}}
		run := w.create(enginetest.Spec())
		w.started()
		w.finish(run)
		w.equal("breaches", 1.0, w.counted("loopd_guard_breaches_total", map[string]string{"guard": "cost"}))
	})
}

func TestWaitingForAShareIsShown(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		runs := []loop.RunRef{w.create(enginetest.Spec()), w.create(enginetest.Spec())}
		w.limited(traffic.Limits{RequestsPerMinute: 1})
		waiting := prometheus.Labels{"provider": "fake"}
		w.until("one run waits", func() bool { return w.gauge("loopd_provider_waiting_requests", waiting) == 1 })
		w.note()
		w.finish(runs[0])
		w.finish(runs[1])
		w.equal("waits after the end", 0.0, w.gauge("loopd_provider_waiting_requests", waiting))
	})
}
