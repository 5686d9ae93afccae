package enginetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
)

// ErrDown is what a Fake answers while it is down.
var ErrDown = errors.New("the store is down")

// Fake is a Store in memory. Events go through the journal's codec, so that what
// Postgres would not keep is not kept here either. Safe for concurrent use.
type Fake struct {
	// MostClaimed bounds what a claim takes, as if no more were looked at. 0: nothing does.
	MostClaimed int

	mu      sync.Mutex
	down    bool
	runs    map[loop.RunRef]*fakeRun
	order   []*fakeRun // by creation
	workers map[string]fakeWorker
	signal  int64          // id of the newest signal
	wakes   map[int]func() // of those who listen
	budgets []*fakeBudget  // by name
	waker   int
}

// fakeRun is a run's row with its events and signals.
type fakeRun struct {
	ref       loop.RunRef
	events    []record
	signals   []loop.Signal
	head      loop.Head
	calls     map[string]loop.CallHead
	results   []loop.FullResult
	owner     string // empty: nobody's
	epoch     int64
	ended     bool
	available time.Time // when it can be claimed
	chunks    map[*fakeBudget]*fakeChunk
}

// fakeWorker is a worker's row.
type fakeWorker struct{ started, expires time.Time }

// record is an event as it is stored.
type record struct {
	at    time.Time
	epoch int64
	kind  string
	body  []byte
}

// never is when a run wakes that waits for a signal only.
var never = time.Unix(1<<40, 0) //nolint:gochecknoglobals // a constant in all but name

// NewFake makes an empty Fake.
func NewFake() *Fake {
	return &Fake{runs: map[loop.RunRef]*fakeRun{}, workers: map[string]fakeWorker{}, wakes: map[int]func(){}}
}

// SetDown takes the store down, or up again. While it is down every call fails
// with ErrDown and changes nothing.
func (f *Fake) SetDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

// Down reports whether the store is down.
func (f *Fake) Down() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.down
}

// lock locks the Fake if it can be reached.
func (f *Fake) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	if f.down {
		f.mu.Unlock()
		return ErrDown
	}
	return nil
}

// CreateRun implements Store.
func (f *Fake) CreateRun(ctx context.Context, run loop.RunRef, spec loop.Spec) error {
	r, err := newRun(run, spec)
	if err != nil {
		return err
	}
	if err := f.lock(ctx); err != nil {
		return err
	}
	defer f.mu.Unlock()
	if f.runs[run] != nil {
		return fmt.Errorf("run %s exists", run.ID)
	}
	f.runs[run] = r
	f.order = append(f.order, r)
	f.wakeAll()
	return nil
}

// Runs lists all runs by creation.
func (f *Fake) Runs() []loop.RunRef {
	f.mu.Lock()
	defer f.mu.Unlock()
	refs := make([]loop.RunRef, 0, len(f.order))
	for _, r := range f.order {
		refs = append(refs, r.ref)
	}
	return refs
}

// Signal implements Store.
func (f *Fake) Signal(ctx context.Context, run loop.RunRef, body loop.Body) error {
	if err := f.lock(ctx); err != nil {
		return err
	}
	defer f.mu.Unlock()
	r := f.runs[run]
	if r == nil {
		return loop.ErrNotFound
	}
	if r.ended {
		return fmt.Errorf("run %s has ended", run.ID)
	}
	f.send(run, body)
	f.wakeAll()
	return nil
}

// Load implements engine.Journal. Reading needs no lease: it decides nothing.
func (f *Fake) Load(ctx context.Context, lease loop.Lease) (engine.Journaled, error) {
	if err := f.lock(ctx); err != nil {
		return engine.Journaled{}, err
	}
	defer f.mu.Unlock()
	r := f.runs[lease.Run]
	if r == nil {
		return engine.Journaled{}, loop.ErrNotFound
	}
	events, err := decode(r.events)
	return engine.Journaled{Events: events, Signals: slices.Clone(r.signals)}, err
}

// Signals implements engine.Journal.
func (f *Fake) Signals(ctx context.Context, lease loop.Lease) ([]loop.Signal, error) {
	if err := f.lock(ctx); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	if r := f.runs[lease.Run]; r != nil {
		return slices.Clone(r.signals), nil
	}
	return nil, loop.ErrNotFound
}

