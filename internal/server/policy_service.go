package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// policyService keeps the rules by which loopd approves calls in a person's place.
// Workers read and count them.
type policyService struct {
	loopdv1.UnsafePolicyServiceServer // a method that is missing does not compile

	s *Server
}

// CreatePolicy creates a policy with version 1.
func (p *policyService) CreatePolicy(ctx context.Context, req *loopdv1.CreatePolicyRequest) (*loopdv1.Policy, error) {
	idem, err := idempotency(ctx, "CreatePolicy", req)
	if err != nil {
		return nil, err
	}
	policy, err := p.draft(ctx, req.GetPolicyId(), req.GetPolicy())
	if err != nil {
		return nil, err
	}
	policy, err = p.s.store.CreatePolicy(ctx, tenant(ctx), policy, idem)
	return p.answer(policy, req.GetPolicyId(), err)
}

// GetPolicy reads a policy at a version.
func (p *policyService) GetPolicy(ctx context.Context, req *loopdv1.GetPolicyRequest) (*loopdv1.Policy, error) {
	policy, err := p.s.store.GetPolicy(ctx, tenant(ctx), policyID(req.GetName()), req.GetVersion())
	if errors.Is(err, postgres.ErrPolicyVersionNotFound) {
		return nil, refuse(loopdv1.ErrorReason_ERROR_REASON_POLICY_VERSION_NOT_FOUND,
			fmt.Sprintf("%s has no version %d: leave the version out for the newest", req.GetName(), req.GetVersion()),
			"policy", req.GetName(), "version", strconv.FormatInt(req.GetVersion(), 10))
	}
	return p.answer(policy, policyID(req.GetName()), err)
}

// ListPolicies lists policies by name.
func (p *policyService) ListPolicies(ctx context.Context, req *loopdv1.ListPoliciesRequest) (*loopdv1.ListPoliciesResponse, error) {
	after, err := cursorOf(req)
	if err != nil {
		return nil, err
	}
	size := pageSize(req.GetPageSize())
	policies, err := p.s.store.ListPolicies(ctx, tenant(ctx), after, size+1, req.GetShowArchived())
	if err != nil {
		return nil, err
	}
	resp := &loopdv1.ListPoliciesResponse{}
	if len(policies) > size {
		policies = policies[:size]
		resp.NextPageToken = pageToken(req, policies[size-1].Name)
	}
	for _, policy := range policies {
		resp.Policies = append(resp.Policies, policyProto(policy))
	}
	return resp, nil
}

// UpdatePolicy makes a policy's next version of what the mask takes from the request
// and what the newest version has.
func (p *policyService) UpdatePolicy(ctx context.Context, req *loopdv1.UpdatePolicyRequest) (*loopdv1.Policy, error) {
	idem, err := idempotency(ctx, "UpdatePolicy", req)
	if err != nil {
		return nil, err
	}
	id := policyID(req.GetPolicy().GetName())
	policy, err := p.draft(ctx, id, req.GetPolicy())
	if err != nil {
		return nil, err
	}
	newest, err := p.s.store.GetPolicy(ctx, tenant(ctx), id, 0)
	if errors.Is(err, loop.ErrNotFound) && req.GetAllowMissing() {
		policy, err = p.s.store.CreatePolicy(ctx, tenant(ctx), policy, idem)
		return p.answer(policy, id, err)
	}
	if err != nil {
		return p.answer(policy, id, err)
	}
	takes := maskOf(req.GetUpdateMask())
	if !takes("tool") {
		policy.Tool = newest.Tool
	}
	if !takes("agents") {
		policy.Agents = newest.Agents
	}
	if !takes("condition") {
		policy.Condition = newest.Condition
	}
	if !takes("max_per_day") {
		policy.MaxPerDay = newest.MaxPerDay
	}
	policy, err = p.s.store.UpdatePolicy(ctx, tenant(ctx), policy, idem)
	return p.answer(policy, id, err)
}

// ArchivePolicy retires a policy.
func (p *policyService) ArchivePolicy(ctx context.Context, req *loopdv1.ArchivePolicyRequest) (*loopdv1.Policy, error) {
	idem, err := idempotency(ctx, "ArchivePolicy", req)
	if err != nil {
		return nil, err
	}
	id := policyID(req.GetName())
	policy, err := p.s.store.ArchivePolicy(ctx, tenant(ctx), id, idem)
	return p.answer(policy, id, err)
}

// draft checks what a request says of a policy, and makes of it what is stored.
func (p *policyService) draft(ctx context.Context, id string, policy *loopdv1.Policy) (postgres.Policy, error) {
	if err := p.s.cfg.ValidateRule(policy.GetCondition()); err != nil {
		return postgres.Policy{}, invalid(fieldError{"policy.condition", err.Error()})
	}
	for i, agent := range policy.GetAgents() {
		if _, err := p.s.agent(ctx, agent, 0); err != nil {
			return postgres.Policy{}, about(err, fmt.Sprintf("policy.agents[%d]", i))
		}
	}
	return postgres.Policy{
		Name: id, Tool: policy.GetTool(), Agents: policy.GetAgents(), Condition: policy.GetCondition(),
		MaxPerDay: int(policy.GetMaxPerDay()), By: subject(ctx),
	}, nil
}

// answer shows a policy, or says what stood in the way.
func (p *policyService) answer(policy postgres.Policy, id string, err error) (*loopdv1.Policy, error) {
	if err != nil {
		p.s.countMismatch(err)
		return nil, named(err, loopdv1.ErrorReason_ERROR_REASON_POLICY_NOT_FOUND, "policy", policyName(id))
	}
	return policyProto(policy), nil
}

func policyProto(p postgres.Policy) *loopdv1.Policy {
	return &loopdv1.Policy{
		Name: policyName(p.Name), Version: p.Version, UpdateTime: timeProto(p.CreatedAt), Author: p.By, Archived: p.Archived,
		Tool: p.Tool, Agents: p.Agents, Condition: p.Condition, MaxPerDay: clampInt32(p.MaxPerDay),
	}
}
