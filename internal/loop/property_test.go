package loop_test

import (
	"flag"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/loopd/loopd/internal/loop"
	"pgregory.net/rapid"
)

// TestHistories lives thousands of runs in a hostile world. What must hold is in
// the audit. It also makes sure that the world is hostile enough: every way for
// a run to end must come up.
func TestHistories(t *testing.T) {
	ends, compacted := map[loop.StopReason]int{}, map[string]int{}
	var events, recovered, fallbacks, observed, smaller int
	resumed, judges, broken := map[string]int{}, map[string]int{}, map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		h := live(t)
		ends[h.audit.finished.Stop.Reason]++
		events += len(h.journal)
		recovered += 6 - h.crashes
		fallbacks += h.audit.fallbacks
		observed += h.audit.observed
		smaller += h.audit.smaller
		for how, n := range h.audit.pauses {
			resumed[how] += n
		}
		for how, n := range h.audit.compacted {
			compacted[how] += n
		}
		h.audit.contract.count(judges)
		for how, n := range h.audit.suspects.ends {
			broken[how] += n
		}
	})
	t.Logf("%d events, %d crashes, %d fallbacks, %d observed, pauses: %v, judges: %v, compactions: %v, ends: %v",
		events, recovered, fallbacks, observed, resumed, judges, compacted, ends)
	if checks, err := strconv.Atoi(flag.Lookup("rapid.checks").Value.String()); err != nil || checks < 10_000 {
		return
	}
	if fallbacks == 0 {
		t.Error("no history fell back on another model")
	}
	if observed == 0 || smaller == 0 {
		t.Errorf("guards only observed %d times, and %d calls were made for less than was refused", observed, smaller)
	}
	for _, how := range []string{"asked", "by a guard", "resumed", "raised", "told", "nobody raised", "for a judge"} {
		if resumed[how] == 0 {
			t.Errorf("no history was paused and %q: the test does not try what it promises", how)
		}
	}
	for _, how := range []string{"returned", "crashed", "exhausted"} {
		if broken[how] == 0 {
			t.Errorf("no history has an attempt that %s", how)
		}
	}
	for _, what := range judgedAs {
		if judges[what] == 0 {
			t.Errorf("no history has an answer %s by a judge", what)
		}
	}
	for _, how := range []string{"clear", "summarize", "summarize failed"} {
		if compacted[how] == 0 {
			t.Errorf("no history has a compaction of the kind %q", how)
		}
	}
	for _, r := range loop.StopReasons() {
		if !slices.Contains(unreached, r) && ends[r] == 0 {
			t.Errorf("no history ended as %s: the test does not try what it promises", r)
		}
	}
}

// unreached are the ends that this world cannot bring about.
var unreached = []loop.StopReason{
	loop.CostUnpriced,  // refused before a run is created
	loop.GuardInternal, // no guard crashes
}

// neverStarted are the failures that a provider surely did not charge for.
var neverStarted = []loop.ErrorClass{
	loop.ErrorNotStarted, loop.ErrorThrottle, loop.ErrorQuota, loop.ErrorContext, loop.ErrorRequest, loop.ErrorAuth,
}

// audit keeps its own books, from the events and from what the world saw, and
// knows nothing of the core's.
type audit struct {
	t      *rapid.T
	limits loop.Limits
	acts   map[string]loop.Verdict
	json   bool                  // the agent has an output schema
	prices map[string]loop.Price // by model
	model  string                // in use

	committed, held loop.USD
	usage           loop.Usage
	tokens, output  int64 // used, at the bound where the provider did not say
	started         loop.ModelStarted
	finish          loop.Finish // of the newest answer that the transcript kept
	modelCalls      int
	fallbacks       int
	observed        int             // trips of guards that only observe
	failed          loop.ErrorClass // how the newest model call failed; empty if it did not
	textLoops       int             // answers that went round in circles
	schema          bool            // the newest request of the conversation had one
	plain           bool            // one was refused that did

	calls     map[string]loop.ToolCall // by id, from the answers
	effects   map[string]loop.Effect
	state     map[string]string             // by id: "begun", "doubt", "retry", or an outcome
	approved  map[string]string             // by id, the hash
	effected  map[string]int                // by id: times it may have changed the world
	retries   map[string]int                // by id: times somebody allowed another send
	begun     int                           // first sends
	alive     map[string]loop.CallHandedOut // by call id: child runs that have not ended
	perAnswer map[string]int                // first sends by the answer's part of the call id
	perTool   map[string]int                // first sends by tool
	caps      map[string]int                // by tool: most first sends

	contract contractAudit
	suspects suspects

	refused                   *loop.AccountRefused // until the run asks again
	smaller                   int                  // calls after a refusal, for less
	waits                     bool                 // for money, since the newest model call
	final, stopped, cancelled bool
	paused                    bool
	raise                     []loop.Tripped // what guards paused it for
	pauses                    map[string]int // what became of pauses
	finished                  *loop.Finished

	compaction
}

