package main

import (
	"strings"

	"github.com/loopd/loopd/internal/loop"
)

func (p *lines) pauseRequested(b loop.PauseRequested) {
	text := "pause requested" + by(b.By)
	if b.Reason != "" {
		text += ": " + b.Reason
	}
	p.sayf("%s", text)
}

// pausedBy says how a run goes on that a guard has paused.
func (p *lines) pausedBy(b loop.Tripped) {
	if b.Verdict != loop.VerdictPause {
		return
	}
	if b.Field != "" {
		p.sayf("to go on: %s", resumeCommand(p.run, []string{b.Field}, p.limits.Text))
		return
	}
	p.sayf("to go on: loopd run resume %s --input TEXT", p.run)
}

// resumed says who resumed the run, and what holds from now on.
func (p *lines) resumed(b loop.Resumed) {
	text := "resumed" + by(b.By)
	if b.Reason != "" {
		text += ": " + b.Reason
	}
	p.sayf("%s", text)
	if b.Limits != nil {
		var raised []string
		for _, field := range p.limits.Raised(*b.Limits) {
			raised = append(raised, field+" "+b.Limits.Text(field))
		}
		p.sayf("limits raised: %s", dash(strings.Join(raised, ", ")))
		p.limits = *b.Limits
		if p.caps != nil {
			p.caps.MaxIterations, p.caps.MaxCostUsd = new(int32(b.Limits.Iterations)), new(b.Limits.Cost.String())
		}
	}
	if b.Input != "" {
		p.sayf("the model is told: %s", b.Input)
	}
}
