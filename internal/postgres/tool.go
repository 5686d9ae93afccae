package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/loopd/loopd/internal/postgres/db"
)

// Tool is a registered tool at one of its versions.
type Tool struct {
	Tenant        string
	ID            string // "issue_refund" of "tools/issue_refund"
	DisplayName   string // for people, as is Description
	Description   string
	Labels        map[string]string
	Version       int64 // the one shown, counting from 1
	LatestVersion int64
	Spec          []byte    // the version's definition: JSON in the server's own form, kept byte for byte
	CreatedAt     time.Time // of the tool
	UpdatedAt     time.Time // when the version shown was made
	ArchivedAt    time.Time // zero: it is in use
}

// CreateTool registers a tool with version 1. The error is ErrToolExists if the id is
// taken. Times and versions of t are ignored. A repeated request, by idem, gets the
// answer of the first.
func (s *Store) CreateTool(ctx context.Context, t Tool, idem Idempotency) (Tool, error) {
	return s.changeTool(ctx, t.Tenant, t.ID, "create", idem, func(q *db.Queries) (int64, error) {
		labels, err := labelColumn(t.Labels)
		if err != nil {
			return 0, err
		}
		created, err := q.InsertTool(ctx, db.InsertToolParams{
			TenantID: t.Tenant, ToolID: t.ID, DisplayName: t.DisplayName, Description: t.Description, Labels: labels,
		})
		if err != nil {
			return 0, err
		}
		if created == 0 {
			return 0, ErrToolExists
		}
		return 1, q.InsertToolVersion(ctx, db.InsertToolVersionParams{TenantID: t.Tenant, ToolID: t.ID, Version: 1, Spec: t.Spec})
	})
}

// UpdateTool makes the tool's next version; agent versions that exist keep theirs. The
// error is loop.ErrNotFound or ErrToolArchived if there is no tool to update.
func (s *Store) UpdateTool(ctx context.Context, t Tool, idem Idempotency) (Tool, error) {
	return s.changeTool(ctx, t.Tenant, t.ID, "update", idem, func(q *db.Queries) (int64, error) {
		labels, err := labelColumn(t.Labels)
		if err != nil {
			return 0, err
		}
		version, err := q.NextToolVersion(ctx, db.NextToolVersionParams{
			TenantID: t.Tenant, ToolID: t.ID, DisplayName: t.DisplayName, Description: t.Description, Labels: labels,
		})
		if err != nil {
			return 0, orMissing(err, toolExists(ctx, q, t.Tenant, t.ID), ErrToolArchived)
		}
		return version, q.InsertToolVersion(ctx, db.InsertToolVersionParams{TenantID: t.Tenant, ToolID: t.ID, Version: version, Spec: t.Spec})
	})
}

// ArchiveTool retires a tool for good. Archiving twice changes nothing.
func (s *Store) ArchiveTool(ctx context.Context, tenant, id string, idem Idempotency) (Tool, error) {
	return s.changeTool(ctx, tenant, id, "archive", idem, func(q *db.Queries) (int64, error) {
		return 0, q.ArchiveTool(ctx, db.ArchiveToolParams{TenantID: tenant, ToolID: id})
	})
}

func (s *Store) changeTool(ctx context.Context, tenant, id, verb string, idem Idempotency,
	apply func(q *db.Queries) (version int64, err error),
) (Tool, error) {
	c := change{tenant: tenant, id: id, attempted: verb + " tool " + id, idem: idem}
	return changed(ctx, s, c, apply, func(q *db.Queries, version int64) (Tool, error) {
		return getTool(ctx, q, tenant, id, version)
	})
}

// GetTool reads a tool at a version, 0 for the newest. The error is a
// loop.ErrNotFound, and ErrToolVersionNotFound if only the version is missing.
func (s *Store) GetTool(ctx context.Context, tenant, id string, version int64) (Tool, error) {
	tool, err := getTool(ctx, s.q, tenant, id, version)
	if err != nil {
		err = orMissing(err, toolExists(ctx, s.q, tenant, id), fmt.Errorf("version %d: %w", version, ErrToolVersionNotFound))
	}
	return tool, wrap("read tool "+id, err)
}

// ListTools returns at most limit tools at their newest version, by id, behind the id
// given (empty: from the first).
func (s *Store) ListTools(ctx context.Context, tenant, afterID string, limit int, showArchived bool) ([]Tool, error) {
	rows, err := s.q.ListTools(ctx, db.ListToolsParams{
		TenantID: tenant, AfterID: afterID, PageSize: int32(limit), ShowArchived: showArchived,
	})
	if err != nil {
		return nil, wrap("list tools", err)
	}
	tools := make([]Tool, len(rows))
	for i, row := range rows {
		if tools[i], err = readTool(tenant, db.GetToolRow(row)); err != nil {
			return nil, err
		}
	}
	return tools, nil
}

func toolExists(ctx context.Context, q *db.Queries, tenant, id string) func() (bool, error) {
	return func() (bool, error) { return q.ToolExists(ctx, db.ToolExistsParams{TenantID: tenant, ToolID: id}) }
}

func getTool(ctx context.Context, q *db.Queries, tenant, id string, version int64) (Tool, error) {
	row, err := q.GetTool(ctx, db.GetToolParams{TenantID: tenant, ToolID: id, Version: version})
	if err != nil {
		return Tool{}, err
	}
	return readTool(tenant, row)
}

func readTool(tenant string, row db.GetToolRow) (Tool, error) {
	t := Tool{
		Tenant: tenant, ID: row.ToolID, DisplayName: row.DisplayName, Description: row.Description,
		Version: row.Version, LatestVersion: row.LatestVersion, Spec: row.Spec,
		CreatedAt: row.CreatedAt.UTC(), UpdatedAt: row.UpdatedAt.UTC(), ArchivedAt: timeOf(row.ArchivedAt),
	}
	if err := decode("labels", row.Labels, &t.Labels); err != nil {
		return Tool{}, fmt.Errorf("read tool %s: %w", row.ToolID, err)
	}
	return t, nil
}
