package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/loopd/loopd/internal/postgres/db"
)

// Policy is a rule, at one of its versions, that approves calls of a tool instead of a
// person, within the bounds that a person wrote.
type Policy struct {
	Name      string    // its id, "small_refunds" of "policies/small_refunds"
	Version   int64     // the one shown, counting from 1
	Tool      string    // name of the tool
	Agents    []string  // resource names of the agents whose calls it approves; empty: all
	Condition string    // in CEL, over the call and its run
	MaxPerDay int       // calls that it approves in a day (UTC)
	By        string    // who wrote the version
	CreatedAt time.Time // of the version
	Archived  bool      // it approves nothing any more
}

// policyBody is the part of a version that is kept as one document.
type policyBody struct {
	Tool      string   `json:"tool"`
	Agents    []string `json:"agents,omitempty"`
	Condition string   `json:"condition"`
	MaxPerDay int      `json:"max_per_day"`
	By        string   `json:"by,omitempty"`
}

// CreatePolicy creates a policy with version 1. The error is ErrPolicyExists if the
// name is taken. Time and version of p are ignored. A repeated request, by idem, gets
// the answer of the first.
func (s *Store) CreatePolicy(ctx context.Context, tenant string, p Policy, idem Idempotency) (Policy, error) {
	return s.changePolicy(ctx, tenant, p.Name, "create", idem, func(q *db.Queries) (int64, error) {
		created, err := q.InsertPolicy(ctx, db.InsertPolicyParams{TenantID: tenant, PolicyID: p.Name, Tool: p.Tool})
		if err != nil {
			return 0, err
		}
		if created == 0 {
			return 0, ErrPolicyExists
		}
		return 1, insertPolicyVersion(ctx, q, tenant, p, 1)
	})
}

// UpdatePolicy makes the policy's next version; the one before approves nothing from
// then on. The error is loop.ErrNotFound or ErrPolicyArchived if there is no policy to
// update.
func (s *Store) UpdatePolicy(ctx context.Context, tenant string, p Policy, idem Idempotency) (Policy, error) {
	return s.changePolicy(ctx, tenant, p.Name, "update", idem, func(q *db.Queries) (int64, error) {
		version, err := q.NextPolicyVersion(ctx, db.NextPolicyVersionParams{TenantID: tenant, PolicyID: p.Name, Tool: p.Tool})
		if err != nil {
			return 0, orMissing(err, policyExists(ctx, q, tenant, p.Name), ErrPolicyArchived)
		}
		return version, insertPolicyVersion(ctx, q, tenant, p, version)
	})
}

// ArchivePolicy retires a policy for good. Archiving twice changes nothing.
func (s *Store) ArchivePolicy(ctx context.Context, tenant, name string, idem Idempotency) (Policy, error) {
	return s.changePolicy(ctx, tenant, name, "archive", idem, func(q *db.Queries) (int64, error) {
		return 0, q.ArchivePolicy(ctx, db.ArchivePolicyParams{TenantID: tenant, PolicyID: name})
	})
}

func (s *Store) changePolicy(ctx context.Context, tenant, name, verb string, idem Idempotency,
	apply func(q *db.Queries) (version int64, err error),
) (Policy, error) {
	c := change{tenant: tenant, id: name, attempted: verb + " policy " + name, idem: idem}
	return changed(ctx, s, c, apply, func(q *db.Queries, version int64) (Policy, error) {
		return getPolicy(ctx, q, tenant, name, version)
	})
}

func insertPolicyVersion(ctx context.Context, q *db.Queries, tenant string, p Policy, version int64) error {
	params := db.InsertPolicyVersionParams{TenantID: tenant, PolicyID: p.Name, Version: version}
	body := policyBody{Tool: p.Tool, Agents: p.Agents, Condition: p.Condition, MaxPerDay: p.MaxPerDay, By: p.By}
	if err := encode(&params.Body, body); err != nil {
		return err
	}
	return q.InsertPolicyVersion(ctx, params)
}

