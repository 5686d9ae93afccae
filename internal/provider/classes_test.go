package provider

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

var update = flag.Bool("update", false, "write CLASSES.md instead of comparing it")

// TestClassesDocument: CLASSES.md says what the tables say.
func TestClassesDocument(t *testing.T) {
	t.Parallel()
	want := classesDocument()
	if *update {
		if err := os.WriteFile("CLASSES.md", []byte(want), 0o644); err != nil {
			t.Fatalf("write: %v", err)
		}
	}
	got, err := os.ReadFile("CLASSES.md")
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("CLASSES.md is old; run go test ./internal/provider -run TestClassesDocument -update (-code +file):\n%s", diff)
	}
}

// classes lists every class a provider can cause, and the rest for completeness.
var classes = []loop.ErrorClass{
	loop.ErrorNotStarted, loop.ErrorThrottle, loop.ErrorQuota, loop.ErrorServer, loop.ErrorMidStream, loop.ErrorTimeout,
	loop.ErrorContext, loop.ErrorRequest, loop.ErrorAuth, loop.ErrorCancelled, loop.ErrorTextLoop, loop.ErrorLost, loop.ErrorInternal,
}

// TestClassesAreReached: every class has a row that leads to it, except what only
// the engine sees.
func TestClassesAreReached(t *testing.T) {
	t.Parallel()
	for _, class := range classes {
		reached := slices.ContainsFunc(breakages, func(b struct {
			class loop.ErrorClass
			what  string
		},
		) bool {
			return b.class == class
		})
		for _, row := range statusClasses {
			reached = reached || row.class == class
		}
		for _, r := range rules {
			reached = reached || r.class == class
		}
		if !reached && class != loop.ErrorLost && class != loop.ErrorTextLoop {
			t.Errorf("nothing leads to class %q", class)
		}
	}
	for _, r := range rules {
		for _, word := range slices.Concat(r.codes, r.words, r.hidden) {
			if word != strings.ToLower(word) {
				t.Errorf("%q never fits: write it in lower case", word)
			}
		}
	}
}

// document is markdown in the making.
type document struct{ strings.Builder }

func (d *document) table(head ...string) {
	d.row(head...)
	d.WriteString(strings.Repeat("|---", len(head)) + "|\n")
}

func (d *document) row(cells ...string) { d.WriteString("| " + strings.Join(cells, " | ") + " |\n") }

func classesDocument() string {
	var d document
	d.WriteString("# What a failed model call means\n\n" +
		"Written from the tables in `classes.go`; a test compares. Do not edit by hand.\n\n" +
		"## Classes\n\n" +
		"One owner retries: the engine, with full jitter, at most 3 times in a call and 10 times in a run, each time under a\n" +
		"hold of its own. A wait that the provider asked for is kept. `text_loop` and `lost` are the engine's own words: the answer\n" +
		"went round in circles while it was written, which is asked for once more in a run; the worker died.\n\n")
	d.table("class", "retried", "costs", "another model")
	for _, c := range classes {
		d.row("`"+string(c)+"`", yes(c.Retryable()), map[bool]string{true: "nothing", false: "its hold, or what was reported"}[c.Free()], yes(c.FallbackAllowed()))
	}
	d.WriteString("\n## Without an answer\n\n")
	d.table("what happened", "class")
	for _, b := range breakages {
		d.row(b.what, "`"+string(b.class)+"`")
	}
	d.WriteString("\n## By what the answer says\n\nTried in this order, before the status. Upper and lower case are the same.\n\n")
	d.table("class", "where the status says", "code or type", "in the message", "anywhere", "why")
	for _, r := range rules {
		d.row("`"+string(r.class)+"`", quoted(r.after, "any"), quoted(r.codes, ""), quoted(r.words, ""), quoted(r.hidden, ""), r.why)
	}
	d.WriteString("\n## By the header x-should-retry\n\n")
	d.table("header", "turns", "into")
	for _, row := range shouldRetry {
		d.row(row.header, "`"+string(row.from)+"`", "`"+string(row.to)+"`")
	}
	d.WriteString("\n## By status\n\nThe first row that fits.\n\n")
	d.table("status", "class", "why")
	for _, row := range statusClasses {
		status := fmt.Sprint(row.from)
		switch {
		case row.from == 0:
			status = "any other"
		case row.to > row.from:
			status = fmt.Sprintf("%d-%d", row.from, row.to)
		}
		d.row(status, "`"+string(row.class)+"`", row.why)
	}
	d.WriteString("\n## Errors inside a 200 answer\n\nOnce the answer has begun: always `mid_stream`. Before: as the status that belongs to the type.\n\n")
	d.table("type", "as status")
	for _, row := range kindStatuses {
		d.row(quoted(row.kinds, ""), fmt.Sprint(row.status))
	}
	return d.String()
}

func yes(b bool) string { return map[bool]string{true: "yes", false: "no"}[b] }

func quoted[S ~string](words []S, none string) string {
	if len(words) == 0 {
		return none
	}
	all := make([]string, len(words))
	for i, w := range words {
		all[i] = "`" + string(w) + "`"
	}
	return strings.Join(all, ", ")
}
