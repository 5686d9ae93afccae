package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// An agent version never changes, so all that it names is pinned when it is made:
// the versions of its tools, whose definitions are kept with it, and the versions of
// the agents that it starts. Two runs of one version then have the same tools, and
// since what is pinned is older than what pins it, a circle of agents is found
// before any run. Their definitions are embedded when a run is created: only then
// are the prices known that hold for it.

// pin gives each reference in spec the version that it stands for. path names spec in
// the request.
func (s *Server) pin(ctx context.Context, path string, spec *loopdv1.AgentSpec) error {
	for i, tool := range spec.GetTools() {
		if err := s.pinAgent(ctx, fmt.Sprintf("%s.tools[%d]", path, i), tool); err != nil {
			return err
		}
	}
	for i, ref := range spec.GetToolRefs() {
		if err := s.pinTool(ctx, fmt.Sprintf("%s.tool_refs[%d]", path, i), ref); err != nil {
			return err
		}
	}
	return nil
}

// pinAgent pins the agent that a tool is, if it is one.
func (s *Server) pinAgent(ctx context.Context, path string, tool *loopdv1.Tool) error {
	ref := tool.GetAgent()
	if ref == nil {
		return nil
	}
	agent, err := s.agent(ctx, ref.GetAgent(), ref.GetVersion())
	if err == nil && !agent.ArchivedAt.IsZero() {
		err = named(postgres.ErrAgentArchived, 0, "agent", ref.GetAgent())
	}
	if err != nil {
		return about(err, path+".agent")
	}
	ref.Version = agent.Version
	return nil
}

// pinTool pins a registered tool.
func (s *Server) pinTool(ctx context.Context, path string, ref *loopdv1.ToolRef) error {
	tool, err := s.tool(ctx, ref.GetTool(), ref.GetVersion())
	if err == nil && !tool.ArchivedAt.IsZero() {
		err = named(postgres.ErrToolArchived, 0, "tool", ref.GetTool())
	}
	if err != nil {
		return about(err, path+".tool")
	}
	ref.Version = tool.Version
	ref.Spec, err = decodeTool(tool.Spec)
	return err
}

// about names the field of the request that an error is about.
func about(err error, field string) error {
	if r, ok := errors.AsType[*refusal](err); ok && len(r.fields) == 0 {
		r.fields = []fieldError{{field, r.detail}}
	}
	return err
}

// maxAgents is how many agents a run may have below its own: each definition is part
// of the run's first event.
const maxAgents = 32

// tree embeds agents in the agents that start them.
type tree struct {
	s        *Server
	maxDepth int
	agents   int                       // embedded so far
	read     map[string]postgres.Agent // by name and version
}

// embed fills in the agents that def starts, and those that they start. name is the
// agent that def is of.
func (s *Server) embed(ctx context.Context, name string, def *definition, limits loop.Limits) error {
	t := &tree{s: s, maxDepth: limits.ChildDepth, read: make(map[string]postgres.Agent)}
	for i := range def.Tools {
		if def.Tools[i].Child != nil {
			if err := t.embed(ctx, def.places[def.Tools[i].Name]+".agent", []string{name}, def.Tools[i].Child); err != nil {
				return err
			}
		}
	}
	return nil
}

// embed fills in one agent. field names the tool of the outermost agent by which it is
// reached, above the agents on the way.
func (t *tree) embed(ctx context.Context, field string, above []string, child *loop.ChildSpec) error {
	name := child.Spec.Agent
	path := append(slices.Clone(above), name)
	switch {
	case slices.Contains(above, name):
		return nesting(field, path, "agents that start each other would never end: take one of them out")
	case len(above) > t.maxDepth:
		return nesting(field, path, fmt.Sprintf("that is %d deep, and limits.max_child_depth is %d: flatten it, or raise the limit", len(above), t.maxDepth))
	case t.agents >= maxAgents:
		return nesting(field, path, fmt.Sprintf("a run may have %d agents below its own: start fewer", maxAgents))
	}
	t.agents++
	spec, def, err := t.spec(ctx, field, name, child.Spec.AgentVersion)
	if err != nil {
		return about(err, field)
	}
	for i := range def.Tools {
		if def.Tools[i].Child != nil {
			if err := t.embed(ctx, field, path, def.Tools[i].Child); err != nil {
				return err
			}
		}
	}
	spec.Definition = def.AgentSpec
	child.Spec = spec
	return nil
}

// spec is what child runs of an agent version are created with, but for its
// definition.
func (t *tree) spec(ctx context.Context, field, name string, version int64) (loop.Spec, definition, error) {
	key := name + "@" + strconv.FormatInt(version, 10)
	agent, ok := t.read[key]
	if !ok {
		var err error
		if agent, err = t.s.agent(ctx, name, version); err != nil {
			return loop.Spec{}, definition{}, err
		}
		if !agent.ArchivedAt.IsZero() {
			return loop.Spec{}, definition{}, named(postgres.ErrAgentArchived, 0, "agent", name)
		}
		t.read[key] = agent
	}
	stored, err := decodeSpec(agent.Spec)
	if err != nil {
		return loop.Spec{}, definition{}, err
	}
	def, err := t.s.definitionOf(field, stored)
	if err != nil {
		return loop.Spec{}, definition{}, err
	}
	limits, err := t.s.limitsOf(field, stored.GetLimits())
	if err != nil {
		return loop.Spec{}, definition{}, err
	}
	prices, err := t.s.prices(field, field, def.AgentSpec)
	if err != nil {
		return loop.Spec{}, definition{}, err
	}
	sidePrices, err := t.s.sidePrices(field, def.AgentSpec)
	if err != nil {
		return loop.Spec{}, definition{}, err
	}
	return loop.Spec{
		Agent: name, AgentVersion: agent.Version, Limits: limits,
		Price: prices[0], FallbackPrices: prices[1:], SidePrices: sidePrices,
	}, def, nil
}

// nesting refuses a path of agents.
func nesting(field string, path []string, fix string) error {
	way := strings.Join(path, " -> ")
	r := invalid(fieldError{field, way + ": " + fix})
	r.reason, r.metadata = loopdv1.ErrorReason_ERROR_REASON_AGENT_NESTING_INVALID, map[string]string{"path": way}
	return r
}
