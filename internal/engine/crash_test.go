package engine_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// scenario is a run that is killed at every point that there is.
type scenario struct {
	name   string
	spec   loop.Spec
	script []enginetest.Answer
	child  []enginetest.Answer // of a run that is asked childInput
	pause  string              // the tool whose first call is under way when somebody pauses the run
	cancel string              // the tool whose first call is under way when somebody cancels the run
	never  bool                // nobody raises a limit
	bulk   int                 // bytes of the results of look
	budget loop.USD            // that all runs share; a run that waits for more gets it. 0: there is none
}

const childInput = "look into it"

func scenarios() []scenario {
	asks := func(tools ...loop.ToolSpec) []enginetest.Answer {
		var calls []loop.ToolCall
		for _, t := range tools {
			calls = append(calls, call(t))
		}
		return []enginetest.Answer{enginetest.Ask(calls...), enginetest.Say("done")}
	}
	wrapUp := scenario{name: "wrap-up", spec: enginetest.Spec(look, send)}
	wrapUp.spec.Limits.Iterations = 3
	for i := range 5 {
		args := fmt.Sprintf(`{"n":%d}`, i)
		wrapUp.script = append(wrapUp.script, enginetest.Ask(enginetest.Call("look", args), enginetest.Call("send", args)))
	}
	contract := scenario{
		name: "output contract", spec: enginetest.Spec(put),
		script: []enginetest.Answer{enginetest.Ask(call(put)), enginetest.Say("no JSON"), enginetest.Say(`{"ok":true}`)},
	}
	contract.spec.Definition.OutputSchema = []byte(`{"type":"object"}`)
	queue := scenario{name: "one at a time", spec: enginetest.Spec(send), script: []enginetest.Answer{
		enginetest.Ask(enginetest.Call("send", `{"n":1}`), enginetest.Call("send", `{"n":2}`), enginetest.Call("send", `{"n":3}`)), enginetest.Say("done"),
	}}
	queue.spec.Limits.ParallelCalls = 1
	ample := scenario{name: "budget", spec: enginetest.Spec(put), script: asks(put), budget: 10 * loop.OneUSD}
	short := scenario{name: "budget that is raised", spec: enginetest.Spec(put), budget: loop.FirstNeed(enginetest.Spec(put)), script: []enginetest.Answer{
		{Calls: []loop.ToolCall{call(put)}, NoUsage: true}, enginetest.Say("done"), // it costs all that was held for it
	}}
	return append([]scenario{
		{name: "read-only", spec: enginetest.Spec(look), script: asks(look)},
		{name: "idempotent", spec: enginetest.Spec(put), script: asks(put)},
		{name: "side effect", spec: enginetest.Spec(send), script: asks(send)},
		{name: "irreversible", spec: enginetest.Spec(wipe), script: asks(wipe)},
		{name: "parallel mix", spec: enginetest.Spec(look, put, send, wipe), script: append([]enginetest.Answer{
			enginetest.Ask(call(look), enginetest.Call("nonsense", "{}"), call(put), call(send), enginetest.Call("put", "no JSON"), call(wipe)),
		}, asks(look)...)},
		{name: "retry", spec: enginetest.Spec(send), script: []enginetest.Answer{
			{Calls: []loop.ToolCall{call(send)}, Fail: []error{throttled(0)}}, {Text: "done", Fail: []error{throttled(2 * time.Minute)}},
		}},
		{name: "text loop", spec: enginetest.Spec(send), script: []enginetest.Answer{{Calls: []loop.ToolCall{call(send)}, Chants: 1}, enginetest.Say("done")}},
		wrapUp, contract, queue, checkedScenario(), checkpointScenario(), summary(), cleared(), ample, short,
	}, append(handedOut(asks), heldBack(asks)...)...)
}

