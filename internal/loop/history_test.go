package loop_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"pgregory.net/rapid"
)

// history drives one run the way the engine does, in a world that rapid makes
// up: models, tools, people, crashes and drains. Every event goes past the audit,
// and in some histories through the codec, as it would through Postgres.
type history struct {
	t       *rapid.T
	spec    loop.Spec
	now     time.Time
	state   *loop.State
	journal []loop.Event
	epoch   int64
	audit   *audit

	// What the world may still do. Without these a history need not end.
	crashes, drains int
	pauses, resumes int
	mood            mood
	wire            bool // events go through the codec
}

// mood is what a world insists on, for ends that pure chance never reaches.
type mood string

const (
	fickle   mood = ""         // anything goes
	stubborn mood = "stubborn" // the same call, the same result
	pausing  mood = "pausing"
	deadly   mood = "deadly"   // workers die
	patient  mood = "patient"  // nobody decides anything
	circling mood = "circling" // two calls in turn, or the same few again and again
	chanting mood = "chanting" // the same words, without end
	guessing mood = "guessing" // another argument each time, the same failure
	droning  mood = "droning"  // answers that are given up for going round, or come whole and do
	wordy    mood = "wordy"    // results as long as they may be
	broke    mood = "broke"    // budgets have no room
)

var (
	theRun = loop.RunRef{Tenant: "acme", ID: "r-1"}
	epoch0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

	// dice are six coins: rapid's own integers lean towards small ones.
	dice = rapid.Custom(func(t *rapid.T) int {
		n := 0
		for range 6 {
			n <<= 1
			if coin.Draw(t, "") {
				n |= 1
			}
		}
		return n
	})
	coin = rapid.Bool()
)

// maxEvents is far above what the limits of any generated run allow: at most 24
// model calls with at most 6 tool calls of a few events each. A longer history
// does not end by itself.
const maxEvents = 1500

// live drives the run until it ends.
func live(t *rapid.T) *history {
	h := &history{t: t, now: epoch0, state: &loop.State{}, crashes: 6, drains: 4, pauses: 3, resumes: 6}
	h.spec = h.randomSpec()
	h.wire = h.odds(4)
	h.mood = rarely(h, fickle, stubborn, pausing, deadly, patient, circling, chanting, guessing, droning, wordy, broke)
	if h.mood == wordy {
		l, usual := &h.spec.Limits, loop.Defaults() // else other guards come first
		l.Iterations, l.Cost, l.TotalTokens, l.OutputTokens, l.Deadline = usual.Iterations, usual.Cost, usual.TotalTokens, usual.OutputTokens, usual.Deadline
		l.FinalOutput, l.ErrorIters, l.ToolCalls = usual.FinalOutput, usual.ErrorIters, usual.ToolCalls
		h.spec.Price.Window, h.spec.Attachments = pick[int64](h, 32_000, 40_000, 48_000), nil
	}
	if h.mood == guessing { // else the guards of errors come first
		h.spec.Limits.NearDuplicates, h.spec.Limits.ErrorIters = 2, 4
	}
	if h.mood == circling { // so that each of the guards comes first sometimes
		l := &h.spec.Limits
		h.spec.Definition.Checkpoints = nil
		l.IdenticalIters, l.Cycles, l.FrequentRepeats, l.NoveltyIters = 4, pick(h, 2, 2, 0), pick(h, 3, 3, 0), pick(h, 3, 0)
	}
	h.audit = newAudit(t, h.spec)
	defer func() {
		if t.Failed() {
			t.Log(h.story())
		}
	}()
	h.state, _ = loop.Fold(theRun, nil)
	h.append(loop.Created{Spec: h.spec})
	h.claim(false)
	for h.audit.finished == nil {
		if len(h.journal) > maxEvents {
			t.Fatalf("the run does not end: %d events, last %+v", len(h.journal), h.journal[len(h.journal)-5:])
		}
		h.pass(h.pause())
		h.signal(32)
		switch {
		case h.audit.finished != nil:
		case h.drains > 0 && h.odds(48):
			h.drains--
			h.append(loop.Suspended{Reason: loop.WaitDrain})
			h.claim(false)
		default:
			h.perform(h.next())
		}
	}
	if _, done := h.state.Next(h.now).(loop.Done); !done {
		t.Fatalf("a finished run wants %#v", h.state.Next(h.now))
	}
	h.refold()
	return h
}

