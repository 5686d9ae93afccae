package loop_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// script plays one file of testdata/scenarios. A line that begins with
//
//	run  describes the run: tools=NAME:effect[:pollable],... limits=json_name:value,... schema window=N native summarizer=MODEL
//	     acts=GUARD:VERDICT,... explain (writes the proof and the gauges of trips)
//	>    is what the world says
//	=    is what the core wants, and what it tells the model; -update writes it
//	#    is a remark
//
// One second passes with every line of the world. The script appends intents by
// itself, as the engine does, until the world is needed. The world's words:
//
//	answer FINISH [usage=IN/OUT|usage=none] ["TEXT" | TOOL ARGS | TOOL! ARGS | ...]   a ! marks arguments that fail the schema,
//	                               and "20× TEXT" is said 20 times
//	fail CLASS [DELAY]             the model call fails; the provider asks for DELAY
//	result CALL|* OUTCOME TEXT     a tool call ends; * is every call on the wire
//	bulk CALL|* BYTES              the same, with a good result of so many bytes
//	sum FINISH BYTES               the summary is so long
//	doubt CALL REASON              nobody knows whether the call ran
//	approve CALL, deny CALL REASON, resolve CALL RESOLUTION [TEXT], cancel REASON
//	pause REASON, resume [limit=value ...] ["TEXT"]   somebody holds the run back, raises limits, has a word for the model
//	accept, reject PROBLEM         the output contract; reject: its schema
//	reject_by PART PROBLEM         another part of it; uncheck PART WHY: nobody can say
//	verdict JSON                   what the judge answers
//	hold, break NAME PROBLEM       the checkpoints that are due: all hold, or all but one
//	refuse ACT [DELAY]             a budget has no room for the next model call; its window ends after DELAY
//	wait DURATION, drain           a drain gives up the model call in flight
//	crash, return WORKER ...       the worker dies; or it did not: those named have come back
//	panic WHY                      the attempt breaks down, the worker lives
//	reload                         the journal is read back from a store
//
// For totals and probes see totals.
type script struct {
	verify  loop.VerifyCall       // asked, not answered
	check   loop.CheckAnswer      // asked, not answered
	due     loop.JudgeCheckpoints // asked, not answered
	t       *testing.T
	out     []string
	spec    loop.Spec
	now     time.Time
	state   *loop.State
	journal []loop.Event
	prints  *loop.Fingerprinter
	totals  totals
	native  bool // answers carry a message in a provider's own format
	explain bool // the proof and the gauges of each trip are written

	model *loop.CallModel      // in flight
	sends map[string]loop.Send // in flight
	busy  bool                 // something is in flight, or the run waits
	until time.Time            // what the run waits for, at the latest
	told  map[string]bool      // parts of messages that the model has seen
	broke []string             // what budgets say to the next model calls
}

func playScript(t *testing.T, text string) *script {
	t.Helper()
	s := &script{t: t, now: epoch0, sends: map[string]loop.Send{}, told: map[string]bool{}, prints: loop.NewFingerprinter()}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "=") {
			continue
		}
		s.out = append(s.out, line)
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || strings.HasPrefix(line, "#"):
		case words[0] == "run":
			s.begin(words[1:])
		case words[0] == ">" && len(words) > 1:
			s.pass(time.Second)
			s.world(words[1], strings.TrimSpace(strings.TrimPrefix(line[1:], " "+words[1])))
			s.settle()
		default:
			t.Fatalf("%q is no line of a scenario", line)
		}
	}
	if s.state == nil || s.state.Head().Stop == nil {
		t.Errorf("the scenario ends before the run does")
	} else if s.totals.on {
		s.sum()
	}
	return s
}

func (s *script) pass(d time.Duration) { s.now = s.now.Add(d) }

// printf writes one line of what the core wants.
func (s *script) printf(format string, args ...any) {
	s.out = append(s.out, "= "+fmt.Sprintf(format, args...))
}

// append makes events durable and applies them.
func (s *script) append(bodies ...loop.Body) {
	s.t.Helper()
	for _, b := range bodies {
		e := loop.Event{Seq: int64(len(s.journal)) + 1, At: s.now, Epoch: int64(s.state.Attempts()), Body: b}
		if err := s.state.Apply(e); err != nil {
			s.t.Fatalf("%s\n%v", strings.Join(s.out, "\n"), err)
		}
		s.journal = append(s.journal, e)
		s.totals.note(b, s.state.Head())
	}
}

func (s *script) claim(recovered bool, returned ...string) {
	s.busy, s.model, s.sends = false, nil, map[string]loop.Send{}
	s.append(loop.Claimed{Attempt: s.state.Attempts() + 1, Worker: fmt.Sprint("w", s.state.Attempts()+1), Recovered: recovered, Returned: returned})
}