func newAudit(t *rapid.T, spec loop.Spec) *audit {
	a := &audit{
		t: t, limits: spec.Limits, acts: spec.Definition.Acts, json: len(spec.Definition.OutputSchema) > 0,
		prices: map[string]loop.Price{spec.Definition.Model: spec.Price}, model: spec.Definition.Model,
		calls: map[string]loop.ToolCall{}, effects: map[string]loop.Effect{}, state: map[string]string{},
		alive: map[string]loop.CallHandedOut{}, compaction: newCompaction(), approved: map[string]string{}, effected: map[string]int{}, retries: map[string]int{}, perAnswer: map[string]int{},
		perTool: map[string]int{}, caps: map[string]int{},
		pauses: map[string]int{}, suspects: suspects{ends: map[string]int{}},
	}
	for _, p := range spec.FallbackPrices {
		a.prices[p.Model] = p
	}
	a.contract.begin(a, spec)
	a.summarizer = spec.Definition.Summarizer
	for _, tool := range spec.Definition.Tools {
		a.effects[tool.Name] = tool.Effect
		a.caps[tool.Name] = tool.MaxCalls
	}
	return a
}

// event takes one event, after the state has.
func (a *audit) event(e loop.Event, s *loop.State) {
	if a.finished != nil {
		a.t.Fatalf("%s after the end", e.Body.Kind())
	}
	a.contract.event(a, e.Body)
	a.suspects.event(a, e.Body)
	switch b := e.Body.(type) {
	case loop.ModelStarted:
		a.modelStarted(b)
	case loop.Compacted:
		a.compactedTo(b, s)
	case loop.ModelAnswered:
		a.failed = ""
		if b.Chant != "" {
			a.textLoops++
		}
		if b.Cost.Total() > a.held {
			a.t.Fatalf("the call cost %s, its hold was %s", b.Cost.Total(), a.held)
		}
		a.settle(b.Usage, b.Cost, b.Estimated)
		if t := s.Transcript(); t[len(t)-1].Seq == e.Seq {
			a.finish = b.Finish
		}
		for _, c := range b.Message.Calls() {
			a.calls[c.ID] = c
		}
	case loop.FellBack:
		a.fellBack(b)
	case loop.ModelFailed:
		a.failed = b.Class
		if b.Class == loop.ErrorTextLoop && (a.started.Purpose == "" || a.started.Purpose == loop.PurposeWrapUp) {
			a.textLoops++
		}
		a.plain = a.plain || b.Class == loop.ErrorRequest && a.schema && !a.started.Beside()
		worked := !slices.Contains(neverStarted, b.Class)
		if want := map[bool]loop.USD{true: a.held}[worked]; b.Cost.Total() != want {
			a.t.Fatalf("a call that failed as %s is charged %s, want %s", b.Class, b.Cost.Total(), want)
		}
		a.settle(b.Usage, b.Cost, worked)
	case loop.CallBegun:
		a.callBegun(b)
	case loop.CallHandedOut:
		a.handedOut(b)
	case loop.ChildFinished:
		a.childFinished(b)
	case loop.ResultSubmitted:
		a.state[b.CallID] = string(b.Outcome)
	case loop.CallPolled:
		a.state[b.CallID] = "polled"
	case loop.CallVerified:
		switch {
		case b.Found:
			a.state[b.CallID] = string(loop.ResolvedSucceeded)
		case b.Settled:
			a.state[b.CallID] = string(loop.ResolvedNotExecuted)
		}
	case loop.CallFinished:
		a.state[b.CallID] = string(b.Outcome)
	case loop.CallDoubted:
		a.state[b.CallID] = "doubt"
	case loop.CallResolved:
		a.callResolved(b)
	case loop.ApprovalRequested:
		a.quiet("an approval is asked for")
	case loop.ApprovalDecided:
		if c := a.calls[b.CallID]; b.Approved {
			if b.Args != "" {
				c.Args = b.Args
				a.calls[b.CallID] = c
			}
			a.approved[b.CallID] = loop.ArgsHash(theRun, c)
		}
	case loop.AccountRefused:
		a.refused = &b
		a.waits = a.waits || b.Act == loop.VerdictPause
	case loop.Claimed:
		a.refused = nil
	case loop.Suspended:
		a.suspended(b, e, s.Head())
	case loop.Tripped:
		a.tripped(b)
		if b.Verdict == loop.VerdictFinalTurn { // the wrap-up may fit
			a.refused = nil
		}
		a.final = a.final || b.Verdict == loop.VerdictFinalTurn
		a.stopped = a.stopped || b.Verdict == loop.VerdictStop
		a.trippedPause(b)
	case loop.PauseRequested:
		a.paused = true
		a.pauses["asked"]++
	case loop.Resumed:
		a.resumed(b)
	case loop.CancelRequested:
		a.cancelled = true
	case loop.Finished:
		a.finished = &b
		if len(a.alive) > 0 {
			a.t.Fatalf("the run ends before its child runs %v", a.alive)
		}
		if a.acts[b.Stop.Guard] == loop.VerdictNudge {
			a.t.Fatalf("%s ends the run, and may only observe", b.Stop.Guard)
		}
		if b.State == loop.StateSucceeded && loop.ChantIn(b.Answer) != "" {
			a.t.Fatalf("SUCCEEDED with a chant: %q", b.Answer)
		}
		if b.State == loop.StateSucceeded && (a.final || a.stopped || a.cancelled) {
			a.t.Fatalf("SUCCEEDED after final turn %v, stop %v, cancel %v", a.final, a.stopped, a.cancelled)
		}
	}
	a.budgets(s.Head())
	a.keep(s)
}

