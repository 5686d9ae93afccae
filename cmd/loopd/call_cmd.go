package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func (c *client) runApprove() *cobra.Command {
	var hash, reason string
	cmd := &cobra.Command{
		Use:   "approve CALL",
		Short: "Approve a tool call that waits for it",
		Long: `Approve a tool call that waits for it.

The approval holds for exactly the arguments that you have read: they are shown
and asked about, or named by --arguments-sha256.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&hash, "arguments-sha256", "", "approve these arguments without being asked")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, run, err := callName(args[0])
		if err != nil {
			return err
		}
		if hash == "" {
			if hash, err = c.askApproval(cmd.Context(), name, run); err != nil {
				return err
			}
		}
		req := &loopdv1.ApproveToolCallRequest{Name: name, ArgumentsSha256: hash, Reason: reason}
		return c.decided(c.runs.ApproveToolCall(cmd.Context(), req))
	}
	return cmd
}

// askApproval shows a call with its arguments and asks about it. It returns the
// hash of what was shown.
func (c *client) askApproval(ctx context.Context, name, run string) (hash string, err error) {
	got, err := c.runs.GetRun(ctx, &loopdv1.GetRunRequest{Name: run})
	if err != nil {
		return "", err
	}
	for _, action := range got.GetRequiredActions() {
		if action.GetToolCall() != name || action.GetKind() != loopdv1.RequiredAction_KIND_APPROVE {
			continue
		}
		fmt.Fprintf(c.env.Stderr, "%s wants to call %s, until %s:\n%s\nApprove exactly this? [y/N] ", got.GetAgent(),
			oneLine(action.GetTool()), clock(action.GetDeadline()), indent(action.GetArgumentsJson()))
		answer, _ := bufio.NewReader(c.env.Stdin).ReadString('\n')
		switch strings.ToLower(strings.TrimSpace(answer)) {
		case "y", "yes":
			return action.GetArgumentsSha256(), nil
		}
		return "", errDeclined
	}
	return "", &exitError{code: exitConflict, err: fmt.Errorf("%s does not wait for approval: see `loopd run show %s`", name, run)}
}

func (c *client) runDeny() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "deny CALL",
		Short: "Deny a tool call that waits for approval; the run goes on without it",
		Args:  cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people and for the model")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, _, err := callName(args[0])
		if err != nil {
			return err
		}
		return c.decided(c.runs.DenyToolCall(cmd.Context(), &loopdv1.DenyToolCallRequest{Name: name, Reason: reason}))
	}
	return cmd
}

// resolutions are the answers to what became of a call in doubt.
var resolutions = map[string]loopdv1.Resolution{
	"succeeded":    loopdv1.Resolution_RESOLUTION_SUCCEEDED,
	"not-executed": loopdv1.Resolution_RESOLUTION_NOT_EXECUTED,
	"retry":        loopdv1.Resolution_RESOLUTION_RETRY,
}

func (c *client) runResolve() *cobra.Command {
	var as, result, comment string
	cmd := &cobra.Command{
		Use:   "resolve CALL --as succeeded|not-executed|retry",
		Short: "Say what became of a tool call in doubt",
		Long: `Say what became of a tool call in doubt: one that was sent, and whose outcome
loopd never learned. Look at the system that the tool changes first.

  succeeded      it took effect; the model reads --result
  not-executed   it did not, and will not be sent
  retry          send it again, with the same idempotency key`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&as, "as", "", "succeeded, not-executed or retry (required)")
	cmd.Flags().StringVar(&result, "result", "", "what the model is told, of a call that succeeded")
	cmd.Flags().StringVar(&comment, "comment", "", "how you found out, for people")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, _, err := callName(args[0])
		if err != nil {
			return err
		}
		resolution, ok := resolutions[as]
		if !ok {
			return usagef("--as %q: it is succeeded, not-executed or retry", as)
		}
		req := &loopdv1.ResolveToolCallRequest{Name: name, Resolution: resolution, Result: result, Comment: comment}
		return c.decided(c.runs.ResolveToolCall(cmd.Context(), req))
	}
	return cmd
}

// decided writes a call as it is after a decision about it.
func (c *client) decided(call *loopdv1.ToolCall, err error) error {
	if err != nil {
		return err
	}
	if c.output == "json" {
		return writeJSON(c.env.Stdout, call)
	}
	_, err = fmt.Fprintf(c.env.Stdout, "%s %s %s\n", call.GetName(), oneLine(call.GetTool()), word(call.GetState(), "TOOL_CALL_STATE_"))
	return err
}
