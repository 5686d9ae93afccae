package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func (c *client) approvalWatch() *cobra.Command {
	var filter approvalFilter
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show what waits for a person as it comes, and ring",
		Long: `Show what waits for a person, then what comes, and what becomes of it, until
Ctrl-C. A terminal rings when something new waits. With -o json, one approval
per line: when it comes, and when it is decided.`,
		Args: cobra.NoArgs,
	}
	filter.add(cmd)
	cmd.Flags().DurationVar(&every, "interval", 5*time.Second, "how often to look")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if every <= 0 {
			return usagef("--interval %s: it is more than 0", every)
		}
		box := &inbox{c: c, req: filter.request(loopdv1.ApprovalState_APPROVAL_STATE_PENDING), rings: c.output != "json" && c.terminal(c.env.Stdout)}
		return box.watch(cmd.Context(), every)
	}
	return cmd
}

// inbox is what waits for a person, as it was last seen.
type inbox struct {
	c     *client
	req   *loopdv1.ListApprovalsRequest
	rings bool
	open  map[string]*loopdv1.Approval
}

// watch looks again and again until it is interrupted, or as often in vain as a
// broken stream of a run is asked for again.
func (b *inbox) watch(ctx context.Context, every time.Duration) error {
	for misses := 0; ; {
		err := b.look(ctx)
		if ctx.Err() != nil {
			return &exitError{code: exitInterrupted}
		}
		switch {
		case err == nil:
			misses = 0
		case status.Code(err) == codes.Unavailable && misses < b.c.retryTries:
			misses++
			fmt.Fprintln(b.c.env.Stderr, "connection lost; looking again")
		default:
			return err
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
		}
	}
}

// look shows what came and what is gone since the last look.
func (b *inbox) look(ctx context.Context) error {
	all, err := b.c.listApprovals(ctx, b.req, 0)
	if err != nil {
		return err
	}
	open := map[string]*loopdv1.Approval{}
	var fresh []*loopdv1.Approval
	for _, a := range all.GetApprovals() {
		if open[a.GetName()] = a; b.open[a.GetName()] == nil {
			fresh = append(fresh, a)
		}
	}
	var gone []*loopdv1.Approval
	for name := range b.open {
		if open[name] != nil {
			continue
		}
		decided, err := b.c.approvals.GetApproval(ctx, &loopdv1.GetApprovalRequest{Name: name})
		if err != nil {
			return err
		}
		gone = append(gone, decided)
	}
	slices.SortFunc(gone, func(x, y *loopdv1.Approval) int {
		return x.GetDecideTime().AsTime().Compare(y.GetDecideTime().AsTime())
	})
	b.open = open
	return b.show(gone, fresh)
}

// show writes what was decided, then what waits.
func (b *inbox) show(gone, fresh []*loopdv1.Approval) error {
	out := b.c.env.Stdout
	if b.c.output == "json" {
		for _, a := range slices.Concat(gone, fresh) {
			if err := writeJSONLine(out, a); err != nil {
				return err
			}
		}
		return nil
	}
	at := b.c.now().UTC().Format(time.TimeOnly) + "Z"
	for _, a := range gone {
		fmt.Fprintf(out, "%s  %s %s%s: %s\n", at, oneLine(a.GetTool()), word(a.GetState(), "APPROVAL_STATE_"), by(oneLine(a.GetDecidedBy())), a.GetName())
	}
	for _, a := range fresh {
		what := a.GetTool() + " " + a.GetArgumentsJson()
		if text, _ := question(a); text != "" {
			what = "question: " + text
		}
		fmt.Fprintf(out, "%s  %s  %s, time left %s\n", at, oneLine(a.GetAgent()), cut(what, 120), left(a.GetExpireTime(), b.c.now()))
		fmt.Fprintf(out, "           %s\n", decisions(a)[0])
	}
	if len(fresh) > 0 && b.rings {
		fmt.Fprint(out, "\a")
	}
	return nil
}
