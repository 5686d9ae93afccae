package main

import (
	"fmt"

	"github.com/spf13/cobra"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func (c *client) runResult() *cobra.Command {
	return &cobra.Command{
		Use:   "result RUN CALL",
		Short: "Print the result of a tool call in full",
		Long: `Print the result of a tool call in full: all that loopd read of it, where the
model may have been shown a part. With -o json the bytes are exactly those that are
kept; else characters that could steer the terminal are replaced.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, _, err := callName(args...)
			if err != nil {
				return err
			}
			result, err := c.runs.GetToolCallResult(cmd.Context(), &loopdv1.GetToolCallResultRequest{Name: name})
			if err != nil {
				return err
			}
			if c.output == "json" {
				return writeJSON(c.env.Stdout, result)
			}
			_, err = fmt.Fprintln(c.env.Stdout, clean(result.GetText()))
			return err
		},
	}
}
