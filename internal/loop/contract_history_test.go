package loop_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/loopd/loopd/internal/loop"
)

// randomContract gives an agent an output contract of any parts, and checkpoints.
func (h *history) randomContract(spec *loop.Spec) {
	d := &spec.Definition
	if h.odds(4) {
		d.Output.Assertions = []loop.Assertion{{Expr: "answer != ''"}}
	}
	if h.odds(8) {
		d.Output.Validator = validator()
	}
	if h.odds(3) {
		d.Output.Judge = &loop.JudgeSpec{Model: pick(h, "sim/judge", "other/judge", d.Model), Rubric: "It is polite."}
		if d.Output.Judge.Model != d.Model {
			price := h.randomPrice()
			price.Model = d.Output.Judge.Model
			besides(spec, price)
		}
	}
	for i := range pick(h, 0, 0, 1, 2) {
		d.Checkpoints = append(d.Checkpoints, loop.Checkpoint{
			Name: fmt.Sprint("check-", i), Every: pick(h, 1, 0, 2, 3), After: pick(h, []string{"put"}, nil, []string{"mail", "look"}),
			Assertions: []loop.Assertion{{Expr: "run.tool_calls < 3"}},
		})
	}
}

// checkAnswer is everything that looks at a final answer and is no model.
func (h *history) checkAnswer(a loop.CheckAnswer) {
	var parts []string
	if a.Schema != nil {
		parts = append(parts, loop.BySchema)
	}
	if a.Assertions != nil {
		parts = append(parts, loop.ByAssertions)
	}
	if a.Validator != nil {
		parts = append(parts, loop.ByValidator)
	}
	switch {
	case h.crash(16):
	case h.odds(16):
		h.append(loop.Unchecked(pick(h, parts...), "it cannot be reached"))
	case h.odds(2):
		h.append(loop.Rejection(pick(h, parts...), []string{"$.total: expected a number, got " + a.Answer}))
	default:
		h.append(a.Passed())
	}
}

func (h *history) judgeCheckpoints(a loop.JudgeCheckpoints) {
	if h.crash(16) {
		return
	}
	var found []loop.Body
	for _, c := range a.Due {
		var problems []string
		if h.odds(4) {
			problems = []string{"run.tool_calls < 3"}
		}
		found = append(found, a.Judged(c, problems))
	}
	h.append(found...)
}

// What a judge says, as the audit sees it.
const (
	says     = "pass"
	objects  = "fail"
	babbles  = "nothing"
	invented = "evidence that is nowhere"
)

// randomVerdict is a judge: honest, mistaken, or talking nonsense.
func (h *history) randomVerdict(a loop.CallModel) loop.ModelAnswered {
	word := pick(h, says, says, objects, objects, babbles, invented)
	text := map[string]string{
		says:     `{"pass":true,"problems":[],"evidence":"please"}`, // the input has it
		objects:  "```json\n{\"pass\":false,\"problems\":[\"it is rude\"],\"evidence\":\"please\"}\n```",
		babbles:  "It is fine.",
		invented: `{"pass":true,"problems":[],"evidence":"what nobody ever said"}`,
	}[word]
	finish := rarely(h, loop.FinishDone, loop.FinishTruncated, loop.FinishRefused)
	if finish != loop.FinishDone {
		word = babbles
	}
	h.audit.contract.word = word
	usage := h.randomUsage(a.Started)
	return loop.ModelAnswered{
		Call: a.Started.Call, Finish: finish, Usage: usage, Cost: a.Price.Cost(usage),
		Message: loop.Message{Role: loop.RoleAssistant, Source: loop.SourceModel, Parts: []loop.Part{loop.TextPart(text)}},
	}
}

// contractAudit keeps the books of output contracts and checkpoints.
type contractAudit struct {
	judge      string // the model; empty: none
	parts      bool   // some part of the contract is checked
	alone      bool   // the judge is all there is
	checked    bool   // everything before the judge has passed
	accepted   bool
	final      bool // nobody could judge the answer
	word       string
	rejections int
	judged     map[string]int // judgedAs
	failures   map[string]int // by checkpoint
	nudges     int
	told       int // failures of checkpoints that the model was told of
}

// judgedAs is what must come up of judges in all histories together.
var judgedAs = []string{"accepted", "rejected", "not judged"}

func (c *contractAudit) count(judges map[string]int) {
	for what, n := range c.judged {
		judges[what] += n
	}
}

func (c *contractAudit) begin(a *audit, spec loop.Spec) {
	o := spec.Definition.Output
	for _, p := range spec.SidePrices {
		a.prices[p.Model] = p
	}
	c.failures, c.judged = map[string]int{}, map[string]int{}
	before := len(spec.Definition.OutputSchema) > 0 || len(o.Assertions) > 0 || o.Validator != nil
	if o.Judge != nil {
		c.judge = o.Judge.Model
	}
	c.parts, c.alone, c.checked = before || o.Judge != nil, !before, !before
}

