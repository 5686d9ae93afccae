package main

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/postgres"
)

// at points a terminal to a process.
func (term *terminal) at(p *process) *terminal {
	term.client.env.Getenv = func(name string) string { return map[string]string{"LOOPD_SERVER": p.grpc}[name] }
	return term
}

// variant creates a run like another one, but for what change makes of it.
func variant(t *testing.T, database, name string, change func(*loop.Spec)) string {
	t.Helper()
	store, err := postgres.Open(t.Context(), postgres.Config{URL: database, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	runs, err := store.ListRuns(t.Context(), "default", postgres.RunFilter{}, postgres.RunCursor{}, 1)
	if err != nil || len(runs) != 1 || "runs/"+runs[0].Ref.ID != name {
		t.Fatalf("find %s: %v, %v", name, runs, err)
	}
	spec, err := store.GetSpec(t.Context(), runs[0].Ref)
	if err != nil {
		t.Fatal(err)
	}
	change(&spec)
	like := loop.RunRef{Tenant: runs[0].Ref.Tenant, ID: uuid.Must(uuid.NewV7()).String()}
	if _, _, err := store.CreateRun(t.Context(), like, spec, postgres.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	return "runs/" + like.ID
}

const dearAnswers = `
models:
  worker:
    answers:
      - {calls: [{name: act, args: {n: 1}}], usage: {input: 1100, output: 1020}}
      - {text: "done", usage: {input: 2000, output: 3500}}
`

// A cost guard pauses a run. It goes on only when its limit is raised, on whatever
// worker, and what it has spent counts on.
func TestCostGuardPauses(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newToolServer(t)
	close(tools.release)
	first := start(t, db, dearAnswers)
	first.agent("worker", tools.tool("act", loopdv1.Effect_EFFECT_SIDE_EFFECT))
	model := first.start("worker").GetName()
	if end := first.waitEnd(model); end.GetState() != loopdv1.RunState_RUN_STATE_SUCCEEDED {
		t.Fatalf("without a tight budget the run is %s", end.GetState())
	}
	name := variant(t, db, model, func(spec *loop.Spec) {
		spec.Limits.Cost = 77 * loop.MilliUSD
		spec.Definition.Acts = map[string]loop.Verdict{"cost": loop.VerdictPause}
	})
	held := first.wait(name)
	if held.GetState() != loopdv1.RunState_RUN_STATE_REQUIRES_ACTION || held.GetRequiredActions()[0].GetLimitField() != "max_cost_usd" || held.GetModelCalls() != 1 {
		t.Fatalf("the run is %s after %d model calls, and requires %v", held.GetState(), held.GetModelCalls(), held.GetRequiredActions())
	}
	first.kill()

	second := start(t, db, dearAnswers)
	term := setup(t).at(second)
	term.wantCode(t, 0, term.loopd("run", "show", name))
	if command := "loopd run resume " + name + " --raise max_cost_usd=0.1155"; !strings.Contains(term.stdout.String(), command) {
		t.Errorf("run show does not say %q:\n%s", command, term.stdout.String())
	}
	for _, without := range [][]string{{}, {"--raise", "max_iterations=20"}, {"--input", "Please go on."}} {
		term.wantCode(t, exitConflict, term.loopd(append([]string{"run", "resume", name}, without...)...))
		if !strings.Contains(term.stderr.String(), "raise max_cost_usd above the 0.077 in force (LIMIT_NOT_RAISED)") {
			t.Errorf("resume %v: %s", without, term.stderr.String())
		}
	}
	term.wantCode(t, exitUsage, term.loopd("run", "resume", name, "--raise", "max_cost_usd=0.05"))
	term.wantCode(t, exitUsage, term.loopd("run", "resume", name, "--raise", "max_cost_usd=51"))
	if !strings.Contains(term.stderr.String(), "LIMIT_ABOVE_CEILING") {
		t.Errorf("above the ceiling: %s", term.stderr.String())
	}
	term.wantCode(t, 0, term.loopd("run", "resume", name, "--raise", "max_cost_usd=0.5", "--reason", "worth it"))

	end := second.waitEnd(name)
	var before, after loop.USD
	if err := before.UnmarshalText([]byte(held.GetCostUsd())); err != nil {
		t.Fatal(err)
	}
	if err := after.UnmarshalText([]byte(end.GetCostUsd())); err != nil {
		t.Fatal(err)
	}
	if end.GetState() != loopdv1.RunState_RUN_STATE_SUCCEEDED || end.GetAnswer() != "done" || end.GetModelCalls() != 2 || end.GetLimits().GetMaxCostUsd() != "0.5" {
		t.Errorf("the run ended as %s %q after %d model calls, under %s USD: %v", end.GetState(), end.GetAnswer(), end.GetModelCalls(), end.GetLimits().GetMaxCostUsd(), end.GetStop())
	}
	if before <= 0 || after <= before || after <= 77*loop.MilliUSD {
		t.Errorf("the run cost %s before the pause and %s in the end, want a sum above the first limit", before, after)
	}
	if n := len(tools.keys); n != 2 { // one of each run
		t.Errorf("%d calls reached the tool, want 2", n)
	}
	term.wantCode(t, exitConflict, term.loopd("run", "resume", name))
	if !strings.Contains(term.stderr.String(), "ended as SUCCEEDED") {
		t.Errorf("resume of an ended run: %s", term.stderr.String())
	}
}

// A pause outlives the worker that was to take it: nothing is sent again before
// somebody resumes the run.
func TestPauseOutlivesAPowerCut(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newToolServer(t)
	first := start(t, db, callThenAnswer)
	first.agent("worker", tools.tool("act", loopdv1.Effect_EFFECT_READ_ONLY))
	name := first.start("worker").GetName()
	key := tools.next(t)
	if got, err := first.runs.PauseRun(first.context, &loopdv1.PauseRunRequest{Name: name}); err != nil || got.GetState() != loopdv1.RunState_RUN_STATE_RUNNING {
		t.Fatalf("pause: %v, %v", got.GetState(), err)
	}
	first.kill()
	close(tools.release)

	second := start(t, db, callThenAnswer)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		run, err := second.runs.GetRun(second.context, &loopdv1.GetRunRequest{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		if run.GetState() == loopdv1.RunState_RUN_STATE_PAUSED {
			break
		}
		<-look.C
	}
	if n := len(tools.keys); n != 0 {
		t.Errorf("%d calls were sent for a paused run", n)
	}
	term := setup(t).at(second)
	term.wantCode(t, 0, term.loopd("run", "resume", name))
	if again := tools.next(t); again != key {
		t.Errorf("the call was sent again with key %q, want %q", again, key)
	}
	if end := second.waitEnd(name); end.GetState() != loopdv1.RunState_RUN_STATE_SUCCEEDED {
		t.Errorf("the run ended as %s", end.GetState())
	}
}
