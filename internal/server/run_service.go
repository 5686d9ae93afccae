package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/propagation"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// runService starts runs and shows them. Decisions about their tool calls are in
// call_service.go, pauses in pause_service.go, the event stream in stream.go.
type runService struct {
	loopdv1.UnsafeRunServiceServer // a method that is missing does not compile

	s *Server
}

// CreateRun creates a run. When it returns, the run is durable.
func (r *runService) CreateRun(ctx context.Context, req *loopdv1.CreateRunRequest) (*loopdv1.Run, error) {
	idem, err := idempotency(ctx, "CreateRun", req)
	if err != nil {
		return nil, err
	}
	leave, err := r.s.standInLine(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	spec, err := r.spec(ctx, req, idem)
	if err != nil {
		return nil, err
	}
	fresh, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("make a run id: %w", err)
	}
	id, replayed, err := r.s.store.CreateRun(ctx, loop.RunRef{Tenant: tenant(ctx), ID: fresh.String()}, spec, idem)
	r.s.countMismatch(err)
	if err != nil {
		return nil, err
	}
	if err := r.s.settle(ctx, idem, replayed); err != nil {
		return nil, err
	}
	if !replayed {
		r.s.metrics.runStarted(agentID(spec.Agent), spec.Source)
	}
	run, err := r.run(ctx, runName(id))
	if err != nil {
		return nil, err
	}
	if !replayed { // it has no trips and no calls yet
		return runProto(run), nil
	}
	return r.show(ctx, run)
}

// spec is everything that the run will be held to, pinned now: a later change of
// the agent, the price book or the defaults does not touch it.
func (r *runService) spec(ctx context.Context, req *loopdv1.CreateRunRequest, idem postgres.Idempotency) (loop.Spec, error) {
	agent, err := r.s.agent(ctx, req.GetAgent(), req.GetAgentVersion())
	if err != nil {
		return loop.Spec{}, err
	}
	if !agent.ArchivedAt.IsZero() {
		return loop.Spec{}, named(postgres.ErrAgentArchived, 0, "agent", req.GetAgent())
	}
	version, err := r.s.specs.decode(agent.Spec)
	if err != nil {
		return loop.Spec{}, err
	}
	def, err := r.s.definitionOf("agent", version)
	if err != nil {
		return loop.Spec{}, err
	}
	limits, err := r.s.limitsOf("limits", version.GetLimits(), req.GetLimits())
	if err != nil {
		return loop.Spec{}, err
	}
	if err := r.s.embed(ctx, req.GetAgent(), &def, limits); err != nil {
		return loop.Spec{}, err
	}
	prices, err := r.s.prices("agent", "agent.spec", def.AgentSpec)
	if err != nil {
		return loop.Spec{}, err
	}
	beside, err := r.s.sidePrices("agent.spec", def.AgentSpec)
	if err != nil {
		return loop.Spec{}, err
	}
	attachments, err := attachmentsOf(req.GetAttachments(), prices)
	if err != nil {
		return loop.Spec{}, err
	}
	labels := maps.Clone(version.GetLabels())
	if labels == nil {
		labels = make(map[string]string, len(req.GetLabels()))
	}
	maps.Copy(labels, req.GetLabels())
	spec := loop.Spec{
		Agent: req.GetAgent(), AgentVersion: agent.Version, Definition: def.AgentSpec,
		Input: req.GetInput(), Attachments: attachments, Limits: limits,
		Price: prices[0], FallbackPrices: prices[1:], SidePrices: beside, Labels: labels, Source: source(ctx), Traceparent: traceparent(ctx),
		Priority: priorityOf(cmp.Or(req.GetPriority(), version.GetPriority())),
	}
	return spec, r.s.admit(ctx, &spec, req.GetLimits().GetMaxCostUsd() != "", idem)
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
	return r.show(ctx, run)
}

// run reads a run by its name.
func (r *runService) run(ctx context.Context, name string) (postgres.Run, error) {
	run, err := r.s.store.GetRun(ctx, runRef(tenant(ctx), name))
	return run, named(err, loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "run", name)
}

// show shows one run. Why its calls need approvals is told by the calls, and how guards
// tripped by the journal, so that a list of runs does without.
func (r *runService) show(ctx context.Context, run postgres.Run) (*loopdv1.Run, error) {
	shown := runProto(run)
	if err := r.s.showTrips(ctx, run.Ref, shown); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(shown.GetRequiredActions(), func(a *loopdv1.RequiredAction) bool { return a.GetApproval() != "" }) {
		return shown, nil
	}
	calls, err := r.s.store.ToolCalls(ctx, run.Ref)
	if err != nil {
		return nil, err
	}
	reasons := make(map[string]string, len(calls))
	for _, call := range calls {
		reasons[callName(shown.GetName(), call.Call.ID)] = call.Asked
	}
	for _, action := range shown.GetRequiredActions() {
		if action.GetToolCall() != "" {
			action.Reason = reasons[action.GetToolCall()]
		}
	}
	return shown, nil
}