// GetPolicy reads a policy at a version, 0 for the newest. The error is a
// loop.ErrNotFound, and ErrPolicyVersionNotFound if only the version is missing.
func (s *Store) GetPolicy(ctx context.Context, tenant, name string, version int64) (Policy, error) {
	policy, err := getPolicy(ctx, s.q, tenant, name, version)
	if err != nil {
		err = orMissing(err, policyExists(ctx, s.q, tenant, name), fmt.Errorf("version %d: %w", version, ErrPolicyVersionNotFound))
	}
	return policy, wrap("read policy "+name, err)
}

// ListPolicies returns at most limit policies at their newest version, by name, behind
// the name given (empty: from the first).
func (s *Store) ListPolicies(ctx context.Context, tenant, afterName string, limit int, showArchived bool) ([]Policy, error) {
	rows, err := s.q.ListPolicies(ctx, db.ListPoliciesParams{
		TenantID: tenant, AfterID: afterName, PageSize: int32(limit), ShowArchived: showArchived,
	})
	if err != nil {
		return nil, wrap("list policies", err)
	}
	policies := make([]Policy, len(rows))
	for i, row := range rows {
		if policies[i], err = readPolicy(db.GetPolicyRow(row)); err != nil {
			return nil, err
		}
	}
	return policies, nil
}

// Policies returns the policies in use for a tool, at their newest version, by name.
func (s *Store) Policies(ctx context.Context, tenant, tool string) ([]Policy, error) {
	rows, err := s.q.ListToolPolicies(ctx, db.ListToolPoliciesParams{TenantID: tenant, Tool: tool})
	if err != nil {
		return nil, wrap("list the policies of tool "+tool, err)
	}
	policies := make([]Policy, len(rows))
	for i, row := range rows {
		if policies[i], err = readPolicy(db.GetPolicyRow(row)); err != nil {
			return nil, err
		}
	}
	return policies, nil
}

// UsePolicy counts one approval by a policy on a day (in UTC), in one statement. It
// is false, and nothing was counted, when the policy has approved maxCount calls on
// that day, all its versions together, or when the version is no longer the newest of
// a policy in use. When the outcome of a count is unknown it may be counted twice:
// the bound holds.
func (s *Store) UsePolicy(ctx context.Context, tenant, policy string, version int64, day time.Time, maxCount int) (ok bool, err error) {
	err = s.inOne(ctx, func(q *db.Queries) error {
		counted, err := q.UsePolicy(ctx, db.UsePolicyParams{
			TenantID: tenant, PolicyID: policy, Version: version, Day: day.UTC(), MaxUses: int32(maxCount),
		})
		ok = counted == 1
		return err
	})
	return ok && err == nil, wrap("use policy "+policy, err)
}

func policyExists(ctx context.Context, q *db.Queries, tenant, name string) func() (bool, error) {
	return func() (bool, error) {
		return q.PolicyExists(ctx, db.PolicyExistsParams{TenantID: tenant, PolicyID: name})
	}
}

func getPolicy(ctx context.Context, q *db.Queries, tenant, name string, version int64) (Policy, error) {
	row, err := q.GetPolicy(ctx, db.GetPolicyParams{TenantID: tenant, PolicyID: name, Version: version})
	if err != nil {
		return Policy{}, err
	}
	return readPolicy(row)
}

func readPolicy(row db.GetPolicyRow) (Policy, error) {
	var body policyBody
	if err := decode("body", row.Body, &body); err != nil {
		return Policy{}, fmt.Errorf("read policy %s: %w", row.PolicyID, err)
	}
	return Policy{
		Name: row.PolicyID, Version: row.Version, Tool: body.Tool, Agents: body.Agents, Condition: body.Condition,
		MaxPerDay: body.MaxPerDay, By: body.By, CreatedAt: row.CreatedAt.UTC(), Archived: row.ArchivedAt != nil,
	}, nil
}
