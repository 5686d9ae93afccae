package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// progress shows a run while it goes on.
type progress interface {
	// begin is called once, before the first event.
	begin(run *loopdv1.Run)
	// event is called for each event of the journal, once and in order.
	event(e *loopdv1.Event) error
	// delta is called for what a model is writing, between the events of its call.
	delta(d *loopdv1.Delta) error
	// end is called once, with the run as it then is.
	end(run *loopdv1.Run) error
}

// errWaits says that a run waits for a person and nobody wants to wait with it.
var errWaits = errors.New("the run waits for a person")

// follow shows a run's progress until it ends, then writes the run unless the
// progress has, and returns how it ended as an exit code.
func (c *client) follow(ctx context.Context, name string, flags waitFlags, show progress) error {
	outer := ctx
	if flags.timeout > 0 {
		// A cancel and no deadline: gRPC would send a deadline to the server as well,
		// whose clock may reach it first and make the end look like a failure.
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(flags.timeout, cancel).Stop()
	}
	run, err := c.runs.GetRun(ctx, &loopdv1.GetRunRequest{Name: name})
	if err == nil {
		show.begin(run)
		err = c.stream(ctx, name, flags, show)
	}
	switch {
	case outer.Err() != nil:
		fmt.Fprintf(c.env.Stderr, "detached: the run goes on. To cancel it: loopd run cancel %s\n", name)
		return &exitError{code: exitInterrupted}
	case ctx.Err() != nil:
		return &exitError{code: exitTimeout, err: fmt.Errorf("%s has not ended after %s; it goes on", name, flags.timeout)}
	case err != nil && !errors.Is(err, errWaits):
		return err
	}
	if run, err = c.runs.GetRun(ctx, &loopdv1.GetRunRequest{Name: name}); err != nil {
		return err
	}
	if err := show.end(run); err != nil {
		return err
	}
	if _, toStdout := show.(*jsonEvents); !toStdout {
		if err := c.writeRun(ctx, run); err != nil {
			return err
		}
	}
	return outcome(run)
}

