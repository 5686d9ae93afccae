package loop

import (
	"encoding/json"
	"time"
)

// RunRef names a run. The tenant is part of every key.
type RunRef struct {
	Tenant string
	ID     string
}

// AgentSpec is an agent version's definition. A version never changes; a run
// carries a copy of the one it was created with.
type AgentSpec struct {
	Model        string          `json:"model"` // "provider/model"
	Instructions string          `json:"instructions,omitempty"`
	Tools        []ToolSpec      `json:"tools,omitempty"` // sorted by name
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	// OnDoubt says what happens to a call in doubt: the run waits for a word, or the
	// model is told that the outcome is unknown. Empty is DoubtWaits.
	OnDoubt     DoubtRule `json:"on_doubt,omitempty"`
	Temperature *float64  `json:"temperature,omitempty"`
	Reasoning   Reasoning `json:"reasoning,omitzero"`
	// Fallbacks are the models to go on with, in order, when the one before cannot
	// answer. Each has its row in Spec.FallbackPrices.
	Fallbacks []string `json:"fallbacks,omitempty"`
	// Acts are what guards do when they would end the run, by the guard's name, where
	// that is not their default: see CheckActs. VerdictNudge only observes.
	Acts map[string]Verdict `json:"acts,omitempty"`
	// Output is what the final answer must satisfy besides OutputSchema.
	Output OutputContract `json:"output,omitzero"`
	// Checkpoints are what must hold while the run is under way.
	Checkpoints []Checkpoint `json:"checkpoints,omitempty"`
	// Summarizer is the model that shortens the transcript, "provider/model", with
	// its row in Spec.SidePrices; empty: the model in use.
	Summarizer string `json:"summarizer,omitempty"`
}

// DoubtRule is what happens to a call in doubt.
type DoubtRule string

// The rules for doubt.
const (
	DoubtWaits      DoubtRule = "wait"
	DoubtTellsModel DoubtRule = "tell_model"
)

// Tool finds a tool by its exact name.
func (a AgentSpec) Tool(name string) (ToolSpec, bool) {
	for _, t := range a.Tools {
		if t.Name == name {
			return t, true
		}
	}
	return ToolSpec{}, false
}

