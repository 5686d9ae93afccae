package main

import (
	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/rule"
)

// rules makes the judge of conditions fit the engine's port.
type rules struct{ *rule.Rules }

func (r rules) NeedsApproval(spec loop.ToolSpec, call loop.ToolCall, run engine.RuleRun) string {
	return r.Rules.NeedsApproval(spec, call, rule.Run(run))
}
