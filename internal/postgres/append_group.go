package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/loopd/loopd/internal/postgres/db"
)

// divide parts a sorted group into the appends that fit into one statement, each of a
// run of its own, and the others. Both keep their order. That statement tells runs apart
// by their ids alone, so of two tenants' runs with one id it gets the first.
func divide(group []*pending) (usual, others []*pending) {
	taken := make(map[string]bool, len(group))
	for _, p := range group {
		if !taken[p.params.RunID] && isUsual(&p.params) {
			usual = append(usual, p)
		} else {
			others = append(others, p)
		}
		taken[p.params.RunID] = true
	}
	return usual, others
}

// isUsual reports whether the statement for groups can write the append.
func isUsual(p *db.AppendEventsParams) bool {
	return len(p.ChildIds) == 0 && len(p.OutgoingRuns) == 0 && len(p.FullCalls) == 0 && p.LimitPico == nil &&
		len(p.HoldCalls) <= 1 && len(p.SettledCalls) <= 1
}

// sendGroup runs usual appends as one statement. The results are those of send.
func (s *Store) sendGroup(ctx context.Context, group []*pending) []error {
	results := make([]error, len(group))
	failAll := func(err error) []error {
		for i := range results {
			results[i] = err
		}
		return results
	}
	conn, err := s.appends.Acquire(ctx) // as in send, held until the second close
	if err != nil {
		return failAll(err)
	}
	defer conn.Release()
	for i := range results {
		results[i] = pgx.ErrNoRows // unless a row comes
	}
	batch := db.New(byKeys{conn}).AppendGroup(ctx, []db.AppendGroupParams{groupParams(group)})
	batch.Query(func(_ int, rows []db.AppendGroupRow, queryErr error) {
		for _, row := range rows {
			results[row.Place-1] = nil
		}
		err = queryErr
	})
	// The commit comes after the last result, and only closing reports its failure.
	if closeErr := batch.Close(); closeErr != nil {
		err = closeErr
	}
	if err != nil {
		return failAll(err)
	}
	return results
}

// byKeys plans the statements of its batches once, as lookups by key. The planner cannot
// know that a statement for one run is as good for 64, and a plan made while the tables
// are small would read them whole for as long as it is kept.
//
// The settings are set for the transaction of the batch: as parameters of the connection,
// PgBouncer would have to be told of them.
type byKeys struct{ db.DBTX }

// settings go by the name of AppendEvents, so that all appends are one series in the
// metrics, whichever statement writes them.
const settings = `-- name: AppendEvents :exec
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true)`

// SendBatch sends the settings and the batch, in one round trip.
func (k byKeys) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	both := &pgx.Batch{}
	both.Queue(settings)
	both.QueuedQueries = append(both.QueuedQueries, batch.QueuedQueries...)
	results := k.DBTX.SendBatch(ctx, both)
	_, _ = results.Exec() // whatever fails here fails what follows
	return results
}

// groupParams puts usual appends into the arrays of their statement.
func groupParams(group []*pending) db.AppendGroupParams {
	var g db.AppendGroupParams
	for i, p := range group {
		g.Places = append(g.Places, int32(i+1))
		addAppend(&g, &p.params)
		addRunHead(&g, &p.params)
		addRunUse(&g, &p.params)
		addRunEvents(&g, &p.params)
		addRunCalls(&g, &p.params)
	}
	return g
}

func addAppend(g *db.AppendGroupParams, p *db.AppendEventsParams) {
	g.TenantIds = append(g.TenantIds, p.TenantID)
	g.RunIds = append(g.RunIds, p.RunID)
	g.Epochs = append(g.Epochs, p.Epoch)
	g.Owners = append(g.Owners, p.Owner)
	g.FirstSeqs = append(g.FirstSeqs, p.FirstSeq)
	g.Counts = append(g.Counts, int32(len(p.Seqs)))
	g.Intents = append(g.Intents, p.Intent)
	g.Seens = append(g.Seens, p.SignalsSeen)
	g.Releases = append(g.Releases, p.Release)
}

func addRunHead(g *db.AppendGroupParams, p *db.AppendEventsParams) {
	g.States = append(g.States, p.State)
	g.Phases = append(g.Phases, p.Phase)
	g.Iterations = append(g.Iterations, p.Iterations)
	g.ModelCalls = append(g.ModelCalls, p.ModelCalls)
	g.ToolCalls = append(g.ToolCalls, p.ToolCalls)
	g.Attempts = append(g.Attempts, p.Attempts)
	g.Usages = append(g.Usages, string(p.Usage))
	g.Costs = append(g.Costs, string(p.Cost))
	g.CostPicos = append(g.CostPicos, p.CostPico)
	g.EstimatedPicos = append(g.EstimatedPicos, p.EstimatedPico)
	g.HeldPicos = append(g.HeldPicos, p.HeldPico)
	g.Answers = append(g.Answers, string(p.Answer))
	g.Partials = append(g.Partials, p.Partial)
	g.Unverifieds = append(g.Unverifieds, p.Unverified)
	g.Stops = append(g.Stops, string(p.Stop))
	g.RequiredActions = append(g.RequiredActions, string(p.RequiredActions))
	g.SideEffects = append(g.SideEffects, string(p.SideEffects))
	g.Starts = append(g.Starts, timeOf(p.StartedAt))
	g.Wakes = append(g.Wakes, timeOf(p.WakeAt))
	g.Ends = append(g.Ends, timeOf(p.EndedAt))
}

