package loop

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The model is told where to read on, and what it was shown ends there.
func TestCutReadsOn(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		content := strings.Repeat(rapid.StringN(1, 40, -1).Draw(t, "content"), 200)
		send := Send{Call: ToolCall{ID: "c3-1"}, Attempt: 2, MaxResult: rapid.Int64Range(512, 2000).Draw(t, "limit"), Reader: "read"}
		shown, full := send.Cut(content)
		if int64(len(content)) <= send.MaxResult {
			if shown != content || full != nil {
				t.Fatalf("a short result is cut: %q, %+v", shown, full)
			}
			return
		}
		at := strings.LastIndex(shown, "\n[cut by loopd: ")
		if at < 0 || int64(len(shown)) > send.MaxResult || shown[:at] != content[:at] || !strings.Contains(shown[at:], fmt.Sprintf(`read: {"call":"c3-1","offset":%d}`, at)) {
			t.Fatalf("%d bytes of %d: %q", len(shown), send.MaxResult, shown)
		}
		if *full != (FullResult{"c3-1", 2, content}) {
			t.Fatalf("kept is %+v", full)
		}
	})
	reads := Send{MaxResult: 512, Reader: "read", Spec: ToolSpec{Builtin: BuiltinReadResult}}
	if shown, full := reads.Cut(strings.Repeat("x", 600)); full != nil || strings.Contains(shown, "read:") || len(shown) > 512 {
		t.Errorf("what was read is kept again: %q", shown)
	}
}

// Results from outside are cut as those that loopd fetched, and kept in full.
func TestFullResultsFromOutside(t *testing.T) {
	t.Parallel()
	s := &State{lastResults: fullResults}
	c := &call{CallHead: CallHead{Call: ToolCall{ID: "c1-1"}, Attempt: 1}, spec: ToolSpec{MaxResultBytes: 600}}
	long := strings.Repeat("z", 700)
	if shown, cut := s.cutFor(c, long); !cut || len(shown) > 600 {
		t.Errorf("shown are %d bytes, cut: %v", len(shown), cut)
	}
	if _, cut := s.cutFor(c, "short"); cut {
		t.Error("a short result is cut")
	}
	if got := s.TakeFullResults(); len(got) != 1 || got[0] != (FullResult{"c1-1", 1, long}) || s.TakeFullResults() != nil {
		t.Errorf("taken: %+v", got)
	}
}
