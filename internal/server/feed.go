package server

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

const (
	// feedWindow is how much of a run's newest events a feed keeps for those who come late.
	feedWindow = 256 << 10
	// feedsWindow is how much all feeds of a process keep together. Beyond it each keeps
	// what it read last, and whoever comes late reads for itself.
	feedsWindow = 64 << 20
	// pollRuns is how many runs one query of the poll asks about.
	pollRuns = 2000
)

// feeds are the journals that somebody follows here. Those who follow the same run share
// one feed: what one of them has read, all have, encoded once. There is no goroutine for
// it: the first who hears of news reads them.
type feeds struct {
	store *postgres.Store
	kept  atomic.Int64  // bytes in all windows
	again chan struct{} // gets a value when any run may have news

	mu   sync.Mutex
	open map[string][]*feed // by run id, which two tenants might share
}

func newFeeds(store *postgres.Store) *feeds {
	return &feeds{store: store, again: make(chan struct{}, 1), open: make(map[string][]*feed)}
}

// feed is the journal of one run.
type feed struct {
	all   *feeds
	run   loop.RunRef
	news  chan struct{} // holds a value when there may be unread events; who takes it reads
	users int           // guarded by feeds.mu

	reading sync.Mutex // held by who reads; guards reader
	reader  *journalReader

	mu     sync.Mutex
	grown  chan struct{} // closed when the window has grown
	window []*entry      // the newest events, without gaps
	bytes  int64         // in the window
	last   int64         // seq of the newest event read
	call   int           // the newest model call after it
	writes bool          // which may be in flight
	readAt time.Time     // when it was read
}

// entry is an event, and what is known once it was read. It does not change.
type entry struct {
	event   *loopdv1.Event
	call    int           // the newest model call
	writing bool          // it may be in flight
	ended   loop.RunState // the final state, if the event is the last
	size    int64
	frame   encoded // as a server-sent event
	line    encoded // as a line of JSON
}

// encoded is made by whoever needs it first.
type encoded struct {
	once  sync.Once
	bytes []byte
}

func (e *encoded) get(encode func() []byte) []byte {
	e.once.Do(func() { e.bytes = encode() })
	return e.bytes
}

// join returns the feed of a run. The caller must call leave.
func (f *feeds) join(run loop.RunRef) (joined *feed, leave func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.open[run.ID], func(open *feed) bool { return open.run == run })
	if i >= 0 {
		joined = f.open[run.ID][i]
	} else {
		reader, err := newJournalReader(f.store, run)
		if err != nil {
			return nil, nil, err
		}
		joined = &feed{all: f, run: run, news: make(chan struct{}, 1), reader: reader, grown: make(chan struct{})}
		joined.tell()
		f.open[run.ID] = append(f.open[run.ID], joined)
	}
	joined.users++
	return joined, func() { f.leave(joined) }, nil
}

func (f *feeds) leave(left *feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if left.users--; left.users > 0 {
		return
	}
	rest := slices.DeleteFunc(f.open[left.run.ID], func(open *feed) bool { return open == left })
	if f.open[left.run.ID] = rest; len(rest) == 0 {
		delete(f.open, left.run.ID)
	}
	left.mu.Lock()
	defer left.mu.Unlock()
	f.kept.Add(-left.bytes)
	left.bytes, left.window = 0, nil
}

// wake says that the run, or any run if it is "", may have news. It never blocks.
func (f *feeds) wake(run string) {
	if run == "" {
		select {
		case f.again <- struct{}{}:
		default: // a poll is due already
		}
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, open := range f.open[run] {
		open.tell()
	}
}

// quiet are the feeds that were not read lately, by their runs.
func (f *feeds) quiet(since time.Time) map[loop.RunRef]*feed {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := make(map[loop.RunRef]*feed)
	for _, list := range f.open {
		for _, open := range list {
			open.mu.Lock()
			if open.readAt.Before(since) {
				found[open.run] = open
			}
			open.mu.Unlock()
		}
	}
	return found
}

// poll finds news whose notice got lost, until ctx ends: one query a second for all runs
// that are followed here, whoever and however many follow them, and one for all that are
// waited for.
func (s *Server) poll(ctx context.Context) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		since := time.Now()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := s.hub.look(ctx, s.store); err != nil && ctx.Err() == nil {
				s.log.WarnContext(ctx, "cannot look for ends of runs whose notices got lost", "error", err)
			}
		case <-s.feeds.again:
			since = since.Add(time.Hour) // also those that were read just now
		}
		if err := s.feeds.look(ctx, since); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "cannot look for events whose notices got lost", "error", err)
		}
	}
}

