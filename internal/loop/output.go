package loop

import "encoding/json"

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

// JudgeSpec is a model that judges final answers by a rubric.
type JudgeSpec struct {
	Model  string `json:"model"` // "provider/model", with its row in Spec.SidePrices
	Rubric string `json:"rubric"`
}

// Checkpoint is what must hold while a run is under way: after an iteration that
// called one of the tools, or every so many iterations. The model is told of the
// first failure; the second ends the run.
type Checkpoint struct {
	Name       string      `json:"name"`
	After      []string    `json:"after,omitempty"` // names of tools
	Every      int         `json:"every,omitempty"` // iterations; 0: only after the tools
	Assertions []Assertion `json:"assertions"`
}

// contract is how far the newest final answer has come in being checked.
type contract struct {
	rejected int  // final answers that failed it
	checked  bool // all that needs no model has passed
	accepted bool
}

// facts for the check of an answer: see CheckAnswer.
func (s *State) checksAnswer() bool {
	return len(s.spec.Definition.OutputSchema) > 0
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
func (s *State) nextCheck(a *answered) Action {
	if !s.checksAnswer() || s.contract.accepted {
		return nil
	}
	return CheckAnswer{Schema: s.spec.Definition.OutputSchema, Answer: a.text}
}

// applyRejected sends the answer back.
func (s *State) applyRejected(b AnswerRejected, e Event) {
	s.contract.rejected++
	s.contract.checked = false
	s.answer = nil
	s.dropAside()
	s.talk.add(guardMessage(b.Say), e.Seq, s.iterations, e.At)
}
