package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

// played are alerts on what a healthy build does not do, whatever is done to it: a panic,
// a second version of the same binary. Their series are played.
const played = `
# TYPE loopd_panics_total counter
loopd_panics_total{where="run"} 1
# TYPE loopd_build_info gauge
loopd_build_info{version="1"} 1
loopd_build_info{version="2"} 1
`

// fault breaks something, and names the alerts that it must set off.
type fault struct {
	what    string
	provoke func(context.Context, *world) error
	want    []string // "Alert severity"
}

// faults are in an order in which none hides the next one.
func faults() []fault {
	return []fault{
		{"series that no healthy loopd has", playSeries, []string{"Panics ticket"}},
		{"agents that fail, and all else that agents can do", misbehave, []string{
			"GuardDidNotHold page", "RunErrorBudgetFast page", "RunErrorBudgetSlow ticket", "ProviderThrottled ticket", "ProviderThrottled page", "ToolFailing ticket",
			"GuardTripSpike ticket", "UnpricedModel ticket", "LabelOverflow ticket", "SchemaMismatch ticket", "SpendBurnFast page", "SpendBurnSlow ticket", "RunawayRun ticket", "ApprovalsUnattended ticket",
		}},
		{"commits that wait for a lock", lockJournal, []string{"DBSlow ticket"}},
		{"a suspended worker", suspend, []string{"LeaseLoss page", "FencedWrites ticket"}},
		{"a worker that takes its time to end", drain, []string{"DrainStuck ticket"}},
		{"one slot for a hundred runs", starve, []string{"QueueStuck page", "StartLatencyBudgetFast page", "StartLatencyBudgetSlow ticket"}},
		{"a model that does not answer", stall, []string{"NothingMoves page"}},
		{"no database", dropPostgres, []string{"CensusGone page"}},
		{"no loopd", dropLoopd, []string{"LoopdDown page"}},
	}
}

