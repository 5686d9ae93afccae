package postgres

import (
	"sort"
	"time"
)

// PeriodAt returns the window that at lies in, on the calendar of zone. Every instant
// lies in exactly one. A day in which the clocks change is 23 or 25 hours long, and an
// hour that comes twice is two windows. WindowRun and WindowTotal have no bounds.
func (w BudgetWindow) PeriodAt(at time.Time, zone *time.Location) Period {
	local := at.In(zone)
	year, month, day := local.Date()
	switch w {
	case WindowHour:
		return hourAt(local)
	case WindowDay:
		return Period{firstInstant(year, month, day, zone), firstInstant(year, month, day+1, zone)}
	case WindowMonth:
		return Period{firstInstant(year, month, 1, zone), firstInstant(year, month+1, 1, zone)}
	}
	return Period{}
}

// hourAt is the hour on the local clock, cut off where the clock changes: by half an
// hour, on Lord Howe Island.
func hourAt(local time.Time) Period {
	past := time.Duration(local.Minute())*time.Minute + time.Duration(local.Second())*time.Second + time.Duration(local.Nanosecond())
	p := Period{Start: local.Add(-past), End: local.Add(time.Hour - past)}
	from, to := local.ZoneBounds()
	if !from.IsZero() && from.After(p.Start) {
		p.Start = from
	}
	if !to.IsZero() && to.Before(p.End) {
		p.End = to
	}
	return Period{p.Start.UTC(), p.End.UTC()}
}

// firstInstant is when a date begins in a zone. It searches, because midnight is not
// always there: some zones change their clocks at midnight, some skip a day.
func firstInstant(year int, month time.Month, day int, zone *time.Location) time.Time {
	date := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	// No zone is further from UTC than 14 hours, or has ever been further than 16.
	const furthest = 16 * time.Hour
	earliest := date.Add(-furthest)
	seconds := sort.Search(int(2*furthest/time.Second), func(i int) bool {
		y, m, d := earliest.Add(time.Duration(i) * time.Second).In(zone).Date()
		return !time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Before(date)
	})
	return earliest.Add(time.Duration(seconds) * time.Second)
}
