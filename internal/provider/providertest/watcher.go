package providertest

import (
	"strings"
	"testing"
	"unicode"

	"github.com/loopd/loopd/internal/loop"
)

// watcher is somebody who watches an answer being written.
type watcher struct {
	texts map[loop.PartKind]*strings.Builder
	tools []string
}

func newWatcher() *watcher { return &watcher{texts: map[loop.PartKind]*strings.Builder{}} }

// emit is for loop.ModelRequest.
func (w *watcher) emit(d loop.Delta) {
	if w.texts[d.Kind] == nil {
		w.texts[d.Kind] = &strings.Builder{}
	}
	w.texts[d.Kind].WriteString(d.Text)
	if d.Tool != "" {
		w.tools = append(w.tools, d.Tool)
	}
}

func (w *watcher) saw(kind loop.PartKind) string {
	if b := w.texts[kind]; b != nil {
		return b.String()
	}
	return ""
}

// check compares what was seen with what the answer says in the end. Of an answer
// that was not streamed there may be nothing to see.
func (w *watcher) check(t *testing.T, m loop.Message, streamed bool) {
	t.Helper()
	if !streamed && len(w.texts) == 0 {
		return
	}
	if got := w.saw(loop.PartText); got != m.Text() {
		t.Errorf("the deltas of text say %q, the answer says %q", got, m.Text())
	}
	// Adapters join pieces of reasoning with white space of their own.
	if got, want := squeeze(w.saw(loop.PartReasoning)), squeeze(joined(m, loop.PartReasoning)); got != want {
		t.Errorf("the deltas of reasoning say %q, the answer says %q", got, want)
	}
	if got := w.saw(loop.PartRefusal); got != "" && got != joined(m, loop.PartRefusal) {
		t.Errorf("the deltas of the refusal say %q, the answer says %q", got, joined(m, loop.PartRefusal))
	}
	var names, args strings.Builder
	for _, c := range m.Calls() {
		names.WriteString(c.Name + " ")
		args.WriteString(c.Args)
	}
	if got := strings.Join(append(w.tools, ""), " "); got != names.String() {
		t.Errorf("the deltas name the tools %q, the answer %q", got, names.String())
	}
	// A call without arguments has an empty object in the answer, perhaps nothing on the wire.
	if got, want := strings.ReplaceAll(w.saw(loop.PartToolCall), "{}", ""), strings.ReplaceAll(args.String(), "{}", ""); got != want {
		t.Errorf("the deltas of arguments say %q, the answer says %q", got, want)
	}
}

// joined is the text of all parts of a kind.
func joined(m loop.Message, kind loop.PartKind) string {
	var b strings.Builder
	for _, p := range m.Parts {
		if p.Kind == kind {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// squeeze takes white space out.
func squeeze(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, s)
}
