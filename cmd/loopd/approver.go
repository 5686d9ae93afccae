package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
	"github.com/loopd/loopd/internal/rule"
)

// policyStore is what the approver needs of the store.
type policyStore interface {
	// Policies returns the policies in use for the tool, at their newest version, by
	// name.
	Policies(ctx context.Context, tenant, tool string) ([]postgres.Policy, error)
	// UsePolicy counts one use on the day, unless that were more than most.
	UsePolicy(ctx context.Context, tenant, policy string, version int64, day time.Time, most int) (bool, error)
}

// approver decides on calls by the policies that people wrote, and makes the
// store and the judge of conditions fit the engine's port.
type approver struct {
	store policyStore
	rules *rule.Rules
	log   *slog.Logger
}

// Decide returns the decision of the first policy, by name, that is for the tool
// and the agent, whose condition holds and whose count of the day (UTC) is not
// used up. A condition that cannot be judged does not hold. The use is counted
// before the decision is known to anybody: a worker that dies in between has
// counted one too many, never one too few.
func (a approver) Decide(ctx context.Context, run engine.RuleRun, spec loop.ToolSpec, call loop.ToolCall, hash string) (loop.ApprovalDecided, bool, error) {
	tenant := run.Ref.Tenant
	policies, err := a.store.Policies(ctx, tenant, spec.Name)
	if err != nil {
		return loop.ApprovalDecided{}, false, err
	}
	for _, p := range policies {
		if !a.applies(ctx, p, run, spec, call) {
			continue
		}
		today := time.Now().UTC().Truncate(24 * time.Hour)
		counted, err := a.store.UsePolicy(ctx, tenant, p.Name, p.Version, today, p.MaxPerDay)
		if err != nil {
			return loop.ApprovalDecided{}, false, err
		}
		if counted {
			return loop.ApprovalDecided{
				CallID: call.ID, ArgsHash: hash, Approved: true,
				By: fmt.Sprintf("policies/%s@%d", p.Name, p.Version), Reason: p.Condition,
			}, true, nil
		}
	}
	return loop.ApprovalDecided{}, false, nil
}

// applies reports whether the policy is for the call and its condition holds.
// The log names no fault, since a fault may quote the call's arguments.
func (a approver) applies(ctx context.Context, p postgres.Policy, run engine.RuleRun, spec loop.ToolSpec, call loop.ToolCall) bool {
	if p.Archived || p.Tool != spec.Name || len(p.Agents) > 0 && !slices.Contains(p.Agents, run.Agent) {
		return false
	}
	holds, err := a.rules.Holds(p.Condition, spec, call, rule.Run(run))
	if err != nil {
		a.log.WarnContext(ctx, "a policy cannot judge a call: a person must decide unless another policy does",
			slog.String("policy", p.Name), slog.Int64("version", p.Version), slog.String("run", run.Ref.ID), slog.String("call", call.ID))
		return false
	}
	return holds
}
