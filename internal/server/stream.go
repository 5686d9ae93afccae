package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

const (
	// pollEvery bounds how late an event is seen when its wake got lost.
	pollEvery = time.Second
	// heartbeatEvery keeps proxies, which cut silent connections after 30 s or
	// more, from ending a stream.
	heartbeatEvery = 15 * time.Second
	// eventBatch is how many events one query of a stream reads.
	eventBatch = 200
	// defaultWait is how long WaitRun waits when the request does not say.
	defaultWait = 30 * time.Second
)

// Wake hears from Postgres which runs changed and wakes the calls that wait for
// them, until ctx ends. When the connection for listening breaks it connects
// again; meanwhile the waiting calls poll.
func (s *Server) Wake(ctx context.Context) error {
	return s.listen(ctx, "listening for events", func() error {
		return s.store.ListenEvents(ctx, func(run string) {
			s.feeds.wake(run)
			s.hub.wake(run)
		})
	})
}

// listen listens again and again until ctx ends or, when the connection breaks while
// it shuts down, until then.
func (s *Server) listen(ctx context.Context, what string, once func() error) error {
	for {
		err := once()
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was asked to end
		}
		s.log.WarnContext(ctx, "a listener lost its connection, it connects again", "doing", what, "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-s.draining:
			return nil
		case <-time.After(pollEvery):
		}
	}
}

// StreamEvents sends the journal from after_seq on, and goes on until the run has
// ended. Events come from the journal by seq, one after the other, so none is lost
// or sent twice, whatever wakes are.
func (r *runService) StreamEvents(req *loopdv1.StreamEventsRequest, stream grpc.ServerStreamingServer[loopdv1.StreamEventsResponse]) error {
	return r.s.follow(stream.Context(), req, &grpcSink{stream, r.s.patience})
}

// follow is StreamEvents over gRPC and REST.
func (s *Server) follow(ctx context.Context, req *loopdv1.StreamEventsRequest, out sink) error {
	after, err := resumeAt(ctx, req.GetAfterSeq())
	if err != nil {
		return err
	}
	ref := runRef(tenant(ctx), req.GetParent())
	feed, leave, err := s.feeds.join(ref)
	if err != nil {
		return err
	}
	defer leave()
	place, err := s.store.RunPlace(ctx, ref)
	if err != nil {
		return named(err, loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "run", req.GetParent())
	}
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	if after > 0 {
		s.metrics.resumes.Inc()
	}
	f := &follower{s: s, feed: feed, out: out, seq: after}
	if place.State.Terminal() { // its last event may be one that the client has
		f.final, f.finalSeq = place.State, place.LastSeq
	}
	if req.GetIncludeDeltas() && !place.State.Terminal() {
		deltas, leave := s.taps.subscribe(ref)
		defer leave()
		f.deltas = deltas
	}
	err = f.follow(ctx)
	if errors.Is(err, errSlow) {
		s.metrics.slow.Inc()
	}
	return err
}

// resumeAt is the event to go on after. Last-Event-ID goes before the request: a
// browser that connects again repeats its URL and adds the header.
func resumeAt(ctx context.Context, after int64) (int64, error) {
	header := first(ctx, keyLastEventID)
	if header == "" {
		return after, nil
	}
	n, err := strconv.ParseInt(header, 10, 64)
	if err != nil || n < 0 {
		return 0, invalid(fieldError{"Last-Event-ID", fmt.Sprintf("%q is not the id of an event: send the last id you received, or no header", excerpt(header))})
	}
	return n, nil
}

// sink is how a follower's messages leave.
type sink interface {
	event(e *entry) error
	delta(d *loopdv1.Delta) error
	heartbeat() error
	end(state loop.RunState) error
	// flush has all that was given so far on its way. It is errSlow if the client does
	// not take it.
	flush() error
}

// slowReader is how long a client may take nothing. Longer ones are cut: they come back
// with the id of the last event that they have, and lose nothing.
const slowReader = 10 * time.Second

// grpcSink is a gRPC stream.
type grpcSink struct {
	stream   grpc.ServerStreamingServer[loopdv1.StreamEventsResponse]
	patience time.Duration
}

// send is errSlow if the client did not take the message in time. It holds nothing but the
// message meanwhile, since HTTP/2 bounds what is on its way.
func (g *grpcSink) send(msg *loopdv1.StreamEventsResponse) error {
	began := time.Now()
	if err := g.stream.Send(msg); err != nil {
		return err
	}
	if time.Since(began) > g.patience {
		return errSlow
	}
	return nil
}

func (g *grpcSink) event(e *entry) error {
	return g.send(&loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_Event{Event: e.event}})
}

