package loop

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// child is what a run knows of a child run.
type child struct {
	hold      grant
	settled   bool
	cancelled time.Time // when it was asked to end; zero: it was not
	answer    string
	changed   bool // it did something in the world, or may have
	fruitful  bool // it changed something, or brought an answer that no run of its agent had brought before
}

// minChild is the least that a child run is started with, whatever its model costs.
const minChild = MicroUSD * 100

// leastCost is what a child run needs to say anything at all: one call with a short
// answer.
func leastCost(c *call) USD {
	spec := c.spec.Child.Spec
	reads := prefixBound(spec.Definition) + 2*blockFraming + int64(len(c.asSent().Args))
	return max(minChild, spec.Price.Bound(reads, minFinal))
}

// handOutChild starts a child run with its share of what the parent has left.
func (g *gate) handOutChild(c *call, out CallHandedOut) {
	given := g.shareOf(c)
	spec := c.spec.Child.Spec
	work, wall := g.s.workDeadline(g.now).Sub(g.now), g.s.patience(g.now, spec.Limits.WallTime).Sub(g.now)
	if refusal := g.childRefusal(c, given, min(work, wall)); refusal != "" {
		g.refuse(c, OutcomeSkipped, "The agent was not started: "+refusal+".")
		return
	}
	g.spawned++
	g.granted = g.granted.plus(given)
	spec.Input, spec.Source, spec.Labels, spec.Traceparent = inputOf(c.asSent().Args), "run", g.s.spec.Labels, g.s.spec.Traceparent
	spec.Limits.Cost, spec.Limits.TotalTokens, spec.Limits.ModelCalls = given.cost, given.tokens, given.calls
	spec.Limits.OutputTokens = min(spec.Limits.OutputTokens, given.tokens)
	spec.Limits.Deadline, spec.Limits.WallTime = min(spec.Limits.Deadline, work), min(spec.Limits.WallTime, wall)
	spec.Limits.ChildDepth = g.s.spec.Limits.ChildDepth
	spec.Priority = g.s.spec.Priority // a child that waits holds its parent up
	spec.Parent = &ParentRef{RunID: g.s.run.ID, CallID: c.Call.ID, RootID: g.s.root(), Depth: g.s.childDepth()}
	out.ChildID, out.Child = childID(g.s.run, c.Call.ID), &spec
	out.Hold, out.Tokens, out.ModelCalls = given.cost, given.tokens, given.calls
	out.Until = g.now.Add(spec.Limits.WallTime + min(childMargin, g.s.lastStretch()/2))
	g.handed = append(g.handed, out)
}

// shareOf is what the child run of a call is granted: an equal share with those that
// the batch still asks for, or where that is too little to say anything, with as many
// of them as the money reaches for. The first ones are started then, not the last.
func (g *gate) shareOf(c *call) grant {
	limits := c.spec.Child.Spec.Limits
	for n := g.childrenToCome(c); ; n-- {
		given := g.s.childShare(c.spec.Child.HandOver, n, g.granted).within(limits)
		if n == 1 || given.cost >= min(leastCost(c), limits.Cost) {
			return given
		}
	}
}

// childRefusal is why no child run may be started for the call, or "".
func (g *gate) childRefusal(c *call, given grant, left time.Duration) string {
	l := g.s.spec.Limits
	active, total, same := g.s.calls.children(c)
	switch {
	case g.s.childDepth() > l.ChildDepth:
		return fmt.Sprintf("agents may start agents %d deep", l.ChildDepth)
	case total+g.spawned >= l.Children:
		return fmt.Sprintf("the run may start %d child runs and has started them", l.Children)
	case active+g.spawned >= l.ActiveChildren:
		return fmt.Sprintf("%d child runs may be active at once", l.ActiveChildren)
	case same >= maxSameChild:
		return "the same was asked of this agent before; what came of it stands"
	case g.s.calls.barrenVisits(c.Call.Name) >= maxBarrenVisits:
		return "it was asked again and again and brought nothing new; go on with what you have, or ask somebody else"
	case given.cost < min(leastCost(c), c.spec.Child.Spec.Limits.Cost) || given.tokens < 1 || given.calls < 1 || left < time.Second:
		return "not enough money, tokens, model calls or time is left for a run of its own"
	}
	return ""
}

// childDepth is how deep a child run of this run is.
func (s *State) childDepth() int {
	if s.spec.Parent != nil {
		return s.spec.Parent.Depth + 1
	}
	return 1
}

// grant is what a child run may spend out of its parent's budgets.
type grant struct {
	cost   USD
	tokens int64
	calls  int // model calls
}

func (a grant) plus(b grant) grant {
	return grant{a.cost.plus(b.cost), a.tokens + b.tokens, a.calls + b.calls}
}

// within is the grant as far as the child's own limits let it go.
func (a grant) within(l Limits) grant {
	return grant{min(a.cost, l.Cost), min(a.tokens, l.TotalTokens), min(a.calls, l.ModelCalls)}
}

// maxSameChild is how often one task may be given to an agent: once more than
// the first time, because the first may have failed by bad luck.
const maxSameChild = 2

