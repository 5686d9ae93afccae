package scripted

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// Client is the provider of a script's models. It is safe for concurrent use.
type Client struct {
	script *Script

	mu    sync.Mutex
	tries map[string]int // errors already given, by run and answer
}

// New makes a provider of the script's models.
func New(s *Script) *Client { return &Client{script: s, tries: map[string]int{}} }

// Generate gives the answer that is next in the transcript. Its fragments are
// emitted over its delay.
func (c *Client) Generate(ctx context.Context, req loop.ModelRequest) (loop.ModelAnswer, error) {
	m, ok := c.script.models[req.Model]
	if !ok {
		return loop.ModelAnswer{}, &loop.ModelError{Class: loop.ErrorRequest, Status: 404, Message: fmt.Sprintf("the script has no model %q", req.Model)}
	}
	s := sceneOf(req)
	a := m.next(s, req)
	if err := c.fault(a, fmt.Sprintf("%s/%s/%d", req.CacheKey, req.Model, s.N)); err != nil {
		return loop.ModelAnswer{}, cmp.Or(wait(ctx, m.Latency+a.Delay), err)
	}
	if err := wait(ctx, m.Latency); err != nil {
		return loop.ModelAnswer{}, err
	}
	played, err := a.play(s, req)
	if err != nil {
		return loop.ModelAnswer{}, err
	}
	return played, write(ctx, played.Message, a.Delay, req.Emit)
}

// write emits the message word by word, evenly over d.
func write(ctx context.Context, m loop.Message, d time.Duration, emit func(loop.Delta)) error {
	deltas := fragments(m)
	if emit == nil || len(deltas) == 0 {
		return wait(ctx, d)
	}
	for _, fragment := range deltas {
		if err := wait(ctx, d/time.Duration(len(deltas))); err != nil {
			return err
		}
		emit(fragment)
	}
	return nil
}

// fragments cuts a message into words, as models write it.
func fragments(m loop.Message) []loop.Delta {
	var deltas []loop.Delta
	for _, p := range m.Parts {
		text, tool := p.Text, ""
		if p.Call != nil {
			text, tool = p.Call.Args, p.Call.Name
		}
		for word := range strings.SplitAfterSeq(text, " ") {
			deltas = append(deltas, loop.Delta{Kind: p.Kind, Text: word, Tool: tool})
			tool = ""
		}
	}
	return deltas
}

// sceneOf counts what the model has said, also where the run no longer shows the
// oldest of it, and finds the run's input.
func sceneOf(req loop.ModelRequest) scene {
	s := scene{N: 1}
	for _, m := range req.Messages {
		if m.Role == loop.RoleAssistant {
			s.N++
		}
		s.N = max(s.N, m.Iteration+1)
	}
	if len(req.Messages) > 0 {
		s.Input = req.Messages[0].Text()
	}
	return s
}

// next is the answer that is due. Those of rules are given as they are written,
// others without calls where no tools are allowed.
func (m model) next(s scene, req loop.ModelRequest) answer {
	for _, r := range m.Rules {
		if r.When.holds(s, req) {
			return r.Answer
		}
	}
	if !req.ToolsAllowed && m.Final != nil {
		return *m.Final
	}
	i := s.N - 1
	switch count := len(m.Answers); {
	case i < count:
	case m.LoopFrom > 0:
		i = m.LoopFrom - 1 + (i-count)%(count-m.LoopFrom+1)
	default:
		i = count - 1
	}
	a := m.Answers[i]
	if !req.ToolsAllowed {
		a.Calls = nil
	}
	return a
}

func (w when) holds(s scene, req loop.ModelRequest) bool {
	return (w.LastToolError == nil || *w.LastToolError == lastToolError(req.Messages)) &&
		(w.ToolsAllowed == nil || *w.ToolsAllowed == req.ToolsAllowed) &&
		strings.Contains(s.Input, w.InputContains)
}

// lastToolError reports whether one of the results since the last answer is an
// error.
func lastToolError(messages []loop.Message) bool {
	for _, m := range slices.Backward(messages) {
		if m.Role == loop.RoleAssistant {
			return false
		}
		for _, p := range m.Parts {
			if p.Kind == loop.PartToolResult && p.Result.IsError() {
				return true
			}
		}
	}
	return false
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	if err := ctx.Err(); err != nil { // also where both were ready
		class := loop.ErrorTimeout
		if errors.Is(err, context.Canceled) {
			class = loop.ErrorCancelled
		}
		return &loop.ModelError{Class: class, Message: context.Cause(ctx).Error()}
	}
	return nil
}

// fault gives the next of the answer's errors, or nil when all were given.
func (c *Client) fault(a answer, key string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.tries[key]
	if n >= len(a.Errors) {
		delete(c.tries, key)
		return nil
	}
	c.tries[key] = n + 1
	f := a.Errors[n]
	return &loop.ModelError{Class: f.Class, Status: f.Status, Code: f.Code, Message: f.Message, RetryAfter: f.RetryAfter}
}

