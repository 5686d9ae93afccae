package postgres

import (
	"context"
	"slices"
	"sync"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres/db"
)

// maxCreates bounds a commit of creates.
const maxCreates = 64

// creates lets creates that arrive together share one commit, as appends do: while one is
// on its way the next ones queue. Nobody waits for company, and there is no goroutine: one
// of those who wait commits for all.
type creates struct {
	commit func([]*pendingCreate)
	lead   chan struct{} // held by who commits

	mu    sync.Mutex
	queue []*pendingCreate
}

// pendingCreate is one create on its way.
type pendingCreate struct {
	run  newRun
	idem Idempotency
	made bool
	done chan error // gets the result; what else is to be known is set before
	// final: the create was in no company, and would fail again.
	final bool
}

func newCreates(commit func([]*pendingCreate)) *creates {
	return &creates{commit: commit, lead: make(chan struct{}, 1)}
}

// write creates a run in company. Not made: its key was used before, or it is there. After
// an error the outcome is unknown, unless it is final: then nothing was written.
func (c *creates) write(ctx context.Context, run newRun, idem Idempotency) (made, final bool, err error) {
	p := &pendingCreate{run: run, idem: idem, done: make(chan error, 1)}
	c.mu.Lock()
	c.queue = append(c.queue, p)
	c.mu.Unlock()
	ended := ctx.Done()
	for {
		select {
		case err := <-p.done:
			return p.made, p.final, err
		case c.lead <- struct{}{}:
			c.flush()
			<-c.lead
		case <-ended:
			if c.withdraw(p) {
				return false, true, context.Cause(ctx)
			}
			ended = nil // too late: its result comes soon
		}
	}
}

// withdraw takes a create back that nobody has taken up.
func (c *creates) withdraw(p *pendingCreate) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.queue, p)
	if i < 0 {
		return false
	}
	c.queue = slices.Delete(c.queue, i, i+1)
	return true
}

// flush commits what waits.
func (c *creates) flush() {
	c.mu.Lock()
	n := min(len(c.queue), maxCreates)
	batch := slices.Clone(c.queue[:n])
	c.queue = slices.Delete(c.queue, 0, n)
	c.mu.Unlock()
	if n > 0 {
		c.commit(batch)
	}
}

// commitCreates writes creates in one statement. When it fails they go on alone, so that
// one that is refused fails by itself only.
func (s *Store) commitCreates(batch []*pendingCreate) {
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	var p db.CreateRunsParams
	for _, c := range batch {
		n := c.run
		p.Tenants, p.Runs = append(p.Tenants, n.run.TenantID), append(p.Runs, n.run.RunID)
		p.Agents, p.AgentVersions = append(p.Agents, n.run.Agent), append(p.AgentVersions, n.run.AgentVersion)
		p.Inputs, p.Limits, p.Labels = append(p.Inputs, string(n.run.Input)), append(p.Limits, string(n.run.Limits)), append(p.Labels, string(n.run.Labels))
		p.Sources, p.OutputSchemas = append(p.Sources, n.run.Source), append(p.OutputSchemas, n.run.HasOutputSchema)
		p.Priorities, p.Bodies, p.Money = append(p.Priorities, n.run.Priority), append(p.Bodies, string(n.event.Body)), append(p.Money, n.account.LimitPico)
		p.Methods, p.Keys, p.Fingerprints = append(p.Methods, c.idem.Method), append(p.Keys, c.idem.Key), append(p.Fingerprints, c.idem.Fingerprint)
	}
	rows, err := s.q.CreateRuns(ctx, p)
	made := make(map[loop.RunRef]bool, len(rows))
	for _, row := range rows {
		made[loop.RunRef{Tenant: row.TenantID, ID: row.RunID}] = true
	}
	for _, c := range batch {
		c.made = err == nil && made[loop.RunRef{Tenant: c.run.run.TenantID, ID: c.run.run.RunID}]
		c.final = len(batch) == 1 && err != nil && !conflicted(err) && !disconnected(err) && !notConnected(err) && !unknownOutcome(err)
		c.done <- err
	}
}

// RunPlace is where a run stands, in as few words as possible.
type RunPlace struct {
	State   loop.RunState
	LastSeq int64 // of the newest event
}

// RunPlace reads where a run stands: it is what is cheap to ask often. The error is a
// loop.ErrNotFound if the tenant has no run of that id.
func (s *Store) RunPlace(ctx context.Context, run loop.RunRef) (RunPlace, error) {
	places, err := s.runPlaces(ctx, []loop.RunRef{run})
	if err == nil && len(places) == 0 {
		err = loop.ErrNotFound
	}
	return places[run], wrap("read where run "+run.ID+" stands", err)
}

// LastSeqs reads the sequence number of each run's newest event. Runs that do not exist
// are left out.
func (s *Store) LastSeqs(ctx context.Context, runs []loop.RunRef) (map[loop.RunRef]int64, error) {
	places, err := s.runPlaces(ctx, runs)
	seqs := make(map[loop.RunRef]int64, len(places))
	for run, place := range places {
		seqs[run] = place.LastSeq
	}
	return seqs, wrap("read the newest events of runs", err)
}

// RunStates reads where runs stand. Runs that do not exist are left out.
func (s *Store) RunStates(ctx context.Context, runs []loop.RunRef) (map[loop.RunRef]loop.RunState, error) {
	places, err := s.runPlaces(ctx, runs)
	states := make(map[loop.RunRef]loop.RunState, len(places))
	for run, place := range places {
		states[run] = place.State
	}
	return states, wrap("read the states of runs", err)
}

func (s *Store) runPlaces(ctx context.Context, runs []loop.RunRef) (map[loop.RunRef]RunPlace, error) {
	var p db.ListRunPlacesParams
	for _, run := range runs {
		p.Tenants, p.Runs = append(p.Tenants, run.Tenant), append(p.Runs, run.ID)
	}
	rows, err := s.q.ListRunPlaces(ctx, p)
	places := make(map[loop.RunRef]RunPlace, len(rows))
	for _, row := range rows {
		places[loop.RunRef{Tenant: row.TenantID, ID: row.RunID}] = RunPlace{State: loop.RunState(row.State), LastSeq: row.NextSeq - 1}
	}
	return places, err
}
