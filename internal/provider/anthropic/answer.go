package anthropic

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// event is any event of a stream.
type event struct {
	Type         string          `json:"type"`
	Index        int             `json:"index"`
	Message      *envelope       `json:"message"`
	ContentBlock json.RawMessage `json:"content_block"`
	Delta        delta           `json:"delta"`
	Usage        *usage          `json:"usage"`
}

// envelope is a message: complete in a plain answer, empty in message_start.
type envelope struct {
	Type        string            `json:"type"`
	ID          string            `json:"id"`
	Model       string            `json:"model"`
	Content     []json.RawMessage `json:"content"`
	StopReason  *string           `json:"stop_reason"`
	StopDetails *stopDetails      `json:"stop_details"`
	Usage       *usage            `json:"usage"`
}

// delta is the delta of content_block_delta and of message_delta.
type delta struct {
	Type        string          `json:"type"`
	Text        string          `json:"text"`
	Thinking    string          `json:"thinking"`
	Signature   string          `json:"signature"`
	PartialJSON string          `json:"partial_json"`
	Citation    json.RawMessage `json:"citation"`
	StopReason  *string         `json:"stop_reason"`
	StopDetails *stopDetails    `json:"stop_details"`
}

type stopDetails struct {
	Explanation string `json:"explanation"`
}

// answer collects one answer.
type answer struct {
	id, model   string
	blocks      []*block
	open        map[int]*block // by index on the wire
	usage       usage
	stopReason  string
	explanation string // of a refusal
	begun       bool
	stopped     bool
	quiet       bool // the block being written may take minutes without a word

	emit func(loop.Delta) // nil = nobody watches
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
		return a.message(body)
	}
	events := provider.NewEvents(resp.Reader)
	for !a.stopped {
		data, err := events.Next()
		if errors.Is(err, io.EOF) {
			return provider.Cut("the stream ended before message_stop")
		}
		if err != nil {
			return err
		}
		var e event
		if err := json.Unmarshal(data, &e); err != nil && !foreign(e, err) {
			return provider.Cut("an event of the stream is no complete JSON")
		}
		if err := a.apply(e, data); err != nil {
			return err
		}
		if a.quiet {
			resp.Thinking()
		}
	}
	return nil
}

// foreign reports whether an event could not be read only because it is of a kind
// that is not known, whose members may be of any type.
func foreign(e event, err error) bool {
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); !ok {
		return false
	}
	switch e.Type {
	case "", "message_start", "content_block_start", "content_block_delta", "message_delta":
		return false
	}
	return true
}

// say passes a fragment on to who watches.
func (a *answer) say(kind loop.PartKind, text, tool string) {
	if a.emit != nil && (text != "" || tool != "") {
		a.emit(loop.Delta{Kind: kind, Text: text, Tool: tool})
	}
}

// apply takes one event in. Kinds that are not known are skipped, as the API's
// versioning rules ask.
func (a *answer) apply(e event, data []byte) error {
	switch e.Type {
	case "message_start":
		if e.Message == nil {
			return provider.Cut("message_start has no message")
		}
		// A proxy was seen to repeat this event; blocks that are there stay.
		a.begun, a.id, a.model = true, e.Message.ID, e.Message.Model
		a.usage.merge(e.Message.Usage, false)
	case "content_block_start":
		return a.start(e.Index, e.ContentBlock)
	case "content_block_stop":
		a.quiet = false
	case "content_block_delta":
		b, ok := a.open[e.Index]
		if !ok {
			return provider.Cut("a delta belongs to no block")
		}
		b.add(e.Delta)
		switch b.kind {
		case "text":
			a.say(loop.PartText, e.Delta.Text, "")
		case "thinking":
			a.say(loop.PartReasoning, e.Delta.Thinking, "")
		case typeToolUse:
			a.say(loop.PartToolCall, e.Delta.PartialJSON, "")
		}
	case "message_delta":
		a.stop(e.Delta.StopReason, e.Delta.StopDetails)
		a.usage.merge(e.Usage, true)
	case "message_stop":
		a.stopped = true
	case "error":
		return provider.ParseFault(data).InBand(a.begun)
	}
	return nil
}

func (a *answer) start(index int, raw json.RawMessage) error {
	object, err := provider.ParseObject(raw)
	if err != nil {
		return provider.Cut("content block: " + err.Error())
	}
	b := &block{object: object, kind: object.Text("type")}
	a.blocks, a.open[index] = append(a.blocks, b), b
	// Thinking comes as summaries or not at all, and input only when a member of it
	// is complete.
	a.quiet = b.kind != "text"
	switch b.kind {
	case "text":
		a.say(loop.PartText, object.Text("text"), "")
	case "thinking":
		a.say(loop.PartReasoning, object.Text("thinking"), "")
	case typeToolUse:
		// In a stream the input is still empty here.
		input := string(object.Raw("input"))
		if input == "{}" || input == "null" {
			input = ""
		}
		a.say(loop.PartToolCall, input, object.Text("name"))
	}
	return nil
}

func (a *answer) stop(reason *string, details *stopDetails) {
	if details != nil {
		a.explanation = details.Explanation
	}
	if reason != nil {
		a.stopReason = *reason
		if *reason == "refusal" {
			a.say(loop.PartRefusal, a.explanation, "")
		}
	}
}

