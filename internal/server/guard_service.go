package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

const (
	defaultJudged = 100 // runs judged per page
	maxJudged     = 500
	defaultLooked = 200 // runs that suggestions are made of

	// judgePatience is how long journals are judged for a request that sets no deadline.
	judgePatience = 20 * time.Second
	// judgeShare is the part of a request's deadline that is used for it; the rest is for
	// the answer's way.
	judgeShare = 0.7
)

// guardService asks the guards about the past.
type guardService struct {
	loopdv1.UnsafeGuardServiceServer // a method that is missing does not compile

	s *Server
}

// TestLimits judges runs by other limits. It holds one journal at a time.
func (g *guardService) TestLimits(ctx context.Context, req *loopdv1.TestLimitsRequest) (*loopdv1.TestLimitsResponse, error) {
	judge, err := NewJudge(req)
	if err != nil {
		return nil, err
	}
	size := defaultJudged
	if req.GetPageSize() > 0 {
		size = min(int(req.GetPageSize()), maxJudged)
	}
	runs, places, err := g.toJudge(ctx, req, size+1)
	if err != nil {
		return nil, err
	}
	until, next := outOfTime(ctx), ""
	for i, run := range runs {
		if i == size || i > 0 && time.Now().After(until) {
			next = pageToken(req, places[i-1])
			break
		}
		events, err := g.s.store.Journal(ctx, run)
		switch {
		case unreadable(err):
			judge.Skip(run, err)
		case err != nil:
			return nil, errRunOf(run, err)
		default:
			judge.Add(run, events)
		}
	}
	resp := judge.Response()
	resp.NextPageToken = next
	return resp, nil
}

// outOfTime is when a request has computed long enough.
func outOfTime(ctx context.Context) time.Time {
	now := time.Now()
	until := now.Add(judgePatience)
	if deadline, ok := ctx.Deadline(); ok {
		if share := now.Add(time.Duration(judgeShare * float64(deadline.Sub(now)))); share.Before(until) {
			until = share
		}
	}
	return until
}

// toJudge are the runs of a page, and behind each the place at which the next page
// would begin.
func (g *guardService) toJudge(ctx context.Context, req *loopdv1.TestLimitsRequest, limit int) (runs []loop.RunRef, places []string, err error) {
	cursor, err := cursorOf(req)
	if err != nil {
		return nil, nil, err
	}
	if names := req.GetRuns(); len(names) > 0 {
		begin := 0
		if cursor != "" {
			if begin, err = strconv.Atoi(cursor); err != nil || begin < 0 || begin > len(names) {
				return nil, nil, errPageToken()
			}
		}
		for i := begin; i < len(names) && len(runs) < limit; i++ {
			runs, places = append(runs, runRef(tenant(ctx), names[i])), append(places, strconv.Itoa(i+1))
		}
		return runs, places, nil
	}
	after, err := runCursorOf(cursor)
	if err != nil {
		return nil, nil, err
	}
	filter := postgres.EndedFilter{Agent: req.GetAgent(), Labels: req.GetLabels()}
	if req.StartTime != nil {
		filter.Since = req.GetStartTime().AsTime()
	}
	if req.EndTime != nil {
		filter.Until = req.GetEndTime().AsTime()
	}
	ended, err := g.s.store.EndedRuns(ctx, tenant(ctx), filter, after, limit)
	if err != nil {
		return nil, nil, err
	}
	for _, run := range ended {
		runs = append(runs, loop.RunRef{Tenant: tenant(ctx), ID: run.ID})
		places = append(places, run.CreatedAt.Format(time.RFC3339Nano)+" "+run.ID)
	}
	return runs, places, nil
}

// SuggestLimits reads the journals of an agent's runs twice, one at a time: first how
// near each came to its limits, then what other limits would have done.
func (g *guardService) SuggestLimits(ctx context.Context, req *loopdv1.SuggestLimitsRequest) (*loopdv1.SuggestLimitsResponse, error) {
	agent, err := g.s.agent(ctx, req.GetAgent(), 0)
	if err != nil {
		return nil, err
	}
	version, err := decodeSpec(agent.Spec)
	if err != nil {
		return nil, err
	}
	limits, err := g.s.limitsOf("agent.spec.limits", version.GetLimits())
	if err != nil {
		return nil, err
	}
	most, tolerance := defaultLooked, 0.01
	if req.GetMaxRuns() > 0 {
		most = int(req.GetMaxRuns())
	}
	if req.Tolerance != nil {
		tolerance = req.GetTolerance()
	}
	filter := postgres.EndedFilter{Agent: req.GetAgent()}
	if req.StartTime != nil {
		filter.Since = req.GetStartTime().AsTime()
	}
	runs, err := g.s.store.EndedRuns(ctx, tenant(ctx), filter, postgres.RunCursor{}, most)
	if err != nil {
		return nil, err
	}
	suggester, skipped, err := g.study(ctx, runs, limits, tolerance)
	if err != nil {
		return nil, err
	}
	resp := suggestionsProto(suggester.Suggestions())
	resp.Agent, resp.AgentVersion, resp.Limits = req.GetAgent(), agent.Version, limitsProto(limits)
	resp.Tolerance, resp.Skipped = tolerance, skipped
	return resp, nil
}

