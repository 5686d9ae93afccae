package loop

import (
	"fmt"
	"math"
	"time"
)

// Profile is how near a run that has ended came to each of its limits.
type Profile struct {
	Run    RunRef
	Limits Limits // with which it ended

	own  Judgement        // by its own limits
	used map[string]int64 // the most that it needed, by field; none for guards that were off
}

// ProfileRun reads the gauges of a run at each model call and at its end. It takes
// two folds of the journal, and fails as Backtest does.
func ProfileRun(run RunRef, events []Event) (Profile, error) {
	own, err := Backtest(run, events, Policy{})
	if err != nil {
		return Profile{}, err
	}
	p := Profile{Run: run, own: own, used: map[string]int64{}}
	fields, s := guardedFields(), &State{run: run}
	for _, e := range events {
		switch body := e.Body.(type) {
		case ModelStarted:
			if !beside(body.Purpose) {
				p.read(fields, s, e.At)
			}
		case Finished:
			p.read(fields, s, e.At)
		}
		if err := s.Apply(e); err != nil {
			return Profile{}, fmt.Errorf("profile: %w", err)
		}
	}
	p.Limits = s.spec.Limits
	return p, nil
}

// guardedFields are the fields to read, with the names of their guards.
func guardedFields() map[string][]limitField {
	fields := map[string][]limitField{}
	for _, f := range limitFields() {
		guard := f.guard().Name
		fields[guard] = append(fields[guard], f)
	}
	return fields
}

// read takes what is measured now where it is more than before.
func (p Profile) read(guarded map[string][]limitField, s *State, now time.Time) {
	gauges := map[string]Gauge{}
	for _, g := range s.gauges(now) {
		gauges[g.Guard] = g
	}
	for guard, fields := range guarded {
		p.readEach(fields, s, gauges[guard], now)
	}
}

func (p Profile) readEach(fields []limitField, s *State, g Gauge, now time.Time) {
	for _, f := range fields {
		v, known := f.reading(s, g, now)
		if most, had := p.used[f.name]; known && (!had || v > most) {
			p.used[f.name] = v
		}
	}
}

// reading is what a run has used of a limit, given the gauge of its guard. Not known:
// the guard is off.
func (f limitField) reading(s *State, g Gauge, now time.Time) (v int64, known bool) {
	switch f.name {
	case "deadline":
		return int64(s.tenure.elapsed(now)), true
	case "max_wall_time":
		return int64(now.Sub(s.createdAt)), true
	case "max_cost_usd":
		return int64(s.spend.committed()), true
	case "max_total_tokens":
		used := s.spend.used()
		return used.Total(), true
	case "max_output_tokens":
		used := s.spend.used()
		return used.AllOutput(), true
	case "context_stop_at":
		return int64(g.Observed*shareParts + 0.5), g.Unit != ""
	}
	if g.Unit == "" || g.Limit == 0 {
		return 0, g.Unit != ""
	}
	// A guard may allow more here than its limit says: of pollable tools, for example.
	return int64(math.Ceil(g.Observed * float64(f.get(s.spec.Limits)) / g.Limit)), true
}

// off reports whether the guard of a limit that looks for progress is off in a run:
// then there is no limit that it came near to.
func (p Profile) off(f limitField) bool {
	_, known := p.used[f.name]
	return !known && f.get(p.Limits) == 0
}

// spared reports whether a limit is so far above what the run used that its guard
// cannot have acted on it. Where the guard looks ahead it is never sure.
func (p Profile) spared(f limitField, limit int64) bool {
	used, known := p.used[f.name]
	if !known {
		return false
	}
	switch f.name {
	case "max_cost_usd", "max_total_tokens", "max_output_tokens", "context_stop_at":
		return false // what the next call may take counts as well
	case "deadline":
		l := Limits{Deadline: time.Duration(limit)}
		return used < limit-int64(l.wrapUpSlice())
	case "max_wall_time":
		return used < limit
	}
	return used+1 < limit // the wrap-up is one more
}
