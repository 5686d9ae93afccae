package enginetest

import (
	"errors"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
)

const budgetName = "daily"

// budget sets a budget in which half a dollar is drawn exactly: larger than any chunk.
func (c *conformer) budget(name string, amount loop.USD) {
	c.Helper()
	c.no(c.store.SetBudget(c.ctx, "acme", name, amount, loop.VerdictPause), "set a budget")
}

// draw draws for a run, and fails the test on an error.
func (c *conformer) draw(lease loop.Lease, amount loop.USD) *loop.AccountRefused {
	c.Helper()
	refused, err := c.store.Draw(c.ctx, lease, loop.AccountNeed{Agent: Spec().Agent, Amount: amount})
	c.no(err, "draw")
	return refused
}

// drawn draws what must be there.
func (c *conformer) drawn(lease loop.Lease, amount loop.USD) {
	c.Helper()
	if refused := c.draw(lease, amount); refused != nil {
		c.Fatalf("a draw of %s was refused: %+v", amount, refused)
	}
}

// standing checks what was spent and what is held.
func (c *conformer) standing(name string, spent, held loop.USD) {
	c.Helper()
	gotSpent, gotHeld, err := c.store.Standing(c.ctx, "acme", name)
	c.no(err, "read the budget")
	c.equal("spent and held of "+name, [2]loop.USD{spent, held}, [2]loop.USD{gotSpent, gotHeld})
}

// spend makes a run's first model call with a hold and what it costs.
func (c *conformer) spend(lease loop.Lease, state *loop.State, hold, cost loop.USD) {
	c.Helper()
	c.no(c.append(lease, state, engine.Batch{}, starts(hold)), "hold")
	c.no(c.append(lease, state, engine.Batch{}, loop.ModelFailed{Call: 1, Class: loop.ErrorServer, Cost: loop.Cost{Output: cost}}), "settle")
}

func starts(hold loop.USD) loop.Body {
	return loop.ModelStarted{Call: 1, Model: ModelRef, MaxOutput: 10, InputBound: 10, Hold: hold}
}

func (c *conformer) suspend(lease loop.Lease, state *loop.State, why loop.Wait) {
	c.Helper()
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	c.no(c.append(lease, state, engine.Batch{Release: true}, loop.Suspended{Reason: why, Until: until}), "suspend")
}

func (c *conformer) drawsFreely() {
	lease, state := c.started()
	c.no(c.store.SetBudget(c.ctx, "another tenant", budgetName, 0, loop.VerdictStop), "set a budget of another tenant")
	c.drawn(lease, 1000*loop.OneUSD)
	c.spend(lease, state, loop.MilliUSD, loop.MilliUSD)
}

func (c *conformer) drawsOnce() {
	c.budget(budgetName, loop.OneUSD)
	first, _ := c.started()
	second, _ := c.started()
	third, _ := c.started()
	c.drawn(first, loop.OneUSD/2)
	c.drawn(first, loop.OneUSD/2) // it has that already
	c.standing(budgetName, 0, loop.OneUSD/2)
	c.drawn(second, loop.OneUSD/2)
	want := &loop.AccountRefused{Budget: "budgets/daily", Needed: loop.MilliUSD, Limit: loop.OneUSD, Committed: loop.OneUSD, Act: loop.VerdictPause}
	c.equal("refusal", want, c.draw(third, loop.MilliUSD))
	want.Needed, want.Committed = loop.OneUSD/2+1, loop.OneUSD/2 // its own half is not in its way
	c.equal("refusal", want, c.draw(second, loop.OneUSD/2+1))
	c.standing(budgetName, 0, loop.OneUSD)
}

func (c *conformer) drawsAgain() {
	c.budget(budgetName, loop.OneUSD)
	first, state := c.started()
	second, _ := c.started()
	c.drawn(first, loop.OneUSD)
	c.spend(first, state, loop.OneUSD, loop.OneUSD/4)
	c.standing(budgetName, loop.OneUSD/4, loop.OneUSD*3/4)
	if c.draw(second, loop.OneUSD/2) == nil {
		c.Fatal("what a run has drawn and still may spend was drawn by another")
	}
	c.suspend(first, state, loop.WaitApproval)
	c.standing(budgetName, loop.OneUSD/4, 0)
	c.drawn(second, loop.OneUSD*3/4)
	c.standing(budgetName, loop.OneUSD/4, loop.OneUSD*3/4)
}

