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

// ToolSpec is a tool as an agent version pins it. Exactly one of HTTP, MCP,
// Client, Child and Builtin says how it is run.
type ToolSpec struct {
	Name           string          `json:"name"`
	Version        int64           `json:"version,omitempty"` // of the registered tool; 0 = the agent defines it itself
	Description    string          `json:"description,omitempty"`
	Schema         json.RawMessage `json:"schema"` // JSON Schema of the arguments; always an object
	Effect         Effect          `json:"effect"`
	Timeout        time.Duration   `json:"timeout"`             // of one call, in nanoseconds
	MaxResultBytes int64           `json:"max_result_bytes"`    // what the model sees at most
	MaxCalls       int             `json:"max_calls,omitempty"` // first sends in the whole run; 0 = as many as the run may make
	Approval       Approval        `json:"approval,omitzero"`
	Verify         string          `json:"verify,omitempty"` // READ_ONLY tool of the same agent that can say whether a key took effect
	Pollable       bool            `json:"pollable,omitempty"`
	VolatileArgs   []string        `json:"volatile_args,omitempty"`   // top-level arguments that fingerprints ignore
	VolatileResult []string        `json:"volatile_result,omitempty"` // JSON pointers into the result that fingerprints ignore
	HTTP           *HTTPSpec       `json:"http,omitempty"`
	MCP            *MCPSpec        `json:"mcp,omitempty"`
	Client         *ClientSpec     `json:"client,omitempty"`
	Child          *ChildSpec      `json:"child,omitempty"`
	Builtin        Builtin         `json:"builtin,omitempty"`
}

// Approval says when a person must approve a call before it is sent. Whatever it
// says, IRREVERSIBLE calls always need one.
type Approval struct {
	Mode ApprovalMode `json:"mode,omitempty"`
	// When is a CEL condition over args, tool and run, for ApprovalWhen.
	When string `json:"when,omitempty"`
}

// ApprovalMode is the rule in one word.
type ApprovalMode string

// The modes. The empty one is ApprovalNever.
const (
	ApprovalNever  ApprovalMode = "never"
	ApprovalAlways ApprovalMode = "always"
	ApprovalWhen   ApprovalMode = "when"
)

// ClientSpec marks a tool that the caller of the run runs itself: the run waits
// until the result is submitted.
type ClientSpec struct {
	Wait time.Duration `json:"wait,omitempty"` // for a result; 0 = clientWait
}

// ChildSpec marks a tool that is an agent: a call is a run of its own, with its
// own iterations, and money, tokens and time out of its parent's.
type ChildSpec struct {
	// Spec is the child's agent, as it was when the parent was created. Input,
	// Parent and the limits that the parent can still afford are set when the call
	// starts.
	Spec Spec `json:"spec"`
	// HandOver: the child answers for the parent, which ends with its answer.
	HandOver bool `json:"hand_over,omitempty"`
}

// Builtin names a tool that loopd runs itself.
type Builtin string

// The built-in tools.
const (
	BuiltinWait         Builtin = "wait"          // until a time has passed, or a pollable tool's result changes
	BuiltinAskHuman     Builtin = "ask_human"     // put a question to a person
	BuiltinFinish       Builtin = "finish"        // the structured final answer
	BuiltinMemoryGet    Builtin = "memory_get"    // read a note
	BuiltinMemoryPut    Builtin = "memory_put"    // write a note
	BuiltinMemorySearch Builtin = "memory_search" // find notes
	BuiltinReadResult   Builtin = "read_result"   // read the result of an earlier call, in full or in parts
)

// HTTPSpec tells how an HTTP tool is called. In URL, query, header and body
// values, {name} stands for an argument. Header, query and body values may hold
// references of the form ${secret:NAME}; they are resolved when the request is
// sent, and kept nowhere.
type HTTPSpec struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"` // {name} in the path is escaped
	Headers map[string]string `json:"headers,omitempty"`
	// Query are the parameters; one whose argument is absent is left out. Nil: with
	// a method that has no body, every argument that the URL does not name.
	Query map[string]string `json:"query,omitzero"`
	// Body is how arguments travel with methods that have one: "json" (the
	// default), "form", or "none".
	Body string `json:"body,omitempty"`
	// BodyTemplate, for a JSON body of another shape than the arguments: a string
	// that is exactly "{name}" becomes the argument with its type.
	BodyTemplate json.RawMessage `json:"body_template,omitempty"`
	// Result is a JSON pointer to what the model sees of the answer; "" = all.
	Result string `json:"result,omitempty"`
	// SigningSecret names the secret with which requests are signed, by the scheme
	// of Standard Webhooks; "" = not signed.
	SigningSecret string `json:"signing_secret,omitempty"`
}

// MCPSpec tells which tool of which MCP server is called. Either URL or Command
// is set.
type MCPSpec struct {
	URL     string            `json:"url,omitempty"`     // of a streamable HTTP endpoint
	Headers map[string]string `json:"headers,omitempty"` // as those of HTTPSpec
	Command []string          `json:"command,omitempty"` // of a server on standard input and output; in development only
	Tool    string            `json:"tool"`              // its name there
	// Hash is the SHA-256 of the definition that somebody accepted, in hex. While
	// the server's differs the tool is in quarantine: it is not called.
	Hash string `json:"hash,omitempty"`
}

// ToolCall is one request by the model to run a tool.
type ToolCall struct {
	ID         string `json:"id"`                    // loopd's own, unique in the run: "c3-1" is the first call of the third model call
	ProviderID string `json:"provider_id,omitempty"` // as the model wrote it: may be empty, long or repeated
	Name       string `json:"name"`
	Args       string `json:"args"`              // exact text, also when it is no JSON
	Problem    string `json:"problem,omitempty"` // why the arguments fail the tool's schema; empty = they pass
	// Approval is why a person must approve the call: the condition of its tool
	// that holds, or the fault because of which nobody knows. Empty: none need.
	Approval string `json:"approval,omitempty"`
}

// Key is the idempotency key of a call: the same for every attempt of it, and
// never the model's word.
func (c ToolCall) Key(run RunRef) string { return "loopd:" + run.ID + ":" + c.ID }

// CallState is where a call stands. See the state machine in ARCHITECTURE.md.
type CallState string

// The states of a call. Planned, AwaitingApproval, Approved, Started, Offered and
// InDoubt lead somewhere else; all others are final.
const (
	CallPlanned          CallState = "PLANNED"
	CallAwaitingApproval CallState = "AWAITING_APPROVAL"
	CallApproved         CallState = "APPROVED"
	CallRejected         CallState = "REJECTED"
	CallDenied           CallState = "DENIED"
	CallStarted          CallState = "STARTED"
	CallOffered          CallState = "AWAITING_RESULT" // somebody outside runs it: a client, a person, a child run, time
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