// heldBack are the scenarios in which a person or a guard pauses the run.
func heldBack(asks func(...loop.ToolSpec) []enginetest.Answer) []scenario {
	batch := []enginetest.Answer{
		enginetest.Ask(call(send), enginetest.Call("wipe", "{}"), enginetest.Call("put", `{"n":1}`)), enginetest.Ask(call(put)), enginetest.Say("done"),
	}
	raised := scenario{name: "raise", spec: enginetest.Spec(put, send), script: []enginetest.Answer{
		enginetest.Ask(call(put)), enginetest.Ask(call(send)), enginetest.Ask(enginetest.Call("send", `{"n":2}`)), enginetest.Say("done"),
	}}
	raised.spec.Limits.Iterations = 2
	raised.spec.Definition.Acts = map[string]loop.Verdict{"iterations": loop.VerdictPause}
	unraised := raised
	unraised.name, unraised.never = "raise that never comes", true
	unraised.spec.Limits.WallTime = 10 * time.Minute
	return []scenario{
		{name: "pause", spec: enginetest.Spec(put), script: asks(put), pause: "put"},
		{name: "pause with an approval open", spec: enginetest.Spec(put, send, wipe), script: batch, pause: "send"},
		raised, unraised,
		{name: "cancel", spec: enginetest.Spec(put, send, wipe), script: batch, cancel: "send"},
		{name: "cancel of what may be repeated", spec: enginetest.Spec(put, send, wipe), script: batch, cancel: "put"},
	}
}

// summary is a run whose oldest iterations are summed up: what they brought is not to
// be had again.
func summary() scenario {
	once := enginetest.Tool("once", loop.Idempotent)
	sc := scenario{name: "summary", spec: enginetest.Spec(once, send), bulk: 6000, script: []enginetest.Answer{enginetest.Ask(call(send))}}
	for n := range int64(5) {
		args := fmt.Sprintf(`{"n":%d}`, n)
		sc.script = append(sc.script, enginetest.Answer{Calls: []loop.ToolCall{enginetest.Call("once", args)}, Input: 1200 + 2000*n})
	}
	sc.spec.Price.Window = 18_000
	sc.script = append(sc.script, enginetest.Ask(call(send)), enginetest.Say("done"))
	return sc
}

// cleared is a run whose oldest results are left out.
func cleared() scenario {
	sc := scenario{name: "clear", spec: enginetest.Spec(look, send), bulk: 9000, script: []enginetest.Answer{enginetest.Ask(call(send))}}
	for n := range int64(5) {
		args := fmt.Sprintf(`{"n":%d}`, n)
		sc.script = append(sc.script, enginetest.Answer{Calls: []loop.ToolCall{enginetest.Call("look", args)}, Input: 1200 + 3000*min(n, 3)})
	}
	sc.spec.Price.Window = 20_000
	sc.script = append(sc.script, enginetest.Say("done"))
	return sc
}

// handedOut are the scenarios in which somebody else runs the call.
func handedOut(asks func(...loop.ToolSpec) []enginetest.Answer) []scenario {
	client, human, wait, guarded := enginetest.Tool("scan", loop.SideEffect), enginetest.Tool("ask_human", loop.ReadOnly), enginetest.Tool("wait", loop.ReadOnly), put
	client.Client, human.Builtin, wait.Builtin = &loop.ClientSpec{}, loop.BuiltinAskHuman, loop.BuiltinWait
	guarded.Approval.Mode = loop.ApprovalAlways
	team := enginetest.Tool("team", loop.Idempotent)
	team.Child = &loop.ChildSpec{Spec: enginetest.Spec(send)}
	delegates := []enginetest.Answer{
		enginetest.Ask(enginetest.Call("team", `{"input":"`+childInput+`"}`), call(put), enginetest.Call("team", `{"input":"`+childInput+`","n":2}`)), enginetest.Say("done"),
	}
	return []scenario{
		{name: "client tool", spec: enginetest.Spec(client, put), script: asks(client, put)},
		{name: "question", spec: enginetest.Spec(human, send), script: asks(human, send)},
		{name: "timer", spec: enginetest.Spec(wait), script: []enginetest.Answer{enginetest.Ask(enginetest.Call("wait", `{"seconds":90}`)), enginetest.Say("done")}},
		{name: "approval by rule", spec: enginetest.Spec(guarded, look), script: asks(guarded, look)},
		{name: "child runs", spec: enginetest.Spec(team, put), script: delegates, child: asks(send)},
	}
}