// world performs one line of the world.
func (s *script) world(verb, rest string) {
	id, text, _ := strings.Cut(rest, " ")
	switch verb {
	case "answer":
		s.answer(id, text)
	case "count":
		s.busy = false
		s.append(loop.InputCounted{Model: s.state.Model(), Tokens: s.number(id), Message: text})
	case "rate":
		s.append(loop.RateWaited{Provider: "sim"})
		h := s.state.Head()
		s.printf("phase %s of %s", h.Phase, h.State)
	case "fail":
		s.fail(loop.ErrorClass(id), text)
	case "result":
		outcome, content, _ := strings.Cut(text, " ")
		s.result(id, loop.Outcome(outcome), content)
	case "bulk":
		fact := fmt.Sprintf("fact %d: ", len(s.journal))
		s.result(id, loop.OutcomeOK, fact+strings.Repeat("x", int(s.number(text))-len(fact)))
	case "sum":
		s.answer(id, `"`+facts(int(s.number(text)))+`"`)
	case "doubt":
		s.append(s.state.Doubt(s.sent(id), text, s.now))
	case "approve":
		s.signal(loop.ApprovalDecided{CallID: id, ArgsHash: s.argsHash(id), Approved: true, By: "ann"})
	case "deny":
		s.signal(loop.ApprovalDecided{CallID: id, ArgsHash: s.argsHash(id), Reason: text, By: "ann"})
	case "edit":
		s.signal(loop.ApprovalDecided{CallID: id, ArgsHash: s.argsHash(id), Approved: true, By: "ann", Args: text})
	case "submit":
		attempt, rest, _ := strings.Cut(text, " ")
		outcome, content, _ := strings.Cut(rest, " ")
		s.signal(loop.ResultSubmitted{CallID: id, Attempt: int(s.number(attempt)), Outcome: loop.Outcome(outcome), Content: content, By: "app"})
	case "child":
		s.childEnds(id, text, []loop.SideEffectHead{{CallID: "c1-1", Tool: "mail", Effect: loop.SideEffect, State: loop.CallSucceeded, Key: "k"}})
	case "idle_child":
		s.childEnds(id, text, nil)
	case "verify":
		s.busy = false
		s.append(s.verify.Verified(loop.ToolReply{Outcome: loop.Outcome(id), Content: text}, s.now))
	case "resolve":
		resolution, result, _ := strings.Cut(text, " ")
		s.signal(loop.CallResolved{CallID: id, Resolution: loop.Resolution(resolution), Result: result, By: "ann"})
	case "cancel":
		s.signal(loop.CancelRequested{By: "ann", Reason: rest})
	case "pause":
		s.signal(loop.PauseRequested{By: "ann", Reason: rest})
	case "resume":
		s.resume(rest)
	case "refuse":
		s.broke = append(s.broke, rest)
	case "accept":
		s.busy = false
		s.append(s.check.Passed())
	case "reject":
		s.busy = false
		s.append(loop.Rejection(loop.BySchema, []string{rest}))
	case "reject_by":
		s.busy = false
		s.append(loop.Rejection(id, []string{text}))
	case "uncheck":
		s.busy = false
		s.append(loop.Unchecked(id, text))
	case "verdict":
		s.verdict(rest)
	case "hold", "break":
		s.busy = false
		for _, c := range s.due.Due {
			var problems []string
			if verb == "break" && c.Name == id {
				problems = []string{text}
			}
			s.append(s.due.Judged(c, problems))
		}
	case "wait":
		s.wait(id)
	case "reload":
		s.reload()
	case "crash", "return":
		s.pass(20 * time.Second)
		s.claim(true, strings.Fields(rest)...)
	case "panic":
		s.append(s.state.BreakDown(rest, s.now)...)
		s.claim(false)
	case "drain":
		if s.model != nil {
			s.fail(loop.ErrorCancelled, "")
		}
		s.append(loop.Suspended{Reason: loop.WaitDrain})
		s.claim(false)
	default:
		s.t.Fatalf("the world cannot %q", verb)
	}
}

// signal wakes a run that waits. While calls are in flight, the engine takes a
// signal without asking for more work.
func (s *script) signal(b loop.Body) {
	if !s.state.Accepts(b) {
		s.printf("drops %s", b.Kind())
		return
	}
	if !s.state.InAttempt() {
		s.claim(false)
	}
	s.append(b)
}

