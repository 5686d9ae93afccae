package engine

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/loopd/loopd/internal/loop"
)

// metrics counts what the journal says, at the moment it is committed, so that
// Prometheus and SQL agree. Labels come from the agent registry, the price book
// and the closed sets of package loop; a tool that the model made up counts as
// "_unknown". No label ever holds a run, a tenant or a word of the model's.
type metrics struct {
	finished   *prometheus.CounterVec
	cost       *prometheus.HistogramVec
	iterations *prometheus.HistogramVec
	duration   *prometheus.HistogramVec
	trips      *prometheus.CounterVec
	breaches   *prometheus.CounterVec
	checks     *prometheus.CounterVec
	spent      *prometheus.CounterVec
	purposes   *prometheus.CounterVec
	tokens     *prometheus.CounterVec
	iterTotal  *prometheus.CounterVec
	toolCalls  *prometheus.CounterVec
	toolTime   *prometheus.HistogramVec
	requests   *prometheus.CounterVec
	modelTime  *prometheus.HistogramVec
	boundUsed  *prometheus.HistogramVec
	fallbacks  *prometheus.CounterVec
	context    *prometheus.HistogramVec
	compacted  *prometheus.CounterVec
	leases     *prometheus.CounterVec
	recovered  *prometheus.CounterVec
	panics     *prometheus.CounterVec
	workSlots  *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: "loopd_" + name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "loopd_" + name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
		}, labels)
	}
	return &metrics{
		finished: counter("runs_finished_total", "Runs that ended, by the one reason why.", "agent", "stop_reason"),
		// A good run costs cents; the incident cost 4,200 USD. The buckets tell 0.20 from 1 and 1 from 100.
		cost: histogram("run_cost_usd", "Cost of a whole run in USD.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25, 100}, "agent", "outcome"),
		// Every count up to the usual cap of 12, then the ceilings.
		iterations: histogram("run_iterations", "Iterations of a whole run.",
			[]float64{1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50}, "agent", "outcome"),
		duration: histogram("run_duration_seconds", "Time from a run's creation to its end, waits included.",
			[]float64{.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640, 1800, 3600}, "agent", "outcome"),
		trips:     counter("guard_trips_total", "Guard verdicts that changed a run.", "guard", "action", "agent"),
		breaches:  counter("guard_breaches_total", "Limits that were passed although guarded. Must stay 0.", "guard"),
		checks:    counter("output_checks_total", "Checks of final answers by a part of the output contract: passed, failed, or unchecked when nobody could say.", "part", "outcome"),
		purposes:  counter("purpose_cost_usd_total", "Money spent on models in USD, by what the call was for: work, wrap_up, judge or summary.", "agent", "purpose"),
		spent:     counter("cost_usd_total", "Money spent on models in USD.", "agent", "model", "kind"),
		tokens:    counter("tokens_total", "Tokens, in disjoint kinds.", "agent", "model", "kind"),
		iterTotal: counter("iterations_total", "Iterations, as they happen.", "agent"),
		toolCalls: counter("tool_calls_total", "Tool calls that have their result.", "tool", "outcome"),
		toolTime: histogram("tool_duration_seconds", "Time of one tool call.",
			[]float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}, "tool"),
		requests: counter("llm_requests_total", "Requests to models, by how they ended.", "model", "code"),
		modelTime: histogram("llm_request_duration_seconds", "Time of one model request.",
			[]float64{.25, .5, 1, 2, 3, 5, 8, 12, 20, 30, 45, 60, 120, 300}, "model"),
		// Above 1 is a breach. Bounds by bytes are used to about a quarter, anchored ones to nearly all.
		boundUsed: histogram("llm_bound_used_ratio", "What a model call really took of its upper bound: of the hold, or of the input bound.",
			[]float64{.02, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, 1}, "model", "of"),
		fallbacks: counter("llm_fallbacks_total", "Runs that went on with another model.", "from", "to", "class"),
		// 0.6 is where transcripts are made shorter, 0.8 where runs wrap up.
		context: histogram("context_used_ratio", "Share of the model's context window that an iteration used.",
			[]float64{.1, .2, .3, .4, .5, .6, .7, .8, .9, .95, 1}, "agent"),
		compacted: counter("compactions_total", "Tries to make a transcript shorter.", "method", "outcome"),
		leases:    counter("lease_events_total", "What happened to leases.", "event"),
		recovered: counter("runs_recovered_total", "Runs taken over from a lost worker.", "cause"),
		panics:    counter("panics_total", "Panics contained.", "where"),
		workSlots: f.NewGaugeVec(prometheus.GaugeOpts{Name: "loopd_worker_slots", Help: "Runs that this worker drives and could drive."}, []string{"state"}),
	}
}

func (m *metrics) slots(used, all int) {
	m.workSlots.WithLabelValues("used").Set(float64(used))
	m.workSlots.WithLabelValues("free").Set(float64(all - used))
}

