package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/postgres"
)

const (
	// usageRange is what is added up when the request names no start.
	usageRange = 24 * time.Hour
	// maxUsageRange is a year and a month of the year before.
	maxUsageRange = 400 * 24 * time.Hour
	// conversation is the purpose of the calls that the journal gives none.
	conversation = "conversation"
)

// usageService adds up what model calls used and cost.
type usageService struct {
	loopdv1.UnsafeUsageServiceServer // a method that is missing does not compile

	s *Server
}

// QueryUsage adds up the model calls of a range of time, as a whole and by groups.
func (u *usageService) QueryUsage(ctx context.Context, req *loopdv1.QueryUsageRequest) (*loopdv1.QueryUsageResponse, error) {
	cursor, err := usageCursorOf(req, time.Now())
	if err != nil {
		return nil, err
	}
	zone, faults := usageFaults(req, cursor)
	if len(faults) > 0 {
		return nil, invalid(faults...)
	}
	query := postgres.UsageQuery{
		From: cursor.from, To: cursor.to, Zone: zone.String(), GroupBy: req.GetGroupBy(), ByTime: req.GetOrderBy() == "time",
		Agent: req.GetAgent(), Model: req.GetModel(), Labels: req.GetLabels(),
		Skip: cursor.skip, Limit: pageSize(req.GetPageSize()),
	}
	for _, state := range req.GetStates() {
		query.States = append(query.States, runStateOf(state))
	}
	total, rows, more, err := u.s.store.QueryUsage(ctx, tenant(ctx), query)
	if errors.Is(err, postgres.ErrTooMuch) {
		return nil, invalid(fieldError{"start_time", "the range holds more model calls than can be added up in time: ask for a shorter one"})
	}
	if err != nil {
		return nil, err
	}
	resp := &loopdv1.QueryUsageResponse{
		Total: figuresProto(total), StartTime: timeProto(cursor.from), EndTime: timeProto(cursor.to), TimeZone: zone.String(),
	}
	for _, row := range rows {
		resp.Rows = append(resp.Rows, &loopdv1.UsageRow{Group: groupOf(req.GetGroupBy(), row.Keys, zone), Figures: figuresProto(row)})
	}
	deleted, err := u.s.store.DeletedUsage(ctx, tenant(ctx), query)
	if err != nil {
		return nil, err
	}
	if deleted.ModelCalls > 0 {
		resp.Deleted = &loopdv1.DeletedUsage{ModelCalls: deleted.ModelCalls, CostUsd: deleted.Cost}
	}
	if more {
		cursor.skip += len(rows)
		resp.NextPageToken = pageToken(req, cursor.String())
	}
	return resp, nil
}

// usageCursor is a place among the groups. It has the range as well: what the first
// page took for now holds for all of them.
type usageCursor struct {
	from, to time.Time
	skip     int // groups before the place
}

// String is what usageCursorOf reads.
func (c usageCursor) String() string {
	return fmt.Sprintf("%d %d %d", c.from.UnixMicro(), c.to.UnixMicro(), c.skip)
}

// usageCursorOf is where a request wants to begin. Times are to the microsecond, as in
// Postgres.
func usageCursorOf(req *loopdv1.QueryUsageRequest, now time.Time) (usageCursor, error) {
	place, err := cursorOf(req)
	if err != nil {
		return usageCursor{}, err
	}
	if place != "" {
		var from, to int64
		c := usageCursor{}
		if _, err := fmt.Sscanf(place, "%d %d %d", &from, &to, &c.skip); err != nil || c.skip < 0 {
			return usageCursor{}, errPageToken()
		}
		c.from, c.to = time.UnixMicro(from).UTC(), time.UnixMicro(to).UTC()
		return c, nil
	}
	c := usageCursor{to: now.UTC()}
	if t := req.GetEndTime(); t != nil {
		c.to = t.AsTime()
	}
	c.from = c.to.Add(-usageRange)
	if t := req.GetStartTime(); t != nil {
		c.from = t.AsTime()
	}
	c.from, c.to = c.from.Truncate(time.Microsecond), c.to.Truncate(time.Microsecond)
	return c, nil
}

// usageFaults is what is wrong with a request that keeps the rules of the proto, and
// the time zone that it names.
func usageFaults(req *loopdv1.QueryUsageRequest, c usageCursor) (zone *time.Location, faults []fieldError) {
	zone, err := time.LoadLocation(req.GetTimeZone())
	if err != nil || zone == time.Local {
		faults = append(faults, fieldError{"time_zone", fmt.Sprintf("%q is no time zone: use a name of the IANA database, such as Europe/Berlin, or leave it out for UTC", req.GetTimeZone())})
	}
	switch {
	case req.GetStartTime() != nil && !req.GetStartTime().IsValid():
		faults = append(faults, fieldError{"start_time", "it is not between the years 1 and 9999"})
	case req.GetEndTime() != nil && !req.GetEndTime().IsValid():
		faults = append(faults, fieldError{"end_time", "it is not between the years 1 and 9999"})
	case !c.from.Before(c.to):
		faults = append(faults, fieldError{"start_time", fmt.Sprintf("it is not before end_time, %s", c.to.Format(time.RFC3339))})
	case c.to.Sub(c.from) > maxUsageRange:
		faults = append(faults, fieldError{"start_time", fmt.Sprintf("it is more than 400 days before end_time: the earliest is %s", c.to.Add(-maxUsageRange).Format(time.RFC3339))})
	}
	if req.GetOrderBy() == "time" && !slices.ContainsFunc(req.GetGroupBy(), func(g string) bool { return timeLayout(g) != "" }) {
		faults = append(faults, fieldError{"order_by", "time needs hour, day or month in group_by: add one, or leave order_by out"})
	}
	return zone, faults
}

// timeLayout is how a span of time is named; empty: the group is none.
func timeLayout(group string) string {
	return map[string]string{"hour": time.RFC3339, "day": time.DateOnly, "month": "2006-01"}[group]
}

// groupOf names the values of a group.
func groupOf(words, keys []string, zone *time.Location) map[string]string {
	group := make(map[string]string, len(words))
	for i, word := range words {
		value := keys[i]
		if layout := timeLayout(word); layout != "" {
			var seconds int64
			if _, err := fmt.Sscan(value, &seconds); err == nil {
				value = time.Unix(seconds, 0).In(zone).Format(layout)
			}
		}
		if word == "purpose" && value == "" {
			value = conversation
		}
		group[word] = value
	}
	return group
}

func figuresProto(row postgres.UsageRow) *loopdv1.UsageFigures {
	return &loopdv1.UsageFigures{
		Runs: row.Runs, SucceededRuns: row.Succeeded, ModelCalls: row.ModelCalls, ToolCalls: row.ToolCalls, ToolFailures: row.ToolFailures,
		Usage: &loopdv1.Usage{
			InputUncachedTokens: row.InputUncached, CacheReadTokens: row.CacheRead, CacheWriteTokens: row.CacheWrite,
			OutputTokens: row.Output, ReasoningTokens: row.Reasoning,
		},
		CostUsd: row.Cost, CostEstimatedUsd: row.Estimated, WastedUsd: row.Wasted, WastedShare: row.WastedShare,
		CacheSavingsUsd: row.Saved, CostPerSucceededRunUsd: row.PerSuccess,
	}
}
