package loop

import "time"

// Event is a fact about a run. Seq counts from 1 without gaps.
type Event struct {
	Seq   int64
	At    time.Time
	Epoch int64 // of the lease it was written under, 0 for the first
	Body  Body
}

// Body is the closed set of event bodies. To add one, give it a Kind, an entry
// in the codec and a case in State.Apply.
type Body interface{ Kind() string }

// Created is always event 1.
type Created struct {
	Spec Spec `json:"spec"`
}

// Claimed begins an attempt: a worker took the run over.
type Claimed struct {
	Attempt int    `json:"attempt"`
	Worker  string `json:"worker"`
	// Recovered: the attempt before this one ended without releasing the run.
	Recovered bool `json:"recovered,omitempty"`
	// Leased is when the lease was taken, by the journal's clock. Zero in old journals.
	Leased time.Time `json:"leased,omitzero"`
	// Returned are the workers of earlier attempts that have registered again since:
	// they were cut off, and are not counted as dead. See State.Silent.
	Returned []string `json:"returned,omitempty"`
}

// Suspended ends an attempt: the lease goes back.
type Suspended struct {
	Reason Wait      `json:"reason"`
	Until  time.Time `json:"until,omitzero"` // when to go on at the latest; zero = at once
	Note   string    `json:"note,omitempty"` // of WaitCrash: what broke
}

// Wait is a named reason for not going on.
type Wait string

// The closed set of waits.
const (
	WaitDrain    Wait = "drain"    // the worker shuts down
	WaitCrash    Wait = "crash"    // the attempt broke down; another one may follow at once
	WaitBackoff  Wait = "backoff"  // the provider asked for time
	WaitRate     Wait = "rate"     // the provider's rate limit is used up by other runs
	WaitApproval Wait = "approval" // calls wait for a decision
	WaitInDoubt  Wait = "in_doubt" // calls wait to be resolved
	WaitResult   Wait = "result"   // the caller or a person owes a result
	WaitChild    Wait = "child"    // child runs have not ended
	WaitTimer    Wait = "timer"    // the model asked to wait
	WaitPaused   Wait = "paused"   // somebody paused the run
	WaitRaise    Wait = "raise"    // a guard paused the run until its limit is raised
	WaitBudget   Wait = "budget"   // a budget that the run shares has no money left in its window
)

// needsPeople reports whether somebody outside must act before the run goes on.
func (w Wait) needsPeople() bool {
	return w == WaitApproval || w == WaitInDoubt || w == WaitResult || w == WaitRaise
}

// pauses reports whether the run is held back, with nothing that is its own to wait for.
func (w Wait) pauses() bool { return w == WaitPaused || w == WaitBudget }

// handsOver reports whether nothing is waited for but another worker.
func (w Wait) handsOver() bool { return w == WaitDrain || w == WaitCrash }

// ofProvider reports whether a provider is waited for.
func (w Wait) ofProvider() bool { return w == WaitBackoff || w == WaitRate }

// ModelStarted is the intent to call a model, with the hold that covers it.
type ModelStarted struct {
	Call         int    `json:"call"`              // counts dispatched model calls from 1
	Purpose      string `json:"purpose,omitempty"` // one of the Purpose constants
	Model        string `json:"model"`
	MaxOutput    int64  `json:"max_output"`
	InputBound   int64  `json:"input_bound"` // tokens, never less than what the provider will count
	ResultBudget int64  `json:"result_budget,omitempty"`
	Hold         USD    `json:"hold"`
	// PriceVersion is that of the row of the run's spec which the cost will follow from.
	// Empty in old journals.
	PriceVersion string `json:"price_version,omitempty"`
	// Reserve is kept besides the hold, so that a wrap-up can be paid afterwards.
	Reserve USD `json:"reserve,omitempty"`
	// Context is the likely size of the request and its answer, of Window: tokens.
	// Zero in calls beside the conversation.
	Context int64 `json:"context,omitempty"`
	Window  int64 `json:"window,omitempty"`
}

