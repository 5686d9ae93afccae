package postgres

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// Answers are shown while they are written without being stored: a server with an
// open stream says on one channel which run is watched, and the worker that drives
// the run sends deltas on another. Both are notices, so all of it works between any
// two replicas, and all of it may be lost: what counts is in the journal.
const (
	channelDeltas = "loopd_deltas"
	channelWatch  = "loopd_watch"

	// WatchEvery is how often a watch must be repeated.
	WatchEvery = 5 * time.Second
	// watchTTL is how long a worker believes a watch: one notice may get lost.
	watchTTL = 12 * time.Second
	// flushEvery is for how long deltas are collected. The eye takes 20 pieces a
	// second for a flow, and each flush takes the lock of NOTIFY.
	flushEvery = 50 * time.Millisecond
	// flushTimeout bounds one flush; what comes meanwhile is collected or dropped.
	flushTimeout = 5 * time.Second
	// relistenAfter is the wait before a listener connects again.
	relistenAfter = time.Second
	// maxPending and maxRunPending are the bytes that may wait for the next flush, of
	// all runs and of one. A model writes less than 1 KiB in 50 ms.
	maxPending    = 1 << 20
	maxRunPending = 64 << 10
	// maxToolName is longer than the name of any tool. Models may write others.
	maxToolName = 128
	// streamIdle is longer than any model falls silent within an answer.
	streamIdle = 10 * time.Minute
)

// Deltas sends what models are writing to the servers that watch, of this process's
// runs. It is safe for concurrent use. It works while its Parts run, and costs a look
// into a map where nobody watches.
type Deltas struct {
	store *Store
	ready chan struct{} // gets a value when something waits for a flush

	mu      sync.RWMutex
	watched map[string]time.Time // until when, by run id
	streams map[loop.RunRef]*stream
	dirty   []*stream // those with fragments that wait
	pending int       // bytes that wait
}

// stream is the answer that one run's model is writing.
type stream struct {
	run  loop.RunRef
	call int
	used atomic.Int64 // when a fragment last came, Unix nanoseconds

	fragments []fragment
	bytes     int
	before    bool // something was lost before the first of fragments
	after     bool // something was lost after the last of fragments

	n int64 // of the last batch sent; only the flush touches it
}

// NewDeltas makes the sender of a worker's deltas. Run its Parts once.
func NewDeltas(store *Store) *Deltas {
	return &Deltas{
		store: store, ready: make(chan struct{}, 1),
		watched: make(map[string]time.Time), streams: make(map[loop.RunRef]*stream),
	}
}

// Parts are what must run for as long as the worker does, each in its own goroutine,
// which the caller forks. They return nil when their context ends, and never before.
func (d *Deltas) Parts() []func(context.Context) error {
	return []func(context.Context) error{d.publish, d.listen}
}

// Watched reports whether somebody wants to see the answers of the run now.
func (d *Deltas) Watched(run loop.RunRef) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.watched[run.ID].After(time.Now())
}

// Emit sends a fragment of the answer to the given model call, if the run is watched.
// It never blocks: what does not fit is dropped, and whoever watches sees that
// something is missing.
func (d *Deltas) Emit(run loop.RunRef, call int, delta loop.Delta) {
	now := time.Now()
	if d.unseen(run, call, now) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.streams[run]
	if s == nil || s.call < call {
		s = &stream{run: run, call: call}
		d.streams[run] = s
	}
	s.used.Store(now.UnixNano())
	switch {
	case s.call > call: // of a call that was given up
	case !d.watched[run.ID].After(now):
		s.after = true
	default:
		d.add(s, delta)
	}
}

// unseen reports whether nobody watches and the stream knows already that whoever
// comes later has missed something: then there is nothing to write down.
func (d *Deltas) unseen(run loop.RunRef, call int, now time.Time) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	s := d.streams[run]
	if d.watched[run.ID].After(now) || s == nil || s.call != call || !s.after {
		return false
	}
	s.used.Store(now.UnixNano())
	return true
}

