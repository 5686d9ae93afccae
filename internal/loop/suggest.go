package loop

import (
	"fmt"
	"slices"
	"time"
)

// enoughSuccesses is how many an agent must have had before limits are proposed. With
// fewer, the next success is too likely to need more than any before: after 20
// without one cut, up to 14 % of all may be (one-sided, at 95 %).
const enoughSuccesses = 20

// maxRungs bounds a ladder: six shares of the successes, and eight doublings.
const maxRungs = 14

// Suggester proposes limits for an agent, from the profiles of its runs and a second
// reading of their journals, one at a time. It is not safe for concurrent use.
type Suggester struct {
	own       Limits
	tolerance float64
	profiles  map[RunRef]Profile
	ladders   []ladder
	runs      int
	successes int
}

// ladder is the values of one limit that are tried, from the smallest.
type ladder struct {
	limitField

	used  int64 // the most that a success used
	known bool  // of at least one success it is known
	ended int   // runs that its guard ended
	rungs []rung
}

type rung struct {
	value        int64
	cut, stopped int
	saved        USD
}

// NewSuggester begins with profiles of runs of an agent whose newest version has the
// given limits. tolerance is the share of successes that a proposal may cut.
func NewSuggester(own Limits, tolerance float64, profiles []Profile) *Suggester {
	s := &Suggester{own: own, tolerance: tolerance, profiles: make(map[RunRef]Profile, len(profiles))}
	for _, p := range profiles {
		s.profiles[p.Run] = p
	}
	for _, f := range limitFields() {
		s.ladders = append(s.ladders, newLadder(f, own, profiles))
	}
	return s
}

// newLadder chooses values to try: those that half, three quarters, ... of the
// successes got along with, and from the most that any used on, twice as much each
// time, until the limit in force.
func newLadder(f limitField, own Limits, profiles []Profile) ladder {
	l := ladder{limitField: f}
	var used []int64
	for _, p := range profiles {
		if v, known := p.used[f.name]; known && p.own.State == StateSucceeded {
			used = append(used, v)
		}
		if p.own.Ended != nil && p.own.Ended.Guard == f.guard().Name {
			l.ended++
		}
	}
	now := f.get(own)
	if len(used) > 0 && now > 0 {
		slices.Sort(used)
		l.used, l.known = used[len(used)-1], true
		var values []int64
		for _, share := range []float64{0.5, 0.75, 0.9, 0.95, 0.99, 1} {
			values = append(values, f.above(used[rank(share, len(used))]))
		}
		for v := values[len(values)-1]; v < now && len(values) < maxRungs; {
			v = f.roundUp(2 * v)
			values = append(values, v)
		}
		slices.Sort(values)
		for _, v := range slices.Compact(values) {
			if v < now {
				l.rungs = append(l.rungs, rung{value: v})
			}
		}
	}
	if now > 0 {
		l.rungs = append(l.rungs, rung{value: now})
	}
	return l
}

// rank is the index of the smallest of n sorted values that a share of them does not
// exceed.
func rank(share float64, n int) int {
	for i := range n {
		if float64(i+1) >= share*float64(n) {
			return i
		}
	}
	return n - 1
}

// above is a limit that lets a run pass that used v of it.
func (f limitField) above(v int64) int64 {
	if f.unit == countUnit {
		v++
	}
	return f.roundUp(v)
}

// Try judges the journal of a run that was profiled by every value of every limit,
// each changed alone. Others are passed over.
//
// A smaller limit cuts whatever a larger one does, and sooner. So a ladder is climbed
// from its smallest value until one changes nothing, and not at all where the run
// never came near: mostly that takes some ten backtests a run, at worst 14 for each
// of 20 limits.
func (s *Suggester) Try(run RunRef, events []Event) error {
	p, profiled := s.profiles[run]
	if !profiled {
		return nil
	}
	delete(s.profiles, run) // a run counts once
	s.runs++
	if p.own.State == StateSucceeded {
		s.successes++
	}
	for i := range s.ladders {
		l := &s.ladders[i]
		for j := range l.rungs {
			changed, err := l.try(&l.rungs[j], p, events)
			if err != nil {
				return err
			}
			if !changed {
				break
			}
		}
	}
	return nil
}

