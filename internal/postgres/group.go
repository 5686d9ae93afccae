package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/loopd/loopd/internal/postgres/db"
)

const (
	// maxFlushes is how many groups commit at once. One keeps up as well; with two,
	// a row that is locked for a moment does not stop everybody.
	maxFlushes = 2
	// maxGroup bounds a transaction, and with it what one bad record can delay.
	maxGroup = 64
)

// errWithdrawn: the context of an append ended before anything was sent.
var errWithdrawn = errors.New("not sent")

// group lets appends that arrive together share one commit: while one is on its
// way, the next ones queue, and then leave as one. Nobody waits for company, so a
// lone append is as fast as without. There is no goroutine: a caller leads the
// group that it is in, and then hands the lead to one that still waits.
type group struct {
	commit func([]*pending)
	most   int // members of a group

	mu       sync.Mutex
	queue    []*pending // not taken by a leader yet; empty unless maxFlushes lead
	flushing int
}

// pending is one append on its way.
type pending struct {
	params db.AppendEventsParams
	done   chan error    // gets the result
	lead   chan struct{} // gets the lead
	leads  bool          // guarded by group.mu
}

// newGroup makes a group whose leaders call commit, which must set the result of
// each append.
func newGroup(commit func([]*pending)) *group { return &group{commit: commit, most: maxGroup} }

// write appends, alone or in company. It returns early, with nothing written, only
// if ctx ends while the append still waits.
func (g *group) write(ctx context.Context, params db.AppendEventsParams) error {
	p := &pending{params: params, done: make(chan error, 1), lead: make(chan struct{}, 1)}
	g.enter(p)
	ended := ctx.Done()
	for {
		select {
		case err := <-p.done:
			g.passLead(p)
			return err
		case <-p.lead:
			g.flush()
			g.handOn()
		case <-ended:
			if g.withdraw(p) {
				return fmt.Errorf("%w: %w", errWithdrawn, context.Cause(ctx))
			}
			ended = nil // too late: its result comes soon
		}
	}
}

func (g *group) enter(p *pending) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue = append(g.queue, p)
	if g.flushing < maxFlushes {
		g.flushing++
		g.promote(p)
	}
}

func (g *group) promote(p *pending) {
	p.leads = true
	p.lead <- struct{}{}
}

// withdraw takes a waiting append back, unless somebody relies on it already.
func (g *group) withdraw(p *pending) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.queue, p)
	if i < 0 || p.leads {
		return false
	}
	g.queue = slices.Delete(g.queue, i, i+1)
	return true
}

// flush commits what waits.
func (g *group) flush() {
	g.mu.Lock()
	n := min(len(g.queue), g.most)
	batch := slices.Clone(g.queue[:n])
	g.queue = slices.Delete(g.queue, 0, n)
	g.mu.Unlock()
	if n > 0 {
		g.commit(batch)
	}
}

// handOn gives the lead to one that waits, or back.
func (g *group) handOn() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, next := range g.queue {
		if !next.leads {
			g.promote(next)
			return
		}
	}
	g.flushing--
}

// passLead hands on a lead that p got and did not take up, as another leader has
// committed p meanwhile.
func (g *group) passLead(p *pending) {
	select {
	case <-p.lead:
		g.handOn()
	default:
	}
}
