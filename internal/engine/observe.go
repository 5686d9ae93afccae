package engine

import (
	"cmp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/loopd/loopd/internal/loop"
)

// observe counts the events of one commit. The state has them applied; which is the
// exemplar of the run.
func (m *metrics) observe(s *loop.State, which prometheus.Labels, events []loop.Event) {
	spec := s.Spec()
	agent := m.agent(s)
	for _, e := range events {
		switch b := e.Body.(type) {
		case loop.Claimed:
			if b.Attempt == 1 {
				m.queueWait.WithLabelValues(strings.ToLower(string(cmp.Or(spec.Priority, loop.PriorityNormal)))).Observe(e.At.Sub(s.CreatedAt()).Seconds())
			}
		case loop.ModelAnswered:
			m.answered(s, agent, which, b)
		case loop.ModelFailed:
			m.spend(s, agent, b.Usage, b.Cost)
			m.request(s, failureCode(b), which, b.LatencyMS)
		case loop.Compacted:
			m.compacted.WithLabelValues(string(b.Method), compactOutcome(b)).Inc()
		case loop.FellBack:
			m.fallbacks.WithLabelValues(m.labels.Models.Of(b.From), m.labels.Models.Of(b.To), string(b.Class)).Inc()
		case loop.CallFinished:
			m.toolCall(s, b.CallID, string(b.Outcome))
			m.toolTime.WithLabelValues(m.tool(s, b.CallID)).Observe(seconds(b.LatencyMS))
		case loop.ResultSubmitted:
			m.toolCall(s, b.CallID, string(b.Outcome))
			m.submitted(s, b.CallID)
		case loop.ChildFinished:
			m.toolCall(s, b.CallID, childOutcome(b.State))
		case loop.CallRefused:
			m.toolCall(s, b.CallID, string(b.Outcome))
			m.lapsed(s, b)
		case loop.CallDoubted:
			m.toolCall(s, b.CallID, string(loop.OutcomeUnknown))
		case loop.ApprovalDecided:
			m.decided(s, b)
		case loop.AnswerRejected, loop.AnswerChecked, loop.AnswerAccepted:
			m.check(spec.Definition, b)
		case loop.Tripped:
			m.trips.WithLabelValues(b.Guard, string(b.Verdict), agent).Inc()
		case loop.Finished:
			m.end(s, agent, which, b)
		}
	}
}

// agent is the label of the run's agent: its id.
func (m *metrics) agent(s *loop.State) string {
	return m.labels.Agents.Of(strings.TrimPrefix(s.Spec().Agent, "agents/"))
}

// tool is the label of a call's tool.
func (m *metrics) tool(s *loop.State, callID string) string {
	return m.labels.Tools.Of(s.ToolLabel(callID))
}

func (m *metrics) toolCall(s *loop.State, callID, outcome string) {
	m.toolCalls.WithLabelValues(m.tool(s, callID), outcome).Inc()
}

func (m *metrics) answered(s *loop.State, agent string, which prometheus.Labels, b loop.ModelAnswered) {
	call := s.LastCall()
	m.spend(s, agent, b.Usage, b.Cost)
	m.request(s, answerCode(b.Finish), which, b.LatencyMS)
	if b.Estimated {
		m.unpriced.WithLabelValues(m.labels.Models.Of(call.Model)).Inc()
	}
	if s.AnswerKept() && !call.Beside() {
		m.iterTotal.WithLabelValues(agent).Inc()
		m.measure(agent, call, b)
	}
}

// spend counts what the newest call cost.
func (m *metrics) spend(s *loop.State, agent string, u loop.Usage, c loop.Cost) {
	call := s.LastCall()
	model := m.labels.Models.Of(call.Model)
	m.tenantSpent.WithLabelValues(m.labels.Tenants.Of(s.Run().Tenant)).Add(c.Total().Float())
	m.purposes.WithLabelValues(agent, cmp.Or(call.Purpose, "work")).Add(c.Total().Float())
	spent := func(kind string, v loop.USD) { m.spent.WithLabelValues(agent, model, kind).Add(v.Float()) }
	spent("input", c.Input)
	spent("cache_read", c.CacheRead)
	spent("cache_write", c.CacheWrite)
	spent("output", c.Output)
	tokens := func(kind string, n int64) { m.tokens.WithLabelValues(agent, model, kind).Add(float64(n)) }
	tokens("input_uncached", u.InputUncached)
	tokens("cache_read", u.CacheRead)
	tokens("cache_write", u.CacheWrite5m+u.CacheWrite1h)
	tokens("output", u.Output)
	tokens("reasoning", u.Reasoning)
}