// play turns the answer into a message, with its price tag.
func (a answer) play(s scene, req loop.ModelRequest) (loop.ModelAnswer, error) {
	text, err := s.fill(a.Text)
	if err != nil {
		return loop.ModelAnswer{}, &loop.ModelError{Class: loop.ErrorRequest, Message: err.Error()}
	}
	msg := loop.Message{Role: loop.RoleAssistant}
	size := len(text)
	if a.Reasoning != "" {
		msg.Parts = append(msg.Parts, loop.Part{Kind: loop.PartReasoning, Text: a.Reasoning})
	}
	if text != "" {
		msg.Parts = append(msg.Parts, loop.TextPart(text))
	}
	if a.Refusal != "" {
		msg.Parts = append(msg.Parts, loop.Part{Kind: loop.PartRefusal, Text: a.Refusal})
	}
	for i, c := range a.Calls {
		args, err := c.render(s)
		if err != nil {
			return loop.ModelAnswer{}, &loop.ModelError{Class: loop.ErrorRequest, Message: err.Error()}
		}
		id := c.ID
		if id == "" {
			id = fmt.Sprintf("scripted_%d_%d", s.N, i+1)
		}
		msg.Parts = append(msg.Parts, loop.Part{Kind: loop.PartToolCall, Call: &loop.ToolCall{ProviderID: id, Name: c.Name, Args: args}})
		size += len(c.Name) + len(args)
	}
	out := loop.ModelAnswer{Message: msg, Finish: a.finish(), NativeFinish: string(a.finish()), ResponseModel: req.Model}
	a.count(&out, req, size)
	return out, nil
}

func (a answer) finish() loop.Finish {
	switch {
	case a.Finish != "":
		return a.Finish
	case a.Refusal != "":
		return loop.FinishRefused
	case len(a.Calls) > 0:
		return loop.FinishToolCalls
	}
	return loop.FinishDone
}

const (
	bytesPerToken = 4                   // the usual size of a token of English text
	mediaSize     = 900 * bytesPerToken // an image or a page
)

// count sets the usage: the script's, or one that grows with the conversation
// and hits the cache as a real one would. It never passes the output cap: an
// answer that is too long for it is truncated.
func (a answer) count(out *loop.ModelAnswer, req loop.ModelRequest, size int) {
	if u := a.Usage; u != nil {
		out.UsageMissing = u.Missing
		out.Usage = loop.Usage{InputUncached: u.Input, CacheRead: u.CacheRead, CacheWrite5m: u.CacheWrite, CacheWrite1h: u.CacheWrite1h, Output: u.Output, Reasoning: u.Reasoning}
	} else {
		cached, fresh := measure(req)
		out.Usage = loop.Usage{CacheRead: cached, CacheWrite5m: fresh, Output: int64(size/bytesPerToken + 1), Reasoning: int64(len(a.Reasoning) / bytesPerToken)}
	}
	if out.Usage.AllOutput() > req.MaxOutputTokens {
		out.Usage.Reasoning = min(out.Usage.Reasoning, req.MaxOutputTokens)
		out.Usage.Output = req.MaxOutputTokens - out.Usage.Reasoning
		out.Finish, out.NativeFinish = loop.FinishTruncated, string(loop.FinishTruncated)
		out.Message.Parts = cut(out.Message.Parts, int(req.MaxOutputTokens)*bytesPerToken)
	}
}

// cut keeps what fits into a number of bytes, the last part cut where it ends,
// even in the middle of a call's arguments, as models do.
func cut(parts []loop.Part, room int) []loop.Part {
	var kept []loop.Part
	for _, p := range parts {
		if room <= 0 {
			break
		}
		text := &p.Text
		if p.Call != nil {
			call := *p.Call
			p.Call, text = &call, &call.Args
			room -= len(call.Name)
		}
		if len(*text) > room {
			*text = strings.ToValidUTF8((*text)[:max(room, 0)], "")
		}
		room -= len(*text)
		kept = append(kept, p)
	}
	return kept
}

// measure splits the request's tokens into those that an earlier request of the
// run had already brought, and the new ones.
func measure(req loop.ModelRequest) (cached, fresh int64) {
	static := len(req.Instructions)
	for _, t := range req.Tools {
		static += len(t.Name) + len(t.Description) + len(t.Schema)
	}
	known, sum := 0, static
	for _, m := range req.Messages {
		if m.Role == loop.RoleAssistant {
			known = sum // all before this answer was in the request for it
		}
		for _, p := range m.Parts {
			sum += len(p.Text)
			if p.Call != nil {
				sum += len(p.Call.Name) + len(p.Call.Args)
			}
			if p.Result != nil {
				sum += len(p.Result.Content)
			}
			if p.Media != nil {
				sum += mediaSize
			}
		}
	}
	return int64(known / bytesPerToken), int64((sum-known)/bytesPerToken + 1)
}