// ModelAnswered is what came back, with what it cost.
type ModelAnswered struct {
	Call          int     `json:"call"`
	Message       Message `json:"message"`
	Finish        Finish  `json:"finish"`
	NativeFinish  string  `json:"native_finish,omitempty"`
	Usage         Usage   `json:"usage"`
	Cost          Cost    `json:"cost"`
	Estimated     bool    `json:"estimated,omitempty"` // usage was not reported; Cost is the hold
	Chant         string  `json:"chant,omitempty"`     // what the answer repeats until its end: it is not used, and asked for again
	ResponseID    string  `json:"response_id,omitempty"`
	ResponseModel string  `json:"response_model,omitempty"`
	LatencyMS     int64   `json:"latency_ms,omitempty"`
	// CacheSaved is what the prompt cache saved; see Price.CacheSaved.
	CacheSaved USD `json:"cache_saved,omitempty"`
}

// ModelFailed is a model call that brought no answer.
type ModelFailed struct {
	Call      int        `json:"call"`
	Class     ErrorClass `json:"class"`
	Status    int        `json:"status,omitempty"`
	Code      string     `json:"code,omitempty"`
	Message   string     `json:"message,omitempty"`
	RetryAt   time.Time  `json:"retry_at,omitzero"`
	NoRetry   string     `json:"no_retry,omitempty"` // why the request is not sent to this model again, although its class allows it
	Usage     Usage      `json:"usage,omitzero"`
	Cost      Cost       `json:"cost,omitzero"`
	LatencyMS int64      `json:"latency_ms,omitempty"`
}

// FellBack records that the run goes on with another model, because the one
// before could not answer.
type FellBack struct {
	From  string     `json:"from"`
	To    string     `json:"to"`
	Class ErrorClass `json:"class,omitempty"` // of the failure; empty after a refusal
	// Message says why, for people.
	Message string `json:"message"`
	// Say asks the new model to go on, where the last word was the old one's.
	Say string `json:"say,omitempty"`
}

// InputCounted is what the provider's counting endpoint said of the next
// request. It is asked only when the bound by bytes fits no budget, and only if
// the limits allow to trust it.
type InputCounted struct {
	Model   string `json:"model"`
	Tokens  int64  `json:"tokens"`            // 0: it could not say
	Message string `json:"message,omitempty"` // why not
}

// RateWaited records that the next model call waits for its share of a
// provider's rate limit. Nothing has been sent or held yet.
type RateWaited struct {
	Provider string    `json:"provider"`
	Until    time.Time `json:"until,omitzero"` // an estimate; zero = until another request ends
}

// CallRefused settles a call that is not sent: unknown tool, invalid arguments,
// a cap, a denial. The result goes to the model.
type CallRefused struct {
	CallID  string  `json:"call_id"`
	Outcome Outcome `json:"outcome"`
	Content string  `json:"content"`
}

// ApprovalRequested puts a call before a person.
type ApprovalRequested struct {
	CallID   string    `json:"call_id"`
	ArgsHash string    `json:"args_hash"`        // SHA-256 of run, call, tool and exact arguments, hex
	Reason   string    `json:"reason,omitempty"` // the effect, or the condition that holds
	Until    time.Time `json:"until"`            // afterwards the call counts as denied
}