// story tells the journal, for whoever has to understand a failure.
func (h *history) story() string {
	var b strings.Builder
	for _, e := range h.journal {
		_, body, _ := loop.EncodeBody(e.Body)
		fmt.Fprintf(&b, "\n%3d %s %s %s", e.Seq, e.At.Sub(epoch0), e.Body.Kind(), body)
	}
	return b.String()
}

// throw draws a number from 0 to 63.
func (h *history) throw() int { return dice.Draw(h.t, "dice") }

// odds is true one time in n. It shrinks to false.
func (h *history) odds(n int) bool { return h.throw() > 63-64/n }

// below draws an int from 0 to n-1. It shrinks to 0.
func (h *history) below(n int) int { return h.throw() * n / 64 }

func pick[T any](h *history, options ...T) T { return options[h.below(len(options))] }

// rarely is the usual value five times in six, so that a history meets one or
// two tight limits and not all of them at once.
func rarely[T any](h *history, usual T, others ...T) T {
	if h.odds(6) {
		return pick(h, others...)
	}
	return usual
}

func (h *history) pass(d time.Duration) { h.now = h.now.Add(d) }

// pause is how long something takes: mostly short.
func (h *history) pause() time.Duration {
	return pick(h, 0, 0, 50*time.Millisecond, 300*time.Millisecond, time.Second, time.Second, 4*time.Second, 25*time.Second)
}

// append is a commit: the events are durable and then applied.
func (h *history) append(bodies ...loop.Body) {
	for _, b := range bodies {
		if h.wire {
			b = h.throughCodec(b)
		}
		e := loop.Event{Seq: int64(len(h.journal)) + 1, At: h.now, Epoch: h.epoch, Body: b}
		h.journal = append(h.journal, e)
		if err := h.state.Apply(e); err != nil {
			h.t.Fatalf("apply: %v", err)
		}
		h.audit.event(e, h.state)
	}
}

// throughCodec is what the journal gives back.
func (h *history) throughCodec(b loop.Body) loop.Body {
	kind, text, err := loop.EncodeBody(b)
	if err != nil {
		h.t.Fatalf("encode: %v", err)
	}
	decoded, err := loop.DecodeBody(kind, text)
	if err != nil {
		h.t.Fatalf("decode what was encoded: %v", err)
	}
	if !same(b, decoded) {
		h.t.Fatalf("the codec changes an event:\n%s", diff(b, decoded))
	}
	return decoded
}

// next asks the core, and now and then makes sure that asking changes nothing.
func (h *history) next() loop.Action {
	a := h.state.Next(h.now)
	if h.odds(16) {
		if again := h.state.Next(h.now); !same(a, again) {
			h.t.Fatalf("Next answers differently when asked twice:\n%s", diff(a, again))
		}
		if fresh := h.refold().Next(h.now); !same(a, fresh) {
			h.t.Fatalf("Next answers differently after a refold:\n%s", diff(a, fresh))
		}
	}
	return a
}

// refold folds the durable events again and compares.
func (h *history) refold() *loop.State {
	s, err := loop.Fold(theRun, h.journal)
	if err != nil {
		h.t.Fatalf("fold: %v", err)
	}
	if !same(h.state, s) {
		h.t.Fatalf("the folded state differs from the one that grew:\n%s", diff(h.state, s))
	}
	return s
}