// ListRuns lists runs, newest first.
func (r *runService) ListRuns(ctx context.Context, req *loopdv1.ListRunsRequest) (*loopdv1.ListRunsResponse, error) {
	cursor, err := cursorOf(req)
	if err != nil {
		return nil, err
	}
	after, err := runCursorOf(cursor)
	if err != nil {
		return nil, err
	}
	filter := postgres.RunFilter{Agent: req.GetAgent(), Parent: runRef("", req.GetParent()).ID}
	for _, state := range req.GetStates() {
		filter.States = append(filter.States, runStateOf(state))
	}
	size := pageSize(req.GetPageSize())
	runs, err := r.s.store.ListRuns(ctx, tenant(ctx), filter, after, size+1)
	if err != nil {
		return nil, err
	}
	resp := &loopdv1.ListRunsResponse{}
	if len(runs) > size {
		runs = runs[:size]
		last := runs[size-1]
		resp.NextPageToken = pageToken(req, last.CreatedAt.Format(time.RFC3339Nano)+" "+last.Ref.ID)
	}
	for _, run := range runs {
		resp.Runs = append(resp.Runs, runProto(run))
	}
	return resp, nil
}

// runCursorOf reads a place in the list of runs: when the last run of the page before
// was created, and its id.
func runCursorOf(cursor string) (postgres.RunCursor, error) {
	if cursor == "" {
		return postgres.RunCursor{}, nil
	}
	created, id, _ := strings.Cut(cursor, " ")
	at, err := time.Parse(time.RFC3339Nano, created)
	if err != nil || uuid.Validate(id) != nil {
		return postgres.RunCursor{}, errPageToken()
	}
	return postgres.RunCursor{CreatedAt: at, ID: id}, nil
}

// WaitRun waits until the run has ended or somebody must act.
func (r *runService) WaitRun(ctx context.Context, req *loopdv1.WaitRunRequest) (*loopdv1.Run, error) {
	wait := defaultWait
	if req.Timeout != nil {
		wait = req.GetTimeout().AsDuration()
	}
	over := time.NewTimer(wait)
	defer over.Stop()
	ref := runRef(tenant(ctx), req.GetName())
	woken, leave := r.s.hub.subscribe(ref)
	defer leave()
	for last := wait <= 0; ; {
		state, err := r.s.store.GetRunState(ctx, ref)
		if err != nil {
			return nil, named(err, loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "run", req.GetName())
		}
		if last || waitIsOver(state) {
			run, err := r.run(ctx, req.GetName())
			if err != nil {
				return nil, err
			}
			if last || waitIsOver(run.Head.State) { // it may have gone on between the two readings
				return r.show(ctx, run)
			}
		}
		select {
		case <-woken:
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
	idem, err := idempotency(ctx, "CancelRun", req)
	if err != nil {
		return nil, err
	}
	ref := runRef(tenant(ctx), req.GetName())
	cancelErr := r.s.store.Signal(ctx, ref, loop.CancelRequested{Reason: req.GetReason()}, idem)
	r.s.countMismatch(cancelErr)
	if cancelErr != nil && !errors.Is(cancelErr, postgres.ErrRunFinished) {
		return nil, named(cancelErr, loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "run", req.GetName())
	}
	run, err := r.run(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if cancelErr != nil && run.Head.State != loop.StateCancelled { // cancelled twice is cancelled
		return nil, refuse(loopdv1.ErrorReason_ERROR_REASON_RUN_FINISHED,
			fmt.Sprintf("%s is %s, and an ended run never changes", req.GetName(), run.Head.State),
			"run", req.GetName(), "state", runStateProto(run.Head.State).String())
	}
	return r.show(ctx, run)
}

// ListMessages lists all that was said, which is a fold of the journal.
func (r *runService) ListMessages(ctx context.Context, req *loopdv1.ListMessagesRequest) (*loopdv1.ListMessagesResponse, error) {
	ref := runRef(tenant(ctx), req.GetParent())
	events, err := r.s.allEvents(ctx, ref)
	if err != nil {
		return nil, named(err, loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "run", req.GetParent())
	}
	state, err := loop.Fold(ref, events)
	if err != nil {
		return nil, fmt.Errorf("fold the journal: %w", err)
	}
	var sizes map[int]int64
	if len(state.Spec().Attachments) > 0 {
		if sizes, err = r.s.store.AttachmentSizes(ctx, ref); err != nil {
			return nil, err
		}
	}
	page, token, err := slicePage(req, state.Messages())
	if err != nil {
		return nil, err
	}
	resp := &loopdv1.ListMessagesResponse{NextPageToken: token}
	for _, m := range page {
		resp.Messages = append(resp.Messages, messageProto(m, sizes))
	}
	return resp, nil
}

// ListEvents lists the journal.
func (r *runService) ListEvents(ctx context.Context, req *loopdv1.ListEventsRequest) (*loopdv1.ListEventsResponse, error) {
	journal, err := newJournalReader(r.s.store, runRef(tenant(ctx), req.GetParent()))
	if err != nil {
		return nil, err
	}
	size := pageSize(req.GetPageSize())
	if err = journal.skip(ctx, req.GetAfterSeq()); err != nil {
		return nil, named(err, loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "run", req.GetParent())
	}
	events, err := journal.next(ctx, size+1)
	if err != nil {
		return nil, named(err, loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "run", req.GetParent())
	}
	return &loopdv1.ListEventsResponse{Events: events[:min(size, len(events))], HasMore: len(events) > size}, nil
}
