package postgres

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// addChild adds a run to create. Its spec is kept whole in its first event, also the
// data of attachments, as the event of its parent has it too.
func addChild(p *db.AppendEventsParams, parent loop.RunRef, child loop.ChildStart) error {
	of := child.Spec.Parent
	if of == nil || of.RunID != parent.ID || of.Depth < 1 {
		return fmt.Errorf("it is not a child of run %s: %w", parent.ID, loop.ErrRefused)
	}
	n, err := runParams(loop.RunRef{Tenant: parent.Tenant, ID: child.ID}, child.Spec)
	if err != nil {
		return err
	}
	_, body, err := loop.EncodeBody(loop.Created{Spec: child.Spec})
	if err != nil {
		return err
	}
	p.ChildIds = append(p.ChildIds, child.ID)
	p.ChildAgents = append(p.ChildAgents, n.run.Agent)
	p.ChildVersions = append(p.ChildVersions, n.run.AgentVersion)
	p.ChildInputs = append(p.ChildInputs, string(n.run.Input))
	p.ChildLimits = append(p.ChildLimits, string(n.run.Limits))
	p.ChildLabels = append(p.ChildLabels, string(n.run.Labels))
	p.ChildSources = append(p.ChildSources, n.run.Source)
	p.ChildOutputSchemas = append(p.ChildOutputSchemas, n.run.HasOutputSchema)
	p.ChildCalls = append(p.ChildCalls, of.CallID)
	p.ChildRoots = append(p.ChildRoots, of.RootID)
	p.ChildDepths = append(p.ChildDepths, n.run.Depth)
	p.ChildBodies = append(p.ChildBodies, string(body))
	p.ChildMoney = append(p.ChildMoney, n.account.LimitPico)
	return nil
}

// addOutgoing adds a signal for another run.
func addOutgoing(p *db.AppendEventsParams, out loop.Outgoing) error {
	if out.RunID == p.RunID {
		return fmt.Errorf("a run does not signal itself: %w", loop.ErrRefused)
	}
	kind, body, err := loop.EncodeBody(out.Body)
	if err != nil {
		return err
	}
	p.OutgoingRuns = append(p.OutgoingRuns, out.RunID)
	p.OutgoingKinds = append(p.OutgoingKinds, kind)
	p.OutgoingBodies = append(p.OutgoingBodies, string(body))
	return nil
}

// lockFirst has the first append of a transaction lock all rows of runs that the
// transaction will change, if one of them belongs to another run than its append.
// Otherwise parents and children that signal each other could wait for each other.
func lockFirst(params []db.AppendEventsParams) {
	if !slices.ContainsFunc(params, func(p db.AppendEventsParams) bool { return len(p.OutgoingRuns) > 0 }) {
		return
	}
	first := &params[0]
	first.LockTenants, first.LockRuns = nil, nil // of an earlier try
	add := func(tenant, run string) {
		first.LockTenants, first.LockRuns = append(first.LockTenants, tenant), append(first.LockRuns, run)
	}
	for _, p := range params {
		add(p.TenantID, p.RunID)
		for _, run := range p.OutgoingRuns {
			add(p.TenantID, run)
		}
	}
}

// byRun is the order in which appends lock the rows of their runs, that of lockFirst
// in SQL.
func byRun(a, b *pending) int {
	return cmp.Or(cmp.Compare(a.params.TenantID, b.params.TenantID), cmp.Compare(a.params.RunID, b.params.RunID))
}