func (g *grpcSink) delta(d *loopdv1.Delta) error {
	return g.send(&loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_Delta{Delta: d}})
}

func (g *grpcSink) heartbeat() error {
	return g.send(&loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_Heartbeat{Heartbeat: &loopdv1.Heartbeat{}}})
}

func (g *grpcSink) end(state loop.RunState) error {
	return g.send(&loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_End{End: &loopdv1.End{State: runStateProto(state)}}})
}

func (g *grpcSink) flush() error { return nil }

// follower is one open event stream.
type follower struct {
	s    *Server
	feed *feed
	out  sink

	seq     int64 // of the last event that the client has
	call    int   // the newest model call that it knows of
	writing bool  // which may be in flight

	final    loop.RunState // the state of a run that has ended
	finalSeq int64         // its last event

	deltas <-chan postgres.DeltaBatch // nil: not asked for
	shown  deltaPlace
}

// deltaPlace is the last batch of deltas that was sent.
type deltaPlace struct {
	call int
	n    int64
}

func (f *follower) follow(ctx context.Context) error {
	// The first message goes out at once: until then a gateway sends no headers.
	if err := f.heartbeat(); err != nil {
		return err
	}
	heartbeat := time.NewTicker(f.s.heartbeat)
	defer heartbeat.Stop()
	for {
		events, grown, behind := f.feed.after(f.seq)
		if behind {
			if err := f.catchUp(ctx); err != nil {
				return err
			}
			continue
		}
		if err := f.send(events); err != nil {
			return err
		}
		if f.final != "" && f.seq >= f.finalSeq {
			return errors.Join(f.out.end(f.final), f.out.flush())
		}
		if len(events) > 0 {
			heartbeat.Reset(f.s.heartbeat)
			continue
		}
		if err := f.idle(ctx, heartbeat, grown); err != nil {
			return err
		}
	}
}

// idle shows deltas and that the stream is alive, until there are new events. It reads
// them if nobody else does.
func (f *follower) idle(ctx context.Context, heartbeat *time.Ticker, grown <-chan struct{}) error {
	for {
		select {
		case <-grown:
			return nil
		case <-f.feed.news:
			return f.feed.read(ctx)
		case b := <-f.deltas:
			if err := f.sendDelta(ctx, b); err != nil {
				return err
			}
			heartbeat.Reset(f.s.heartbeat)
		case <-heartbeat.C:
			if err := f.heartbeat(); err != nil {
				return err
			}
		case <-f.s.draining:
			return errDraining
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// catchUp sends what the client missed and the feed does not keep any more. It is read for
// this client alone.
func (f *follower) catchUp(ctx context.Context) error {
	journal, err := newJournalReader(f.s.store, f.feed.run)
	if err != nil {
		return err
	}
	if err := journal.skip(ctx, f.seq); err != nil {
		return err
	}
	for {
		events, err := journal.entries(ctx, eventBatch)
		if err != nil || len(events) == 0 {
			return err
		}
		if err := f.send(events); err != nil {
			return err
		}
		if _, _, behind := f.feed.after(f.seq); !behind {
			return nil
		}
	}
}

// send sends events that the client does not have.
func (f *follower) send(events []*entry) error {
	if len(events) == 0 {
		return nil
	}
	for _, e := range events {
		if err := f.out.event(e); err != nil {
			return err
		}
	}
	last := events[len(events)-1]
	f.seq, f.call, f.writing = last.event.GetSeq(), last.call, last.writing
	if last.ended != "" {
		f.final, f.finalSeq = last.ended, f.seq
	}
	return f.out.flush()
}

// sendDelta shows a piece of an answer, behind the event that began its model call. Once
// the event that ended the call was sent, what is late is dropped.
func (f *follower) sendDelta(ctx context.Context, b postgres.DeltaBatch) error {
	if b.Call > f.call { // its event is committed, else the model would not write
		if err := f.feed.read(ctx); err != nil {
			return err
		}
		events, _, behind := f.feed.after(f.seq)
		if behind {
			return nil
		}
		if err := f.send(events); err != nil {
			return err
		}
		if len(events) == 0 { // the client had the call's beginning before it came
			f.call, f.writing = f.feed.writing()
		}
	}
	if b.Call != f.call || !f.writing {
		return nil
	}
	before := f.shown
	if before.call != b.Call {
		before = deltaPlace{}
	}
	f.shown = deltaPlace{b.Call, b.N}
	if err := f.out.delta(deltaProto(b, b.N != before.n+1)); err != nil {
		return err
	}
	return f.out.flush()
}

func (f *follower) heartbeat() error {
	if err := f.out.heartbeat(); err != nil {
		return err
	}
	return f.out.flush()
}