// ApprovalDecided is the decision. It is bound to the arguments' hash.
type ApprovalDecided struct {
	CallID   string `json:"call_id"`
	ArgsHash string `json:"args_hash"`
	Approved bool   `json:"approved"`
	By       string `json:"by,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// Args, if set, are what is sent instead: the approver edited them. They have
	// been checked against the tool's schema.
	Args string `json:"args,omitempty"`
}

// CallBegun is the intent to send a call: it is durable before the request leaves.
type CallBegun struct {
	CallID  string `json:"call_id"`
	Attempt int    `json:"attempt"` // counts sends of this call from 1
	Key     string `json:"key"`
}

// CallHandedOut is the intent to have a call run by somebody else, who owes its
// result: a client, a person, a child run, or time itself.
type CallHandedOut struct {
	CallID  string    `json:"call_id"`
	Attempt int       `json:"attempt"`
	Key     string    `json:"key"`
	Until   time.Time `json:"until"` // afterwards nobody is waited for

	// Of a child run: what it is created with. Its limits are within what the
	// parent holds for it. Created in the same transaction.
	ChildID string `json:"child_id,omitempty"`
	Child   *Spec  `json:"child,omitempty"`
	Hold    USD    `json:"hold,omitempty"`
	Tokens  int64  `json:"tokens,omitempty"` // held, input and output together
	// ModelCalls are held too: they count in the whole tree.
	ModelCalls int `json:"model_calls,omitempty"`
}

// ResultSubmitted is a result from outside: of a client's tool, or a person's
// answer. Accepted once.
type ResultSubmitted struct {
	CallID  string  `json:"call_id"`
	Attempt int     `json:"attempt"`
	Outcome Outcome `json:"outcome"` // ok or permanent
	Content string  `json:"content"`
	By      string  `json:"by,omitempty"`
}

// ChildFinished is what became of a child run. The store sends it to the parent
// in the transaction that ends the child.
type ChildFinished struct {
	CallID      string           `json:"call_id"`
	ChildID     string           `json:"child_id"`
	State       RunState         `json:"state"`
	Stop        Stop             `json:"stop"`
	Answer      string           `json:"answer,omitempty"`
	Partial     bool             `json:"partial,omitempty"`
	Usage       Usage            `json:"usage"`
	Tokens      int64            `json:"tokens"` // that count against the parent's budget
	Cost        Cost             `json:"cost"`
	Estimated   USD              `json:"estimated,omitempty"`
	ModelCalls  int              `json:"model_calls"`
	SideEffects []SideEffectHead `json:"side_effects,omitempty"`
}

// CallPolled records one look of the built-in wait at the tool that it watches.
type CallPolled struct {
	CallID     string    `json:"call_id"`
	Attempt    int       `json:"attempt"`
	ResultHash string    `json:"result_hash"`
	Next       time.Time `json:"next"` // when to look again
}

// CallFinished is the definite end of a call that was sent, or provably was not.
type CallFinished struct {
	CallID     string  `json:"call_id"`
	Attempt    int     `json:"attempt"`
	Outcome    Outcome `json:"outcome"`
	Content    string  `json:"content"`
	Cut        bool    `json:"cut,omitempty"`
	Bytes      int64   `json:"bytes,omitempty"`
	Status     int     `json:"status,omitempty"`
	ResultHash string  `json:"result_hash"` // fingerprint of the full result
	LatencyMS  int64   `json:"latency_ms,omitempty"`
}

// CallDoubted records that a call may or may not have had its effect.
type CallDoubted struct {
	CallID  string    `json:"call_id"`
	Attempt int       `json:"attempt"`
	Reason  string    `json:"reason"`
	Until   time.Time `json:"until"` // afterwards the run ends as IN_DOUBT_UNRESOLVED
}

// Resolution settles a call in doubt.
type Resolution string

// What a person or a policy may say of a call in doubt.
const (
	ResolvedSucceeded   Resolution = "succeeded"    // it took effect
	ResolvedNotExecuted Resolution = "not_executed" // it did not, and will not be sent
	ResolvedRetry       Resolution = "retry"        // send it again, with the same key
)

// CallResolved is that word, with who said it.
type CallResolved struct {
	CallID     string     `json:"call_id"`
	Resolution Resolution `json:"resolution"`
	Attempt    int        `json:"attempt,omitempty"` // that is in doubt; 0 = whichever
	Result     string     `json:"result,omitempty"`  // for succeeded: what the model is told
	By         string     `json:"by,omitempty"`
	Reason     string     `json:"reason,omitempty"`
}

// DoubtTold ends the wait for a call in doubt: the model is told that nobody
// knows. The call stays in doubt, and whoever learns the truth can still say it.
type DoubtTold struct {
	CallID  string `json:"call_id"`
	Content string `json:"content"`
}

// CallVerified is what the tool that can tell said of a call in doubt.
type CallVerified struct {
	CallID  string    `json:"call_id"`
	Found   bool      `json:"found"`             // the key took effect
	Result  string    `json:"result,omitempty"`  // if it did: what the model is told
	Settled bool      `json:"settled,omitempty"` // if not: no sender can still be under way
	Message string    `json:"message,omitempty"` // why it could not tell
	Next    time.Time `json:"next,omitzero"`     // when to ask again
}

// ChildCancelled is the intent to have a child run end, because its parent ends.
type ChildCancelled struct {
	CallID  string `json:"call_id"`
	ChildID string `json:"child_id"`
	Reason  string `json:"reason"`
}

// Tripped is a guard's verdict that changed the run.
type Tripped struct {
	Guard     string     `json:"guard"`
	Verdict   Verdict    `json:"verdict"`
	Reason    StopReason `json:"reason"`
	Observed  string     `json:"observed,omitempty"`
	Limit     string     `json:"limit,omitempty"`
	Message   string     `json:"message"`
	Evidence  []Evidence `json:"evidence,omitempty"`
	Iteration int        `json:"iteration"`
	Say       string     `json:"say,omitempty"` // text for the model, of nudges and final answers
	// Until is when a pause ends by itself, as a wrap-up. Of a pause only.
	Until time.Time `json:"until,omitzero"`
	// Default is what the guard does by itself, where the agent has it do something
	// else. A nudge with it is a trip that was only observed: see AgentSpec.Acts.
	Default Verdict `json:"default,omitempty"`
	// Field is the limit to raise, as in the API: of a pause, and where the guard has
	// several. Empty: LimitField knows.
	Field string `json:"field,omitempty"`
	// Purpose is that of the call beside the conversation for which there was no room.
	// Empty: the trip is about the conversation.
	Purpose string `json:"purpose,omitempty"`
	// Gauges are what all guards saw at that moment.
	Gauges []Gauge `json:"gauges,omitempty"`
}

// Gauge is what one guard measures, against what it allows. Both are in Unit.
type Gauge struct {
	Guard    string  `json:"guard"`
	Observed float64 `json:"observed"`
	Limit    float64 `json:"limit"`
	Unit     string  `json:"unit,omitempty"` // "USD", "tokens", "s", "iterations", "calls", ...
}

// AnswerRejected sends a final answer back to the model: it failed the output contract.
type AnswerRejected struct {
	Problems []string `json:"problems"`
	Say      string   `json:"say"`
	// By is the part of the contract that it failed: one of the By constants. Empty
	// in old journals: BySchema.
	By string `json:"by,omitempty"`
	// Final: it is not sent back, since nobody could judge it. The run ends.
	Final bool `json:"final,omitempty"`
}

// The parts of an output contract, in the order in which they are asked.
const (
	BySchema     = "schema"
	ByAssertions = "assertions"
	ByValidator  = "validator"
	ByJudge      = "judge"
)

// AnswerChecked records that the final answer passed all that needs no model: the
// judge is asked next.
type AnswerChecked struct{}

// AnswerAccepted records that the final answer passed the output contract.
type AnswerAccepted struct{}

// CheckpointJudged is what an agent's checkpoint found. Without problems it held.
type CheckpointJudged struct {
	Checkpoint string   `json:"checkpoint"`
	Iteration  int      `json:"iteration"` // after which it was due
	Problems   []string `json:"problems,omitempty"`
}

// Compacted records that the transcript was made shorter, or that it could not
// be. The journal keeps everything: only what the model reads changes.
type Compacted struct {
	Method CompactMethod `json:"method"`
	// Before and After are the likely size of the next request, tokens.
	Before int64 `json:"before"`
	After  int64 `json:"after"`
	// Cleared are the calls whose results are no longer shown.
	Cleared []string `json:"cleared,omitempty"`
	// FromSeq and ToSeq are the first and the last event whose messages the summary
	// replaces. Zero: none.
	FromSeq int64 `json:"from_seq,omitempty"`
	ToSeq   int64 `json:"to_seq,omitempty"`
	// Summary stands for them, with the ledger of side effects as loopd knows it.
	Summary string `json:"summary,omitempty"`
	// Failure is why nothing was replaced. Empty: it was.
	Failure string `json:"failure,omitempty"`
}

// CompactMethod is how a transcript is made shorter.
type CompactMethod string

// The ways, mildest first.
const (
	CompactClear     CompactMethod = "clear"     // old results of READ_ONLY calls are left out
	CompactSummarize CompactMethod = "summarize" // a model sums up the oldest iterations
)

// PauseRequested takes note that somebody wants the run to pause at its next
// boundary.
type PauseRequested struct {
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Resumed ends a pause, or a guard's pause for a raise.
type Resumed struct {
	// Limits are in force from now on; nil: those before. What was spent counts on.
	Limits *Limits `json:"limits,omitempty"`
	// Input is a word for the model: streaks of no progress begin anew after it.
	Input  string `json:"input,omitempty"`
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// AccountRefused records that an account which the run shares with others had no
// room for the next model call. Nothing was held or sent.
type AccountRefused struct {
	Budget    string    `json:"budget"`            // "budgets/acme-daily"
	Needed    USD       `json:"needed"`            // what the call and its wrap-up could cost
	Limit     USD       `json:"limit"`             // of the window
	Committed USD       `json:"committed"`         // spent and held in the window, by all runs
	ResetAt   time.Time `json:"reset_at,omitzero"` // when the window ends; zero: never
	Act       Verdict   `json:"act"`               // VerdictFinalTurn, VerdictStop or VerdictPause
}

// CancelRequested takes note of a cancel.
type CancelRequested struct {
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Finished is always the last event.
type Finished struct {
	State   RunState `json:"state"`
	Stop    Stop     `json:"stop"`
	Answer  string   `json:"answer,omitempty"`
	Partial bool     `json:"partial,omitempty"`
	// Unverified: the answer failed the output contract, or nobody could check it.
	Unverified bool `json:"unverified,omitempty"`
}

// Kind is "created", in the journal and in the API.
func (Created) Kind() string { return "created" }

// Kind is "claimed", in the journal and in the API.
func (Claimed) Kind() string { return "claimed" }

// Kind is "suspended", in the journal and in the API.
func (Suspended) Kind() string { return "suspended" }

// Kind is "model_started", in the journal and in the API.
func (ModelStarted) Kind() string { return "model_started" }

// Kind is "model_answered", in the journal and in the API.
func (ModelAnswered) Kind() string { return "model_answered" }

// Kind is "model_failed", in the journal and in the API.
func (ModelFailed) Kind() string { return "model_failed" }

// Kind is "fell_back", in the journal and in the API.
func (FellBack) Kind() string { return "fell_back" }

// Kind is "input_counted", in the journal and in the API.
func (InputCounted) Kind() string { return "input_counted" }

// Kind is "rate_waited", in the journal and in the API.
func (RateWaited) Kind() string { return "rate_waited" }

// Kind is "call_refused", in the journal and in the API.
func (CallRefused) Kind() string { return "call_refused" }

// Kind is "approval_requested", in the journal and in the API.
func (ApprovalRequested) Kind() string { return "approval_requested" }

// Kind is "approval_decided", in the journal and in the API.
func (ApprovalDecided) Kind() string { return "approval_decided" }

// Kind is "call_started", in the journal and in the API.
func (CallBegun) Kind() string { return "call_started" }

// Kind is "call_handed_out", in the journal and in the API.
func (CallHandedOut) Kind() string { return "call_handed_out" }

// Kind is "result_submitted", in the journal and in the API.
func (ResultSubmitted) Kind() string { return "result_submitted" }

// Kind is "child_finished", in the journal and in the API.
func (ChildFinished) Kind() string { return "child_finished" }

// Kind is "call_polled", in the journal and in the API.
func (CallPolled) Kind() string { return "call_polled" }

// Kind is "call_finished", in the journal and in the API.
func (CallFinished) Kind() string { return "call_finished" }

// Kind is "call_in_doubt", in the journal and in the API.
func (CallDoubted) Kind() string { return "call_in_doubt" }

// Kind is "call_resolved", in the journal and in the API.
func (CallResolved) Kind() string { return "call_resolved" }

// Kind is "doubt_told", in the journal and in the API.
func (DoubtTold) Kind() string { return "doubt_told" }

// Kind is "call_verified", in the journal and in the API.
func (CallVerified) Kind() string { return "call_verified" }

// Kind is "child_cancelled", in the journal and in the API.
func (ChildCancelled) Kind() string { return "child_cancelled" }

// Kind is "tripped", in the journal and in the API.
func (Tripped) Kind() string { return "tripped" }

// Kind is "answer_checked", in the journal and in the API.
func (AnswerChecked) Kind() string { return "answer_checked" }

// Kind is "checkpoint_judged", in the journal and in the API.
func (CheckpointJudged) Kind() string { return "checkpoint_judged" }

// Kind is "compacted", in the journal and in the API.
func (Compacted) Kind() string { return "compacted" }

// Kind is "pause_requested", in the journal and in the API.
func (PauseRequested) Kind() string { return "pause_requested" }

// Kind is "resumed", in the journal and in the API.
func (Resumed) Kind() string { return "resumed" }

// Kind is "account_refused", in the journal and in the API.
func (AccountRefused) Kind() string { return "account_refused" }

// Kind is "answer_rejected", in the journal and in the API.
func (AnswerRejected) Kind() string { return "answer_rejected" }

// Kind is "answer_accepted", in the journal and in the API.
func (AnswerAccepted) Kind() string { return "answer_accepted" }

// Kind is "cancel_requested", in the journal and in the API.
func (CancelRequested) Kind() string { return "cancel_requested" }

// Kind is "finished", in the journal and in the API.
func (Finished) Kind() string { return "finished" }
