package loop_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	bugTest = regexp.MustCompile("^`([A-Za-z0-9_]+)`(?: in ([a-z0-9/]+))?$")
	total   = regexp.MustCompile(`(?m)^= total state=(\S+) reason=(\S+) requests=(\d+) sent=(\S+) effects=\S+\n=   tokens=\S+ cost=(\S+) `)
	remark  = regexp.MustCompile(`^# Bug (\d+), `)
)

// TestBugTable holds BUGS.md to the tests that it names.
func TestBugTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("BUGS.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	bug, reports, last := 0, "", 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "|") || len(cells) < 3 || strings.Contains(line, "| test |") || strings.HasPrefix(line, "|---") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		cell, end := cells[len(cells)-2], cells[len(cells)-1]
		found := bugTest.FindStringSubmatch(cell)
		if found == nil || named[cell] || end == "" {
			t.Errorf("%q is no row with one test, named once, and an end", line)
			continue
		}
		named[cell] = true
		if len(cells) == 5 && cells[0] != "" {
			bug, _ = strconv.Atoi(cells[0])
			reports = ""
			if bug <= last || bug%2 == 0 {
				t.Errorf("case %q comes after case %d", cells[0], last)
			}
			last = bug
		}
		if len(cells) == 5 && cells[1] != "" {
			reports = cells[1]
		}
		if found[2] != "" {
			checkTestExists(t, found[2], found[1])
			continue
		}
		checkScript(t, found[1], end, bug, reports)
	}
	checkNamed(t, named)
}

// checkTestExists looks for a Go test in a folder of the module.
func checkTestExists(t *testing.T, folder, name string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), "\nfunc "+name+"(t *testing.T)") {
			return
		}
	}
	t.Errorf("there is no %s in %s", name, folder)
}

// checkScript compares a row with the script that it names.
func checkScript(t *testing.T, name, end string, bug int, reports string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "scenarios", name+".txt"))
	if err != nil {
		t.Error(err)
		return
	}
	sum := total.FindStringSubmatch(string(text))
	if sum == nil {
		t.Errorf("%s does not end with totals", name)
		return
	}
	sends := 0
	for tool := range strings.SplitSeq(sum[4], ",") {
		_, n, _ := strings.Cut(tool, ":")
		k, _ := strconv.Atoi(n) // none: 0
		sends += k
	}
	if d := cmp.Diff(fmt.Sprintf("%s %s, %s requests, %d sends, %s USD", sum[1], sum[2], sum[3], sends, sum[5]), end); d != "" {
		t.Errorf("%s ends otherwise (-script +BUGS.md):\n%s", name, d)
	}
	if !strings.HasPrefix(name, "bug_") {
		return
	}
	said := remark.FindStringSubmatch(string(text))
	if said == nil || said[1] != strconv.Itoa(bug) || !strings.HasPrefix(name, fmt.Sprintf("bug_%02d_", bug)) {
		t.Errorf("%s stands under case %d, and begins with %q", name, bug, strings.SplitN(string(text), "\n", 2)[0])
	}
	if report, _, _ := strings.Cut(reports, ","); report == "" || !strings.Contains(string(text), report) {
		t.Errorf("%s does not name the report %s", name, report)
	}
}

// checkNamed finds scripts of bugs that the table leaves out.
func checkNamed(t *testing.T, named map[string]bool) {
	t.Helper()
	n := 0
	for _, pattern := range []string{"bug_*.txt", "article_*.txt"} {
		files, err := filepath.Glob(filepath.Join("testdata", "scenarios", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if name := strings.TrimSuffix(filepath.Base(file), ".txt"); !named["`"+name+"`"] {
				t.Errorf("BUGS.md does not name %s", name)
			}
			n++
		}
	}
	if n < 26 || len(named) < 50 {
		t.Errorf("%d scripts and %d rows: the test looks for the wrong text", n, len(named))
	}
}
