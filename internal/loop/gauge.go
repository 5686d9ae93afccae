package loop

import (
	"math"
	"time"
)

// elsewhere are the gauges of guards that other parts of the loop ask by themselves.
func elsewhere() []guard {
	return []guard{
		{name: "wall_time", gauge: gaugeWallTime},
		{name: "truncated", gauge: func(m moment) Gauge { return gaugeCount(m.truncTotal, maxTruncated, "answers") }},
		{name: "empty", gauge: func(m moment) Gauge { return gaugeCount(m.empties, maxEmpty, "answers") }},
		{name: "pause", gauge: func(m moment) Gauge { return gaugeCount(m.pauses, maxPauses, "answers") }},
		{name: "unknown_stop", gauge: func(m moment) Gauge { return gaugeCount(m.unknowns, 1, "answers") }},
		{name: "output", gauge: func(m moment) Gauge { return gaugeCount(len(m.contract.prints), m.spec.Limits.Reasks, "answers") }},
	}
}

func gaugeWallTime(m moment) Gauge {
	return gaugeTime(m.now.Sub(m.createdAt), m.spec.Limits.WallTime)
}

// gauges are what every guard measures now, in order of precedence. A guard that is
// off measures nothing.
func (s *State) gauges(now time.Time) []Gauge {
	p := s.planWork()
	m := s.moment(&p, now)
	var all []Gauge
	for _, list := range [][]guard{guards(), elsewhere()} {
		for _, g := range list {
			if read := g.gauge(m); read.Unit != "" {
				read.Guard = g.name
				all = append(all, read)
			}
		}
	}
	return all
}

// withGauges writes into every trip of an action what all guards measured.
func (s *State) withGauges(a Action, now time.Time) Action {
	var read []Gauge
	bodies := a.Intent()
	for i, b := range bodies {
		t, ok := b.(Tripped)
		if !ok {
			continue
		}
		if read == nil {
			read = s.gauges(now)
		}
		t.Gauges = read
		bodies[i] = t
	}
	return a
}

func gaugeCount[N int | int64](observed, limit N, unit string) Gauge {
	return Gauge{Observed: float64(observed), Limit: float64(limit), Unit: unit}
}

// gaugeStreak is gaugeCount for a limit that is 0 where the guard is off.
func gaugeStreak(n, limit int, unit string) Gauge {
	if limit == 0 {
		return Gauge{}
	}
	return gaugeCount(n, limit, unit)
}

// gaugeTime is in seconds, to the millisecond.
func gaugeTime(observed, limit time.Duration) Gauge {
	return Gauge{Observed: float64(observed.Milliseconds()) / 1000, Limit: float64(limit.Milliseconds()) / 1000, Unit: "s"}
}

// gaugeShare is a part of a whole, to four digits.
func gaugeShare(part, whole int64, limit float64, unit string) Gauge {
	if whole <= 0 {
		return Gauge{}
	}
	return Gauge{Observed: math.Round(float64(part)/float64(whole)*1e4) / 1e4, Limit: limit, Unit: unit}
}
