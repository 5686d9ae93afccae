package archtest

import (
	"go/ast"
	"slices"
)

// startsGoroutines lists the only files that may start one, so that each has an
// owner who waits for it, recovers it and counts it.
var startsGoroutines = []string{
	"cmd/loopd/serve.go",               // the services of the process
	"cmd/loopd/bench_load.go",          // the clients of the benchmark
	"cmd/loopd/bench_pace.go",          // the same, at a pace
	"internal/engine/supervisor.go",    // run owners, and their model and tool calls
	"internal/devpg/devpg.go",          // the thread that Postgres dies with
	"internal/torture/group.go",        // what takes part in the fault machine, and its faults
	"internal/tools/obscheck/group.go", // what the day is made of, and who waits for processes
}

// uses finds the selectors that name one of the given members of an imported
// package, under whatever name the file imports it.
func (s source) uses(importPath string, members ...string) []*ast.SelectorExpr {
	imports := s.imports()
	var found []*ast.SelectorExpr
	ast.Inspect(s.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if pkg, ok := sel.X.(*ast.Ident); ok && imports[pkg.Name] == importPath && slices.Contains(members, sel.Sel.Name) {
			found = append(found, sel)
		}
		return true
	})
	return found
}

// checkGoroutines finds go statements and the Go methods of sync.WaitGroup and
// errgroup.Group. A method of that name on anything else is as confusing.
func checkGoroutines(s source) []string {
	if !s.written() || s.test() || slices.Contains(startsGoroutines, s.path) {
		return nil
	}
	var faults []string
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			faults = append(faults, s.at(n, "only %v start goroutines", startsGoroutines))
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Go" || sel.Sel.Name == "TryGo") {
				faults = append(faults, s.at(n, "only %v start goroutines", startsGoroutines))
			}
		}
		return true
	})
	return faults
}

// checkInit finds init functions: what happens at start is in main, in order.
func checkInit(s source) []string {
	if !s.written() {
		return nil
	}
	var faults []string
	for _, decl := range s.file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
			faults = append(faults, s.at(f, "no init functions: do it in a constructor or in main"))
		}
	}
	return faults
}

// checkSleep finds sleeps. Code waits for a context or a channel, tests wait for
// what they want to see. In a synctest bubble time is an argument too.
func checkSleep(s source) []string {
	if !s.written() {
		return nil
	}
	for _, importPath := range s.imports() {
		if importPath == "testing/synctest" {
			return nil
		}
	}
	var faults []string
	for _, use := range s.uses("time", "Sleep") {
		faults = append(faults, s.at(use, "no time.Sleep: wait for the thing itself, or use testing/synctest"))
	}
	return faults
}
