package gemini

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// chunk is one event of a stream, or a whole answer.
type chunk struct {
	Candidates     []candidate `json:"candidates"`
	PromptFeedback *struct {
		BlockReason        string `json:"blockReason"`
		BlockReasonMessage string `json:"blockReasonMessage"`
	} `json:"promptFeedback"`
	UsageMetadata *usage          `json:"usageMetadata"`
	ModelVersion  string          `json:"modelVersion"`
	ResponseID    string          `json:"responseId"`
	Error         json.RawMessage `json:"error"`
}

type candidate struct {
	Index   int `json:"index"`
	Content struct {
		Parts []json.RawMessage `json:"parts"`
	} `json:"content"`
	FinishReason  string `json:"finishReason"`
	FinishMessage string `json:"finishMessage"`
}

// answer collects one answer.
type answer struct {
	id, model   string
	pieces      []*piece
	usage       usage
	reason      string // why it ended: a finish reason, or a block reason
	explanation string
	blocked     bool // the prompt was refused, so there is no candidate
	begun       bool
	spoken      bool // there is more than thoughts
	emit        func(loop.Delta)
}

// read takes the answer in. Asked for events, some servers send a list of the
// same chunks, and some one object. An object is whole or no JSON; a list and a
// stream of events have no mark for their end but the reason in the last chunk.
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
		return a.chunk(bytes.ToValidUTF8(body, []byte("\uFFFD")))
	}
	take := a.events
	if begin, err := resp.Peek(1); err == nil && begin[0] == '[' {
		take = a.list
	}
	if err = take(resp); err == nil && a.reason == "" {
		return provider.Cut("the stream ended without a finish reason")
	}
	return err
}

func (a *answer) events(resp *provider.Response) error {
	events := provider.NewEvents(resp.Reader)
	for {
		data, err := events.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := a.chunk(data); err != nil {
			return err
		}
		if !a.spoken {
			resp.Thinking()
		}
	}
}

func (a *answer) list(resp *provider.Response) error {
	dec := json.NewDecoder(resp)
	_, err := dec.Token()
	for err == nil && dec.More() {
		var raw json.RawMessage
		if err = dec.Decode(&raw); err == nil {
			err = a.chunk(bytes.ToValidUTF8(raw, []byte("\uFFFD")))
		}
	}
	if err == nil {
		_, err = dec.Token() // the end of the list
	}
	if _, ok := errors.AsType[*loop.ModelError](err); err == nil || ok {
		return err
	}
	return provider.Cut("the list of chunks is no complete JSON")
}

// chunk takes one JSON object of valid UTF-8 in. A whole answer is a stream of one
// chunk.
func (a *answer) chunk(data []byte) error {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return provider.Cut("the answer is no complete JSON of the expected kind")
	}
	isFault := len(c.Error) > 0 && string(c.Error) != "null"
	isEmpty := c.Candidates == nil && c.PromptFeedback == nil && c.UsageMetadata == nil
	if isFault || isEmpty && !a.begun {
		return sharpen(provider.ParseFault(data).InBand(a.begun), data)
	}
	a.begun = true
	a.id, a.model = first(a.id, c.ResponseID), first(a.model, c.ModelVersion)
	for _, candidate := range c.Candidates {
		if candidate.Index != 0 {
			continue // loopd asks for one
		}
		if err := a.candidate(candidate); err != nil {
			return err
		}
	}
	if f := c.PromptFeedback; f != nil && f.BlockReason != "" && len(a.pieces) == 0 {
		a.blocked, a.reason, a.explanation = true, f.BlockReason, f.BlockReasonMessage
	}
	if c.UsageMetadata != nil {
		a.usage.merge(*c.UsageMetadata, a.reason != "")
	}
	return nil
}

func (a *answer) candidate(c candidate) error {
	for _, raw := range c.Content.Parts {
		p, err := newPiece(raw)
		if err != nil {
			return err
		}
		a.add(p)
	}
	a.reason, a.explanation = first(c.FinishReason, a.reason), first(c.FinishMessage, a.explanation)
	return nil
}

