package main

import (
	"context"
	"fmt"

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
		fmt.Fprintf(c.env.Stderr, "%s wants to call %s, time left %s:\n%s\nSHA-256 %s\n", oneLine(got.GetAgent()),
			oneLine(action.GetTool()), left(action.GetDeadline(), c.now()), indent(layOut(action.GetArgumentsJson())), oneLine(action.GetArgumentsSha256()))
		if !c.confirm("Approve exactly this?") {
			return "", errDeclined
		}
		return action.GetArgumentsSha256(), nil
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

// resolveFlags are the flags of run resolve.
type resolveFlags struct {
	as, result, comment string
	yes                 bool
}

func (c *client) runResolve() *cobra.Command {
	var flags resolveFlags
	cmd := &cobra.Command{
		Use:   "resolve CALL --as succeeded|not-executed|retry",
		Short: "Say what became of a tool call in doubt",
		Long: `Say what became of a tool call in doubt: one that was sent, and whose outcome
loopd never learned; run doubts lists them. Look at the system that the tool
changes first, by the call's key.

  succeeded      it took effect; the model reads --result
  not-executed   it did not, and will not be sent
  retry          send it again, with the same idempotency key; asks first if the
                 tool does not promise that this has one effect`,
		Args: cobra.RangeArgs(1, 2),
	}
	cmd.Flags().StringVar(&flags.as, "as", "", "succeeded, not-executed or retry (required)")
	cmd.Flags().StringVar(&flags.result, "result", "", `what the model is told of a call that succeeded, or the file with it as @FILE, "@-" for standard input`)
	cmd.Flags().StringVar(&flags.comment, "comment", "", "how you found out, for people")
	cmd.Flags().BoolVar(&flags.yes, "yes", false, "do not ask before a retry")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, run, err := callName(args...)
		if err != nil {
			return err
		}
		resolution, ok := resolutions[flags.as]
		if !ok {
			return usagef("--as %q: it is succeeded, not-executed or retry", flags.as)
		}
		if flags.result != "" && resolution != loopdv1.Resolution_RESOLUTION_SUCCEEDED {
			return usagef("--result goes with --as succeeded only: a call that took no effect has none")
		}
		result, err := c.readText(flags.result)
		if err != nil {
			return err
		}
		if resolution == loopdv1.Resolution_RESOLUTION_RETRY && !flags.yes {
			if err := c.askRetry(cmd.Context(), name, run); err != nil {
				return err
			}
		}
		req := &loopdv1.ResolveToolCallRequest{Name: name, Resolution: resolution, Result: result, Comment: flags.comment}
		return c.decided(c.runs.ResolveToolCall(cmd.Context(), req))
	}
	return cmd
}

// askRetry shows a call in doubt and asks whether to send it again, unless its tool
// promises that one key has one effect.
func (c *client) askRetry(ctx context.Context, name, run string) error {
	list, err := c.listCalls(ctx, run, loopdv1.ToolCallState_TOOL_CALL_STATE_IN_DOUBT)
	if err != nil {
		return err
	}
	for _, call := range list.GetToolCalls() {
		if call.GetName() != name {
			continue
		}
		if call.GetEffect() == loopdv1.Effect_EFFECT_READ_ONLY || call.GetEffect() == loopdv1.Effect_EFFECT_IDEMPOTENT {
			return nil
		}
		fmt.Fprintf(c.env.Stderr, "%s (%s) was sent %s, last at %s, with the key %s:\n%s\n", oneLine(call.GetTool()), word(call.GetEffect(), "EFFECT_"),
			count(call.GetAttempt(), "time"), clock(call.GetStartTime()), oneLine(call.GetIdempotencyKey()), indent(layOut(sentArgs(call))))
		if !c.confirm("If it took effect, this may do it twice. Send it again?") {
			return errUnchanged
		}
		return nil
	}
	return &exitError{code: exitConflict, err: fmt.Errorf("%s is not in doubt: see `loopd run doubts`", name)}
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
