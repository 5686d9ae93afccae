package main

import (
	"fmt"
	"io"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// usageFlags are the flags of `loopd usage`.
type usageFlags struct {
	since, until       string
	by, labels, states []string
	agent, model       string
	zone, sort         string
}

func (c *client) usageCommand() *cobra.Command {
	var f usageFlags
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Show what was spent, on what, and what of it in vain",
		Long: `Show what model calls used and cost, by groups and in total.

A call counts when its answer came, and in the run that made it. Wasted is what
the runs cost that ended and did not succeed; per success is all that was spent
by the runs that succeeded. --output json has the exact amounts.`,
		Example: `  loopd usage --since 7d --by agent,model
  loopd usage --since 2026-11-01 --by label:team,day --sort time --time-zone Europe/Berlin
  loopd usage --by stop_reason --label team=care`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.since, "since", "24h", "from when on: a time ago such as 90m, 24h or 7d, a day, or an RFC 3339 time")
	flags.StringVar(&f.until, "until", "", "until when, in the same forms (default now)")
	flags.StringSliceVar(&f.by, "by", nil, "group by up to 4 of tenant, agent, agent_version, model, tool, stop_reason, state, purpose, hour, day, month, label:KEY")
	flags.StringArrayVar(&f.labels, "label", nil, "only runs with this label, as KEY=VALUE; may be repeated")
	flags.StringVar(&f.agent, "agent", "", "only runs of this agent")
	flags.StringVar(&f.model, "model", "", "only calls of this model, PROVIDER/MODEL")
	flags.StringSliceVar(&f.states, "state", nil, "only runs in these states, such as FAILED,STOPPED")
	flags.StringVar(&f.zone, "time-zone", "UTC", "where days and months begin, such as Europe/Berlin")
	flags.StringVar(&f.sort, "sort", "cost", "cost, the dearest first, or time")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		req, err := f.request(c.now())
		if err != nil {
			return err
		}
		all := &loopdv1.QueryUsageResponse{}
		err = allPages(func(token string) (string, error) {
			req.PageToken = token
			page, err := c.usage.QueryUsage(cmd.Context(), req)
			rows := append(all.GetRows(), page.GetRows()...)
			if page != nil {
				all = page
			}
			all.Rows = rows
			return page.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, all)
		}
		return showUsage(c.env.Stdout, req.GetGroupBy(), all)
	}
	return cmd
}

// request is what the flags ask for.
func (f usageFlags) request(now time.Time) (*loopdv1.QueryUsageRequest, error) {
	req := &loopdv1.QueryUsageRequest{
		TimeZone: f.zone, GroupBy: f.by, Agent: agentName(f.agent), Model: f.model, PageSize: pageSize,
	}
	zone, err := time.LoadLocation(f.zone)
	if err != nil {
		return nil, usagef("--time-zone %s: it is no time zone: use a name such as Europe/Berlin", f.zone)
	}
	for _, bound := range []struct {
		flag, text string
		into       **timestamppb.Timestamp
	}{{"since", f.since, &req.StartTime}, {"until", f.until, &req.EndTime}} {
		if bound.text == "" {
			continue
		}
		at, err := timeOf(bound.text, now, zone)
		if err != nil {
			return nil, usagef("--%s %s: %w", bound.flag, bound.text, err)
		}
		*bound.into = timestamppb.New(at)
	}
	switch f.sort {
	case "time":
		req.OrderBy = "time"
	case "cost":
	default:
		return nil, usagef("--sort %s: it is cost or time", f.sort)
	}
	for _, label := range f.labels {
		key, value, ok := strings.Cut(label, "=")
		if !ok || key == "" {
			return nil, usagef("--label %s: write KEY=VALUE", label)
		}
		if req.Labels == nil {
			req.Labels = map[string]string{}
		}
		req.Labels[key] = value
	}
	for _, state := range f.states {
		number, ok := loopdv1.RunState_value["RUN_STATE_"+strings.ToUpper(state)]
		if !ok || number == 0 {
			return nil, usagef("--state %s: it is no state of a run", state)
		}
		req.States = append(req.States, loopdv1.RunState(number))
	}
	return req, nil
}

// agoForm is a number of days or weeks, which Go's durations do not have.
var agoForm = regexp.MustCompile(`^([0-9]{1,5})(d|w)$`)

