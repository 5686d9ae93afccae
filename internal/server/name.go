package server

import (
	"strings"

	"github.com/loopd/loopd/internal/loop"
)

// Resource names. The validator has checked their form before any of these reads
// one.

func runName(id string) string         { return "runs/" + id }
func agentName(id string) string       { return "agents/" + id }
func callName(run, call string) string { return run + "/toolCalls/" + call }
func agentID(name string) string       { return strings.TrimPrefix(name, "agents/") }
func runRef(tenant, name string) loop.RunRef {
	return loop.RunRef{Tenant: tenant, ID: strings.TrimPrefix(name, "runs/")}
}

// splitCall reads "runs/{run}/toolCalls/{call}".
func splitCall(name string) (run, call string) {
	run, call, _ = strings.Cut(name, "/toolCalls/")
	return run, call
}