// resume lets a run go on that was paused. The limits that it names are raised.
func (s *script) resume(rest string) {
	raises, input, _ := strings.Cut(rest, `"`)
	r := loop.Resumed{Input: strings.TrimSuffix(input, `"`), By: "ann"}
	for raise := range strings.FieldsSeq(raises) {
		if r.Limits == nil {
			inForce := s.state.Limits()
			r.Limits = &inForce
		}
		name, value, _ := strings.Cut(raise, "=")
		s.setLimit(r.Limits, name, value)
	}
	if err := loop.CheckResume(s.state.Head().RequiredActions, s.state.Limits(), r); err != nil {
		s.printf("refuses %v", err)
	}
	s.signal(r)
}

// childEnds is a child run that reports to its parent.
func (s *script) childEnds(id, text string, did []loop.SideEffectHead) {
	words := strings.SplitN(text, " ", 3)
	var cost loop.USD
	if err := cost.UnmarshalText([]byte(words[1])); err != nil {
		s.t.Fatalf("child: %v", err)
	}
	answer := ""
	if len(words) > 2 {
		answer = words[2]
	}
	child := ""
	for _, e := range s.journal {
		if out, ok := e.Body.(loop.CallHandedOut); ok && out.CallID == id {
			child = out.ChildID
		}
	}
	s.signal(loop.ChildFinished{
		CallID: id, ChildID: child, State: loop.RunState(strings.ToUpper(words[0])), Stop: loop.Stop{Reason: loop.IterationCap, Message: "as it ended"},
		Answer: answer, Usage: loop.Usage{InputUncached: 500, Output: 50}, Tokens: 550, Cost: loop.Cost{Output: cost}, ModelCalls: 2,
		SideEffects: did,
	})
}

func (s *script) wait(text string) {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatalf("wait: %v", err)
	}
	s.pass(d)
	if s.until.IsZero() || s.now.Before(s.until) {
		return
	}
	s.until, s.busy = time.Time{}, false
	if !s.state.InAttempt() {
		s.claim(false)
	}
}

func (s *script) answer(finish, rest string) {
	if s.model == nil {
		s.t.Fatalf("%s\nno model call is in flight", strings.Join(s.out, "\n"))
	}
	started := s.model.Started
	usage, estimated := loop.Usage{InputUncached: 1000 + 100*int64(started.Call), Output: 100}, false
	if given, ok := strings.CutPrefix(rest, "usage="); ok {
		given, rest, _ = strings.Cut(given, " ")
		in, out, _ := strings.Cut(given, "/")
		if estimated = in == "none"; estimated {
			usage = loop.Usage{}
		} else {
			usage = loop.Usage{InputUncached: s.number(in), Output: s.number(out)}
		}
	}
	body := loop.ModelAnswered{
		Call: started.Call, Finish: loop.Finish(finish), Usage: usage, Cost: s.model.Price.Cost(usage), Estimated: estimated,
		Message: loop.Message{Role: loop.RoleAssistant, Source: loop.SourceModel},
	}
	if estimated {
		body.Cost = loop.Cost{Output: started.Hold}
	}
	if s.native {
		body.Message.Native = &loop.Native{Wire: "sim", JSON: json.RawMessage(`{"text":"<b>","signature":"a+/="}`)}
	}
	calls := 0
	for part := range strings.SplitSeq(rest, " | ") {
		switch part = strings.TrimSpace(part); {
		case part == "":
		case strings.HasPrefix(part, `"`) && finish == string(loop.FinishRefused):
			body.Message.Parts = append(body.Message.Parts, loop.Part{Kind: loop.PartRefusal, Text: strings.Trim(part, `"`)})
		case strings.HasPrefix(part, `"`):
			text := strings.Trim(part, `"`)
			if n, line, ok := strings.Cut(text, "× "); ok { // said so many times
				text = strings.Repeat(line, int(s.number(n)))
			}
			body.Message.Parts = append(body.Message.Parts, loop.TextPart(strings.ReplaceAll(text, `\n`, "\n")))
		default:
			calls++
			name, args, _ := strings.Cut(part, " ")
			name, asks := strings.CutSuffix(name, "?")
			call := loop.ToolCall{ID: fmt.Sprintf("c%d-%d", started.Call, calls), ProviderID: fmt.Sprint("toolu_", calls), Name: name, Args: args}
			if bad, ok := strings.CutSuffix(name, "!"); ok {
				call.Name, call.Problem = bad, "at $.order: expected a string, got nothing"
			}
			if asks {
				call.Approval = "args.to == \"ann\""
			}
			body.Message.Parts = append(body.Message.Parts, loop.Part{Kind: loop.PartToolCall, Call: &call})
		}
	}
	body.Chant = loop.TextLoopIn(body.Message, body.Finish)
	s.model, s.busy = nil, false
	s.append(body)
}

