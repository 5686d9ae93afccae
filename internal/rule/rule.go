package rule

import (
	"errors"
	"fmt"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"

	"github.com/loopd/loopd/internal/loop"
)

// Run is what conditions may know of the run.
type Run struct {
	Ref        loop.RunRef
	Agent      string // "agents/support"
	Labels     map[string]string
	Iterations int
	ToolCalls  int
	Cost       loop.USD
}

// Rules judges conditions, and keeps the ones it has compiled. It is safe for
// concurrent use.
type Rules struct {
	env      *cel.Env
	programs programs

	assertions language
	asserted   programs // the assertions
}

// New returns rules without any condition compiled yet. It fails only if the
// language itself cannot be set up, which is a fault of this package.
func New() (*Rules, error) {
	env, err := newEnv()
	if err != nil {
		return nil, err
	}
	assertions, err := newAssertions()
	if err != nil {
		return nil, err
	}
	return &Rules{env: env, assertions: assertions}, nil
}

// NeedsApproval is why a person must approve the call under its tool's rule: the
// condition, when it holds, or the fault that keeps it from being judged. It is
// "" when no approval is needed. It is deterministic.
func (r *Rules) NeedsApproval(spec loop.ToolSpec, call loop.ToolCall, run Run) string {
	switch spec.Approval.Mode {
	case "", loop.ApprovalNever:
		return ""
	case loop.ApprovalAlways:
		return "the tool always needs approval"
	case loop.ApprovalWhen:
		when := spec.Approval.When
		holds, err := r.Holds(when, spec, call, run)
		switch {
		case err != nil:
			return excerpt(when, maxExpr) + ": cannot be judged: " + excerpt(err.Error(), maxFault)
		case holds:
			return when
		}
		return ""
	}
	return fmt.Sprintf("the tool's approval mode %q is not known", spec.Approval.Mode)
}

// Holds reports whether the condition holds for the call. With an error, which
// is the fault, it is always false. The error may quote the arguments. It is
// deterministic.
func (r *Rules) Holds(expr string, spec loop.ToolSpec, call loop.ToolCall, run Run) (holds bool, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			holds, err = false, fmt.Errorf("internal fault: %v", fault)
		}
	}()
	program, err := r.program(expr)
	if err != nil {
		return false, err
	}
	args, err := decodeArgs(call.Args)
	if err != nil {
		return false, err
	}
	return evaluate(program, facts{args: args, spec: spec, run: run}, "these arguments")
}

// evaluate runs a condition. on names what it is judged on, for faults.
func evaluate(program cel.Program, vars cel.Activation, on string) (bool, error) {
	out, _, err := program.Eval(vars)
	if err != nil {
		return false, word(err, on)
	}
	answer, ok := out.(types.Bool)
	if !ok {
		return false, errors.New("the condition is neither true nor false")
	}
	return bool(answer), nil
}

// word says what a fault of an evaluation means to whoever wrote the condition.
func word(err error, on string) error {
	cancelled, ok := errors.AsType[interpreter.EvalCancelledError](err)
	switch {
	case ok && cancelled.Cause == interpreter.CostLimitExceeded:
		return fmt.Errorf("it costs more than %d on %s", maxCost, on)
	case strings.HasPrefix(err.Error(), "no such overload"):
		return fmt.Errorf("a value has a type that does not fit there (%w)", err)
	}
	return err
}

// program returns the compiled condition, from memory if it can.
func (r *Rules) program(expr string) (cel.Program, error) {
	if p, ok := r.programs.get(expr); ok {
		return p, nil
	}
	p, err := compile(r.env, expr)
	if err != nil {
		return nil, err
	}
	r.programs.put(expr, p)
	return p, nil
}

// facts resolves the variables of one evaluation.
type facts struct {
	args object
	spec loop.ToolSpec
	run  Run
}

// ResolveName returns a variable's value.
func (f facts) ResolveName(name string) (any, bool) {
	switch name {
	case "args":
		return f.args, true
	case "tool.name":
		return types.String(f.spec.Name), true
	case "tool.effect":
		return types.String(f.spec.Effect), true
	}
	return f.run.resolve(name)
}

// resolve returns the value of one of the run's variables.
func (r Run) resolve(name string) (any, bool) {
	switch name {
	case "run.id":
		return types.String(r.Ref.ID), true
	case "run.agent":
		return types.String(r.Agent), true
	case "run.labels":
		return object{types.NewStringStringMap(types.DefaultTypeAdapter, r.Labels)}, true
	case "run.iterations":
		return types.Int(r.Iterations), true
	case "run.tool_calls":
		return types.Int(r.ToolCalls), true
	case "run.cost_usd":
		return types.Double(r.Cost.Float()), true
	}
	return nil, false
}

// Parent is none: there are no other variables.
func (facts) Parent() cel.Activation { return nil }
