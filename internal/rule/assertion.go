package rule

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/loopd/loopd/internal/loop"
)

// assertable names what an assertion may use.
const assertable = "answer, answer_json, calls and ledger (lists), run.id, run.agent, run.labels, run.iterations, run.tool_calls, run.cost_usd"

// maxDecoded is how much of all results together is read as JSON, the newest first:
// more than fits most models' windows, and some 30 milliseconds.
const maxDecoded = 1 << 20

// newAssertions sets up the language of assertions.
func newAssertions() (language, error) {
	entries := cel.ListType(cel.MapType(cel.StringType, cel.DynType))
	env, err := envWith(
		cel.Variable("answer", cel.StringType), cel.Variable("answer_json", cel.DynType),
		cel.Variable("calls", entries), cel.Variable("ledger", entries),
	)
	return language{env, assertable, "answer != ''", "answer_json.urgent == true"}, err
}

// CompileAssertion says what is wrong with an assertion, where, and what it could
// have used instead. It is for assertions that are about to be stored, and bounds
// them as Compile bounds conditions.
func CompileAssertion(expr string) error {
	assertions, err := newAssertions()
	if err != nil {
		return err
	}
	_, err = assertions.compile(expr)
	return err
}

// Assert lists the assertions that do not hold for the facts, each in the words for
// the model, or none. One that cannot be judged does not hold; its problem says why.
// It is deterministic, and safe for concurrent use.
func (r *Rules) Assert(assertions []loop.Assertion, facts loop.Facts) []string {
	vars := &asserted{facts: facts}
	if mentions(assertions, "result_json") {
		vars.decode = maxDecoded
	}
	var problems []string
	for _, a := range assertions {
		holds, err := r.holdsFor(a.Expr, vars)
		if holds {
			continue
		}
		problem := a.Message
		if problem == "" {
			problem = "this must hold: " + excerpt(a.Expr, maxExpr)
		}
		if err != nil {
			problem += " (it cannot be judged: " + excerpt(err.Error(), maxFault) + ")"
		}
		problems = append(problems, problem)
	}
	return problems
}

// holdsFor reports whether an assertion holds. With an error, which is the fault,
// it is always false.
func (r *Rules) holdsFor(expr string, vars *asserted) (holds bool, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			holds, err = false, fmt.Errorf("internal fault: %v", fault)
		}
	}()
	program, ok := r.asserted.get(expr)
	if !ok {
		if program, err = r.assertions.compile(expr); err != nil {
			return false, err
		}
		r.asserted.put(expr, program)
	}
	vars.fault = nil
	holds, err = evaluate(program, vars, "what this run did")
	if err != nil && vars.fault != nil { // else CEL only says that the variable is not there
		err = vars.fault
	}
	return holds, err
}

// mentions reports whether one of the assertions may read something.
func mentions(assertions []loop.Assertion, what string) bool {
	for _, a := range assertions {
		if strings.Contains(a.Expr, what) {
			return true
		}
	}
	return false
}

// asserted resolves the variables of assertions, each once.
type asserted struct {
	facts  loop.Facts
	decode int // bytes of results that may still be read as JSON, which takes time

	answer, calls, ledger ref.Val
	unread                error // why there is no answer_json
	fault                 error // of the evaluation under way: why a variable has no value
}

// ResolveName returns a variable's value.
func (a *asserted) ResolveName(name string) (any, bool) {
	switch name {
	case "answer":
		return types.String(a.facts.Answer), true
	case "answer_json":
		if a.answer == nil && a.unread == nil {
			a.answer, a.unread = asJSON(a.facts.Answer)
		}
		if a.unread != nil {
			a.fault = fmt.Errorf("the answer is %w", a.unread)
		}
		return a.answer, a.unread == nil
	case "calls":
		if a.calls == nil {
			a.calls = listOf(a.facts.Calls, a.call)
		}
		return a.calls, true
	case "ledger":
		if a.ledger == nil {
			a.ledger = listOf(a.facts.Ledger, entry)
		}
		return a.ledger, true
	}
	f := a.facts
	return Run{Ref: f.Run, Agent: f.Agent, Labels: f.Labels, Iterations: f.Iterations, ToolCalls: f.ToolCalls, Cost: f.Cost}.resolve(name)
}

// Parent is none: there are no other variables.
func (*asserted) Parent() cel.Activation { return nil }

// call is a call as assertions see it. What cannot be read is left out: to ask for
// it is a fault.
func (a *asserted) call(c loop.CallHead) object {
	members := map[string]any{
		"tool": types.String(c.Call.Name), "result": types.String(c.Result), "outcome": types.String(c.Outcome),
		"effect": types.String(c.Effect), "state": types.String(c.State), "iteration": types.Int(c.Iteration),
	}
	if args, err := decodeArgs(c.SentArgs()); err == nil {
		members["args"] = args
	}
	if a.decode -= len(c.Result); a.decode > 0 {
		if result, err := asJSON(c.Result); err == nil {
			members["result_json"] = result
		}
	}
	return object{types.NewStringInterfaceMap(types.DefaultTypeAdapter, members)}
}

// entry is an entry of the ledger as assertions see it.
func entry(e loop.LedgerEntry) object {
	members := map[string]any{
		"tool": types.String(e.Tool), "effect": types.String(e.Effect), "state": types.String(e.State),
		"outcome": types.String(e.Outcome), "run": types.String(e.RunID),
	}
	if e.Args != "" {
		if args, err := decodeArgs(e.Args); err == nil {
			members["args"] = args
		}
	}
	return object{types.NewStringInterfaceMap(types.DefaultTypeAdapter, members)}
}

func listOf[T any](items []T, show func(T) object) ref.Val {
	values := make([]ref.Val, len(items))
	for i, item := range slices.Backward(items) { // the newest are worth the most
		values[i] = show(item)
	}
	return types.NewRefValList(types.DefaultTypeAdapter, values)
}

// asJSON reads a text as JSON, null if it is none. JSON that says two things at
// once, or is too large or too deep, is a fault; the error says what it is.
func asJSON(text string) (ref.Val, error) {
	switch {
	case len(text) > maxArgs:
		return nil, fmt.Errorf("too large to be read as JSON: it has %d bytes, assertions read %d", len(text), maxArgs)
	case !json.Valid([]byte(text)):
		return types.NullValue, nil
	}
	return decodeText(text)
}