// timeOf reads a time: some time before now, a day in a zone, or a time with its zone.
func timeOf(text string, now time.Time, zone *time.Location) (time.Time, error) {
	if m := agoForm.FindStringSubmatch(text); m != nil {
		days, _ := strconv.Atoi(m[1]) // digits, and few
		if m[2] == "w" {
			days *= 7
		}
		return now.Add(-time.Duration(days) * 24 * time.Hour), nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	if day, err := time.ParseInLocation(time.DateOnly, text, zone); err == nil {
		return day, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("write a time ago such as 24h or 7d, a day such as %s, or a time such as %s", now.Format(time.DateOnly), now.UTC().Format(time.RFC3339))
	}
	return at, nil
}

// showUsage writes the groups, the total below them, and what the figures mean.
func showUsage(w io.Writer, by []string, u *loopdv1.QueryUsageResponse) error {
	head := make([]string, 0, len(by)+13)
	for _, word := range by {
		head = append(head, strings.ToUpper(strings.ReplaceAll(word, "_", " ")))
	}
	if len(by) == 0 {
		head = append(head, "")
	}
	rows := [][]string{append(head, "RUNS", "SUCCEEDED", "MODEL CALLS", "TOOL CALLS", "FAILED", "INPUT", "CACHED", "OUTPUT", "USD", "WASTED", "SHARE", "CACHE SAVED", "PER SUCCESS")}
	for _, row := range u.GetRows() {
		var values []string
		for _, word := range by {
			values = append(values, dash(row.GetGroup()[word]))
		}
		rows = append(rows, append(values, figures(row.GetFigures())...))
	}
	total := append([]string{"total"}, make([]string, max(0, len(by)-1))...)
	rows = append(rows, append(total, figures(u.GetTotal())...))
	if err := numberTable(w, rows, max(1, len(by))); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s to %s, %s. Wasted: what runs cost that ended and did not succeed.\n", clock(u.GetStartTime()), clock(u.GetEndTime()), u.GetTimeZone())
	if estimated := u.GetTotal().GetCostEstimatedUsd(); err == nil && estimated != "0" {
		_, err = fmt.Fprintf(w, "%s USD are estimated: the calls' usage was not reported, so they are charged at their holds.\n", cents(estimated))
	}
	if deleted := u.GetDeleted(); err == nil && deleted != nil {
		_, err = fmt.Fprintf(w, "Not counted: %d model calls for %s USD of runs that were deleted, in the days of this range (UTC) and whatever their labels and states.\n",
			deleted.GetModelCalls(), cents(deleted.GetCostUsd()))
	}
	return err
}

// figures are the cells of one row behind the group's values.
func figures(f *loopdv1.UsageFigures) []string {
	u := f.GetUsage()
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	return []string{
		number(f.GetRuns()), number(f.GetSucceededRuns()), number(f.GetModelCalls()), number(f.GetToolCalls()), number(f.GetToolFailures()),
		number(u.GetInputUncachedTokens() + u.GetCacheWriteTokens()), number(u.GetCacheReadTokens()), number(u.GetOutputTokens() + u.GetReasoningTokens()),
		cents(f.GetCostUsd()), cents(f.GetWastedUsd()), fmt.Sprintf("%.0f%%", 100*f.GetWastedShare()),
		cents(f.GetCacheSavingsUsd()), dash(cents(f.GetCostPerSucceededRunUsd())),
	}
}

// cents is an amount to a hundredth of a cent, for people. What is less than that is not
// shown as nothing.
func cents(amount string) string {
	exact, ok := new(big.Rat).SetString(amount)
	if !ok || exact.Sign() == 0 {
		return amount
	}
	switch short := exact.FloatString(4); short {
	case "0.0000":
		return "<0.0001"
	case "-0.0000":
		return ">-0.0001"
	default:
		return short
	}
}

// numberTable writes rows whose cells are numbers from a column on: they end below each
// other, and the texts before them begin below each other.
func numberTable(w io.Writer, rows [][]string, from int) error {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = oneLine(cell)
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			blanks := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < from {
				cell += blanks
			} else {
				cell = blanks + cell
			}
			row[i] = cell
		}
		b.WriteString(strings.TrimRight(strings.Join(row, "  "), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