// Append implements engine.Journal.
func (f *Fake) Append(ctx context.Context, lease loop.Lease, b engine.Batch) error {
	records := make([]record, 0, len(b.Events))
	for _, e := range b.Events {
		rec, err := encode(e)
		if err != nil {
			return err
		}
		records = append(records, rec)
	}
	if err := f.lock(ctx); err != nil {
		return err
	}
	defer f.mu.Unlock()
	r, err := f.leased(lease)
	if err != nil {
		return err
	}
	for i, e := range b.Events {
		if want := int64(len(r.events) + 1 + i); e.Seq != want {
			return fmt.Errorf("run %s: event %d where %d is next", r.ref.ID, e.Seq, want)
		}
	}
	if b.Intent && len(r.signals) > 0 && r.signals[len(r.signals)-1].ID > b.SignalsSeen {
		return loop.ErrSignalled
	}
	if err := r.book(b.Events, b.Release); err != nil {
		return err
	}
	created, err := children(r.ref, b.Children)
	if err != nil {
		return err
	}
	r.write(records, b)
	for _, child := range created {
		f.runs[child.ref] = child
		f.order = append(f.order, child)
	}
	for _, out := range b.Outgoing {
		f.send(loop.RunRef{Tenant: r.ref.Tenant, ID: out.RunID}, out.Body)
	}
	if b.Release || len(created) > 0 || len(b.Outgoing) > 0 {
		f.wakeAll()
	}
	return nil
}

// children makes the rows of child runs.
func children(parent loop.RunRef, starts []loop.ChildStart) ([]*fakeRun, error) {
	var created []*fakeRun
	for _, start := range starts {
		child, err := newRun(loop.RunRef{Tenant: parent.Tenant, ID: start.ID}, start.Spec)
		if err != nil {
			return nil, err
		}
		created = append(created, child)
	}
	return created, nil
}

// newRun makes the row of a run with its first event.
func newRun(run loop.RunRef, spec loop.Spec) (*fakeRun, error) {
	first, err := encode(loop.Event{Seq: 1, At: time.Now(), Body: loop.Created{Spec: spec}})
	if err != nil {
		return nil, err
	}
	return &fakeRun{
		ref: run, events: []record{first}, calls: map[string]loop.CallHead{}, available: time.Now(), chunks: map[*fakeBudget]*fakeChunk{},
		head: loop.Head{State: loop.StateQueued, Phase: "queue"},
	}, nil
}

// send leaves a signal with a run, unless it is not there or has ended.
func (f *Fake) send(run loop.RunRef, body loop.Body) {
	r := f.runs[run]
	if r == nil || r.ended {
		return
	}
	f.signal++
	r.signals = append(r.signals, loop.Signal{ID: f.signal, Body: body})
	if now := time.Now(); r.available.After(now) {
		r.available = now
	}
}

// leased finds the run of a lease that still holds.
func (f *Fake) leased(l loop.Lease) (*fakeRun, error) {
	r := f.runs[l.Run]
	if r == nil || r.owner != l.Owner || r.epoch != l.Epoch {
		return nil, loop.ErrLeaseLost
	}
	return r, nil
}

// write is the part of Append that changes something.
func (r *fakeRun) write(records []record, b engine.Batch) {
	r.events = append(r.events, records...)
	r.signals = slices.DeleteFunc(r.signals, func(s loop.Signal) bool { return s.ID <= b.SignalsSeen })
	for _, c := range b.Calls {
		r.calls[c.Call.ID] = c
	}
	r.results = append(r.results, b.Results...)
	if len(records) > 0 {
		r.head, r.ended = b.Head, b.Head.State.Terminal()
	}
	if !b.Release {
		return
	}
	r.owner, r.available = "", time.Now()
	switch {
	case len(records) == 0 || len(r.signals) > 0:
	case !b.Head.WaitUntil.IsZero():
		r.available = b.Head.WaitUntil
	case b.Head.State == loop.StateRequiresAction, b.Head.State == loop.StatePaused:
		r.available = never
	}
}

// Renew implements engine.Leases.
func (f *Fake) Renew(ctx context.Context, worker string, ttl time.Duration) error {
	if err := f.lock(ctx); err != nil {
		return err
	}
	defer f.mu.Unlock()
	now := time.Now()
	row, known := f.workers[worker]
	if !known {
		row.started = now
	}
	row.expires = now.Add(ttl)
	f.workers[worker] = row
	for w, row := range f.workers {
		if row.expires.Before(now) {
			f.free(w)
		}
	}
	return nil
}

// free removes a worker's row and gives its runs back.
func (f *Fake) free(worker string) {
	delete(f.workers, worker)
	for _, r := range f.order {
		if r.owner == worker {
			r.owner = ""
		}
	}
	f.wakeAll()
}

