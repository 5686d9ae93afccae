package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/postgres"
)

// forever is how people write that something is never deleted.
const forever = "forever"

// longestKeep is about a hundred years: what is kept longer is kept for ever.
const longestKeep = 36500 * 24 * time.Hour

// keepOf reads how long runs are kept: a span such as 90d, or "forever", which is 0.
func keepOf(text string) (time.Duration, error) {
	if text == forever {
		return 0, nil
	}
	keep, err := lookBack("", text)
	switch {
	case err != nil:
		return 0, errors.New("it is a span such as 90d, 36h or 12h30m, or forever")
	case keep < postgres.MinRetention || keep > longestKeep:
		return 0, errors.New("it is from 1h to 36500d, or forever")
	}
	return keep.Truncate(time.Second), nil
}

// keepText writes how long runs are kept.
func keepText(keep time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case keep == 0:
		return forever
	case keep%day == 0:
		return strconv.FormatInt(int64(keep/day), 10) + "d"
	}
	return keep.String()
}

func (c *client) retentionCommand() *cobra.Command {
	group := &cobra.Command{
		Use:   "retention",
		Short: "See and say how long runs are kept",
		Long: `See and say how long runs are kept after they ended.

The operator's default is the flag --retention of loopd serve. Runs are deleted with
all that they started, within days after their time; never while one of them lives or
waits. What they cost stays in budgets and, as a sum, in loopd usage.`,
	}
	group.AddCommand(c.retentionList(), c.retentionSet())
	return group
}

func (c *client) retentionList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List how long runs are kept, how many there are, and how many will be deleted",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := c.keeps.ListRetentions(cmd.Context(), &loopdv1.ListRetentionsRequest{})
			if err != nil {
				return err
			}
			if c.output == "json" {
				return writeJSON(c.env.Stdout, list)
			}
			rows := [][]string{{"AGENT", "KEPT", "BY", "ENDED RUNS", "EXPIRED", "OLDEST ENDED"}}
			for _, r := range list.GetRetentions() {
				row := []string{firstOf(r.GetAgent(), "all others"), keepText(r.GetDuration().AsDuration()), keeperOf(r), "-", "-", "-"}
				if r.GetEndedRuns() > 0 {
					row[3], row[4], row[5] = strconv.FormatInt(r.GetEndedRuns(), 10), strconv.FormatInt(r.GetExpiredRuns(), 10), clock(r.GetOldestEndTime())
				}
				rows = append(rows, row)
			}
			return table(c.env.Stdout, rows)
		},
	}
}

// keeperOf says where a rule comes from.
func keeperOf(r *loopdv1.Retention) string {
	switch r.GetSource() {
	case loopdv1.RetentionSource_RETENTION_SOURCE_AGENT:
		return "agent"
	case loopdv1.RetentionSource_RETENTION_SOURCE_ALL_AGENTS:
		return "all agents"
	case loopdv1.RetentionSource_RETENTION_SOURCE_OPERATOR, loopdv1.RetentionSource_RETENTION_SOURCE_UNSPECIFIED:
	}
	return "operator"
}

func (c *client) retentionSet() *cobra.Command {
	var all, yes bool
	cmd := &cobra.Command{
		Use:   "set AGENT SPAN",
		Short: "Say how long the runs of an agent are kept",
		Long: `Say how long the runs of an agent, or with --all of all agents for which nothing
else is said, are kept after they ended. SPAN is such as 90d or 36h, at least 1h;
"forever"; or "default" to take back what was said.

It holds for runs that have ended too: retention list shows what that will delete.`,
		Example: `  loopd retention set support 30d
  loopd retention set --all 90d
  loopd retention set support default`,
		Args: cobra.RangeArgs(1, 2),
	}
	cmd.Flags().BoolVar(&all, "all", false, "for all agents for which nothing else is said, instead of one")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if all != (len(args) == 1) {
			return usagef("retention set needs an agent and a span, or --all and a span")
		}
		rule := &loopdv1.Retention{}
		if !all {
			rule.Agent = agentName(args[0])
		}
		span := args[len(args)-1]
		if span != "default" {
			keep, err := keepOf(span)
			if err != nil {
				return usagef("%s: %w, or default", span, err)
			}
			rule.Keep = &loopdv1.Retention_Forever{Forever: true}
			if keep != 0 {
				rule.Keep = &loopdv1.Retention_Duration{Duration: durationpb.New(keep)}
			}
		}
		whose := firstOf(rule.GetAgent(), "all agents for which nothing else is said")
		if span != forever && !yes && !c.confirm("Keep ended runs of "+whose+" for "+span+"? What is older will be deleted.") {
			return errUnchanged
		}
		set, err := c.keeps.SetRetention(cmd.Context(), &loopdv1.SetRetentionRequest{Retention: rule})
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, set)
		}
		_, err = fmt.Fprintf(c.env.Stdout, "runs of %s are kept: %s (%s)\n", whose, keepText(set.GetDuration().AsDuration()), keeperOf(set))
		return err
	}
	return cmd
}

func (c *client) runExport() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "export RUN",
		Short: "Write out all that there is of a run",
		Long: `Write out all that there is of a run, one JSON object to a line: {"run": "runs/...",
"head": {...}}, its journal as {"run": ..., "event": {...}}, its model calls, the
results of tools in full, and attachments. Child runs have exports of their own.

guard test --file reads it. It holds what people, models and tools wrote.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&to, "to", "", "file to write, as a whole or not at all (default standard output)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		stream, err := c.runs.ExportRun(cmd.Context(), &loopdv1.ExportRunRequest{Name: runName(args[0])})
		if err != nil {
			return c.explain(err)
		}
		write := func(w io.Writer) error {
			lines := newLines(w)
			for {
				part, err := stream.Recv()
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return c.explain(err)
				}
				if err := writePart(lines, part); err != nil {
					return err
				}
			}
		}
		if to == "" {
			return write(c.env.Stdout)
		}
		if strings.HasSuffix(to, "/") {
			return usagef("--to %s: it is a directory: name the file in it", to)
		}
		return writeFile(to, write)
	}
	return cmd
}
