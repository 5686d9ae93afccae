package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func (c *client) toolCommand() *cobra.Command {
	group := &cobra.Command{
		Use:   "tool",
		Short: "Register tools for agents to refer to, and read their definitions",
	}
	group.AddCommand(c.toolApply(), c.toolList(), c.toolShow(), c.toolArchive(), c.toolCall(), c.toolImportOpenAPI(), c.toolListMCP(), c.toolAccept())
	return group
}

// toolName accepts a tool as "tools/ID" or as its id.
func toolName(arg string) string { return withPrefix("tools/", arg) }

func (c *client) toolApply() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Register a tool, or make its next version, from a YAML file",
		Long: `Register a tool, or make its next version, from a YAML or JSON file.

The file has the members of the API's RegisteredTool: name, display_name, labels,
spec. Agent versions that exist keep the tool version they were made with.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", `the file, or "-" for standard input (required)`)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if file == "" {
			return usagef("tool apply needs -f FILE")
		}
		tool := &loopdv1.RegisteredTool{}
		if err := c.readYAML(file, tool); err != nil {
			return err
		}
		if tool.GetName() == "" {
			return usagef("%s: name is empty: name the tool, such as \"name: get-order\"", file)
		}
		tool.Name = toolName(tool.GetName())
		return c.writeTool(c.tools.UpdateTool(cmd.Context(), &loopdv1.UpdateToolRequest{Tool: tool, AllowMissing: true}))
	}
	return cmd
}

// writeTool writes a tool as it is after a change.
func (c *client) writeTool(tool *loopdv1.RegisteredTool, err error) error {
	if err != nil {
		return err
	}
	if c.output == "json" {
		return writeJSON(c.env.Stdout, tool)
	}
	_, err = fmt.Fprintf(c.env.Stdout, "%s version %d\n", tool.GetName(), tool.GetVersion())
	return err
}

func (c *client) toolList() *cobra.Command {
	var archived bool
	cmd := &cobra.Command{Use: "list", Short: "List tools at their newest version", Args: cobra.NoArgs}
	cmd.Flags().BoolVar(&archived, "archived", false, "list archived tools as well")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		all, err := c.listTools(cmd.Context(), archived)
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, all)
		}
		return table(c.env.Stdout, toolRows(all.GetTools()))
	}
	return cmd
}

func (c *client) listTools(ctx context.Context, archived bool) (*loopdv1.ListToolsResponse, error) {
	all := &loopdv1.ListToolsResponse{}
	err := allPages(func(token string) (string, error) {
		page, err := c.tools.ListTools(ctx, &loopdv1.ListToolsRequest{PageSize: pageSize, PageToken: token, ShowArchived: archived})
		all.Tools = append(all.Tools, page.GetTools()...)
		return page.GetNextPageToken(), err
	})
	return all, err
}

func toolRows(tools []*loopdv1.RegisteredTool) [][]string {
	rows := [][]string{{"TOOL", "VERSION", "NAME", "EFFECT", "APPROVAL", "KIND", "CALLS"}}
	for _, t := range tools {
		version := strconv.FormatInt(t.GetVersion(), 10)
		switch {
		case t.GetVersion() == 0:
			version = "proposed"
		case t.GetArchiveTime() != nil:
			version += ", archived"
		}
		kind, calls := callsOf(t.GetSpec())
		rows = append(rows, []string{
			t.GetName(), version, t.GetSpec().GetName(), effectOf(t.GetSpec()), cut(approvalOf(t.GetSpec()), 40), kind, cut(calls, 60),
		})
	}
	return rows
}

// callsOf is the kind of a tool in one word, and what its calls reach.
func callsOf(t *loopdv1.Tool) (kind, calls string) {
	switch k := t.GetKind().(type) {
	case *loopdv1.Tool_Http:
		return "http", k.Http.GetMethod() + " " + k.Http.GetUrl()
	case *loopdv1.Tool_Mcp:
		return "mcp", k.Mcp.GetTool() + " of " + k.Mcp.GetUrl()
	case *loopdv1.Tool_Client:
		return "client", "the caller of the run"
	case *loopdv1.Tool_Agent:
		calls = k.Agent.GetAgent()
		if k.Agent.GetVersion() > 0 {
			calls += ", version " + strconv.FormatInt(k.Agent.GetVersion(), 10)
		}
		if k.Agent.GetHandOver() {
			calls += ", handing over"
		}
		return "agent", calls
	case *loopdv1.Tool_Builtin:
		return "builtin", strings.ToLower(word(k.Builtin, "BUILTIN_"))
	default:
		return "-", "-" // of a newer server
	}
}

// effectOf is a tool's effect as it counts: what is not declared counts as the worst,
// but for loopd's own tools.
func effectOf(t *loopdv1.Tool) string {
	switch {
	case t.GetEffect() != loopdv1.Effect_EFFECT_UNSPECIFIED:
		return word(t.GetEffect(), "EFFECT_")
	case t.GetBuiltin() != loopdv1.Builtin_BUILTIN_UNSPECIFIED:
		return "-"
	default:
		return "IRREVERSIBLE"
	}
}

// approvalOf says when a person must approve a call of a tool.
func approvalOf(t *loopdv1.Tool) string {
	switch t.GetApproval().GetMode() {
	case loopdv1.ApprovalMode_APPROVAL_MODE_WHEN:
		return "when " + t.GetApproval().GetWhen()
	case loopdv1.ApprovalMode_APPROVAL_MODE_UNSPECIFIED:
		if effectOf(t) == "IRREVERSIBLE" {
			return "always"
		}
		return "never"
	default:
		return strings.ToLower(word(t.GetApproval().GetMode(), "APPROVAL_MODE_"))
	}
}

func (c *client) toolShow() *cobra.Command {
	var version int64
	cmd := &cobra.Command{Use: "show TOOL", Short: "Show a tool's definition", Args: cobra.ExactArgs(1)}
	cmd.Flags().Int64Var(&version, "version", 0, "the version to show (default the newest)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := &loopdv1.GetToolRequest{Name: toolName(args[0])}
		if cmd.Flags().Changed("version") {
			req.Version = &version
		}
		tool, err := c.tools.GetTool(cmd.Context(), req)
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, tool)
		}
		return showTool(c.env.Stdout, tool)
	}
	return cmd
}

func showTool(w io.Writer, tool *loopdv1.RegisteredTool) error {
	spec := tool.GetSpec()
	kind, calls := callsOf(spec)
	rows := [][]string{
		{"Tool", fmt.Sprintf("%s, version %d", tool.GetName(), tool.GetVersion())},
		{"Display name", tool.GetDisplayName()},
		{"Name", spec.GetName()},
		{"Calls", kind + ": " + calls},
		{"Effect", effectOf(spec)},
		{"Approval", approvalOf(spec)},
	}
	if verify := spec.GetVerify(); verify != "" {
		rows = append(rows, []string{"Verified by", verify})
	}
	if mcp := spec.GetMcp(); mcp != nil {
		accepted := mcp.GetHash()
		if accepted == "" {
			accepted = "any definition"
		}
		rows = append(rows, []string{"Accepted", accepted})
	}
	if names := headersOf(spec); len(names) > 0 {
		rows = append(rows, []string{"Headers", strings.Join(names, ", ")})
	}
	rows = append(rows, []string{"Created", clock(tool.GetCreateTime())}, []string{"Updated", clock(tool.GetUpdateTime())})
	if tool.GetArchiveTime() != nil {
		rows = append(rows, []string{"Archived", clock(tool.GetArchiveTime())})
	}
	if err := table(w, rows); err != nil {
		return err
	}
	if text := spec.GetDescription(); text != "" {
		fmt.Fprintf(w, "\nDescription\n%s\n", indent(visible(text)))
	}
	if spec.GetInputSchema() != nil {
		schema, err := jsonOf(spec.GetInputSchema())
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "\nArguments\n%s\n", indent(layOut(schema)))
	}
	return nil
}

// headersOf are the names of the headers that a tool's requests carry. Their values
// may be secret where somebody wrote one in place of a reference.
func headersOf(t *loopdv1.Tool) []string {
	headers := t.GetHttp().GetHeaders()
	if t.GetMcp() != nil {
		headers = t.GetMcp().GetHeaders()
	}
	return slices.Sorted(maps.Keys(headers))
}

// jsonOf writes a schema with its members in a fixed order.
func jsonOf(schema *structpb.Struct) (string, error) {
	raw, err := json.Marshal(schema.AsMap())
	if err != nil {
		return "", fmt.Errorf("write the schema: %w", err)
	}
	return string(raw), nil
}

func (c *client) toolArchive() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "archive TOOL",
		Short: "Retire a tool for good; agent versions that exist go on using it",
		Args:  cobra.ExactArgs(1),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := toolName(args[0])
		if !yes && !c.confirm("Archive "+name+" for good? Its id is never given out again.") {
			return errUnchanged
		}
		return c.writeTool(c.tools.ArchiveTool(cmd.Context(), &loopdv1.ArchiveToolRequest{Name: name}))
	}
	return cmd
}
