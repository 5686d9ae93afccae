package enginetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
)

// Conformance holds a Store to what the engine relies on. The Fake and Postgres
// run it, so that what is tested on the one is true of the other. open makes an
// empty store for one test, which may run beside others.
func Conformance(t *testing.T, open func(t *testing.T) Store) {
	t.Helper()
	for name, check := range map[string]func(*conformer){
		"a created run is claimed once":                  (*conformer).claimsOnce,
		"only a registered worker claims":                (*conformer).claimNeedsWorker,
		"claimers share":                                 (*conformer).claimersShare,
		"a claim skips what it leaves to others":         (*conformer).claimSkips,
		"a batch is read as it was written":              (*conformer).appendIsRead,
		"an old epoch is fenced":                         (*conformer).oldEpoch,
		"another owner is fenced":                        (*conformer).otherOwner,
		"a batch must continue the journal":              (*conformer).wrongSeq,
		"an intent waits for signals":                    (*conformer).intentSignalled,
		"signals are listed and seen ones deleted":       (*conformer).signalsDeleted,
		"a release makes the run claimable":              (*conformer).releaseClaimable,
		"a release with a wake time waits for it":        (*conformer).releaseWakes,
		"a paused run wakes when it is resumed":          (*conformer).pauseWakes,
		"a run that waits for people wakes by a signal":  (*conformer).signalWakes,
		"a release with an unseen signal does not wait":  (*conformer).releaseSignalled,
		"an empty release changes nothing else":          (*conformer).emptyRelease,
		"an ended run is never claimed":                  (*conformer).endedStays,
		"the runs of an expired worker are claimable":    (*conformer).expired,
		"a live worker keeps its runs":                   (*conformer).liveKeeps,
		"the runs of a retired worker are claimable":     (*conformer).retired,
		"two tenants may use the same id":                (*conformer).tenants,
		"the heads of calls may change with every batch": (*conformer).callHeads,
		"a child is created with its batch":              (*conformer).childWithBatch,
		"a refused batch creates no child":               (*conformer).fencedChild,
		"a signal for another run wakes it":              (*conformer).outgoing,
		"a new run wakes who listens":                    (*conformer).listens,
		"a pause is ended before it has happened":        (*conformer).pauseEnds,
		"a worker that was cut off comes back":           (*conformer).workerReturns,
		"a run without budgets draws freely":             (*conformer).drawsFreely,
		"what is drawn cannot be drawn twice":            (*conformer).drawsOnce,
		"what was not spent can be drawn again":          (*conformer).drawsAgain,
		"a draw takes from all budgets or from none":     (*conformer).drawsAllOrNothing,
		"a draw by an old epoch is fenced":               (*conformer).drawFenced,
		"a hold must have been drawn for":                (*conformer).holdUndrawn,
		"a cost above its hold is booked in full":        (*conformer).costAboveHold,
		"a raised budget wakes who waits for it":         (*conformer).raiseWakes,
		"a new budget counts what was spent before":      (*conformer).lateBudget,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := open(t) // its time is not the store's
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c := &conformer{T: t, ctx: ctx, store: store}
			c.register("w1")
			c.register("w2")
			check(c)
		})
	}
}

const (
	longTTL  = time.Hour
	patience = 30 * time.Second // generous: a store may be on a busy machine
)

// conformer is one test of the suite, with the words that the tests are made of.
type conformer struct {
	*testing.T
	ctx   context.Context //nolint:containedctx // of one test
	store Store
	made  int
}

// no fails the test on an error.
func (c *conformer) no(err error, attempted string) {
	c.Helper()
	if err != nil {
		c.Fatalf("%s: %v", attempted, err)
	}
}

func (c *conformer) register(worker string) {
	c.Helper()
	c.no(c.store.Renew(c.ctx, worker, longTTL), "renew "+worker)
}

// next names the next run. Its id has the form of a UUID, as Postgres wants.
func (c *conformer) next() loop.RunRef {
	c.made++
	return loop.RunRef{Tenant: "acme", ID: fmt.Sprintf("0190a000-0000-7000-8000-%012d", c.made)}
}

// create makes the next run.
func (c *conformer) create() loop.RunRef {
	c.Helper()
	run := c.next()
	c.no(c.store.CreateRun(c.ctx, run, Spec()), "create run")
	return run
}

func (c *conformer) claim(worker string, limit int) []loop.Lease {
	c.Helper()
	leases, err := c.store.Claim(c.ctx, worker, loop.Room{Free: limit})
	c.no(err, "claim for "+worker)
	return leases
}

// claimOne claims the one run that there must be.
func (c *conformer) claimOne(worker string) loop.Lease {
	c.Helper()
	leases := c.claim(worker, 10)
	if len(leases) != 1 {
		c.Fatalf("%s claimed %v, want one run", worker, leases)
	}
	return leases[0]
}

// claimNone makes sure that nothing can be claimed.
func (c *conformer) claimNone(worker, why string) {
	c.Helper()
	if leases := c.claim(worker, 10); len(leases) != 0 {
		c.Fatalf("%s claimed %v, although %s", worker, leases, why)
	}
}

// started claims a new run and begins its first attempt.
func (c *conformer) started() (loop.Lease, *loop.State) {
	c.Helper()
	c.create()
	lease := c.claimOne("w1")
	state := c.load(lease)
	c.no(c.append(lease, state, engine.Batch{}, loop.Claimed{Attempt: 1, Worker: "w1"}), "append claimed")
	return lease, state
}

func (c *conformer) load(lease loop.Lease) *loop.State {
	c.Helper()
	j, err := c.store.Load(c.ctx, lease)
	c.no(err, "load")
	state, err := loop.Fold(lease.Run, j.Events)
	c.no(err, "fold")
	state.TakeChangedCalls()
	return state
}

// append folds bodies into the state and writes them as the engine does.
func (c *conformer) append(lease loop.Lease, state *loop.State, b engine.Batch, bodies ...loop.Body) error {
	c.Helper()
	for _, body := range bodies {
		e := loop.Event{Seq: state.Seq() + 1, At: time.Now().UTC().Truncate(time.Microsecond), Epoch: lease.Epoch, Body: body}
		c.no(state.Apply(e), "apply")
		b.Events = append(b.Events, e)
	}
	b.Head, b.Calls = state.Head(), state.TakeChangedCalls()
	return c.store.Append(c.ctx, lease, b)
}

func (c *conformer) signal(run loop.RunRef, body loop.Body) {
	c.Helper()
	c.no(c.store.Signal(c.ctx, run, body), "signal")
}

func (c *conformer) signals(lease loop.Lease) []loop.Signal {
	c.Helper()
	signals, err := c.store.Signals(c.ctx, lease)
	c.no(err, "read signals")
	return signals
}

// refused checks that an append failed with want, or with anything if it is nil,
// and that the journal is as long as before.
func (c *conformer) refused(err, want error, lease loop.Lease, events int64) {
	c.Helper()
	if err == nil || want != nil && !errors.Is(err, want) {
		c.Fatalf("append: %v, want %v", err, want)
	}
	if got := c.load(lease).Seq(); got != events {
		c.Fatalf("a refused append left %d events, want %d", got, events)
	}
}

// eventually asks until it is so.
func (c *conformer) eventually(what string, so func() bool) {
	c.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-c.ctx.Done():
			c.Fatalf("never: %s", what)
		}
	}
}

// equal fails the test when two values differ.
func (c *conformer) equal(what string, want, got any) {
	c.Helper()
	if d := cmp.Diff(want, got); d != "" {
		c.Fatalf("%s differs (-want +got):\n%s", what, d)
	}
}