// Spec is everything that a run was created with. It is the body of the run's
// first event and never changes.
type Spec struct {
	Agent        string    `json:"agent"` // "agents/support"
	AgentVersion int64     `json:"agent_version"`
	Definition   AgentSpec `json:"definition"`
	Input        string    `json:"input"`
	Attachments  []Part    `json:"attachments,omitempty"` // images and documents that go with the input
	Limits       Limits    `json:"limits"`
	Price        Price     `json:"price"` // of Definition.Model
	// FallbackPrices are the rows of Definition.Fallbacks, in the same order.
	FallbackPrices []Price `json:"fallback_prices,omitempty"`
	// SidePrices are the rows of the models that are called beside the conversation:
	// the summarizer and the judge. By model reference.
	SidePrices map[string]Price `json:"side_prices,omitempty"`

	// Of a child run: the call of the parent that it answers.
	Parent      *ParentRef        `json:"parent,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Source      string            `json:"source,omitempty"`      // the door it came through: "rest", "grpc", "cli"; "run" for a child
	Traceparent string            `json:"traceparent,omitempty"` // W3C trace context of the caller
	Priority    Priority          `json:"priority,omitempty"`    // among the tenant's runs that wait; empty: normal
}

// ParentRef names the call that a child run answers.
type ParentRef struct {
	RunID  string `json:"run_id"`
	CallID string `json:"call_id"`
	RootID string `json:"root_id"` // of the whole tree
	Depth  int    `json:"depth"`   // of the child, from 1
}

// RunState is where a run stands.
type RunState string

// The live states, then the terminal ones.
const (
	StateQueued         RunState = "QUEUED"
	StateRunning        RunState = "RUNNING"
	StateRequiresAction RunState = "REQUIRES_ACTION"
	StatePaused         RunState = "PAUSED"
	StateCancelling     RunState = "CANCELLING"
	StateSucceeded      RunState = "SUCCEEDED"
	StateStopped        RunState = "STOPPED"
	StateFailed         RunState = "FAILED"
	StateCancelled      RunState = "CANCELLED"
)

// Terminal reports whether the state is final.
func (s RunState) Terminal() bool {
	switch s {
	case StateSucceeded, StateStopped, StateFailed, StateCancelled:
		return true
	}
	return false
}

// StopReason is the one machine-readable word for why a run ended.
type StopReason string

// The closed set of stop reasons.
const (
	Completed           StopReason = "COMPLETED"
	IterationCap        StopReason = "ITERATION_CAP"
	ModelCallCap        StopReason = "MODEL_CALL_CAP"
	TokenBudget         StopReason = "TOKEN_BUDGET"
	ContextWindow       StopReason = "CONTEXT_WINDOW" // one request is larger than the window
	ContextRot          StopReason = "CONTEXT_ROT"    // the transcript fills too much of the window
	CostBudget          StopReason = "COST_BUDGET"
	CostUnpriced        StopReason = "COST_UNPRICED"
	Deadline            StopReason = "DEADLINE"
	WallTime            StopReason = "WALL_TIME"
	ToolCallCap         StopReason = "TOOL_CALL_CAP"
	RepeatCall          StopReason = "REPEAT_CALL"
	ErrorStreak         StopReason = "ERROR_STREAK"
	UnknownTool         StopReason = "UNKNOWN_TOOL"
	InvalidArgs         StopReason = "INVALID_ARGS"
	Truncated           StopReason = "TRUNCATED"
	EmptyResponse       StopReason = "EMPTY_RESPONSE"
	PauseLoop           StopReason = "PAUSE_LOOP"
	Refusal             StopReason = "REFUSAL"
	UnknownStopReason   StopReason = "UNKNOWN_STOP_REASON"
	OutputInvalid       StopReason = "OUTPUT_INVALID"
	InDoubtUnresolved   StopReason = "IN_DOUBT_UNRESOLVED"
	ProviderError       StopReason = "PROVIDER_ERROR"
	ProviderUnavailable StopReason = "PROVIDER_UNAVAILABLE"
	RecoveryExhausted   StopReason = "RECOVERY_EXHAUSTED"
	Cancelled           StopReason = "CANCELLED"
	GuardInternal       StopReason = "GUARD_INTERNAL"
	InternalError       StopReason = "INTERNAL_ERROR"
	Cycle               StopReason = "CYCLE"
	FrequentRepeat      StopReason = "FREQUENT_REPEAT"
	NearDuplicate       StopReason = "NEAR_DUPLICATE"
	NoNovelty           StopReason = "NO_NOVELTY"
	Monologue           StopReason = "MONOLOGUE"
	TextLoop            StopReason = "TEXT_LOOP"         // an answer went round in circles while it was written
	CompactionStuck     StopReason = "COMPACTION_STUCK"  // the transcript cannot be made any shorter
	CheckpointFailed    StopReason = "CHECKPOINT_FAILED" // what had to hold under way did not, twice
	AccountBudget       StopReason = "ACCOUNT_BUDGET"    // a budget that the run shares with others has no money left
)

// StopReasons lists them all, for the places that must know the closed set.
func StopReasons() []StopReason {
	return []StopReason{
		Completed, IterationCap, ModelCallCap, TokenBudget, ContextWindow, ContextRot, CostBudget, CostUnpriced,
		Deadline, WallTime, ToolCallCap, RepeatCall, ErrorStreak, UnknownTool, InvalidArgs, Truncated,
		EmptyResponse, PauseLoop, Refusal, UnknownStopReason, OutputInvalid, InDoubtUnresolved,
		ProviderError, ProviderUnavailable, RecoveryExhausted, Cancelled, GuardInternal, InternalError,
		Cycle, FrequentRepeat, NearDuplicate, NoNovelty, Monologue, TextLoop, CompactionStuck, CheckpointFailed, AccountBudget,
	}
}

// Stop is why a run ended, with the proof.
type Stop struct {
	Reason    StopReason `json:"reason"`
	Guard     string     `json:"guard,omitempty"` // name of the guard, empty when none was involved
	Observed  string     `json:"observed,omitempty"`
	Limit     string     `json:"limit,omitempty"`
	Message   string     `json:"message"`
	Evidence  []Evidence `json:"evidence,omitempty"`
	Iteration int        `json:"iteration,omitempty"`
}

// Evidence is one line of proof for a trip: the calls that were the same, the
// error that came back each time. Excerpts are short.
type Evidence struct {
	Iteration  int    `json:"iteration,omitempty"`
	CallID     string `json:"call_id,omitempty"`
	Tool       string `json:"tool,omitempty"`
	Args       string `json:"args,omitempty"`
	ArgsHash   string `json:"args_hash,omitempty"`
	Result     string `json:"result,omitempty"`
	ResultHash string `json:"result_hash,omitempty"`
	Note       string `json:"note,omitempty"`
}

// Head is a run's read model: what the API shows without reading the journal.
// It is written beside the events, in the same transaction, and never read to
// decide.
type Head struct {
	State           RunState
	Phase           string // "queue", "model", "tools", a Wait other than "drain", "" when ended
	Iterations      int
	ModelCalls      int
	ToolCalls       int
	Attempts        int
	Usage           Usage
	Cost            Cost
	Estimated       USD // part of the cost that was charged without reported usage
	Held            USD // reserved for the model call in flight
	Answer          string
	Partial         bool // the answer is the best there was, not an accepted one
	Unverified      bool // the answer failed the output contract, or could not be checked
	Stop            *Stop
	StartedAt       time.Time // zero: not yet
	EndedAt         time.Time // zero: not yet
	WaitUntil       time.Time // zero: waits for nothing with a deadline
	RequiredActions []RequiredAction
	SideEffects     []SideEffectHead
}

// SideEffectHead is one entry of the ledger of what the run did, or may have
// done, in the world: calls that are not READ_ONLY and were sent. Those of child
// runs are in it.
type SideEffectHead struct {
	CallID   string    `json:"call_id"`
	RunID    string    `json:"run_id,omitempty"` // of the child run that sent it; empty: the run itself
	Tool     string    `json:"tool"`
	Effect   Effect    `json:"effect"`
	ArgsHash string    `json:"args_hash"`
	Key      string    `json:"key"`
	State    CallState `json:"state"`
	Outcome  Outcome   `json:"outcome,omitempty"`
}

// Kinds of RequiredAction.
const (
	RequireApprove = "approve" // decide on the call
	RequireResolve = "resolve" // say what became of a call in doubt
	RequireSubmit  = "submit"  // give the result of a client's tool
	RequireAnswer  = "answer"  // answer a question
	RequireRaise   = "raise"   // raise the limit that paused the run, or end it
)

// RequiredAction is something a person or a client must do before the run goes on.
type RequiredAction struct {
	Kind     string    `json:"kind"` // one of the Require constants
	Attempt  int       `json:"attempt,omitempty"`
	CallID   string    `json:"call_id"`
	Tool     string    `json:"tool"`
	Args     string    `json:"args"`
	ArgsHash string    `json:"args_hash"`
	Deadline time.Time `json:"deadline"`
	Reason   string    `json:"reason,omitempty"` // why a person is needed

	// Of a raise, which is about no call: the guard that paused the run, what it saw,
	// and the limit to raise, as in the API. A word for the model is enough if
	// TakesInput, and the only way without a Field.
	Guard      string `json:"guard,omitempty"`
	Observed   string `json:"observed,omitempty"`
	Field      string `json:"field,omitempty"`
	TakesInput bool   `json:"takes_input,omitempty"`
}

// CallHead is the read model of one tool call.
type CallHead struct {
	Call       ToolCall
	Iteration  int
	Effect     Effect
	State      CallState
	Outcome    Outcome // empty until there is a result
	Attempt    int     // sends of this call, 0 before the first
	Key        string
	ArgsHash   string
	Result     string
	Cut        bool
	Bytes      int64
	StartedAt  time.Time
	FinishedAt time.Time
	Until      time.Time // of a call that waits for an approval, a result or a word: the deadline
	ChildID    string    // the run that a call of an agent started

	// Of a call that needs approval, or needed it.
	Asked     string    // why: the effect, or the condition that holds; empty: it needs none
	AskedAt   time.Time // when it was put before a person
	DecidedAt time.Time // or expired: then nobody decided
	DecidedBy string
	Decision  string // the reason that was given
	Edited    string // the arguments that were approved instead of the model's; empty: the model's
}

// ChildStart creates a child run, in the transaction of the event that hands the
// call out.
type ChildStart struct {
	ID   string
	Spec Spec
}

// Outgoing is a signal from one run to another of the same tenant, sent in the
// transaction that makes it true.
type Outgoing struct {
	RunID string
	Body  Body
}

// Lease is a worker's right to append to one run. The epoch fences it: a write
// that carries an older one is refused by the database.
type Lease struct {
	Run   RunRef
	Owner string
	Epoch int64
	// ClaimedAt is the database's time of the claim, zero if not known. Deadlines are
	// kept by the database; a worker whose clock is behind must not come too early.
	ClaimedAt time.Time
}
