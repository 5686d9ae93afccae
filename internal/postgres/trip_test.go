package postgres

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/loopd/loopd/internal/loop"
)

func TestTripReports(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	nudge := loop.Tripped{Guard: "repeat", Verdict: loop.VerdictNudge, Reason: loop.RepeatCall, Message: "again " + hostile, Iteration: 2}
	final := nudge
	final.Verdict, final.Iteration = loop.VerdictFinalTurn, 3
	mustAppend(t, s, lease, batch(lease, 2, claimed(lease), nudge, loop.ModelStarted{Call: 1}, final))
	trips, err := s.Trips(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	want := []Trip{{Tripped: nudge, Seq: 3, At: at(3)}, {Tripped: final, Seq: 5, At: at(5)}}
	diff(t, "trips", trips, want)

	said := TripReport{By: "ann", Reason: "it polls " + hostile}
	idem := Idempotency{Method: "ReportFalsePositive", Key: "k", Fingerprint: []byte("f")}
	reported, first, err := s.ReportTrip(t.Context(), ref, 5, said, idem)
	if err != nil || !first {
		t.Fatalf("first report: %t, %v", first, err)
	}
	want[1].Report = &said
	diff(t, "reported", reported, want[1], cmpopts.IgnoreFields(TripReport{}, "At"))
	if _, first, err = s.ReportTrip(t.Context(), ref, 5, said, idem); err != nil || first {
		t.Errorf("the same request again: %t, %v", first, err)
	}
	again, first, err := s.ReportTrip(t.Context(), ref, 5, TripReport{By: "bob", Reason: "no"}, Idempotency{})
	if err != nil || first || again.Report == nil || again.Report.By != "ann" {
		t.Errorf("another report: %+v, %t, %v", again.Report, first, err)
	}
	idem.Fingerprint = []byte("g")
	_, _, err = s.ReportTrip(t.Context(), ref, 5, said, idem)
	wantErr(t, err, ErrKeyReused)

	_, _, err = s.ReportTrip(t.Context(), ref, 4, said, Idempotency{})
	missing, ok := errors.AsType[*NoTripError](err)
	if !ok || !slices.Equal(missing.Trips, []int64{3, 5}) {
		t.Errorf("an event that is no trip: %v", err)
	}
	stranger := ref
	stranger.Tenant = "globex"
	_, _, err = s.ReportTrip(t.Context(), stranger, 5, said, Idempotency{})
	wantErr(t, err, loop.ErrNotFound)
	if trips, err := s.Trips(t.Context(), stranger); err != nil || len(trips) != 0 {
		t.Errorf("another tenant sees %v, %v", trips, err)
	}

	for range 2 {
		withdrawn, err := s.WithdrawTripReport(t.Context(), ref, 5, Idempotency{})
		if err != nil || withdrawn.Report != nil {
			t.Errorf("withdrawn: %+v, %v", withdrawn.Report, err)
		}
	}
}