// claim begins an attempt.
func (h *history) claim(recovered bool) {
	h.epoch++
	h.append(loop.Claimed{Attempt: h.state.Attempts() + 1, Worker: fmt.Sprint("w", h.epoch), Recovered: recovered, Returned: h.returned()})
}

// crash loses the worker with a little luck: what is not in the journal is gone.
func (h *history) crash(odds int) bool {
	if h.mood == deadly {
		odds = 2
	}
	if h.crashes == 0 || !h.odds(odds) {
		return false
	}
	h.crashes--
	if h.odds(4) {
		h.breakDown()
		return true
	}
	h.state = h.refold()
	h.pass(20 * time.Second)
	h.claim(true)
	return true
}

// signal lets the outside say something that can follow now.
func (h *history) signal(odds int) {
	if !h.odds(odds) {
		return
	}
	if h.pauses > 0 && h.odds(8) {
		h.pauses--
		h.take(loop.PauseRequested{By: "ann"})
		return
	}
	if h.audit.paused && !h.odds(6) {
		h.resume()
		return
	}
	actions := slices.DeleteFunc(h.state.Head().RequiredActions, func(a loop.RequiredAction) bool { return a.Kind == loop.RequireRaise })
	if len(actions) == 0 {
		if h.odds(4) {
			h.take(loop.CancelRequested{By: "ann", Reason: "not needed"})
		}
		return
	}
	a := pick(h, actions...)
	switch a.Kind {
	case "submit", "answer":
		h.take(loop.ResultSubmitted{CallID: a.CallID, Attempt: a.Attempt, Outcome: pick(h, loop.OutcomeOK, loop.OutcomeOK, loop.OutcomePermanent), Content: "from outside", By: "app"})
		return
	case "resolve":
		h.take(loop.CallResolved{CallID: a.CallID, Resolution: pick(h, loop.ResolvedSucceeded, loop.ResolvedRetry, loop.ResolvedNotExecuted), By: "ann"})
		return
	}
	if forged := (loop.ApprovalDecided{CallID: a.CallID, ArgsHash: "of something else", Approved: true}); h.state.Accepts(forged) {
		h.t.Fatalf("an approval of other arguments is accepted for %s", a.CallID)
	}
	h.take(loop.ApprovalDecided{CallID: a.CallID, ArgsHash: a.ArgsHash, Approved: !h.odds(4), By: "ann", Args: rarely(h, "", `{"a":3}`, `{"a":1,"b":2}`)})
}

// take appends a signal if it still can follow.
func (h *history) take(b loop.Body) {
	if h.state.Accepts(b) {
		h.append(b)
	}
}

// perform does what the core wants, or dies trying.
func (h *history) perform(action loop.Action) {
	if h.crash(64) { // the intent was not committed
		return
	}
	if _, ok := action.(loop.CallModel); ok && h.odds(24) { // other runs go first
		h.append(loop.RateWaited{Provider: "sim", Until: h.now.Add(time.Minute)})
		h.pass(h.pause())
		return
	}
	if call, ok := action.(loop.CallModel); ok && h.refuses(call) {
		return
	}
	h.append(action.Intent()...)
	switch a := action.(type) {
	case loop.Record:
		if len(a.Intent()) == 0 {
			h.t.Fatalf("an empty record: Next would be asked for ever")
		}
		h.children()
	case loop.CallModel:
		h.audit.request(a)
		if !h.crash(24) {
			h.callModel(a)
		}
	case loop.CallTools:
		if !h.crash(16) {
			h.callTools(a)
		}
	case loop.CountInput:
		h.countInput(a)
	case loop.CheckAnswer:
		h.checkAnswer(a)
	case loop.JudgeCheckpoints:
		h.judgeCheckpoints(a)
	case loop.Sleep:
		h.sleep(a)
	case loop.VerifyCall:
		h.append(a.Verified(loop.ToolReply{
			Outcome: rarely(h, loop.OutcomeOK, loop.OutcomePermanent),
			Content: pick(h, `{"took_effect":true,"result":"r"}`, `{"took_effect":false}`, `{"took_effect":false}`, `maybe`),
		}, h.now))
	case loop.Suspend:
		h.wait()
	case loop.End:
		if h.audit.finished == nil {
			h.t.Fatalf("the run ended without a finished event")
		}
	default:
		h.t.Fatalf("unexpected action %#v", a)
	}
}