// add keeps a piece and tells whoever watches. Fragments of the same text become
// one part, as they are one in an answer that is not streamed.
func (a *answer) add(p *piece) {
	if p.plain && p.part.Text == "" {
		return // such a part ends many streams; it says nothing and is not sent back
	}
	a.spoken = a.spoken || p.part.Kind != loop.PartReasoning
	if a.emit != nil && p.part.Kind != "" {
		a.emit(p.delta())
	}
	if n := len(a.pieces); n > 0 && p.plain && a.pieces[n-1].plain && a.pieces[n-1].part.Kind == p.part.Kind {
		a.pieces[n-1].more.WriteString(p.part.Text)
		return
	}
	a.pieces = append(a.pieces, p)
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// result is the finished answer.
func (a *answer) result() (loop.ModelAnswer, error) {
	m := loop.Message{Role: loop.RoleAssistant, Source: loop.SourceModel}
	native := []any{}
	for _, p := range a.pieces {
		p.close()
		native = append(native, p.native())
		if p.part.Kind != "" {
			m.Parts = append(m.Parts, p.part)
		}
	}
	if a.reason == "MALFORMED_FUNCTION_CALL" {
		// The model wrote a call that Google could not read, and nothing of it is
		// in the answer. It is chance: the same request may well succeed.
		return loop.ModelAnswer{}, &loop.ModelError{
			Class: loop.ErrorMidStream, Status: http.StatusOK, Code: a.reason,
			Message: "the model wrote a function call that the provider could not read",
		}
	}
	end := finish(a.reason)
	if a.blocked {
		end = loop.FinishRefused
	}
	if end == loop.FinishRefused {
		m.Parts = append(m.Parts, loop.Part{Kind: loop.PartRefusal, Text: a.explanation})
	}
	raw, err := json.Marshal(native)
	if err != nil {
		return loop.ModelAnswer{}, fmt.Errorf("keep the answer: %w", err)
	}
	m.Native = &loop.Native{Wire: wire, JSON: raw}
	return loop.ModelAnswer{
		Message: m, Finish: provider.Settle(end, m), NativeFinish: a.reason, Usage: a.usage.loop(),
		UsageMissing: !a.usage.complete() || !a.usage.final, ResponseID: a.id, ResponseModel: a.model,
	}, nil
}

// finish is the table of finish reasons. What it does not name fails closed:
// UNEXPECTED_TOOL_CALL, TOO_MANY_TOOL_CALLS, OTHER and whatever comes next. A
// STOP with calls in the answer is settled as tool calls.
func finish(reason string) loop.Finish {
	switch reason {
	case "STOP":
		return loop.FinishDone
	case "MAX_TOKENS":
		return loop.FinishTruncated
	case "SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR",
		"IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION":
		return loop.FinishRefused
	}
	return loop.FinishUnknown
}

// piece is one part of the answer.
type piece struct {
	raw   json.RawMessage // as it came
	part  loop.Part       // what loopd reads of it; kinds that are not known have none
	plain bool            // nothing but text, so that more may be appended
	odd   bool            // a call whose arguments are no object
	more  strings.Builder // of a plain piece: what was appended
}

// newPiece reads a part. A part with any member beside its text, such as a
// signature, stays as it came, and alone: a signature belongs to its part.
func newPiece(raw json.RawMessage) (*piece, error) {
	var members map[string]json.RawMessage
	var known struct {
		Text         *string `json:"text"`
		Thought      bool    `json:"thought"`
		FunctionCall *struct {
			ID   string          `json:"id"`
			Name string          `json:"name"`
			Args json.RawMessage `json:"args"`
		} `json:"functionCall"`
	}
	if json.Unmarshal(raw, &members) != nil || json.Unmarshal(raw, &known) != nil {
		return nil, provider.Cut("a part of the answer is not of the expected kind")
	}
	p := &piece{raw: raw}
	switch {
	case known.FunctionCall != nil:
		f := known.FunctionCall
		args := string(f.Args)
		if args == "" || args == "null" {
			args = "{}" // a call without arguments
		}
		p.part = loop.Part{Kind: loop.PartToolCall, Call: &loop.ToolCall{ProviderID: f.ID, Name: f.Name, Args: args}}
		p.odd = args[0] != '{'
	case known.Text != nil:
		kind, most := loop.PartText, 1
		if known.Thought {
			kind, most = loop.PartReasoning, 2
		}
		p.plain = len(members) <= most
		if p.plain || *known.Text != "" {
			p.part = loop.Part{Kind: kind, Text: *known.Text}
		}
	}
	return p, nil
}

func (p *piece) delta() loop.Delta {
	if p.part.Call != nil {
		return loop.Delta{Kind: loop.PartToolCall, Tool: p.part.Call.Name, Text: p.part.Call.Args}
	}
	return loop.Delta{Kind: p.part.Kind, Text: p.part.Text}
}

// close joins the fragments.
func (p *piece) close() {
	if p.more.Len() > 0 {
		p.part.Text += p.more.String()
	}
}

// native is the part as it is sent back. Only arguments that the API would refuse
// in a history are taken out.
func (p *piece) native() any {
	switch {
	case p.plain:
		return part{Text: p.part.Text, Thought: p.part.Kind == loop.PartReasoning}
	case p.odd:
		return part{FunctionCall: &functionCall{ID: p.part.Call.ProviderID, Name: p.part.Call.Name, Args: provider.ObjectOr(p.part.Call.Args)}}
	}
	return p.raw
}
