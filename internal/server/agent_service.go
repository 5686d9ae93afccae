package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// agentService keeps the definitions of agents.
type agentService struct {
	loopdv1.UnsafeAgentServiceServer // a method that is missing does not compile

	s *Server
}

// CreateAgent creates an agent with version 1.
func (a *agentService) CreateAgent(ctx context.Context, req *loopdv1.CreateAgentRequest) (*loopdv1.Agent, error) {
	idem, err := idempotency(ctx, "CreateAgent", req)
	if err != nil {
		return nil, err
	}
	agent, err := a.draft(ctx, req.GetAgentId(), req.GetAgent())
	if err != nil {
		return nil, err
	}
	agent, err = a.s.store.CreateAgent(ctx, agent, idem)
	return a.answer(agent, req.GetAgentId(), err)
}

// GetAgent reads an agent at a version.
func (a *agentService) GetAgent(ctx context.Context, req *loopdv1.GetAgentRequest) (*loopdv1.Agent, error) {
	agent, err := a.s.agent(ctx, req.GetName(), req.GetVersion())
	if err != nil {
		return nil, err
	}
	return agentProto(agent)
}

// ListAgents lists agents by name.
func (a *agentService) ListAgents(ctx context.Context, req *loopdv1.ListAgentsRequest) (*loopdv1.ListAgentsResponse, error) {
	after, err := cursorOf(req)
	if err != nil {
		return nil, err
	}
	size := pageSize(req.GetPageSize())
	agents, err := a.s.store.ListAgents(ctx, tenant(ctx), after, size+1, req.GetShowArchived())
	if err != nil {
		return nil, err
	}
	resp := &loopdv1.ListAgentsResponse{}
	if len(agents) > size {
		agents = agents[:size]
		resp.NextPageToken = pageToken(req, agents[size-1].ID)
	}
	for _, agent := range agents {
		shown, err := agentProto(agent)
		if err != nil {
			return nil, err
		}
		resp.Agents = append(resp.Agents, shown)
	}
	return resp, nil
}

// UpdateAgent makes an agent's next version of what the mask takes from the
// request and what the newest version has.
func (a *agentService) UpdateAgent(ctx context.Context, req *loopdv1.UpdateAgentRequest) (*loopdv1.Agent, error) {
	idem, err := idempotency(ctx, "UpdateAgent", req)
	if err != nil {
		return nil, err
	}
	id := agentID(req.GetAgent().GetName())
	agent, err := a.draft(ctx, id, req.GetAgent())
	if err != nil {
		return nil, err
	}
	newest, err := a.s.store.GetAgent(ctx, tenant(ctx), id, 0)
	if errors.Is(err, loop.ErrNotFound) && req.GetAllowMissing() {
		agent, err = a.s.store.CreateAgent(ctx, agent, idem)
		return a.answer(agent, id, err)
	}
	if err != nil {
		return a.answer(agent, id, err)
	}
	takes := maskOf(req.GetUpdateMask())
	if takes("display_name") {
		newest.DisplayName = agent.DisplayName
	}
	if takes("labels") {
		newest.Labels = agent.Labels
	}
	if takes("spec") {
		newest.Spec = agent.Spec
	}
	agent, err = a.s.store.UpdateAgent(ctx, newest, idem)
	return a.answer(agent, id, err)
}

// maskOf tells which fields an update takes from its request. No mask takes all.
func maskOf(mask *fieldmaskpb.FieldMask) (takes func(path string) bool) {
	return func(path string) bool {
		return len(mask.GetPaths()) == 0 || slices.Contains(mask.GetPaths(), path)
	}
}

// ArchiveAgent retires an agent.
func (a *agentService) ArchiveAgent(ctx context.Context, req *loopdv1.ArchiveAgentRequest) (*loopdv1.Agent, error) {
	idem, err := idempotency(ctx, "ArchiveAgent", req)
	if err != nil {
		return nil, err
	}
	id := agentID(req.GetName())
	agent, err := a.s.store.ArchiveAgent(ctx, tenant(ctx), id, idem)
	return a.answer(agent, id, err)
}

