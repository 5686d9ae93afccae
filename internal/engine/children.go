package engine

import (
	"context"

	"github.com/loopd/loopd/internal/loop"
)

// involve adds to a batch what an event means for other runs: children to create
// or to cancel, and a parent to report to.
func (o *owner) involve(out *Batch, body loop.Body) {
	switch b := body.(type) {
	case loop.CallHandedOut:
		if b.Child != nil {
			out.Children = append(out.Children, loop.ChildStart{ID: b.ChildID, Spec: *b.Child})
		}
	case loop.ChildCancelled:
		out.Outgoing = append(out.Outgoing, cancelOf(b.ChildID, b.Reason))
	case loop.Finished:
		for _, id := range o.state.LiveChildren() {
			out.Outgoing = append(out.Outgoing, cancelOf(id, "the run that started it has ended"))
		}
		if report := o.state.ChildReport(); report != nil {
			out.Outgoing = append(out.Outgoing, *report)
		}
	}
}

func cancelOf(run, reason string) loop.Outgoing {
	return loop.Outgoing{RunID: run, Body: loop.CancelRequested{By: "parent run", Reason: reason}}
}

// suspend gives the lease back, unless a policy decides on what the run waits for.
func (o *owner) suspend(ctx context.Context, a loop.Suspend) (released bool, err error) {
	decided, err := o.askPolicies(ctx)
	if decided || err != nil {
		return false, err
	}
	return true, o.commit(ctx, batch{bodies: a.Intent(), intent: true, release: true})
}

// askPolicies has policies decide on calls that wait for an approval, each call
// once in a tenure. Policies that cannot be read leave the decision to a person.
func (o *owner) askPolicies(ctx context.Context) (decided bool, err error) {
	if o.e.cfg.Approver == nil {
		return false, nil
	}
	for _, want := range o.state.Head().RequiredActions {
		if want.Kind != loop.RequireApprove || o.asked[want.CallID] {
			continue
		}
		o.asked[want.CallID] = true
		spec, _ := o.state.Spec().Definition.Tool(want.Tool)
		call := loop.ToolCall{ID: want.CallID, Name: want.Tool, Args: want.Args}
		decision, ok, err := o.e.cfg.Approver.Decide(ctx, o.ruleRun(), spec, call, want.ArgsHash)
		if err != nil {
			o.log.WarnContext(ctx, "policies cannot be asked, a person must decide", "call", want.CallID, "error", err)
		}
		if err != nil || !ok {
			continue
		}
		// A person who decided meanwhile goes first.
		if err := o.commit(ctx, batch{bodies: []loop.Body{decision}, intent: true}); err != nil {
			return false, err
		}
		decided = true
	}
	return decided, nil
}

// ruleRun is what rules may know of the run now.
func (o *owner) ruleRun() RuleRun {
	spec, h := o.state.Spec(), o.state.Head()
	return RuleRun{
		Ref: o.lease.Run, Agent: spec.Agent, Labels: spec.Labels,
		Iterations: h.Iterations, ToolCalls: h.ToolCalls, Cost: h.Cost.Total(),
	}
}

// needsApproval judges the condition of a call's tool. Without anybody who can
// judge, a person must.
func (o *owner) needsApproval(spec loop.ToolSpec, call loop.ToolCall) string {
	switch {
	case spec.Approval.Mode != loop.ApprovalWhen || call.Problem != "":
		return ""
	case o.e.cfg.Rules == nil:
		return "nobody here can judge the condition " + spec.Approval.When
	}
	return o.e.cfg.Rules.NeedsApproval(spec, call, o.ruleRun())
}

// verify asks the tool that can tell whether a call in doubt took effect.
func (o *owner) verify(ctx context.Context, a loop.VerifyCall) error {
	results := make(chan toolResult, 1)
	o.forkCall(ctx, a.Send, o.clock.now().Add(a.Send.Spec.Timeout), results)
	r := <-results
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return o.commit(ctx, batch{bodies: []loop.Body{a.Verified(r.reply, o.clock.now())}, intent: true})
}
