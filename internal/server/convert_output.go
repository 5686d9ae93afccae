package server

import (
	"fmt"
	"slices"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// aboutAnswer is the schema of what a validator gets: loop gives these arguments.
const aboutAnswer = `{"type":"object","properties":{"answer":{"type":"string"},"answer_json":{},"run":{"type":"object"}},"required":["answer","answer_json","run"]}`

// readChecks reads what a definition says of checks and of the models beside its
// own. path names the definition in the request, for errors.
func (s *Server) readChecks(path string, spec *loopdv1.AgentSpec, def *loop.AgentSpec) error {
	output := spec.GetOutput()
	def.Summarizer, def.Output.Assertions = spec.GetSummarizerModel(), assertionsOf(output.GetAssertions())
	if judge := output.GetJudge(); judge != nil {
		def.Output.Judge = &loop.JudgeSpec{Model: judge.GetModel(), Rubric: judge.GetRubric()}
	}
	for _, c := range spec.GetCheckpoints() {
		def.Checkpoints = append(def.Checkpoints, loop.Checkpoint{
			Name: c.GetName(), After: c.GetAfterTools(), Every: int(c.GetEveryIterations()), Assertions: assertionsOf(c.GetAssertions()),
		})
	}
	if output.GetValidator() == nil {
		return nil
	}
	validator, err := s.toolOf(path+".output.validator", output.GetValidator(), nil)
	if output.GetValidator().GetInputSchema() == nil {
		validator.Schema = []byte(aboutAnswer)
	}
	def.Output.Validator = &validator
	return err
}

func assertionsOf(assertions []*loopdv1.Assertion) []loop.Assertion {
	var read []loop.Assertion
	for _, a := range assertions {
		read = append(read, loop.Assertion{Expr: a.GetExpression(), Message: a.GetMessage()})
	}
	return read
}

// checkChecks lists what is wrong with the checks of a definition, which path names
// in the request.
func (s *Server) checkChecks(path string, def definition) []fieldError {
	faults := s.checkAssertions(path+".output.assertions", def.Output.Assertions)
	if v := def.Output.Validator; v != nil {
		faults = append(faults, s.checkValidator(path+".output.validator", *v)...)
	}
	for i, c := range def.Checkpoints {
		place := fmt.Sprintf("%s.checkpoints[%d]", path, i)
		if len(c.After) == 0 && c.Every == 0 {
			faults = append(faults, fieldError{place + ".after_tools", "nothing makes the checkpoint due: name tools here, or set every_iterations"})
		}
		for j, name := range c.After {
			if _, known := def.Tool(name); !known {
				faults = append(faults, fieldError{fmt.Sprintf("%s.after_tools[%d]", place, j), fmt.Sprintf("the agent has no tool %q: name one of its own", name)})
			}
		}
		faults = append(faults, s.checkAssertions(place+".assertions", c.Assertions)...)
	}
	return faults
}

func (s *Server) checkAssertions(path string, assertions []loop.Assertion) []fieldError {
	var faults []fieldError
	for i, a := range assertions {
		if err := s.cfg.ValidateAssertion(a.Expr); err != nil {
			faults = append(faults, fieldError{fmt.Sprintf("%s[%d].expression", path, i), err.Error()})
		}
	}
	return faults
}

// checkValidator lists what is wrong with the endpoint that is asked about answers:
// besides what is wrong with any tool, all that makes no sense for a question.
func (s *Server) checkValidator(path string, v loop.ToolSpec) []fieldError {
	if v.HTTP == nil {
		return []fieldError{{path, "only an HTTP tool can be asked about answers: give it http"}}
	}
	var faults []fieldError
	if v.Effect != loop.ReadOnly {
		faults = append(faults, fieldError{path + ".effect", "answers are validated again and again, so asking may change nothing: set EFFECT_READ_ONLY"})
	}
	if v.Approval.Mode != "" {
		faults = append(faults, fieldError{path + ".approval", "nobody approves the question whether an answer is right: leave it out"})
	}
	if string(v.Schema) != aboutAnswer {
		faults = append(faults, fieldError{path + ".input_schema", "what a validator gets is loopd's own: answer, answer_json and run. Leave it out"})
		return faults // the rest is checked against the schema
	}
	return append(faults, s.checkTool(path, v)...)
}

// sidePrices finds what the models cost that a definition uses beside its own and
// its fallbacks: the judge's and the summarizer's. path names the definition in the
// request.
func (s *Server) sidePrices(path string, def loop.AgentSpec) (map[string]loop.Price, error) {
	var judge string
	if def.Output.Judge != nil {
		judge = def.Output.Judge.Model
	}
	var prices map[string]loop.Price
	for _, use := range []struct{ field, model string }{{"output.judge.model", judge}, {"summarizer_model", def.Summarizer}} {
		if use.model == "" || use.model == def.Model || slices.Contains(def.Fallbacks, use.model) {
			continue
		}
		price, err := s.price(path+"."+use.field, use.model)
		if err != nil {
			return nil, err
		}
		if prices == nil {
			prices = map[string]loop.Price{}
		}
		prices[use.model] = price
	}
	return prices, nil
}
