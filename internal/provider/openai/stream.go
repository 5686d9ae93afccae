package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// chunk is one event of a stream, or a whole answer.
type chunk struct {
	ID      text            `json:"id"`
	Model   text            `json:"model"`
	Choices []choice        `json:"choices"`
	Usage   json.RawMessage `json:"usage"`
	Groq    struct {
		Usage json.RawMessage `json:"usage"`
	} `json:"x_groq"`
	Error json.RawMessage `json:"error"`
}

type choice struct {
	Index        int             `json:"index"`
	FinishReason text            `json:"finish_reason"`
	Delta        *delta          `json:"delta"`
	Message      *delta          `json:"message"`
	Usage        json.RawMessage `json:"usage"` // where Moonshot streams it
}

// delta is a fragment of a message, or a whole one. Content and arguments are raw
// because servers disagree on their types.
type delta struct {
	Content          json.RawMessage   `json:"content"`
	Refusal          text              `json:"refusal"`
	ReasoningContent text              `json:"reasoning_content"`
	Reasoning        text              `json:"reasoning"`
	ReasoningDetails []json.RawMessage `json:"reasoning_details"`
	ToolCalls        []callDelta       `json:"tool_calls"`
	FunctionCall     *functionDelta    `json:"function_call"`
	ExtraContent     json.RawMessage   `json:"extra_content"`
	ThoughtSignature text              `json:"thought_signature"`
}

type callDelta struct {
	Index        *int            `json:"index"`
	ID           text            `json:"id"`
	Function     functionDelta   `json:"function"`
	ExtraContent json.RawMessage `json:"extra_content"`
}

type functionDelta struct {
	Name      text            `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// text is a string member. Another type there is as good as nothing: it must not
// make a paid answer unreadable.
type text string

// UnmarshalJSON never fails on JSON.
func (t *text) UnmarshalJSON(raw []byte) error {
	s, _ := unquote(raw)
	*t = text(s)
	return nil
}

// unquote reads a JSON string, or null as "". Most strings of a stream have no
// escapes and need no second decoder.
func unquote(raw []byte) (s string, ok bool) {
	if n := len(raw); n >= 2 && raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : n-1]), true
	}
	ok = json.Unmarshal(raw, &s) == nil
	return s, ok
}

// answer collects one answer.
type answer struct {
	id, model    string
	message      message
	usage        *usage
	finishReason string
	begun        bool
	limit        int64 // the output cap that was asked for; 0 = none
}

// read takes the answer in, streamed or whole.
func (a *answer) read(resp *provider.Response) error {
	whole, err := resp.IsObject()
	if err != nil {
		return err
	}
	if whole {
		body, err := io.ReadAll(resp)
		if err != nil {
			return err
		}
		return a.chunk([]byte(strings.ToValidUTF8(string(body), "\uFFFD")))
	}
	return a.events(provider.NewEvents(resp.Reader), func() {
		if resp.Buffered() == 0 { // else there is more already, and no silence
			resp.Thinking()
		}
	})
}

// events takes a stream in. Many servers say at once that an answer has begun,
// and nothing more until their model has thought; thinking is told so.
func (a *answer) events(events *provider.Events, thinking func()) error {
	for {
		data, err := events.Next()
		switch {
		case errors.Is(err, io.EOF) && a.finishReason != "":
			return nil // some servers leave out the end mark; the reason is enough
		case errors.Is(err, io.EOF):
			return provider.Cut("the stream ended without a finish reason")
		case err != nil:
			return err
		case string(bytes.TrimSpace(data)) == "[DONE]" && a.begun:
			return nil
		}
		if err := a.chunk(data); err != nil {
			return err
		}
		if a.message.empty() {
			thinking()
		}
	}
}

// chunk takes one JSON object in. A whole answer is a stream of one chunk.
func (a *answer) chunk(data []byte) error {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return provider.Cut("the answer is no complete JSON of the expected kind")
	}
	reported := a.count(c.Usage) || a.count(c.Groq.Usage)
	if present(c.Error, nil) != nil {
		return provider.ParseFault(data).InBand(a.begun)
	}
	if c.Choices == nil && !reported {
		if !a.begun {
			return provider.ParseFault(data).InBand(false)
		}
		return nil // some gateways interleave objects of their own
	}
	a.begun = true
	a.id, a.model = first(a.id, string(c.ID)), first(a.model, string(c.Model))
	for _, choice := range c.Choices {
		if choice.Index != 0 {
			continue // loopd asks for one
		}
		a.count(choice.Usage)
		a.message.add(choice.Delta)
		a.message.add(choice.Message)
		a.finishReason = first(string(choice.FinishReason), a.finishReason)
	}
	return nil
}

// count takes a usage in and reports whether it is one. Servers that report more
// than once count on; one that says less does not undo what is known.
func (a *answer) count(raw json.RawMessage) bool {
	u := parseUsage(raw)
	if u == nil {
		return false
	}
	if u.complete() || !a.usage.complete() {
		a.usage = u
	}
	return true
}

// result is the finished answer.
func (a *answer) result() (loop.ModelAnswer, error) {
	a.message.tellCalls()
	m := a.message.neutral()
	wireForm, err := a.message.native()
	if err != nil {
		return loop.ModelAnswer{}, err
	}
	native, err := json.Marshal(wireForm)
	if err != nil {
		return loop.ModelAnswer{}, err
	}
	m.Native = &loop.Native{Wire: wire, JSON: native}
	return loop.ModelAnswer{
		Message: m, Finish: a.finish(m), NativeFinish: a.finishReason,
		Usage: a.usage.loop(), UsageMissing: !a.usage.complete(), ResponseID: a.id, ResponseModel: a.model,
	}, nil
}

// finish is what really ended the answer.
func (a *answer) finish(m loop.Message) loop.Finish {
	if a.message.refusal.Len() > 0 {
		return loop.FinishRefused // the finish reason of a refusal is "stop"
	}
	end := provider.Settle(finishes(a.finishReason), m)
	if (end == loop.FinishDone || end == loop.FinishToolCalls) && a.full() {
		return loop.FinishTruncated // some servers name another reason when the cap cut the answer
	}
	return end
}

// full reports whether the answer has exactly as many tokens as were allowed.
func (a *answer) full() bool {
	u := a.usage.loop()
	return a.limit > 0 && a.usage.complete() && (u.AllOutput() == a.limit || u.Output == a.limit)
}

// finishes is the table of finish reasons. What it does not name fails closed.
func finishes(reason string) loop.Finish {
	switch reason {
	case "stop":
		return loop.FinishDone
	case "tool_calls", "function_call":
		return loop.FinishToolCalls
	case "length":
		return loop.FinishTruncated
	case "content_filter":
		return loop.FinishRefused
	}
	return loop.FinishUnknown
}

// present is raw, or the value from before if there is nothing in it.
func present(raw, before json.RawMessage) json.RawMessage {
	if len(raw) == 0 || string(raw) == "null" {
		return before
	}
	return raw
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