// fate is what happens to the first worker of a run, at point n.
type fate struct {
	name   string
	points func(worker *enginetest.Worker) int // of one that nothing befell
	befall func(w *world, run loop.RunRef, worker *enginetest.Worker, n int)
}

func fates() []fate {
	atCommits := (*enginetest.Worker).Commits
	atAppend := func(worker *enginetest.Worker, n int, do func()) {
		var count atomic.Int64 // a worker may drive several runs
		worker.BeforeAppend = func(loop.Lease, engine.Batch) error {
			if count.Add(1) == int64(n) {
				do()
			}
			return nil
		}
	}
	return []fate{
		{"killed after commit", atCommits, func(_ *world, _ loop.RunRef, worker *enginetest.Worker, n int) {
			worker.KillAfterCommit = n
		}},
		{"killed between intent and effect", (*enginetest.Worker).Effects, func(_ *world, _ loop.RunRef, worker *enginetest.Worker, n int) {
			worker.KillBeforeEffect = n
		}},
		{"killed between effect and record", (*enginetest.Worker).Effects, func(_ *world, _ loop.RunRef, worker *enginetest.Worker, n int) {
			worker.KillAfterEffect = n
		}},
		{"killed between draw and intent", (*enginetest.Worker).Draws, func(_ *world, _ loop.RunRef, worker *enginetest.Worker, n int) {
			worker.KillAfterDraw = n
		}},
		{"killed before commit", atCommits, func(_ *world, _ loop.RunRef, worker *enginetest.Worker, n int) {
			atAppend(worker, n, worker.Kill)
		}},
		{"robbed of the lease before commit", atCommits, func(w *world, run loop.RunRef, worker *enginetest.Worker, n int) {
			atAppend(worker, n, func() { w.store.Steal(run, "") })
		}},
		{"broken down before commit", atCommits, func(_ *world, _ loop.RunRef, worker *enginetest.Worker, n int) {
			atAppend(worker, n, func() { panic("the journal's adapter crashed") })
		}},
		{"cut off for a while before commit", atCommits, func(w *world, _ loop.RunRef, worker *enginetest.Worker, n int) {
			atAppend(worker, n, func() {
				w.store.SetDown(true)
				// Between the moments in which workers try again, so that insist comes before them.
				time.AfterFunc(20*time.Second+time.Millisecond, func() { w.store.SetDown(false) })
			})
		}},
		{"drained before commit", atCommits, func(_ *world, _ loop.RunRef, worker *enginetest.Worker, n int) {
			atAppend(worker, n, worker.Drain)
		}},
	}
}

// outcome is what a run comes to, whatever happened to its workers.
type outcome struct {
	State      loop.RunState
	Reason     loop.StopReason
	Answer     string
	Iterations int
	ToolCalls  int
	Transcript []string
	Effects    map[string]int // of the tools that change something, by what they were asked
}

func TestCrashAnywhere(t *testing.T) {
	t.Parallel()
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			var want outcome
			var unharmed *enginetest.Worker
			bubble(t, func(w *world) {
				want, unharmed = sc.live(w, nil)
			})
			for _, f := range fates() {
				for n := 1; n <= f.points(unharmed); n++ {
					t.Run(fmt.Sprintf("%s %d", f.name, n), func(t *testing.T) {
						bubble(t, func(w *world) {
							got, _ := sc.live(w, func(run loop.RunRef, worker *enginetest.Worker) { f.befall(w, run, worker, n) })
							w.equal("outcome", sc.comparable(want), sc.comparable(got))
						})
					})
				}
			}
		})
	}
}

