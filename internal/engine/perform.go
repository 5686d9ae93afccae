package engine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// longSleep is where waiting with a goroutine ends: a longer wait gives the
// lease back and leaves the waking to the database.
const longSleep = 60 * time.Second

// countTimeout bounds a count: it is a convenience, not worth a long wait.
const countTimeout = 10 * time.Second

// perform makes the action's intent durable, does the one thing, and records
// what came of it. It reports whether the lease has been given back.
func (o *owner) perform(ctx context.Context, action loop.Action) (released bool, err error) {
	if a := modelCallOf(action); a != nil {
		return o.performModel(ctx, a)
	}
	return o.performOther(ctx, action)
}

// modelCallOf is the action if it is a model call, else nil. It and performOther are
// functions of their own, whatever the compiler thinks, for their size: they would lie on
// the stack of everybody who waits for a model.
//
//go:noinline
func modelCallOf(action loop.Action) *loop.CallModel {
	a, ok := action.(loop.CallModel)
	if !ok {
		return nil
	}
	return &a
}

// performOther performs what is no model call.
func (o *owner) performOther(ctx context.Context, action loop.Action) (released bool, err error) {
	switch a := action.(type) {
	case loop.CallTools:
		if err := o.commitIntent(ctx, a); err != nil {
			return false, err
		}
		return false, o.callTools(ctx, a)
	case loop.Record:
		return false, o.commitBehind(ctx, batch{bodies: a.Intent(), intent: a.AfterSignals})
	case loop.End:
		return true, o.commitBehind(ctx, batch{bodies: a.Intent(), release: true, intent: a.AfterSignals})
	}
	if err := o.flush(ctx); err != nil {
		return false, err
	}
	switch a := action.(type) {
	case loop.CountInput:
		return false, o.countInput(ctx, a)
	case loop.CheckAnswer:
		return false, o.checkAnswer(ctx, a)
	case loop.JudgeCheckpoints:
		return false, o.judgeCheckpoints(ctx, a)
	case loop.Sleep:
		return o.sleepUntil(ctx, a)
	case loop.VerifyCall:
		return false, o.verify(ctx, a)
	case loop.Suspend:
		return o.suspend(ctx, a)
	case loop.Done:
		return true, o.e.cfg.Journal.Append(ctx, o.lease, Batch{Release: true, Head: o.state.Head()})
	}
	return false, fmt.Errorf("engine does not know the action %T", action)
}

// performModel makes a model call once it may be made.
func (o *owner) performModel(ctx context.Context, a *loop.CallModel) (released bool, err error) {
	if ready, released, err := o.readyModel(ctx, a); !ready || err != nil {
		return released, err
	}
	return false, o.callModel(ctx, a)
}

// readyModel waits for the model call's turn, draws the money for it and commits its
// intent.
func (o *owner) readyModel(ctx context.Context, a *loop.CallModel) (ready, released bool, err error) {
	if o.holdsAnswer() { // a draw counts what the last model call gave back
		if err := o.flush(ctx); err != nil {
			return false, false, err
		}
	}
	if ready, released, err := o.awaitShare(ctx, *a); !ready || err != nil {
		return false, released, err
	}
	if drawn, err := o.draw(ctx, *a); !drawn || err != nil {
		return false, false, err
	}
	return true, false, o.commitIntent(ctx, *a)
}

// countInput asks the provider's counting endpoint, once. No answer is an answer.
func (o *owner) countInput(ctx context.Context, a loop.CountInput) error {
	counted := loop.InputCounted{Model: o.state.Model()}
	counter, ok := o.e.cfg.Models[a.Request.Provider].(Counter)
	if !ok {
		counted.Message = "the provider has no counting endpoint"
		return o.commit(ctx, batch{bodies: []loop.Body{counted}})
	}
	bounded, stop := context.WithDeadline(ctx, earlier(a.Deadline, time.Now().Add(countTimeout)))
	defer stop()
	tokens, err := counter.CountTokens(bounded, a.Request)
	if err != nil {
		tokens, counted.Message = 0, strings.ToValidUTF8(err.Error(), "\uFFFD")
	}
	counted.Tokens = max(0, tokens)
	return o.commit(ctx, batch{bodies: []loop.Body{counted}})
}

// sleepUntil waits out a short backoff and suspends the run for a long one.
func (o *owner) sleepUntil(ctx context.Context, a loop.Sleep) (released bool, err error) {
	wait := time.Until(a.Until)
	if wait > longSleep {
		suspended := loop.Suspended{Reason: a.Reason, Until: a.Until}
		return true, o.commit(ctx, batch{bodies: []loop.Body{suspended}, intent: true, release: true})
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-o.poked:
		o.pending = true
	case <-o.draining:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	return false, nil
}

// watchCancel cancels calls in flight as soon as a cancel waits for the run. It
// is called when the owner was poked.
func (o *owner) watchCancel(ctx context.Context, cancel context.CancelCauseFunc) {
	o.pending = true // whatever it is, it is taken after the call
	signals, err := o.e.cfg.Journal.Signals(ctx, o.lease)
	if err != nil {
		return
	}
	for _, s := range signals {
		if _, ok := s.Body.(loop.CancelRequested); ok {
			cancel(errCancelled)
		}
	}
}
