package engine

import (
	"context"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// Journal is where the engine reads and appends the facts of the runs it owns.
// Implementations are safe for concurrent use by many runs.
type Journal interface {
	// Load returns all events of the run in order and the signals that wait.
	Load(ctx context.Context, lease loop.Lease) (Journaled, error)

	// Append writes a batch in one transaction, fenced by the lease's epoch and
	// owner, and by the sequence number of the first event.
	//
	// It returns loop.ErrLeaseLost when the lease is no longer the caller's,
	// loop.ErrRefused when the events break an invariant of the store, and
	// loop.ErrSignalled, having written nothing, when the batch is an intent and
	// a signal waits that batch.SignalsSeen does not cover. On any other error the
	// batch was certainly not written: an outcome that is unknown because the
	// connection broke at commit is settled inside, by reading again.
	Append(ctx context.Context, lease loop.Lease, batch Batch) error

	// Signals returns the signals that wait for the run, in order of arrival.
	Signals(ctx context.Context, lease loop.Lease) ([]loop.Signal, error)
}

// Journaled is what Load returns.
type Journaled struct {
	Events  []loop.Event
	Signals []loop.Signal
}

// Batch is what one transaction writes: events, and the heads that follow from them.
type Batch struct {
	Events []loop.Event
	Head   loop.Head
	Calls  []loop.CallHead // the calls whose head changed

	// Intent: the batch starts work, so a waiting signal must be seen first.
	Intent bool
	// Signals up to this ID have been seen by the state the batch follows from.
	// Those with a smaller or equal ID are deleted with the batch.
	SignalsSeen int64
	// Release gives the lease back with the batch: the run suspends or has ended.
	// A batch without events that only releases leaves the run claimable at once.
	Release bool

	// Children are runs to create, and Outgoing are signals for other runs: both in
	// the same transaction.
	Children []loop.ChildStart
	Outgoing []loop.Outgoing

	// Results are the whole texts of those results of which the model was shown a
	// part.
	Results []loop.FullResult
}

// Accounts are those that runs share with others: budgets. Holds and settlements go with
// the journal's events; a run must have drawn before what it holds.
type Accounts interface {
	// Draw makes sure that the run has drawn what its next model call needs, from all
	// accounts that bind it or from none. It returns the refusal of one that has no
	// room. It is loop.ErrLeaseLost when the lease is no longer the caller's. It may be
	// repeated.
	Draw(ctx context.Context, lease loop.Lease, need loop.AccountNeed) (*loop.AccountRefused, error)
}

// Leases is how a worker gets runs to drive and proves that it is alive.
type Leases interface {
	// Renew creates or renews the worker's row for ttl, on database time, and
	// makes the runs of workers whose row expired claimable again.
	Renew(ctx context.Context, worker string, ttl time.Duration) error

	// Claim takes runs, as many as there is room for and none that it skips: queued ones
	// whose time has come, waiting ones that a signal or their deadline woke. Tenants
	// take turns.
	// Each run comes with a fresh epoch.
	Claim(ctx context.Context, worker string, room loop.Room) ([]loop.Lease, error)

	// Signalled lists the runs of this worker for which signals wait.
	Signalled(ctx context.Context, worker string) ([]loop.RunRef, error)

	// Returned lists the workers among the suspects that have registered anew after
	// their attempt began: they lost the run without dying.
	Returned(ctx context.Context, suspects []loop.Suspect) ([]string, error)

	// Retire removes the worker's row. Runs it still owns become claimable.
	Retire(ctx context.Context, worker string) error

	// Listen blocks, calling wake whenever something may have become claimable
	// or signalled, until ctx ends or the connection fails. Missing a wake costs
	// time only: the engine polls as well.
	Listen(ctx context.Context, wake func()) error
}

// Model is a configured provider. Generate performs exactly one request: no
// retries. Failures are *loop.ModelError. It returns soon after ctx ends.
type Model interface {
	Generate(ctx context.Context, req loop.ModelRequest) (loop.ModelAnswer, error)
}

// Counter is what a Model may be besides: it says how many tokens a request
// reads, without asking the model. The answer is the provider's estimate.
type Counter interface {
	CountTokens(ctx context.Context, req loop.ModelRequest) (int64, error)
}

// Deltas carries the fragments of answers that are being written to whoever
// watches. Nothing depends on it: fragments may be lost.
type Deltas interface {
	// Emit takes a fragment of a run's model call. It does not block.
	Emit(run loop.RunRef, call int, d loop.Delta)
}

// Tools runs tool calls and checks their arguments. Safe for concurrent use.
type Tools interface {
	// Problem says why args fail the tool's schema, in words that a model can
	// act on (path, expected, got), or "" when they pass. It is deterministic.
	Problem(spec loop.ToolSpec, args string) string

	// Call sends the call once. It always returns a reply; what went wrong is in
	// its Outcome. For tools that are not Repeatable it puts at most one request
	// on the wire.
	Call(ctx context.Context, req ToolRequest) loop.ToolReply
}

// ToolRequest is one send of a call.
type ToolRequest struct {
	Run     loop.RunRef
	Agent   string // "agents/support"
	Subject string // whom or what the run is about; may be empty
	Spec    loop.ToolSpec
	Call    loop.ToolCall
	Key     string
	Attempt int
	// MaxResult is how much of the result the model will see, in bytes: for tools that
	// can answer in parts.
	MaxResult int64
}

// Rules judges calls by the conditions that people wrote. It is deterministic.
type Rules interface {
	// NeedsApproval is why a person must approve the call under its tool's
	// condition, or "" when the condition does not hold. A condition that cannot be
	// judged needs approval: the reason is the fault.
	NeedsApproval(spec loop.ToolSpec, call loop.ToolCall, run RuleRun) string
}

// RuleRun is what rules may know of the run.
type RuleRun struct {
	Ref        loop.RunRef
	Agent      string // "agents/support"
	Labels     map[string]string
	Iterations int
	ToolCalls  int
	Cost       loop.USD
}

// Approver decides on calls instead of a person, by the policies that people
// wrote, within their bounds.
type Approver interface {
	// Decide returns the decision of the first policy that applies, having counted
	// it, or false when a person must decide. The hash names the exact arguments.
	Decide(ctx context.Context, run RuleRun, spec loop.ToolSpec, call loop.ToolCall, hash string) (loop.ApprovalDecided, bool, error)
}

// Checker checks a final answer against the agent's output contract.
type Checker interface {
	// Check returns the problems of the answer, each naming a path, or none.
	Check(schema []byte, answer string) []string
}

// Assertions judges what must hold of a run. It is deterministic.
type Assertions interface {
	// Assert lists the assertions that do not hold for the facts, in words that a
	// model can act on, or none. One that cannot be judged does not hold.
	Assert(assertions []loop.Assertion, facts loop.Facts) []string
}
