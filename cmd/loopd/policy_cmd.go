package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func (c *client) policyCommand() *cobra.Command {
	group := &cobra.Command{
		Use:   "policy",
		Short: "Keep the rules by which calls are approved in a person's place",
	}
	group.AddCommand(c.policyApply(), c.policyList(), c.policyShow(), c.policyArchive())
	return group
}

// policyName accepts a policy as "policies/ID" or as its id.
func policyName(arg string) string { return withPrefix("policies/", arg) }

func (c *client) policyApply() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create a policy, or make its next version, from a YAML file",
		Long: `Create a policy, or make its next version, from a YAML or JSON file.

The file has the members of the API's Policy: name, tool, agents, condition,
max_per_day. The new version counts at once, and only the newest one does.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", `the file, or "-" for standard input (required)`)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if file == "" {
			return usagef("policy apply needs -f FILE")
		}
		policy := &loopdv1.Policy{}
		if err := c.readYAML(file, policy); err != nil {
			return err
		}
		if policy.GetName() == "" {
			return usagef("%s: name is empty: name the policy, such as \"name: small-refunds\"", file)
		}
		policy.Name = policyName(policy.GetName())
		for i, agent := range policy.GetAgents() {
			policy.Agents[i] = agentName(agent)
		}
		return c.writePolicy(c.policies.UpdatePolicy(cmd.Context(), &loopdv1.UpdatePolicyRequest{Policy: policy, AllowMissing: true}))
	}
	return cmd
}

// writePolicy writes a policy as it is after a change.
func (c *client) writePolicy(policy *loopdv1.Policy, err error) error {
	if err != nil {
		return err
	}
	if c.output == "json" {
		return writeJSON(c.env.Stdout, policy)
	}
	_, err = fmt.Fprintf(c.env.Stdout, "%s version %d\n", policy.GetName(), policy.GetVersion())
	return err
}

func (c *client) policyList() *cobra.Command {
	var archived bool
	cmd := &cobra.Command{Use: "list", Short: "List policies at their newest version", Args: cobra.NoArgs}
	cmd.Flags().BoolVar(&archived, "archived", false, "list archived policies as well")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		all := &loopdv1.ListPoliciesResponse{}
		err := allPages(func(token string) (string, error) {
			page, err := c.policies.ListPolicies(cmd.Context(), &loopdv1.ListPoliciesRequest{PageSize: pageSize, PageToken: token, ShowArchived: archived})
			all.Policies = append(all.Policies, page.GetPolicies()...)
			return page.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, all)
		}
		return table(c.env.Stdout, policyRows(all.GetPolicies()))
	}
	return cmd
}

func policyRows(policies []*loopdv1.Policy) [][]string {
	rows := [][]string{{"POLICY", "VERSION", "TOOL", "AGENTS", "MAX PER DAY", "CONDITION", "UPDATED", "BY"}}
	for _, p := range policies {
		version := strconv.FormatInt(p.GetVersion(), 10)
		if p.GetArchived() {
			version += ", archived"
		}
		rows = append(rows, []string{
			p.GetName(), version, p.GetTool(), cut(agentsOf(p), 40), strconv.Itoa(int(p.GetMaxPerDay())),
			cut(p.GetCondition(), 60), clock(p.GetUpdateTime()), dash(p.GetAuthor()),
		})
	}
	return rows
}

// agentsOf names the agents that a policy holds for.
func agentsOf(p *loopdv1.Policy) string {
	if len(p.GetAgents()) == 0 {
		return "all"
	}
	return strings.ReplaceAll(strings.Join(p.GetAgents(), ", "), "agents/", "")
}

func (c *client) policyShow() *cobra.Command {
	var version int64
	cmd := &cobra.Command{Use: "show POLICY", Short: "Show a policy, with its whole condition", Args: cobra.ExactArgs(1)}
	cmd.Flags().Int64Var(&version, "version", 0, "the version to show (default the newest)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := &loopdv1.GetPolicyRequest{Name: policyName(args[0])}
		if cmd.Flags().Changed("version") {
			req.Version = &version
		}
		policy, err := c.policies.GetPolicy(cmd.Context(), req)
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, policy)
		}
		return showPolicy(c.env.Stdout, policy)
	}
	return cmd
}

func showPolicy(w io.Writer, p *loopdv1.Policy) error {
	state := "approves calls"
	if p.GetArchived() {
		state = "archived: approves nothing"
	}
	err := table(w, [][]string{
		{"Policy", fmt.Sprintf("%s, version %d", p.GetName(), p.GetVersion())},
		{"State", state},
		{"Tool", p.GetTool()},
		{"Agents", agentsOf(p)},
		{"At most", count(p.GetMaxPerDay(), "call") + " a day (UTC)"},
		{"Updated", clock(p.GetUpdateTime()) + by(p.GetAuthor())},
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\nCondition\n%s\n", indent(visible(p.GetCondition())))
	return err
}

func (c *client) policyArchive() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "archive POLICY",
		Short: "Retire a policy for good: it approves nothing more",
		Args:  cobra.ExactArgs(1),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := policyName(args[0])
		if !yes && !c.confirm("Archive "+name+" for good? Its id is never given out again.") {
			return errUnchanged
		}
		return c.writePolicy(c.policies.ArchivePolicy(cmd.Context(), &loopdv1.ArchivePolicyRequest{Name: name}))
	}
	return cmd
}
