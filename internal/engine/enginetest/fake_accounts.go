package enginetest

import (
	"context"
	"fmt"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// fakeBudget is a budget for all runs of its tenant, for all time.
type fakeBudget struct {
	tenant, name string
	amount       loop.USD
	act          loop.Verdict
	spent        loop.USD // by chunks that were closed
}

// fakeChunk is what a run has drawn from a budget.
type fakeChunk struct {
	drawn, held, spent loop.USD
	call               int // that the hold is for
}

// SetBudget implements Store.
func (f *Fake) SetBudget(ctx context.Context, tenant, name string, amount loop.USD, act loop.Verdict) error {
	if err := f.lock(ctx); err != nil {
		return err
	}
	defer f.mu.Unlock()
	b := f.budget(tenant, name)
	if b == nil {
		b = &fakeBudget{tenant: tenant, name: name}
		f.budgets = append(f.budgets, b)
		for _, r := range f.order {
			if r.ref.Tenant == tenant {
				b.spent += r.head.Cost.Total()
			}
		}
	}
	b.amount, b.act = amount, act
	for _, r := range f.order {
		if now := time.Now(); r.ref.Tenant == tenant && r.owner == "" && r.head.Phase == string(loop.WaitBudget) && r.available.After(now) {
			r.available = now
		}
	}
	f.wakeAll()
	return nil
}

func (f *Fake) budget(tenant, name string) *fakeBudget {
	for _, b := range f.budgets {
		if b.tenant == tenant && b.name == name {
			return b
		}
	}
	return nil
}

// Standing implements Store.
func (f *Fake) Standing(ctx context.Context, tenant, name string) (spent, held loop.USD, err error) {
	if err := f.lock(ctx); err != nil {
		return 0, 0, err
	}
	defer f.mu.Unlock()
	b := f.budget(tenant, name)
	if b == nil {
		return 0, 0, loop.ErrNotFound
	}
	spent, held = f.standing(b)
	return spent, held, nil
}

// standing is what runs have spent of a budget, and what they have drawn besides.
func (f *Fake) standing(b *fakeBudget) (spent, held loop.USD) {
	spent = b.spent
	for _, r := range f.order {
		if c := r.chunks[b]; c != nil {
			spent += c.spent
			held += max(c.drawn-c.spent, c.held)
		}
	}
	return spent, held
}

// Draw implements engine.Accounts.
func (f *Fake) Draw(ctx context.Context, lease loop.Lease, need loop.AccountNeed) (refused *loop.AccountRefused, err error) {
	if err := f.lock(ctx); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	draws := map[*fakeBudget]loop.USD{}
	for _, b := range f.budgets {
		if b.tenant != lease.Run.Tenant {
			continue
		}
		r, err := f.leased(lease)
		if err != nil {
			return nil, err
		}
		own := r.chunks[b]
		if own == nil {
			own = &fakeChunk{}
		}
		missing := need.Amount - (own.drawn - own.spent - own.held)
		spent, held := f.standing(b)
		if total := spent + held; missing > 0 && total+missing > b.amount {
			return &loop.AccountRefused{
				Budget: "budgets/" + b.name, Needed: need.Amount, Limit: b.amount, Committed: total - max(0, need.Amount-missing), Act: b.act,
			}, nil
		}
		draws[b] = max(0, missing)
	}
	for b, amount := range draws {
		r := f.runs[lease.Run]
		if r.chunks[b] == nil {
			r.chunks[b] = &fakeChunk{}
		}
		r.chunks[b].drawn += amount
	}
	return refused, nil
}

// book holds and settles in what the run has drawn, and gives back what is left when
// the lease goes.
func (r *fakeRun) book(batch []loop.Event, release bool) error {
	for _, c := range r.chunks {
		for _, e := range batch {
			if err := c.take(e.Body); err != nil {
				return fmt.Errorf("run %s: %w", r.ref.ID, err)
			}
		}
	}
	if release {
		for b, c := range r.chunks {
			b.spent += c.spent
		}
		clear(r.chunks)
	}
	return nil
}

func (c *fakeChunk) take(body loop.Body) error {
	settle := func(call int, cost loop.Cost) {
		if call == c.call {
			c.spent, c.held, c.call = c.spent+cost.Total(), 0, 0
		}
	}
	switch body := body.(type) {
	case loop.ModelStarted:
		if c.spent+body.Hold > c.drawn {
			return fmt.Errorf("the run holds %s USD and has drawn %s, of which %s are spent: %w", body.Hold, c.drawn, c.spent, loop.ErrRefused)
		}
		c.held, c.call = body.Hold, body.Call
	case loop.ModelAnswered:
		settle(body.Call, body.Cost)
	case loop.ModelFailed:
		settle(body.Call, body.Cost)
	}
	return nil
}
