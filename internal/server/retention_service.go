package server

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/postgres"
)

// retentionService says how long runs are kept. A postgres.Retention deletes them.
type retentionService struct {
	loopdv1.UnsafeRetentionServiceServer // a method that is missing does not compile

	s *Server
}

// ListRetentions lists how long runs are kept, and how many there are.
func (r *retentionService) ListRetentions(ctx context.Context, _ *loopdv1.ListRetentionsRequest) (*loopdv1.ListRetentionsResponse, error) {
	rules, err := r.s.store.KeepRules(ctx, tenant(ctx))
	if err != nil {
		return nil, err
	}
	kept, err := r.s.store.KeptRuns(ctx, tenant(ctx), r.s.cfg.Retention)
	if err != nil {
		return nil, err
	}
	byAgent := map[string]*loopdv1.Retention{"": r.rule(rules, "")}
	for _, rule := range rules {
		byAgent[rule.Agent] = r.rule(rules, rule.Agent)
	}
	for _, k := range kept {
		shown := r.rule(rules, k.Agent)
		shown.EndedRuns, shown.ExpiredRuns, shown.OldestEndTime = k.Ended, k.Expired, timeProto(k.Oldest)
		byAgent[k.Agent] = shown
	}
	resp := &loopdv1.ListRetentionsResponse{}
	for _, shown := range byAgent {
		resp.Retentions = append(resp.Retentions, shown)
	}
	slices.SortFunc(resp.GetRetentions(), func(a, b *loopdv1.Retention) int { return strings.Compare(a.GetAgent(), b.GetAgent()) })
	return resp, nil
}

// rule is what holds for an agent: its own rule, that for all, or the operator's default.
func (r *retentionService) rule(rules []postgres.KeepRule, agent string) *loopdv1.Retention {
	shown := &loopdv1.Retention{Agent: agent, Source: loopdv1.RetentionSource_RETENTION_SOURCE_OPERATOR}
	keep := r.s.cfg.Retention
	for _, rule := range rules { // the one for all comes first
		if rule.Agent != "" && rule.Agent != agent {
			continue
		}
		keep = rule.Keep
		shown.Source, shown.UpdateTime, shown.Author = loopdv1.RetentionSource_RETENTION_SOURCE_AGENT, timeProto(rule.At), rule.By
		if rule.Agent == "" {
			shown.Source = loopdv1.RetentionSource_RETENTION_SOURCE_ALL_AGENTS
		}
	}
	shown.Keep = &loopdv1.Retention_Forever{Forever: true}
	if keep != 0 {
		shown.Keep = &loopdv1.Retention_Duration{Duration: durationpb.New(keep)}
	}
	return shown
}

// SetRetention sets how long runs are kept, or takes that back.
func (r *retentionService) SetRetention(ctx context.Context, req *loopdv1.SetRetentionRequest) (*loopdv1.Retention, error) {
	asked := req.GetRetention()
	idem, err := idempotency(ctx, "SetRetention", req)
	if err != nil {
		return nil, err
	}
	if asked.GetAgent() != "" {
		if _, err := r.s.agent(ctx, asked.GetAgent(), 0); err != nil {
			return nil, about(err, "retention.agent")
		}
	}
	var replayed bool
	if asked.GetKeep() == nil {
		replayed, err = r.s.store.UnsetKeepRule(ctx, tenant(ctx), asked.GetAgent(), idem)
	} else {
		keep := asked.GetDuration().AsDuration().Truncate(time.Second) // none is for ever
		replayed, err = r.s.store.SetKeepRule(ctx, tenant(ctx), postgres.KeepRule{Agent: asked.GetAgent(), Keep: keep, By: subject(ctx)}, idem)
	}
	if err != nil {
		return nil, err
	}
	rules, err := r.s.store.KeepRules(ctx, tenant(ctx))
	if err != nil {
		return nil, err
	}
	return r.rule(rules, asked.GetAgent()), markReplayed(ctx, replayed)
}
