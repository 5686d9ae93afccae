package main

import (
	"cmp"
	"strings"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// callEvent writes a line about what becomes of a model's calls before or beyond an
// iteration: which model goes on, who runs a tool call in loopd's place, what a person
// or a child run said.
func (p *lines) callEvent(b loop.Body) {
	switch b := b.(type) {
	case loop.FellBack:
		p.sayf("goes on with %s instead of %s: %s", b.To, b.From, b.Message)
	case loop.RateWaited:
		p.sayf("waits for its share of the rate limit of %s%s", b.Provider, until(b.Until))
	case loop.InputCounted:
		if b.Tokens > 0 {
			p.sayf("%s counts %d input tokens", b.Model, b.Tokens)
		} else {
			p.sayf("%s did not count the input: %s", b.Model, b.Message)
		}
	case loop.ApprovalRequested:
		p.sayf("%s asks for approval%s", p.nameOf(b.CallID), until(b.Until))
	case loop.ApprovalDecided:
		p.decided(b)
	case loop.CallHandedOut:
		if b.ChildID != "" {
			p.sayf("%s starts child run runs/%s, for at most %s USD", p.nameOf(b.CallID), b.ChildID, b.Hold)
		} else {
			p.sayf("%s is handed out, attempt %d%s", p.nameOf(b.CallID), b.Attempt, until(b.Until))
		}
	case loop.CallResolved:
		p.sayf("%s is resolved as %s%s", p.nameOf(b.CallID), b.Resolution, by(b.By))
	case loop.ResultSubmitted:
		p.mark(b.CallID, b.Outcome)
		p.sayf("%s got its result%s: %s", p.nameOf(b.CallID), by(b.By), b.Outcome)
	case loop.CallPolled:
		p.sayf("%s looked, nothing new; looks again%s", p.nameOf(b.CallID), when(b.Next))
	case loop.CallVerified:
		p.verified(b)
	case loop.DoubtTold:
		p.sayf("the model is told that nobody knows what became of %s", p.nameOf(b.CallID))
	case loop.ChildFinished:
		p.child(b)
	case loop.ChildCancelled:
		p.sayf("child run runs/%s is cancelled: %s", b.ChildID, b.Reason)
	}
}

func (p *lines) decided(b loop.ApprovalDecided) {
	word := "denied"
	switch {
	case b.Approved && b.Args != "":
		word = "approved with edited arguments"
	case b.Approved:
		word = "approved"
	}
	reason := ""
	if b.Reason != "" {
		reason = ": " + b.Reason
	}
	p.sayf("%s is %s%s%s", p.nameOf(b.CallID), word, by(b.By), reason)
}

// check writes a line about what a check found of a run or of its answer.
func (p *lines) check(b loop.Body) {
	switch b := b.(type) {
	case loop.AnswerRejected:
		what := "was rejected by the"
		if b.Final {
			what = "could not be checked by the"
		}
		p.sayf("the answer %s %s: %s", what, cmp.Or(b.By, loop.BySchema), strings.Join(b.Problems, "; "))
	case loop.AnswerChecked:
		p.sayf("the answer passed all checks but the judge's")
	case loop.CheckpointJudged:
		if len(b.Problems) > 0 {
			p.sayf("checkpoint %s does not hold: %s", b.Checkpoint, strings.Join(b.Problems, "; "))
		}
	}
}

func (p *lines) verified(b loop.CallVerified) {
	name := p.nameOf(b.CallID)
	switch {
	case b.Found:
		p.sayf("%s is verified: it took effect", name)
	case b.Settled:
		p.sayf("%s is verified: it took no effect", name)
	case b.Message != "":
		p.sayf("%s could not be verified: %s; asks again%s", name, b.Message, when(b.Next))
	default:
		p.sayf("%s has not taken effect so far; asks again%s", name, when(b.Next))
	}
}

func (p *lines) child(b loop.ChildFinished) {
	p.cost += b.Cost.Total()
	outcome := loop.OutcomePermanent
	switch b.State {
	case loop.StateSucceeded:
		outcome = loop.OutcomeOK
	case loop.StateCancelled:
		outcome = loop.OutcomeCancelled
	}
	p.mark(b.CallID, outcome)
	why := ""
	if b.State != loop.StateSucceeded {
		why = ": " + string(b.Stop.Reason) + " " + b.Stop.Message
	}
	p.sayf("child run runs/%s %s for %s USD%s", b.ChildID, b.State, b.Cost.Total(), why)
}

// nameOf is a call by its tool and id.
func (p *lines) nameOf(callID string) string {
	if name := p.names[callID]; name != "" {
		return name + " " + callID
	}
	return callID
}

// until says up to when, if that is known.
func until(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return ", until " + t.UTC().Format(time.DateTime) + "Z"
}

// when says the time, if that is known.
func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " at " + t.UTC().Format(time.DateTime) + "Z"
}
