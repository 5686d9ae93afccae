package enginetest

import (
	"context"
	"errors"
	"time"

	"github.com/loopd/loopd/internal/engine"
	"github.com/loopd/loopd/internal/loop"
)

func (c *conformer) claimsOnce() {
	run := c.create()
	lease := c.claimOne("w1")
	if lease.Run != run || lease.Owner != "w1" || lease.Epoch < 1 {
		c.Fatalf("the lease is %+v", lease)
	}
	c.claimNone("w1", "the run is taken")
	c.claimNone("w2", "the run is taken")
	state := c.load(lease)
	c.equal("events of a new run", int64(1), state.Seq())
	c.equal("input", "do it", state.Spec().Input)
}

func (c *conformer) claimNeedsWorker() {
	c.create()
	c.claimNone("nobody", "nobody has no row")
	c.claimOne("w1")
}

func (c *conformer) claimersShare() {
	for range 5 {
		c.create()
	}
	got := c.claim("w1", 2)
	c.equal("claimed at a limit of 2", 2, len(got))
	got = append(got, c.claim("w2", 10)...)
	seen := map[loop.RunRef]bool{}
	for _, l := range got {
		seen[l.Run] = true
	}
	if len(got) != 5 || len(seen) != 5 {
		c.Fatalf("two workers claimed %v, want each of 5 runs once", got)
	}
	c.claimNone("w1", "all runs are taken")
}

func (c *conformer) claimSkips() {
	left, taken := c.create(), c.create()
	got, err := c.store.Claim(c.ctx, "w1", loop.Room{Free: 2, Skip: []loop.RunRef{left}})
	c.no(err, "claim")
	if len(got) != 1 || got[0].Run != taken {
		c.Fatalf("claimed %v, want the run that is not skipped", got)
	}
	c.equal("claimed by who skips nothing", left, c.claimOne("w2").Run)
}

func (c *conformer) releaseClaimable() {
	lease, state := c.started()
	c.no(c.append(lease, state, engine.Batch{Release: true}, loop.Suspended{Reason: loop.WaitDrain}), "release")
	c.refused(c.append(lease, state, engine.Batch{}, loop.Claimed{Attempt: 2}), loop.ErrLeaseLost, lease, 3)
	c.claimOne("w2")
}

func (c *conformer) releaseWakes() {
	lease, state := c.started()
	until := time.Now().Add(400 * time.Millisecond)
	c.no(c.append(lease, state, engine.Batch{Intent: true, Release: true}, loop.Suspended{Reason: loop.WaitBackoff, Until: until}), "suspend")
	leases := c.claim("w2", 10)
	if len(leases) != 0 && time.Now().Before(until) {
		c.Fatal("the run was claimable before its time")
	}
	c.eventually("the run wakes by itself", func() bool { return len(leases) == 1 || len(c.claim("w2", 10)) == 1 })
}

func (c *conformer) signalWakes() {
	lease, state := c.waiting(time.Now().Add(time.Hour))
	c.claimNone("w2", "the run waits for a decision")
	c.signal(lease.Run, loop.ApprovalDecided{CallID: "c1-1", ArgsHash: state.Head().RequiredActions[0].ArgsHash, Approved: true})
	again := c.claimOne("w2")
	c.equal("signals of the woken run", 1, len(c.signals(again)))
}

func (c *conformer) pauseWakes() {
	lease, state := c.started()
	c.signal(lease.Run, loop.PauseRequested{Reason: "lunch"})
	seen := c.signals(lease)[0]
	c.no(c.append(lease, state, engine.Batch{SignalsSeen: seen.ID}, seen.Body), "take the pause")
	until := time.Now().Add(time.Hour)
	c.no(c.append(lease, state, engine.Batch{Intent: true, Release: true, SignalsSeen: seen.ID}, loop.Suspended{Reason: loop.WaitPaused, Until: until}), "suspend")
	c.claimNone("w2", "the run is paused")

	c.signal(lease.Run, loop.Resumed{Input: "go on"})
	again := c.claimOne("w2")
	signals := c.signals(again)
	c.equal("signals of the resumed run", 1, len(signals))
	state = c.load(again)
	raised := state.Limits()
	raised.Cost *= 2
	taken := loop.Resumed{Input: "go on", Limits: &raised}
	c.no(c.append(again, state, engine.Batch{SignalsSeen: signals[0].ID}, loop.Claimed{Attempt: 2}, taken), "take the resume")
	c.equal("limits in force", raised, c.load(again).Limits())
}

