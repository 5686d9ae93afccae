package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// pageSize is how many resources a listing asks for at a time.
const pageSize = 200

func (c *client) agentCommand() *cobra.Command {
	group := &cobra.Command{Use: "agent", Short: "Define agents and read their definitions"}
	group.AddCommand(c.agentApply(), c.agentList(), c.agentShow())
	return group
}

func (c *client) agentApply() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create an agent, or make its next version, from a YAML file",
		Long: `Create an agent, or make its next version, from a YAML or JSON file.

The file has the members of the API's Agent: name, display_name, labels, spec.
Runs that exist keep the version they were created with.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", `the file, or "-" for standard input (required)`)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if file == "" {
			return usagef("agent apply needs -f FILE")
		}
		agent := &loopdv1.Agent{}
		if err := c.readYAML(file, agent); err != nil {
			return err
		}
		if agent.GetName() == "" {
			return usagef("%s: name is empty: name the agent, such as \"name: support\"", file)
		}
		agent.Name = agentName(agent.GetName())
		applied, err := c.agents.UpdateAgent(cmd.Context(), &loopdv1.UpdateAgentRequest{Agent: agent, AllowMissing: true})
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, applied)
		}
		_, err = fmt.Fprintf(c.env.Stdout, "%s version %d\n", applied.GetName(), applied.GetVersion())
		return err
	}
	return cmd
}

func (c *client) agentList() *cobra.Command {
	var archived bool
	cmd := &cobra.Command{Use: "list", Short: "List agents at their newest version", Args: cobra.NoArgs}
	cmd.Flags().BoolVar(&archived, "archived", false, "list archived agents as well")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		all := &loopdv1.ListAgentsResponse{}
		req := &loopdv1.ListAgentsRequest{PageSize: pageSize, ShowArchived: archived}
		for {
			page, err := c.agents.ListAgents(cmd.Context(), req)
			if err != nil {
				return err
			}
			all.Agents = append(all.Agents, page.GetAgents()...)
			if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
				break
			}
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, all)
		}
		rows := [][]string{{"AGENT", "VERSION", "MODEL", "TOOLS", "UPDATED", "DISPLAY NAME"}}
		for _, a := range all.GetAgents() {
			rows = append(rows, []string{
				a.GetName(), strconv.FormatInt(a.GetVersion(), 10), a.GetSpec().GetModel(),
				strconv.Itoa(len(a.GetSpec().GetTools()) + len(a.GetSpec().GetToolRefs())), clock(a.GetUpdateTime()), a.GetDisplayName(),
			})
		}
		return table(c.env.Stdout, rows)
	}
	return cmd
}

func (c *client) agentShow() *cobra.Command {
	var version int64
	cmd := &cobra.Command{Use: "show AGENT", Short: "Show an agent's definition", Args: cobra.ExactArgs(1)}
	cmd.Flags().Int64Var(&version, "version", 0, "the version to show (default the newest)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := &loopdv1.GetAgentRequest{Name: agentName(args[0])}
		if cmd.Flags().Changed("version") {
			req.Version = &version
		}
		agent, err := c.agents.GetAgent(cmd.Context(), req)
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, agent)
		}
		return showAgent(c.env.Stdout, agent)
	}
	return cmd
}

func showAgent(w io.Writer, agent *loopdv1.Agent) error {
	rows := [][]string{
		{"Agent", fmt.Sprintf("%s, version %d", agent.GetName(), agent.GetVersion())},
		{"Display name", agent.GetDisplayName()},
		{"Model", agent.GetSpec().GetModel()},
		{"Created", clock(agent.GetCreateTime())},
		{"Updated", clock(agent.GetUpdateTime())},
	}
	if agent.GetArchiveTime() != nil {
		rows = append(rows, []string{"Archived", clock(agent.GetArchiveTime())})
	}
	if err := table(w, rows); err != nil {
		return err
	}
	if text := agent.GetSpec().GetInstructions(); text != "" {
		fmt.Fprintf(w, "\nInstructions\n%s\n", indent(text))
	}
	if len(agent.GetSpec().GetTools())+len(agent.GetSpec().GetToolRefs()) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	rows = [][]string{{"TOOL", "EFFECT", "APPROVAL", "CALLS", "DESCRIPTION"}}
	for _, t := range agent.GetSpec().GetTools() {
		rows = append(rows, agentToolRow(t, ""))
	}
	for _, ref := range agent.GetSpec().GetToolRefs() {
		rows = append(rows, agentToolRow(ref.GetSpec(), fmt.Sprintf(" (%s, version %d)", ref.GetTool(), ref.GetVersion())))
	}
	return table(w, rows)
}

// agentToolRow is a tool as an agent has it, and where it is registered if it is.
func agentToolRow(t *loopdv1.Tool, registered string) []string {
	kind, calls := callsOf(t)
	if t.GetHttp() == nil {
		calls = kind + ": " + calls
	}
	return []string{t.GetName(), effectOf(t), cut(approvalOf(t), 40), calls + registered, cut(t.GetDescription(), 60)}
}

// readYAML reads one YAML or JSON document into a message, by the names that the
// message has in the API. A member it does not know is an error.
func (c *client) readYAML(file string, m proto.Message) error {
	in := c.env.Stdin
	if file != "-" {
		f, err := os.Open(file) //nolint:gosec // the user names the file to read
		if err != nil {
			return usagef("read the file: %w", err)
		}
		defer f.Close()
		in = f
	}
	decoder := yaml.NewDecoder(in)
	var document any
	if err := decoder.Decode(&document); err != nil {
		return usagef("%s: %w", file, err)
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		return usagef("%s: it has more than one document: apply them one by one", file)
	}
	raw, err := json.Marshal(document)
	if err != nil {
		return usagef("%s: it is not what JSON can say: %w", file, err)
	}
	if err := checkMembers(m.ProtoReflect().Descriptor(), "", document); err != nil {
		return usagef("%s: %w", file, err)
	}
	if err := protojson.Unmarshal(raw, m); err != nil {
		return usagef("%s: %w", file, err)
	}
	return nil
}
