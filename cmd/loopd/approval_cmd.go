package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func (c *client) approvalCommand() *cobra.Command {
	group := &cobra.Command{
		Use:   "approval",
		Short: "Decide what runs wait for: calls to approve and questions to answer",
		Long: `Decide what runs wait for: calls to approve and questions to answer.

An APPROVAL is "approvals/RUN_ID.CALL_ID", the same without "approvals/", or
RUN/CALL_ID. The first decision counts, and to repeat it changes nothing. A
decision that cannot be taken ends with exit code 6: the arguments are others
than those that were read (ARGUMENTS_CHANGED), nobody decided in time
(APPROVAL_EXPIRED), or somebody else was faster (CALL_NOT_AWAITING_APPROVAL).`,
	}
	group.AddCommand(c.approvalList(), c.approvalShow(), c.approvalApprove(), c.approvalDeny(), c.approvalAnswer(), c.approvalWatch())
	return group
}

// approvalName accepts an approval as "approvals/RUN.CALL", as "RUN.CALL" or, after
// its call, as "RUN/CALL".
func approvalName(arg string) (string, error) {
	id := strings.TrimPrefix(arg, "approvals/")
	if run, call, ok := strings.Cut(id, "."); ok && run != "" && call != "" && !strings.Contains(id, "/") {
		return "approvals/" + id, nil
	}
	call, _, err := callName(arg)
	if err != nil {
		return "", usagef("%q names no approval: write RUN.CALL, such as 0193e9a4-5c1e-7b60-8f0a-0d6a3c1f2b4d.c3-1", arg)
	}
	return "approvals/" + approvalID(call), nil
}

// approvalID is the id of the approval of a call, by the call's name.
func approvalID(call string) string {
	return strings.Replace(strings.TrimPrefix(call, "runs/"), "/toolCalls/", ".", 1)
}

// approvalFilter are the flags that say which approvals are meant.
type approvalFilter struct{ agent, tool, run string }

func (f *approvalFilter) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.agent, "agent", "", "only of runs of this agent")
	cmd.Flags().StringVar(&f.tool, "tool", "", "only of calls of this tool")
	cmd.Flags().StringVar(&f.run, "run", "", "only of this run")
}

func (f *approvalFilter) request(state loopdv1.ApprovalState) *loopdv1.ListApprovalsRequest {
	return &loopdv1.ListApprovalsRequest{State: state, Agent: agentName(f.agent), Tool: f.tool, Run: runName(f.run)}
}

// approvalStates are the states to list, by the words of --state.
var approvalStates = map[string]loopdv1.ApprovalState{
	"pending":   loopdv1.ApprovalState_APPROVAL_STATE_PENDING,
	"approved":  loopdv1.ApprovalState_APPROVAL_STATE_APPROVED,
	"denied":    loopdv1.ApprovalState_APPROVAL_STATE_DENIED,
	"expired":   loopdv1.ApprovalState_APPROVAL_STATE_EXPIRED,
	"cancelled": loopdv1.ApprovalState_APPROVAL_STATE_CANCELLED,
	"any":       loopdv1.ApprovalState_APPROVAL_STATE_UNSPECIFIED,
}

func (c *client) approvalList() *cobra.Command {
	var filter approvalFilter
	var state string
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List what waits for a person, earliest deadline first",
		Long: `List what waits for a person, earliest deadline first. With --state, what was
decided, newest first. Arguments are cut to fit: read all of them with approval
show before you decide.`,
		Args: cobra.NoArgs,
	}
	filter.add(cmd)
	cmd.Flags().StringVar(&state, "state", "pending", "pending, approved, denied, expired, cancelled or any")
	cmd.Flags().IntVar(&limit, "limit", 50, "approvals to list at most; 0 lists all")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		wanted, ok := approvalStates[state]
		if !ok {
			return usagef("--state %s: it is pending, approved, denied, expired, cancelled or any", state)
		}
		if limit < 0 {
			return usagef("--limit %d: it is 0 or more", limit)
		}
		all, err := c.listApprovals(cmd.Context(), filter.request(wanted), limit)
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, all)
		}
		return table(c.env.Stdout, c.approvalRows(all.GetApprovals(), state == "pending"))
	}
	return cmd
}

// listApprovals reads as many pages as it takes for limit approvals; 0 means all. The
// page token stays in the response when there are more.
func (c *client) listApprovals(ctx context.Context, req *loopdv1.ListApprovalsRequest, limit int) (*loopdv1.ListApprovalsResponse, error) {
	all := &loopdv1.ListApprovalsResponse{}
	err := allPages(func(token string) (string, error) {
		req.PageToken, req.PageSize = token, pageSize
		if limit > 0 {
			req.PageSize = int32(min(pageSize, limit-len(all.GetApprovals())))
		}
		page, err := c.approvals.ListApprovals(ctx, req)
		if err != nil {
			return "", err
		}
		all.Approvals, all.NextPageToken = append(all.Approvals, page.GetApprovals()...), page.GetNextPageToken()
		if limit > 0 && len(all.GetApprovals()) >= limit {
			return "", nil
		}
		return page.GetNextPageToken(), nil
	})
	return all, err
}