// tripped says that a guard does what the agent wants of it, and proves what it says.
func (a *audit) tripped(b loop.Tripped) {
	info, known := loop.GuardNamed(b.Guard)
	switch {
	case !known || len(b.Gauges) < 5:
		a.t.Fatalf("a trip of %q with %d gauges", b.Guard, len(b.Gauges))
	case b.Default != "" && b.Verdict != a.acts[b.Guard]:
		a.t.Fatalf("%s does %s instead of %s, the agent wants %q", b.Guard, b.Verdict, b.Default, a.acts[b.Guard])
	case info.Phase == loop.AfterResults && len(b.Evidence) == 0:
		a.t.Fatalf("%s trips without a proof", b.Guard)
	case b.Default != "" && b.Verdict == loop.VerdictNudge:
		a.observed++
	}
}

// budgets must hold after every single event.
func (a *audit) budgets(h loop.Head) {
	l := a.limits
	var children loop.USD
	childTokens := int64(0)
	for _, out := range a.alive {
		children, childTokens = children+out.Hold, childTokens+out.Tokens
	}
	switch {
	case a.committed+a.held+children > l.Cost:
		a.t.Fatalf("committed %s + held %s + held for children %s is above the limit %s", a.committed, a.held, children, l.Cost)
	case a.committed != h.Cost.Total() || a.held+children != h.Held || a.usage != h.Usage:
		a.t.Fatalf("the head has cost %s, held %s, usage %+v; the events %s, %s, %+v", h.Cost.Total(), h.Held, h.Usage, a.committed, a.held, a.usage)
	case a.tokens+childTokens > l.TotalTokens || a.output > l.OutputTokens:
		a.t.Fatalf("%d tokens of %d, %d output tokens of %d", a.tokens, l.TotalTokens, a.output, l.OutputTokens)
	case h.Iterations > l.Iterations:
		a.t.Fatalf("%d iterations of %d", h.Iterations, l.Iterations)
	case a.modelCalls > l.ModelCalls || a.modelCalls != h.ModelCalls:
		a.t.Fatalf("%d model calls of %d, the head says %d", a.modelCalls, l.ModelCalls, h.ModelCalls)
	case a.begun > l.ToolCalls || a.begun != h.ToolCalls:
		a.t.Fatalf("%d tool calls of %d, the head says %d", a.begun, l.ToolCalls, h.ToolCalls)
	}
}