// look tells the feeds that have unread events so.
func (f *feeds) look(ctx context.Context, since time.Time) error {
	quiet := f.quiet(since)
	runs := make([]loop.RunRef, 0, len(quiet))
	for run := range quiet {
		runs = append(runs, run)
	}
	for some := range slices.Chunk(runs, pollRuns) {
		newest, err := f.store.LastSeqs(ctx, some)
		if err != nil {
			return err
		}
		for run, seq := range newest {
			if open := quiet[run]; open != nil && open.lastRead() < seq {
				open.tell()
			}
		}
	}
	return nil
}

// tell has one follower read.
func (f *feed) tell() {
	select {
	case f.news <- struct{}{}:
	default: // somebody will
	}
}

func (f *feed) lastRead() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// after returns the events behind seq that are in the window, and a channel that is closed
// when there are more. Behind: the window begins later, so the follower has to catch up.
func (f *feed) after(seq int64) (events []*entry, grown <-chan struct{}, behind bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := f.last - int64(len(f.window)) // seq of the event before the window
	switch {
	case seq >= f.last:
		return nil, f.grown, false
	case seq < first:
		return nil, f.grown, true
	}
	return slices.Clip(f.window[seq-first:]), f.grown, false
}

// writing is the newest model call, and whether it may be in flight, as all know who have
// the newest event.
func (f *feed) writing() (call int, inFlight bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.call, f.writes
}

// read reads the next events for everybody. Its caller has taken the news.
func (f *feed) read(ctx context.Context) error {
	f.reading.Lock()
	defer f.reading.Unlock()
	events, err := f.reader.entries(ctx, eventBatch)
	if err != nil {
		if ctx.Err() != nil {
			f.tell() // the follower goes, the news remain
		}
		return err
	}
	if len(events) == eventBatch {
		f.tell()
	}
	f.keep(events)
	return nil
}

// keep adds events to the window, and drops the oldest ones that there is no room for.
func (f *feed) keep(events []*entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readAt = time.Now()
	if len(events) == 0 {
		return
	}
	before := f.bytes
	f.window = append(f.window, events...)
	for _, e := range events {
		f.bytes += e.size
		f.last, f.call, f.writes = e.event.GetSeq(), e.call, e.writing
	}
	room := int64(feedWindow)
	if f.all.kept.Load() > feedsWindow {
		room = 0
	}
	drop := 0
	for ; drop < len(f.window)-len(events) && f.bytes > room; drop++ {
		f.bytes -= f.window[drop].size
	}
	if drop > 0 {
		f.window = slices.Clone(f.window[drop:])
	}
	f.all.kept.Add(f.bytes - before)
	close(f.grown)
	f.grown = make(chan struct{})
}

// entries reads at most limit events after the last one.
func (j *journalReader) entries(ctx context.Context, limit int) ([]*entry, error) {
	events, err := j.store.Events(ctx, j.run, j.seq, limit)
	if err != nil {
		return nil, err
	}
	entries := make([]*entry, len(events))
	for i, e := range events {
		sizes, err := j.sizes(ctx, e)
		if err != nil {
			return nil, err
		}
		shown, err := eventProto(e, j.take(e), sizes)
		if err != nil {
			return nil, err
		}
		entries[i] = &entry{event: shown, call: j.call, writing: j.writing, ended: j.ended, size: 2 * int64(proto.Size(shown))} // as it is, and encoded
	}
	return entries, nil
}
