package enginetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
)

// errKilled is the cause of a killed worker's context.
var errKilled = errors.New("the worker was killed")

// Worker is the world as one worker process sees it: its own connection to the
// store, and its own way to models and tools. It can be killed at any point, as
// by SIGKILL: from then on nothing that it does reaches anybody, and its row in
// the store stays until it expires. Set its fields before it is used.
type Worker struct {
	// KillAfterCommit is the number of the journal commit after which the worker
	// dies without hearing of it; 0: none. Commits count from 1.
	KillAfterCommit int
	// KillAfterEffect is the number of the effect after which the worker dies
	// before it can record anything; 0: none. Model requests and tool sends
	// count, from 1.
	KillAfterEffect int
	// KillBeforeEffect is the number of the effect before which the worker dies, with
	// the intent written and nothing sent; 0: none. They count as for KillAfterEffect.
	KillBeforeEffect int
	// KillAfterDraw is the number of the draw from a shared account after which the
	// worker dies without hearing of it; 0: none. Draws count from 1.
	KillAfterDraw int
	// BeforeDraw, if set, is asked before each draw.
	BeforeDraw func(loop.Lease) error
	// BeforeAppend, if set, is asked before each append. It may fail, block,
	// panic, or steal the lease.
	BeforeAppend func(loop.Lease, engine.Batch) error
	// BeforeRead, if set, is asked before each reading of a journal or of signals.
	BeforeRead func() error
	// BeforeClaim, if set, is called before each claim.
	BeforeClaim func()
	// BeforeRenew, if set, is asked before each renewal.
	BeforeRenew func() error

	store Store
	life  context.Context //nolint:containedctx // ends when the process dies
	kill  context.CancelCauseFunc
	run   context.Context //nolint:containedctx // ends with life, or when told to drain
	drain context.CancelFunc

	mu      sync.Mutex
	commits int
	begun   int
	effects int
	draws   int
}

// NewWorker makes a process that uses the store and lives until ctx ends.
func NewWorker(ctx context.Context, store Store) *Worker {
	life, kill := context.WithCancelCause(ctx)
	run, drain := context.WithCancel(life)
	return &Worker{store: store, life: life, kill: kill, run: run, drain: drain}
}

// Context ends when the worker dies or is told to Drain. Run the engine under it.
func (w *Worker) Context() context.Context { return w.run }

// Drain asks the worker to end in good order, as SIGTERM does.
func (w *Worker) Drain() { w.drain() }

// Kill kills the worker.
func (w *Worker) Kill() { w.kill(errKilled) }

// Dead reports whether the worker was killed.
func (w *Worker) Dead() bool { return w.life.Err() != nil }

// Commits counts the journal commits that succeeded.
func (w *Worker) Commits() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.commits
}

// Draws counts the draws from shared accounts.
func (w *Worker) Draws() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.draws
}

// Effects counts the model requests and tool sends that came to their end.
func (w *Worker) Effects() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.effects
}

// Load implements engine.Journal.
func (w *Worker) Load(ctx context.Context, l loop.Lease) (engine.Journaled, error) {
	if err := w.reads(); err != nil {
		return engine.Journaled{}, err
	}
	return w.store.Load(ctx, l)
}

