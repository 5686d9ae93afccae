package rule

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/ext"
)

const (
	// maxExpr is the longest condition, in bytes. Those that people write have one
	// or two hundred.
	maxExpr = 2000
	// maxFault is how much of a fault is told: it may quote the model's text.
	maxFault = 300
	// maxCost is what one evaluation may cost, in CEL's units: about one for each
	// operation, for each element that is visited and for each ten bytes of a text
	// that is read. The dearest evaluation takes some tens of milliseconds.
	maxCost = 100_000
	// maxEstimate is what a condition may be estimated to cost when each text, list
	// and map in the arguments has the size ordinary: a loop in a loop passes, one
	// in that does not.
	maxEstimate = 3_000_000
	ordinary    = 100
	// maxRegexp is the most instructions of a compiled pattern: each may be tried
	// at each byte of a text.
	maxRegexp = 200
	// maxErrors is how many faults of a condition are listed.
	maxErrors = 3
)

// Compile says what is wrong with a condition, where, and what it could have
// used instead. It is for conditions that are about to be stored.
func Compile(expr string) error {
	language, err := newEnv()
	if err != nil {
		return err
	}
	_, err = compile(language, expr)
	return err
}

// compile checks a condition and makes it ready to run.
func compile(env *cel.Env, expr string) (cel.Program, error) {
	return language{env, variables, "args.amount > 100", "args.urgent == true"}.compile(expr)
}

// language is what a condition may be written in, with what errors say of it.
type language struct {
	env       *cel.Env
	variables string
	example   string // of a condition
	bool      string // of how to make one of something else
}

// compile checks a condition and makes it ready to run.
func (l language) compile(expr string) (p cel.Program, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			p, err = nil, fmt.Errorf("the condition cannot be compiled: %v", fault)
		}
	}()
	switch {
	case strings.TrimSpace(expr) == "":
		return nil, fmt.Errorf("the condition is empty: write one such as %s, over %s", l.example, l.variables)
	case len(expr) > maxExpr:
		return nil, fmt.Errorf("the condition has %d bytes: at most %d are allowed", len(expr), maxExpr)
	case !utf8.ValidString(expr):
		return nil, errors.New("the condition is not valid UTF-8")
	}
	checked, issues := l.env.Compile(expr)
	if issues.Err() != nil {
		return nil, l.describe(issues.Errors())
	}
	if !checked.OutputType().IsExactType(cel.BoolType) {
		return nil, fmt.Errorf("the condition is of type %s, not bool: compare it with something, as in %s", checked.OutputType(), l.bool)
	}
	estimate, err := l.env.EstimateCost(checked, sizes{})
	if err != nil {
		return nil, fmt.Errorf("estimate the cost of the condition: %w", err)
	}
	if estimate.Max > maxEstimate {
		return nil, fmt.Errorf("the condition may cost %d on lists and texts of %d elements, at most %d are allowed: use fewer loops inside loops", estimate.Max, ordinary, maxEstimate)
	}
	p, err = l.env.Program(checked, cel.EvalOptions(cel.OptOptimize), cel.CostTracking(meter{}), cel.CostLimit(maxCost))
	if err != nil {
		return nil, fmt.Errorf("prepare the condition: %w", err)
	}
	return p, nil
}

// variables names what a condition may use.
const variables = "args, tool.name, tool.effect, run.id, run.agent, run.labels, run.iterations, run.tool_calls, run.cost_usd"

