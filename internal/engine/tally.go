package engine

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/loopd/loopd/internal/loop"
)

// tally follows one run for the metrics that no single event tells: where its time goes,
// what it has cost so far, and which guards were asked. Only the owner's goroutine
// touches it.
type tally struct {
	m     *metrics
	since time.Time         // up to which the run's time is accounted for
	phase string            // what it has been doing since
	which prometheus.Labels // leads to the run; see exemplar

	asked map[loop.Phase]bool // phases whose guards were asked since the last model call
	spoke map[string]bool     // guards that had something to say
}

func newTally(m *metrics) *tally {
	return &tally{m: m, asked: map[loop.Phase]bool{}, spoke: map[string]bool{}}
}

// begin takes up the run where its journal ends. A state that is read once more
// continues what is already accounted for.
func (t *tally) begin(s *loop.State, last time.Time) {
	if t.since.IsZero() {
		t.since, t.which = last, exemplar(s)
	}
	if t.phase = phaseLabel(s.Phase()); s.InAttempt() { // whoever did it is gone
		t.phase = phaseOther
	}
}

// committed accounts for events that are now durable, and counts them. Writing them took
// persist.
func (t *tally) committed(s *loop.State, events []loop.Event, persist time.Duration) {
	if len(events) > 0 {
		t.spend(s, events[0].At.Sub(t.since)-persist, persist)
		t.since, t.phase = events[len(events)-1].At, phaseLabel(s.Phase())
	}
	for _, e := range events {
		t.judge(e.Body)
	}
	t.m.observe(s, t.which, events)
	t.m.active.set(t, t.m.agent(s), s)
}

// spend adds time to the phase that the run was in, and to that of writing.
func (t *tally) spend(s *loop.State, d, persist time.Duration) {
	agent := t.m.agent(s)
	d = max(d, 0) // clocks of workers differ by a little
	t.m.phases.WithLabelValues(agent, t.phase).Add(d.Seconds())
	t.m.phases.WithLabelValues(agent, phasePersist).Add(persist.Seconds())
	if t.phase == phaseBackoff {
		provider, _, _ := strings.Cut(s.Model(), "/")
		t.m.backoff.WithLabelValues(provider).Add(d.Seconds())
	}
}

// judge counts the guards that were asked. Those of a phase are asked together, so that
// who did not speak let the run pass.
func (t *tally) judge(body loop.Body) {
	switch b := body.(type) {
	case loop.ModelAnswered:
		t.asked[loop.AfterAnswer] = true
	case loop.CallBegun, loop.CallHandedOut:
		t.asked[loop.BeforeTool] = true
	case loop.CallFinished, loop.CallRefused, loop.ResultSubmitted, loop.ChildFinished:
		t.asked[loop.AfterResults] = true
	case loop.AnswerAccepted, loop.AnswerRejected:
		t.asked[loop.FinalAnswer] = true
	case loop.Tripped:
		t.spoke[b.Guard] = true
		t.m.evaluations.WithLabelValues(b.Guard, verdictLabel(b.Verdict)).Inc()
	case loop.ModelStarted:
		if !b.Beside() {
			t.asked[loop.BeforeModel] = true
			t.pass()
		}
	case loop.Finished:
		t.pass()
	}
}

// pass counts those that were asked and said nothing.
func (t *tally) pass() {
	for _, g := range t.m.guards {
		if t.asked[g.Phase] && !t.spoke[g.Name] {
			t.m.evaluations.WithLabelValues(g.Name, "pass").Inc()
		}
	}
	clear(t.asked)
	clear(t.spoke)
}

func verdictLabel(v loop.Verdict) string {
	if v == loop.VerdictNudge {
		return "warn"
	}
	return "trip"
}

// Where the time of a run goes.
const (
	phaseQueue    = "queue"
	phaseModel    = "llm"
	phaseTool     = "tool"
	phaseApproval = "approval"
	phaseBackoff  = "backoff"
	phasePersist  = "persist"
	phaseOther    = "other"
)

// phaseLabel is the label of a head's phase.
func phaseLabel(phase string) string {
	switch phase {
	case "queue":
		return phaseQueue
	case "model":
		return phaseModel
	case "tools":
		return phaseTool
	case string(loop.WaitApproval), string(loop.WaitInDoubt), string(loop.WaitResult), string(loop.WaitRaise):
		return phaseApproval
	case string(loop.WaitBackoff), string(loop.WaitRate):
		return phaseBackoff
	}
	return phaseOther
}

// active shows the dearest and the longest run that this worker drives, by agent: which
// run is running away right now.
type active struct {
	cost, iterations *prometheus.Desc

	mu   sync.Mutex
	runs map[*tally]activeRun
}

type activeRun struct {
	agent      string
	cost       float64
	iterations int
}

func newActive() *active {
	labels := []string{"agent"}
	return &active{
		cost:       prometheus.NewDesc("loopd_run_active_cost_max_usd", "What the dearest run in flight on this worker has cost so far.", labels, nil),
		iterations: prometheus.NewDesc("loopd_run_active_iterations_max", "Iterations of the longest run in flight on this worker.", labels, nil),
		runs:       map[*tally]activeRun{},
	}
}

func (a *active) set(t *tally, agent string, s *loop.State) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runs[t] = activeRun{agent, s.Spent().Float(), s.Iterations()}
}

// drop forgets a run that is driven no more.
func (a *active) drop(t *tally) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.runs, t)
}

// Describe implements prometheus.Collector.
func (a *active) Describe(ch chan<- *prometheus.Desc) { ch <- a.cost; ch <- a.iterations }

// Collect implements prometheus.Collector.
func (a *active) Collect(ch chan<- prometheus.Metric) {
	most := map[string]activeRun{}
	a.mu.Lock()
	for _, r := range a.runs {
		m := most[r.agent]
		most[r.agent] = activeRun{r.agent, max(m.cost, r.cost), max(m.iterations, r.iterations)}
	}
	a.mu.Unlock()
	for agent, m := range most {
		ch <- prometheus.MustNewConstMetric(a.cost, prometheus.GaugeValue, m.cost, agent)
		ch <- prometheus.MustNewConstMetric(a.iterations, prometheus.GaugeValue, float64(m.iterations), agent)
	}
}