// addRunUse adds the hold and the settlement of an append. Call 0 is none.
func addRunUse(g *db.AppendGroupParams, p *db.AppendEventsParams) {
	g.HoldCalls = append(g.HoldCalls, orZero(p.HoldCalls))
	g.HoldAmounts = append(g.HoldAmounts, orZero(p.HoldAmounts))
	g.HoldModels = append(g.HoldModels, orZero(p.HoldModels))
	g.HoldPurposes = append(g.HoldPurposes, orZero(p.HoldPurposes))
	g.HoldPrices = append(g.HoldPrices, orZero(p.HoldPrices))
	g.SettledCalls = append(g.SettledCalls, orZero(p.SettledCalls))
	g.SettledCosts = append(g.SettledCosts, orZero(p.SettledCosts))
	g.SettledInputs = append(g.SettledInputs, orZero(p.SettledInputs))
	g.SettledReads = append(g.SettledReads, orZero(p.SettledReads))
	g.SettledWrites5m = append(g.SettledWrites5m, orZero(p.SettledWrites5m))
	g.SettledWrites1h = append(g.SettledWrites1h, orZero(p.SettledWrites1h))
	g.SettledOutputs = append(g.SettledOutputs, orZero(p.SettledOutputs))
	g.SettledReasonings = append(g.SettledReasonings, orZero(p.SettledReasonings))
	g.SettledEstimated = append(g.SettledEstimated, orZero(p.SettledEstimated))
	g.SettledSaved = append(g.SettledSaved, orZero(p.SettledSaved))
	g.SettledIterations = append(g.SettledIterations, orZero(p.SettledIterations))
	g.SettledTools = append(g.SettledTools, orZero(p.SettledTools))
}

// orZero is the only element, or the zero value of none.
func orZero[T any](one []T) (value T) {
	if len(one) > 0 {
		value = one[0]
	}
	return value
}

func addRunEvents(g *db.AppendGroupParams, p *db.AppendEventsParams) {
	for range p.Seqs {
		g.EventTenants = append(g.EventTenants, p.TenantID)
		g.EventRuns = append(g.EventRuns, p.RunID)
		g.EventEpochs = append(g.EventEpochs, p.Epoch)
	}
	g.EventSeqs = append(g.EventSeqs, p.Seqs...)
	g.EventKinds = append(g.EventKinds, p.Kinds...)
	g.EventAts = append(g.EventAts, p.Ats...)
	g.EventBodies = append(g.EventBodies, p.Bodies...)
}

func addRunCalls(g *db.AppendGroupParams, p *db.AppendEventsParams) {
	for range p.CallIds {
		g.CallTenants = append(g.CallTenants, p.TenantID)
		g.CallRuns = append(g.CallRuns, p.RunID)
	}
	g.CallOrdinals = append(g.CallOrdinals, p.CallOrdinals...)
	g.CallIds = append(g.CallIds, p.CallIds...)
	g.CallTools = append(g.CallTools, p.CallTools...)
	g.Calls = append(g.Calls, p.Calls...)
	g.CallIterations = append(g.CallIterations, p.CallIterations...)
	g.CallHashes = append(g.CallHashes, p.CallHashes...)
	g.CallEffects = append(g.CallEffects, p.CallEffects...)
	g.CallStates = append(g.CallStates, p.CallStates...)
	g.CallOutcomes = append(g.CallOutcomes, p.CallOutcomes...)
	g.CallAttempts = append(g.CallAttempts, p.CallAttempts...)
	g.CallKeys = append(g.CallKeys, p.CallKeys...)
	g.CallResults = append(g.CallResults, p.CallResults...)
	g.CallResultSeqs = append(g.CallResultSeqs, p.CallResultSeqs...)
	g.CallCuts = append(g.CallCuts, p.CallCuts...)
	g.CallBytes = append(g.CallBytes, p.CallBytes...)
	g.CallStarted = append(g.CallStarted, p.CallStarted...)
	g.CallFinished = append(g.CallFinished, p.CallFinished...)
	g.CallUntils = append(g.CallUntils, p.CallUntils...)
	g.CallChildren = append(g.CallChildren, p.CallChildren...)
	g.CallOwed = append(g.CallOwed, p.CallOwed...)
	g.CallAsked = append(g.CallAsked, p.CallAsked...)
	g.CallAskedAt = append(g.CallAskedAt, p.CallAskedAt...)
	g.CallDecidedAt = append(g.CallDecidedAt, p.CallDecidedAt...)
	g.CallDecidedBy = append(g.CallDecidedBy, p.CallDecidedBy...)
	g.CallDecisions = append(g.CallDecisions, p.CallDecisions...)
	g.CallEdited = append(g.CallEdited, p.CallEdited...)
}