// refuses is a budget that the run shares: others may have spent it. Nothing of the call
// becomes durable.
func (h *history) refuses(call loop.CallModel) bool {
	odds := 32
	if h.mood == broke {
		odds = 2
	}
	if !h.odds(odds) {
		return false
	}
	r := loop.AccountRefused{
		Budget: "budgets/daily", Needed: h.state.AccountNeed(call.Started).Amount, Limit: loop.OneUSD,
		Committed: pick(h, loop.OneUSD, loop.OneUSD, loop.OneUSD-h.state.AccountNeed(call.Started).Amount/2, loop.OneUSD/2),
		Act:       pick(h, loop.VerdictFinalTurn, loop.VerdictPause, loop.VerdictStop),
	}
	if h.odds(2) {
		r.ResetAt = h.now.Add(pick(h, 0, time.Minute, 5*time.Hour))
	}
	h.append(r)
	h.crash(8)
	return true
}

// countInput is the provider's counting endpoint: honest, or out of order.
func (h *history) countInput(a loop.CountInput) {
	h.audit.quiet("a count")
	counted := loop.InputCounted{Model: h.state.Model(), Tokens: int64(100 * len(a.Request.Messages))}
	if h.odds(4) {
		counted.Tokens, counted.Message = 0, "no such endpoint"
	}
	if !h.crash(24) {
		h.append(counted)
	}
}

// sleep waits in the worker, or without one.
func (h *history) sleep(a loop.Sleep) {
	if !a.Until.After(h.now) {
		h.t.Fatalf("a sleep until %v at %v", a.Until, h.now)
	}
	if h.odds(2) {
		h.append(loop.Suspended{Reason: a.Reason, Until: a.Until})
		h.now = a.Until
		h.claim(false)
		return
	}
	h.now = a.Until
}

// wait is what happens to a run that nobody drives: people decide, or time
// passes until the deadline that the run waits for.
func (h *history) wait() {
	until := h.state.Head().WaitUntil
	if wall := epoch0.Add(h.state.Limits().WallTime); until.IsZero() || until.After(wall) {
		h.t.Fatalf("the run waits until %v, but may not be older than %v", until, wall)
	}
	h.pass(time.Minute)
	expired := h.mood == patient || h.odds(6)
	if expired && until.After(h.now) {
		h.now = until
	}
	h.claim(false)
	if !expired {
		h.signal(1)
	}
	h.children()
}

// children lets child runs end, in any order, within what was held for them.
func (h *history) children() {
	for id, out := range h.audit.alive {
		if !h.odds(3) {
			continue
		}
		state := pick(h, loop.StateSucceeded, loop.StateSucceeded, loop.StateStopped, loop.StateFailed, loop.StateCancelled)
		tokens := min(out.Tokens, int64(100+h.throw()))
		h.take(loop.ChildFinished{
			CallID: id, ChildID: out.ChildID, State: state, Answer: "from a child", Usage: loop.Usage{InputUncached: tokens}, Tokens: tokens,
			Cost: loop.Cost{Output: out.Hold * loop.USD(h.throw()+1) / 64}, ModelCalls: 1,
		})
	}
}

// callModel is the provider.
func (h *history) callModel(a loop.CallModel) {
	h.pass(h.pause())
	started := a.Started
	h.signal(64) // during the call
	if h.odds(8) || h.mood == droning && h.odds(3) {
		h.modelFails(started)
		return
	}
	answered := h.randomAnswer(started)
	if a.Beside() {
		if answered = h.randomVerdict(a); started.Purpose == loop.PurposeSummary {
			answered = h.randomSummary(a)
		}
	}
	if !h.crash(24) {
		h.append(answered)
	}
}