func (c *conformer) drawsAllOrNothing() {
	c.budget("a", loop.OneUSD)
	c.budget("b", loop.OneUSD/2)
	c.budget("c", loop.OneUSD)
	lease, _ := c.started()
	if refused := c.draw(lease, loop.OneUSD); refused == nil || refused.Budget != "budgets/b" {
		c.Fatalf("drew more than there is in a budget: %+v", refused)
	}
	for _, name := range []string{"a", "b", "c"} {
		c.standing(name, 0, 0)
	}
	c.drawn(lease, loop.OneUSD/2)
	for _, name := range []string{"a", "b", "c"} {
		c.standing(name, 0, loop.OneUSD/2)
	}
}

func (c *conformer) drawFenced() {
	c.budget(budgetName, loop.OneUSD)
	old, state := c.started()
	c.no(c.append(old, state, engine.Batch{Release: true}, loop.Suspended{Reason: loop.WaitDrain}), "release")
	renewed := c.claimOne("w2")
	if _, err := c.store.Draw(c.ctx, old, loop.AccountNeed{Amount: loop.OneUSD / 2}); !errors.Is(err, loop.ErrLeaseLost) {
		c.Fatalf("draw by an old epoch: %v, want a lost lease", err)
	}
	c.standing(budgetName, 0, 0)
	c.drawn(renewed, loop.OneUSD/2)
}

func (c *conformer) holdUndrawn() {
	c.budget(budgetName, loop.OneUSD)
	lease, state := c.started()
	c.drawn(lease, loop.OneUSD/2)
	c.refused(c.append(lease, state, engine.Batch{Intent: true}, starts(loop.OneUSD/2+1)), loop.ErrRefused, lease, 2)
	c.no(c.append(lease, c.load(lease), engine.Batch{Intent: true}, starts(loop.OneUSD/2)), "hold what was drawn")
}

func (c *conformer) costAboveHold() {
	c.budget(budgetName, loop.OneUSD)
	lease, state := c.started()
	other, _ := c.started()
	c.drawn(lease, loop.OneUSD/2)
	c.spend(lease, state, loop.OneUSD/2, loop.OneUSD*3/4)
	c.standing(budgetName, loop.OneUSD*3/4, 0)
	if c.draw(other, loop.OneUSD/2) == nil {
		c.Fatal("what was spent above its hold was drawn again")
	}
	c.drawn(other, loop.OneUSD/4)
	c.suspend(lease, state, loop.WaitApproval)
	c.standing(budgetName, loop.OneUSD*3/4, loop.OneUSD/4)
}

func (c *conformer) raiseWakes() {
	c.budget(budgetName, loop.OneUSD/2)
	lease, state := c.started()
	refused := c.draw(lease, loop.OneUSD)
	if refused == nil {
		c.Fatal("drew more than there is")
	}
	c.no(c.append(lease, state, engine.Batch{}, *refused), "append the refusal")
	c.suspend(lease, state, loop.WaitBudget)
	c.claimNone("w1", "there is no money yet")
	c.budget(budgetName, loop.OneUSD)
	c.drawn(c.claimOne("w1"), loop.OneUSD)
}

func (c *conformer) lateBudget() {
	ended, state := c.started()
	c.spend(ended, state, loop.MilliUSD, loop.MilliUSD)
	c.no(c.append(ended, state, engine.Batch{Release: true}, loop.Finished{State: loop.StateFailed, Stop: loop.Stop{Reason: loop.InternalError}}), "end")
	lease, state := c.started()
	c.spend(lease, state, 2*loop.MilliUSD, 2*loop.MilliUSD)
	c.budget(budgetName, loop.OneUSD)
	c.standing(budgetName, 3*loop.MilliUSD, 0)
	c.drawn(lease, loop.OneUSD-3*loop.MilliUSD)
	c.standing(budgetName, 3*loop.MilliUSD, loop.OneUSD-3*loop.MilliUSD)
}