// study reads the journals of runs. When a third of the time is gone the first reading
// ends with the runs read so far; the second ends with all of it.
func (g *guardService) study(ctx context.Context, runs []postgres.RunCursor, limits loop.Limits, tolerance float64) (*loop.Suggester, []*loopdv1.SkippedRun, error) {
	now, until := time.Now(), outOfTime(ctx)
	var profiles []loop.Profile
	skips := &Judge{}
	for _, run := range runs {
		if time.Now().After(now.Add(until.Sub(now) / 3)) {
			break
		}
		ref := loop.RunRef{Tenant: tenant(ctx), ID: run.ID}
		events, err := g.s.store.Journal(ctx, ref)
		if err == nil {
			var p loop.Profile
			if p, err = loop.ProfileRun(ref, events); err == nil {
				profiles = append(profiles, p)
			}
		}
		switch {
		case unreadable(err):
			skips.Skip(ref, err)
		case err != nil:
			return nil, nil, errRunOf(ref, err)
		}
	}
	s := loop.NewSuggester(limits, tolerance, profiles)
	for _, p := range profiles {
		if time.Now().After(until) {
			break
		}
		events, err := g.s.store.Journal(ctx, p.Run)
		if err == nil {
			err = s.Try(p.Run, events)
		}
		if err != nil {
			return nil, nil, errRunOf(p.Run, err)
		}
	}
	return s, skips.skipped, nil
}

// ReportFalsePositive notes, or takes back, that a trip was wrong.
func (g *guardService) ReportFalsePositive(ctx context.Context, req *loopdv1.ReportFalsePositiveRequest) (*loopdv1.GuardTrip, error) {
	idem, err := idempotency(ctx, "ReportFalsePositive", req)
	if err != nil {
		return nil, err
	}
	run, first := runRef(tenant(ctx), req.GetRun()), false
	var trip postgres.Trip
	if req.GetWithdraw() {
		trip, err = g.s.store.WithdrawTripReport(ctx, run, req.GetSeq(), idem)
	} else {
		trip, first, err = g.s.store.ReportTrip(ctx, run, req.GetSeq(), postgres.TripReport{By: subject(ctx), Reason: req.GetReason()}, idem)
	}
	g.s.countMismatch(err)
	if missing, ok := errors.AsType[*postgres.NoTripError](err); ok {
		return nil, errNoTrip(req.GetRun(), missing)
	}
	if err != nil {
		return nil, errRunOf(run, err)
	}
	if first {
		g.s.metrics.falsePositive(trip.Guard)
	}
	return tripProto(trip), nil
}

// errNoTrip says which trips there are, when there is none where somebody saw one.
func errNoTrip(run string, missing *postgres.NoTripError) error {
	seqs := make([]string, len(missing.Trips))
	for i, seq := range missing.Trips {
		seqs[i] = strconv.FormatInt(seq, 10)
	}
	choice := "no guard has tripped in it at all"
	if len(seqs) > 0 {
		choice = "trips are in " + strings.Join(seqs, ", ")
	}
	return refuse(loopdv1.ErrorReason_ERROR_REASON_TRIP_NOT_FOUND,
		fmt.Sprintf("seq: no guard tripped in event %d of %s: %s", missing.Seq, run, choice),
		"run", run, "seq", strconv.FormatInt(missing.Seq, 10), "trips", strings.Join(seqs, ","))
}

// showTrips puts the trips of a run into what is shown of it.
func (s *Server) showTrips(ctx context.Context, run loop.RunRef, shown *loopdv1.Run) error {
	trips, err := s.store.Trips(ctx, run)
	if err != nil {
		return err
	}
	for _, trip := range trips {
		shown.Trips = append(shown.Trips, tripProto(trip))
	}
	return nil
}