// Claim implements engine.Leases. A worker without a live row gets nothing. All runs are
// of one tenant, so nobody takes turns.
func (f *Fake) Claim(ctx context.Context, worker string, room loop.Room) ([]loop.Lease, error) {
	if err := f.lock(ctx); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	now := time.Now()
	if !f.workers[worker].expires.After(now) {
		return nil, nil
	}
	var claimable []*fakeRun
	for _, r := range f.order {
		if r.owner == "" && !r.ended && !r.available.After(now) && !slices.Contains(room.Skip, r.ref) {
			claimable = append(claimable, r)
		}
	}
	slices.SortStableFunc(claimable, func(a, b *fakeRun) int { return a.available.Compare(b.available) })
	var leases []loop.Lease
	most := cmp.Or(f.MostClaimed, len(claimable))
	for _, r := range claimable[:min(room.Free, most, len(claimable))] {
		r.owner = worker
		r.epoch++
		leases = append(leases, loop.Lease{Run: r.ref, Owner: worker, Epoch: r.epoch})
	}
	return leases, nil
}

// Signalled implements engine.Leases.
func (f *Fake) Signalled(ctx context.Context, worker string) ([]loop.RunRef, error) {
	if err := f.lock(ctx); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	var refs []loop.RunRef
	for _, r := range f.order {
		if r.owner == worker && len(r.signals) > 0 {
			refs = append(refs, r.ref)
		}
	}
	return refs, nil
}

// Returned implements engine.Leases.
func (f *Fake) Returned(ctx context.Context, suspects []loop.Suspect) ([]string, error) {
	if err := f.lock(ctx); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	var returned []string
	for _, o := range suspects {
		if row, ok := f.workers[o.Worker]; ok && row.started.After(o.Since) && !slices.Contains(returned, o.Worker) {
			returned = append(returned, o.Worker)
		}
	}
	return returned, nil
}

// Retire implements engine.Leases.
func (f *Fake) Retire(ctx context.Context, worker string) error {
	if err := f.lock(ctx); err != nil {
		return err
	}
	defer f.mu.Unlock()
	f.free(worker)
	return nil
}

// Listen implements engine.Leases.
func (f *Fake) Listen(ctx context.Context, wake func()) error {
	if err := f.lock(ctx); err != nil {
		return err
	}
	f.waker++
	id := f.waker
	f.wakes[id] = wake
	f.mu.Unlock()
	<-ctx.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.wakes, id)
	return ctx.Err()
}

// wakeAll tells everybody who listens. The lock is held, so wake may not block.
func (f *Fake) wakeAll() {
	for _, wake := range f.wakes {
		wake()
	}
}

// Steal takes the run's lease away, as a takeover does, and gives it to a worker,
// or with "" to nobody. It returns the new lease.
func (f *Fake) Steal(run loop.RunRef, worker string) loop.Lease {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.runs[run]
	r.owner = worker
	r.epoch++
	f.wakeAll()
	return loop.Lease{Run: run, Owner: worker, Epoch: r.epoch}
}

// Events returns the run's journal.
func (f *Fake) Events(run loop.RunRef) ([]loop.Event, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return decode(f.runs[run].events)
}

// Head returns the run's head as it was last written.
func (f *Fake) Head(run loop.RunRef) loop.Head {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.runs[run].head
}

// Calls returns the heads of the run's calls, by id.
func (f *Fake) Calls(run loop.RunRef) []loop.CallHead {
	f.mu.Lock()
	defer f.mu.Unlock()
	var calls []loop.CallHead
	for _, c := range f.runs[run].calls {
		calls = append(calls, c)
	}
	slices.SortFunc(calls, func(a, b loop.CallHead) int { return cmp.Compare(a.Call.ID, b.Call.ID) })
	return calls
}

// Results returns the whole texts that were kept of the run's results, in order.
func (f *Fake) Results(run loop.RunRef) []loop.FullResult {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.runs[run].results)
}

// Owner returns the worker that the run is leased to, "" for none.
func (f *Fake) Owner(run loop.RunRef) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.runs[run].owner
}

// encode writes an event as Postgres keeps it: times to the microsecond.
func encode(e loop.Event) (record, error) {
	kind, body, err := loop.EncodeBody(e.Body)
	return record{at: e.At.UTC().Truncate(time.Microsecond), epoch: e.Epoch, kind: kind, body: body}, err
}

func decode(records []record) ([]loop.Event, error) {
	events := make([]loop.Event, 0, len(records))
	for i, r := range records {
		body, err := loop.DecodeBody(r.kind, r.body)
		if err != nil {
			return nil, err
		}
		events = append(events, loop.Event{Seq: int64(i + 1), At: r.at, Epoch: r.epoch, Body: body})
	}
	return events, nil
}