func (s *script) fail(class loop.ErrorClass, delay string) {
	b := loop.ModelFailed{
		Call: s.model.Started.Call, Class: class, Message: "from the provider", Cost: loop.LostCost(class, s.model.Started.Hold),
	}
	delay, b.NoRetry, _ = strings.Cut(delay, " ")
	if delay != "" {
		d, err := time.ParseDuration(delay)
		if err != nil {
			s.t.Fatalf("fail: %v", err)
		}
		b.RetryAt = s.now.Add(d)
	}
	s.model, s.busy = nil, false
	s.append(b)
}

// sent takes a call off the wire.
func (s *script) sent(id string) loop.Send {
	send, ok := s.sends[id]
	if !ok {
		s.t.Fatalf("%s\ncall %s is not on the wire", strings.Join(s.out, "\n"), id)
	}
	delete(s.sends, id)
	s.busy = len(s.sends) > 0
	return send
}

func (s *script) result(id string, o loop.Outcome, content string) {
	ids := []string{id}
	if id == "*" {
		ids = nil
		for _, m := range s.state.Transcript() {
			for _, c := range m.Calls() {
				if _, ok := s.sends[c.ID]; ok {
					ids = append(ids, c.ID)
				}
			}
		}
	}
	for _, id := range ids {
		send := s.sent(id)
		shown, _ := send.Cut(content)
		finished := loop.CallFinished{
			CallID: id, Attempt: send.Attempt, Outcome: o, Content: shown, Cut: shown != content, Bytes: int64(len(content)),
			ResultHash: s.prints.Result(send.Spec, o, content),
		}
		if send.Poll != nil {
			s.append(send.Poll.Judge(finished))
			continue
		}
		s.append(finished)
	}
}

func (s *script) argsHash(id string) string {
	for _, a := range s.state.Head().RequiredActions {
		if a.CallID == id {
			return a.ArgsHash
		}
	}
	return ""
}

// settle asks the core until the world is needed.
func (s *script) settle() {
	for !s.busy && s.state.Head().Stop == nil {
		action := s.state.Next(s.now)
		if call, ok := action.(loop.CallModel); ok && len(s.broke) > 0 {
			s.refuse(call)
			continue
		}
		for _, b := range action.Intent() {
			s.say(b)
		}
		s.probe(action)
		s.append(action.Intent()...)
		switch a := action.(type) {
		case loop.Record, loop.End:
		case loop.CallModel:
			s.model, s.busy = &a, true
			if a.Beside() {
				s.tellBeside(a)
				continue
			}
			s.tell(a.Request)
		case loop.CallTools:
			s.busy = true
			for _, send := range a.Sends {
				s.sends[send.Call.ID] = send
				s.totals.sent(send)
				s.printf("send %s %s %s attempt=%d", send.Call.ID, send.Call.Name, send.Call.Args, send.Attempt)
			}
		case loop.VerifyCall:
			s.verify, s.busy = a, true
			s.totals.sent(a.Send)
			s.printf("verify %s with %s %s", a.CallID, a.Send.Call.Name, a.Send.Call.Args)
		case loop.CountInput:
			s.busy = true
			s.printf("count_input")
		case loop.CheckAnswer:
			s.check, s.busy = a, true
			s.printf("check_answer %q%s", a.Answer, partsOf(a))
		case loop.JudgeCheckpoints:
			s.due, s.busy = a, true
			for _, c := range a.Due {
				s.printf("judge_checkpoint %s after iteration %d", c.Name, a.Iteration)
			}
		case loop.Sleep:
			s.busy, s.until = true, a.Until
			s.printf("sleep %s until=+%s", a.Reason, a.Until.Sub(s.now))
		case loop.Suspend:
			h := s.state.Head()
			s.busy, s.until = true, h.WaitUntil
			for _, r := range h.RequiredActions {
				if r.Kind == loop.RequireRaise {
					s.printf("  requires raise guard=%s field=%q input=%v %q", r.Guard, r.Field, r.TakesInput, r.Reason)
				}
			}
		default:
			s.t.Fatalf("unexpected action %#v", a)
		}
	}
}

// refuse is a budget without room: nothing of the call becomes durable.
func (s *script) refuse(call loop.CallModel) {
	act, delay, _ := strings.Cut(s.broke[0], " ")
	s.broke = s.broke[1:]
	r := loop.AccountRefused{
		Budget: "budgets/daily", Needed: s.state.AccountNeed(call.Started).Amount, Limit: loop.OneUSD, Committed: 990 * loop.MilliUSD,
		Act: loop.Verdict(act),
	}
	if delay != "" {
		d, err := time.ParseDuration(delay)
		if err != nil {
			s.t.Fatalf("refuse: %v", err)
		}
		r.ResetAt = s.now.Add(d)
	}
	s.printf("account_refused %s needed=%s", r.Budget, r.Needed)
	s.append(r)
}
