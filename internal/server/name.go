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
func toolName(id string) string        { return "tools/" + id }
func toolID(name string) string        { return strings.TrimPrefix(name, "tools/") }
func policyName(id string) string      { return "policies/" + id }
func policyID(name string) string      { return strings.TrimPrefix(name, "policies/") }
func budgetName(id string) string      { return "budgets/" + id }
func budgetID(name string) string      { return strings.TrimPrefix(name, "budgets/") }
func runRef(tenant, name string) loop.RunRef {
	return loop.RunRef{Tenant: tenant, ID: strings.TrimPrefix(name, "runs/")}
}

// splitCall reads "runs/{run}/toolCalls/{call}".
func splitCall(name string) (run, call string) {
	run, call, _ = strings.Cut(name, "/toolCalls/")
	return run, call
}

// approvalName names the approval of a call by the ids of its run and of the call.
func approvalName(run, call string) string { return "approvals/" + run + "." + call }

// splitApproval reads "approvals/{run}.{call}".
func splitApproval(owner, name string) (run loop.RunRef, call string) {
	id, call, _ := strings.Cut(strings.TrimPrefix(name, "approvals/"), ".")
	return loop.RunRef{Tenant: owner, ID: id}, call
}
