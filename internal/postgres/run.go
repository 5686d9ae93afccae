package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// Run is a run as readers see it.
type Run struct {
	Ref             loop.RunRef
	Agent           string // resource name, "agents/{agent}"
	AgentVersion    int64
	Input           string
	Limits          loop.Limits
	Labels          map[string]string
	Source          string
	Priority        loop.Priority
	HasOutputSchema bool // the agent version asks for an answer of a given shape
	CreatedAt       time.Time
	LastSeq         int64           // of the newest event
	Parent          *loop.ParentRef // the call that this run answers; nil: nobody's child
	Head            loop.Head
}

// CreateRun creates a run under the given id, a UUID of the caller's making, which
// should be new and rise with time (version 7). The run, its first event, its
// account and the idempotency record are committed together before it returns.
//
// If idem was used before for the same request, it returns the id of the run that
// was created then, and true; for another request, ErrKeyReused. Repeating after
// ErrUnavailable, with the same id or the same key, is always safe.
func (s *Store) CreateRun(ctx context.Context, run loop.RunRef, spec loop.Spec, idem Idempotency) (id string, replayed bool, err error) {
	params, err := runParams(run, spec)
	if err != nil {
		return "", false, fmt.Errorf("create run %s: %w", run.ID, err)
	}
	if spec.Parent == nil && len(params.attachments.Places) == 0 {
		made, final, err := s.creates.write(ctx, params, idem)
		switch {
		case made:
			return run.ID, false, nil
		case err != nil && (final || ctx.Err() != nil):
			return "", false, wrap("create run "+run.ID, err)
		}
	}
	err = s.inTx(ctx, true, func(q *db.Queries) error {
		id, replayed = run.ID, false
		earlier, used, err := idem.once(ctx, q, run.Tenant, run.ID)
		if err != nil {
			return err
		}
		if used {
			id, replayed = earlier, earlier != run.ID
			return nil
		}
		return params.insert(ctx, q)
	})
	if err != nil {
		return "", false, wrap("create run "+run.ID, err)
	}
	return id, replayed, nil
}

// newRun is what a run's creation writes.
type newRun struct {
	run         db.InsertRunParams
	event       db.InsertFirstEventParams
	attachments db.InsertAttachmentsParams
	account     db.InsertRunAccountParams
}

func runParams(run loop.RunRef, spec loop.Spec) (newRun, error) {
	bare, places, data := withoutData(spec)
	kind, body, err := loop.EncodeBody(loop.Created{Spec: bare})
	if err != nil {
		return newRun{}, err
	}
	labels := spec.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	n := newRun{
		run: db.InsertRunParams{
			TenantID: run.Tenant, RunID: run.ID, Agent: spec.Agent, AgentVersion: spec.AgentVersion,
			Source: spec.Source, HasOutputSchema: len(spec.Definition.OutputSchema) > 0,
			Priority: int16(spec.Priority.Rank()),
		},
		event:       db.InsertFirstEventParams{TenantID: run.Tenant, RunID: run.ID, Kind: kind, Body: body},
		attachments: db.InsertAttachmentsParams{TenantID: run.Tenant, RunID: run.ID, Places: places, Data: data},
		account:     db.InsertRunAccountParams{TenantID: run.Tenant, Account: "run:" + run.ID, LimitPico: int64(spec.Limits.Cost)},
	}
	if p := spec.Parent; p != nil {
		n.run.ParentRunID, n.run.ParentCallID, n.run.RootRunID, n.run.Depth = &p.RunID, &p.CallID, &p.RootID, int32(p.Depth)
	}
	for column, value := range map[*[]byte]any{&n.run.Input: spec.Input, &n.run.Limits: spec.Limits, &n.run.Labels: labels} {
		if err := encode(column, value); err != nil {
			return newRun{}, err
		}
	}
	return n, nil
}

func (n newRun) insert(ctx context.Context, q *db.Queries) error {
	inserted, err := q.InsertRun(ctx, n.run)
	if err != nil || inserted == 0 { // an earlier try was committed unheard
		return err
	}
	if err := q.InsertFirstEvent(ctx, n.event); err != nil {
		return err
	}
	if len(n.attachments.Places) > 0 {
		if err := q.InsertAttachments(ctx, n.attachments); err != nil {
			return err
		}
	}
	if err := q.InsertRunAccount(ctx, n.account); err != nil {
		return err
	}
	return q.NotifyWake(ctx)
}

// GetRun reads a run. The error is a loop.ErrNotFound if the tenant has none of that id.
func (s *Store) GetRun(ctx context.Context, run loop.RunRef) (Run, error) {
	row, err := s.q.GetRun(ctx, db.GetRunParams{TenantID: run.Tenant, RunID: run.ID})
	if err != nil {
		return Run{}, wrap("read run "+run.ID, err)
	}
	return readRun(row)
}

// GetRunState reads only the state of a run: it is what is cheap to ask often. The error is
// a loop.ErrNotFound if the tenant has no run of that id.
func (s *Store) GetRunState(ctx context.Context, run loop.RunRef) (loop.RunState, error) {
	state, err := s.q.GetRunState(ctx, db.GetRunStateParams{TenantID: run.Tenant, RunID: run.ID})
	return loop.RunState(state), wrap("read the state of run "+run.ID, err)
}

// GetSpec reads everything that a run was created with.
func (s *Store) GetSpec(ctx context.Context, run loop.RunRef) (loop.Spec, error) {
	events, err := s.Events(ctx, run, 0, 1)
	if err != nil {
		return loop.Spec{}, err
	}
	if err := s.attach(ctx, run, events); err != nil {
		return loop.Spec{}, err
	}
	if len(events) == 1 {
		if created, ok := events[0].Body.(loop.Created); ok {
			return created.Spec, nil
		}
	}
	return loop.Spec{}, fmt.Errorf("run %s does not begin with its creation: %w", run.ID, loop.ErrImpossible)
}

