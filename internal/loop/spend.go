package loop

import "fmt"

// spend is the run's account: what was used, what it cost, and the hold of the
// model call in flight.
type spend struct {
	usage     Usage
	assumed   Usage // the worst case of what providers did not report; counts against the token budgets
	cost      Cost
	estimated USD
	hold      USD
	open      *ModelStarted // the call in flight, nil if none
	calls     int           // dispatched model calls
	failures  int           // in a row, for this request
	retries   int           // in the whole run

	children   grant // held for child runs that have not ended
	childUsed  int64 // tokens of the child runs that ended, at the bound where nobody knows
	childUsage Usage // what they reported
	childCalls int   // their model calls

	last          ModelStarted // the newest call that ended
	failed        *ModelFailed // the newest failure, until the next start
	failedPurpose string       // of the call that failed
}

func (p *spend) applyStarted(e ModelStarted) error {
	if p.open != nil || e.Call != p.calls+1 {
		return fmt.Errorf("model call %d starts after %d calls, open: %v: %w", e.Call, p.calls, p.open != nil, ErrImpossible)
	}
	p.open, p.calls, p.hold, p.failed = &e, e.Call, e.Hold, nil
	return nil
}

func (p *spend) applyAnswered(e ModelAnswered) error {
	if e.Estimated {
		p.assume(e.Usage)
	}
	if err := p.settle(e.Call, e.Usage, e.Cost); err != nil {
		return err
	}
	if e.Estimated {
		p.estimated = p.estimated.plus(e.Cost.Total())
	}
	p.failures = 0
	return nil
}

func (p *spend) applyFailed(e ModelFailed) error {
	if !e.Class.Free() {
		p.assume(e.Usage)
	}
	if p.open != nil {
		p.failedPurpose = p.open.Purpose
	}
	if err := p.settle(e.Call, e.Usage, e.Cost); err != nil {
		return err
	}
	p.estimated = p.estimated.plus(e.Cost.Total())
	p.failed = &e
	if e.Class != ErrorCancelled && e.Class != ErrorLost { // neither says anything of the provider; budgets bound them
		p.failures++
		p.retries++
	}
	return nil
}

// assume books the tokens that the call in flight may have used beyond what was
// reported, as LostCost does for its money.
func (p *spend) assume(reported Usage) {
	if p.open == nil {
		return
	}
	p.assumed = p.assumed.Add(Usage{
		InputUncached: max(0, p.open.InputBound-reported.Input()),
		Output:        max(0, p.open.MaxOutput-reported.AllOutput()),
	})
}

// used is what counts against the token budgets. What child runs use counts in
// total only: their output has limits of its own.
func (p *spend) used() Usage {
	return p.usage.Add(p.assumed).Add(Usage{InputUncached: p.children.tokens + p.childUsed})
}

// allCalls counts the model calls of the whole tree below the run, and those that
// child runs may still make.
func (p *spend) allCalls() int { return p.calls + p.childCalls + p.children.calls }

// committed is what was spent and what child runs may still spend.
func (p *spend) committed() USD { return p.cost.Total().plus(p.children.cost) }

// settle ends the call in flight: the hold goes, what it really cost comes.
func (p *spend) settle(n int, u Usage, c Cost) error {
	if p.open == nil || p.open.Call != n {
		return fmt.Errorf("model call %d ends but is not in flight: %w", n, ErrImpossible)
	}
	p.usage, p.cost = p.usage.Add(u), p.cost.Add(c)
	p.last, p.open, p.hold = *p.open, nil, 0
	return nil
}

// LostCost is what a failed call is charged when the provider may have worked
// for it: the hold, booked as output, or nothing when it is known to be free.
func LostCost(class ErrorClass, hold USD) Cost {
	if class.Free() {
		return Cost{}
	}
	return Cost{Output: hold}
}
