package enginetest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
)

// Model answers by a script: the answer that follows n iterations is Script[n],
// whoever asks and however often. Past the script's end, and when no tool may be
// called, it answers Final. Set its fields before it is used; safe for concurrent
// use.
type Model struct {
	Script []Answer
	// ByInput are the scripts of runs with a certain input, before Script.
	ByInput map[string][]Answer
	// ByModel answers the requests to a model by its name, whoever asks, before all
	// scripts.
	ByModel map[string]func(loop.ModelRequest) Answer
	// Final is the text of the wrap-up answer, and of every answer past the script.
	Final string
	// Summary answers what is asked beside the conversation, without tools.
	Summary Answer

	mu       sync.Mutex
	requests []Request
	asked    map[int]int // requests by place in the script
}

// Answer is one answer of a script.
type Answer struct {
	Text  string
	Calls []loop.ToolCall // only Name and Args
	// Used is reported in place of Usage(), unless it is zero.
	Used loop.Usage
	// Finish is derived from Calls when it is empty.
	Finish loop.Finish
	// Fail are the errors of the first requests for this answer, one each.
	Fail []error
	// NoUsage leaves the usage out.
	NoUsage bool
	// Input is how many tokens the answer says that the request had; 0: those of Usage.
	Input int64
	// Gate, if not nil, holds the answer back until it is closed or the request
	// is given up.
	Gate <-chan struct{}
	// Rate is what the response's headers said.
	Rate loop.RateReport
	// Chants is how many of the first requests for this answer are never answered:
	// the model writes the same words until the request is given up.
	Chants int
	// Panic makes the adapter crash.
	Panic bool
}

// Say is an answer in text.
func Say(text string) Answer { return Answer{Text: text} }

// Ask is an answer that calls tools.
func Ask(calls ...loop.ToolCall) Answer { return Answer{Calls: calls} }

// Call is a tool call as a model writes it.
func Call(tool, args string) loop.ToolCall { return loop.ToolCall{Name: tool, Args: args} }

// Usage is what every answer of a Model reports.
func Usage() loop.Usage { return loop.Usage{InputUncached: 100, Output: 20} }

// Request is one request that reached a Model.
type Request struct {
	loop.ModelRequest
	At time.Time
}

// Generate implements engine.Model.
func (m *Model) Generate(ctx context.Context, req loop.ModelRequest) (loop.ModelAnswer, error) {
	answer, n := m.next(req)
	switch {
	case answer.Panic:
		panic("the model's adapter crashed")
	case n < len(answer.Fail):
		return loop.ModelAnswer{}, answer.Fail[n]
	case answer.Gate != nil:
		select {
		case <-answer.Gate:
		case <-ctx.Done():
			return loop.ModelAnswer{}, &loop.ModelError{Class: loop.ErrorCancelled, Message: "the request was given up"}
		}
	}
	if n < answer.Chants {
		return chant(ctx, req.Emit)
	}
	built := answer.build()
	for _, p := range built.Message.Parts {
		if p.Kind == loop.PartText && req.Emit != nil {
			req.Emit(loop.Delta{Kind: p.Kind, Text: p.Text})
		}
	}
	return built, nil
}

// ChantedWords are what a model that chants writes, fragment after fragment.
const ChantedWords = "and so it goes, on and on, "

// mostChanted is where a chant ends that nobody stops: an output cap.
const mostChanted = 100_000

func chant(ctx context.Context, emit func(loop.Delta)) (loop.ModelAnswer, error) {
	for range mostChanted {
		if emit != nil {
			emit(loop.Delta{Kind: loop.PartReasoning, Text: ChantedWords})
		}
		if ctx.Err() != nil {
			return loop.ModelAnswer{}, &loop.ModelError{Class: loop.ErrorCancelled, Message: "the request was given up"}
		}
	}
	return loop.ModelAnswer{}, &loop.ModelError{Class: loop.ErrorInternal, Message: "nobody stopped the chant"}
}

// next notes the request and finds its answer, and how many asked for it before.
func (m *Model) next(req loop.ModelRequest) (Answer, int) {
	place := 0
	for _, msg := range req.Messages {
		if msg.Role == loop.RoleAssistant {
			place++
		}
		place = max(place, msg.Iteration) // the oldest may have been left out
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked == nil {
		m.asked = map[int]int{}
	}
	byModel := m.ByModel[req.Model]
	if byModel != nil {
		place = -1
	}
	n := m.asked[place]
	m.asked[place]++
	m.requests = append(m.requests, Request{req, time.Now()})
	if byModel != nil {
		return byModel(req), n
	}
	if len(req.Tools) == 0 && !req.ToolsAllowed {
		return m.Summary, n
	}
	script := m.Script
	if len(req.Messages) > 0 && m.ByInput[req.Messages[0].Text()] != nil {
		script = m.ByInput[req.Messages[0].Text()]
	}
	if place >= len(script) || !req.ToolsAllowed {
		return Say(m.Final), n
	}
	return script[place], n
}

// Requests returns every request so far, in order.
func (m *Model) Requests() []Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.requests)
}

// build makes the answer as a provider's adapter does.
func (a Answer) build() loop.ModelAnswer {
	out := loop.ModelAnswer{Finish: a.Finish, Usage: Usage(), UsageMissing: a.NoUsage, Rate: a.Rate}
	if a.Input > 0 {
		out.Usage.InputUncached = a.Input
	}
	if a.NoUsage {
		out.Usage = loop.Usage{}
	}
	if a.Text != "" {
		out.Message.Parts = append(out.Message.Parts, loop.TextPart(a.Text))
	}
	for _, c := range a.Calls {
		out.Message.Parts = append(out.Message.Parts, loop.Part{Kind: loop.PartToolCall, Call: &c})
	}
	if a.Used != (loop.Usage{}) {
		out.Usage = a.Used
	}
	if out.Finish == "" {
		out.Finish = loop.FinishDone
		if len(a.Calls) > 0 {
			out.Finish = loop.FinishToolCalls
		}
	}
	return out
}

var _ engine.Model = (*Model)(nil)
