package postgres_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/loopd/loopd/internal/postgres"
)

func TestPeriodAt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, zone string
		window     postgres.BudgetWindow
		at         string
		start, end string // RFC 3339 in UTC; empty: no bound
	}{
		{"an hour in UTC", "UTC", postgres.WindowHour, "2026-03-01T10:59:59Z", "2026-03-01T10:00:00Z", "2026-03-01T11:00:00Z"},
		{"the next hour begins with its first instant", "UTC", postgres.WindowHour, "2026-03-01T11:00:00Z", "2026-03-01T11:00:00Z", "2026-03-01T12:00:00Z"},
		{"an hour of India begins at the half", "Asia/Kolkata", postgres.WindowHour, "2026-03-01T10:40:00Z", "2026-03-01T10:30:00Z", "2026-03-01T11:30:00Z"},
		{"an hour that comes twice, the first", "Europe/Berlin", postgres.WindowHour, "2026-10-25T00:30:00Z", "2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z"},
		{"an hour that comes twice, the second", "Europe/Berlin", postgres.WindowHour, "2026-10-25T01:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"},
		{"half an hour comes twice, before", "Australia/Lord_Howe", postgres.WindowHour, "2026-04-04T14:45:00Z", "2026-04-04T14:00:00Z", "2026-04-04T15:00:00Z"},
		{"half an hour comes twice, after", "Australia/Lord_Howe", postgres.WindowHour, "2026-04-04T15:10:00Z", "2026-04-04T15:00:00Z", "2026-04-04T15:30:00Z"},
		{"a day in UTC", "UTC", postgres.WindowDay, "2026-12-31T23:59:59.999999Z", "2026-12-31T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"a day of Berlin in winter", "Europe/Berlin", postgres.WindowDay, "2026-01-10T23:30:00Z", "2026-01-10T23:00:00Z", "2026-01-11T23:00:00Z"},
		{"a day of 23 hours", "Europe/Berlin", postgres.WindowDay, "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},
		{"a day of 25 hours", "America/New_York", postgres.WindowDay, "2026-11-01T12:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},
		{"a day without midnight", "Africa/Cairo", postgres.WindowDay, "2026-04-24T12:00:00Z", "2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"},
		{"a day whose midnight comes an hour late", "Africa/Cairo", postgres.WindowDay, "2026-10-29T21:30:00Z", "2026-10-28T21:00:00Z", "2026-10-29T22:00:00Z"},
		{"a midnight that comes twice", "America/Havana", postgres.WindowDay, "2026-11-01T05:30:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},
		{"the day before one that Samoa skipped", "Pacific/Apia", postgres.WindowDay, "2011-12-30T05:00:00Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
		{"a month of Tokyo", "Asia/Tokyo", postgres.WindowMonth, "2026-01-31T15:00:00Z", "2026-01-31T15:00:00Z", "2026-02-28T15:00:00Z"},
		{"the last month of a year", "America/Los_Angeles", postgres.WindowMonth, "2026-12-15T00:00:00Z", "2026-12-01T08:00:00Z", "2027-01-01T08:00:00Z"},
		{"all time", "Asia/Tokyo", postgres.WindowTotal, "2026-12-15T00:00:00Z", "", ""},
		{"each run", "Asia/Tokyo", postgres.WindowRun, "2026-12-15T00:00:00Z", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := tt.window.PeriodAt(instant(t, tt.at), zone(t, tt.zone))
			want := postgres.Period{Start: instant(t, tt.start), End: instant(t, tt.end)}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("PeriodAt(%s) (-want +got):\n%s", tt.at, diff)
			}
		})
	}
}

// TestPeriodsTile: every instant of a window finds the same window, and the next one
// begins where it ends, in zones with clocks that change in every way there is.
func TestPeriodsTile(t *testing.T) {
	t.Parallel()
	zones := []*time.Location{
		time.UTC, zone(t, "Europe/Berlin"), zone(t, "America/Havana"), zone(t, "Africa/Cairo"), zone(t, "Pacific/Apia"),
		zone(t, "Australia/Lord_Howe"), zone(t, "Asia/Kathmandu"), zone(t, "Pacific/Kiritimati"), zone(t, "America/St_Johns"),
	}
	windows := []postgres.BudgetWindow{postgres.WindowHour, postgres.WindowDay, postgres.WindowMonth}
	from, to := instant(t, "1990-01-01T00:00:00Z").Unix(), instant(t, "2060-01-01T00:00:00Z").Unix()
	rapid.Check(t, func(t *rapid.T) {
		where, window := rapid.SampledFrom(zones).Draw(t, "zone"), rapid.SampledFrom(windows).Draw(t, "window")
		at := time.Unix(rapid.Int64Range(from, to).Draw(t, "at"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC()
		p := window.PeriodAt(at, where)
		if at.Before(p.Start) || !at.Before(p.End) {
			t.Fatalf("%s is not in its own window %v", at, p)
		}
		for _, other := range []time.Time{p.Start, p.End.Add(-1)} {
			if q := window.PeriodAt(other, where); q != p {
				t.Fatalf("%s is in %v, but %s of the same window is in %v", at, p, other, q)
			}
		}
		if next := window.PeriodAt(p.End, where); !next.Start.Equal(p.End) {
			t.Fatalf("after the window %v comes %v", p, next)
		}
	})
}

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	location, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return location
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	if text == "" {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}