// newEnv sets up the language of conditions on calls.
func newEnv() (*cel.Env, error) {
	return envWith(
		cel.Variable("args", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("tool.name", cel.StringType),
		cel.Variable("tool.effect", cel.StringType),
	)
}

// envWith sets up a language with its own variables besides those of the run.
func envWith(own ...cel.EnvOption) (*cel.Env, error) {
	language, err := cel.NewCustomEnv(append(own,
		// Versions are pinned: what later ones add must be looked at first. These
		// two are the first that charge for what their functions cost.
		cel.StdLib(), ext.Strings(ext.StringsVersion(5)), ext.Math(ext.MathVersion(3)),
		cel.CrossTypeNumericComparisons(true),
		cel.ASTValidators(cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals(), bounded{}),
		cel.RegexProgramSizeLimit(maxRegexp),
		cel.Variable("run.id", cel.StringType),
		cel.Variable("run.agent", cel.StringType),
		cel.Variable("run.labels", cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable("run.iterations", cel.IntType),
		cel.Variable("run.tool_calls", cel.IntType),
		cel.Variable("run.cost_usd", cel.DoubleType),
	)...)
	if err != nil {
		return nil, fmt.Errorf("set up the language of conditions: %w", err)
	}
	return language, nil
}

// describe words what the compiler found.
func (l language) describe(found []*common.Error) error {
	var texts []string
	for _, e := range found[:min(len(found), maxErrors)] {
		texts = append(texts, fmt.Sprintf("line %d, column %d: %s", e.Location.Line(), e.Location.Column()+1, excerpt(e.Message, maxFault)))
	}
	if more := len(found) - maxErrors; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%s (a condition may use %s)", strings.Join(texts, "; "), l.variables)
}

// excerpt cuts a text to at most n bytes, between two characters.
func excerpt(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}

// sizes tells the estimate how large things ordinarily are.
type sizes struct{}

// EstimateSize is the same for everything that the condition itself does not
// write out.
func (sizes) EstimateSize(cost.AstNode) *cost.SizeEstimate {
	return &cost.SizeEstimate{Min: 0, Max: ordinary}
}

// EstimateCallCost leaves the cost of functions to CEL.
func (sizes) EstimateCallCost(_, _ string, _ *cost.AstNode, _ []cost.AstNode) *cost.CallEstimate {
	return nil
}

// withheld are the functions of CEL that conditions may not use, and why.
var withheld = map[string]string{
	"replace": grows, "join": grows, "format": grows, "indexOf": slow, "lastIndexOf": slow,
	"reverse": useless, "strings.quote": useless,

	overloads.TimeGetFullYear: zoned, overloads.TimeGetMonth: zoned, overloads.TimeGetDayOfYear: zoned,
	overloads.TimeGetDayOfMonth: zoned, overloads.TimeGetDate: zoned, overloads.TimeGetDayOfWeek: zoned,
	overloads.TimeGetHours: zoned, overloads.TimeGetMinutes: zoned, overloads.TimeGetSeconds: zoned,
	overloads.TimeGetMilliseconds: zoned,
}

const (
	grows   = "its result can be as large as the product of two texts"
	slow    = "it takes as long as the product of two texts; use contains"
	useless = "it decides nothing"
	zoned   = "it depends on time zones, which are not the same everywhere; compare whole times"
)

// bounded refuses what CEL charges for only after it is done, and by then it may
// have taken all memory, or long.
type bounded struct{}

// Name of the check.
func (bounded) Name() string { return "loopd.bounded" }

// Validate reports each call of a withheld function, and each pattern that is
// not known before the call is: the model could write one that is slow.
func (bounded) Validate(_ *cel.Env, _ cel.ValidatorConfig, checked *ast.AST, issues *cel.Issues) {
	for _, call := range ast.MatchDescendants(ast.NavigateAST(checked), ast.KindMatcher(ast.CallKind)) {
		name, operands := call.AsCall().FunctionName(), call.AsCall().Args()
		if why := withheld[name]; why != "" {
			issues.ReportErrorAtID(call.ID(), "conditions may not use %s: %s", name, why)
		}
		if name == overloads.Matches { // matches(text, pattern), or text.matches(pattern)
			checkPattern(operands[len(operands)-1], issues)
		}
	}
}

func checkPattern(pattern ast.Expr, issues *cel.Issues) {
	if pattern.Kind() != ast.LiteralKind {
		issues.ReportErrorAtID(pattern.ID(), "the pattern of matches must be a literal text")
		return
	}
	text, _ := pattern.AsLiteral().(types.String)
	if _, err := regexp.Compile(string(text)); err != nil {
		issues.ReportErrorAtID(pattern.ID(), "the pattern cannot be used: %v", err)
	}
}