// approvalRows is the inbox, or the list of what was decided.
func (c *client) approvalRows(approvals []*loopdv1.Approval, pending bool) [][]string {
	rows := [][]string{{"APPROVAL", "STATE", "DECIDED", "BY", "AGENT", "TOOL", "EFFECT", "ARGUMENTS"}}
	if pending {
		rows = [][]string{{"APPROVAL", "TIME LEFT", "ASKS FOR", "AGENT", "TOOL", "EFFECT", "ARGUMENTS"}}
	}
	for _, a := range approvals {
		row := []string{a.GetName(), word(a.GetState(), "APPROVAL_STATE_"), clock(a.GetDecideTime()), dash(a.GetDecidedBy())}
		if pending {
			row = []string{a.GetName(), left(a.GetExpireTime(), c.now()), asksFor(a)}
		}
		rows = append(rows, append(row, strings.TrimPrefix(a.GetAgent(), "agents/"), a.GetTool(),
			word(a.GetEffect(), "EFFECT_"), cut(a.GetArgumentsJson(), 60)))
	}
	return rows
}

func (c *client) approvalShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show APPROVAL", Short: "Show an approval, with the exact arguments and their hash", Args: cobra.ExactArgs(1)}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		approval, err := c.approval(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, approval)
		}
		if err := showApproval(c.env.Stdout, approval, c.now()); err != nil {
			return err
		}
		if approval.GetState() == loopdv1.ApprovalState_APPROVAL_STATE_PENDING {
			fmt.Fprintf(c.env.Stdout, "\nNext\n%s\n", indent(strings.Join(decisions(approval), "\n")))
		}
		return nil
	}
	return cmd
}

// approval reads an approval by what a person calls it.
func (c *client) approval(ctx context.Context, arg string) (*loopdv1.Approval, error) {
	name, err := approvalName(arg)
	if err != nil {
		return nil, err
	}
	return c.approvals.GetApproval(ctx, &loopdv1.GetApprovalRequest{Name: name})
}

func (c *client) approvalDeny() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "deny APPROVAL",
		Short: "Deny a call; the model is told, and the run goes on without it",
		Args:  cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people and for the model")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, err := approvalName(args[0])
		if err != nil {
			return err
		}
		return c.settled(c.approvals.Deny(cmd.Context(), &loopdv1.DenyRequest{Name: name, Reason: reason}))
	}
	return cmd
}

func (c *client) approvalAnswer() *cobra.Command {
	var choice string
	cmd := &cobra.Command{
		Use:   "answer APPROVAL [TEXT]",
		Short: "Answer a question of the model",
		Long: `Answer a question of the model: in your own words, which may be named as @FILE
or, for standard input, @-; or with --choice, one of those that it offers, word
for word. Without either the question is shown and asked.`,
		Args: cobra.RangeArgs(1, 2),
	}
	cmd.Flags().StringVar(&choice, "choice", "", "one of the choices that the question offers")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, err := approvalName(args[0])
		if err != nil {
			return err
		}
		req := &loopdv1.AnswerRequest{Name: name}
		switch {
		case choice != "" && len(args) > 1:
			return usagef("give TEXT or --choice, not both: a question has one answer")
		case choice != "":
			req.Answer = &loopdv1.AnswerRequest_Choice{Choice: choice}
		case len(args) > 1:
			text, err := c.readText(args[1])
			if err != nil {
				return err
			}
			req.Answer = &loopdv1.AnswerRequest_Text{Text: text}
		default:
			if err := c.askAnswer(cmd.Context(), req); err != nil {
				return err
			}
		}
		return c.settled(c.approvals.Answer(cmd.Context(), req))
	}
	return cmd
}

// askAnswer shows a question and puts what is said into the request: a choice by its
// words or its number, or any other text.
func (c *client) askAnswer(ctx context.Context, req *loopdv1.AnswerRequest) error {
	approval, err := c.approvals.GetApproval(ctx, &loopdv1.GetApprovalRequest{Name: req.GetName()})
	if err != nil {
		return err
	}
	if err := awaits(approval, loopdv1.Approval_KIND_ANSWER); err != nil {
		return err
	}
	if err := showApproval(c.env.Stderr, approval, c.now()); err != nil {
		return err
	}
	_, choices := question(approval)
	prompt := "\nYour answer: "
	if len(choices) > 0 {
		prompt = "\nThe number of a choice, or your own words: "
	}
	said := c.ask(prompt)
	if said == "" {
		return errUnanswered
	}
	if n, err := strconv.Atoi(said); err == nil && n >= 1 && n <= len(choices) && !slices.Contains(choices, said) {
		said = choices[n-1]
	}
	if slices.Contains(choices, said) {
		req.Answer = &loopdv1.AnswerRequest_Choice{Choice: said}
	} else {
		req.Answer = &loopdv1.AnswerRequest_Text{Text: said}
	}
	return nil
}

// errUnanswered ends a command whose question was answered with nothing.
var errUnanswered = &exitError{code: exitOther, err: errors.New("nothing was answered")}

// question reads the question and its choices out of the arguments of a call.
func question(a *loopdv1.Approval) (text string, choices []string) {
	if a.GetKind() != loopdv1.Approval_KIND_ANSWER {
		return "", nil
	}
	var asked struct {
		Question string   `json:"question"`
		Choices  []string `json:"choices"`
	}
	if json.Unmarshal([]byte(a.GetArgumentsJson()), &asked) != nil {
		return "", nil
	}
	return asked.Question, asked.Choices
}

// settled writes an approval as it is after a decision.
func (c *client) settled(a *loopdv1.Approval, err error) error {
	if err != nil {
		return err
	}
	if c.output == "json" {
		return writeJSON(c.env.Stdout, a)
	}
	_, err = fmt.Fprintf(c.env.Stdout, "%s %s %s\n", a.GetName(), oneLine(a.GetTool()), word(a.GetState(), "APPROVAL_STATE_"))
	return err
}