// observe counts the events of one commit. The state has them applied.
func (m *metrics) observe(s *loop.State, events []loop.Event) {
	spec := s.Spec()
	spec.Agent = strings.TrimPrefix(spec.Agent, "agents/") // the label is the agent's id
	for _, e := range events {
		switch b := e.Body.(type) {
		case loop.ModelAnswered:
			call := s.LastCall()
			m.spend(spec.Agent, call, b.Usage, b.Cost)
			m.request(call.Model, answerCode(b.Finish), b.LatencyMS)
			if s.AnswerKept() && !call.Beside() {
				m.iterTotal.WithLabelValues(spec.Agent).Inc()
				m.measure(spec.Agent, call, b)
			}
		case loop.ModelFailed:
			m.spend(spec.Agent, s.LastCall(), b.Usage, b.Cost)
			m.request(s.LastCall().Model, failureCode(b), b.LatencyMS)
		case loop.Compacted:
			m.compacted.WithLabelValues(string(b.Method), compactOutcome(b)).Inc()
		case loop.FellBack:
			m.fallbacks.WithLabelValues(b.From, b.To, string(b.Class)).Inc()
		case loop.CallFinished:
			tool := s.ToolLabel(b.CallID)
			m.toolCalls.WithLabelValues(tool, string(b.Outcome)).Inc()
			m.toolTime.WithLabelValues(tool).Observe(seconds(b.LatencyMS))
		case loop.ResultSubmitted:
			m.toolCalls.WithLabelValues(s.ToolLabel(b.CallID), string(b.Outcome)).Inc()
		case loop.ChildFinished:
			m.toolCalls.WithLabelValues(s.ToolLabel(b.CallID), childOutcome(b.State)).Inc()
		case loop.CallRefused:
			m.toolCalls.WithLabelValues(s.ToolLabel(b.CallID), string(b.Outcome)).Inc()
		case loop.CallDoubted:
			m.toolCalls.WithLabelValues(s.ToolLabel(b.CallID), string(loop.OutcomeUnknown)).Inc()
		case loop.AnswerRejected, loop.AnswerChecked, loop.AnswerAccepted:
			m.check(spec.Definition, b)
		case loop.Tripped:
			m.trips.WithLabelValues(b.Guard, string(b.Verdict), spec.Agent).Inc()
		case loop.Finished:
			m.end(s, spec.Agent, b)
		}
	}
}

func (m *metrics) spend(agent string, call loop.ModelStarted, u loop.Usage, c loop.Cost) {
	model := call.Model
	m.purposes.WithLabelValues(agent, cmp.Or(call.Purpose, "work")).Add(c.Total().Float())
	for kind, v := range map[string]loop.USD{"input": c.Input, "cache_read": c.CacheRead, "cache_write": c.CacheWrite, "output": c.Output} {
		m.spent.WithLabelValues(agent, model, kind).Add(v.Float())
	}
	for kind, n := range map[string]int64{
		"input_uncached": u.InputUncached, "cache_read": u.CacheRead, "cache_write": u.CacheWrite5m + u.CacheWrite1h,
		"output": u.Output, "reasoning": u.Reasoning,
	} {
		m.tokens.WithLabelValues(agent, model, kind).Add(float64(n))
	}
}

func (m *metrics) request(model, code string, latencyMS int64) {
	m.requests.WithLabelValues(model, code).Inc()
	m.modelTime.WithLabelValues(model).Observe(seconds(latencyMS))
}

// measure shows the share of the window that an iteration used, or likely did, if
// the provider did not say.
func (m *metrics) measure(agent string, call loop.ModelStarted, a loop.ModelAnswered) {
	if call.Window == 0 { // started by an older loopd
		return
	}
	used := a.Usage.Total()
	if a.Estimated {
		used = call.Context
	}
	m.context.WithLabelValues(agent).Observe(float64(used) / float64(call.Window))
}

// compactOutcome is the outcome label of a compaction.
func compactOutcome(b loop.Compacted) string {
	if b.Failure != "" {
		return "failed"
	}
	return "ok"
}

// compare shows how tight the bounds of an answered call were.
func (m *metrics) compare(model string, s loop.ModelStarted, a loop.ModelAnswered) {
	if a.Estimated {
		return
	}
	if s.Hold > 0 {
		m.boundUsed.WithLabelValues(model, "hold").Observe(a.Cost.Total().Float() / s.Hold.Float())
	}
	m.boundUsed.WithLabelValues(model, "input").Observe(float64(a.Usage.Input()) / float64(s.InputBound))
}

// end counts a finished run, with the trace and the run as exemplar.
func (m *metrics) end(s *loop.State, agent string, b loop.Finished) {
	h := s.Head()
	outcome := string(b.State)
	m.finished.WithLabelValues(agent, string(b.Stop.Reason)).Inc()
	exemplar := prometheus.Labels{"run_id": s.Run().ID}
	//nolint:errcheck // every histogram takes exemplars
	m.cost.WithLabelValues(agent, outcome).(prometheus.ExemplarObserver).ObserveWithExemplar(h.Cost.Total().Float(), exemplar)
	m.iterations.WithLabelValues(agent, outcome).Observe(float64(h.Iterations))
	m.duration.WithLabelValues(agent, outcome).Observe(h.EndedAt.Sub(s.CreatedAt()).Seconds())
}

// childOutcome is the outcome label of a call that a child run answered.
func childOutcome(s loop.RunState) string {
	switch s {
	case loop.StateSucceeded:
		return string(loop.OutcomeOK)
	case loop.StateCancelled:
		return string(loop.OutcomeCancelled)
	}
	return string(loop.OutcomePermanent)
}

// answerCode is the code label of an answered request.
func answerCode(f loop.Finish) string {
	if f == loop.FinishRefused {
		return "refusal"
	}
	return "ok"
}

// failureCode is the code label of a failed one: the status where there is a
// usual one, else the class.
func failureCode(b loop.ModelFailed) string {
	switch {
	case b.Class == loop.ErrorTimeout:
		return "timeout"
	case b.Class == loop.ErrorCancelled:
		return "cancelled"
	case b.Class == loop.ErrorTextLoop:
		return "text_loop"
	case b.Status >= 500:
		return "5xx"
	case b.Status == 400 || b.Status == 401 || b.Status == 403 || b.Status == 408 || b.Status == 429:
		return strconv.Itoa(b.Status)
	}
	return "other"
}

func seconds(ms int64) float64 { return float64(ms) / 1000 }
