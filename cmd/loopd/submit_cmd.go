package main

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// submitFlags are the flags of run submit.
type submitFlags struct {
	result  string
	failed  bool
	attempt int32
}

func (c *client) runSubmit() *cobra.Command {
	var flags submitFlags
	cmd := &cobra.Command{
		Use:   "submit RUN CALL --result TEXT|@FILE",
		Short: "Bring the result of a tool that the caller runs itself",
		Long: `Bring the result of a tool that the caller runs itself. A result counts once for
each attempt of its call; to bring the same again changes nothing, another one is
refused with exit code 6.`,
		Args: cobra.RangeArgs(1, 2),
	}
	cmd.Flags().StringVar(&flags.result, "result", "", `what the model reads, or the file with it as @FILE, "@-" for standard input (required)`)
	cmd.Flags().BoolVar(&flags.failed, "failed", false, "the call failed for certain, and the result says why")
	cmd.Flags().Int32Var(&flags.attempt, "attempt", 0, "the attempt that was run (default the one that is awaited)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, run, err := callName(args...)
		if err != nil {
			return err
		}
		if !cmd.Flags().Changed("result") {
			return usagef("run submit needs --result TEXT or --result @FILE")
		}
		text, err := c.readText(flags.result)
		if err != nil {
			return err
		}
		if flags.failed && text == "" {
			return usagef("--result is empty: say why the call failed, the model reads it")
		}
		if flags.attempt == 0 {
			if flags.attempt, err = c.awaitedAttempt(cmd.Context(), name, run); err != nil {
				return err
			}
		}
		input := &loopdv1.ToolResultInput{Call: path.Base(name), Attempt: flags.attempt, Outcome: &loopdv1.ToolResultInput_Content{Content: text}}
		if flags.failed {
			input.Outcome = &loopdv1.ToolResultInput_Error{Error: text}
		}
		return c.submit(cmd.Context(), run, input)
	}
	return cmd
}

// awaitedAttempt is the attempt of a call whose result the run awaits.
func (c *client) awaitedAttempt(ctx context.Context, name, run string) (int32, error) {
	got, err := c.runs.GetRun(ctx, &loopdv1.GetRunRequest{Name: run})
	if err != nil {
		return 0, err
	}
	for _, action := range got.GetRequiredActions() {
		if action.GetToolCall() == name && action.GetKind() == loopdv1.RequiredAction_KIND_SUBMIT {
			return action.GetAttempt(), nil
		}
	}
	return 0, &exitError{code: exitConflict, err: fmt.Errorf("%s awaits no result from outside: see `loopd run show %s`; to repeat one that was taken, name its --attempt", name, run)}
}

// submit brings one result and says what became of it.
func (c *client) submit(ctx context.Context, run string, input *loopdv1.ToolResultInput) error {
	resp, err := c.runs.SubmitToolResults(ctx, &loopdv1.SubmitToolResultsRequest{Name: run, Results: []*loopdv1.ToolResultInput{input}})
	if err != nil {
		return err
	}
	if c.output == "json" {
		if err := writeJSON(c.env.Stdout, resp); err != nil {
			return err
		}
	}
	for _, result := range resp.GetResults() {
		if result.GetStatus() == loopdv1.ToolResultStatus_STATUS_REFUSED {
			return refusedResult(result)
		}
		if c.output != "json" {
			fmt.Fprintf(c.env.Stdout, "%s/toolCalls/%s %s\n", run, result.GetCall(), word(result.GetStatus(), "STATUS_"))
		}
	}
	return nil
}

// refusedResult ends the program as the refusal of a whole request would.
func refusedResult(result *loopdv1.ToolResultStatus) error {
	code := exitConflict
	switch result.GetReason() {
	case loopdv1.ErrorReason_ERROR_REASON_FIELD_INVALID:
		code = exitUsage
	case loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, loopdv1.ErrorReason_ERROR_REASON_TOOL_CALL_NOT_FOUND:
		code = exitNotFound
	}
	return &exitError{code: code, err: fmt.Errorf("%s (%s)", result.GetMessage(), word(result.GetReason(), "ERROR_REASON_"))}
}

func (c *client) runDoubts() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doubts",
		Short: "List the tool calls in doubt of all runs",
		Long: `List the tool calls in doubt of all runs: those that were sent, and whose outcome
loopd never learned. Look each up by its key in the system that its tool changes,
then say what became of it with run resolve.`,
		Args: cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		all, err := c.listCalls(cmd.Context(), "runs/-", loopdv1.ToolCallState_TOOL_CALL_STATE_IN_DOUBT)
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, all)
		}
		rows := [][]string{{"CALL", "TIME LEFT", "TOOL", "EFFECT", "SENT", "ATTEMPT", "KEY", "ARGUMENTS"}}
		for _, call := range all.GetToolCalls() {
			rows = append(rows, []string{
				shortCall(call.GetName()), left(call.GetWaitUntil(), c.now()), call.GetTool(), word(call.GetEffect(), "EFFECT_"),
				clock(call.GetStartTime()), strconv.Itoa(int(call.GetAttempt())), dash(call.GetIdempotencyKey()), cut(sentArgs(call), 60),
			})
		}
		return table(c.env.Stdout, rows)
	}
	return cmd
}

// listCalls reads all calls of a run, or of all runs, in some states.
func (c *client) listCalls(ctx context.Context, parent string, states ...loopdv1.ToolCallState) (*loopdv1.ListToolCallsResponse, error) {
	all := &loopdv1.ListToolCallsResponse{}
	err := allPages(func(token string) (string, error) {
		page, err := c.runs.ListToolCalls(ctx, &loopdv1.ListToolCallsRequest{Parent: parent, States: states, PageSize: pageSize, PageToken: token})
		all.ToolCalls = append(all.ToolCalls, page.GetToolCalls()...)
		return page.GetNextPageToken(), err
	})
	return all, err
}

// sentArgs are the arguments of a call as they are sent.
func sentArgs(call *loopdv1.ToolCall) string {
	if edited := call.GetEditedArgumentsJson(); edited != "" {
		return edited
	}
	return call.GetArgumentsJson()
}

// shortCall writes a call's name as the commands take it: RUN/CALL.
func shortCall(name string) string {
	return strings.Replace(strings.TrimPrefix(name, "runs/"), "/toolCalls/", "/", 1)
}
