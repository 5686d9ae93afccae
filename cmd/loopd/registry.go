package main

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/server"
	"github.com/loopd/loopd/internal/tool"
	"github.com/loopd/loopd/internal/tool/mcp"
)

// validateTool says what is wrong with a tool of any kind.
func validateTool(spec loop.ToolSpec) []string {
	problems := tool.ValidateSpec(spec)
	if spec.MCP != nil {
		for _, p := range mcp.Problems(*spec.MCP) {
			problems = append(problems, "mcp."+p)
		}
	}
	return problems
}

// importOpenAPI makes tools of a document.
func importOpenAPI(doc []byte, baseURL, prefix string) ([]loop.ToolSpec, []string, error) {
	return tool.ImportOpenAPI(doc, tool.ImportOptions{BaseURL: baseURL, Prefix: prefix})
}

// listMCPTools asks an MCP server what it has, as proposals for the registry.
func listMCPTools(client *mcp.Client) func(context.Context, loop.MCPSpec) ([]server.MCPTool, error) {
	return func(ctx context.Context, at loop.MCPSpec) ([]server.MCPTool, error) {
		definitions, err := client.List(ctx, at)
		if err != nil {
			return nil, err
		}
		specs := mcp.Specs(at, definitions, nil)
		tools := make([]server.MCPTool, len(specs))
		for i, d := range definitions {
			tools[i] = server.MCPTool{
				Tool: specs[i], Suggested: d.Suggested, Untrusted: d.Untrusted, OutputSchema: d.OutputSchema, Annotations: d.Annotations,
			}
		}
		return tools, nil
	}
}

// breakerGauge shows the breakers of this worker's tools.
type breakerGauge struct {
	runner *tool.Runner
	desc   *prometheus.Desc
}

func newBreakerGauge(runner *tool.Runner) breakerGauge {
	return breakerGauge{runner, prometheus.NewDesc("loopd_tool_breakers_open", "Breakers of this worker that keep calls from a tool, because it has been failing; those that let one through to try count too.", nil, nil)}
}

// Describe implements prometheus.Collector.
func (g breakerGauge) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc }

// Collect implements prometheus.Collector. Names of tools would be labels that
// agents choose, so only their number is shown.
func (g breakerGauge) Collect(ch chan<- prometheus.Metric) {
	open := 0
	for _, state := range g.runner.Breakers() {
		if state != "closed" {
			open++
		}
	}
	ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(open))
}