// comparable is what must be the same in any case. Of a call that was under way when
// the run was cancelled its worker knows how it ended; whoever comes after it does not.
func (sc scenario) comparable(o outcome) outcome {
	if sc.cancel == "" {
		return o
	}
	return outcome{State: o.State, Reason: o.Reason, Answer: o.Answer}
}

// live takes the scenario to its end. The first worker meets its fate, if there is
// one; then others come, the second of which dies as well.
func (sc scenario) live(w *world, befall func(loop.RunRef, *enginetest.Worker)) (o outcome, first *enginetest.Worker) {
	w.Helper()
	w.model.ByModel = map[string]func(loop.ModelRequest) enginetest.Answer{"judge": politeJudge}
	w.model.Summary = enginetest.Say("Much was done.")
	w.model.Script, w.model.ByInput = sc.script, map[string][]enginetest.Answer{childInput: sc.child}
	w.tools.Replies = map[string]func(int) loop.ToolReply{}
	for _, t := range append(sc.spec.Definition.Tools, send) {
		result := "result of " + t.Name
		if t.Name != send.Name && sc.bulk > len(result) {
			result += strings.Repeat("x", sc.bulk-len(result))
		}
		w.tools.Replies[t.Name] = func(int) loop.ToolReply { return enginetest.OK(result) }
	}
	w.tools.Replies["validate"] = func(int) loop.ToolReply { return enginetest.OK(`{"ok":true}`) }
	run := w.create(sc.spec)
	if sc.pause != "" {
		w.tools.Replies[sc.pause] = func(n int) loop.ToolReply {
			if n == 0 {
				w.insist(run, loop.PauseRequested{By: "ann"})
			}
			return enginetest.OK("result of " + sc.pause)
		}
	}
	if sc.cancel != "" {
		w.tools.Replies[sc.cancel] = func(n int) loop.ToolReply {
			if n == 0 {
				w.insist(run, loop.CancelRequested{By: "ann"})
			}
			return enginetest.OK("result of " + sc.cancel)
		}
	}
	if sc.budget > 0 {
		w.setBudget(sc.budget)
	}
	first = w.worker()
	if befall != nil {
		befall(run, first)
	}
	w.start(first)
	retries := w.live(run, !sc.never, func() {
		switch {
		case len(w.workers) == 1 && first.Context().Err() != nil:
			second := w.worker()
			second.KillAfterCommit = 2
			w.start(second)
		case len(w.workers) == 2 && w.workers[1].Dead():
			w.started()
		}
	})
	for _, ref := range w.store.Runs() {
		w.audit(ref, retries)
	}
	w.auditBudget()
	return w.outcome(run), first
}

// insist signals as soon as the store is there.
func (w *world) insist(run loop.RunRef, body loop.Body) {
	for w.store.Down() {
		time.Sleep(time.Millisecond)
	}
	w.signal(run, body)
}

// live lets time pass until the run ends. It starts workers as each tick says, and
// decides what waits: it approves, resumes, raises limits if it may, and resolves
// calls in doubt by the truth. It returns how often it had a call sent again.
func (w *world) live(run loop.RunRef, raises bool, tick func()) map[string]int {
	w.Helper()
	retries, decided := map[string]int{}, map[string]bool{}
	for range 2000 {
		synctest.Wait()
		tick()
		h := w.store.Head(run)
		if h.State.Terminal() {
			return retries
		}
		if w.store.Down() { // nobody can say anything
			time.Sleep(500 * time.Millisecond)
			continue
		}
		if h.State == loop.StatePaused && h.Phase == "budget" {
			w.setBudget(10 * loop.OneUSD)
		}
		for _, ref := range w.store.Runs() {
			h := w.store.Head(ref)
			if h.State == loop.StatePaused && h.Phase == "paused" && !decided[ref.ID] {
				decided[ref.ID] = true
				w.signal(ref, loop.Resumed{By: "ann", Input: "Go on."})
			}
			for _, a := range h.RequiredActions {
				once := fmt.Sprint(ref.ID, a.Kind, a.CallID, retries[ref.ID+a.CallID])
				if h.State != loop.StateRequiresAction || decided[once] || a.Kind == loop.RequireRaise && !raises {
					continue
				}
				decided[once] = true
				w.decide(ref, a, retries)
			}
		}
		time.Sleep(500 * time.Millisecond)
	}
	w.Fatalf("the run is lost: it is %s, owned by %q", w.store.Head(run).State, w.store.Owner(run))
	return nil
}