// fellBack says when another model may be asked: never after what is wrong with
// the request, and after a spent account only at another provider.
func (a *audit) fellBack(b loop.FellBack) {
	a.quiet("a fallback")
	from, _, _ := strings.Cut(b.From, "/")
	to, _, _ := strings.Cut(b.To, "/")
	switch {
	case b.From != a.model || b.Class != a.failed:
		a.t.Fatalf("falls back from %s after %q; in use is %s, it failed with %q", b.From, b.Class, a.model, a.failed)
	case b.Class == loop.ErrorQuota && from == to:
		a.t.Fatalf("falls back on %s, whose account is spent", b.To)
	case slices.Contains([]loop.ErrorClass{loop.ErrorContext, loop.ErrorRequest, loop.ErrorAuth, loop.ErrorInternal, loop.ErrorCancelled, loop.ErrorLost}, b.Class):
		a.t.Fatalf("falls back after %q", b.Class)
	}
	a.model = b.To
	a.fallbacks++
}

// quiet says that nothing may start after a cancel, or while the run is paused.
func (a *audit) quiet(what string) {
	if a.paused {
		a.t.Fatalf("%s while the run is paused", what)
	}
	if a.cancelled {
		a.t.Fatalf("%s after the run was cancelled", what)
	}
}

// suspended says how a run waits for money: only if its budget wants that, and not for
// ever.
func (a *audit) suspended(b loop.Suspended, e loop.Event, h loop.Head) {
	if b.Reason != loop.WaitBudget {
		return
	}
	switch {
	case a.refused == nil || a.refused.Act != loop.VerdictPause || a.final:
		a.t.Fatalf("the run waits for money after the refusal %+v, final turn %v", a.refused, a.final)
	case h.State != loop.StatePaused && !a.cancelled || h.Phase != "budget" || !h.WaitUntil.After(e.At):
		a.t.Fatalf("a run that waits for money is %s, %q until %v at %v", h.State, h.Phase, h.WaitUntil, e.At)
	case !a.refused.ResetAt.IsZero() && b.Until.After(a.refused.ResetAt.Add(time.Second)) && b.Until.After(e.At.Add(time.Second)):
		a.t.Fatalf("the run waits until %v for money that is there at %v", b.Until, a.refused.ResetAt)
	}
}

func (a *audit) modelStarted(b loop.ModelStarted) {
	a.quiet("a model call starts")
	a.waits = false
	if r := a.refused; r != nil && (b.Purpose != "" || b.Hold+b.Reserve > r.Limit-r.Committed) {
		a.t.Fatalf("a model call starts after its money was refused: %+v", a.refused)
	}
	if a.refused != nil { // it asks for less
		a.smaller, a.refused = a.smaller+1, nil
	}
	if b.Purpose == loop.PurposeJudge {
		a.contract.asked(a, b)
		return
	}
	if (b.Purpose == loop.PurposeWrapUp) != a.final {
		a.t.Fatalf("purpose %q, but final turn is %v", b.Purpose, a.final)
	}
	if a.textLoops > 1 {
		a.t.Fatalf("the model is asked again after %d answers that went round in circles", a.textLoops)
	}
	model := a.model
	if b.Purpose == loop.PurposeSummary && a.summarizer != "" {
		model = a.summarizer
	}
	if _, known := a.prices[b.Model]; !known || b.Model != model {
		a.t.Fatalf("model %q is called while %q is in use", b.Model, model)
	}
	a.startModel(b)
	if len(a.effects) > 0 && b.Purpose == "" {
		a.reserved(b)
	}
}

// startModel checks a model call against the books and enters it.
func (a *audit) startModel(b loop.ModelStarted) {
	price := a.prices[b.Model]
	if b.InputBound <= 0 || b.MaxOutput <= 0 || b.Hold < price.Bound(b.InputBound, b.MaxOutput) {
		a.t.Fatalf("a hold that covers nothing: %+v", b)
	}
	if most := price.MaxOutput; most > 0 && b.MaxOutput > most {
		a.t.Fatalf("%d output tokens are asked of a model that writes at most %d", b.MaxOutput, most)
	}
	if a.tokens+b.InputBound+b.MaxOutput > a.limits.TotalTokens || a.output+b.MaxOutput > a.limits.OutputTokens {
		a.t.Fatalf("with %d tokens used, %d of them output, a call may use %+v", a.tokens, a.output, b)
	}
	a.modelCalls++
	a.held, a.started = b.Hold, b
	if total := a.committed + b.Hold + b.Reserve; b.Purpose == loop.PurposeSummary && (total > a.limits.Cost || b.Reserve == 0 && len(a.effects) > 0) {
		a.t.Fatalf("with its wrap-up the run could cost %s of %s: %+v", total, a.limits.Cost, b)
	}
}

