package loop_test

import (
	"strings"

	"github.com/loopd/loopd/internal/loop"
)

// compaction is the part of the audit that knows what was ever said.
type compaction struct {
	summarizer string
	said       map[int64]loop.Message // by event, as it was first said
	compacted  map[string]int         // by method, failed ones apart
	tries      int
	triedAt    int // iterations
}

func newCompaction() compaction {
	return compaction{said: map[int64]loop.Message{}, compacted: map[string]int{}, triedAt: -1}
}

// keep takes note of what was said.
func (a *audit) keep(s *loop.State) {
	m := s.Transcript()
	last := m[len(m)-1]
	if _, known := a.said[last.Seq]; !known {
		a.said[last.Seq] = last
	}
}

// compactedTo says what may be left out of a transcript, and what never is.
func (a *audit) compactedTo(b loop.Compacted, s *loop.State) {
	iterations := s.Head().Iterations
	a.tries++
	if a.tries > a.limits.Compactions || a.triedAt == iterations || a.final || a.cancelled {
		a.t.Fatalf("compaction %d of %d after iteration %d, the one before after %d", a.tries, a.limits.Compactions, iterations, a.triedAt)
	}
	a.triedAt = iterations
	if b.Failure != "" {
		a.compacted[string(b.Method)+" failed"]++
		return
	}
	a.compacted[string(b.Method)]++
	if b.Before-b.After < b.Before/5 {
		a.t.Fatalf("it frees too little: %+v", b)
	}
	read := map[int64]loop.Message{}
	text := ""
	for _, m := range s.Transcript() {
		read[m.Seq] = m
		if m.Source == loop.SourceGuard {
			text += m.Text()
		}
	}
	for seq, m := range a.said {
		kept := m.Source == loop.SourceInput || m.Iteration > iterations-3
		if kept && !same(m, read[seq]) {
			a.t.Fatalf("what was said in event %d is not what is read any more:\n%s", seq, diff(m, read[seq]))
		}
	}
	if len(s.Messages()) < len(a.said)+1 {
		a.t.Fatalf("people read %d messages, %d were said", len(s.Messages()), len(a.said))
	}
	for _, x := range s.Head().SideEffects {
		if b.Method == loop.CompactSummarize && (!strings.Contains(text, x.CallID) || !strings.Contains(text, x.ArgsHash[:12])) {
			a.t.Fatalf("the side effect %+v is not restated:\n%s", x, text)
		}
	}
}

// randomSummary is a model that sums up, well or badly.
func (h *history) randomSummary(c loop.CallModel) loop.ModelAnswered {
	out := loop.ModelAnswered{
		Call: c.Started.Call, Finish: rarely(h, loop.FinishDone, loop.FinishTruncated, loop.FinishRefused, loop.FinishToolCalls),
		Usage: loop.Usage{InputUncached: c.Started.InputBound / 3, Output: min(c.Started.MaxOutput, 50)},
	}
	text := pick(h, "All is well so far.", "", strings.Repeat("at great length ", 2000), "Orders were looked up.")
	out.Message = loop.Message{Role: loop.RoleAssistant, Parts: []loop.Part{loop.TextPart(text)}}
	out.Cost = c.Price.Cost(out.Usage)
	return out
}