// answer shows an agent that was changed, or says what stood in the way.
func (a *agentService) answer(agent postgres.Agent, id string, err error) (*loopdv1.Agent, error) {
	if err != nil {
		a.s.countMismatch(err)
		return nil, named(err, loopdv1.ErrorReason_ERROR_REASON_AGENT_NOT_FOUND, "agent", agentName(id))
	}
	return agentProto(agent)
}

// agent reads an agent by its name, at a version or, for 0, at the newest.
func (s *Server) agent(ctx context.Context, name string, version int64) (postgres.Agent, error) {
	agent, err := s.store.GetAgent(ctx, tenant(ctx), agentID(name), version)
	if errors.Is(err, postgres.ErrVersionNotFound) {
		return agent, refuse(loopdv1.ErrorReason_ERROR_REASON_AGENT_VERSION_NOT_FOUND,
			fmt.Sprintf("%s has no version %d: leave the version out for the newest", name, version),
			"agent", name, "version", strconv.FormatInt(version, 10))
	}
	return agent, named(err, loopdv1.ErrorReason_ERROR_REASON_AGENT_NOT_FOUND, "agent", name)
}

// draft checks what a request says of an agent, and makes of it what is stored.
func (a *agentService) draft(ctx context.Context, id string, agent *loopdv1.Agent) (postgres.Agent, error) {
	const path = "agent.spec"
	spec := proto.CloneOf(agent.GetSpec())
	if err := a.s.pin(ctx, path, spec); err != nil {
		return postgres.Agent{}, err
	}
	def, err := a.s.definitionOf(path, spec)
	if err != nil {
		return postgres.Agent{}, err
	}
	if err := a.s.checkDefinition(path, def); err != nil {
		return postgres.Agent{}, err
	}
	limits, err := a.s.limitsOf(path+".limits", spec.GetLimits())
	if err != nil {
		return postgres.Agent{}, err
	}
	if err := a.s.embed(ctx, agentName(id), &def, limits); err != nil {
		return postgres.Agent{}, err
	}
	encoded, err := encode(spec)
	if err != nil {
		return postgres.Agent{}, err
	}
	name := agent.GetDisplayName()
	if name == "" {
		name = id
	}
	return postgres.Agent{Tenant: tenant(ctx), ID: id, DisplayName: name, Labels: agent.GetLabels(), Spec: encoded}, nil
}

// encode writes a definition as it is stored: the API's own JSON.
func encode(definition proto.Message) ([]byte, error) {
	encoded, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(definition)
	if err != nil {
		return nil, fmt.Errorf("encode a definition: %w", err)
	}
	var compact bytes.Buffer // protojson adds spaces at random
	if err := json.Compact(&compact, encoded); err != nil {
		return nil, fmt.Errorf("encode a definition: %w", err)
	}
	return compact.Bytes(), nil
}

// decodeSpec reads an agent's definition as encode wrote it, also as a newer loopd did:
// fields that this one does not know stay behind.
func decodeSpec(stored []byte) (*loopdv1.AgentSpec, error) {
	spec := &loopdv1.AgentSpec{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(stored, spec); err != nil {
		return nil, fmt.Errorf("decode an agent's definition: %w", err)
	}
	return spec, nil
}

// agentProto shows an agent.
func agentProto(a postgres.Agent) (*loopdv1.Agent, error) {
	spec, err := decodeSpec(a.Spec)
	if err != nil {
		return nil, fmt.Errorf("agent %s, version %d: %w", a.ID, a.Version, err)
	}
	return &loopdv1.Agent{
		Name: agentName(a.ID), DisplayName: a.DisplayName, Version: a.Version, Labels: a.Labels, Spec: spec,
		CreateTime: timeProto(a.CreatedAt), UpdateTime: timeProto(a.UpdatedAt), ArchiveTime: timeProto(a.ArchivedAt),
	}, nil
}