// Append implements engine.Journal.
func (w *Worker) Append(ctx context.Context, l loop.Lease, b engine.Batch) error {
	if w.BeforeAppend != nil {
		if err := w.BeforeAppend(l, b); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Dead() {
		return loop.ErrLeaseLost
	}
	if err := w.store.Append(ctx, l, b); err != nil {
		return err
	}
	w.commits++
	if w.commits == w.KillAfterCommit {
		w.Kill()
		return loop.ErrLeaseLost
	}
	return nil
}

// Draw implements engine.Accounts.
func (w *Worker) Draw(ctx context.Context, l loop.Lease, need loop.AccountNeed) (*loop.AccountRefused, error) {
	if w.BeforeDraw != nil {
		if err := w.BeforeDraw(l); err != nil {
			return nil, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Dead() {
		return nil, loop.ErrLeaseLost
	}
	refused, err := w.store.Draw(ctx, l, need)
	w.draws++
	if w.draws == w.KillAfterDraw {
		w.Kill()
		return nil, loop.ErrLeaseLost
	}
	return refused, err
}

// Signals implements engine.Journal.
func (w *Worker) Signals(ctx context.Context, l loop.Lease) ([]loop.Signal, error) {
	if err := w.reads(); err != nil {
		return nil, err
	}
	return w.store.Signals(ctx, l)
}

// reads fails when the worker cannot read.
func (w *Worker) reads() error {
	if w.Dead() {
		return loop.ErrLeaseLost
	}
	if w.BeforeRead != nil {
		return w.BeforeRead()
	}
	return nil
}

// Renew implements engine.Leases.
func (w *Worker) Renew(ctx context.Context, worker string, ttl time.Duration) error {
	if w.Dead() {
		return errKilled
	}
	if w.BeforeRenew != nil {
		if err := w.BeforeRenew(); err != nil {
			return err
		}
	}
	return w.store.Renew(ctx, worker, ttl)
}

// Claim implements engine.Leases.
func (w *Worker) Claim(ctx context.Context, worker string, room loop.Room) ([]loop.Lease, error) {
	if w.Dead() {
		return nil, errKilled
	}
	if w.BeforeClaim != nil {
		w.BeforeClaim()
	}
	return w.store.Claim(ctx, worker, room)
}

// Signalled implements engine.Leases.
func (w *Worker) Signalled(ctx context.Context, worker string) ([]loop.RunRef, error) {
	if w.Dead() {
		return nil, errKilled
	}
	return w.store.Signalled(ctx, worker)
}

// Returned implements engine.Leases.
func (w *Worker) Returned(ctx context.Context, suspects []loop.Suspect) ([]string, error) {
	if err := w.reads(); err != nil {
		return nil, err
	}
	return w.store.Returned(ctx, suspects)
}

// Retire implements engine.Leases. The dead do not retire.
func (w *Worker) Retire(ctx context.Context, worker string) error {
	if w.Dead() {
		return errKilled
	}
	return w.store.Retire(ctx, worker)
}

// Listen implements engine.Leases.
func (w *Worker) Listen(ctx context.Context, wake func()) error {
	if w.Dead() {
		return errKilled
	}
	return w.store.Listen(ctx, wake)
}

// Model is the worker's way to a model.
func (w *Worker) Model(m engine.Model) engine.Model { return workerModel{w, m} }

// Tools is the worker's way to tools.
func (w *Worker) Tools(t engine.Tools) engine.Tools { return workerTools{w, t} }

// begin counts an effect that begins, and kills the worker if it is the one. False: the
// worker is dead, and nothing leaves it.
func (w *Worker) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun++
	if w.begun == w.KillBeforeEffect {
		w.Kill()
	}
	return !w.Dead()
}

// effect counts an effect, and kills the worker if it is the one.
func (w *Worker) effect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.effects++
	if w.effects == w.KillAfterEffect {
		w.Kill()
	}
}

// bound makes a context that ends with ctx or with the worker.
func (w *Worker) bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(w.life, func() { cancel(errKilled) })
	return ctx, func() { stop(); cancel(nil) }
}

type workerModel struct {
	w     *Worker
	model engine.Model
}

// Generate implements engine.Model.
func (m workerModel) Generate(ctx context.Context, req loop.ModelRequest) (loop.ModelAnswer, error) {
	if !m.w.begin() {
		return loop.ModelAnswer{}, errKilled
	}
	ctx, release := m.w.bound(ctx)
	defer release()
	answer, err := m.model.Generate(ctx, req)
	m.w.effect()
	return answer, err
}

type workerTools struct {
	w *Worker
	engine.Tools
}

// Call implements engine.Tools.
func (t workerTools) Call(ctx context.Context, req engine.ToolRequest) loop.ToolReply {
	if !t.w.begin() {
		return loop.ToolReply{Outcome: loop.OutcomeNotSent}
	}
	ctx, release := t.w.bound(ctx)
	defer release()
	reply := t.Tools.Call(ctx, req)
	t.w.effect()
	return reply
}