// RunFilter chooses runs of a tenant. The zero value of a field chooses all.
type RunFilter struct {
	Agent  string // resource name, "agents/{agent}"
	Parent string // id of the run whose child runs are meant
	States []loop.RunState
}

// RunCursor is a place in the list of runs: behind the run that it is made of. The
// zero value is the start.
type RunCursor struct {
	CreatedAt time.Time
	ID        string
}

// newestRun is newer than any run, so that the first page is a page like all others.
func newestRun() RunCursor {
	return RunCursor{time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), "ffffffff-ffff-ffff-ffff-ffffffffffff"}
}

// ListRuns returns at most limit runs behind a place, the newest first.
func (s *Store) ListRuns(ctx context.Context, tenant string, filter RunFilter, after RunCursor, limit int) ([]Run, error) {
	if after == (RunCursor{}) {
		after = newestRun()
	}
	states := make([]string, len(filter.States))
	for i, state := range filter.States {
		states[i] = string(state)
	}
	params := db.ListRunsParams{
		TenantID: tenant, BeforeTime: after.CreatedAt, BeforeID: after.ID,
		Agent: filter.Agent, States: states, PageSize: int32(limit),
	}
	rows, err := s.listRuns(ctx, params, filter.Parent)
	if err != nil {
		return nil, wrap("list runs", err)
	}
	runs := make([]Run, len(rows))
	for i, row := range rows {
		if runs[i], err = readRun(db.GetRunRow(row)); err != nil {
			return nil, err
		}
	}
	return runs, nil
}

// listRuns reads a page of all runs, of those in some states, or of the children of one:
// each list has an index of its own.
func (s *Store) listRuns(ctx context.Context, p db.ListRunsParams, parent string) ([]db.ListRunsRow, error) {
	if parent == "" && p.Agent == "" && len(p.States) > 0 {
		found, err := s.q.ListRunsIn(ctx, db.ListRunsInParams{
			TenantID: p.TenantID, States: p.States, BeforeTime: p.BeforeTime, BeforeID: p.BeforeID, PageSize: p.PageSize,
		})
		rows := make([]db.ListRunsRow, len(found))
		for i, run := range found {
			rows[i] = db.ListRunsRow(run)
		}
		return rows, err
	}
	if parent == "" {
		return s.q.ListRuns(ctx, p)
	}
	children, err := s.q.ListChildRuns(ctx, db.ListChildRunsParams{
		TenantID: p.TenantID, ParentRunID: parent, BeforeTime: p.BeforeTime, BeforeID: p.BeforeID,
		Agent: p.Agent, States: p.States, PageSize: p.PageSize,
	})
	rows := make([]db.ListRunsRow, len(children))
	for i, child := range children {
		rows[i] = db.ListRunsRow(child)
	}
	return rows, err
}

// readRun turns a row into a Run.
func readRun(row db.GetRunRow) (Run, error) {
	r := Run{
		Ref: loop.RunRef{Tenant: row.TenantID, ID: row.RunID}, Agent: row.Agent, AgentVersion: row.AgentVersion,
		Source: row.Source, Priority: loop.PriorityOf(int(row.Priority)), HasOutputSchema: row.HasOutputSchema, CreatedAt: row.CreatedAt.UTC(), LastSeq: row.NextSeq - 1,
		Head: loop.Head{
			State: loop.RunState(row.State), Phase: row.Phase,
			Iterations: int(row.Iterations), ModelCalls: int(row.ModelCalls), ToolCalls: int(row.ToolCalls), Attempts: int(row.Attempts),
			Estimated: loop.USD(row.EstimatedPico), Held: loop.USD(row.HeldPico), Partial: row.Partial, Unverified: row.Unverified,
			StartedAt: timeOf(row.StartedAt), WaitUntil: timeOf(row.WakeAt), EndedAt: timeOf(row.EndedAt),
		},
	}
	for _, column := range []struct {
		name string
		from []byte
		to   any
	}{
		{"input", row.Input, &r.Input}, {"limits", row.Limits, &r.Limits}, {"labels", row.Labels, &r.Labels},
		{"usage", row.Usage, &r.Head.Usage}, {"cost", row.Cost, &r.Head.Cost}, {"answer", row.Answer, &r.Head.Answer},
		{"stop", row.Stop, &r.Head.Stop}, {"required_actions", row.RequiredActions, &r.Head.RequiredActions},
		{"side_effects", row.SideEffects, &r.Head.SideEffects},
	} {
		if err := decode(column.name, column.from, column.to); err != nil {
			return Run{}, fmt.Errorf("read run %s: %w", row.RunID, err)
		}
	}
	if row.ParentRunID != nil && row.ParentCallID != nil && row.RootRunID != nil {
		r.Parent = &loop.ParentRef{RunID: *row.ParentRunID, CallID: *row.ParentCallID, RootID: *row.RootRunID, Depth: int(row.Depth)}
	}
	return r, nil
}

// CountRuns counts the runs of all tenants that have not ended, by state. All live
// states are in the map.
func (s *Store) CountRuns(ctx context.Context) (map[loop.RunState]int64, error) {
	rows, err := s.q.CountLiveRuns(ctx)
	if err != nil {
		return nil, wrap("count runs", err)
	}
	counts := map[loop.RunState]int64{
		loop.StateQueued: 0, loop.StateRunning: 0, loop.StateRequiresAction: 0, loop.StatePaused: 0, loop.StateCancelling: 0,
	}
	for _, row := range rows {
		counts[loop.RunState(row.State)] = row.Runs
	}
	return counts, nil
}
