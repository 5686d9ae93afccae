package server

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/propagation"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// runService starts runs and shows them. Decisions about their tool calls are in
// call_service.go, the event stream in stream.go.
type runService struct {
	loopdv1.UnsafeRunServiceServer // a method that is missing does not compile

	s *Server
}

// CreateRun creates a run. When it returns, the run is durable.
func (r *runService) CreateRun(ctx context.Context, req *loopdv1.CreateRunRequest) (*loopdv1.Run, error) {
	key, err := idempotencyKey(ctx, "CreateRun", req)
	if err != nil {
		return nil, err
	}
	spec, err := r.spec(ctx, req)
	if err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("make a run id: %w", err)
	}
	run, again, err := r.s.store.CreateRun(ctx, loop.RunRef{Tenant: tenant(ctx), ID: id.String()}, spec, key)
	if err := r.s.settleKey(ctx, key, again, err); err != nil {
		return nil, err
	}
	if !again {
		r.s.metrics.runStarted(agentID(spec.Agent), spec.Source)
	}
	return runProto(run), nil
}

// spec is everything that the run will be held to, pinned now: a later change of
// the agent, the price book or the defaults does not touch it.
func (r *runService) spec(ctx context.Context, req *loopdv1.CreateRunRequest) (loop.Spec, error) {
	agent, err := r.s.agent(ctx, req.GetAgent(), req.GetAgentVersion())
	if err != nil {
		return loop.Spec{}, err
	}
	if !agent.ArchivedAt.IsZero() {
		return loop.Spec{}, archived(req.GetAgent())
	}
	version, err := decodeSpec(agent.Spec)
	if err != nil {
		return loop.Spec{}, err
	}
	def, err := definitionOf("agent", version)
	if err != nil {
		return loop.Spec{}, err
	}
	limits, err := r.s.limitsOf("limits", version.GetLimits(), req.GetLimits())
	if err != nil {
		return loop.Spec{}, err
	}
	price, err := r.s.price("agent", def.Model)
	if err != nil {
		return loop.Spec{}, err
	}
	labels := maps.Clone(version.GetLabels())
	if labels == nil {
		labels = make(map[string]string, len(req.GetLabels()))
	}
	maps.Copy(labels, req.GetLabels())
	return loop.Spec{
		Agent: req.GetAgent(), AgentVersion: agent.Version, Definition: def, Input: req.GetInput(), Limits: limits,
		Price: price, Labels: labels, Source: source(ctx), Traceparent: traceparent(ctx),
	}, nil
}

// traceparent is the trace of the call, for the worker to go on with.
func traceparent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[keyTraceparent]
}

// GetRun reads a run.
func (r *runService) GetRun(ctx context.Context, req *loopdv1.GetRunRequest) (*loopdv1.Run, error) {
	run, err := r.run(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	return runProto(run), nil
}

// run reads a run by its name.
func (r *runService) run(ctx context.Context, name string) (postgres.Run, error) {
	run, err := r.s.store.GetRun(ctx, runRef(tenant(ctx), name))
	return run, named(err, loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "run", name)
}

// ListRuns lists runs, newest first.
func (r *runService) ListRuns(ctx context.Context, req *loopdv1.ListRunsRequest) (*loopdv1.ListRunsResponse, error) {
	cursor, err := cursorOf(req)
	if err != nil {
		return nil, err
	}
	filter := postgres.RunFilter{Agent: req.GetAgent()}
	for _, state := range req.GetStates() {
		filter.States = append(filter.States, runStateOf(state))
	}
	size := pageSize(req.GetPageSize())
	runs, err := r.s.store.ListRuns(ctx, tenant(ctx), filter, cursor, size+1)
	if err != nil {
		return nil, err
	}
	resp := &loopdv1.ListRunsResponse{}
	if len(runs) > size {
		runs = runs[:size]
		resp.NextPageToken = pageToken(req, runs[size-1].Ref.ID)
	}
	for _, run := range runs {
		resp.Runs = append(resp.Runs, runProto(run))
	}
	return resp, nil
}

// WaitRun waits until the run has ended or somebody must act.
func (r *runService) WaitRun(ctx context.Context, req *loopdv1.WaitRunRequest) (*loopdv1.Run, error) {
	wait := defaultWait
	if req.Timeout != nil {
		wait = req.GetTimeout().AsDuration()
	}
	over := time.NewTimer(wait)
	defer over.Stop()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	woken, leave := r.s.hub.subscribe(runRef(tenant(ctx), req.GetName()))
	defer leave()
	for last := wait <= 0; ; {
		run, err := r.run(ctx, req.GetName())
		if err != nil {
			return nil, err
		}
		if last || run.Head.State.Terminal() || run.Head.State == loop.StateRequiresAction {
			return runProto(run), nil
		}
		select {
		case <-woken:
		case <-poll.C:
		case <-over.C:
			last = true
		case <-r.s.draining:
			last = true
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// CancelRun cancels a run.
func (r *runService) CancelRun(ctx context.Context, req *loopdv1.CancelRunRequest) (*loopdv1.Run, error) {
	return nil, nil
}

// ListMessages lists the transcript, which is a fold of the journal.
func (r *runService) ListMessages(ctx context.Context, req *loopdv1.ListMessagesRequest) (*loopdv1.ListMessagesResponse, error) {
	return nil, nil
}

// ListToolCalls lists the tool calls of a run.
func (r *runService) ListToolCalls(ctx context.Context, req *loopdv1.ListToolCallsRequest) (*loopdv1.ListToolCallsResponse, error) {
	return nil, nil
}

// ListEvents lists the journal of a run.
func (r *runService) ListEvents(ctx context.Context, req *loopdv1.ListEventsRequest) (*loopdv1.ListEventsResponse, error) {
	if _, err := r.run(ctx, req.GetParent()); err != nil {
		return nil, err
	}
	journal, err := newJournalReader(r.s.store, runRef(tenant(ctx), req.GetParent()))
	if err != nil {
		return nil, err
	}
	if err := journal.skip(ctx, req.GetAfterSeq()); err != nil {
		return nil, err
	}
	size := pageSize(req.GetPageSize())
	events, err := journal.next(ctx, size+1)
	if err != nil {
		return nil, err
	}
	resp := &loopdv1.ListEventsResponse{Events: events[:min(size, len(events))], HasMore: len(events) > size}
	return resp, nil
}
