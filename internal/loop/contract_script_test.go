package loop_test

import (
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// contract gives the script's agent a part of an output contract, or a checkpoint:
// checkpoint=NAME:every=N,after=TOOL.
func (s *script) contract(part, value string) {
	d := &s.spec.Definition
	switch part {
	case "assert":
		d.Output.Assertions = append(d.Output.Assertions, loop.Assertion{Expr: "answer != ''"})
	case "validator":
		d.Output.Validator = validator()
	case "judge":
		s.spec.SidePrices = map[string]loop.Price{}
		d.Output.Judge = &loop.JudgeSpec{Model: value, Rubric: "It is polite."}
		if value == "" { // another than the agent's
			d.Output.Judge.Model = "sim/judge"
			s.spec.SidePrices["sim/judge"] = judgePrice()
		}
	case "checkpoint":
		name, when, _ := strings.Cut(value, ":")
		c := loop.Checkpoint{Name: name, Assertions: []loop.Assertion{{Expr: "run.cost_usd < 1.0"}}}
		for w := range strings.SplitSeq(when, ",") {
			key, what, _ := strings.Cut(w, "=")
			if key == "every" {
				c.Every = int(s.number(what))
			} else {
				c.After = append(c.After, what)
			}
		}
		d.Checkpoints = append(d.Checkpoints, c)
	}
}

// validator is a READ_ONLY tool that is asked about answers.
func validator() *loop.ToolSpec {
	return &loop.ToolSpec{
		Name: "validate", Schema: []byte(`{"type":"object"}`), Effect: loop.ReadOnly, Timeout: 30 * time.Second, MaxResultBytes: 16 << 10,
		HTTP: &loop.HTTPSpec{Method: "POST", URL: "http://x"},
	}
}

// judgePrice is a model of half the usual price, with a window of its own.
func judgePrice() loop.Price {
	return loop.Price{Model: "sim/judge", Version: "2026-03", Window: 100_000, MaxOutput: 1500, Rates: loop.Rates{
		Input: 1500 * loop.NanoUSD, CacheRead: 150 * loop.NanoUSD, CacheWrite5m: 1500 * loop.NanoUSD, CacheWrite1h: 1500 * loop.NanoUSD,
		Output: 7500 * loop.NanoUSD, Reasoning: 7500 * loop.NanoUSD,
	}}
}

// partsOf names what is checked besides the schema.
func partsOf(a loop.CheckAnswer) string {
	parts := ""
	if len(a.Assertions) > 0 {
		parts += " assertions"
	}
	if a.Validator != nil {
		parts += " " + a.Validator.Call.Name + " " + a.Validator.Call.Args
	}
	if a.Judged {
		parts += " then judge"
	}
	return parts
}

// tellBeside writes what a model is asked beside the conversation.
func (s *script) tellBeside(a loop.CallModel) {
	if a.Started.Purpose == loop.PurposeSummary {
		s.printf("  asks %s to read %d bytes", a.Started.Model, len(a.Request.Messages[0].Text()))
		return
	}
	temperature := "default"
	if a.Request.Temperature != nil {
		temperature = "set"
	}
	s.printf("  asks %s, temperature %s, deadline=+%s", a.Started.Model, temperature, a.Deadline.Sub(s.now))
	for line := range strings.Lines(a.Request.Messages[0].Text()) {
		if line = strings.TrimSpace(line); line != "" {
			s.printf("  > %s", short(line))
		}
	}
}

// verdict is what the judge answers.
func (s *script) verdict(text string) {
	started, usage := s.model.Started, loop.Usage{InputUncached: 500, Output: 50}
	body := loop.ModelAnswered{
		Call: started.Call, Finish: loop.FinishDone, Usage: usage, Cost: s.model.Price.Cost(usage),
		Message: loop.Message{Role: loop.RoleAssistant, Source: loop.SourceModel, Parts: []loop.Part{loop.TextPart(text)}},
	}
	s.model, s.busy = nil, false
	s.append(body)
}
