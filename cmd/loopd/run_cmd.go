package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func (c *client) runCommand() *cobra.Command {
	group := &cobra.Command{
		Use:   "run",
		Short: "Start runs, follow them, and decide what they wait for",
		Long: `Start runs, follow them, and decide what they wait for.

A RUN is "runs/ID" or the id alone, a CALL is RUN/CALL_ID. Data goes to standard
output, progress to standard error. start --wait and watch end with a code that
tells how the run stands:

  0 succeeded   1 error   2 usage   3 stopped by a guard   4 authentication
  5 not found   6 conflict   7 --timeout passed   8 waits for a person
  9 failed   10 cancelled   130 interrupted`,
	}
	group.AddCommand(c.runStart(), c.runShow(), c.runWatch(), c.runList(), c.runCancel(),
		c.runPause(), c.runResume(),
		c.runApprove(), c.runDeny(), c.runSubmit(), c.runResult(), c.runDoubts(), c.runResolve(), c.runExport())
	return group
}

// startFlags are the flags of run start, which go before what its file says.
type startFlags struct {
	priority                      string
	file, agent, input, requestID string
	attach                        []string
	wait                          waitFlags
	waits, watches                bool
}

func (c *client) runStart() *cobra.Command {
	var flags startFlags
	cmd := &cobra.Command{
		Use:   "start --agent AGENT --input TEXT",
		Short: "Start a run",
		Long: `Start a run and print its name.

The file of -f has the members of the API's CreateRunRequest: agent, input,
limits, labels, attachments. Flags go before it; what --attach names is added.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&flags.file, "file", "f", "", `YAML file with the request, or "-" for standard input`)
	cmd.Flags().StringVar(&flags.agent, "agent", "", "the agent")
	cmd.Flags().StringVar(&flags.input, "input", "", `what to ask it, or "-" for standard input`)
	cmd.Flags().StringVar(&flags.requestID, "request-id", "", "makes the command safe to repeat: the same id brings the same run")
	cmd.Flags().StringVar(&flags.priority, "priority", "", "among the runs that wait for a worker: low, normal or high (default the agent's)")
	cmd.Flags().StringArrayVar(&flags.attach, "attach", nil, "image, PDF or text file that goes with the input, or the https address of one; may be repeated")
	cmd.Flags().BoolVar(&flags.waits, "wait", false, "follow the run on standard error and exit as it ends")
	cmd.Flags().BoolVar(&flags.watches, "watch", false, "follow the run on standard output, as run watch does")
	flags.wait.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if flags.waits && flags.watches {
			return usagef("--wait and --watch exclude each other: one follows on standard error, the other on standard output")
		}
		req, err := c.startRequest(flags)
		if err != nil {
			return err
		}
		run, err := c.runs.CreateRun(cmd.Context(), req)
		if err != nil {
			return err
		}
		if flags.waits || flags.watches {
			fmt.Fprintln(c.env.Stderr, run.GetName())
			if flags.watches {
				return c.watch(cmd, run.GetName(), flags.wait)
			}
			show := c.textProgress(cmd, &flags.wait, c.env.Stderr)
			return c.follow(cmd.Context(), run.GetName(), flags.wait, show)
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, run)
		}
		_, err = fmt.Fprintln(c.env.Stdout, run.GetName())
		return err
	}
	return cmd
}

// startRequest puts the request together from the file and the flags.
func (c *client) startRequest(flags startFlags) (*loopdv1.CreateRunRequest, error) {
	if flags.file == "-" && flags.input == "-" {
		return nil, usagef("standard input can be the file or the input, not both")
	}
	req := &loopdv1.CreateRunRequest{}
	if flags.file != "" {
		if err := c.readYAML(flags.file, req); err != nil {
			return nil, err
		}
	}
	if flags.input == "-" {
		text, err := io.ReadAll(c.env.Stdin)
		if err != nil {
			return nil, fmt.Errorf("read the input: %w", err)
		}
		flags.input = string(text)
	}
	if flags.agent != "" {
		req.Agent = flags.agent
	}
	if flags.input != "" {
		req.Input = flags.input
	}
	if flags.requestID != "" {
		req.RequestId = flags.requestID
	}
	if flags.priority != "" {
		value, known := loopdv1.Priority_value["PRIORITY_"+strings.ToUpper(flags.priority)]
		if !known || value == 0 {
			return nil, usagef("--priority is %q: use low, normal or high", flags.priority)
		}
		req.Priority = loopdv1.Priority(value)
	}
	if req.GetAgent() == "" || req.GetInput() == "" {
		return nil, usagef("run start needs an agent and an input: give --agent and --input, or -f FILE")
	}
	req.Agent = agentName(req.GetAgent())
	return req, attach(req, flags.attach)
}

func (c *client) runShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show RUN", Short: "Show a run, and explain why it ended", Args: cobra.ExactArgs(1)}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		run, err := c.runs.GetRun(cmd.Context(), &loopdv1.GetRunRequest{Name: runName(args[0])})
		if err != nil {
			return err
		}
		return c.writeRun(cmd.Context(), run)
	}
	return cmd
}

// writeRun writes a run in the format asked for, for people with its child runs.
func (c *client) writeRun(ctx context.Context, run *loopdv1.Run) error {
	if c.output == "json" {
		return writeJSON(c.env.Stdout, run)
	}
	children, err := c.childRuns(ctx, run)
	if err != nil {
		return err
	}
	return showRun(c.env.Stdout, run, children)
}

// waitFlags say when following a run stops before the run does.
type waitFlags struct {
	timeout        time.Duration
	noWaitApproval bool
	deltas         bool
}

func (f *waitFlags) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "stop following after this long, with exit code 7 (default never)")
	cmd.Flags().BoolVar(&f.noWaitApproval, "no-wait-approval", false, "stop following when the run waits for a person, with exit code 8")
	cmd.Flags().BoolVar(&f.deltas, "deltas", false, "show what the model is writing while it writes it (default on a terminal, except as json)")
}

func (c *client) runWatch() *cobra.Command {
	var flags waitFlags
	cmd := &cobra.Command{
		Use:   "watch RUN",
		Short: "Follow a run: one line per iteration, with its cost against its cap",
		Long: `Follow a run from its first iteration to its end: one line per iteration, with
its cost against its cap. With -o json, one event of the journal per line. A
broken connection is made again and no event is lost.

With --deltas also what the model is writing: its text, its reasoning, and the
arguments of its calls. That may have gaps, shown as "…"; the whole answer
replaces it when it is complete. With -o json these are lines {"delta": ...}.`,
		Args: cobra.ExactArgs(1),
	}
	flags.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return c.watch(cmd, runName(args[0]), flags) }
	return cmd
}

// watch follows a run on standard output.
func (c *client) watch(cmd *cobra.Command, name string, flags waitFlags) error {
	if c.output == "json" {
		return c.follow(cmd.Context(), name, flags, jsonProgress(c.env.Stdout))
	}
	show := c.textProgress(cmd, &flags, c.env.Stdout)
	return c.follow(cmd.Context(), name, flags, show)
}

// textProgress is progress for people. On a terminal it asks for deltas, unless the
// flag says otherwise.
func (c *client) textProgress(cmd *cobra.Command, flags *waitFlags, w io.Writer) *lines {
	terminal := c.terminal(w)
	if !cmd.Flags().Changed("deltas") {
		flags.deltas = terminal
	}
	steers := terminal && c.env.Getenv("TERM") != "dumb"
	return &lines{w: w, draft: draft{w: w, terminal: steers, dim: steers && c.env.Getenv("NO_COLOR") == ""}}
}

func (c *client) runList() *cobra.Command {
	var agent, parent string
	var states []string
	var limit int
	cmd := &cobra.Command{Use: "list", Short: "List runs, newest first", Args: cobra.NoArgs}
	cmd.Flags().StringVar(&parent, "parent", "", "only child runs that this run started")
	cmd.Flags().StringVar(&agent, "agent", "", "only runs of this agent")
	cmd.Flags().StringSliceVar(&states, "state", nil, "only runs in these states, such as running,stopped")
	cmd.Flags().IntVar(&limit, "limit", 50, "runs to list at most; 0 lists all")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		req := &loopdv1.ListRunsRequest{Agent: agentName(agent), Parent: runName(parent)}
		for _, name := range states {
			state := loopdv1.RunState_value["RUN_STATE_"+strings.ToUpper(name)]
			if state == 0 {
				return usagef("--state %s: it is one of %s", name, stateNames())
			}
			req.States = append(req.States, loopdv1.RunState(state))
		}
		if limit < 0 {
			return usagef("--limit %d: it is 0 or more", limit)
		}
		all, err := c.listRuns(cmd.Context(), req, limit)
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, all)
		}
		return table(c.env.Stdout, runRows(all.GetRuns()))
	}
	return cmd
}

// listRuns reads as many pages as it takes for limit runs. The page token stays
// in the response when there are more.
func (c *client) listRuns(ctx context.Context, req *loopdv1.ListRunsRequest, limit int) (*loopdv1.ListRunsResponse, error) {
	all := &loopdv1.ListRunsResponse{}
	for {
		req.PageSize = pageSize
		if limit > 0 {
			req.PageSize = int32(min(pageSize, limit-len(all.GetRuns())))
		}
		page, err := c.runs.ListRuns(ctx, req)
		if err != nil {
			return nil, err
		}
		all.Runs = append(all.Runs, page.GetRuns()...)
		all.NextPageToken, req.PageToken = page.GetNextPageToken(), page.GetNextPageToken()
		if req.PageToken == "" || limit > 0 && len(all.GetRuns()) >= limit {
			return all, nil
		}
	}
}

func runRows(runs []*loopdv1.Run) [][]string {
	rows := [][]string{{"RUN", "STATE", "WHY", "AGENT", "ITERATIONS", "COST USD", "CREATED"}}
	for _, run := range runs {
		why := "-"
		switch {
		case run.GetStop() != nil:
			why = word(run.GetStop().GetReason(), "STOP_REASON_")
		case run.GetPhase() != "":
			why = run.GetPhase()
		}
		rows = append(rows, []string{
			run.GetName(), stateOf(run), why, strings.TrimPrefix(run.GetAgent(), "agents/"),
			fmt.Sprintf("%d/%d", run.GetIterations(), run.GetLimits().GetMaxIterations()),
			run.GetCostUsd() + "/" + run.GetLimits().GetMaxCostUsd(), clock(run.GetCreateTime()),
		})
	}
	return rows
}

func stateNames() string {
	var names []string
	for i := 1; i < len(loopdv1.RunState_name); i++ {
		names = append(names, strings.ToLower(word(loopdv1.RunState(i), "RUN_STATE_")))
	}
	return strings.Join(names, ", ")
}

func (c *client) runCancel() *cobra.Command {
	var reason string
	cmd := &cobra.Command{Use: "cancel RUN", Short: "Cancel a run", Args: cobra.ExactArgs(1)}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		run, err := c.runs.CancelRun(cmd.Context(), &loopdv1.CancelRunRequest{Name: runName(args[0]), Reason: reason})
		if err != nil {
			return err
		}
		return c.writeState(run)
	}
	return cmd
}

// errDeclined ends a command whose question was not answered with yes.
var errDeclined = &exitError{code: exitOther, err: errors.New("nothing was approved")}

// count writes a number with its noun.
func count(n int32, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(int(n)) + " " + noun + "s"
}