// checkAlerts brings about one fault after the other, until Alertmanager has had every
// alert there is.
func checkAlerts(ctx context.Context, w *world, s settings) error {
	rules, err := os.ReadFile(filepath.Join(s.deploy, "prometheus", "alerts.yml"))
	if err != nil {
		return fmt.Errorf("read the alerts: %w", err)
	}
	missing := map[string]bool{}
	for _, alert := range regexp.MustCompile(`- alert: (\w+)[\s\S]*?severity: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		missing[alert[1]+" "+alert[2]] = true
	}
	if err := w.startWatch(ctx, s.deploy, true); err != nil {
		return err
	}
	began := time.Now()
	for _, f := range faults() {
		fmt.Printf("%4.0fs %s\n", time.Since(began).Seconds(), f.what)
		if err := w.bring(ctx, f, began, missing); err != nil {
			return fmt.Errorf("%s: %w", f.what, err)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("nothing here sets off %s", strings.Join(slices.Sorted(maps.Keys(missing)), ", "))
	}
	fmt.Printf("%4.0fs every alert was seen at Alertmanager\n", time.Since(began).Seconds())
	return nil
}

// bring keeps a fault up until its alerts were seen.
func (w *world) bring(ctx context.Context, f fault, began time.Time, missing map[string]bool) error {
	broken, mend := context.WithCancel(ctx)
	defer mend()
	var all group
	var err error
	all.do(func() { err = f.provoke(broken, w) })
	wanted := map[string]bool{}
	for _, name := range f.want {
		wanted[name] = true
	}
	wait := until(ctx, "an alert", 3*time.Minute, func() bool {
		seen, err := w.watch.alerts(ctx)
		if err != nil {
			return false
		}
		for name := range seen {
			if wanted[name] {
				fmt.Printf("%4.0fs   %s\n", time.Since(began).Seconds(), name)
			}
			delete(wanted, name)
			delete(missing, name)
		}
		return len(wanted) == 0
	})
	mend()
	all.wait()
	if wait != nil {
		return errors.Join(fmt.Errorf("not seen: %s", strings.Join(slices.Sorted(maps.Keys(wanted)), ", ")), err)
	}
	if errors.Is(err, context.Canceled) || broken.Err() != nil {
		return nil
	}
	return err
}

// playSeries begins to show them, for good.
func playSeries(_ context.Context, w *world) error {
	w.extra.show(played)
	return nil
}

// misbehave starts runs of all the agents that something is wrong with, again and
// again.
func misbehave(ctx context.Context, w *world) error {
	a := w.replicas[0]
	for n := range spare {
		if err := a.begin(ctx, fmt.Sprintf("spare-%d", n), "go"); err != nil {
			return err
		}
	}
	for n := 0; ctx.Err() == nil; n++ {
		for _, agent := range []string{"locked", "locked", "locked", "throttled", "flaky", "unlucky", "inventory", "silent"} {
			if err := a.begin(ctx, agent, fmt.Sprintf("number %d", n)); err != nil {
				return err
			}
		}
		if n%8 == 0 {
			if err := errors.Join(a.beginMany(ctx, "spender", 1), a.beginMany(ctx, "payer", 1), a.beginMany(ctx, "liar", 1)); err != nil {
				return err
			}
		}
		pause(ctx, 400*time.Millisecond)
	}
	return nil
}

// lockJournal holds up commits again and again, while runs go on.
func lockJournal(ctx context.Context, w *world) error {
	db, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer db.Close(context.WithoutCancel(ctx))
	for n := 0; ctx.Err() == nil; n++ {
		if err := w.replicas[0].beginMany(ctx, "clerk", 3); err != nil {
			return err
		}
		if _, err := db.Exec(ctx, "BEGIN; LOCK TABLE events IN EXCLUSIVE MODE; SELECT pg_sleep(0.4); COMMIT"); err != nil {
			return fmt.Errorf("lock the journal: %w", err)
		}
		pause(ctx, 100*time.Millisecond)
	}
	return nil
}

// suspend stops a worker in the middle of its runs until others have them, and lets it
// go on.
func suspend(ctx context.Context, w *world) error {
	a, b := w.replicas[0], w.replicas[1]
	for ctx.Err() == nil {
		if err := b.beginMany(ctx, "steady", 30); err != nil {
			return err
		}
		pause(ctx, 700*time.Millisecond)
		b.process.signal(syscall.SIGSTOP)
		pause(ctx, 3*leaseTTL)
		b.process.signal(syscall.SIGCONT)
		pause(ctx, 3*time.Second)
	}
	return until(context.WithoutCancel(ctx), "the workers are well again", time.Minute, func() bool {
		return answers(context.WithoutCancel(ctx), "http://"+a.admin+"/readyz") && answers(context.WithoutCancel(ctx), "http://"+b.admin+"/readyz")
	})
}

// drain asks a worker to end while its runs wait for a slow tool.
func drain(ctx context.Context, w *world) error {
	b := w.replicas[1]
	if err := b.beginMany(ctx, "waiter", 10); err != nil {
		return err
	}
	pause(ctx, 2*time.Second)
	b.process.signal(syscall.SIGTERM)
	<-b.process.done
	return nil
}

// starve leaves one worker with one slot, and starts more runs than it can drive.
func starve(ctx context.Context, w *world) error {
	a, b := w.replicas[0], w.replicas[1]
	b.process.kill()
	a.process.kill()
	if err := a.start(ctx, "--max-runs", "1"); err != nil {
		return err
	}
	if err := a.beginMany(ctx, "steady", 60); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// stall cancels all that lives, and leaves a run whose model takes its time.
func stall(ctx context.Context, w *world) error {
	a := w.replicas[0]
	a.process.kill()
	if err := a.start(ctx); err != nil {
		return err
	}
	live := []loopdv1.RunState{loopdv1.RunState_RUN_STATE_QUEUED, loopdv1.RunState_RUN_STATE_RUNNING, loopdv1.RunState_RUN_STATE_REQUIRES_ACTION}
	for ctx.Err() == nil {
		page, err := a.runs.ListRuns(ctx, &loopdv1.ListRunsRequest{States: live, PageSize: 200})
		if err != nil {
			return fmt.Errorf("list the runs: %w", err)
		}
		if len(page.GetRuns()) == 0 {
			break
		}
		for _, run := range page.GetRuns() {
			_, _ = a.runs.CancelRun(ctx, &loopdv1.CancelRunRequest{Name: run.GetName()}) // it may have ended by itself
		}
		pause(ctx, time.Second)
	}
	if err := a.beginMany(ctx, "sloth", 1); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func dropPostgres(ctx context.Context, w *world) error {
	err := w.postgres.Stop(ctx)
	w.postgres = nil
	<-ctx.Done()
	return err
}

func dropLoopd(ctx context.Context, w *world) error {
	for _, r := range w.replicas {
		r.process.kill()
	}
	<-ctx.Done()
	return nil
}