// maxBarrenVisits is how often an agent may be come back to without anything new.
const maxBarrenVisits = 2

// childMargin is how long a child run is waited for that is out of time or was
// asked to end: a call that changes the world is let end as what it truly is.
const childMargin = 5 * time.Minute

// childShare is what one of n child runs may spend. Unless the child answers for
// the parent, one more call of the parent and its wrap-up stay paid for: the call
// with little output, since its results have been read.
func (s *State) childShare(handOver bool, n int, granted grant) grant {
	l, reads := s.spec.Limits, s.inputBound()+s.lastResults
	free := grant{
		cost:   l.Cost - s.spend.committed() - granted.cost,
		tokens: l.TotalTokens - s.spend.used().Total() - granted.tokens,
		calls:  l.ModelCalls - s.spend.allCalls() - granted.calls,
	}
	if !handOver {
		next := reads + minOutput + minResults
		free.cost -= s.chain.price().Bound(reads, minOutput).plus(s.chain.price().Bound(next, l.FinalOutput))
		free.tokens -= reads + minOutput + next + l.FinalOutput
		free.calls -= 2
	}
	return grant{max(0, free.cost/USD(n)), max(0, free.tokens/int64(n)), max(0, free.calls/n)}
}

// childrenToCome counts the child runs that the batch still asks for, c included.
func (g *gate) childrenToCome(c *call) int {
	n := 0
	for _, other := range g.s.calls.open() {
		if other == c || n > 0 && other.spec.Child != nil && (other.State == CallPlanned || other.State == CallApproved) {
			n++
		}
	}
	return max(1, n)
}

// children counts the run's child runs: those that have not ended, all, and those
// that were given the same task.
func (l *ledger) children(c *call) (active, total, same int) {
	for _, id := range l.order {
		t := l.byID[id]
		if t.child == nil {
			continue
		}
		total++
		if t.State == CallOffered {
			active++
		}
		if t.print == c.print {
			same++
		}
	}
	return active, total, same
}

// adopt books what is held for a child run.
func (s *State) adopt(c *call, e CallHandedOut) {
	c.ChildID, c.child = e.ChildID, &child{hold: grant{e.Hold, e.Tokens, e.ModelCalls}}
	s.spend.children = s.spend.children.plus(c.child.hold)
}

// applyChildFinished settles what was held with what was spent.
func (s *State) applyChildFinished(e ChildFinished, at time.Time) error {
	c, err := s.calls.get(e.CallID, CallOffered)
	if err != nil {
		return err
	}
	if c.child == nil || c.ChildID != e.ChildID {
		return fmt.Errorf("call %q has no child run %q: %w", e.CallID, e.ChildID, ErrImpossible)
	}
	s.spend.settleChild(c.child, e)
	effects := namedFor(e.ChildID, e.SideEffects)
	c.child.answer, s.calls.effects = e.Answer, append(s.calls.effects, effects...)
	outcome := OutcomePermanent
	switch e.State {
	case StateSucceeded:
		c.State, outcome = CallSucceeded, OutcomeOK
	case StateCancelled:
		c.State, outcome = CallCancelled, OutcomeCancelled
	default:
		c.State = CallFailed
	}
	c.Until = time.Time{}
	report := childReport(e, effects)
	content, cut := s.cutFor(c, report)
	c.Cut, c.Bytes = cut, int64(len(report))
	c.close(outcome, content, digest("result", string(outcome), e.Answer), at)
	c.child.changed = len(effects) > 0
	c.child.fruitful = s.calls.bringsNews(c)
	s.calls.touch(c)
	return nil
}

// bringsNews reports whether a child run that has just ended brought what no run of
// its agent had brought before: an answer, or anything that it did in the world.
func (l *ledger) bringsNews(c *call) bool {
	if c.child.changed || c.State != CallSucceeded {
		return c.child.changed
	}
	return !slices.ContainsFunc(l.order, func(id string) bool {
		other := l.byID[id]
		return other != c && other.child != nil && other.Call.Name == c.Call.Name && other.result == c.result
	})
}

// barrenVisits counts how often in a row an agent was come back to, and brought
// nothing new. Its first run is no coming back.
func (l *ledger) barrenVisits(agent string) int {
	n, first := 0, true
	for _, id := range l.order {
		c := l.byID[id]
		switch {
		case c.child == nil || c.Call.Name != agent || !c.child.settled:
			continue
		case c.child.fruitful:
			n = 0
		case !first:
			n++
		}
		first = false
	}
	return n
}

// settleChild frees the hold of a child run and books what it cost.
func (p *spend) settleChild(c *child, e ChildFinished) {
	c.settled = true
	p.children = grant{p.children.cost - c.hold.cost, p.children.tokens - c.hold.tokens, p.children.calls - c.hold.calls}
	p.childUsed += e.Tokens
	p.childUsage, p.cost = p.childUsage.Add(e.Usage), p.cost.Add(e.Cost)
	p.estimated = p.estimated.plus(e.Estimated)
	p.childCalls += e.ModelCalls
}