// reserved says that after a call with tools a wrap-up can still be paid: it
// reads what the call read, its answer and the results, and writes the last answer.
func (a *audit) reserved(b loop.ModelStarted) {
	reads, writes := b.InputBound+b.MaxOutput+b.ResultBudget, a.limits.FinalOutput
	if cost := a.committed + b.Hold + a.prices[b.Model].Bound(reads, writes); cost > a.limits.Cost {
		a.t.Fatalf("with its wrap-up the run could cost %s of %s: %+v", cost, a.limits.Cost, b)
	}
	if total := a.tokens + b.InputBound + b.MaxOutput + reads + writes; total > a.limits.TotalTokens {
		a.t.Fatalf("with its wrap-up the run could use %d tokens of %d: %+v", total, a.limits.TotalTokens, b)
	}
	if output := a.output + b.MaxOutput + writes; output > a.limits.OutputTokens {
		a.t.Fatalf("with its wrap-up the run could write %d tokens of %d: %+v", output, a.limits.OutputTokens, b)
	}
}

// settle books a model call. Where the provider may have worked and did not say
// how much, the worst is assumed.
func (a *audit) settle(u loop.Usage, c loop.Cost, unsaid bool) {
	a.held = 0
	a.committed += c.Total()
	a.usage = a.usage.Add(u)
	if unsaid {
		a.tokens += a.started.InputBound + a.started.MaxOutput
		a.output += a.started.MaxOutput
		return
	}
	a.tokens += u.Total()
	a.output += u.AllOutput()
}

func (a *audit) callBegun(b loop.CallBegun) {
	a.quiet("a tool call starts")
	if a.final {
		a.t.Fatalf("call %s starts after the final turn began", b.CallID)
	}
	looks := a.calls[b.CallID].Name == "wait" && b.Attempt > 1 // each look has a key of its own
	if want := "loopd:r-1:" + b.CallID; b.Key != want && (!looks || b.Key != fmt.Sprintf("%s:%d", want, b.Attempt)) {
		a.t.Fatalf("call %s has key %q", b.CallID, b.Key)
	}
	if b.Attempt == 1 && a.calls[b.CallID].Name != "finish" {
		a.begun++
		answer, _, _ := strings.Cut(b.CallID, "-")
		a.perAnswer[answer]++
		if a.perAnswer[answer] > a.limits.CallsPerAnswer {
			a.t.Fatalf("answer %s starts more than %d calls", answer, a.limits.CallsPerAnswer)
		}
		tool := a.calls[b.CallID].Name
		a.perTool[tool]++
		if most := a.caps[tool]; most > 0 && a.perTool[tool] > most {
			a.t.Fatalf("more than %d calls to %s start", most, tool)
		}
	}
	a.state[b.CallID] = "begun"
}

// handedOut is the start of a call that somebody else runs.
func (a *audit) handedOut(b loop.CallHandedOut) {
	a.callBegun(loop.CallBegun{CallID: b.CallID, Attempt: b.Attempt, Key: b.Key})
	if b.Child == nil {
		return
	}
	l := b.Child.Limits
	if b.Hold <= 0 || l.Cost > b.Hold || l.TotalTokens > b.Tokens || l.Deadline > a.limits.Deadline || l.WallTime > a.limits.WallTime {
		a.t.Fatalf("child of call %s may go beyond what its parent holds: %+v", b.CallID, l)
	}
	if _, twice := a.alive[b.CallID]; twice {
		a.t.Fatalf("call %s starts two child runs", b.CallID)
	}
	a.alive[b.CallID] = b
}

func (a *audit) childFinished(b loop.ChildFinished) {
	delete(a.alive, b.CallID)
	a.committed += b.Cost.Total()
	a.usage = a.usage.Add(b.Usage)
	a.tokens += b.Tokens
	a.state[b.CallID] = string(b.State)
}

