package loop

import (
	"encoding/json"
	"strings"
	"time"
)

// Role says who speaks. Instructions are not a message: they belong to the
// agent version and go ahead of the transcript in every request.
type Role string

// The two roles of a transcript. Tool results travel in user messages, as the
// providers require.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
)

// Source says where a message came from, for people who read a transcript.
type Source string

// Every message of a transcript has one of these sources.
const (
	SourceInput Source = "input"
	SourceModel Source = "model"
	SourceTool  Source = "tool"
	SourceGuard Source = "guard" // a nudge, a re-ask, the wrap-up request
	SourceUser  Source = "user"  // a word of somebody who resumed the run
)

// PartKind tells which of a Part's members is meaningful.
type PartKind string

// The closed set of parts.
const (
	PartText       PartKind = "text"
	PartReasoning  PartKind = "reasoning"
	PartToolCall   PartKind = "tool_call"
	PartToolResult PartKind = "tool_result"
	PartRefusal    PartKind = "refusal"
	PartImage      PartKind = "image"
	PartDocument   PartKind = "document"
)

// Part is one piece of a message, without any provider's wire format.
type Part struct {
	Kind   PartKind    `json:"kind"`
	Text   string      `json:"text,omitempty"` // of text, reasoning and refusal parts
	Call   *ToolCall   `json:"call,omitempty"`
	Result *ToolResult `json:"result,omitempty"`
	Media  *Media      `json:"media,omitempty"` // of image and document parts
}

// Media is an image or a document. Either Data or URL is set. A URL is fetched
// by the provider, never by loopd.
type Media struct {
	Type string `json:"type"`           // "image/png", "application/pdf"
	Name string `json:"name,omitempty"` // file name, for people and for providers that want one
	Data []byte `json:"data,omitempty"`
	URL  string `json:"url,omitempty"`
}

// TextPart is a part that holds text.
func TextPart(text string) Part { return Part{Kind: PartText, Text: text} }

// Native is an assistant message exactly as one wire format wrote it. Providers
// replay it byte for byte: signed reasoning may not be changed, and an unchanged
// prefix is what prompt caches match on. The core never looks inside.
type Native struct {
	Wire string          `json:"wire"` // "anthropic", "openai", "openai_responses", "gemini"
	JSON json.RawMessage `json:"json"`
}

// Message is one entry of a transcript.
type Message struct {
	Role   Role    `json:"role"`
	Source Source  `json:"source,omitempty"`
	Parts  []Part  `json:"parts"`
	Native *Native `json:"native,omitempty"`

	// Where the message stands in the run. Set by the fold, not stored again.
	Seq       int64     `json:"-"`
	Iteration int       `json:"-"`
	At        time.Time `json:"-"`
	Model     string    `json:"-"` // of an assistant message: the reference of the model that wrote it
}

