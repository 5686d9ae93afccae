package archtest

import (
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// banned are synonyms of words that loopd has one word for, with that word.
var banned = map[string]string{
	"step":    "iteration",
	"turn":    "iteration",
	"round":   "iteration",
	"task":    "run",
	"job":     "run",
	"session": "run",
}

// kept are names that are not ours to choose, or that journals hold, and journals
// are read for ever.
var kept = []string{
	"VerdictFinalTurn", // "final_turn", after the specification of the guards
	"RoundTrip",        // of net/http.RoundTripper
}

// words cuts an identifier into lower-case words: "maxModelCalls", "MAX_MODEL_CALLS"
// and "max_model_calls" are max, model, calls. A plural s is cut off as well.
func words(identifier string) []string {
	var b strings.Builder
	runes := []rune(identifier)
	for i, r := range runes {
		startsWord := unicode.IsUpper(r) && i > 0 &&
			(unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if startsWord {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	parts := strings.FieldsFunc(b.String(), func(r rune) bool { return !unicode.IsLetter(r) })
	for i, part := range parts {
		if singular := strings.TrimSuffix(part, "s"); banned[singular] != "" {
			parts[i] = singular
		}
	}
	return parts
}

// wrongWord returns the banned word in an identifier and the one to use, if any.
func wrongWord(identifier string) (wrong, right string) {
	if slices.Contains(kept, identifier) {
		return "", ""
	}
	for _, word := range words(identifier) {
		if right := banned[word]; right != "" {
			return word, right
		}
	}
	return "", ""
}

// checkWords looks at the exported names of our Go, at every name in our protos,
// and at the identifiers of our SQL.
func checkWords(s source) []string {
	if s.file == nil {
		return checkTextWords(s)
	}
	if !s.written() || s.test() {
		return nil
	}
	var faults []string
	for _, name := range exported(s.file) {
		if wrong, right := wrongWord(name.Name); wrong != "" {
			faults = append(faults, s.at(name, "%s says %q; our word is %q", name.Name, wrong, right))
		}
	}
	return faults
}

// exported lists the exported names that a file declares: functions, methods,
// types, constants, variables, fields and interface methods.
func exported(file *ast.File) []*ast.Ident {
	var names []*ast.Ident
	add := func(idents ...*ast.Ident) {
		names = append(names, slices.DeleteFunc(idents, func(id *ast.Ident) bool { return !id.IsExported() })...)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			add(n.Name)
			return false // what is declared inside is nobody's interface
		case *ast.TypeSpec:
			add(n.Name)
		case *ast.ValueSpec:
			add(slices.Clone(n.Names)...)
		case *ast.Field:
			add(slices.Clone(n.Names)...)
		}
		return true
	})
	return names
}

// comments and quoted texts are prose; the rest of a proto or SQL file is names.
var (
	prose       = regexp.MustCompile(`(?s)//[^\n]*|--[^\n]*|/\*.*?\*/|"[^"\n]*"|'[^'\n]*'`)
	identifiers = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)
)

func checkTextWords(s source) []string {
	text := prose.ReplaceAllStringFunc(s.text, func(found string) string {
		return strings.Repeat("\n", strings.Count(found, "\n"))
	})
	var faults []string
	for i, line := range strings.Split(text, "\n") {
		for _, name := range identifiers.FindAllString(line, -1) {
			if wrong, right := wrongWord(name); wrong != "" {
				faults = append(faults, s.line(i+1, "%s says %q; our word is %q", name, wrong, right))
			}
		}
	}
	return faults
}
