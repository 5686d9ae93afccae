package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// approveFlags are the flags of approval approve.
type approveFlags struct{ hash, args, reason string }

func (c *client) approvalApprove() *cobra.Command {
	var flags approveFlags
	cmd := &cobra.Command{
		Use:   "approve APPROVAL",
		Short: "Approve a call, for exactly the arguments that were read, or for edited ones",
		Long: `Approve a call, for exactly the arguments that were read: they are shown and
asked about, or named by --arguments-sha256. With --args other arguments are
sent in their place; what they change is shown first, and the tool's schema must
allow them.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&flags.hash, "arguments-sha256", "", "the hash of the arguments that you have read: approve without being asked")
	cmd.Flags().StringVar(&flags.args, "args", "", `arguments to send instead: a JSON object, a file with one, or "-" for standard input`)
	cmd.Flags().StringVar(&flags.reason, "reason", "", "why, for people")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, err := approvalName(args[0])
		if err != nil {
			return err
		}
		edited, err := c.editedArgs(flags)
		if err != nil {
			return err
		}
		req := &loopdv1.ApproveRequest{Name: name, ExpectedArgumentsHash: flags.hash, EditedArgumentsJson: edited, Reason: flags.reason}
		if err := c.review(cmd.Context(), req); err != nil {
			return err
		}
		return c.settled(c.approvals.Approve(cmd.Context(), req))
	}
	return cmd
}

// editedArgs reads the arguments that --args gives or names. The API wants the object
// itself; nothing but the white space around it is taken away.
func (c *client) editedArgs(flags approveFlags) (string, error) {
	if strings.TrimSpace(flags.args) == "-" && flags.hash == "" {
		return "", usagef("--args - leaves no standard input for the question: name the arguments that you have read with --arguments-sha256")
	}
	return c.readArgs(flags.args)
}

// readArgs reads arguments as --args gives or names them: a JSON object, a file with
// one, or "-" for standard input. Nothing stays nothing.
func (c *client) readArgs(text string) (string, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return "", nil
	}
	if !strings.HasPrefix(text, "{") {
		read, err := c.readText("@" + text)
		if err != nil {
			return "", err
		}
		text = strings.TrimSpace(read)
	}
	var object map[string]json.RawMessage
	if err := json.NewDecoder(bytes.NewBufferString(text)).Decode(&object); err != nil || !json.Valid([]byte(text)) || object == nil {
		return "", usagef("--args: it is not one JSON object, such as {\"amount\": 50}: %q", cut(text, 60))
	}
	return text, nil
}

// review shows what is about to be approved, and asks unless the hash says that
// somebody has read it. It puts the hash of what was shown into the request.
func (c *client) review(ctx context.Context, req *loopdv1.ApproveRequest) error {
	known := req.GetExpectedArgumentsHash() != ""
	if known && req.GetEditedArgumentsJson() == "" {
		return nil
	}
	approval, err := c.approvals.GetApproval(ctx, &loopdv1.GetApprovalRequest{Name: req.GetName()})
	if err != nil {
		return err
	}
	if !known {
		if err := awaits(approval, loopdv1.Approval_KIND_APPROVE); err != nil {
			return err
		}
		if err := showApproval(c.env.Stderr, approval, c.now()); err != nil {
			return err
		}
	}
	what := "exactly this"
	if edited := req.GetEditedArgumentsJson(); edited != "" {
		fmt.Fprintf(c.env.Stderr, "\nTo be sent in their place\n%s\n", indent(layOut(edited)))
		if err := showChanges(c.env.Stderr, "Changes", approval.GetArgumentsJson(), edited); err != nil {
			return err
		}
		what = "the edited arguments"
	}
	if known {
		return nil
	}
	if !c.confirm("\nApprove " + what + "?") {
		return errDeclined
	}
	req.ExpectedArgumentsHash = approval.GetArgumentsSha256()
	return nil
}
