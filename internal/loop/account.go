package loop

import (
	"fmt"
	"time"
)

// A raise can come at any moment, also just before the run has given its lease back, and
// then nobody wakes it. So it looks again by itself: soon, and then after twice the time.
const firstAccountWait = 30 * time.Second

// guardOfAccounts is the guard of the accounts that runs share.
const guardOfAccounts = "account"

// AccountNeed is what a model call needs of the accounts that its run shares with
// others.
type AccountNeed struct {
	Agent  string            // of the run, "agents/support"
	Labels map[string]string // of the run
	Amount USD               // what the call and the wrap-up after it could cost
}

// AccountNeed is what a model call that the run is about to make needs. A wrap-up is paid
// from what was reserved for it.
func (s *State) AccountNeed(call ModelStarted) AccountNeed {
	return AccountNeed{Agent: s.spec.Agent, Labels: s.spec.Labels, Amount: call.Hold.plus(call.Reserve)}
}

// account is what the run knows of the accounts that it shares with other runs.
type account struct {
	refused  *AccountRefused // the newest refusal, until the run goes on
	refusals int             // since the newest model call
	waits    int             // for money, since the newest model call
}

// maxRefusals is how often a run asks for ever less of an account that others draw on as
// well, before it does what the budget wants.
const maxRefusals = 3

// free is what the account that refused has left for the run.
func (a *account) free() (free USD, refused bool) {
	if a.refused == nil {
		return 0, false
	}
	return a.refused.Limit - a.refused.Committed, true
}

// note follows what becomes of a refusal: the run asks again with its next attempt, and
// when its wrap-up is to be made.
func (a *account) note(b Body) {
	switch b := b.(type) {
	case AccountRefused:
		a.refused = &b
		a.refusals++
	case Suspended:
		if b.Reason == WaitBudget {
			a.waits++
		}
	case Claimed:
		a.refused, a.refusals = nil, 0
	case Tripped:
		if b.Verdict == VerdictFinalTurn {
			a.refused = nil
		}
	case ModelStarted:
		*a = account{}
	}
}

// accountTrip is the trip for the refusal, with what its budget wants.
func (s *State) accountTrip(now time.Time) *Tripped {
	r := s.account.refused
	t := &Tripped{
		Guard: guardOfAccounts, Verdict: r.Act, Reason: AccountBudget,
		Observed: fmt.Sprintf("%s USD spent and held by all runs, next call with its wrap-up could cost %s USD", r.Committed, r.Needed),
		Limit:    r.Limit.String() + " USD",
		Message:  fmt.Sprintf("%s has no room for the next model call, so it was not made", r.Budget),
	}
	if !r.ResetAt.IsZero() {
		t.Message += "; it starts anew at " + r.ResetAt.UTC().Format(time.RFC3339)
	}
	switch r.Act {
	case VerdictStop:
	case VerdictPause:
		if t.Until = s.accountWait(now); t.Until.IsZero() { // no time is left to wait
			t.Verdict = VerdictFinalTurn
		}
	default:
		t.Verdict = VerdictFinalTurn
	}
	return t
}

// accountWait is when a run looks again for which no money was left. Zero: it is at the
// end of its patience.
func (s *State) accountWait(now time.Time) time.Time {
	until := s.patience(now, firstAccountWait<<min(s.account.waits, 16))
	if !until.After(now) {
		return time.Time{}
	}
	reset := s.account.refused.ResetAt
	if reset.IsZero() {
		return until
	}
	// Its clock and ours may differ: never a wait of nothing.
	if soon := now.Add(time.Second); reset.Before(soon) {
		reset = soon
	}
	return earliest(until, reset)
}

// waitForAccount gives the lease back until the account that refused has money again, if
// that is what its budget wants.
func (s *State) waitForAccount(now time.Time) Action {
	if s.account.refused == nil {
		return nil
	}
	t := s.accountTrip(now)
	if t.Verdict != VerdictPause {
		return nil
	}
	facts := []Body{Suspended{Reason: WaitBudget, Until: t.Until}}
	if s.account.waits == 0 { // said once
		t.Iteration = s.iterations
		facts = append([]Body{*t}, facts...)
	}
	return Suspend{intent{facts}}
}
