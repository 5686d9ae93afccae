package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// toolCallFlags are the flags of tool call.
type toolCallFlags struct {
	args, confirm, requestID string
	version                  int64
}

func (c *client) toolCall() *cobra.Command {
	var flags toolCallFlags
	cmd := &cobra.Command{
		Use:   "call TOOL --args JSON",
		Short: "Call a tool once, outside any run, to see whether it is set up well",
		Long: `Call a tool once, outside any run, to see whether it is set up well. The call is
made for real, and what comes back is what a model would read; a tool that did
not do it ends with exit code 1.

READ_ONLY and IDEMPOTENT tools are called at once, a SIDE_EFFECT tool and one
with an approval rule only with --confirm EFFECT, an IRREVERSIBLE tool never:
only a run calls it, under an approval. Only HTTP endpoints and tools of MCP
servers can be called.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&flags.args, "args", "", `the arguments: a JSON object, a file with one, or "-" for standard input (default {})`)
	cmd.Flags().StringVar(&flags.confirm, "confirm", "", "the tool's effect, such as SIDE_EFFECT: you know what the call may change")
	cmd.Flags().Int64Var(&flags.version, "version", 0, "the version to call (default the newest)")
	cmd.Flags().StringVar(&flags.requestID, "request-id", "", "makes the command safe to repeat: the tool gets the same idempotency key, and a SIDE_EFFECT call is sent once")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req, err := c.callRequest(args[0], flags)
		if err != nil {
			return err
		}
		if cmd.Flags().Changed("version") {
			req.Version = &flags.version
		}
		answer, err := c.tools.CallTool(cmd.Context(), req)
		if err != nil {
			return err
		}
		if c.output == "json" {
			err = writeJSON(c.env.Stdout, answer)
		} else {
			err = showToolCall(c.env.Stdout, answer)
		}
		if err == nil && answer.GetOutcome() != "ok" {
			return &exitError{code: exitOther}
		}
		return err
	}
	return cmd
}

func (c *client) callRequest(tool string, flags toolCallFlags) (*loopdv1.CallToolRequest, error) {
	req := &loopdv1.CallToolRequest{Name: toolName(tool), RequestId: flags.requestID}
	if flags.confirm != "" {
		name := "EFFECT_" + strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(flags.confirm, "EFFECT_"), "-", "_"))
		effect, ok := loopdv1.Effect_value[name]
		if !ok || effect == 0 {
			return nil, usagef("--confirm %s: it is READ_ONLY, IDEMPOTENT or SIDE_EFFECT, as loopd tool show says", flags.confirm)
		}
		req.ConfirmEffect = loopdv1.Effect(effect)
	}
	args, err := c.readArgs(flags.args)
	if err != nil {
		return nil, err
	}
	if args != "" {
		req.Input = &loopdv1.CallToolRequest_ArgumentsJson{ArgumentsJson: args}
	}
	return req, nil
}

// showToolCall shows what came of a call of a tool.
func showToolCall(w io.Writer, answer *loopdv1.CallToolResponse) error {
	status := "-"
	if answer.GetStatus() != 0 {
		status = strconv.Itoa(int(answer.GetStatus()))
	}
	size := fmt.Sprintf("%d bytes", answer.GetBytes())
	if answer.GetCut() {
		size += ", more than a model reads"
	}
	rows := [][]string{
		{"Outcome", answer.GetOutcome()},
		{"Status", status},
		{"Took", answer.GetLatency().AsDuration().Round(time.Millisecond).String()},
		{"Answer", size},
		{"Key", answer.GetIdempotencyKey()},
	}
	if err := table(w, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nA model would read\n%s\n", indent(layOut(answer.GetContent())))
	return err
}
