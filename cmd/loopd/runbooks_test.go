package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Who is woken types what the runbook says: every command in it is there, with its flags.
func TestRunbookCommands(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../deploy/prometheus/runbooks/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("there are no runbooks: %v", err)
	}
	command := regexp.MustCompile("(?m)(?:`|runs: )(loopd [a-z][^`\n]*)")
	asked := map[string]bool{}
	for _, page := range append(pages, "../../deploy/prometheus/alerts.yml") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range command.FindAllStringSubmatch(string(text), -1) {
			line := found[1]
			if asked[line] {
				continue
			}
			asked[line] = true
			var out strings.Builder
			env := Env{Getenv: func(string) string { return "" }, Stdout: &out, Stderr: &out, Stdin: strings.NewReader("")}
			args := strings.Fields(line)[1:]
			if code := run(t.Context(), append(args, "--help"), env); code != exitOK || !strings.Contains(out.String(), strings.Join(commandOf(args), " ")) {
				t.Errorf("%s: %s: exit code %d\n%s", filepath.Base(page), line, code, &out)
			}
		}
	}
	if len(asked) < 10 {
		t.Errorf("only %d commands were found", len(asked))
	}
}

// commandOf is the command without its flags and arguments, as its help names it.
func commandOf(args []string) []string {
	words := []string{"loopd"}
	for _, a := range args {
		if strings.HasPrefix(a, "-") || strings.ContainsAny(a, "/{") {
			break
		}
		words = append(words, a)
	}
	return words
}
