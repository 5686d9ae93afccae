package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// errUnchanged ends a command whose question was not answered with yes.
var errUnchanged = &exitError{code: exitOther, err: errors.New("nothing was changed")}

func (c *client) toolImportOpenAPI() *cobra.Command {
	req := &loopdv1.ImportOpenApiRequest{}
	cmd := &cobra.Command{
		Use:   "import-openapi FILE",
		Short: "Make HTTP tools of the operations of an OpenAPI document",
		Long: `Make HTTP tools of the operations of an OpenAPI 3.0 or 3.1 document, in JSON or
YAML; "-" is standard input. They are only proposed unless --create is given. GET
and HEAD are READ_ONLY, all others IRREVERSIBLE until somebody says otherwise
with tool apply.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&req.BaseUrl, "base-url", "", "replaces the servers that the document names")
	cmd.Flags().StringVar(&req.Prefix, "prefix", "", "stands in front of each tool's name")
	cmd.Flags().BoolVar(&req.Create, "create", false, "create the tools; one whose id is taken is left as it is")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		document, err := c.readText("@" + args[0])
		if err != nil {
			return err
		}
		req.Document = document
		imported, err := c.tools.ImportOpenApi(cmd.Context(), req)
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, imported)
		}
		if err := table(c.env.Stdout, toolRows(imported.GetTools())); err != nil {
			return err
		}
		for _, note := range imported.GetNotes() {
			fmt.Fprintf(c.env.Stderr, "note: %s\n", oneLine(note))
		}
		if !req.GetCreate() {
			fmt.Fprintln(c.env.Stderr, "nothing was created: --create does")
		}
		return nil
	}
	return cmd
}

func (c *client) toolListMCP() *cobra.Command {
	var headers []string
	cmd := &cobra.Command{
		Use:   "list-mcp URL",
		Short: "Ask an MCP server for its tools; nothing is registered",
		Long: `Ask an MCP server for its tools. Nothing is registered: with -o json each comes
as a definition to read, change and give to tool apply. What the server claims of
an effect is its word only, so that no tool is looser than IRREVERSIBLE until
somebody says so.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringArrayVar(&headers, "header", nil, `header such as "Authorization: Bearer ${secret:CRM_TOKEN}"; may be repeated`)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := &loopdv1.ListMcpToolsRequest{Url: args[0], Headers: map[string]string{}}
		for _, header := range headers {
			name, value, ok := strings.Cut(header, ":")
			if !ok {
				return usagef("--header %q: write NAME: VALUE", header)
			}
			req.Headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
		list, err := c.tools.ListMcpTools(cmd.Context(), req)
		if err != nil {
			return err
		}
		if c.output == "json" {
			return writeJSON(c.env.Stdout, list)
		}
		rows := [][]string{{"TOOL", "CLAIMED EFFECT", "HASH", "DESCRIPTION"}}
		for _, d := range list.GetDefinitions() {
			rows = append(rows, []string{d.GetTool().GetMcp().GetTool(), claimed(d), d.GetHash(), cut(d.GetTool().GetDescription(), 60)})
		}
		return table(c.env.Stdout, rows)
	}
	return cmd
}

// claimed is the effect that an MCP server claims, and what the claim is worth.
func claimed(d *loopdv1.McpDefinition) string {
	effect := dash(word(d.GetSuggestedEffect(), "EFFECT_"))
	if d.GetUntrusted() {
		effect += ", unproved"
	}
	return effect
}

// acceptFlags are the flags of tool accept.
type acceptFlags struct {
	hash            string
	keepDescription bool
}

func (c *client) toolAccept() *cobra.Command {
	var flags acceptFlags
	cmd := &cobra.Command{
		Use:   "accept TOOL",
		Short: "Accept what an MCP server now says of a tool, which ends its quarantine",
		Long: `Accept what an MCP server now says of a tool, which ends its quarantine.

The server is asked; what it says now is shown against what was accepted, and
asked about, or named by --hash. The tool's next version has the server's
description and schema and is pinned to the hash; its effect, its approval rule
and all else stay. Agent versions that exist keep the tool version they have.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&flags.hash, "hash", "", "accept the definition with this hash without being asked")
	cmd.Flags().BoolVar(&flags.keepDescription, "keep-description", false, "keep the description that the tool has")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.accept(cmd.Context(), toolName(args[0]), flags)
	}
	return cmd
}

func (c *client) accept(ctx context.Context, name string, flags acceptFlags) error {
	tool, err := c.tools.GetTool(ctx, &loopdv1.GetToolRequest{Name: name})
	if err != nil {
		return err
	}
	shown, err := c.definition(ctx, tool)
	if err != nil {
		return err
	}
	if flags.hash != "" && flags.hash != shown.GetHash() {
		return &exitError{code: exitConflict, err: fmt.Errorf("the server of %s shows a definition with the hash %s, not %s: read it again", name, shown.GetHash(), flags.hash)}
	}
	if shown.GetHash() == tool.GetSpec().GetMcp().GetHash() {
		fmt.Fprintln(c.env.Stderr, "nothing to accept: the server shows the definition that was accepted")
		return c.writeTool(tool, nil)
	}
	next, ok := proto.Clone(tool.GetSpec()).(*loopdv1.Tool)
	if !ok {
		return errors.New("copy the tool: its copy is of another type")
	}
	next.GetMcp().Hash, next.InputSchema = shown.GetHash(), shown.GetTool().GetInputSchema()
	if !flags.keepDescription {
		next.Description = shown.GetTool().GetDescription()
	}
	if err := c.showAccept(tool.GetSpec(), next, shown); err != nil {
		return err
	}
	if flags.hash == "" && !c.confirm("\nAccept this definition of "+name+"?") {
		return errUnchanged
	}
	return c.writeTool(c.tools.UpdateTool(ctx, &loopdv1.UpdateToolRequest{
		Tool: &loopdv1.RegisteredTool{Name: name, Spec: next}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"spec"}},
	}))
}

// definition asks the MCP server of a tool what it now says of it.
func (c *client) definition(ctx context.Context, tool *loopdv1.RegisteredTool) (*loopdv1.McpDefinition, error) {
	mcp := tool.GetSpec().GetMcp()
	if mcp == nil {
		return nil, &exitError{code: exitConflict, err: fmt.Errorf("%s is no tool of an MCP server: there is nothing to accept", tool.GetName())}
	}
	list, err := c.tools.ListMcpTools(ctx, &loopdv1.ListMcpToolsRequest{Url: mcp.GetUrl(), Headers: mcp.GetHeaders()})
	if err != nil {
		return nil, err
	}
	for _, d := range list.GetDefinitions() {
		if d.GetTool().GetMcp().GetTool() == mcp.GetTool() {
			return d, nil
		}
	}
	return nil, &exitError{code: exitNotFound, err: fmt.Errorf("%s has no tool %q any more: loopd tool list-mcp %s shows what it has", mcp.GetUrl(), mcp.GetTool(), mcp.GetUrl())}
}

// showAccept shows what accepting a definition would change, and what it would not.
func (c *client) showAccept(before, after *loopdv1.Tool, shown *loopdv1.McpDefinition) error {
	w := c.env.Stderr
	err := table(w, [][]string{
		{"Accepted", dash(before.GetMcp().GetHash())},
		{"Shown", shown.GetHash()},
		{"Effect", effectOf(after) + ", which stays; the server claims " + claimed(shown)},
	})
	if err != nil {
		return err
	}
	old, err := shownToModel(before)
	if err != nil {
		return err
	}
	now, err := shownToModel(after)
	if err != nil {
		return err
	}
	return showChanges(w, "Changes of what the model reads", old, now)
}

// shownToModel is what a model reads of a tool, as JSON.
func shownToModel(t *loopdv1.Tool) (string, error) {
	return jsonOf(&structpb.Struct{Fields: map[string]*structpb.Value{
		"description":  structpb.NewStringValue(t.GetDescription()),
		"input_schema": structpb.NewStructValue(t.GetInputSchema()),
	}})
}
