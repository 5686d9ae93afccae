package tool

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

const (
	maxProblems     = 8    // a model mends a few faults at a time
	maxProblemBytes = 1000 // of one joined text
	maxValueBytes   = 60   // of a value shown in it
	maxEnumValues   = 12
)

// describe lists the faults of a value, sorted: the library walks maps, so its
// own order changes from call to call.
func describe(root string, value any, err *jsonschema.ValidationError) []string {
	p := describer{root: root, value: value, printer: message.NewPrinter(language.English)}
	problems := p.walk(err)
	slices.Sort(problems)
	return slices.Compact(problems)
}

type describer struct {
	root    string
	value   any
	printer *message.Printer
}

// walk collects the leaves of the error tree. The branches of anyOf and oneOf
// are alternatives, so they become one problem.
func (p describer) walk(err *jsonschema.ValidationError) []string {
	switch k := err.ErrorKind.(type) {
	case *kind.AnyOf:
		return p.alternatives(err)
	case *kind.OneOf:
		if len(k.Subschemas) == 0 {
			return p.alternatives(err)
		}
	}
	if len(err.Causes) == 0 {
		return p.leaf(err)
	}
	var problems []string
	for _, cause := range err.Causes {
		problems = append(problems, p.walk(cause)...)
	}
	return problems
}

// alternatives names the nearest fault of each branch.
func (p describer) alternatives(err *jsonschema.ValidationError) []string {
	path, _ := p.locate(err.InstanceLocation)
	var branches []string
	for _, cause := range err.Causes {
		faults := p.walk(cause)
		slices.Sort(faults)
		branches = append(branches, faults[0])
	}
	branches = slices.Compact(branches)
	switch {
	case len(branches) == 1:
		return branches
	case len(branches) > maxEnumValues:
		branches = append(branches[:maxEnumValues], "...")
	}
	return []string{fmt.Sprintf("%s: matches none of the allowed forms (%s)", path, strings.Join(branches, "; or "))}
}

// leaf words one fault.
func (p describer) leaf(err *jsonschema.ValidationError) []string {
	path, value := p.locate(err.InstanceLocation)
	got := ", got " + show(value)
	switch k := err.ErrorKind.(type) {
	case *kind.Type:
		return []string{path + ": expected " + strings.Join(k.Want, " or ") + got}
	case *kind.Required:
		return each(k.Missing, func(name string) string { return joinKey(path, name) + ": required, but missing" })
	case *kind.Dependency:
		return p.dependent(path, k.Prop, k.Missing)
	case *kind.DependentRequired:
		return p.dependent(path, k.Prop, k.Missing)
	case *kind.AdditionalProperties:
		return each(k.Properties, func(name string) string { return joinKey(path, name) + ": not a property of this schema; remove it" })
	case *kind.Enum:
		return []string{path + ": expected one of " + showAll(k.Want) + got}
	case *kind.Const:
		return []string{path + ": expected " + compact(k.Want) + got}
	case *kind.Minimum:
		return []string{path + ": expected at least " + decimal(k.Want) + got}
	case *kind.Maximum:
		return []string{path + ": expected at most " + decimal(k.Want) + got}
	case *kind.ExclusiveMinimum:
		return []string{path + ": expected more than " + decimal(k.Want) + got}
	case *kind.ExclusiveMaximum:
		return []string{path + ": expected less than " + decimal(k.Want) + got}
	case *kind.FalseSchema:
		return []string{path + ": not allowed here"}
	}
	return []string{path + ": " + err.ErrorKind.LocalizedString(p.printer) + p.shown(err.ErrorKind, got)}
}

// dependent words what one property asks of others.
func (p describer) dependent(path, given string, missing []string) []string {
	return each(missing, func(name string) string {
		return joinKey(path, name) + ": required, because " + joinKey(path, given) + " is given, but missing"
	})
}

// shown adds the value to the library's wording where that leaves it out.
func (p describer) shown(k jsonschema.ErrorKind, got string) string {
	if strings.Contains(k.LocalizedString(p.printer), "got") || p.value == nil {
		return ""
	}
	return got
}

// locate walks to a value and writes the path to it.
func (p describer) locate(location []string) (path string, value any) {
	path, value = p.root, p.value
	for _, token := range location {
		switch v := value.(type) {
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(v) {
				return path, nil
			}
			path, value = joinIndex(path, i), v[i]
		case map[string]any:
			path, value = joinKey(path, token), v[token]
		default: // below the value: never, but a path is better than none
			path = joinKey(path, token)
		}
	}
	return path, value
}

// show names a value's type and its beginning.
func show(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "object"
	case []any:
		return fmt.Sprintf("array (%d items)", len(v))
	case string:
		return "string (" + compact(v) + ")"
	case json.Number:
		return "number (" + compact(v) + ")"
	}
	return fmt.Sprintf("boolean (%v)", value)
}

// decimal is a number as people write it; the library rounds large ones.
func decimal(n *big.Rat) string {
	if digits, exact := n.FloatPrec(); exact {
		return n.FloatString(digits)
	}
	return n.RatString()
}

func showAll(values []any) string {
	n := min(len(values), maxEnumValues)
	shown := make([]string, 0, n)
	for _, v := range values[:n] {
		shown = append(shown, compact(v))
	}
	if n < len(values) {
		shown = append(shown, fmt.Sprintf("... (%d in all)", len(values)))
	}
	return strings.Join(shown, ", ")
}

// compact is a value as JSON, cut.
func compact(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	if len(text) > maxValueBytes {
		return string(trimPartialRune(text[:maxValueBytes])) + "…"
	}
	return string(text)
}

func each(names []string, word func(string) string) []string {
	out := make([]string, 0, len(names))
	for _, name := range names {
		out = append(out, word(name))
	}
	return out
}

// capProblems keeps the first few.
func capProblems(problems []string) []string {
	if len(problems) <= maxProblems {
		return problems
	}
	return append(problems[:maxProblems:maxProblems], fmt.Sprintf("and %d more problems", len(problems)-maxProblems))
}

// joinProblems makes one text of bounded length.
func joinProblems(problems []string) string {
	text := strings.Join(capProblems(problems), "; ")
	if len(text) > maxProblemBytes {
		return string(trimPartialRune([]byte(text[:maxProblemBytes]))) + "…"
	}
	return text
}
