package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// subjectLabel is the label of a run that says whom or what it is about: notes are
// kept apart by it.
const subjectLabel = "subject"

// toolResult is what one send brought.
type toolResult struct {
	send  loop.Send
	reply loop.ToolReply
}

// callTools sends the calls, at most Parallel at once, and records each result
// as it comes: results that arrive together share a commit.
func (o *owner) callTools(ctx context.Context, a loop.CallTools) error {
	callCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make(chan toolResult, len(a.Sends))
	next, running := 0, 0
	for next < len(a.Sends) || running > 0 {
		for ; next < len(a.Sends) && running < a.Parallel; next++ {
			o.forkCall(callCtx, a.Sends[next], a.Deadline, results)
			running++
		}
		select {
		case r := <-results:
			arrived := []toolResult{r}
			for len(results) > 0 { // whatever else is there already
				arrived = append(arrived, <-results)
			}
			running -= len(arrived)
			if err := o.record(ctx, arrived, next == len(a.Sends) && running == 0); err != nil {
				cancel(err)
				return err
			}
		case <-o.poked:
			o.watchCancel(ctx, cancel)
		}
	}
	return nil
}

// record commits what the calls brought. A call that the drain cut off and that
// may be repeated is left open: whoever claims the run next sends it again. The last
// results wait for the intent that follows them, if their calls may be repeated.
func (o *owner) record(ctx context.Context, arrived []toolResult, last bool) error {
	var records []loop.Body
	var results []loop.FullResult
	for _, r := range arrived {
		cutOff := errors.Is(context.Cause(ctx), errDraining) && r.reply.Outcome != loop.OutcomeOK
		if cutOff && r.send.Spec.Effect.Repeatable() {
			continue
		}
		last = last && r.send.Spec.Effect.Repeatable()
		body, full := o.finished(r)
		records = append(records, body)
		if full != nil {
			results = append(results, *full)
		}
	}
	if len(records) == 0 {
		return nil
	}
	b := batch{bodies: records, results: results}
	if last {
		return o.hold(ctx, b)
	}
	return o.commit(ctx, b)
}

// forkCall sends one call. A call that may be repeated is given up when the run
// is cancelled or out of time. One that may not is left to end as what it truly
// is, within its own timeout: cutting it off would only leave it in doubt. Both
// give way when the worker itself must go. A call that comes up only after the run
// was cancelled, or lost, is not sent at all.
func (o *owner) forkCall(ctx context.Context, send loop.Send, deadline time.Time, results chan<- toolResult) {
	limit := time.Now().Add(send.Spec.Timeout)
	parent, release := ctx, func() {}
	if send.Spec.Effect.Repeatable() {
		limit = earlier(limit, deadline)
	} else {
		parent, release = o.workerContext(ctx)
	}
	bounded, cancel := context.WithDeadline(parent, limit)
	stop := func() { cancel(); release() }
	traced, span := o.spans.tool(bounded, send)
	spec := o.state.Spec() // here, not in the fork: only the owner's goroutine touches the state
	req := ToolRequest{
		Run: o.lease.Run, Agent: spec.Agent, Subject: spec.Labels[subjectLabel],
		Spec: send.Spec, Call: send.Call, Key: send.Key, Attempt: send.Attempt, MaxResult: send.MaxResult,
	}
	fork(o.e.sup, results, func() toolResult {
		defer stop()
		if ctx.Err() != nil {
			reply := loop.ToolReply{Outcome: loop.OutcomeNotSent, Content: "The call did not run: " + context.Cause(ctx).Error() + "."}
			span.endTool(send.Call, reply)
			return toolResult{send, reply}
		}
		began := time.Now()
		reply := o.e.cfg.Tools.Call(traced, req)
		reply.Duration = time.Since(began)
		span.endTool(send.Call, reply)
		return toolResult{send, reply}
	}, func(p any) toolResult {
		stop()
		outcome := loop.OutcomePermanent
		if !send.Spec.Effect.Repeatable() {
			outcome = loop.OutcomeUnknown
		}
		return toolResult{send, loop.ToolReply{Outcome: outcome, Content: fmt.Sprintf("the tool's adapter crashed: %v", p)}}
	})
}

// workerContext carries ctx's values, but ends only with the worker's work.
func (o *owner) workerContext(ctx context.Context) (_ context.Context, release func()) {
	detached, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(o.e.sup.work, func() { cancel(context.Cause(o.e.sup.work)) })
	return detached, func() { unhook(); cancel(nil) }
}

// finished is the record of one send: its result, or the doubt about it, and the
// whole result if the model is shown a part.
func (o *owner) finished(r toolResult) (loop.Body, *loop.FullResult) {
	if r.reply.Outcome == loop.OutcomeUnknown && !r.send.Spec.Effect.Repeatable() {
		return o.state.Doubt(r.send, strings.ToValidUTF8(r.reply.Content, "�"), o.clock.now()), nil
	}
	content := strings.ToValidUTF8(r.reply.Content, "�")
	shown, full := r.send.Cut(content)
	finished := loop.CallFinished{
		CallID: r.send.Call.ID, Attempt: r.send.Attempt, Outcome: r.reply.Outcome, Content: shown,
		Cut: shown != content || r.reply.Cut, Bytes: r.reply.Bytes, Status: r.reply.Status,
		ResultHash: o.e.prints.Result(r.send.Spec, r.reply.Outcome, content), LatencyMS: r.reply.Duration.Milliseconds(),
	}
	if r.send.Poll == nil {
		return finished, full
	}
	body := r.send.Poll.Judge(finished)
	if _, goesOn := body.(loop.CallPolled); goesOn { // what was seen is not kept at all
		return body, nil
	}
	return body, full
}
