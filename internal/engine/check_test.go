package engine_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// simply is what the expressions of these tests mean.
func simply(expr string, f loop.Facts) bool {
	switch expr {
	case "polite":
		return strings.Contains(f.Answer, "please")
	case "put once":
		return len(f.Ledger) == 1 && f.Ledger[0].Tool == "put"
	case "crash":
		panic("the judge of assertions crashed")
	}
	return expr == "true"
}

// checkedSpec is an agent whose answers are checked in every way.
func checkedSpec(tools ...loop.ToolSpec) loop.Spec {
	spec := enginetest.Spec(tools...)
	validator := enginetest.Tool("validate", loop.ReadOnly)
	validator.HTTP = &loop.HTTPSpec{Method: "POST", URL: "http://x"}
	d := &spec.Definition
	d.OutputSchema = []byte(`{"type":"object"}`)
	d.Output = loop.OutputContract{
		Assertions: []loop.Assertion{{Expr: "polite"}}, Validator: &validator, Judge: &loop.JudgeSpec{Model: "fake/judge", Rubric: "It says sir."},
	}
	price := spec.Price
	price.Model = "fake/judge"
	spec.SidePrices = map[string]loop.Price{"fake/judge": price}
	return spec
}

// politeJudge passes answers that say sir.
func politeJudge(req loop.ModelRequest) enginetest.Answer {
	if strings.Contains(req.Messages[0].Text(), "sir") {
		return enginetest.Say(`{"pass":true,"problems":[],"evidence":"sir"}`)
	}
	return enginetest.Say(`{"pass":false,"problems":["It does not say sir."],"evidence":"please"}`)
}

// asksAboutAnswer reports whether a request is the validator's.
func asksAboutAnswer(s enginetest.Sent) bool { return strings.HasPrefix(s.CallID, "answer-") }

func checkedScenario() scenario {
	return scenario{name: "checked answer", spec: checkedSpec(put), script: []enginetest.Answer{
		enginetest.Ask(call(put)), enginetest.Say(`{"say":"please"}`), enginetest.Say(`{"say":"please, sir"}`),
	}}
}

func checkpointScenario() scenario {
	spec := enginetest.Spec(put, look)
	spec.Definition.Checkpoints = []loop.Checkpoint{
		{Name: "put-once", After: []string{"look"}, Assertions: []loop.Assertion{{Expr: "put once"}}},
		{Name: "always", Every: 1, Assertions: []loop.Assertion{{Expr: "true"}}},
	}
	return scenario{name: "checkpoints", spec: spec, script: []enginetest.Answer{
		enginetest.Ask(call(look)), enginetest.Ask(call(put)), enginetest.Ask(enginetest.Call("look", `{"n":2}`)), enginetest.Say("done"),
	}}
}

// contract starts a run of checkedSpec; its validator answers replies in turn.
func (w *world) contract(answer string, replies ...loop.ToolReply) loop.RunRef {
	w.Helper()
	w.model.Script = []enginetest.Answer{enginetest.Say(answer)}
	w.model.ByModel = map[string]func(loop.ModelRequest) enginetest.Answer{"judge": politeJudge}
	w.tools.Replies = map[string]func(int) loop.ToolReply{"validate": func(n int) loop.ToolReply { return replies[min(n, len(replies)-1)] }}
	return w.create(checkedSpec())
}

func (w *world) checks(part, outcome string) float64 {
	w.Helper()
	return w.counted("loopd_output_checks_total", map[string]string{"part": part, "outcome": outcome})
}

const polite = `{"say":"please, sir"}`

func TestAnAnswerPassesEveryCheck(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		run := w.contract(polite, enginetest.OK(`{"ok":true,"problems":[]}`))
		w.started()

		head := w.finish(run)
		w.wantEnd(head, loop.StateSucceeded, loop.Completed, polite)
		w.equal("unverified", false, head.Unverified)
		w.equal("calls, iterations", [2]int{2, 1}, [2]int{head.ModelCalls, head.Iterations})
		judge := w.model.Requests()[1]
		if judge.Model != "judge" || judge.Temperature == nil || *judge.Temperature != 0 || judge.Memo != nil || !strings.HasSuffix(judge.Instructions, "It says sir.") {
			t.Errorf("the judge was asked %+v", judge)
		}
		for _, part := range []string{"schema", "assertions", "validator", "judge"} {
			w.equal(part+" passed", 1.0, w.checks(part, "passed"))
		}
		spent := func(purpose string) float64 {
			return w.counted("loopd_purpose_cost_usd_total", map[string]string{"agent": "test", "purpose": purpose})
		}
		if total := head.Cost.Total().Float(); spent("judge") <= 0 || spent("judge")+spent("work") != total {
			t.Errorf("spent %v on work and %v on the judge, %v in all", spent("work"), spent("judge"), total)
		}
		w.equal("iterations counted", 1.0, w.counted("loopd_iterations_total", map[string]string{"agent": "test"}))
		w.equal("requests to the judge", 1.0, w.counted("loopd_llm_requests_total", map[string]string{"model": "fake/judge", "code": "ok"}))
	})
}

