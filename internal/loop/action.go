package loop

import (
	"encoding/json"
	"time"
)

// Action is the one thing to do next. Intent returns the events that must be
// durable before anything is performed; they are part of the answer, so that
// the engine never composes a fact by itself.
type Action interface{ Intent() []Body }

// intent is embedded in every action.
type intent struct{ bodies []Body }

// Intent returns the events to append before performing the action.
func (i intent) Intent() []Body { return i.bodies }

// Record has nothing to perform: append its events and ask Next again.
type Record struct {
	intent
	// AfterSignals: only once every signal that waits has been seen, because one
	// may say otherwise, or because work starts with the record.
	AfterSignals bool
}

// CallModel sends one request. Append a ModelAnswered or a ModelFailed.
type CallModel struct {
	intent
	Request  ModelRequest
	Started  ModelStarted
	Price    Price     // of the model that is asked
	Deadline time.Time // give up then
}

// Beside reports whether the call is no part of the conversation: a summary, or a
// judge's word.
func (c CallModel) Beside() bool { return c.Started.Beside() }

// CountInput asks the provider how large the request is. Append an InputCounted.
type CountInput struct {
	intent
	Request  ModelRequest
	Deadline time.Time // give up then
}

// CallTools sends calls, at most Parallel at once. Append a CallFinished or a
// CallDoubted for each.
type CallTools struct {
	intent
	Sends    []Send
	Parallel int
	Deadline time.Time // calls that may be repeated are given up then
}

// Send is one tool call to put on the wire.
type Send struct {
	Call      ToolCall
	Spec      ToolSpec
	Attempt   int
	Key       string
	MaxResult int64 // bytes of the result that the model may see
	Poll      *Poll // of the built-in wait: what to make of the result; else nil
	// Reader is the agent's tool that reads the rest of a result, by name; empty: it
	// has none.
	Reader string
}

// VerifyCall asks the tool that can tell whether a call in doubt took effect.
// Append what Verified makes of the reply. The send is READ_ONLY and leaves no
// intent: after a crash it is asked again.
type VerifyCall struct {
	intent
	CallID  string
	Doubted ToolSpec // of the call in doubt
	Send    Send
	Age     time.Duration // of the doubt
}

// CheckAnswer asks whether the final answer meets the parts of the output contract
// that need no model, in the order of the fields. Append what Rejection or Unchecked
// makes of the first part that fails, or Passed. It leaves no intent: after a crash
// it is asked again.
type CheckAnswer struct {
	intent
	Answer     string
	Schema     json.RawMessage // nil: none
	Assertions []Assertion     // over State.Facts(Answer)
	Validator  *Send           // nil: none. READ_ONLY; its reply is for Validated
	Judged     bool            // a judge is asked next
	Deadline   time.Time       // give the validator up then
}

// JudgeCheckpoints asks whether what the agent's checkpoints assert holds of
// State.Facts(""). Append what Judged makes of the problems of each, all in one batch.
type JudgeCheckpoints struct {
	intent
	Due       []Checkpoint
	Iteration int // after which they are due
}

// Sleep has nothing to do before Until. A long sleep is better spent without a
// worker: append Suspended{Reason, Until} and give the lease back.
type Sleep struct {
	intent
	Until  time.Time
	Reason Wait
}

// Suspend ends the attempt until something from outside arrives: give the lease
// back with the intent.
type Suspend struct{ intent }

// End ends the run: give the lease back with the intent.
type End struct {
	intent
	AfterSignals bool // as of Record: a word that ends the doubt may be waiting
}

// Done says that the run has finished, there is nothing to do or to append.
type Done struct{ intent }
