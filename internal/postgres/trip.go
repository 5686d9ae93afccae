package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// Trip is a verdict of a guard that changed a run.
type Trip struct {
	loop.Tripped

	Seq int64
	At  time.Time
	// Report says that it was wrong. Nil: nobody does.
	Report *TripReport
}

// TripReport is a person's word on a trip that was a false positive.
type TripReport struct {
	By     string
	Reason string
	At     time.Time // of the first report, on the database's clock
}

// NoTripError says that no guard tripped in an event of a run.
type NoTripError struct {
	Seq   int64
	Trips []int64 // the events in which one did
}

// Error names the event and those to choose from.
func (e *NoTripError) Error() string {
	return fmt.Sprintf("no guard tripped in event %d: the trips are %v", e.Seq, e.Trips)
}

// Trips returns the trips of a run, in order; none for a run that does not exist.
func (s *Store) Trips(ctx context.Context, run loop.RunRef) ([]Trip, error) {
	trips, err := listTrips(ctx, s.q, run)
	return trips, wrap("read the trips of run "+run.ID, err)
}

// ReportTrip notes that a trip was wrong, and tells whether nobody had said so
// before. Reporting it again changes nothing, also in the report. The error is a
// loop.ErrNotFound if there is no such run, and a *NoTripError if nothing tripped in
// the event.
func (s *Store) ReportTrip(ctx context.Context, run loop.RunRef, seq int64, report TripReport, idem Idempotency) (trip Trip, first bool, err error) {
	return s.changeReport(ctx, run, seq, idem, func(q *db.Queries, trip Trip) (bool, error) {
		params := db.InsertTripReportParams{TenantID: run.Tenant, RunID: run.ID, Seq: seq, Guard: trip.Guard, ReportedBy: report.By}
		if err := encode(&params.Reason, report.Reason); err != nil {
			return false, err
		}
		inserted, err := q.InsertTripReport(ctx, params)
		return inserted == 1, err
	})
}

// WithdrawTripReport takes a report back. Without one it changes nothing. Errors are
// those of ReportTrip.
func (s *Store) WithdrawTripReport(ctx context.Context, run loop.RunRef, seq int64, idem Idempotency) (Trip, error) {
	trip, _, err := s.changeReport(ctx, run, seq, idem, func(q *db.Queries, _ Trip) (bool, error) {
		return false, q.DeleteTripReport(ctx, db.DeleteTripReportParams{TenantID: run.Tenant, RunID: run.ID, Seq: seq})
	})
	return trip, err
}

// changeReport applies a change once, and reads the trip as it is afterwards.
func (s *Store) changeReport(ctx context.Context, run loop.RunRef, seq int64, idem Idempotency,
	apply func(*db.Queries, Trip) (first bool, err error),
) (trip Trip, first bool, err error) {
	err = s.inTx(ctx, true, func(q *db.Queries) error {
		trip, first = Trip{}, false
		exists, err := q.RunExists(ctx, db.RunExistsParams{TenantID: run.Tenant, RunID: run.ID})
		if err == nil && !exists {
			err = loop.ErrNotFound
		}
		if err != nil {
			return err
		}
		if trip, err = oneTrip(ctx, q, run, seq); err != nil {
			return err
		}
		_, used, err := idem.once(ctx, q, run.Tenant, fmt.Sprintf("%s@%d", run.ID, seq))
		if err != nil || used {
			return err
		}
		if first, err = apply(q, trip); err != nil {
			return err
		}
		trip, err = oneTrip(ctx, q, run, seq)
		return err
	})
	if err != nil {
		return Trip{}, false, wrap(fmt.Sprintf("report event %d of run %s", seq, run.ID), err)
	}
	return trip, first, nil
}

func oneTrip(ctx context.Context, q *db.Queries, run loop.RunRef, seq int64) (Trip, error) {
	trips, err := listTrips(ctx, q, run)
	if err != nil {
		return Trip{}, err
	}
	missing := &NoTripError{Seq: seq}
	for _, trip := range trips {
		if trip.Seq == seq {
			return trip, nil
		}
		missing.Trips = append(missing.Trips, trip.Seq)
	}
	return Trip{}, missing
}

func listTrips(ctx context.Context, q *db.Queries, run loop.RunRef) ([]Trip, error) {
	rows, err := q.ListTrips(ctx, db.ListTripsParams{TenantID: run.Tenant, RunID: run.ID})
	if err != nil {
		return nil, err
	}
	trips := make([]Trip, 0, len(rows))
	for _, row := range rows {
		body, err := loop.DecodeBody(row.Kind, row.Body)
		if err != nil {
			return nil, fmt.Errorf("event %d: %w", row.Seq, err)
		}
		tripped, ok := body.(loop.Tripped)
		if !ok {
			return nil, fmt.Errorf("event %d is no trip: %w", row.Seq, loop.ErrImpossible)
		}
		trip := Trip{Tripped: tripped, Seq: row.Seq, At: row.At.UTC()}
		if row.ReportedAt != nil && row.ReportedBy != nil {
			trip.Report = &TripReport{By: *row.ReportedBy, At: row.ReportedAt.UTC()}
			if err := decode("reason", row.Reason, &trip.Report.Reason); err != nil {
				return nil, err
			}
		}
		trips = append(trips, trip)
	}
	return trips, nil
}

// EndedFilter chooses runs of a tenant that have ended.
type EndedFilter struct {
	Agent  string            // resource name, "agents/{agent}"; without one, child runs are left out
	Since  time.Time         // created then or later
	Until  time.Time         // created earlier
	Labels map[string]string // all of which the run has
}

// EndedRuns returns at most limit runs behind a place that have ended, the newest
// first: as cursors, since their journals say the rest.
func (s *Store) EndedRuns(ctx context.Context, tenant string, filter EndedFilter, after RunCursor, limit int) ([]RunCursor, error) {
	if after == (RunCursor{}) {
		after = newestRun()
	}
	if filter.Until.IsZero() {
		filter.Until = newestRun().CreatedAt
	}
	labels := "{}"
	if len(filter.Labels) > 0 {
		text, err := json.Marshal(filter.Labels)
		if err != nil {
			return nil, fmt.Errorf("list ended runs: %w", err)
		}
		labels = string(text)
	}
	rows, err := s.q.ListEndedRuns(ctx, db.ListEndedRunsParams{
		TenantID: tenant, BeforeTime: after.CreatedAt, BeforeID: after.ID, Since: filter.Since, Until: filter.Until,
		Agent: filter.Agent, Labels: labels, PageSize: int32(limit),
	})
	if err != nil {
		return nil, wrap("list ended runs", err)
	}
	runs := make([]RunCursor, len(rows))
	for i, row := range rows {
		runs[i] = RunCursor{CreatedAt: row.CreatedAt.UTC(), ID: row.RunID}
	}
	return runs, nil
}

// Journal returns all events of a run with the data of its attachments, so that its
// guards can be asked again. It reads what is committed and takes no lease. The error
// is a loop.ErrNotFound if the tenant has no such run.
func (s *Store) Journal(ctx context.Context, run loop.RunRef) ([]loop.Event, error) {
	events, err := s.Events(ctx, run, 0, math.MaxInt32)
	if err != nil {
		return nil, err
	}
	return events, s.attach(ctx, run, events)
}
