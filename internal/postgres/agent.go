package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/loopd/loopd/internal/postgres/db"
)

// Agent is an agent at one of its versions.
type Agent struct {
	Tenant        string
	ID            string // "support" of "agents/support"
	DisplayName   string
	Labels        map[string]string
	Version       int64 // the one shown, counting from 1
	LatestVersion int64
	Spec          []byte    // the version's definition: JSON in the server's own form, kept byte for byte
	Limits        []byte    // the same for its limits; nil: none set
	CreatedAt     time.Time // of the agent
	UpdatedAt     time.Time // when the version shown was made
	ArchivedAt    time.Time // zero: it is in use
}

// CreateAgent creates an agent with version 1. The error is ErrAgentExists if the id
// is taken. Times and versions of a are ignored. A repeated request, by idem, gets
// the answer of the first.
func (s *Store) CreateAgent(ctx context.Context, a Agent, idem Idempotency) (Agent, error) {
	return s.changeAgent(ctx, a.Tenant, a.ID, "create", idem, func(q *db.Queries) (int64, error) {
		labels, err := labelColumn(a.Labels)
		if err != nil {
			return 0, err
		}
		created, err := q.InsertAgent(ctx, db.InsertAgentParams{
			TenantID: a.Tenant, AgentID: a.ID, DisplayName: a.DisplayName, Labels: labels,
		})
		if err != nil {
			return 0, err
		}
		if created == 0 {
			return 0, ErrAgentExists
		}
		return 1, q.InsertAgentVersion(ctx, versionParams(a, 1))
	})
}

// UpdateAgent makes the agent's next version; runs that exist keep theirs. The error
// is loop.ErrNotFound or ErrAgentArchived if there is no agent to update.
func (s *Store) UpdateAgent(ctx context.Context, a Agent, idem Idempotency) (Agent, error) {
	return s.changeAgent(ctx, a.Tenant, a.ID, "update", idem, func(q *db.Queries) (int64, error) {
		labels, err := labelColumn(a.Labels)
		if err != nil {
			return 0, err
		}
		version, err := q.NextAgentVersion(ctx, db.NextAgentVersionParams{
			TenantID: a.Tenant, AgentID: a.ID, DisplayName: a.DisplayName, Labels: labels,
		})
		if err != nil {
			return 0, orMissing(err, agentExists(ctx, q, a.Tenant, a.ID), ErrAgentArchived)
		}
		return version, q.InsertAgentVersion(ctx, versionParams(a, version))
	})
}

// ArchiveAgent retires an agent for good. Archiving twice changes nothing.
func (s *Store) ArchiveAgent(ctx context.Context, tenant, id string, idem Idempotency) (Agent, error) {
	return s.changeAgent(ctx, tenant, id, "archive", idem, func(q *db.Queries) (int64, error) {
		return 0, q.ArchiveAgent(ctx, db.ArchiveAgentParams{TenantID: tenant, AgentID: id})
	})
}

func (s *Store) changeAgent(ctx context.Context, tenant, id, verb string, idem Idempotency,
	apply func(q *db.Queries) (version int64, err error),
) (Agent, error) {
	c := change{tenant: tenant, id: id, attempted: verb + " agent " + id, idem: idem}
	return changed(ctx, s, c, apply, func(q *db.Queries, version int64) (Agent, error) {
		return getAgent(ctx, q, tenant, id, version)
	})
}

// GetAgent reads an agent at a version, 0 for the newest. The error is a
// loop.ErrNotFound, and ErrVersionNotFound if only the version is missing.
func (s *Store) GetAgent(ctx context.Context, tenant, id string, version int64) (Agent, error) {
	agent, err := getAgent(ctx, s.q, tenant, id, version)
	if err != nil {
		err = orMissing(err, agentExists(ctx, s.q, tenant, id), fmt.Errorf("version %d: %w", version, ErrVersionNotFound))
	}
	return agent, wrap("read agent "+id, err)
}

func agentExists(ctx context.Context, q *db.Queries, tenant, id string) func() (bool, error) {
	return func() (bool, error) { return q.AgentExists(ctx, db.AgentExistsParams{TenantID: tenant, AgentID: id}) }
}

// ListAgents returns at most limit agents at their newest version, by id, behind the
// id given (empty: from the first).
func (s *Store) ListAgents(ctx context.Context, tenant, afterID string, limit int, showArchived bool) ([]Agent, error) {
	rows, err := s.q.ListAgents(ctx, db.ListAgentsParams{
		TenantID: tenant, AfterID: afterID, PageSize: int32(limit), ShowArchived: showArchived,
	})
	if err != nil {
		return nil, wrap("list agents", err)
	}
	agents := make([]Agent, len(rows))
	for i, row := range rows {
		if agents[i], err = readAgent(tenant, db.GetAgentRow(row)); err != nil {
			return nil, err
		}
	}
	return agents, nil
}

func getAgent(ctx context.Context, q *db.Queries, tenant, id string, version int64) (Agent, error) {
	row, err := q.GetAgent(ctx, db.GetAgentParams{TenantID: tenant, AgentID: id, Version: version})
	if err != nil {
		return Agent{}, err
	}
	return readAgent(tenant, row)
}

func readAgent(tenant string, row db.GetAgentRow) (Agent, error) {
	a := Agent{
		Tenant: tenant, ID: row.AgentID, DisplayName: row.DisplayName, Version: row.Version, LatestVersion: row.LatestVersion,
		Spec: row.Spec, Limits: row.Limits,
		CreatedAt: row.CreatedAt.UTC(), UpdatedAt: row.UpdatedAt.UTC(), ArchivedAt: timeOf(row.ArchivedAt),
	}
	if err := decode("labels", row.Labels, &a.Labels); err != nil {
		return Agent{}, fmt.Errorf("read agent %s: %w", row.AgentID, err)
	}
	return a, nil
}

func versionParams(a Agent, version int64) db.InsertAgentVersionParams {
	return db.InsertAgentVersionParams{TenantID: a.Tenant, AgentID: a.ID, Version: version, Spec: a.Spec, Limits: a.Limits}
}

// labelColumn encodes labels; no labels are an empty object.
func labelColumn(labels map[string]string) (column []byte, err error) {
	if labels == nil {
		labels = map[string]string{}
	}
	err = encode(&column, labels)
	return column, err
}
