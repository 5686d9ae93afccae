package loop

import (
	"slices"
	"strconv"
	"strings"
)

// FullResult is the whole text of a result of which the model was shown a part. It
// is kept beside the journal, so that it can be read on.
type FullResult struct {
	CallID  string
	Attempt int
	Text    string // valid UTF-8
}

// CutResult shortens a tool result to at most limit bytes, keeping its start and
// saying what was left out. limit is at least 256.
func CutResult(content string, limit int64) (string, bool) { return cutResult(content, limit, "", "") }

// cutResult is CutResult for a model that can read on with a tool; without one it
// can only ask for less.
func cutResult(content string, limit int64, reader, callID string) (string, bool) {
	if int64(len(content)) <= limit {
		return content, false
	}
	note := func(shown int) string {
		how := "ask for less, or for a narrower part"
		if reader != "" {
			how = "the first " + strconv.Itoa(shown) + " are shown. " + readOn(reader, callID, shown)
		}
		return "\n[cut by loopd: " + strconv.Itoa(len(content)) + " bytes in all; " + how + "]"
	}
	keep := max(0, int(limit)-len(note(len(content)))) // no count of bytes is longer than that of all
	shown := strings.ToValidUTF8(content[:keep], "")
	return shown + note(len(shown)), true
}

// Cut is what the model reads of the result of the call, and the whole of it if that
// is more. The reader's own results are not kept again: they are parts of others.
func (s Send) Cut(content string) (shown string, full *FullResult) {
	reader := s.Reader
	if s.Spec.Builtin == BuiltinReadResult {
		reader = ""
	}
	shown, cut := cutResult(content, s.MaxResult, reader, s.Call.ID)
	if !cut || s.Spec.Builtin == BuiltinReadResult {
		return shown, nil
	}
	return shown, &FullResult{CallID: s.Call.ID, Attempt: s.Attempt, Text: content}
}

// cutFor is what the model reads of a result that came from outside. The whole is
// kept for TakeFullResults.
func (s *State) cutFor(c *call, content string) (shown string, cut bool) {
	shown, cut = cutResult(content, s.resultShare(c.spec), s.readsResults(), c.Call.ID)
	if cut {
		s.full = append(s.full, FullResult{CallID: c.Call.ID, Attempt: c.Attempt, Text: content})
	}
	return shown, cut
}

// TakeFullResults returns what the results from outside were in full that the model
// was shown a part of, since it was last asked.
func (s *State) TakeFullResults() []FullResult {
	full := slices.Clone(s.full)
	s.full = nil
	return full
}