// childReport is what the parent's model reads of a child run.
func childReport(e ChildFinished, effects []SideEffectHead) string {
	report := map[string]any{"status": e.State, "answer": e.Answer, "cost_usd": e.Cost.Total().String()}
	if e.State != StateSucceeded {
		report["stop_reason"], report["message"], report["partial"] = e.Stop.Reason, e.Stop.Message, e.Partial
	}
	var did []map[string]any
	for _, x := range effects {
		did = append(did, map[string]any{"tool": x.Tool, "call": x.CallID, "state": x.State})
	}
	if did != nil {
		report["side_effects"] = did
	}
	return marshal(report)
}

// namedFor notes which run sent the calls.
func namedFor(childID string, effects []SideEffectHead) []SideEffectHead {
	named := make([]SideEffectHead, 0, len(effects))
	for _, e := range effects {
		if e.RunID == "" {
			e.RunID = childID
		}
		named = append(named, e)
	}
	return named
}

// lostChild gives up a child run that did not report: it is charged at its hold.
func (s *State) lostChild(c *call) ChildFinished {
	return ChildFinished{
		CallID: c.Call.ID, ChildID: c.ChildID, State: StateFailed, Estimated: c.child.hold.cost, Cost: LostCost(ErrorLost, c.child.hold.cost), Tokens: c.child.hold.tokens,
		Stop: Stop{Reason: InternalError, Message: "the child run did not report in time; it is charged at all that was held for it"},
	}
}

// unwind ends the run's child runs before the run itself may end, so that what
// they cost and did is in its books. Nil: there are none.
func (s *State) unwind(now time.Time, why string) Action {
	var facts []Body
	var until time.Time
	for _, id := range s.calls.batch {
		c := s.calls.byID[id]
		switch {
		case c.child == nil || c.State != CallOffered:
		case c.child.cancelled.IsZero():
			facts = append(facts, ChildCancelled{CallID: id, ChildID: c.ChildID, Reason: why})
		case !now.Before(s.inLifetime(c.child.cancelled.Add(childMargin))):
			facts = append(facts, s.lostChild(c))
		default:
			until = s.inLifetime(c.child.cancelled.Add(childMargin)) // the same for all of a batch, or nearly
		}
	}
	switch {
	case facts != nil:
		return Record{intent: intent{facts}}
	case !until.IsZero():
		return Suspend{intent{[]Body{Suspended{Reason: WaitChild, Until: until}}}}
	}
	return nil
}

func (l *ledger) applyChildCancelled(e ChildCancelled, at time.Time) error {
	c, err := l.get(e.CallID, CallOffered)
	if err != nil {
		return err
	}
	if c.child == nil {
		return fmt.Errorf("call %q has no child run: %w", e.CallID, ErrImpossible)
	}
	c.child.cancelled = at
	return nil
}

// root is the run that the whole tree began with.
func (s *State) root() string {
	if s.spec.Parent != nil {
		return s.spec.Parent.RootID
	}
	return s.run.ID
}

// inputOf is what a child run is asked: the argument "input", or all arguments.
func inputOf(args string) string {
	var given struct {
		Input string `json:"input"`
	}
	if json.Unmarshal([]byte(args), &given) == nil && given.Input != "" {
		return given.Input
	}
	return args
}

// childID is a UUID (version 8, RFC 9562) that follows from the call, so that the
// same call never starts two runs. It begins as its parent's id does, with the time
// at which the tree's root was created: what is ordered by id keeps a tree together.
func childID(run RunRef, callID string) string {
	sum := sha256.Sum256([]byte(digest("child", run.Tenant, run.ID, callID)))
	if begins, err := hex.DecodeString(strings.Replace(run.ID[:min(13, len(run.ID))], "-", "", 1)); err == nil && len(begins) == 6 {
		copy(sum[:], begins)
	}
	sum[6] = sum[6]&0x0f | 0x80
	sum[8] = sum[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// LiveChildren are the child runs that have not ended. When the run itself ends
// there are none, unless a guard crashed: those must be told to end.
func (s *State) LiveChildren() []string {
	var ids []string
	for _, id := range s.calls.order {
		if c := s.calls.byID[id]; c.child != nil && !c.child.settled {
			ids = append(ids, c.ChildID)
		}
	}
	return ids
}

// ChildReport is what the run, having ended, tells its parent; nil without one.
func (s *State) ChildReport() *Outgoing {
	if s.finished == nil || s.spec.Parent == nil {
		return nil
	}
	return &Outgoing{RunID: s.spec.Parent.RunID, Body: ChildFinished{
		CallID: s.spec.Parent.CallID, ChildID: s.run.ID, State: s.finished.State, Stop: s.finished.Stop,
		Answer: s.finished.Answer, Partial: s.finished.Partial, Usage: s.spend.usage.Add(s.spend.childUsage), Tokens: s.spend.used().Total(), Cost: s.spend.cost,
		Estimated: s.spend.estimated, ModelCalls: s.spend.allCalls(), SideEffects: s.calls.sideEffects(),
	}}
}
