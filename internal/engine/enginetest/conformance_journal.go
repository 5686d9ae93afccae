package enginetest

import (
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
)

func (c *conformer) appendIsRead() {
	lease, state := c.started()
	tool := loop.ToolCall{ID: "c1-1", Name: "look", Args: `{"q":"ключ\u0000","n":9007199254740993}`}
	answer := loop.ModelAnswered{
		Call: 1, Finish: loop.FinishToolCalls, Usage: Usage(), Cost: state.Spec().Price.Cost(Usage()),
		Message: loop.Message{
			Role: loop.RoleAssistant, Source: loop.SourceModel,
			Parts:  []loop.Part{loop.TextPart("a\x00b <&> \U0001F600"), {Kind: loop.PartToolCall, Call: &tool}},
			Native: &loop.Native{Wire: "test", JSON: []byte(`{"b":1,"a":1.0}`)},
		},
	}
	begun := loop.ModelStarted{Call: 1, Model: ModelRef, MaxOutput: 100, InputBound: 2000, Hold: loop.MilliUSD}
	c.no(c.append(lease, state, engine.Batch{Intent: true}, begun), "append the intent")
	c.no(c.append(lease, state, engine.Batch{}, answer, loop.CallRefused{CallID: "c1-1", Outcome: loop.OutcomeUnknownTool, Content: "no"}), "append the record")

	j, err := c.store.Load(c.ctx, lease)
	c.no(err, "load")
	var bodies []loop.Body
	for i, e := range j.Events {
		c.equal("sequence number", int64(i+1), e.Seq)
		if i > 0 {
			c.equal("epoch", lease.Epoch, e.Epoch)
			bodies = append(bodies, e.Body)
		}
		if e.At.IsZero() || time.Since(e.At) > patience {
			c.Fatalf("event %d happened at %v", e.Seq, e.At)
		}
	}
	c.equal("journal", []loop.Body{
		loop.Claimed{Attempt: 1, Worker: "w1"}, begun, answer,
		loop.CallRefused{CallID: "c1-1", Outcome: loop.OutcomeUnknownTool, Content: "no"},
	}, bodies)
}

func (c *conformer) oldEpoch() {
	old, state := c.started()
	c.no(c.append(old, state, engine.Batch{Release: true}, loop.Suspended{Reason: loop.WaitDrain}), "release")
	renewed := c.claimOne("w1")
	if renewed.Epoch <= old.Epoch {
		c.Fatalf("epoch %d follows %d", renewed.Epoch, old.Epoch)
	}
	claimed := loop.Claimed{Attempt: 2, Worker: "w1"}
	c.refused(c.append(old, c.load(old), engine.Batch{}, claimed), loop.ErrLeaseLost, renewed, 3)
	c.refused(c.append(old, c.load(old), engine.Batch{Release: true}, claimed), loop.ErrLeaseLost, renewed, 3)
	c.no(c.append(renewed, c.load(renewed), engine.Batch{}, claimed), "append under the new epoch")
}

func (c *conformer) otherOwner() {
	lease, state := c.started()
	thief := lease
	thief.Owner = "w2"
	c.refused(c.append(thief, c.load(lease), engine.Batch{Release: true}, loop.Suspended{Reason: loop.WaitDrain}), loop.ErrLeaseLost, lease, 2)
	c.no(c.append(lease, state, engine.Batch{}, loop.CancelRequested{}), "append as the owner")
}

func (c *conformer) wrongSeq() {
	lease, state := c.started()
	event := func(seq int64) engine.Batch {
		e := loop.Event{Seq: seq, At: time.Now(), Epoch: lease.Epoch, Body: loop.CancelRequested{}}
		return engine.Batch{Events: []loop.Event{e}, Head: state.Head()}
	}
	c.refused(c.store.Append(c.ctx, lease, event(4)), nil, lease, 2) // a gap
	c.refused(c.store.Append(c.ctx, lease, event(2)), nil, lease, 2) // taken
	c.no(c.store.Append(c.ctx, lease, event(3)), "append the next event")
}

func (c *conformer) intentSignalled() {
	lease, state := c.started()
	begun := loop.ModelStarted{Call: 1, Model: ModelRef, MaxOutput: 10, InputBound: 10, Hold: loop.MicroUSD}
	c.signal(lease.Run, loop.CancelRequested{By: "ann"})

	c.refused(c.append(lease, state, engine.Batch{Intent: true}, begun), loop.ErrSignalled, lease, 2)
	refs, err := c.store.Signalled(c.ctx, "w1")
	c.no(err, "list signalled runs")
	c.equal("signalled runs", []loop.RunRef{lease.Run}, refs)

	state = c.load(lease)
	signals := c.signals(lease)
	c.no(c.append(lease, state, engine.Batch{SignalsSeen: signals[0].ID}, signals[0].Body), "take the signal: no intent")
	c.no(c.append(lease, state, engine.Batch{Intent: true, SignalsSeen: signals[0].ID}, begun), "append an intent that has seen it")
}

func (c *conformer) signalsDeleted() {
	lease, state := c.started()
	first := loop.CallResolved{CallID: "c1-1", Resolution: loop.ResolvedRetry, By: "ann"}
	second := loop.CancelRequested{Reason: "enough"}
	c.signal(lease.Run, first)
	c.signal(lease.Run, second)

	signals := c.signals(lease)
	if len(signals) != 2 || signals[0].ID >= signals[1].ID {
		c.Fatalf("signals are %v, want two with rising ids", signals)
	}
	c.equal("signals", []loop.Body{first, second}, []loop.Body{signals[0].Body, signals[1].Body})
	j, err := c.store.Load(c.ctx, lease)
	c.no(err, "load")
	c.equal("signals of Load", signals, j.Signals)

	c.no(c.append(lease, state, engine.Batch{SignalsSeen: signals[0].ID}, loop.CancelRequested{}), "append what has seen the first")
	c.equal("signals left", signals[1:], c.signals(lease))
	refs, err := c.store.Signalled(c.ctx, "w1")
	c.no(err, "list signalled runs")
	c.equal("signalled runs", 1, len(refs))

	c.no(c.append(lease, state, engine.Batch{SignalsSeen: signals[1].ID}, loop.Suspended{Reason: loop.WaitBackoff}), "append what has seen both")
	c.equal("signals left", 0, len(c.signals(lease)))
	refs, err = c.store.Signalled(c.ctx, "w1")
	c.no(err, "list signalled runs")
	c.equal("signalled runs", 0, len(refs))
}

func (c *conformer) callHeads() {
	lease, state := c.started()
	call := loop.ToolCall{ID: "c1-1", Name: "look", Args: "{}"}
	begun := loop.ModelStarted{Call: 1, Model: ModelRef, MaxOutput: 10, InputBound: 10, Hold: loop.MicroUSD}
	answer := loop.ModelAnswered{Call: 1, Finish: loop.FinishToolCalls, Message: loop.Message{
		Role: loop.RoleAssistant, Parts: []loop.Part{{Kind: loop.PartToolCall, Call: &call}},
	}}
	c.no(c.append(lease, state, engine.Batch{}, begun), "start the model call")
	c.no(c.append(lease, state, engine.Batch{}, answer), "plan the call")
	c.no(c.append(lease, state, engine.Batch{}, loop.CallRefused{CallID: "c1-1", Outcome: loop.OutcomeUnknownTool, Content: "no \x00 such tool"}), "refuse the call")
}
