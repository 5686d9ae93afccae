package loop

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// OutputContract is what a final answer must satisfy besides its JSON Schema, in
// the order in which it is checked. Its zero value takes any answer.
type OutputContract struct {
	// Assertions are CEL conditions over the answer and the facts of the run, each
	// of which must hold.
	Assertions []Assertion `json:"assertions,omitempty"`
	// Validator is an endpoint of the caller's own that is asked about the answer: a
	// READ_ONLY tool that takes it as arguments.
	Validator *ToolSpec `json:"validator,omitempty"`
	// Judge is a model that is asked about the answer.
	Judge *JudgeSpec `json:"judge,omitempty"`
}

// Assertion is a condition that must hold.
type Assertion struct {
	Expr string `json:"expr"` // CEL, of type bool
	// Message is what the model is told when it does not: what is wrong, and what
	// would be right. Empty: the condition itself.
	Message string `json:"message,omitempty"`
}

// contract is how far the newest final answer has come in being checked.
type contract struct {
	prints   []string        // of the final answers that failed it
	last     *AnswerRejected // the newest failure
	again    bool            // the newest one had failed before
	checked  bool            // all that needs no model has passed
	accepted bool
	verdicts int // that the judge has given on the newest answer
	refused  int // requests to the judge that its provider found wrong
}

// hasContract reports whether final answers are checked.
func (s *State) hasContract() bool {
	return s.checksBeforeJudge() || s.spec.Definition.Output.Judge != nil
}

// checksBeforeJudge reports whether a part of the contract needs no model.
func (s *State) checksBeforeJudge() bool {
	d := s.spec.Definition
	return len(d.OutputSchema) > 0 || len(d.Output.Assertions) > 0 || d.Output.Validator != nil
}

// schemaOf is the JSON Schema that the provider is asked to keep to, if it can.
func (s *State) schemaOf(p plan) json.RawMessage {
	if p.purpose == PurposeWrapUp {
		return nil
	}
	return s.outputSchema()
}

// nextCheck is the next part of the contract that the final answer must pass, or
// nil when it has passed all.
func (s *State) nextCheck(a *answered, now time.Time) Action {
	switch {
	case !s.hasContract() || s.contract.accepted:
		return nil
	case s.contract.checked || !s.checksBeforeJudge():
		return s.nextVerdict(a, now)
	}
	d := s.spec.Definition
	check := CheckAnswer{
		Answer: a.text, Schema: d.OutputSchema, Assertions: d.Output.Assertions, Judged: d.Output.Judge != nil, Deadline: s.runEnd(now),
	}
	if d.Output.Validator != nil {
		check.Validator = s.askValidator(*d.Output.Validator, a.text)
	}
	return check
}

// runEnd is when the run's time is over. The checks of a final answer may use what
// is kept for a wrap-up: there is an answer already.
func (s *State) runEnd(now time.Time) time.Time {
	return now.Add(s.spec.Limits.Deadline - s.tenure.elapsed(now))
}

// askValidator is the question to the contract's endpoint.
func (s *State) askValidator(spec ToolSpec, answer string) *Send {
	labels := s.spec.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	call := ToolCall{
		ID: fmt.Sprintf("answer-%d", s.iterations), Name: spec.Name,
		Args: marshal(map[string]any{
			"answer": answer, "answer_json": json.RawMessage(objectOr(answer)),
			"run": map[string]any{"id": s.run.ID, "agent": s.spec.Agent, "labels": labels},
		}),
	}
	return &Send{Call: call, Spec: spec, Attempt: 1, Key: call.Key(s.run), MaxResult: fullResults}
}

// Validated is what the endpoint of the contract says of the answer: the problems,
// none if it passes, or why the reply is no verdict. A verdict is a JSON object
// with "ok", a bool, and "problems", a list of texts that is empty if it is ok.
func (a CheckAnswer) Validated(reply ToolReply) (problems []string, fault string) {
	if reply.Outcome != OutcomeOK {
		return nil, "the validator did not answer: " + excerpt(reply.Content, evidenceExcerpt)
	}
	var ok *bool
	err := readObject(reply.Content, map[string]any{"ok": &ok, "problems": &problems})
	switch {
	case err != nil:
		return nil, "the validator's reply is no verdict: " + err.Error()
	case ok == nil:
		return nil, `the validator's reply is no verdict: it has no "ok"`
	case *ok && len(problems) > 0:
		return nil, `the validator's reply is no verdict: it is "ok" and has problems`
	case !*ok && len(problems) == 0:
		problems = []string{"the validator did not accept the answer, and did not say why"}
	}
	return boundProblems(problems), ""
}

// Passed is the event for an answer that passed all that is checked here.
func (a CheckAnswer) Passed() Body {
	if a.Judged {
		return AnswerChecked{}
	}
	return AnswerAccepted{}
}

