package loop

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// gate judges the calls of one answer, each before any sibling starts. The
// order of its checks is the order in which a call can fail.
type gate struct {
	s    *State
	now  time.Time
	late bool // the wrap-up slice of the deadline has begun

	finishing *call // gives the final answer; nil: none does

	refused, asked []Body
	ended, handed  []Body
	sends          []Send
	starting       []*call
	expired        bool // something was not decided in time
	verify         *VerifyCall
	wait           Wait
	until          time.Time // earliest deadline of what is waited for
	unresolved     *Tripped  // a call stayed in doubt for too long

	spawned int // child runs that this batch starts, and what they are granted
	granted grant
}

// action is what follows from the judgement. What is certain is written first;
// then calls start; and only when nothing can be done the run waits.
func (g *gate) action() Action {
	if g.unresolved != nil {
		if a := g.s.unwind(g.now, "the run that started it cannot go on"); a != nil {
			return a
		}
		end := g.s.stopOn(*g.unresolved)
		end.AfterSignals = true
		return end
	}
	facts := slices.Concat(g.refused, g.ended, g.asked)
	starts := slices.Clone(g.handed)
	for _, send := range g.sends {
		starts = append(starts, CallBegun{CallID: send.Call.ID, Attempt: send.Attempt, Key: send.Key})
	}
	switch {
	case len(g.sends) > 0:
		return CallTools{intent{append(facts, starts...)}, g.sends, g.s.spec.Limits.ParallelCalls, g.s.workDeadline(g.now)}
	case len(starts)+len(facts) > 0: // a decision may have arrived in the moment in which it expires
		return Record{intent: intent{append(facts, starts...)}, AfterSignals: len(starts) > 0 || g.expired}
	case g.verify != nil:
		return *g.verify
	}
	return Suspend{intent{[]Body{Suspended{Reason: g.wait, Until: g.s.inLifetime(g.until)}}}}
}

// judge puts the call into one of the gate's lists.
func (g *gate) judge(c *call) {
	switch c.State {
	case CallPlanned:
		g.judgePlanned(c)
	case CallAwaitingApproval:
		if !g.now.Before(c.Until) {
			g.expired = true
			g.refuse(c, OutcomeDenied, "Nobody approved the call in time; it did not run.")
			return
		}
		g.waitFor(WaitApproval, c.Until)
	case CallApproved, CallStarted: // started: repeatable, and its worker was lost
		// An approver's edit may have made two calls equal that were not.
		twin := g.s.calls.done(c, g.starting)
		switch {
		case g.late && c.Attempt > 0: // it may have run, so it was not skipped
			g.refuse(c, OutcomeCancelled, c.neverAgain("the run is out of time"))
		case g.late:
			g.refuse(c, OutcomeSkipped, c.neverAgain("the run is out of time"))
		case twin != nil:
			g.refuse(c, OutcomeSkipped, duplicate(twin))
		case c.State == CallStarted && c.poll != nil: // a look at what a wait watches
			g.judgeWait(c)
		default:
			g.start(c)
		}
	case CallOffered:
		g.judgeOffered(c)
	case CallInDoubt:
		g.judgeDoubt(c)
	}
}

func (g *gate) judgePlanned(c *call) {
	l := g.s.spec.Limits
	twin, begun := g.s.calls.twin(c), len(g.sends)+len(g.asked)+len(g.handed)
	switch {
	case c.skip != "":
		g.refuse(c, OutcomeSkipped, c.skip)
	case !c.known:
		g.refuse(c, OutcomeUnknownTool, unknownTool(c.Call.Name, g.s.spec.Definition.Tools))
	case c.Call.Problem != "":
		g.refuse(c, OutcomeInvalidArgs, "The call did not run, its arguments are invalid: "+c.Call.Problem)
	case g.finishing == c:
		g.finish(c)
	case g.finishing != nil:
		g.refuse(c, OutcomeSkipped, "The call did not run: the final answer was given beside it.")
	case g.late:
		g.refuse(c, OutcomeSkipped, c.neverAgain("the run is out of time"))
	case g.s.iterations >= l.Iterations: // no later answer would read the result
		g.refuse(c, OutcomeSkipped, c.neverAgain("the run may make no more iterations"))
	case g.s.spend.allCalls() >= l.ModelCalls && g.s.spec.Definition.Acts["model_calls"] != VerdictPause: // nor would one here
		g.refuse(c, OutcomeSkipped, c.neverAgain("the run may send no more requests to models"))
	case g.s.calls.started+begun >= l.ToolCalls: // what is asked for may be approved
		g.refuse(c, OutcomeSkipped, fmt.Sprintf("The call did not run: the run may make %d tool calls and has made them.", l.ToolCalls))
	case c.spec.MaxCalls > 0 && g.s.calls.startedOf(c.Call.Name)+g.begunOf(c.Call.Name) >= c.spec.MaxCalls:
		g.refuse(c, OutcomeSkipped, fmt.Sprintf("The call did not run: calls to %s are capped at %d in a run, and the cap is reached. Go on with what you have.", c.Call.Name, c.spec.MaxCalls))
	case begun >= l.CallsPerAnswer:
		g.refuse(c, OutcomeSkipped, fmt.Sprintf("The call did not run: one answer may make %d tool calls. Make the rest later, if still needed.", l.CallsPerAnswer))
	case !c.Effect.Repeatable() && twin != nil:
		g.refuse(c, OutcomeSkipped, duplicate(twin))
	default:
		g.judgeApproval(c)
	}
}

