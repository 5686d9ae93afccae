package server

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
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
	return s.listen(ctx, "listening for events", func() error { return s.store.ListenEvents(ctx, s.hub.wake) })
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
	ctx := stream.Context()
	after, err := resumeAt(ctx, req.GetAfterSeq())
	if err != nil {
		return err
	}
	ref := runRef(tenant(ctx), req.GetParent())
	woken, leave := r.s.hub.subscribe(ref.ID)
	defer leave()
	run, err := r.s.store.GetRun(ctx, ref)
	if err != nil {
		return named(err, loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "run", req.GetParent())
	}
	r.s.metrics.streams.Inc()
	defer r.s.metrics.streams.Dec()
	if after > 0 {
		r.s.metrics.resumes.Inc()
	}
	journal, err := newJournalReader(r.s.store, ref)
	if err != nil {
		return err
	}
	if err := journal.skip(ctx, after); err != nil {
		return err
	}
	if run.Head.State.Terminal() { // its last event may be one that the client has
		journal.ended = run.Head.State
	}
	f := &follower{s: r.s, journal: journal, stream: stream, woken: woken}
	if req.GetIncludeDeltas() && !run.Head.State.Terminal() {
		deltas, leave := r.s.taps.subscribe(ref)
		defer leave()
		f.deltas = deltas
	}
	return f.follow(ctx)
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

// follower is one open event stream.
type follower struct {
	s       *Server
	journal *journalReader
	stream  grpc.ServerStreamingServer[loopdv1.StreamEventsResponse]
	woken   <-chan struct{}
	deltas  <-chan postgres.DeltaBatch // nil: not asked for
	shown   deltaPlace
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
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		sent, err := f.sendNew(ctx)
		if err != nil {
			return err
		}
		if f.journal.ended != "" {
			return f.end()
		}
		if sent {
			heartbeat.Reset(f.s.heartbeat)
		}
		if err := f.idle(ctx, heartbeat, poll); err != nil {
			return err
		}
	}
}

// idle shows deltas and that the stream is alive, until there may be new events.
func (f *follower) idle(ctx context.Context, heartbeat, poll *time.Ticker) error {
	for f.journal.ended == "" {
		select {
		case <-f.woken:
			return nil
		case <-poll.C:
			return nil
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
	return nil
}

// sendDelta shows a piece of an answer, behind the event that began its model call. Once
// the event that ended the call was sent, what is late is dropped.
func (f *follower) sendDelta(ctx context.Context, b postgres.DeltaBatch) error {
	if b.Call > f.journal.call { // its event is committed, else the model would not write
		if _, err := f.sendNew(ctx); err != nil {
			return err
		}
	}
	if b.Call != f.journal.call || !f.journal.writing {
		return nil
	}
	before := f.shown
	if before.call != b.Call {
		before = deltaPlace{}
	}
	f.shown = deltaPlace{b.Call, b.N}
	return f.stream.Send(&loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_Delta{
		Delta: deltaProto(b, b.N != before.n+1),
	}})
}

// sendNew sends all events that the client does not have.
func (f *follower) sendNew(ctx context.Context) (sent bool, err error) {
	for {
		events, err := f.journal.next(ctx, eventBatch)
		if err != nil {
			return sent, err
		}
		for _, e := range events {
			if err := f.stream.Send(&loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_Event{Event: e}}); err != nil {
				return sent, err
			}
			sent = true
		}
		if len(events) < eventBatch {
			break
		}
	}
	return sent, nil
}

func (f *follower) end() error {
	return f.stream.Send(&loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_End{
		End: &loopdv1.End{State: runStateProto(f.journal.ended)},
	}})
}

func (f *follower) heartbeat() error {
	return f.stream.Send(&loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_Heartbeat{Heartbeat: &loopdv1.Heartbeat{}}})
}