// message takes in an answer that was not streamed.
func (a *answer) message(body []byte) error {
	var m envelope
	if err := json.Unmarshal([]byte(strings.ToValidUTF8(string(body), "\uFFFD")), &m); err != nil {
		return provider.Cut("the answer is no complete JSON")
	}
	if m.Type != "message" {
		return provider.ParseFault(body).InBand(false)
	}
	a.id, a.model, a.begun = m.ID, m.Model, true
	a.usage.merge(m.Usage, true)
	a.stop(m.StopReason, m.StopDetails)
	for i, raw := range m.Content {
		if err := a.start(i, raw); err != nil {
			return err
		}
	}
	return nil
}

// result is the finished answer.
func (a *answer) result() (loop.ModelAnswer, error) {
	m := loop.Message{Role: loop.RoleAssistant, Source: loop.SourceModel}
	content := []*provider.Object{}
	for _, b := range a.blocks {
		if err := b.close(); err != nil {
			return loop.ModelAnswer{}, err
		}
		m.Parts = append(m.Parts, b.parts()...)
		if !b.blank() { // the API writes blank text but refuses it in a history
			content = append(content, b.object)
		}
	}
	if a.stopReason == "refusal" {
		m.Parts = append(m.Parts, loop.Part{Kind: loop.PartRefusal, Text: a.explanation})
	}
	native, err := json.Marshal(content)
	if err != nil {
		return loop.ModelAnswer{}, err
	}
	m.Native = &loop.Native{Wire: wire, JSON: native}
	return loop.ModelAnswer{
		Message: m, Finish: provider.Settle(finish(a.stopReason), m), NativeFinish: a.stopReason,
		Usage: a.usage.loop(), UsageMissing: a.usage.missing(), ResponseID: a.id, ResponseModel: a.model,
	}, nil
}

// finish is the table of stop reasons. What it does not name fails closed.
func finish(reason string) loop.Finish {
	switch reason {
	case "end_turn", "stop_sequence":
		return loop.FinishDone
	case typeToolUse:
		return loop.FinishToolCalls
	case "max_tokens":
		return loop.FinishTruncated
	case "model_context_window_exceeded":
		return loop.FinishContext
	case "pause_turn":
		return loop.FinishPaused
	case "refusal":
		return loop.FinishRefused
	}
	return loop.FinishUnknown
}

// typeToolUse is a block type and a stop reason.
const typeToolUse = "tool_use"

// block is one content block with what deltas added to it.
type block struct {
	object    *provider.Object
	kind      string
	text      strings.Builder
	thinking  strings.Builder
	signature strings.Builder
	input     strings.Builder
	citations []json.RawMessage
	args      string // of a call: the exact text
}

func (b *block) add(d delta) {
	b.text.WriteString(d.Text)
	b.thinking.WriteString(d.Thinking)
	b.signature.WriteString(d.Signature)
	b.input.WriteString(d.PartialJSON)
	if len(d.Citation) > 0 {
		b.citations = append(b.citations, d.Citation)
	}
}

// close writes the deltas into the block, leaving every other member as it came.
func (b *block) close() error {
	var errs []error
	set := func(key string, value any) {
		raw, err := json.Marshal(value)
		errs = append(errs, err)
		b.object.Set(key, raw)
	}
	extend := func(key string, s *strings.Builder) {
		if s.Len() > 0 {
			set(key, b.object.Text(key)+s.String())
		}
	}
	extend("text", &b.text)
	extend("thinking", &b.thinking)
	extend("signature", &b.signature)
	if len(b.citations) > 0 {
		var before []json.RawMessage
		if raw := b.object.Raw("citations"); raw != nil {
			errs = append(errs, json.Unmarshal(raw, &before))
		}
		set("citations", slices.Concat(before, b.citations))
	}
	b.closeInput()
	return errors.Join(errs...)
}

// closeInput settles the input of a call, which may be of the provider's own tool.
// A call without arguments has an empty fragment only.
func (b *block) closeInput() {
	if !strings.HasSuffix(b.kind, typeToolUse) {
		return
	}
	b.args = b.input.String()
	if b.args == "" {
		b.args = string(b.object.Raw("input"))
	}
	if b.args == "" || b.args == "null" {
		b.args = "{}"
	}
	b.object.Set("input", provider.ObjectOr(b.args))
}

func (b *block) blank() bool {
	return b.kind == "text" && strings.TrimSpace(b.object.Text("text")) == ""
}

// parts are what loopd reads of the block. Blocks of tools that the provider ran
// itself and kinds that are not known live on in the native form only.
func (b *block) parts() []loop.Part {
	switch b.kind {
	case "text":
		if text := b.object.Text("text"); text != "" {
			return []loop.Part{loop.TextPart(text)}
		}
	case "thinking":
		return []loop.Part{{Kind: loop.PartReasoning, Text: b.object.Text("thinking")}}
	case typeToolUse:
		return []loop.Part{{Kind: loop.PartToolCall, Call: &loop.ToolCall{
			ProviderID: b.object.Text("id"), Name: b.object.Text("name"), Args: b.args,
		}}}
	}
	return nil
}