// add puts a fragment behind those that wait. After a loss nothing is added until
// what came before it has left, as one batch has no room for a gap inside.
func (d *Deltas) add(s *stream, delta loop.Delta) {
	if s.after && len(s.fragments) == 0 {
		s.before, s.after = true, false
	}
	delta.Tool = delta.Tool[:min(len(delta.Tool), maxToolName)]
	weight := len(delta.Text) + len(delta.Tool)
	if s.after || s.bytes+weight > maxRunPending || d.pending+weight > maxPending {
		s.after = true
		return
	}
	if len(s.fragments) == 0 {
		d.dirty = append(d.dirty, s)
	}
	s.fragments = join(s.fragments, fragment(delta))
	s.bytes += weight
	d.pending += weight
	select {
	case d.ready <- struct{}{}:
	default: // the flush knows
	}
}

// publish sends what waits, at most every flushEvery, until ctx ends.
func (d *Deltas) publish(ctx context.Context) error {
	sweep := time.NewTicker(watchTTL)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-sweep.C:
			d.sweep(time.Now())
			continue
		case <-d.ready:
		}
		if !rest(ctx, flushEvery) {
			return nil
		}
		if err := d.flush(ctx); err != nil && ctx.Err() == nil {
			d.store.log.WarnContext(ctx, "deltas were not published", "error", err)
			if !rest(ctx, relistenAfter) {
				return nil
			}
		}
	}
}

// flush sends all that waits in one statement. If that fails it is lost: the numbers
// are spent, and whoever watches sees a gap.
func (d *Deltas) flush(ctx context.Context) error {
	var payloads []string
	for _, b := range d.take() {
		payloads = append(payloads, b.encode()...)
	}
	if len(payloads) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	return wrap("publish deltas", d.store.q.NotifyDeltas(ctx, payloads))
}

// taken is what waited of one stream.
type taken struct {
	stream    *stream
	fragments []fragment
	lost      bool // something is missing before them
}

func (d *Deltas) take() []taken {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]taken, len(d.dirty))
	for i, s := range d.dirty {
		all[i] = taken{stream: s, fragments: s.fragments, lost: s.before}
		s.fragments, s.bytes, s.before = nil, 0, false
	}
	d.dirty, d.pending = nil, 0
	return all
}

// sweep forgets watches that were not repeated and answers that are over.
func (d *Deltas) sweep(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for run, until := range d.watched {
		if !until.After(now) {
			delete(d.watched, run)
		}
	}
	for run, s := range d.streams {
		if len(s.fragments) == 0 && s.used.Load() < now.Add(-streamIdle).UnixNano() {
			delete(d.streams, run)
		}
	}
}

// listen hears which runs are watched, until ctx ends. While it cannot, nobody is.
func (d *Deltas) listen(ctx context.Context) error {
	for {
		err := d.store.listen(ctx, channelWatch, func() {}, d.watch)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was asked to end
		}
		d.store.log.WarnContext(ctx, "listening for watches ended, listening again soon", "error", err)
		if !rest(ctx, relistenAfter) {
			return nil
		}
	}
}

func (d *Deltas) watch(run string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watched[run] = time.Now().Add(watchTTL)
}

// rest waits, and reports whether ctx still goes on.
func rest(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Watch says that somebody wants to see the answers of these runs while they are
// written. It holds for little longer than two times WatchEvery, so it must be
// repeated.
func (s *Store) Watch(ctx context.Context, runs ...loop.RunRef) error {
	ids := make([]string, len(runs))
	for i, run := range runs {
		ids[i] = run.ID
	}
	return wrap("watch runs", s.q.NotifyWatch(ctx, ids))
}

// ListenDeltas calls hear with what the models of watched runs are writing, whoever
// watches and drives them, until ctx ends or the connection fails; it returns why.
// Calls do not overlap. Batches may be lost, never changed or put out of order.
func (s *Store) ListenDeltas(ctx context.Context, hear func(DeltaBatch)) error {
	return s.listen(ctx, channelDeltas, func() {}, func(payload string) {
		var n notice
		if err := json.Unmarshal([]byte(payload), &n); err != nil {
			s.log.WarnContext(ctx, "a notice is no batch of deltas", "error", err)
			return
		}
		hear(n.batch())
	})
}
