package loop_test

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/loopd/loopd/internal/loop"
)

// say writes what an event of an intent says.
func (s *script) say(b loop.Body) {
	switch b := b.(type) {
	case loop.ModelStarted:
		purpose := ""
		if b.Purpose != "" {
			purpose = " " + b.Purpose
		}
		s.printf("call_model %d%s input<=%d output<=%d hold=%s", b.Call, purpose, b.InputBound, b.MaxOutput, b.Hold)
	case loop.FellBack:
		s.printf("fall_back %s to %s class=%q %q say=%q", b.From, b.To, b.Class, b.Message, b.Say)
	case loop.ModelFailed:
		s.printf("model_failed %d %s cost=%s", b.Call, b.Class, b.Cost.Total())
	case loop.CallRefused:
		s.printf("refuse %s %s %q", b.CallID, b.Outcome, b.Content)
	case loop.ApprovalRequested:
		s.printf("ask_approval %s until=+%s %q", b.CallID, b.Until.Sub(s.now), b.Reason)
	case loop.CallBegun: // said with the send
	case loop.CallHandedOut:
		s.printf("hand_out %s attempt=%d until=+%s", b.CallID, b.Attempt, b.Until.Sub(s.now))
		if b.Child != nil {
			s.printf("  child %s hold=%s tokens=%d depth=%d input=%q", b.ChildID, b.Hold, b.Tokens, b.Child.Parent.Depth, b.Child.Input)
		}
	case loop.CallFinished:
		s.printf("finished %s %s %q", b.CallID, b.Outcome, b.Content)
	case loop.ChildCancelled:
		s.printf("cancel_child %s %q", b.CallID, b.Reason)
	case loop.ChildFinished:
		s.printf("give_up_child %s cost=%s", b.CallID, b.Cost.Total())
	case loop.DoubtTold:
		s.printf("tell_doubt %s", b.CallID)
	case loop.CallDoubted:
		s.printf("in_doubt %s until=+%s %q", b.CallID, b.Until.Sub(s.now), b.Reason)
	case loop.Tripped:
		s.tripped(b)
	case loop.AnswerAccepted:
		s.printf("accepted")
	case loop.AnswerRejected:
		s.printf("rejected by %s final=%v %q", b.By, b.Final, b.Problems)
	case loop.Compacted:
		s.printf("compact %s before=%d after=%d cleared=%v events=%d-%d failure=%q", b.Method, b.Before, b.After, b.Cleared, b.FromSeq, b.ToSeq, b.Failure)
	case loop.Suspended:
		s.printf("suspend %s until=+%s", b.Reason, b.Until.Sub(s.now))
	case loop.Finished:
		s.finished(b)
	default:
		s.t.Fatalf("unexpected intent %#v", b)
	}
}

func (s *script) tripped(b loop.Tripped) {
	instead := ""
	if b.Default != "" {
		instead = " instead of " + string(b.Default)
	}
	s.printf("trip %s %s%s %s observed=%q limit=%q evidence=%d", b.Guard, b.Verdict, instead, b.Reason, b.Observed, b.Limit, len(b.Evidence))
	if !s.explain {
		return
	}
	for _, e := range b.Evidence {
		s.printf("  proof %d %s %s %q %s %q %s %q", e.Iteration, e.CallID, e.Tool, e.Args, e.ArgsHash, e.Result, e.ResultHash, e.Note)
	}
	for _, g := range b.Gauges {
		s.printf("  gauge %s %v of %v %s", g.Guard, g.Observed, g.Limit, g.Unit)
	}
}

func (s *script) finished(b loop.Finished) {
	h := s.state.Head()
	s.printf("finish %s %s guard=%q observed=%q limit=%q evidence=%d", b.State, b.Stop.Reason, b.Stop.Guard, b.Stop.Observed, b.Stop.Limit, len(b.Stop.Evidence))
	s.printf("  message %q", b.Stop.Message)
	unverified := ""
	if b.Unverified {
		unverified = " unverified"
	}
	s.printf("  answer %q partial=%v%s", b.Answer, b.Partial, unverified)
	s.printf("  iterations=%d model_calls=%d tool_calls=%d attempts=%d cost=%s estimated=%s", h.Iterations, h.ModelCalls, h.ToolCalls, h.Attempts, h.Cost.Total(), h.Estimated)
}

// tell writes the messages of a request that no request before had.
func (s *script) tell(r loop.ModelRequest) {
	natives := 0
	for _, m := range r.Messages {
		if m.Native != nil {
			natives++
		}
		for _, p := range m.Parts {
			part := fmt.Sprint(m.Seq, p.Text)
			if p.Result != nil {
				part = fmt.Sprint(m.Seq, *p.Result)
			}
			if s.told[part] {
				continue
			}
			s.told[part] = true
			switch {
			case p.Result != nil:
				s.printf("  %s: %s %s %q", m.Source, p.Result.CallID, p.Result.Outcome, short(p.Result.Content))
			case m.Source == loop.SourceGuard || m.Source == loop.SourceUser:
				s.printf("  %s: %q", m.Source, p.Text)
			}
		}
	}
	if model := r.Provider + "/" + r.Model; model != s.spec.Definition.Model {
		s.printf("  asks %s, native messages: %d", model, natives)
	}
	if r.OutputSchema != nil {
		s.printf("  held to %s", r.OutputSchema)
	}
}

func short(text string) string {
	if len(text) <= 160 {
		return text
	}
	return text[:160] + "..."
}

// facts is a text of so many bytes that says nothing twice.
func facts(size int) string {
	var b strings.Builder
	for n := 1; b.Len() < size; n++ {
		h := fnv.New64a()
		_, _ = fmt.Fprint(h, n)
		fmt.Fprintf(&b, "Order %d went to %x. ", n*n, h.Sum64())
	}
	return b.String()[:size]
}