func (h *history) modelFails(started loop.ModelStarted) {
	class := pick(h,
		loop.ErrorThrottle, loop.ErrorNotStarted, loop.ErrorServer, loop.ErrorMidStream, loop.ErrorTimeout, loop.ErrorThrottle, loop.ErrorCancelled,
		loop.ErrorThrottle, loop.ErrorServer, loop.ErrorMidStream, loop.ErrorTimeout, loop.ErrorCancelled, loop.ErrorThrottle, loop.ErrorServer,
		loop.ErrorQuota, loop.ErrorContext, loop.ErrorRequest, loop.ErrorAuth, loop.ErrorInternal, loop.ErrorTextLoop,
	)
	if h.mood == droning {
		class = loop.ErrorTextLoop
	}
	failed := loop.ModelFailed{Call: started.Call, Class: class, Message: "no luck", Cost: loop.LostCost(class, started.Hold)}
	if class.Retryable() && h.odds(12) {
		failed.NoRetry = "no retry tokens left"
	}
	if class.Retryable() && h.odds(2) {
		failed.RetryAt = h.now.Add(pick(h, time.Second, 20*time.Second, 10*time.Minute))
	}
	h.append(failed)
	if class == loop.ErrorCancelled && h.drains > 0 {
		h.drains--
		h.append(loop.Suspended{Reason: loop.WaitDrain})
		h.claim(false)
	}
}

// callTools is the tools: calls end in any order, some of them before a crash.
func (h *history) callTools(a loop.CallTools) {
	sends := a.Sends
	for len(sends) > 0 {
		i := h.below(len(sends))
		send := sends[i]
		sends = append(append([]loop.Send(nil), sends[:i]...), sends[i+1:]...)
		outcome := h.outcome(send)
		if h.mood == stubborn || h.mood == circling || h.mood == wordy && !h.odds(8) {
			outcome = loop.OutcomeOK
		}
		if h.mood == guessing {
			outcome = loop.OutcomePermanent
		}
		h.audit.performed(send, outcome)
		h.pass(h.pause())
		if h.crash(24) { // the effect happened, nobody wrote it down
			return
		}
		if outcome == loop.OutcomeUnknown {
			h.append(h.state.Doubt(send, "the connection broke", h.now))
			continue
		}
		content := fmt.Sprintf("result %d", h.below(3))
		if h.mood == wordy {
			content = send.Call.ID
		}
		if h.mood == wordy || h.odds(4) { // as large as it may be
			content += strings.Repeat("x", int(send.MaxResult)-len(content))
		}
		if h.mood == stubborn || h.mood == circling || h.mood == guessing {
			content = "nothing new"
		}
		finished := loop.CallFinished{
			CallID: send.Call.ID, Attempt: send.Attempt, Outcome: outcome, Content: content,
			ResultHash: fmt.Sprint(outcome, content),
		}
		if send.Poll != nil {
			h.append(send.Poll.Judge(finished))
		} else {
			h.append(finished)
		}
		h.signal(64)
	}
}

// outcome is how a send ends. Only of calls that may be repeated can a tool say
// "timeout": for all others that is a doubt.
func (h *history) outcome(s loop.Send) loop.Outcome {
	if s.Spec.Effect.Repeatable() {
		return pick(h, loop.OutcomeOK, loop.OutcomeOK, loop.OutcomeOK, loop.OutcomeOK, loop.OutcomePermanent,
			loop.OutcomeRetryable, loop.OutcomeTimeout, loop.OutcomeNotSent, loop.OutcomeCancelled)
	}
	return pick(h, loop.OutcomeOK, loop.OutcomeOK, loop.OutcomeOK, loop.OutcomeUnknown, loop.OutcomePermanent, loop.OutcomeNotSent)
}
