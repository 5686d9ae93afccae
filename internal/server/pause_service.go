package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// PauseRun has a run pause at its next boundary.
func (r *runService) PauseRun(ctx context.Context, req *loopdv1.PauseRunRequest) (*loopdv1.Run, error) {
	idem, err := idempotency(ctx, "PauseRun", req)
	if err != nil {
		return nil, err
	}
	ref := runRef(tenant(ctx), req.GetName())
	err = r.s.store.Pause(ctx, ref, loop.PauseRequested{Reason: req.GetReason()}, idem)
	return r.heldBack(ctx, req.GetName(), err)
}

// ResumeRun resumes a paused run, with raised limits if they are given.
func (r *runService) ResumeRun(ctx context.Context, req *loopdv1.ResumeRunRequest) (*loopdv1.Run, error) {
	idem, err := idempotency(ctx, "ResumeRun", req)
	if err != nil {
		return nil, err
	}
	ref := runRef(tenant(ctx), req.GetName())
	budgets, err := r.s.store.BudgetsInForce(ctx, ref.Tenant)
	if err != nil {
		return nil, err
	}
	err = r.s.store.Resume(ctx, ref, func(run postgres.Run) (loop.Resumed, error) { return r.s.resumed(req, run, budgets) }, idem)
	return r.heldBack(ctx, req.GetName(), err)
}

// heldBack answers a pause or a resume: with the run as it now stands, or why it could
// not be.
func (r *runService) heldBack(ctx context.Context, name string, refused error) (*loopdv1.Run, error) {
	r.s.countMismatch(refused)
	_, said := errors.AsType[*refusal](refused)
	known := errors.Is(refused, postgres.ErrRunFinished) || errors.Is(refused, postgres.ErrNotPaused)
	if refused != nil && (said || !known) {
		return nil, named(refused, loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "run", name)
	}
	run, err := r.run(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case refused == nil:
		return r.show(ctx, run)
	case run.Head.State.Terminal():
		return nil, ended(name, run)
	}
	return nil, notPaused(name, run)
}

// resumed is the word that ends a run's pause, or a refusal that names the field.
func (s *Server) resumed(req *loopdv1.ResumeRunRequest, run postgres.Run, budgets []postgres.Budget) (loop.Resumed, error) {
	r := loop.Resumed{Input: req.GetInput(), Reason: req.GetReason()}
	if req.GetLimits() != nil {
		wanted, err := s.raised(req.GetLimits(), run)
		if err != nil {
			return loop.Resumed{}, err
		}
		if low := ceilingOf(budgets, run.Agent, run.Labels); low != nil && wanted.Cost > max(run.Limits.Cost, low.Amount) {
			return loop.Resumed{}, aboveCeiling(wanted.Cost, low)
		}
		r.Limits = &wanted
	}
	err := loop.CheckResume(run.Head.RequiredActions, run.Limits, r)
	if unraised, ok := errors.AsType[*loop.NotRaisedError](err); ok {
		return loop.Resumed{}, refuse(loopdv1.ErrorReason_ERROR_REASON_LIMIT_NOT_RAISED, unraised.Error(),
			"run", req.GetName(), "guard", unraised.Guard, "field", limitPath(unraised.Field), "in_force", unraised.InForce, "observed", unraised.Observed)
	}
	return r, err
}

// limitPath is where a request sets a limit.
func limitPath(field string) string {
	if field == "" {
		return ""
	}
	return "limits." + field
}

// raised puts what a request raises on top of the limits in force. The ceilings are
// asked about what it changes only: what is in force was allowed when it was set.
func (s *Server) raised(l *loopdv1.Limits, run postgres.Run) (loop.Limits, error) {
	wanted := run.Limits
	if err := overlay(&wanted, l); err != nil {
		return loop.Limits{}, invalid(fieldError{"limits.max_cost_usd", err.Error()})
	}
	faults := run.Limits.RaiseFaults(wanted, run.Parent != nil)
	changed := run.Limits.Raised(wanted)
	for _, fault := range wanted.Validate(s.ceilings) {
		if slices.Contains(changed, fault.Field) {
			faults = append(faults, fault)
		}
	}
	return wanted, s.limitFaults("limits", faults)
}

// ended refuses what a run that has ended does not take, and says why it ended and
// how to get further.
func ended(name string, run postgres.Run) *refusal {
	stop := cmp.Or(run.Head.Stop, &loop.Stop{})
	text := fmt.Sprintf("%s has ended as %s, %s (%s), and an ended run never changes: create another run", name, run.Head.State, stop.Reason, stop.Message)
	field := loop.LimitField(stop.Guard)
	if field != "" {
		text += fmt.Sprintf(", with %s above %s; a run whose guard %s is set to pause waits for a raise instead", limitPath(field), limitText(run.Limits, field), stop.Guard)
	}
	return refuse(loopdv1.ErrorReason_ERROR_REASON_RUN_FINISHED, text,
		"run", name, "state", runStateProto(run.Head.State).String(), "stop_reason", stopReasonProto(stop.Reason).String(), "field", limitPath(field))
}

// notPaused refuses to resume a run that is not paused, and says what it does.
func notPaused(name string, run postgres.Run) *refusal {
	text := fmt.Sprintf("%s is %s, not paused, so that there is nothing to resume", name, run.Head.State)
	if run.Head.State == loop.StateRequiresAction {
		text += ": it waits for what its required_actions list"
	}
	return refuse(loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_PAUSED, text, "run", name, "state", runStateProto(run.Head.State).String())
}
