package main

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

func (f *fakeServer) GetPolicy(_ context.Context, req *loopdv1.GetPolicyRequest) (*loopdv1.Policy, error) {
	return f.policy, f.got(req)
}

func (f *fakeServer) ListPolicies(_ context.Context, req *loopdv1.ListPoliciesRequest) (*loopdv1.ListPoliciesResponse, error) {
	retired := smallRefunds()
	retired.Name, retired.Archived, retired.Agents, retired.Author = "policies/z-old", true, nil, ""
	return &loopdv1.ListPoliciesResponse{Policies: []*loopdv1.Policy{f.policy, retired}}, f.got(req)
}

func (f *fakeServer) UpdatePolicy(_ context.Context, req *loopdv1.UpdatePolicyRequest) (*loopdv1.Policy, error) {
	return f.policy, f.got(req)
}

func (f *fakeServer) ArchivePolicy(_ context.Context, req *loopdv1.ArchivePolicyRequest) (*loopdv1.Policy, error) {
	return f.policy, f.got(req)
}

func smallRefunds() *loopdv1.Policy {
	return &loopdv1.Policy{
		Name: "policies/small-refunds", Version: 2, UpdateTime: stamp(time.Hour), Author: "ann", Tool: "issue_refund",
		Agents: []string{"agents/support", "agents/night"}, Condition: "args.currency == 'EUR' &&\n  args.amount <= 50", MaxPerDay: 20,
	}
}

func TestPolicyApply(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.policy = smallRefunds()
	term.stdin = "name: small-refunds\ntool: issue_refund\nagents: [support, agents/night]\ncondition: args.amount <= 50\nmax_per_day: 20\n"
	term.wantCode(t, 0, term.loopd("policy", "apply", "-f", "-"))
	term.wantRequest(t, &loopdv1.UpdatePolicyRequest{AllowMissing: true, Policy: &loopdv1.Policy{
		Name: "policies/small-refunds", Tool: "issue_refund", Agents: []string{"agents/support", "agents/night"},
		Condition: "args.amount <= 50", MaxPerDay: 20,
	}})
	if got := term.stdout.String(); got != "policies/small-refunds version 2\n" {
		t.Errorf("stdout %q", got)
	}
	for _, text := range []string{"tool: issue_refund\n", "name: x\nmax_per_hour: 3\n"} {
		term.stdin = text
		term.wantCode(t, exitUsage, term.loopd("policy", "apply", "-f", "-"))
	}
}

func TestPolicyListAndShow(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.policy = smallRefunds()
	term.wantCode(t, 0, term.loopd("policy", "list", "--archived"))
	term.wantRequest(t, &loopdv1.ListPoliciesRequest{PageSize: 200, ShowArchived: true})
	golden(t, "policies.txt", term.stdout.String())

	term.wantCode(t, 0, term.loopd("policy", "show", "small-refunds", "--version", "2"))
	term.wantRequest(t, &loopdv1.GetPolicyRequest{Name: "policies/small-refunds", Version: proto.Int64(2)})
	golden(t, "policy.txt", term.stdout.String())
}