// stream reads the journal to its end. Where the connection breaks it goes on
// after the last event seen, until retryTries in a row brought none.
func (c *client) stream(ctx context.Context, name string, flags waitFlags, show progress) error {
	var seen int64
	for tries := 0; ; tries++ {
		before := seen
		done, err := c.readStream(ctx, name, &seen, flags, show)
		if done || ctx.Err() != nil {
			return ctx.Err()
		}
		if seen > before {
			tries = 0
		}
		if !broken(err) || tries >= c.retryTries {
			return c.explain(err)
		}
		fmt.Fprintf(c.env.Stderr, "connection lost; going on after event %d\n", seen)
		select {
		case <-time.After(c.retryWait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// broken reports whether a stream ended for a reason that may pass.
func broken(err error) bool {
	if errors.Is(err, io.EOF) {
		return true // closed in good order, but before its end: a server that drains
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled, codes.Aborted:
		return true
	default:
		return false
	}
}

// readStream reads one stream and moves seen along. It is done when the journal
// has ended.
func (c *client) readStream(ctx context.Context, name string, seen *int64, flags waitFlags, show progress) (done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(c.silence, cancel)
	defer silent.Stop()

	stream, err := c.runs.StreamEvents(ctx, &loopdv1.StreamEventsRequest{Parent: name, AfterSeq: *seen, IncludeDeltas: flags.deltas})
	if err != nil {
		return false, err
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return false, err
		}
		silent.Reset(c.silence)
		switch kind := message.GetKind().(type) {
		case *loopdv1.StreamEventsResponse_End:
			return true, nil
		case *loopdv1.StreamEventsResponse_Delta:
			if err := show.delta(kind.Delta); err != nil {
				return false, err
			}
		case *loopdv1.StreamEventsResponse_Event:
			if kind.Event.GetSeq() <= *seen {
				continue
			}
			if err := show.event(kind.Event); err != nil {
				return false, err
			}
			*seen = kind.Event.GetSeq()
			if flags.noWaitApproval && waits(kind.Event) {
				return false, errWaits
			}
		}
	}
}

// waits reports whether an event makes the run wait for a person.
func waits(e *loopdv1.Event) bool {
	suspended, ok := body(e).(loop.Suspended)
	return ok && slices.Contains([]loop.Wait{loop.WaitApproval, loop.WaitInDoubt, loop.WaitResult, loop.WaitRaise}, suspended.Reason)
}

// body decodes an event. Kinds that this loopd does not know are nil: a newer
// server may send them.
func body(e *loopdv1.Event) loop.Body {
	raw, err := json.Marshal(e.GetBody().AsMap())
	if err != nil {
		return nil
	}
	decoded, err := loop.DecodeBody(e.GetKind(), raw)
	if err != nil {
		return nil
	}
	return decoded
}

// jsonEvents writes each event as a line of JSON. A delta is one with the only
// member "delta".
type jsonEvents struct{ w io.Writer }

func jsonProgress(w io.Writer) *jsonEvents { return &jsonEvents{w: w} }

func (p *jsonEvents) begin(*loopdv1.Run)           {}
func (p *jsonEvents) event(e *loopdv1.Event) error { return writeJSONLine(p.w, e) }
func (p *jsonEvents) end(*loopdv1.Run) error       { return nil }

func (p *jsonEvents) delta(d *loopdv1.Delta) error {
	return writeJSONLine(p.w, &loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_Delta{Delta: d}})
}

// lines writes one line per iteration, below what the model is writing meanwhile.
type lines struct {
	w         io.Writer
	draft     draft
	run       string
	caps      *loopdv1.Limits
	limits    loop.Limits // in force, by the events so far
	iteration int32       // the open one; 0 = none
	since     time.Time
	cost      loop.USD
	calls     []string // of the open iteration, in the order they were asked for
	tools     map[string]int
	beside    bool              // the newest model call is no part of the conversation
	names     map[string]string // of the tools of all calls so far, by the call's id
}

func (p *lines) begin(run *loopdv1.Run) { p.run, p.caps = run.GetName(), run.GetLimits() }

func (p *lines) delta(d *loopdv1.Delta) error {
	p.draft.add(d)
	return nil
}

func (p *lines) event(e *loopdv1.Event) error {
	at := e.GetCreateTime().AsTime()
	switch b := body(e).(type) {
	case loop.ModelStarted:
		p.close(at)
		if p.beside = b.Beside(); !p.beside {
			p.since = at
		}
	case loop.ModelAnswered:
		if p.beside {
			p.cost += b.Cost.Total() // what it said is told by what comes of it
			return nil
		}
		p.draft.replace(b.Message)
		p.open(e.GetIteration(), b)
	case loop.Compacted:
		p.close(at)
		p.sayf("%s", compactedWords(b))
	case loop.ModelFailed:
		p.draft.drop()
		p.cost += b.Cost.Total()
		p.sayf("model call failed (%s): %s", b.Class, b.Message)
	case loop.CallRefused:
		p.mark(b.CallID, b.Outcome)
	case loop.CallFinished:
		p.mark(b.CallID, b.Outcome)
	case loop.CallDoubted:
		p.mark(b.CallID, loop.OutcomeUnknown)
		p.sayf("%s is in doubt: %s", p.nameOf(b.CallID), b.Reason)
	case loop.Tripped:
		p.close(at)
		p.sayf("guard %s: %s: %s", b.Guard, b.Verdict, b.Message)
		p.pausedBy(b)
	case loop.AnswerRejected, loop.AnswerChecked, loop.CheckpointJudged:
		p.close(at)
		p.check(b)
	case loop.Suspended:
		p.close(at)
		p.sayf("waits: %s", b.Reason)
	case loop.Claimed:
		if b.Attempt > 1 {
			p.sayf("attempt %d on %s", b.Attempt, b.Worker)
		}
	case loop.CancelRequested:
		p.sayf("cancel requested %s", b.Reason)
	case loop.Created:
		p.limits = b.Spec.Limits
	case loop.PauseRequested:
		p.pauseRequested(b)
	case loop.Resumed:
		p.resumed(b)
	case loop.Finished:
		p.close(at)
	default:
		p.callEvent(b)
	}
	return nil
}

func (p *lines) end(*loopdv1.Run) error {
	p.draft.leave()
	_, err := fmt.Fprintln(p.w)
	return err
}

// open begins an iteration with the model's answer.
func (p *lines) open(iteration int32, b loop.ModelAnswered) {
	p.iteration = iteration
	p.cost += b.Cost.Total()
	p.calls, p.tools = nil, map[string]int{}
	if p.names == nil {
		p.names = map[string]string{}
	}
	for _, call := range b.Message.Calls() {
		p.names[call.ID] = call.Name
		p.tools[call.ID] = len(p.calls)
		p.calls = append(p.calls, call.Name)
	}
}

// mark notes how a call of the open iteration ended.
func (p *lines) mark(callID string, outcome loop.Outcome) {
	if i, ok := p.tools[callID]; ok {
		p.calls[i] += " " + string(outcome)
		delete(p.tools, callID)
	}
}

// close writes the line of the open iteration, if there is one.
func (p *lines) close(at time.Time) {
	if p.iteration == 0 {
		return
	}
	what := "answer"
	if len(p.calls) > 0 {
		what = strings.Join(p.calls, ", ")
	}
	p.draft.makeWay()
	fmt.Fprintf(p.w, "%3d/%d  %s of %s  %6s  %s\n", p.iteration, p.caps.GetMaxIterations(),
		p.cost, usd(p.caps.GetMaxCostUsd()), at.Sub(p.since).Round(100*time.Millisecond), oneLine(what))
	p.iteration = 0
}

// sayf writes a line about what happens between iterations.
func (p *lines) sayf(format string, args ...any) {
	p.draft.makeWay()
	fmt.Fprintf(p.w, "        %s\n", oneLine(fmt.Sprintf(format, args...)))
}
