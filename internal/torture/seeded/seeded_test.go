package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPatchesApply shows that each bug can still be made of the sources as they are.
// That each is caught takes minutes: make seeded-bugs.
func TestPatchesApply(t *testing.T) {
	t.Parallel()
	all, err := bugs()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 15 {
		t.Errorf("%d bugs, want 15", len(all))
	}
	for _, b := range all {
		if changed, err := apply("../../..", b.edits); err != nil || len(changed) == 0 || b.says == "" {
			t.Errorf("%s %q changes %d files: %v", b.id, b.says, len(changed), err)
		}
		if (b.faults == "") != (b.hidden != "") {
			t.Errorf("%s is to be found with faults %q, and hidden because %q", b.id, b.faults, b.hidden)
		}
	}
}

// TestPatch shows that a patch finds its place by its text, once.
func TestPatch(t *testing.T) {
	t.Parallel()
	says, edits := parsePatch("Two things\nare wrong.\n\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n@@ -7 +7 @@\n+zero\n three\n--- a/y\n+++ b/y\n@@ -1 +0 @@\n-four\n")
	if says != "Two things are wrong." {
		t.Errorf("says %q", says)
	}
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("x", "new\none\ntwo\nthree\n")
	write("y", "four\n")
	got, err := apply(dir, edits)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"x": "new\none\nTWO\nzero\nthree\n", "y": ""}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, text := range map[string]string{"gone": "three\n", "twice": "one\ntwo\none\ntwo\nthree\n"} {
		write("x", text)
		if got, err := apply(dir, edits); err == nil || !strings.Contains(err.Error(), "adapt the patch") {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

// TestNoSuchBug shows that a name which nothing has is told.
func TestNoSuchBug(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	if code := run(context.Background(), []string{"M99"}, &said); code != 2 || !strings.Contains(said.String(), `no bug "M99"`) {
		t.Errorf("code %d, %s", code, said.String())
	}
}
