package loop

import "fmt"

// spend is the run's account: what was used, what it cost, and the hold of the
// model call in flight.
type spend struct {
	usage     Usage
	cost      Cost
	estimated USD
	hold      USD
	open      *ModelStarted // the call in flight, nil if none
	calls     int           // dispatched model calls
	failures  int           // in a row, for this request
	retries   int           // in the whole run
	failed    *ModelFailed  // the newest failure, until the next start
}

func (p *spend) applyStarted(e ModelStarted) error {
	if p.open != nil || e.Call != p.calls+1 {
		return fmt.Errorf("model call %d starts after %d calls, open: %v: %w", e.Call, p.calls, p.open != nil, ErrImpossible)
	}
	p.open, p.calls, p.hold, p.failed = &e, e.Call, e.Hold, nil
	return nil
}

func (p *spend) applyAnswered(e ModelAnswered) error {
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
	if err := p.settle(e.Call, e.Usage, e.Cost); err != nil {
		return err
	}
	p.estimated = p.estimated.plus(e.Cost.Total())
	p.failed = &e
	if e.Class != ErrorCancelled {
		p.failures++
		p.retries++
	}
	return nil
}

// settle ends the call in flight: the hold goes, what it really cost comes.
func (p *spend) settle(n int, u Usage, c Cost) error {
	if p.open == nil || p.open.Call != n {
		return fmt.Errorf("model call %d ends but is not in flight: %w", n, ErrImpossible)
	}
	p.usage, p.cost = p.usage.Add(u), p.cost.Add(c)
	p.open, p.hold = nil, 0
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
