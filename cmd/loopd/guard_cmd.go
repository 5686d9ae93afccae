package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

func (c *client) guardCommand() *cobra.Command {
	group := &cobra.Command{
		Use:   "guard",
		Short: "See why guards acted, and what other limits would have done",
		Long: `See why guards acted, and what other limits would have done.

explain shows the trips of a run with their proof. test judges runs that have
ended by other limits, suggest proposes limits; both read journals and call no
model and no tool. A SPAN is such as 7d, 36h or 90m.`,
	}
	group.AddCommand(c.guardList(), c.guardExplain(), c.guardReport(), c.guardTest(), c.guardSuggest(), c.guardExport())
	return group
}

func (c *client) guardList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the guards, their limits, and what each may do",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if c.output == "json" {
				return usagef("guard list has no JSON: the guards are in the API's description")
			}
			rows := [][]string{{"GUARD", "ASKED", "LIMIT", "MAY", "WHEN IT TRIPS"}}
			for _, g := range loop.Guards() {
				rows = append(rows, []string{g.Name, string(g.Phase), dash(strings.Join(g.Fields, ", ")), dash(verdictWords(g.Acts)), g.Advice})
			}
			return table(c.env.Stdout, rows)
		},
	}
}

// verdictWords are verdicts as guard_verdicts takes them, without what is the same in
// all of them.
func verdictWords(verdicts []loop.Verdict) string {
	words := make([]string, len(verdicts))
	for i, v := range verdicts {
		words[i] = strings.ToUpper(string(v))
		if v == loop.VerdictFinalTurn {
			words[i] = "WRAP_UP"
		}
	}
	return strings.Join(words, " ")
}

func (c *client) guardReport() *cobra.Command {
	var req loopdv1.ReportFalsePositiveRequest
	cmd := &cobra.Command{
		Use:   "report RUN SEQ",
		Short: "Report a trip that was wrong, so that it is counted",
		Long: `Report a trip that was wrong. The run does not change; the report is shown with
it and counted in loopd_guard_false_positives_total. "guard explain RUN" shows
the SEQ of each trip.`,
		Args: cobra.ExactArgs(2),
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "what was wrong about it, for people")
	cmd.Flags().BoolVar(&req.Withdraw, "withdraw", false, "take an earlier report back")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		seq, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil || seq < 1 {
			return usagef("%q is no seq: it is the number that `loopd guard explain %s` shows with the trip", args[1], args[0])
		}
		req.Run, req.Seq = runName(args[0]), seq
		trip, err := c.guards.ReportFalsePositive(cmd.Context(), &req)
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, trip)
		}
		what := "is reported as a false positive"
		if !trip.GetFalsePositive() {
			what = "is not reported any more"
		}
		_, err = fmt.Fprintf(c.env.Stdout, "%s, event %d: the trip of %s %s\n", req.GetRun(), trip.GetSeq(), oneLine(trip.GetGuard()), what)
		return err
	}
	return cmd
}

// lookBack reads how far to look back: a Go duration, or days.
func lookBack(flag, text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseFloat(days, 64); err == nil && n > 0 && n < 36500 {
			return time.Duration(n * float64(24*time.Hour)), nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return d, nil
	}
	return 0, usagef("--%s %s: it is a span such as 7d, 36h or 90m", flag, text)
}