func (w *world) decide(run loop.RunRef, a loop.RequiredAction, retries map[string]int) {
	w.Helper()
	switch a.Kind {
	case "approve":
		w.signal(run, loop.ApprovalDecided{CallID: a.CallID, ArgsHash: a.ArgsHash, Approved: true})
		return
	case "raise":
		limits := w.state(run).Limits()
		limits.Iterations += 5
		w.signal(run, loop.Resumed{Limits: &limits})
		return
	case "submit", "answer":
		w.signal(run, loop.ResultSubmitted{CallID: a.CallID, Attempt: a.Attempt, Outcome: loop.OutcomeOK, Content: "result of " + a.Tool})
		return
	}
	for _, s := range w.tools.Sent() {
		if s.Run == run.ID && s.CallID == a.CallID {
			w.signal(run, loop.CallResolved{CallID: a.CallID, Resolution: loop.ResolvedSucceeded, Result: "result of " + a.Tool})
			return
		}
	}
	retries[run.ID+a.CallID]++
	w.signal(run, loop.CallResolved{CallID: a.CallID, Resolution: loop.ResolvedRetry})
}

// audit checks what must be true of every run, whatever happened to it.
func (w *world) audit(run loop.RunRef, retries map[string]int) {
	w.Helper()
	s := w.state(run)
	h := s.Head()
	w.equal("head", h, w.store.Head(run))
	w.equal("held at the end", loop.USD(0), h.Held)
	w.equal("owner at the end", "", w.store.Owner(run))
	if h.Cost.Total() > s.Spec().Limits.Cost {
		w.Errorf("the run cost %s USD", h.Cost.Total())
	}
	w.auditSends(run, retries)
	w.auditCancel(run)

	doubted := false
	for _, c := range w.store.Calls(run) {
		switch c.State {
		case loop.CallPlanned, loop.CallAwaitingApproval, loop.CallApproved, loop.CallStarted, loop.CallOffered:
			w.Errorf("%s was left %s", c.Call.ID, c.State)
		case loop.CallInDoubt:
			doubted = true
		}
	}
	if doubted { // the run was cancelled first, so that no model waits for results
		w.equal("state", loop.StateCancelled, h.State)
		return
	}
	results := map[string]int{}
	calls := 0
	for _, m := range s.Transcript() {
		calls += len(m.Calls())
		for _, p := range m.Parts {
			if p.Result != nil {
				results[p.Result.CallID]++
			}
		}
	}
	w.equal("calls with a result", calls, len(results))
	for id, n := range results {
		w.equal("results of "+id, 1, n)
	}
}

// auditCancel checks that nothing starts once the journal knows of a cancel.
func (w *world) auditCancel(run loop.RunRef) {
	w.Helper()
	cancelled := false
	for _, e := range w.events(run) {
		switch e.Body.(type) {
		case loop.CancelRequested:
			cancelled = true
		case loop.ModelStarted, loop.CallBegun, loop.CallHandedOut:
			if cancelled {
				w.Errorf("event %d, %s, comes after the cancel", e.Seq, e.Body.Kind())
			}
		}
	}
}