// pauseEnds: a pause that the worker has heard of, and that waits for what is in flight,
// is ended by a resume; so is one that a drain came before.
func (c *conformer) pauseEnds() {
	lease, state := c.started()
	c.no(c.append(lease, state, engine.Batch{Intent: true}, starts(loop.MicroUSD)), "start a model call")
	c.signal(lease.Run, loop.PauseRequested{Reason: "lunch"})
	seen := c.signals(lease)[0]
	c.no(c.append(lease, state, engine.Batch{SignalsSeen: seen.ID}, seen.Body), "take the pause")
	c.signal(lease.Run, loop.Resumed{})
	seen = c.signals(lease)[0]
	c.no(c.append(lease, state, engine.Batch{SignalsSeen: seen.ID}, seen.Body), "take the resume")

	c.signal(lease.Run, loop.PauseRequested{Reason: "dinner"})
	seen = c.signals(lease)[0]
	failed := loop.ModelFailed{Call: 1, Class: loop.ErrorCancelled}
	c.no(c.append(lease, state, engine.Batch{SignalsSeen: seen.ID, Release: true}, seen.Body, failed, loop.Suspended{Reason: loop.WaitDrain}), "drain")
	c.signal(lease.Run, loop.Resumed{})
}

// waiting suspends a run on an approval, with a wake time if there is one.
func (c *conformer) waiting(until time.Time) (loop.Lease, *loop.State) {
	lease, state := c.started()
	call := loop.ToolCall{ID: "c1-1", Name: "wipe", Args: "{}"}
	for _, body := range []loop.Body{
		loop.ModelStarted{Call: 1, Model: ModelRef, MaxOutput: 10, InputBound: 10, Hold: loop.MicroUSD},
		loop.ModelAnswered{Call: 1, Finish: loop.FinishToolCalls, Message: loop.Message{
			Role: loop.RoleAssistant, Parts: []loop.Part{{Kind: loop.PartToolCall, Call: &call}},
		}},
		loop.ApprovalRequested{CallID: "c1-1", ArgsHash: loop.ArgsHash(lease.Run, call), Until: until},
	} {
		c.no(c.append(lease, state, engine.Batch{}, body), "append")
	}
	suspended := loop.Suspended{Reason: loop.WaitApproval, Until: until}
	c.no(c.append(lease, state, engine.Batch{Intent: true, Release: true}, suspended), "suspend")
	return lease, state
}

func (c *conformer) releaseSignalled() {
	lease, state := c.started()
	c.signal(lease.Run, loop.CancelRequested{})
	later := loop.Suspended{Reason: loop.WaitBackoff, Until: time.Now().Add(time.Hour)}
	c.no(c.append(lease, state, engine.Batch{Release: true}, later), "release without having seen the signal")
	c.claimOne("w2")
}

func (c *conformer) emptyRelease() {
	lease, _ := c.started()
	c.no(c.store.Append(c.ctx, lease, engine.Batch{Release: true}), "release without events")
	again := c.claimOne("w2")
	state := c.load(again)
	c.equal("events", int64(2), state.Seq())
	if !state.InAttempt() {
		c.Fatal("the attempt was closed, although no event says so")
	}
	c.refused(c.store.Append(c.ctx, lease, engine.Batch{Release: true}), loop.ErrLeaseLost, again, 2)
	c.claimNone("w1", "the second release came from an old lease")
}

func (c *conformer) endedStays() {
	lease, state := c.started()
	end := loop.Finished{State: loop.StateSucceeded, Answer: "done", Stop: loop.Stop{Reason: loop.Completed, Message: "done"}}
	c.no(c.append(lease, state, engine.Batch{Release: true}, end), "end")
	c.claimNone("w1", "the run has ended")
	if err := c.store.Signal(c.ctx, lease.Run, loop.CancelRequested{}); err == nil {
		c.Fatal("an ended run took a signal")
	}
	c.claimNone("w2", "the run has ended")
}

