package server

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// Judge judges journals by the limits of a request, one after the other, and adds up
// what they would have done. It needs no database, so journals in a file can be
// judged too. It is not safe for concurrent use.
type Judge struct {
	policy loop.Policy

	judgements []*loopdv1.GuardJudgement
	skipped    []*loopdv1.SkippedRun
	totals     loopdv1.GuardTotals
	money      struct{ cost, saved, lost, wrapUp loop.USD }
	guards     map[string]*tally
}

// tally is what one guard would have done.
type tally struct {
	stopped, cut, nudged int
	saved                loop.USD
}

// NewJudge reads the limits and guard_verdicts of a request that keeps to the rules of
// its proto. Its error names a field that cannot be, and what would be right.
func NewJudge(req *loopdv1.TestLimitsRequest) (*Judge, error) {
	policy, err := policyOf(req.GetLimits(), req.GetGuardVerdicts())
	if err != nil {
		return nil, err
	}
	return &Judge{policy: policy, guards: map[string]*tally{}}, nil
}

// policyOf is what a run is judged by: its own limits, but for those that are set.
func policyOf(limits *loopdv1.Limits, verdicts map[string]loopdv1.GuardVerdict) (loop.Policy, error) {
	if limits == nil {
		limits = &loopdv1.Limits{}
	}
	acts, err := actsOf("guard_verdicts", verdicts)
	if err != nil {
		return loop.Policy{}, err
	}
	if proto.Size(limits) == 0 && len(acts) == 0 {
		return loop.Policy{}, invalid(fieldError{"limits", "nothing is other than it was: set a limit, or guard_verdicts"})
	}
	if err := overlay(&loop.Limits{}, limits); err != nil {
		return loop.Policy{}, invalid(fieldError{"limits.max_cost_usd", err.Error()})
	}
	return loop.Policy{Acts: acts, Limits: func(l loop.Limits) loop.Limits {
		follows := l.ModelCalls == callsPerIteration*l.Iterations && limits.MaxModelCalls == nil
		if overlay(&l, limits) == nil && follows {
			l.ModelCalls = callsPerIteration * l.Iterations
		}
		return l
	}}, nil
}

// Add judges the whole journal of a run.
func (j *Judge) Add(run loop.RunRef, events []loop.Event) {
	judged, err := loop.Backtest(run, events, j.policy)
	if err != nil {
		j.Skip(run, err)
		return
	}
	j.count(judged)
	if judged.Changes() {
		j.judgements = append(j.judgements, judgementProto(judged))
	}
}

// Skip notes that a run cannot be judged.
func (j *Judge) Skip(run loop.RunRef, err error) {
	why := "its journal cannot be read: " + err.Error()
	switch {
	case errors.Is(err, loop.ErrUnfinished):
		why = "it has not ended"
	case errors.Is(err, loop.ErrUnknownKind):
		why = "its journal holds what this loopd does not know: ask a newer one"
	}
	j.skipped = append(j.skipped, &loopdv1.SkippedRun{Run: runName(run.ID), Why: why})
	j.totals.Skipped++
}

func (j *Judge) count(judged loop.Judgement) {
	t, succeeded := &j.totals, judged.State == loop.StateSucceeded
	t.Runs++
	t.Successes += one(succeeded)
	t.Beyond += one(judged.Beyond)
	t.ShorterAnswers += clampInt32(judged.Cut)
	j.money.cost += judged.Cost
	told := map[string]bool{}
	for _, nudge := range judged.Nudges {
		told[nudge.Guard] = true
	}
	for guard := range told {
		j.guard(guard).nudged++
	}
	switch {
	case judged.Trip == nil:
	case !judged.Changes():
		t.Unchanged++
	default:
		g := j.guard(judged.Trip.Guard)
		g.stopped++
		t.Stopped++
		j.money.wrapUp += judged.WrapUp
		if succeeded {
			g.cut++
			t.SuccessesCut++
			j.money.lost += judged.Saved
			return
		}
		g.saved += judged.Saved
		j.money.saved += judged.Saved
	}
}

func (j *Judge) guard(name string) *tally {
	if j.guards[name] == nil {
		j.guards[name] = &tally{}
	}
	return j.guards[name]
}

func one(yes bool) int32 {
	if yes {
		return 1
	}
	return 0
}

// Response is what was judged so far: the runs in their order, the guards by what they
// would have stopped, the most first.
func (j *Judge) Response() *loopdv1.TestLimitsResponse {
	totals := proto.CloneOf(&j.totals)
	totals.CostUsd, totals.SavedUsd = j.money.cost.String(), j.money.saved.String()
	totals.LostUsd, totals.WrapUpUsd = j.money.lost.String(), j.money.wrapUp.String()
	resp := &loopdv1.TestLimitsResponse{Judgements: j.judgements, Totals: totals, Skipped: j.skipped}
	for _, name := range slices.Sorted(maps.Keys(j.guards)) {
		g := j.guards[name]
		resp.Guards = append(resp.Guards, &loopdv1.GuardTally{
			Guard: name, Stopped: clampInt32(g.stopped), SuccessesCut: clampInt32(g.cut), SavedUsd: g.saved.String(), Nudged: clampInt32(g.nudged),
		})
	}
	slices.SortStableFunc(resp.Guards, func(a, b *loopdv1.GuardTally) int { return cmp.Compare(b.GetStopped(), a.GetStopped()) })
	return resp
}

func judgementProto(j loop.Judgement) *loopdv1.GuardJudgement {
	p := &loopdv1.GuardJudgement{
		Run: runName(j.Run.ID), Agent: j.Agent, State: runStateProto(j.State),
		StopReason: stopReasonProto(j.Stop.Reason), StopGuard: j.Stop.Guard,
		CostUsd: j.Cost.String(), Iterations: clampInt32(j.Iterations), CreateTime: timeProto(j.CreatedAt),
		ShorterAnswers: clampInt32(j.Cut), Beyond: j.Beyond, CutsSuccess: j.CutsSuccess(),
	}
	for _, nudge := range j.Nudges {
		p.NudgedGuards = append(p.NudgedGuards, nudge.Guard)
	}
	if j.Trip == nil {
		return p
	}
	p.Trip = verdictProto(*j.Trip)
	p.Trip.Seq, p.Trip.Time = j.Seq, timeProto(j.At)
	p.SpentUsd, p.SavedUsd, p.WrapUpUsd = j.Spent.String(), j.Saved.String(), j.WrapUp.String()
	p.BeforeEnd = durationpb.New(j.Before)
	return p
}

// unreadable reports whether an error is about one journal and says nothing of others.
func unreadable(err error) bool {
	return errors.Is(err, loop.ErrUnknownKind) || errors.Is(err, loop.ErrImpossible)
}

// errRunOf names the run that an error is about.
func errRunOf(run loop.RunRef, err error) error {
	return named(err, loopdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "run", runName(run.ID))
}