func (a *audit) callResolved(b loop.CallResolved) {
	a.state[b.CallID] = string(b.Resolution)
	if b.Resolution == loop.ResolvedRetry {
		a.retries[b.CallID]++
	}
}

// performed is told when a send has left loopd: the world as it really is.
func (a *audit) performed(s loop.Send, o loop.Outcome) {
	id, effect := s.Call.ID, a.effects[s.Call.Name]
	if _, ok := a.effects[s.Call.Name]; !ok || s.Call.Problem != "" {
		a.t.Fatalf("call %s to %s was sent: it has no such tool or invalid arguments", id, s.Call.Name)
	}
	if a.state[id] != "begun" {
		a.t.Fatalf("call %s was sent while %q: the intent was not durable", id, a.state[id])
	}
	if effect.Repeatable() || o == loop.OutcomeNotSent {
		return
	}
	a.effected[id]++
	if a.effected[id] > 1+a.retries[id] {
		a.t.Fatalf("%s call %s was sent %d times, %d allowed again", effect, id, a.effected[id], a.retries[id])
	}
	if effect != loop.SideEffect && a.approved[id] != loop.ArgsHash(theRun, s.Call) {
		a.t.Fatalf("%s call %s was sent under approval %q", effect, id, a.approved[id])
	}
	for other, n := range a.effected {
		if other != id && n > 0 && a.calls[other].Name == s.Call.Name && inOrder(a.calls[other].Args) == inOrder(s.Call.Args) {
			switch a.state[other] {
			case string(loop.OutcomeOK), string(loop.ResolvedSucceeded), "doubt", "begun":
				a.t.Fatalf("call %s repeats %s, which is %s", id, other, a.state[other])
			}
		}
	}
}

// request checks what a provider would be sent.
func (a *audit) request(c loop.CallModel) {
	r := c.Request
	if c.Beside() {
		if r.ToolsAllowed || len(r.Tools) > 0 || len(r.Messages) != 1 || r.MaxOutputTokens != c.Started.MaxOutput {
			a.t.Fatalf("beside the conversation a model is asked %+v", r)
		}
		if c.Started.Purpose == loop.PurposeJudge {
			a.contract.request(a, c)
		}
		return
	}
	if r.ToolsAllowed == a.final || r.MaxOutputTokens != c.Started.MaxOutput {
		a.t.Fatalf("tools allowed: %v in final turn: %v, output %d of %d", r.ToolsAllowed, a.final, r.MaxOutputTokens, c.Started.MaxOutput)
	}
	wanted := a.json && a.prices[a.model].Structured && !a.final && !a.plain && !c.Beside()
	if a.schema = len(r.OutputSchema) > 0; a.schema != wanted {
		a.t.Fatalf("a request with schema %q, wanted: %v", r.OutputSchema, wanted)
	}
	var open []loop.ToolCall // of the assistant message before
	for i, m := range r.Messages {
		results := resultsOf(m)
		if len(results) != len(open) {
			a.t.Fatalf("message %d has %d results for %d calls", i, len(results), len(open))
		}
		for j, result := range results {
			if result.CallID != open[j].ID || result.ProviderID != open[j].ProviderID || result.Name != open[j].Name || result.Content == "" {
				a.t.Fatalf("message %d, result %d is %+v for call %+v", i, j, result, open[j])
			}
		}
		open = m.Calls()
	}
	last := r.Messages[len(r.Messages)-1]
	if len(open) > 0 || last.Role == loop.RoleAssistant && a.finish != loop.FinishPaused {
		a.t.Fatalf("the request ends with %+v", last)
	}
}

// inOrder undoes the one reordering of keys that the world's models do.
func inOrder(args string) string { return strings.Replace(args, `{"b":2,"a":1}`, `{"a":1,"b":2}`, 1) }

func resultsOf(m loop.Message) []loop.ToolResult {
	var results []loop.ToolResult
	for _, p := range m.Parts {
		if p.Kind == loop.PartToolResult {
			results = append(results, *p.Result)
		}
	}
	return results
}

// same is a fast comparison; diff tells what differs, for people.
func same(a, b any) bool { return reflect.DeepEqual(a, b) }

func diff(a, b any) string {
	return cmp.Diff(a, b, cmp.Exporter(func(reflect.Type) bool { return true }))
}