// The same wrong answer comes again and again: what is told names the first part
// that failed, and the end is early.
func TestEachPartRejects(t *testing.T) {
	t.Parallel()
	for by, tt := range map[string]struct{ answer, reply, problem string }{
		loop.BySchema:     {"please, sir", "", "$: expected JSON"},
		loop.ByAssertions: {`{"say":"sir"}`, "", "does not hold: polite"},
		loop.ByValidator:  {polite, `{"ok":false,"problems":["order 5 is not ours"],"extra":1}`, "order 5 is not ours"},
		loop.ByJudge:      {`{"say":"please"}`, `{"ok":true}`, "It does not say sir."},
	} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				run := w.contract(tt.answer, enginetest.OK(tt.reply))
				w.model.Final = tt.answer
				w.started()

				head := w.finish(run)
				w.wantEnd(head, loop.StateStopped, loop.OutputInvalid, tt.answer)
				w.equal("unverified, partial", [2]bool{true, true}, [2]bool{head.Unverified, head.Partial})
				rejected := bodies[loop.AnswerRejected](w, run)
				w.equal("rejections", 2, len(rejected))
				w.equal("by, final", by, rejected[1].By)
				w.equal("problems", []string{tt.problem}, rejected[1].Problems)
				w.equal("failed", 2.0, w.checks(by, "failed"))
			})
		})
	}
}

func TestAValidatorThatDoesNotAnswerIsAskedAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		away := loop.ToolReply{Outcome: loop.OutcomeRetryable, Status: http.StatusServiceUnavailable, Content: "later"}
		run := w.contract(polite, away, loop.ToolReply{Outcome: loop.OutcomeTimeout, Content: "no answer in time"}, enginetest.OK(`{"ok":true}`))
		began := time.Now()
		w.started()

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, polite)
		w.equal("sends", []string{"validate/1", "validate/2", "validate/3"}, w.sends())
		w.equal("keys", w.tools.Sent()[0].Key, w.tools.Sent()[2].Key)
		if took := time.Since(began); took < 2 || took > time.Minute {
			t.Errorf("it took %s", took)
		}
	})
}

// Nobody can say whether the answer is right: fail closed, whatever was replied.
func TestAValidatorWithoutAVerdict(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		reply loop.ToolReply
		sends int
		why   string
	}{
		"down":          {loop.ToolReply{Outcome: loop.OutcomePermanent, Status: 500, Content: "boom"}, 3, "did not answer: boom"},
		"refused":       {loop.ToolReply{Outcome: loop.OutcomePermanent, Status: 404, Content: "no such page"}, 1, "did not answer: no such page"},
		"blocked":       {loop.ToolReply{Outcome: loop.OutcomeNotSent, Content: "the address is private"}, 3, "the address is private"},
		"not JSON":      {enginetest.OK("fine"), 1, "no JSON object"},
		"a list":        {enginetest.OK(`[true]`), 1, "no JSON object"},
		"cut":           {enginetest.OK(`{"ok":true`), 1, "no JSON object"},
		"two":           {enginetest.OK(`{"ok":true}{"ok":false}`), 1, "more text follows"},
		"no ok":         {enginetest.OK(`{"OK":true}`), 1, `has no "ok"`},
		"null":          {enginetest.OK(`{"ok":null}`), 1, `its "ok" is not of the right type`},
		"a text":        {enginetest.OK(`{"ok":"true"}`), 1, `its "ok" is not of the right type`},
		"twice":         {enginetest.OK(`{"ok":false,"ok":true}`), 1, `it has "ok" twice`},
		"ok, but":       {enginetest.OK(`{"ok":true,"problems":["no"]}`), 1, `is "ok" and has problems`},
		"problem texts": {enginetest.OK(`{"ok":false,"problems":"no"}`), 1, `its "problems" is not of the right type`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				run := w.contract(polite, tt.reply)
				w.started()

				head := w.finish(run)
				w.wantEnd(head, loop.StateStopped, loop.OutputInvalid, polite)
				if !head.Unverified || !strings.Contains(head.Stop.Message, tt.why) {
					t.Errorf("unverified: %v, message %q, want %q", head.Unverified, head.Stop.Message, tt.why)
				}
				w.equal("sends", tt.sends, len(w.tools.Sent()))
				w.equal("model calls", 1, head.ModelCalls)
				w.equal("unchecked", 1.0, w.checks("validator", "unchecked"))
			})
		})
	}
}