// begunOf counts the calls of a tool that this batch begins, or asks approval for.
func (g *gate) begunOf(tool string) int {
	n := 0
	count := func(id string) {
		if g.s.calls.byID[id].Call.Name == tool {
			n++
		}
	}
	for _, send := range g.sends {
		count(send.Call.ID)
	}
	for _, b := range slices.Concat(g.asked, g.handed) {
		switch b := b.(type) {
		case ApprovalRequested:
			count(b.CallID)
		case CallHandedOut:
			count(b.CallID)
		}
	}
	return n
}

// judgeApproval asks a person, refuses what a person has refused before, or
// starts the call.
func (g *gate) judgeApproval(c *call) {
	reason := c.needsApproval()
	if reason == "" {
		g.start(c)
		return
	}
	if g.tooLate(c) {
		return
	}
	if denied := g.s.calls.denied(c); denied != "" {
		g.refuse(c, OutcomeDenied, denied)
		return
	}
	g.asked = append(g.asked, ApprovalRequested{CallID: c.Call.ID, ArgsHash: c.ArgsHash, Reason: reason, Until: g.s.patience(g.now, approvalWait)})
}

// tooLate refuses a call that nobody outside could still see, let alone decide on.
func (g *gate) tooLate(c *call) bool {
	if g.s.patience(g.now, time.Hour).Sub(g.now) >= time.Second {
		return false
	}
	g.refuse(c, OutcomeSkipped, c.neverAgain("the run is nearly at the end of its wall time, and nothing from outside can be waited for"))
	return true
}

// needsApproval is why a person must approve the call, or "".
func (c *call) needsApproval() string {
	switch {
	case c.Effect == Irreversible:
		return "the tool's effect is IRREVERSIBLE"
	case c.spec.Approval.Mode == ApprovalAlways:
		return "the tool always needs approval"
	}
	return c.Call.Approval
}

// start begins a call, here or elsewhere.
func (g *gate) start(c *call) {
	g.starting = append(g.starting, c)
	if !g.handOut(c) {
		g.send(c)
	}
}

func (g *gate) refuse(c *call, o Outcome, content string) {
	g.refused = append(g.refused, CallRefused{CallID: c.Call.ID, Outcome: o, Content: content})
}

func (g *gate) send(c *call) {
	g.sends = append(g.sends, Send{
		Call: c.asSent(), Spec: c.spec, Attempt: c.Attempt + 1, Key: c.Call.Key(g.s.run), MaxResult: g.s.resultShare(c.spec),
		Reader: g.s.readsResults(),
	})
}

// waitFor notes what is waited for. The most pressing reason is the one that is
// shown, the earliest deadline the one that wakes.
func (g *gate) waitFor(w Wait, until time.Time) {
	pressing := []Wait{WaitApproval, WaitInDoubt, WaitResult, WaitChild, WaitTimer}
	if g.wait == "" || slices.Index(pressing, w) < slices.Index(pressing, g.wait) {
		g.wait = w
	}
	if g.until.IsZero() || until.Before(g.until) {
		g.until = until
	}
}

// resultShare is how much of a result the model may see: the tool's own cap, or
// the call's share of what the budget has room for.
func (s *State) resultShare(spec ToolSpec) int64 {
	share := s.lastResults / int64(max(1, len(s.calls.batch)))
	return max(minResult, min(spec.MaxResultBytes, share))
}

// minResult is the least of a result that the model sees, in bytes: enough to
// learn what went wrong.
const minResult = 512

// duplicate tells the model about the earlier call with the same arguments.
func duplicate(twin *call) string {
	if twin.State == CallSucceeded {
		return "The call was not sent again: the same call (" + twin.Call.ID + ") has already succeeded. Its result was: " + excerpt(twin.Result, minResult)
	}
	return "The call was not sent: the same call (" + twin.Call.ID + ") is under way or its outcome is unknown. Do not repeat it."
}

// unknownTool tells the model which tools come closest.
func unknownTool(name string, tools []ToolSpec) string {
	names := make([]string, 0, len(tools))
	for _, t := range tools {
		names = append(names, t.Name)
	}
	if len(names) == 0 {
		return "There is no tool " + excerpt(name, 64) + ": this agent has no tools. Answer in text."
	}
	return fmt.Sprintf("There is no tool %q. The closest: %s.", excerpt(name, 64), strings.Join(closest(name, names), ", "))
}

// closest are the three names that look most like one.
func closest(name string, names []string) []string {
	away := make(map[string]int, len(names))
	for _, n := range names {
		away[n] = distance(name, n)
	}
	names = slices.SortedStableFunc(slices.Values(names), func(a, b string) int { return away[a] - away[b] })
	return names[:min(3, len(names))]
}

// distance is the Levenshtein distance of two tool names, on their first 64 bytes.
func distance(a, b string) int {
	a, b = a[:min(len(a), 64)], b[:min(len(b), 64)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
