package loop_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// randomSpec is an agent with a tool of every effect, and limits that are often
// too small.
func (h *history) randomSpec() loop.Spec {
	l := loop.Defaults()
	l.Iterations = rarely(h, 12, 1, 2, 3, 5)
	l.ModelCalls = rarely(h, 24, 1, 2, 3, 8)
	l.ToolCalls = rarely(h, 40, 0, 1, 2, 5)
	l.CallsPerAnswer = rarely(h, 8, 1, 2, 3)
	l.Cost = rarely(h, loop.OneUSD, loop.OneUSD/4, loop.OneUSD/10, loop.OneUSD/20, loop.OneUSD/100, 0)
	l.TotalTokens = rarely[int64](h, 500_000, 100_000, 30_000, 10_000, 1000)
	l.OutputTokens = rarely[int64](h, 60_000, 10_000, 3_000, 300)
	l.Deadline = rarely(h, 10*time.Minute, 2*time.Minute, 30*time.Second, time.Second)
	l.WallTime = rarely(h, 24*time.Hour, 30*24*time.Hour, time.Hour, 10*time.Second)
	l.AnswerOutput = rarely[int64](h, 4096, 512, 64, 16)
	l.FinalOutput = rarely[int64](h, 1024, 256, 16)
	l.IdenticalIters, l.ErrorIters, l.InvalidIters = 2+h.below(3), 1+h.below(3), 1+h.below(3)
	l.SameCallIters, l.Cycles, l.FrequentRepeats = rarely(h, 6, 0, 2, 3), rarely(h, 3, 0, 2), rarely(h, 6, 0, 2, 3)
	l.NearDuplicates, l.NoveltyIters = rarely(h, 6, 0, 2, 3), rarely(h, 9, 0, 2, 3)
	l.CallFailures, l.ToolFailures, l.Monologue = rarely(h, 3, 0, 1, 2), rarely(h, 5, 0, 1, 2), rarely(h, 3, 0, 2)
	l.Reasks = h.below(3)
	l.CompactAt, l.Compactions = rarely(h, 0.6, 0, 0.3, 0.9), rarely(h, 3, 0, 1)
	l.ActiveChildren, l.Children = rarely(h, 4, 0, 1), rarely(h, 16, 1)
	l.NoProgressStops, l.CountInput = h.odds(4), h.odds(4)
	spec := loop.Spec{
		Agent: "agents/test", AgentVersion: 1, Input: "please", Limits: l, Price: h.randomPrice(),
		Definition: loop.AgentSpec{Model: "sim/one", Instructions: "be good"},
	}
	if !h.odds(12) {
		spec.Definition.Tools = tools()
	}
	for i := range rarely(h, 0, 1, 2) {
		model := pick(h, "sim", "other") + "/fallback" + strconv.Itoa(i)
		price := h.randomPrice()
		price.Model = model
		spec.Definition.Fallbacks, spec.FallbackPrices = append(spec.Definition.Fallbacks, model), append(spec.FallbackPrices, price)
	}
	if h.odds(4) {
		price := h.randomPrice()
		price.Model = "other/small"
		spec.Definition.Summarizer = price.Model
		besides(&spec, price)
	}
	if h.odds(8) {
		spec.Attachments = []loop.Part{attachment(pick(h, "image", "notes", "pdf"))}
	}
	if h.odds(3) {
		spec.Definition.Acts = h.randomActs()
	}
	if h.odds(4) {
		spec.Definition.OnDoubt = loop.DoubtTellsModel
	}
	if h.odds(3) {
		spec.Definition.OutputSchema = json.RawMessage(`{"type":"object"}`)
	}
	h.randomContract(&spec)
	return spec
}

// randomActs are other verdicts for some guards.
func (h *history) randomActs() map[string]loop.Verdict {
	if h.odds(2) { // everything waits for a raise
		acts := map[string]loop.Verdict{}
		for _, g := range loop.Guards() {
			if slices.Contains(g.Acts, loop.VerdictPause) && h.odds(2) {
				acts[g.Name] = loop.VerdictPause
			}
		}
		return acts
	}
	acts := map[string]loop.Verdict{"iterations": loop.VerdictStop}
	if h.odds(2) { // nothing but the budgets ends the run
		for _, g := range loop.Guards() {
			if slices.Contains(g.Acts, loop.VerdictNudge) {
				acts[g.Name] = loop.VerdictNudge
			}
		}
	}
	for range h.below(6) {
		g := pick(h, loop.Guards()...)
		if len(g.Acts) == 0 {
			continue
		}
		acts[g.Name] = pick(h, g.Acts...)
	}
	return acts
}

func (h *history) randomPrice() loop.Price {
	const perMillion = loop.MicroUSD
	p := loop.Price{
		Model: "sim/one", Version: "1", Window: rarely[int64](h, 200_000, 32_000, 8_000),
		MaxOutput: rarely[int64](h, 0, 8_000, 300, 100), Structured: h.odds(2),
		Rates: loop.Rates{
			Input: 3 * perMillion, CacheRead: perMillion * 3 / 10, CacheWrite5m: perMillion * 15 / 4, CacheWrite1h: 6 * perMillion,
			Output: 15 * perMillion, Reasoning: pick[loop.USD](h, 15, 25, 5) * perMillion,
		},
	}
	if h.odds(3) {
		high := p.Rates
		high.Input, high.Output = pick[loop.USD](h, 2, 8)*perMillion, pick[loop.USD](h, 10, 40)*perMillion
		p.Tiers = []loop.Tier{{AboveInput: 3_000, Rates: high}}
	}
	return p
}

// tools has one of every effect. The last declares none.
func tools() []loop.ToolSpec {
	spec := func(name string, e loop.Effect) loop.ToolSpec {
		return loop.ToolSpec{Name: name, Schema: json.RawMessage(`{"type":"object"}`), Effect: e, Timeout: time.Second, MaxResultBytes: 16 << 10}
	}
	look := spec("look", loop.ReadOnly)
	look.Pollable, look.HTTP = true, &loop.HTTPSpec{Method: "GET", URL: "http://x"}
	mail, ask, pay, wait := spec("mail", loop.SideEffect), spec("ask", loop.ReadOnly), spec("pay", loop.SideEffect), spec("wait", loop.ReadOnly)
	finish, team := spec("finish", loop.ReadOnly), spec("team", loop.Idempotent)
	mail.MaxCalls = 3
	mail.Verify, ask.Client, pay.Client = "look", &loop.ClientSpec{}, &loop.ClientSpec{Wait: time.Minute}
	wait.Builtin, finish.Builtin = loop.BuiltinWait, loop.BuiltinFinish
	team.Child = &loop.ChildSpec{Spec: loop.Spec{Agent: "agents/team", Definition: loop.AgentSpec{Model: "sim/one"}, Limits: loop.Defaults()}}
	return []loop.ToolSpec{look, mail, spec("put", loop.Idempotent), spec("refund", loop.Irreversible), spec("vague", ""), ask, pay, wait, finish, team}
}
