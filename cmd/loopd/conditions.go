package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/loopd/loopd/internal/server"
	"github.com/loopd/loopd/internal/tool"
)

// conditions are how the worker beside the server stands.
func (d *daemon) conditions(tools *tool.Runner) []server.Condition {
	lease := server.Condition{Name: "lease", Informs: true}
	if !d.engine.Leased() {
		lease.Fault = "this worker's lease ran out, so it drives no runs until the database answers again"
	}
	all := []server.Condition{lease}
	circuits := d.engine.Circuits()
	for _, provider := range slices.Sorted(maps.Keys(circuits)) {
		c := server.Condition{Name: "provider " + provider, Informs: true}
		if state := circuits[provider]; state != "closed" {
			c.Fault = fmt.Sprintf("its circuit is %s: it has been failing; loopd tries it again by itself", state)
		}
		all = append(all, c)
	}
	open := 0
	for _, state := range tools.Breakers() {
		if state != "closed" {
			open++
		}
	}
	breakers := server.Condition{Name: "tools", Informs: true}
	if open > 0 {
		breakers.Fault = fmt.Sprintf("%d breakers keep calls from tools that have been failing: see loopd_tool_calls_total by tool", open)
	}
	return append(all, breakers)
}
