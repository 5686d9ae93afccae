package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/loopd/loopd/internal/loop"
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
		if errors.Is(err, pgx.ErrNoRows) {
			exists, err := q.AgentExists(ctx, db.AgentExistsParams{TenantID: a.Tenant, AgentID: a.ID})
			if err == nil && exists {
				err = ErrAgentArchived
			} else if err == nil {
				err = loop.ErrNotFound
			}
			return 0, err
		}
		if err != nil {
			return 0, err
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

// changeAgent applies a change once and reads the version that it made; 0 is the
// newest.
func (s *Store) changeAgent(ctx context.Context, tenant, id, verb string, idem Idempotency,
	change func(q *db.Queries) (version int64, err error),
) (Agent, error) {
	attempted := verb + " agent " + id
	var agent Agent
	err := s.inTx(ctx, idem.Key != "", func(q *db.Queries) error {
		earlier, used, err := idem.once(ctx, q, tenant, id)
		if err != nil {
			return err
		}
		var version int64
		if used {
			// The fingerprint covers the id, so that only the version is of interest.
			_, number, _ := strings.Cut(earlier, "@")
			if version, err = strconv.ParseInt(number, 10, 64); err != nil {
				return fmt.Errorf("idempotency record of agent %q: %w", earlier, err)
			}
		} else if version, err = change(q); err != nil {
			return err
		}
		if !used {
			if err := idem.keep(ctx, q, tenant, id+"@"+strconv.FormatInt(version, 10)); err != nil {
				return err
			}
		}
		agent, err = getAgent(ctx, q, tenant, id, version)
		return err
	})
	if err != nil {
		return Agent{}, wrap(attempted, err)
	}
	return agent, nil
}

// GetAgent reads an agent at a version, 0 for the newest. The error is a
// loop.ErrNotFound, and ErrVersionNotFound if only the version is missing.
func (s *Store) GetAgent(ctx context.Context, tenant, id string, version int64) (Agent, error) {
	agent, err := getAgent(ctx, s.q, tenant, id, version)
	if !errors.Is(err, pgx.ErrNoRows) || version == 0 {
		return agent, wrap("read agent "+id, err)
	}
	exists, err := s.q.AgentExists(ctx, db.AgentExistsParams{TenantID: tenant, AgentID: id})
	if err == nil && exists {
		err = fmt.Errorf("version %d: %w", version, ErrVersionNotFound)
	} else if err == nil {
		err = loop.ErrNotFound
	}
	return Agent{}, wrap("read agent "+id, err)
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
