package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/loopd/loopd/internal/postgres/db"
)

const (
	// maxGroup bounds a transaction, and with it what one bad record can delay.
	maxGroup = 64
	// maxFlushes is how many groups commit at once. One does most of the work, as two
	// half as large cost Postgres a fifth more (64 runs). The second is for when the
	// first does not keep up, or is held up by a row that somebody has locked.
	maxFlushes = 2
	// crowd is how many appends have to wait, and patience for how long one has to,
	// until the second group leaves. A commit takes 5 to 10 ms.
	crowd    = maxGroup / 2
	patience = 25 * time.Millisecond
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
	queue    []*pending // not taken by a leader yet; empty unless somebody leads
	flushing int
}

// pending is one append on its way.
type pending struct {
	params db.AppendEventsParams
	done   chan error    // gets the result
	lead   chan struct{} // gets the lead
	leads  bool          // guarded by group.mu, as is late
	late   bool          // has waited for as long as anybody should
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
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case err := <-p.done:
			g.passLead(p)
			return err
		case <-p.lead:
			g.flush()
			g.handOn(p)
		case <-late.C:
			g.hurry(p)
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
	g.lead(p)
}

// hurry has p lead if it still waits, although others commit.
func (g *group) hurry(p *pending) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p.late = true
	if slices.Contains(g.queue, p) && !p.leads {
		g.lead(p)
	}
}

// lead gives p the lead, if there is need for one more.
func (g *group) lead(p *pending) {
	if g.flushing < maxFlushes && g.needed(p) {
		g.flushing++
		g.promote(p)
	}
}

// needed reports whether p should lead a group, rather than wait for those on their way.
func (g *group) needed(p *pending) bool {
	return g.flushing == 0 || len(g.queue) >= crowd || p.late
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

// handOn takes the lead from p, which may still wait behind a full group, and gives it to
// the first that waits, or back.
func (g *group) handOn(p *pending) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p.leads = false
	g.flushing--
	for _, next := range g.queue {
		if !next.leads {
			g.lead(next)
			return
		}
	}
}

// passLead hands on a lead that p got and did not take up, as another leader has
// committed p meanwhile.
func (g *group) passLead(p *pending) {
	select {
	case <-p.lead:
		g.handOn(p)
	default:
	}
}
