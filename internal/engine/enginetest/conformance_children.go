package enginetest

import (
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
)

// childOf is the start of a child run of a lease's run.
func (c *conformer) childOf(lease loop.Lease) (loop.ChildStart, loop.RunRef) {
	ref := c.next()
	spec := Spec()
	spec.Input, spec.Source = "for a child", "run"
	spec.Parent = &loop.ParentRef{RunID: lease.Run.ID, CallID: "c1-1", RootID: lease.Run.ID, Depth: 1}
	return loop.ChildStart{ID: ref.ID, Spec: spec}, ref
}

// childWithBatch: a child run is there with the batch that starts it, and claimable.
func (c *conformer) childWithBatch() {
	lease, state := c.started()
	start, ref := c.childOf(lease)
	c.no(c.append(lease, state, engine.Batch{Children: []loop.ChildStart{start}}, loop.RateWaited{Provider: "fake"}), "append with a child")
	child := c.claimOne("w2")
	c.equal("claimed", ref, child.Run)
	got := c.load(child)
	c.equal("spec", start.Spec, got.Spec())
}

// fencedChild: a batch that is refused creates nothing.
func (c *conformer) fencedChild() {
	lease, state := c.started()
	start, _ := c.childOf(lease)
	thief := lease
	thief.Epoch--
	c.refused(c.append(thief, state, engine.Batch{Children: []loop.ChildStart{start}}, loop.RateWaited{Provider: "fake"}), loop.ErrLeaseLost, lease, 2)
	c.claimNone("w2", "the batch was refused")
}

// outgoing: a signal for another run is there with the batch that makes it true,
// wakes that run, and is dropped if it has ended.
func (c *conformer) outgoing() {
	parent, parentState := c.started()
	c.no(c.append(parent, parentState, engine.Batch{Release: true}, loop.Suspended{Reason: loop.WaitChild, Until: time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)}), "suspend the parent")
	other := c.create()
	lease := c.claimOne("w1")
	c.equal("claimed", other, lease.Run)
	state := c.load(lease)
	report := loop.CancelRequested{By: "parent run", Reason: "enough"}
	out := []loop.Outgoing{{RunID: parent.Run.ID, Body: report}, {RunID: c.next().ID, Body: report}}
	c.no(c.append(lease, state, engine.Batch{Outgoing: out}, loop.Claimed{Attempt: 1, Worker: "w1"}), "append with a signal for another")
	woken := c.claimOne("w2")
	c.equal("woken", parent.Run, woken.Run)
	signals := c.signals(woken)
	if len(signals) != 1 {
		c.Fatalf("%d signals wait, want one", len(signals))
	}
	c.equal("signal", loop.Body(report), signals[0].Body)
}
