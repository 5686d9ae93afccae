package loop

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestGuardTable: the table has every guard once, in the order in which they are
// asked, with all that people and programs need to know of it.
func TestGuardTable(t *testing.T) {
	t.Parallel()
	var asked, names []string
	for _, g := range guards() {
		asked = append(asked, g.name)
	}
	phases := []Phase{BeforeModel, AfterAnswer, BeforeTool, AfterResults, FinalAnswer}
	for _, g := range Guards() {
		if slices.Contains(names, g.Name) {
			t.Errorf("%s is in the table twice", g.Name)
		}
		names = append(names, g.Name)
		if !slices.Contains(phases, g.Phase) || !strings.HasSuffix(g.Advice, ".") {
			t.Errorf("the row of %s is not complete: %+v", g.Name, g)
		}
		if found, known := GuardNamed(g.Name); !known || found.Advice != g.Advice {
			t.Errorf("GuardNamed(%q) gives %+v", g.Name, found)
		}
		for _, v := range g.Acts {
			if v == VerdictPause && len(g.Fields) == 0 {
				t.Errorf("%s may pause for a raise, and has no limit to raise", g.Name)
			}
		}
	}
	if !slices.Equal(asked, names[:len(asked)]) {
		t.Errorf("the guards are asked in the order\n%v, the table begins\n%v", asked, names[:len(asked)])
	}
	for _, g := range elsewhere() {
		if !slices.Contains(names[len(asked):], g.name) {
			t.Errorf("there is a gauge of %s, which is not in the table", g.name)
		}
	}
}

// TestEveryGuardIsInTheTable: no trip has a guard that the table does not know.
func TestEveryGuardIsInTheTable(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		parts := strings.Split(string(text), `Guard: "`)
		for _, part := range parts[1:] {
			name, _, _ := strings.Cut(part, `"`)
			if _, known := GuardNamed(name); !known {
				t.Errorf("%s trips %q, which is not in the table", file, name)
			}
			found++
		}
	}
	if found < 15 {
		t.Errorf("only %d trips found in the source: the test looks for the wrong text", found)
	}
}

// TestEveryGuardHasAScenario: each guard ends a run in a script that bears its name.
func TestEveryGuardHasAScenario(t *testing.T) {
	t.Parallel()
	for _, g := range Guards() {
		files, err := filepath.Glob("testdata/scenarios/" + g.Name + "*.txt")
		if err != nil {
			t.Fatal(err)
		}
		trips := slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(text), "\n= trip "+g.Name+" ") && strings.Contains(string(text), `guard="`+g.Name+`"`)
		})
		if !trips {
			t.Errorf("no scenario %s*.txt ends by the guard %s", g.Name, g.Name)
		}
	}
}
