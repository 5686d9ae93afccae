package engine

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// maxValidations is how often the validator of a final answer is asked, if it does
// not answer: once more than a blip needs, and not for as long as an outage takes.
const maxValidations = 3

// checkAnswer asks the parts of the output contract about the final answer, in
// order, until one fails. Whatever a checker does, there is a verdict: what crashes
// or is not there cannot judge, and then nobody has accepted the answer.
func (o *owner) checkAnswer(ctx context.Context, a loop.CheckAnswer) error {
	record, ok := o.checked(ctx, a)
	if !ok {
		return nil
	}
	return o.commit(ctx, batch{bodies: []loop.Body{record}})
}

// checked is the event that the check comes to. It is not ok when the check was cut
// off by something that goes first; it is asked again then, here or elsewhere.
func (o *owner) checked(ctx context.Context, a loop.CheckAnswer) (record loop.Body, ok bool) {
	if len(a.Schema) > 0 {
		problems, fault := o.ask(ctx, func() ([]string, string) { return o.e.cfg.Checker.Check(a.Schema, a.Answer), "" })
		if record := rejection(loop.BySchema, problems, fault); record != nil {
			return record, true
		}
	}
	if len(a.Assertions) > 0 {
		problems, fault := o.assert(ctx, a.Assertions, o.state.Facts(a.Answer))
		if record := rejection(loop.ByAssertions, problems, fault); record != nil {
			return record, true
		}
	}
	if a.Validator != nil {
		reply, ok := o.askValidator(ctx, a)
		if !ok {
			return nil, false
		}
		problems, fault := o.ask(ctx, func() ([]string, string) { return a.Validated(reply) })
		if record := rejection(loop.ByValidator, problems, fault); record != nil {
			return record, true
		}
	}
	return a.Passed(), true
}

// rejection is the event for a part that did not pass, nil for one that did.
func rejection(by string, problems []string, fault string) loop.Body {
	switch {
	case fault != "":
		return loop.Unchecked(by, fault)
	case len(problems) > 0:
		return loop.Rejection(by, problems)
	}
	return nil
}

// judgeCheckpoints judges what is due, and records all of it together.
func (o *owner) judgeCheckpoints(ctx context.Context, a loop.JudgeCheckpoints) error {
	facts := o.state.Facts("")
	found := make([]loop.Body, 0, len(a.Due))
	for _, c := range a.Due {
		problems, fault := o.assert(ctx, c.Assertions, facts)
		if fault != "" {
			problems = []string{fault}
		}
		found = append(found, a.Judged(c, problems))
	}
	return o.commit(ctx, batch{bodies: found})
}

// assert judges assertions. Without anybody who can judge, none holds.
func (o *owner) assert(ctx context.Context, assertions []loop.Assertion, facts loop.Facts) (problems []string, fault string) {
	if o.e.cfg.Asserts == nil {
		return nil, "nobody here can judge assertions"
	}
	return o.ask(ctx, func() ([]string, string) { return o.e.cfg.Asserts.Assert(assertions, facts), "" })
}

// ask contains a checker that panics: that is why it could not judge.
func (o *owner) ask(ctx context.Context, check func() ([]string, string)) (problems []string, fault string) {
	defer func() {
		if p := recover(); p != nil {
			o.e.metrics.panics.WithLabelValues("check").Inc()
			o.log.ErrorContext(ctx, "a check panicked", "panic", p, "stack", string(debug.Stack()))
			problems, fault = nil, fmt.Sprintf("the check crashed: %v", p)
		}
	}()
	return check()
}

// askValidator asks the caller's endpoint, again after a while if it does not
// answer. It is READ_ONLY, so that the same question may be put many times. It is
// not ok when a signal, a drain or a lost lease goes first.
func (o *owner) askValidator(ctx context.Context, a loop.CheckAnswer) (reply loop.ToolReply, ok bool) {
	callCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for try := 1; ; try++ {
		send := *a.Validator
		send.Attempt = try
		results := make(chan toolResult, 1)
		o.forkCall(callCtx, send, a.Deadline, results)
		for waiting := true; waiting; {
			select {
			case r := <-results:
				reply, waiting = r.reply, false
			case <-o.poked:
				o.watchCancel(ctx, cancel)
			}
		}
		wait := rand.N(o.e.cfg.RetryBase<<try) + 1 //nolint:gosec // jitter, not a secret
		switch {
		case callCtx.Err() != nil:
			return reply, false
		case reply.Outcome == loop.OutcomeOK || refusedForGood(reply.Status) || try == maxValidations || time.Now().Add(wait).After(a.Deadline):
			return reply, true
		}
		o.log.WarnContext(ctx, "the validator did not answer, will try again", "tool", send.Spec.Name, "outcome", reply.Outcome, "status", reply.Status)
		if o.await(ctx, nil, wait); o.pending || o.isDraining() || ctx.Err() != nil {
			return reply, false
		}
	}
}

// refusedForGood reports whether a status says that the same request fails again.
func refusedForGood(status int) bool {
	return status >= 400 && status < 500 && status != http.StatusRequestTimeout && status != http.StatusTooManyRequests
}

// check counts what the event says of each part of the output contract that was
// asked: those before the one that failed have passed.
func (m *metrics) check(d loop.AgentSpec, event loop.Body) {
	failed, outcome := "", "failed"
	if b, ok := event.(loop.AnswerRejected); ok {
		failed = cmp.Or(b.By, loop.BySchema)
		if b.Final {
			outcome = "unchecked"
		}
	}
	_, checked := event.(loop.AnswerChecked)
	judged := d.Output.Judge != nil && !checked && (failed == "" || failed == loop.ByJudge)
	if judged { // the parts before it were counted with answer_checked
		if failed == "" {
			outcome = "passed"
		}
		m.checks.WithLabelValues(loop.ByJudge, outcome).Inc()
		return
	}
	for _, part := range []struct {
		by  string
		set bool
	}{
		{loop.BySchema, len(d.OutputSchema) > 0}, {loop.ByAssertions, len(d.Output.Assertions) > 0}, {loop.ByValidator, d.Output.Validator != nil},
	} {
		switch {
		case part.by == failed:
			m.checks.WithLabelValues(part.by, outcome).Inc()
			return
		case part.set:
			m.checks.WithLabelValues(part.by, "passed").Inc()
		}
	}
}