// request counts how the newest call ended.
func (m *metrics) request(s *loop.State, code string, which prometheus.Labels, latencyMS int64) {
	model := m.labels.Models.Of(s.LastCall().Model)
	m.requests.WithLabelValues(model, code).Inc()
	observe(m.modelTime.WithLabelValues(model), seconds(latencyMS), which)
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

// compare shows how tight the bounds of an answered call were.
func (m *metrics) compare(s loop.ModelStarted, a loop.ModelAnswered) {
	if a.Estimated {
		return
	}
	model := m.labels.Models.Of(s.Model)
	if s.Hold > 0 {
		m.boundUsed.WithLabelValues(model, "hold").Observe(a.Cost.Total().Float() / s.Hold.Float())
	}
	m.boundUsed.WithLabelValues(model, "input").Observe(float64(a.Usage.Input()) / float64(s.InputBound))
}

// What became of a call that waited for a person.
const (
	decisionApproved  = "approved"
	decisionEdited    = "edited"
	decisionDenied    = "denied"
	decisionAnswered  = "answered"
	decisionPolicy    = "policy"
	decisionExpired   = "expired"
	decisionCancelled = "cancelled"
)

// decided counts a decision, and how long it was waited for.
func (m *metrics) decided(s *loop.State, b loop.ApprovalDecided) {
	call, _ := s.Call(b.CallID)
	m.waited(s, call, decisionOf(b))
}

// decisionOf is a decision in one word.
func decisionOf(b loop.ApprovalDecided) string {
	switch {
	case b.Approved && strings.HasPrefix(b.By, "policies/"):
		return decisionPolicy
	case b.Approved && b.Args != "":
		return decisionEdited
	case b.Approved:
		return decisionApproved
	}
	return decisionDenied
}

// undecided reports whether the call was put before a person and nobody said anything.
func undecided(call loop.CallHead) bool { return !call.AskedAt.IsZero() && call.DecidedBy == "" }

// lapsed counts a call that nobody decided about, in time or before the run ended.
func (m *metrics) lapsed(s *loop.State, b loop.CallRefused) {
	if call, _ := s.Call(b.CallID); undecided(call) {
		m.waited(s, call, lapsedAs(b))
	}
}

// lapsedAs is how a wait ended in which nobody decided, in one word.
func lapsedAs(b loop.CallRefused) string {
	if b.Outcome == loop.OutcomeDenied {
		return decisionExpired
	}
	return decisionCancelled
}

// submitted counts a person's answer. The results of clients are not theirs.
func (m *metrics) submitted(s *loop.State, callID string) {
	call, _ := s.Call(callID)
	if tool, ok := s.Spec().Definition.Tool(call.Call.Name); ok && tool.Builtin == loop.BuiltinAskHuman {
		call.AskedAt, call.DecidedAt = call.StartedAt, call.FinishedAt
		m.waited(s, call, decisionAnswered)
	}
}

func (m *metrics) waited(s *loop.State, call loop.CallHead, decision string) {
	m.approvals.WithLabelValues(m.tool(s, call.Call.ID), decision).Inc()
	if !call.AskedAt.IsZero() && !call.DecidedAt.IsZero() {
		m.approvalAge.WithLabelValues(decision).Observe(call.DecidedAt.Sub(call.AskedAt).Seconds())
	}
}

// end counts a finished run.
func (m *metrics) end(s *loop.State, agent string, which prometheus.Labels, b loop.Finished) {
	h, outcome := s.Head(), string(b.State)
	m.finished.WithLabelValues(agent, string(b.Stop.Reason)).Inc()
	m.ofTenant.WithLabelValues(m.labels.Tenants.Of(s.Run().Tenant), outcome).Inc()
	observe(m.cost.WithLabelValues(agent, outcome), h.Cost.Total().Float(), which)
	m.iterations.WithLabelValues(agent, outcome).Observe(float64(h.Iterations))
	m.duration.WithLabelValues(agent, outcome).Observe(h.EndedAt.Sub(s.CreatedAt()).Seconds())
	if b.Stop.Reason == loop.CostUnpriced {
		m.unpriced.WithLabelValues(m.labels.Models.Of(s.Spec().Definition.Model)).Inc()
	}
}

// exemplar leads from a point of a histogram to the run and to its trace.
func exemplar(s *loop.State) prometheus.Labels {
	return prometheus.Labels{"run_id": s.Run().ID, "trace_id": traceID(s.Run(), s.Spec().Traceparent).String()}
}

// observe adds a value with its exemplar.
func observe(o prometheus.Observer, value float64, exemplar prometheus.Labels) {
	if e, ok := o.(prometheus.ExemplarObserver); ok {
		e.ObserveWithExemplar(value, exemplar)
	}
}

// timeFirst measures when the first fragment of an answer comes.
func (m *metrics) timeFirst(model string, began time.Time, emit func(loop.Delta)) func(loop.Delta) {
	var first sync.Once
	return func(d loop.Delta) {
		first.Do(func() { m.firstToken.WithLabelValues(m.labels.Models.Of(model)).Observe(time.Since(began).Seconds()) })
		emit(d)
	}
}

// compactOutcome is the outcome label of a compaction.
func compactOutcome(b loop.Compacted) string {
	if b.Failure != "" {
		return "failed"
	}
	return "ok"
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
