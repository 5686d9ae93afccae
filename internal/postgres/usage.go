package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// usageTimeout bounds the statement of QueryUsage. It is less than clients wait for.
const usageTimeout = "20s"

// ErrTooMuch means: the range holds more model calls than can be added up in time.
var ErrTooMuch = errors.New("too many model calls to add up")

// GroupLabel before the key of a label groups usage by that label's value.
const GroupLabel = "label:"

// UsageGroups are the words by which usage can be grouped, besides GroupLabel with a
// key. Hour, day and month are those of the query's zone.
func UsageGroups() []string {
	return []string{"tenant", "agent", "agent_version", "model", "tool", "stop_reason", "state", "purpose", "hour", "day", "month"}
}

// isTime reports whether a group is a span of time.
func isTime(group string) bool { return group == "hour" || group == "day" || group == "month" }

// UsageQuery asks what model calls used and cost that were settled from From to just
// before To. The zero value of a filter chooses all.
type UsageQuery struct {
	From, To time.Time
	Zone     string   // IANA name of a time zone
	GroupBy  []string // words of UsageGroups, or GroupLabel with a key
	ByTime   bool     // the rows are in order of time, instead of the dearest first

	Agent  string // resource name, "agents/{agent}"
	Model  string // "provider/model"
	Labels map[string]string
	States []loop.RunState

	Skip, Limit int // of the rows
}

// UsageRow is what the model calls of a group used and cost. Amounts are exact decimal
// USD. A model call counts in its own run, when it was settled; a tool call counts with
// the model call that asked for it.
type UsageRow struct {
	// Keys are the group's values in the order of GroupBy. Those of times are seconds
	// since 1970. Empty: the runs have none, or it is not known.
	Keys []string

	Runs, Succeeded         int64 // with a call in the group
	ModelCalls              int64
	ToolCalls, ToolFailures int64

	InputUncached, CacheRead, CacheWrite, Output, Reasoning int64 // tokens

	Cost        string
	Estimated   string  // part of Cost that was charged without reported usage
	Saved       string  // by prompt caches; may be below zero
	Wasted      string  // part of Cost of runs that ended and did not succeed
	WastedShare float64 // Wasted of Cost
	PerSuccess  string  // Cost by runs that succeeded, to 1e-12 USD; empty: none did
}

// QueryUsage adds up the model calls of a tenant: as a whole, and in groups if it is
// asked for any. More says that there are rows behind those that it returns. The error
// is ErrTooMuch if that takes too long.
func (s *Store) QueryUsage(ctx context.Context, tenant string, q UsageQuery) (total UsageRow, rows []UsageRow, more bool, err error) {
	return s.queryUsage(ctx, tenant, q, usageTimeout)
}

func (s *Store) queryUsage(ctx context.Context, tenant string, q UsageQuery, timeout string) (total UsageRow, rows []UsageRow, more bool, err error) {
	var found []db.QueryUsageRow
	_, err = s.tryTx(ctx, func(queries *db.Queries) error {
		if err := queries.PrepareReport(ctx, timeout); err != nil {
			return err
		}
		found, err = queries.QueryUsage(ctx, q.params(tenant))
		return err
	})
	if sqlState(err) == codeQueryCanceled && ctx.Err() == nil {
		return total, nil, false, fmt.Errorf("add up usage: %w: %w", ErrTooMuch, err)
	}
	if err != nil {
		return total, nil, false, wrap("add up usage", err)
	}
	for _, row := range found[1:] { // the first is the whole
		rows = append(rows, usageRow(row))
	}
	if len(q.GroupBy) == 0 {
		rows = nil
	}
	if more = len(rows) > q.Limit; more {
		rows = rows[:q.Limit]
	}
	return usageRow(found[0]), rows, more, nil
}

// params are those of the statement. No list is nil, which would be null.
func (q UsageQuery) params(tenant string) db.QueryUsageParams {
	p := db.QueryUsageParams{
		TenantID: tenant, StartTime: q.From, EndTime: q.To, Zone: q.Zone, GroupBy: append([]string{}, q.GroupBy...),
		Agent: q.Agent, Model: printable(q.Model), States: []string{}, LabelKeys: []string{}, LabelValues: []string{},
		Skip: int64(q.Skip), Most: int32(q.Limit + 2), // the whole, and one that tells of more
	}
	if q.ByTime {
		p.TimePlace = int32(slices.IndexFunc(q.GroupBy, isTime) + 1)
	}
	for _, state := range q.States {
		p.States = append(p.States, string(state))
	}
	for key, value := range q.Labels {
		p.LabelKeys, p.LabelValues = append(p.LabelKeys, key), append(p.LabelValues, printable(value))
	}
	return p
}

func usageRow(row db.QueryUsageRow) UsageRow {
	return UsageRow{
		Keys: row.Keys, Runs: row.Runs, Succeeded: row.Succeeded,
		ModelCalls: row.ModelCalls, ToolCalls: row.ToolCalls, ToolFailures: row.ToolFailures,
		InputUncached: row.InputUncached, CacheRead: row.CacheRead, CacheWrite: row.CacheWrite, Output: row.Output, Reasoning: row.Reasoning,
		Cost: row.CostUsd, Estimated: row.EstimatedUsd, Saved: row.SavedUsd, Wasted: row.WastedUsd,
		WastedShare: row.WastedShare, PerSuccess: row.SuccessUsd,
	}
}