func (c *conformer) expired() {
	c.create()
	c.no(c.store.Renew(c.ctx, "brief", time.Second), "renew")
	old := c.claimOne("brief")
	var leases []loop.Lease
	c.eventually("another worker gets the runs of an expired one", func() bool {
		c.register("w2")
		leases = c.claim("w2", 10)
		return len(leases) == 1
	})
	if leases[0].Run != old.Run || leases[0].Epoch <= old.Epoch {
		c.Fatalf("lease %+v follows %+v", leases[0], old)
	}
	c.refused(c.append(old, c.load(old), engine.Batch{}, loop.Claimed{Attempt: 1}), loop.ErrLeaseLost, leases[0], 1)
}

func (c *conformer) liveKeeps() {
	c.create()
	c.claimOne("w1")
	c.register("w2")
	c.register("w1")
	c.claimNone("w2", "its worker is alive")
	c.claimNone("w1", "its worker is alive, and is itself")
}

func (c *conformer) retired() {
	c.create()
	lease := c.claimOne("w1")
	c.no(c.store.Retire(c.ctx, "w1"), "retire")
	c.claimNone("w1", "it has retired")
	again := c.claimOne("w2")
	c.refused(c.append(lease, c.load(lease), engine.Batch{}, loop.Claimed{Attempt: 1}), loop.ErrLeaseLost, again, 1)
	c.no(c.store.Retire(c.ctx, "w1"), "retire again")
}

func (c *conformer) tenants() {
	run := c.create()
	other := loop.RunRef{Tenant: "globex", ID: run.ID}
	c.no(c.store.CreateRun(c.ctx, other, Spec()), "create the run of another tenant")
	byRun := map[loop.RunRef]loop.Lease{}
	for _, l := range c.claim("w1", 10) {
		byRun[l.Run] = l
	}
	c.equal("claimed runs", 2, len(byRun))
	c.no(c.append(byRun[run], c.load(byRun[run]), engine.Batch{}, loop.Claimed{Attempt: 1, Worker: "w1"}), "append")
	c.equal("events of the other tenant's run", int64(1), c.load(byRun[other]).Seq())
	c.signal(other, loop.CancelRequested{})
	c.equal("signals of this run", 0, len(c.signals(byRun[run])))
}

func (c *conformer) listens() {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	woken := 0
	// Nobody can see when listening has begun; a run that is too early is missed,
	// so they keep coming until one is heard.
	var create func()
	create = func() {
		if ctx.Err() == nil && c.store.CreateRun(ctx, c.next(), Spec()) == nil {
			time.AfterFunc(100*time.Millisecond, create)
		}
	}
	time.AfterFunc(100*time.Millisecond, create)
	err := c.store.Listen(ctx, func() { woken++; cancel() })
	if err != nil && !errors.Is(err, context.Canceled) {
		c.Fatalf("listen: %v", err)
	}
	if woken == 0 {
		c.Fatal("a new run woke nobody")
	}
}

// workerReturns: a worker that registered anew after an attempt began has come back
// from whatever took the run away. One that only renewed has not, and the dead have not.
func (c *conformer) workerReturns() {
	lease, state := c.started()
	suspects := state.Silent()
	if len(suspects) != 1 || suspects[0].Worker != "w1" {
		c.Fatalf("suspects are %+v", suspects)
	}
	ask := func() []string {
		returned, err := c.store.Returned(c.ctx, suspects)
		c.no(err, "look for lost workers")
		return returned
	}
	c.register("w1")
	c.equal("returned, of a worker that renewed", 0, len(ask()))
	c.no(c.store.Append(c.ctx, lease, engine.Batch{Release: true}), "release without a word")
	c.equal("returned, of a worker that released the run", 0, len(ask()))

	c.no(c.store.Retire(c.ctx, "w1"), "retire")
	c.equal("returned, of a dead worker", 0, len(ask()))
	c.register("w1")
	c.equal("returned", []string{"w1"}, ask())
	suspects = append(suspects, loop.Suspect{Attempt: 2, Worker: "w1", Since: suspects[0].Since}, loop.Suspect{Attempt: 3, Worker: "never seen"})
	c.equal("returned of several", []string{"w1"}, ask())
}