// try judges a run by one value, and reports whether it would have ended sooner.
func (l *ladder) try(r *rung, p Profile, events []Event) (changed bool, err error) {
	if !p.off(l.limitField) && r.value >= l.get(p.Limits) || p.spared(l.limitField, r.value) {
		return false, nil
	}
	j, err := Backtest(p.Run, events, Policy{Limits: func(limits Limits) Limits {
		l.set(&limits, r.value)
		return limits
	}})
	if err != nil {
		return false, err
	}
	sooner := j.Trip != nil && (p.own.Trip == nil || j.Seq < p.own.Seq)
	if !sooner && (j.State != StateSucceeded || j.Cut <= p.own.Cut) {
		return false, nil
	}
	switch {
	case j.State != StateSucceeded:
		r.stopped++
		r.saved += j.Saved - p.own.Saved // the run's own wrap-up would not have been spared
	case !p.own.CutsSuccess():
		r.cut++
	}
	return true, nil
}

// Suggestions is what the journals of an agent's runs say about its limits.
type Suggestions struct {
	Runs, Successes int
	// Proposed are the limits in force with all proposals in their place.
	Proposed Limits
	// Note says what stands in the way of proposals, for people. Empty: nothing.
	Note   string
	Limits []Suggestion // in the order of their guards
}

// Suggestion is what they say about one limit. Values are as the API's JSON has them,
// without quotes.
type Suggestion struct {
	Field, Guard      string
	Current, Proposed string
	Used              string // the most that a success used; "" if that is not known
	Ended             int    // runs that the guard ended, whose further needs are not known
	Why               string // this is proposed, for people
	Ladder            []Candidate
}

// Candidate is what a value would have done.
type Candidate struct {
	Value   string
	Cut     int     // runs that succeeded, and would not have, or not with all that they said
	Share   float64 // of all successes
	Stopped int     // other runs that would have ended sooner
	Saved   USD     // on these, without what their own wrap-up cost
}

// Suggestions proposes for each limit the smallest value tried that cuts no more
// successes than tolerated, within the bounds of floor.
func (s *Suggester) Suggestions() Suggestions {
	all := Suggestions{Runs: s.runs, Successes: s.successes, Proposed: s.own}
	if s.successes < enoughSuccesses {
		all.Note = fmt.Sprintf("nothing is proposed: %d of %d runs succeeded, and it takes %d successes to tell what is usual", s.successes, s.runs, enoughSuccesses)
	}
	for _, l := range s.ladders {
		chosen, why := s.choose(l)
		l.set(&all.Proposed, chosen)
		one := Suggestion{
			Field: l.name, Guard: l.guard().Name, Current: l.text(l.get(s.own)), Proposed: l.text(chosen), Ended: l.ended, Why: why,
		}
		if l.known {
			one.Used = l.text(l.used)
		}
		for _, r := range l.rungs {
			one.Ladder = append(one.Ladder, Candidate{l.text(r.value), r.cut, s.share(r.cut), r.stopped, r.saved})
		}
		all.Limits = append(all.Limits, one)
	}
	return all
}

func (s *Suggester) share(cut int) float64 {
	return float64(cut) / float64(max(s.successes, 1))
}

// choose takes the smallest rung that may be proposed, and says why.
func (s *Suggester) choose(l ladder) (value int64, why string) {
	now, floor, floored := l.get(s.own), l.floor(), false
	switch {
	case s.successes < enoughSuccesses:
		return now, "too few successes"
	case now == 0:
		return now, "the guard is off"
	}
	for _, r := range l.rungs {
		if r.value >= now || s.share(r.cut) > s.tolerance {
			continue
		}
		if r.value < floor {
			floored = true
			continue
		}
		if floored {
			return r.value, "leaves twice what any success used"
		}
		return r.value, fmt.Sprintf("cuts %d of %d successes", r.cut, s.successes)
	}
	switch {
	case l.ended > 0:
		return now, fmt.Sprintf("it ended %d runs; what they would have done beyond is not known", l.ended)
	case floored:
		return now, "a smaller one says more about these runs than about the next"
	}
	return now, fmt.Sprintf("every smaller value tried cuts more than %.3g %% of the successes", s.tolerance*100)
}

// floor is the smallest value that is proposed. Where a guard looks at how a run goes
// on and not at what it takes, that is the default: it was measured on more runs than
// one agent has, or is about people. What a provider has a part in, its speed and its
// failures, varies more than what a run takes by itself: there twice as much is left.
func (l ladder) floor() int64 {
	switch {
	case l.name == "deadline":
		return max(int64(time.Minute), 2*l.used)
	case l.name == "max_model_calls":
		return 2 * l.used
	case l.name == "max_wall_time", l.unit == shareUnit, slices.Contains(l.guard().Acts, VerdictNudge):
		return l.get(Defaults())
	}
	return 0
}