// How much of a failed check is kept, and told to the model.
const (
	maxProblems = 10   // problems
	maxProblem  = 1000 // bytes of each; evidenceExcerpt of one that the schema found
)

// Rejection is the event for a final answer that failed a part of its contract,
// which is one of the By constants.
func Rejection(by string, problems []string) AnswerRejected {
	say := map[string]string{
		BySchema:     "Your answer does not meet the required output format. Answer again, with JSON only, and fix exactly this:",
		ByAssertions: "Your answer does not agree with what this run must show. Do what is missing, or correct the answer, and answer again. This does not hold:",
		ByValidator:  "Your answer was checked and not accepted. Answer again, and fix exactly this:",
		ByJudge:      "Your answer was judged and not accepted. Answer again, and fix exactly this:",
	}[by]
	most := maxProblem
	if by == BySchema { // it may quote the answer at length
		most = evidenceExcerpt
	}
	return AnswerRejected{By: by, Problems: problems, Say: say + listed(problems, most)}
}

// Unchecked is the event for a final answer that a part of its contract, which is
// one of the By constants, could not judge. Nobody else can, so the run ends.
func Unchecked(by, why string) AnswerRejected {
	return AnswerRejected{By: by, Problems: boundProblems([]string{why}), Final: true}
}

// boundProblems keeps problems that others wrote within bounds.
func boundProblems(problems []string) []string {
	var kept []string
	for i, p := range problems {
		if i == maxProblems {
			return append(kept, fmt.Sprintf("and %d more", len(problems)-maxProblems))
		}
		kept = append(kept, excerpt(strings.ToValidUTF8(p, "\ufffd"), maxProblem))
	}
	return kept
}

// listed are the problems, each on a line of its own.
func listed(problems []string, most int) string {
	var b strings.Builder
	for i, p := range problems {
		if i == maxProblems {
			b.WriteString("\n- and more")
			break
		}
		b.WriteString("\n- " + excerpt(p, most))
	}
	return b.String()
}

// applyCheck notes what a check of the answer, or of the run, came to.
func (s *State) applyCheck(e Event) {
	switch b := e.Body.(type) {
	case AnswerRejected:
		s.applyRejected(b, e)
	case AnswerChecked:
		s.contract.checked = true
	case AnswerAccepted:
		s.contract.accepted = true
		s.dropAside()
	case CheckpointJudged:
		s.applyCheckpoint(b)
	}
}

// applyRejected sends the answer back, unless nobody could judge it.
func (s *State) applyRejected(b AnswerRejected, e Event) {
	c := &s.contract
	c.last, c.checked, c.verdicts, c.again = &b, false, 0, false
	if s.answer != nil {
		said := s.answerPrint(s.answer.text)
		c.again = slices.Contains(c.prints, said)
		c.prints = append(c.prints, said)
	}
	s.answer = nil
	s.dropAside()
	if !b.Final {
		s.talk.add(guardMessage(b.Say), e.Seq, s.iterations, e.At)
	}
}

// answerPrint identifies what an answer says, as JSON if it is JSON, else as words,
// and after how much work: the same words may be right once something was done.
func (s *State) answerPrint(text string) string {
	work := strconv.Itoa(s.calls.started)
	if json.Valid([]byte(text)) {
		return digest("json", work, canonicalArgs(text, nil))
	}
	return digest("text", work, strings.Join(strings.Fields(text), " "))
}

// brokenContract is the trip of a final answer that is not asked for once more, or
// nil: it failed too often, it came again as it was, or nobody could judge it.
func (s *State) brokenContract() *Tripped {
	c, limit := &s.contract, s.spec.Limits.Reasks
	if c.last == nil {
		return nil
	}
	t := Tripped{Guard: "output", Reason: OutputInvalid, Observed: fmt.Sprint(len(c.prints)), Limit: fmt.Sprint(limit)}
	switch {
	case c.last.Final:
		t.Observed, t.Limit = "not checked: "+c.last.By, ""
		t.Message = "the final answer could not be checked, so it was not accepted: " + strings.Join(c.last.Problems, "; ")
	case len(c.prints) > limit:
		t.Message = "the final answer failed the output contract each time; it is kept, unverified"
	case c.again:
		t.Message = "the same final answer came again after it had failed the output contract, with nothing done in between; it is kept, unverified"
	default:
		return nil
	}
	for _, p := range c.last.Problems {
		t.Evidence = append(t.Evidence, Evidence{Iteration: s.iterations, Note: excerpt(p, evidenceExcerpt)})
	}
	return &t
}

// unverified reports whether an answer with which the run ends ought to have been
// checked and never passed. A wrap-up is such an answer too: nobody checks it.
func (s *State) unverified(answer string) bool {
	return answer != "" && s.hasContract() && !s.contract.accepted
}
