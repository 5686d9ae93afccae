package loop

import (
	"encoding/json"
	"time"
)

// How a call in doubt is verified. A frozen sender may still wake after its lease,
// so that not finding the key proves nothing before the quarantine has passed:
// the tool's timeout or a worker's lease, whichever is longer, and a margin.
const (
	quarantineLease  = 15 * time.Second
	quarantineMargin = 30 * time.Second
	verifyEvery      = 5 * time.Minute
)

// quarantine is how long a call must be in doubt before not finding it counts.
func quarantine(spec ToolSpec) time.Duration {
	return max(spec.Timeout, quarantineLease) + quarantineMargin
}

// judgeDoubt has the call verified if a tool can tell, tells the model if the
// agent wants that, or waits for a person. What happened to an IRREVERSIBLE call
// is for a person alone to say.
func (g *gate) judgeDoubt(c *call) {
	verifier, can := g.s.spec.Definition.Tool(c.spec.Verify)
	can = can && verifier.Effect == ReadOnly && c.Effect != Irreversible
	switch {
	case can && !g.now.Before(c.verify) && g.verify != nil: // its time comes with the next look
		g.waitFor(WaitInDoubt, g.now)
	case can && !g.now.Before(c.verify):
		g.verify = &VerifyCall{CallID: c.Call.ID, Doubted: c.spec, Age: g.now.Sub(c.doubted), Send: Send{
			Call:    ToolCall{ID: c.Call.ID, Name: verifier.Name, Args: marshal(map[string]any{"key": c.Key, "tool": c.Call.Name, "arguments": json.RawMessage(objectOr(c.asSent().Args))})},
			Spec:    verifier,
			Attempt: c.Attempt, Key: c.Key + ":verify", MaxResult: fullResults,
		}}
	case g.s.spec.Definition.OnDoubt == DoubtTellsModel && (!can || g.now.Sub(c.doubted) > quarantine(c.spec)):
		g.ended = append(g.ended, DoubtTold{
			CallID:  c.Call.ID,
			Content: "The outcome of the call is unknown: it may have taken effect. Do not repeat it. Check the state first, or say that it is not certain.",
		})
	case !g.now.Before(c.Until):
		g.unresolved = &Tripped{
			Guard: "in_doubt", Reason: InDoubtUnresolved, Limit: c.Until.Sub(c.doubted).Round(time.Second).String(),
			Message:  "nobody said whether call " + c.Call.ID + " took effect",
			Evidence: []Evidence{{CallID: c.Call.ID, Tool: c.Call.Name, Args: excerpt(c.Call.Args, evidenceExcerpt), Note: c.doubtNote}},
		}
	case can:
		g.waitFor(WaitInDoubt, earliest(c.verify, c.Until))
	default:
		g.waitFor(WaitInDoubt, c.Until)
	}
}

// objectOr is args if it is JSON, else nothing.
func objectOr(args string) string {
	if json.Valid([]byte(args)) {
		return args
	}
	return "null"
}

// Verified is the event for what the tool that can tell has said: a JSON object
// with took_effect, and result for the model if it did.
func (a VerifyCall) Verified(reply ToolReply, now time.Time) CallVerified {
	spec := a.Doubted
	out := CallVerified{CallID: a.CallID, Next: now.Add(verifyEvery)}
	if left := quarantine(spec) - a.Age; left > 0 {
		out.Next = now.Add(left)
	}
	var said struct {
		TookEffect *bool           `json:"took_effect"`
		Result     json.RawMessage `json:"result"`
	}
	switch err := json.Unmarshal([]byte(reply.Content), &said); {
	case reply.Outcome != OutcomeOK:
		out.Message = "the tool that can tell failed: " + excerpt(reply.Content, evidenceExcerpt)
	case err != nil || said.TookEffect == nil:
		out.Message = "the tool that can tell did not say took_effect: " + excerpt(reply.Content, evidenceExcerpt)
	case *said.TookEffect:
		out.Found, out.Next = true, time.Time{}
		out.Result, _ = CutResult(textOf(said.Result), spec.MaxResultBytes)
	case a.Age >= quarantine(spec):
		out.Settled, out.Next = true, time.Time{}
	}
	return out
}

// textOf is a JSON string as text, and any other value as its JSON.
func textOf(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	return string(raw)
}

func (l *ledger) applyVerified(e CallVerified, at time.Time) error {
	c, err := l.get(e.CallID, CallInDoubt)
	if err != nil {
		return err
	}
	c.verify = e.Next
	switch {
	case e.Found:
		return l.applyResolved(CallResolved{CallID: e.CallID, Resolution: ResolvedSucceeded, Result: e.Result, By: c.spec.Verify}, at)
	case e.Settled:
		return l.applyResolved(CallResolved{CallID: e.CallID, Resolution: ResolvedNotExecuted, By: c.spec.Verify}, at)
	}
	return nil
}

func (l *ledger) applyTold(e DoubtTold) error {
	c, err := l.get(e.CallID, CallInDoubt)
	if err != nil {
		return err
	}
	c.told, c.Result, c.result = true, e.Content, digest("result", string(OutcomeUnknown), e.Content)
	l.touch(c)
	return nil
}