// asked is the start of a judge's call.
func (c *contractAudit) asked(a *audit, b loop.ModelStarted) {
	if b.Model != c.judge || !c.checked || a.final || c.final {
		a.t.Fatalf("the judge %q is asked; it is %q, checked: %v, final turn: %v, given up: %v", b.Model, c.judge, c.checked, a.final, c.final)
	}
	if a.committed+b.Hold+b.Reserve > a.limits.Cost {
		a.t.Fatalf("the judge could cost %s, a wrap-up %s more, with %s of %s spent", b.Hold, b.Reserve, a.committed, a.limits.Cost)
	}
	c.word = ""
	a.startModel(b)
}

// request checks what a judge would be sent: nothing of the conversation's own form.
func (c *contractAudit) request(a *audit, call loop.CallModel) {
	r := call.Request
	if r.ToolsAllowed || len(r.Tools) > 0 || len(r.Messages) != 1 || r.Messages[0].Role != loop.RoleUser || r.MaxOutputTokens != call.Started.MaxOutput {
		a.t.Fatalf("the judge is sent %+v", r)
	}
}

func (c *contractAudit) event(a *audit, body loop.Body) {
	switch b := body.(type) {
	case loop.AnswerChecked:
		c.checked = true
	case loop.AnswerAccepted:
		if c.judge != "" && c.word != says {
			a.t.Fatalf("the answer is accepted, and the judge said %q", c.word)
		}
		c.accepted = true
		if c.judge != "" {
			c.judged["accepted"]++
		}
	case loop.AnswerRejected:
		c.rejected(a, b)
	case loop.CheckpointJudged:
		if len(b.Problems) > 0 {
			c.failures[b.Checkpoint]++
		}
		if c.failures[b.Checkpoint] > 2 || a.final {
			a.t.Fatalf("checkpoint %s has failed %d times; final turn: %v", b.Checkpoint, c.failures[b.Checkpoint], a.final)
		}
	case loop.ModelStarted:
		failed := 0
		for _, n := range c.failures {
			failed += n
		}
		if c.final || c.told != failed {
			a.t.Fatalf("a model call starts; the answer was given up: %v, %d failures of checkpoints, told of %d", c.final, failed, c.told)
		}
	case loop.Resumed:
		if b.Input != "" { // an answer that was given without the word is not the final one
			c.checked, c.accepted = c.alone, false
		}
	case loop.Tripped:
		if b.Guard == "checkpoint" {
			c.told++
		} else if b.Verdict == loop.VerdictNudge && b.Say != "" { // else it was only observed
			c.nudges++
		}
		if c.nudges > 3+3 { // three of guards, and what a cut answer is told
			a.t.Fatalf("%d nudges", c.nudges)
		}
	case loop.Finished:
		c.finished(a, b)
	}
}

func (c *contractAudit) rejected(a *audit, b loop.AnswerRejected) {
	c.rejections++
	c.final, c.checked = b.Final, c.alone
	if b.By == loop.ByJudge {
		c.judged[map[bool]string{true: "not judged", false: "rejected"}[b.Final]]++
	}
	switch {
	case c.rejections > a.limits.Reasks+1:
		a.t.Fatalf("%d answers are rejected, %d re-asks are allowed", c.rejections, a.limits.Reasks)
	case b.By == loop.ByJudge && !b.Final && c.word != objects:
		a.t.Fatalf("the judge is said to object, and said %q", c.word)
	case len(b.Problems) == 0 || b.Final == (b.Say != ""):
		a.t.Fatalf("a rejection without a word: %+v", b)
	}
}

func (c *contractAudit) finished(a *audit, b loop.Finished) {
	if b.State == loop.StateSucceeded && c.accepted != c.parts {
		a.t.Fatalf("SUCCEEDED; the answer is accepted: %v, there is a contract: %v", c.accepted, c.parts)
	}
	if want := c.parts && !c.accepted && b.Answer != ""; b.Unverified != want {
		a.t.Fatalf("unverified is %v, want %v: %+v", b.Unverified, want, b)
	}
	twice := slices.ContainsFunc([]string{"check-0", "check-1"}, func(name string) bool { return c.failures[name] > 1 })
	if twice && b.State == loop.StateSucceeded || b.Stop.Reason == loop.CheckpointFailed && !twice {
		a.t.Fatalf("ended as %s %s with failures %v", b.State, b.Stop.Reason, c.failures)
	}
	if b.Stop.Reason == loop.OutputInvalid && !strings.Contains(b.Stop.Message, "verified") && !c.final {
		a.t.Fatalf("OUTPUT_INVALID: %+v", b.Stop)
	}
}

// besides adds the row of a model that is called beside the conversation.
func besides(spec *loop.Spec, price loop.Price) {
	if spec.SidePrices == nil {
		spec.SidePrices = map[string]loop.Price{}
	}
	spec.SidePrices[price.Model] = price
}