// Text joins the text parts.
func (m Message) Text() string {
	var b strings.Builder
	for _, p := range m.Parts {
		if p.Kind == PartText {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// Calls lists the tool calls in the order the model wrote them.
func (m Message) Calls() []ToolCall {
	var calls []ToolCall
	for _, p := range m.Parts {
		if p.Kind == PartToolCall {
			calls = append(calls, *p.Call)
		}
	}
	return calls
}

// Finish is why a model stopped writing, in loopd's closed set. It is decided by
// the provider's adapter before any tool call in the answer is looked at.
type Finish string

// A tool call is run only from an answer that finished as FinishToolCalls.
const (
	FinishDone      Finish = "done"       // the model considers itself finished
	FinishToolCalls Finish = "tool_calls" // complete calls are in the answer
	FinishTruncated Finish = "truncated"  // cut by the output limit
	FinishContext   Finish = "context"    // cut by the context window
	FinishPaused    Finish = "paused"     // the provider wants the answer sent back unchanged
	FinishRefused   Finish = "refused"    // refusal or content filter
	FinishUnknown   Finish = "unknown"    // anything else, also nothing: fail closed
)

// ModelRequest is what a provider is asked, without any wire format.
type ModelRequest struct {
	Provider        string     // name of the configured provider, the part of the model reference before the slash
	Model           string     // the provider's own name of the model
	Instructions    string     // system prompt; may be empty
	Tools           []ToolSpec // in a stable order, so that prompt caches match
	Messages        []Message  // never ends with an assistant message, except to continue a paused one
	MaxOutputTokens int64      // hard cap, reasoning included
	ToolsAllowed    bool       // false: tools stay declared, but the model may call none
	Temperature     *float64   // nil = the provider's default
	Reasoning       Reasoning  // zero = the provider's default
	// OutputSchema is the JSON Schema that the final answer must satisfy; nil: any
	// text. An adapter passes it on where the provider can keep a model to it; the
	// answer is checked all the same.
	OutputSchema json.RawMessage
	CacheKey     string // stable for the run, for providers that route caches by key

	// Emit, if set, is called for each fragment of the answer as it arrives, in
	// order, from the goroutine that called Generate. It does not block.
	Emit func(Delta)
	// Memo, if set, is where the adapter may keep what it made of this transcript
	// for the next request of the same run to the same model.
	Memo *Memo
}

// Memo belongs to one run on one worker and to one model, and is used by one
// request at a time. What is in it is the adapter's own; it may be dropped at
// any time, so an adapter checks that it fits the request.
type Memo struct{ Value any }

// Delta is a fragment of an answer that is being written. It is never stored:
// the ModelAnswered event of the same call replaces all of them.
type Delta struct {
	Kind PartKind // text, reasoning, refusal or tool_call
	Text string   // of a tool call: a fragment of its arguments
	Tool string   // of a tool call: its name, on the first fragment
}

// Reasoning says how much a model may think before it answers. Thinking is
// output: it is capped by MaxOutputTokens and priced at the reasoning rate.
type Reasoning struct {
	Effort string `json:"effort,omitempty"` // "none", "minimal", "low", "medium", "high", "xhigh"; "" = unset
	Budget int64  `json:"budget,omitempty"` // tokens, for models that are steered by a number; 0 = unset
}

// ModelAnswer is what a provider answered.
type ModelAnswer struct {
	Message       Message // role assistant
	Finish        Finish
	NativeFinish  string // the provider's own word, for people
	Usage         Usage
	UsageMissing  bool // the provider reported none: the call is charged at its hold
	ResponseID    string
	ResponseModel string
	Rate          RateReport
}

// RateReport is what a provider's response headers say of its rate limits. A
// zero member was not said.
type RateReport struct {
	Requests RateWindow
	Tokens   RateWindow
}

// RateWindow is one limit: Limit per minute, Remaining until Reset.
type RateWindow struct {
	Limit     int64
	Remaining int64
	Reset     time.Time // zero: the window was not reported
}

// ErrorClass sorts model failures by what may be done about them.
type ErrorClass string

// The classes, after guard practice: what was never started is free and may be
// repeated, what may have been started is charged at its hold.
const (
	ErrorNotStarted ErrorClass = "not_started" // no connection; 408, 409
	ErrorThrottle   ErrorClass = "throttle"    // 429, 503, 529
	ErrorQuota      ErrorClass = "quota"       // no credit, spend cap: never retried
	ErrorServer     ErrorClass = "server"      // 500, 502, 504
	ErrorMidStream  ErrorClass = "mid_stream"  // cut or failed after the answer began
	ErrorTimeout    ErrorClass = "timeout"     // no byte for too long, or loopd's own deadline
	ErrorContext    ErrorClass = "context"     // the request is larger than the window
	ErrorRequest    ErrorClass = "request"     // 400, 404, 422: the same request fails again
	ErrorAuth       ErrorClass = "auth"        // 401, 403
	ErrorCancelled  ErrorClass = "cancelled"   // loopd gave up the call: cancel, drain
	ErrorTextLoop   ErrorClass = "text_loop"   // loopd gave up the call: the answer went round in circles
	ErrorLost       ErrorClass = "lost"        // the worker died while the call was in flight
	ErrorInternal   ErrorClass = "internal"    // a fault of loopd's own, such as a panic in an adapter
)

// Retryable reports whether the same request may succeed later.
func (c ErrorClass) Retryable() bool {
	switch c {
	case ErrorNotStarted, ErrorThrottle, ErrorServer, ErrorMidStream, ErrorTimeout, ErrorLost:
		return true
	}
	return false
}

// Free reports whether a failure of this class is known to have cost nothing,
// so that its hold is released instead of charged.
func (c ErrorClass) Free() bool {
	switch c {
	case ErrorNotStarted, ErrorThrottle, ErrorQuota, ErrorContext, ErrorRequest, ErrorAuth:
		return true
	}
	return false
}

// FallbackAllowed reports whether another model may be asked after a failure of
// this class. What is wrong with the request itself is wrong with any model, and
// a lost worker says nothing about one. After ErrorQuota only another provider
// can help.
func (c ErrorClass) FallbackAllowed() bool {
	return c == ErrorQuota || c.Retryable() && c != ErrorLost
}

// CodeCircuitOpen is the code of a request that loopd did not send, because the
// provider has been failing. Another model is asked at once, if there is one.
const CodeCircuitOpen = "circuit_open"

// ModelError is a failed model call. Providers return it from every path; any
// other error is treated as ErrorServer.
type ModelError struct {
	Class      ErrorClass
	Status     int           // HTTP status, 0 if none
	Code       string        // the provider's own code
	Message    string        // for people; never holds a key
	RetryAfter time.Duration // 0 = the provider did not say
	Usage      Usage         // what a cut answer had already reported
	Rate       RateReport
}

// Error names class, status and message.
func (e *ModelError) Error() string {
	msg := "model call failed: " + string(e.Class)
	if e.Code != "" {
		msg += " (" + e.Code + ")"
	}
	if e.Message != "" {
		msg += ": " + e.Message
	}
	return msg
}
