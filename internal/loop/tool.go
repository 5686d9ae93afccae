package loop

import (
	"encoding/json"
	"time"
)

// Effect says what a tool call may change in the world. It decides what loopd
// may do when a call's outcome is not known.
type Effect string

// The effect classes, from harmless to dangerous. A tool that declares none is
// Irreversible.
const (
	ReadOnly     Effect = "READ_ONLY"    // changes nothing
	Idempotent   Effect = "IDEMPOTENT"   // the same key twice has one effect
	SideEffect   Effect = "SIDE_EFFECT"  // sent at most once
	Irreversible Effect = "IRREVERSIBLE" // sent at most once, and only when approved
)

// Repeatable reports whether a call may be sent again, with the same key, when
// its outcome is unknown.
func (e Effect) Repeatable() bool { return e == ReadOnly || e == Idempotent }

// ToolSpec is a tool as an agent version pins it.
type ToolSpec struct {
	Name           string          `json:"name"`
	Description    string          `json:"description,omitempty"`
	Schema         json.RawMessage `json:"schema"` // JSON Schema of the arguments; always an object
	Effect         Effect          `json:"effect"`
	Timeout        time.Duration   `json:"timeout"`          // of one call, in nanoseconds
	MaxResultBytes int64           `json:"max_result_bytes"` // what the model sees at most
	Pollable       bool            `json:"pollable,omitempty"`
	VolatileArgs   []string        `json:"volatile_args,omitempty"`   // top-level arguments that fingerprints ignore
	VolatileResult []string        `json:"volatile_result,omitempty"` // JSON pointers into the result that fingerprints ignore
	HTTP           *HTTPSpec       `json:"http,omitempty"`
}

// HTTPSpec tells how an HTTP tool is called. Header values may hold references
// of the form ${secret:NAME}; they are resolved when the request is sent.
type HTTPSpec struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers,omitempty"`
}

// ToolCall is one request by the model to run a tool.
type ToolCall struct {
	ID         string `json:"id"`                    // loopd's own, unique in the run: "c3-1" is the first call of the third model call
	ProviderID string `json:"provider_id,omitempty"` // as the model wrote it: may be empty, long or repeated
	Name       string `json:"name"`
	Args       string `json:"args"`              // exact text, also when it is no JSON
	Problem    string `json:"problem,omitempty"` // why the arguments fail the tool's schema; empty = they pass
}

// Key is the idempotency key of a call: the same for every attempt of it, and
// never the model's word.
func (c ToolCall) Key(run RunRef) string { return "loopd:" + run.ID + ":" + c.ID }

// CallState is where a call stands. See the state machine in ARCHITECTURE.md.
type CallState string

// The states of a call. Planned, AwaitingApproval, Approved, Started and InDoubt
// lead somewhere else; all others are final.
const (
	CallPlanned          CallState = "PLANNED"
	CallAwaitingApproval CallState = "AWAITING_APPROVAL"
	CallApproved         CallState = "APPROVED"
	CallRejected         CallState = "REJECTED"
	CallDenied           CallState = "DENIED"
	CallStarted          CallState = "STARTED"
	CallSucceeded        CallState = "SUCCEEDED"
	CallFailed           CallState = "FAILED"
	CallNotSent          CallState = "NOT_SENT"
	CallInDoubt          CallState = "IN_DOUBT"
	CallSkipped          CallState = "SKIPPED"
	CallCancelled        CallState = "CANCELLED"
)

// Final reports whether the call has its one result.
func (s CallState) Final() bool {
	switch s {
	case CallRejected, CallDenied, CallSucceeded, CallFailed, CallNotSent, CallSkipped, CallCancelled:
		return true
	}
	return false
}

// Outcome is the typed result of a call. Guards read it; they never search a
// result's text for the word "error".
type Outcome string

// The closed set of outcomes.
const (
	OutcomeOK          Outcome = "ok"
	OutcomeRetryable   Outcome = "retryable" // definite failure that may pass: 429, 503
	OutcomePermanent   Outcome = "permanent" // definite failure: other 4xx, a read-only 5xx
	OutcomeInvalidArgs Outcome = "invalid_args"
	OutcomeUnknownTool Outcome = "unknown_tool"
	OutcomeDenied      Outcome = "denied"
	OutcomeTimeout     Outcome = "timeout"
	OutcomeUnknown     Outcome = "unknown"  // it may have run: the call is in doubt
	OutcomeNotSent     Outcome = "not_sent" // provably nothing left loopd
	OutcomeSkipped     Outcome = "skipped"  // a cap, a cut answer, a duplicate
	OutcomeCancelled   Outcome = "cancelled"
)

// Failed reports whether an outcome counts as an error of the tool for the
// error guards. Denied, skipped and cancelled calls are not the tool's failure.
func (o Outcome) Failed() bool {
	switch o {
	case OutcomeRetryable, OutcomePermanent, OutcomeInvalidArgs, OutcomeUnknownTool, OutcomeTimeout, OutcomeUnknown, OutcomeNotSent:
		return true
	}
	return false
}

// ToolResult is what goes back to the model for one call. Content is valid
// UTF-8; what was not is marked and replaced in it.
type ToolResult struct {
	CallID     string  `json:"call_id"`
	ProviderID string  `json:"provider_id,omitempty"`
	Name       string  `json:"name"`
	Outcome    Outcome `json:"outcome"`
	Content    string  `json:"content"`
}

// IsError reports whether the model is to be told that the call failed.
func (r ToolResult) IsError() bool { return r.Outcome != OutcomeOK }

// ToolReply is what a tool answered, in full, before loopd cuts it to the size
// that the model may see.
type ToolReply struct {
	Outcome  Outcome
	Content  string // for OutcomeOK the result, else a structured message for the model
	Bytes    int64  // size of the answer as received
	Cut      bool   // the answer was longer than loopd reads
	Status   int    // HTTP status, 0 if none
	Duration time.Duration
}