// auditBudget checks that the budget, if there is one, knows of every call and of nothing
// else once all runs have ended.
func (w *world) auditBudget() {
	w.Helper()
	spent, held, err := w.store.Standing(w.Context(), "acme", budgetName)
	if errors.Is(err, loop.ErrNotFound) {
		return
	}
	var cost loop.USD
	for _, ref := range w.store.Runs() {
		cost += w.store.Head(ref).Cost.Total()
	}
	w.equal("spent of the budget", cost, spent)
	w.equal("held of the budget", loop.USD(0), held)
}

// auditSends checks the ledger of the world against the journal.
func (w *world) auditSends(run loop.RunRef, retries map[string]int) {
	w.Helper()
	begun := map[string]bool{}
	for _, b := range bodies[loop.CallBegun](w, run) {
		begun[fmt.Sprint(b.CallID, b.Attempt)] = true
	}
	approved := map[string]bool{}
	for _, d := range bodies[loop.ApprovalDecided](w, run) {
		approved[d.CallID] = d.Approved
	}
	sent, byCall := map[string]int{}, map[string]int{}
	for _, s := range w.tools.Sent() {
		if s.Run != run.ID || asksAboutAnswer(s) {
			continue
		}
		spec, _ := w.state(run).Spec().Definition.Tool(s.Tool)
		attempt := fmt.Sprint(s.CallID, s.Attempt)
		sent[attempt]++
		byCall[s.CallID]++
		w.equal("key", "loopd:"+run.ID+":"+s.CallID, s.Key)
		w.equal("sends of "+attempt, 1, sent[attempt])
		if !begun[attempt] {
			w.Errorf("attempt %d of %s was sent without an intent", s.Attempt, s.CallID)
		}
		if spec.Effect == loop.Irreversible && !approved[s.CallID] {
			w.Errorf("%s was sent without an approval", s.CallID)
		}
		if (spec.Effect == loop.SideEffect || spec.Effect == loop.Irreversible) && byCall[s.CallID] > 1 {
			w.Errorf("%s %s was sent %d times, and %d times by authority", spec.Effect, s.CallID, byCall[s.CallID], retries[run.ID+s.CallID])
		}
	}
}

// unpriced finds what a child run cost, ids of calls and hashes of their arguments, and
// how long a wait was: they depend on what was lost.
var unpriced = regexp.MustCompile(`"(cost_usd|waited_seconds|call)":("[0-9c.-]+"|[0-9]+)|c[0-9]+-[0-9]+(, arguments [0-9a-f]+)?`)

// outcome reads what the run came to. Ids of calls are left out: a model call that
// was lost is made again under the next number.
func (w *world) outcome(run loop.RunRef) outcome {
	w.Helper()
	s := w.state(run)
	h := s.Head()
	o := outcome{
		State: h.State, Reason: h.Stop.Reason, Answer: h.Answer, Iterations: h.Iterations, ToolCalls: h.ToolCalls, Effects: map[string]int{},
	}
	for _, m := range s.Transcript() {
		for _, p := range m.Parts {
			switch {
			case p.Call != nil:
				o.Transcript = append(o.Transcript, fmt.Sprintf("%s calls %s %s", m.Role, p.Call.Name, p.Call.Args))
			case p.Result != nil:
				o.Transcript = append(o.Transcript, fmt.Sprintf("%s is told %s: %s: %s", m.Role, p.Result.Name, p.Result.Outcome, unpriced.ReplaceAllString(p.Result.Content, "")))
			default:
				o.Transcript = append(o.Transcript, fmt.Sprintf("%s: %s", m.Role, unpriced.ReplaceAllString(p.Text, "")))
			}
		}
	}
	keys := map[string]bool{}
	for _, sent := range w.tools.Sent() {
		if asksAboutAnswer(sent) {
			continue
		}
		spec, own := s.Spec().Definition.Tool(sent.Tool)
		if !own {
			spec = send // a child run's
		}
		if spec.Effect != loop.ReadOnly && !keys[sent.Key] {
			keys[sent.Key] = true
			o.Effects[sent.Tool]++
		}
	}
	return o
}