func TestACancelReachesTheValidator(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		run := w.contract(polite, enginetest.OK(`{"ok":true}`))
		w.tools.Gates = map[string]<-chan struct{}{"validate": make(chan struct{})}
		w.started()
		w.until("the validator is asked", func() bool { return len(w.tools.Sent()) == 1 })
		w.signal(run, loop.CancelRequested{})

		head := w.finish(run)
		w.wantEnd(head, loop.StateCancelled, loop.Cancelled, polite)
		w.equal("unverified", true, head.Unverified)
	})
}

// Whoever claims the run after a drain asks the validator itself.
func TestADrainDuringTheValidator(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		run := w.contract(polite, enginetest.OK(`{"ok":true}`))
		gate := make(chan struct{})
		w.tools.Gates = map[string]<-chan struct{}{"validate": gate}
		first := w.started()
		w.until("the validator is asked", func() bool { return len(w.tools.Sent()) == 1 })
		first.Drain()
		w.engines.Wait()
		close(gate)
		w.started()

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, polite)
		w.equal("sends", 2, len(w.tools.Sent()))
		w.equal("recoveries", false, bodies[loop.Claimed](w, run)[1].Recovered)
	})
}

func TestPanicOfAChecker(t *testing.T) {
	t.Parallel()
	for name, tweak := range map[string]func(*loop.Spec, *engine.Config){
		"schema": func(_ *loop.Spec, c *engine.Config) {
			c.Checker = enginetest.Checker(func([]byte, string) []string { panic("the checker crashed") })
		},
		"assertions": func(s *loop.Spec, _ *engine.Config) {
			s.Definition.Output.Assertions = []loop.Assertion{{Expr: "crash"}}
		},
		"nobody judges assertions": func(_ *loop.Spec, c *engine.Config) { c.Asserts = nil },
		"a validator":              func(*loop.Spec, *engine.Config) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				w.model.Script = []enginetest.Answer{enginetest.Say(polite)}
				w.tools.Replies = map[string]func(int) loop.ToolReply{"validate": func(int) loop.ToolReply { panic("the tool's adapter crashed") }}
				spec := checkedSpec()
				tweak(&spec, &engine.Config{})
				run := w.create(spec)
				w.start(w.worker(), func(c *engine.Config) { tweak(&loop.Spec{}, c) })

				head := w.finish(run)
				w.wantEnd(head, loop.StateStopped, loop.OutputInvalid, polite)
				if !head.Unverified || !strings.Contains(head.Stop.Message, "crashed") && !strings.Contains(head.Stop.Message, "nobody here can judge") {
					t.Errorf("unverified: %v, %q", head.Unverified, head.Stop.Message)
				}
				w.equal("attempts", 1, head.Attempts)
			})
		})
	}
}

// A checkpoint that cannot be judged does not hold.
func TestCheckpointsThatCrash(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(look)), enginetest.Ask(enginetest.Call("look", `{"n":2}`))}
		spec := enginetest.Spec(look)
		spec.Definition.Checkpoints = []loop.Checkpoint{{Name: "seen", Every: 1, Assertions: []loop.Assertion{{Expr: "crash"}}}}
		run := w.create(spec)
		w.started()

		head := w.finish(run)
		w.wantEnd(head, loop.StateStopped, loop.CheckpointFailed, "")
		w.equal("iterations", 2, head.Iterations)
		w.equal("what the model was told of it", 1, strings.Count(w.model.Requests()[1].Messages[3].Text(), "the check crashed"))
		w.equal("nudges", 1.0, w.counted("loopd_guard_trips_total", map[string]string{"guard": "checkpoint", "action": "nudge", "agent": "test"}))
		w.equal("stops", 1.0, w.counted("loopd_guard_trips_total", map[string]string{"guard": "checkpoint", "action": "stop", "agent": "test"}))
	})
}
