package main

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
)

const (
	succeeded = loopdv1.RunState_RUN_STATE_SUCCEEDED
	cancelled = loopdv1.RunState_RUN_STATE_CANCELLED

	readOnly     = loopdv1.Effect_EFFECT_READ_ONLY
	idempotent   = loopdv1.Effect_EFFECT_IDEMPOTENT
	sideEffect   = loopdv1.Effect_EFFECT_SIDE_EFFECT
	irreversible = loopdv1.Effect_EFFECT_IRREVERSIBLE
)

const actOnceOrTwice = `
models:
  worker:
    answers:
      - calls: [{name: act, args: {n: 1}}]
      - text: "done"
  insistent:
    answers:
      - calls: [{name: act, args: {n: 1}}]
      - calls: [{name: act, args: {n: 1}}]
      - text: "I am not sure whether it was paid."
`

// A power cut after the request has left and before the answer has come: each
// effect, over each transport. What may be sent again is, with the same key; of the
// rest a person says what happened, or the model is told that nobody knows.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newShop(t)
	first := start(t, db, actOnceOrTwice)
	tools.hold()
	first.define("told", &loopdv1.AgentSpec{
		Model: "insistent", Tools: []*loopdv1.Tool{tools.tool("act", "pay", sideEffect)}, OnDoubt: loopdv1.OnDoubt_ON_DOUBT_TELL_MODEL,
	})
	told := first.start("told").GetName()
	tools.await(t, "pay", 1)
	runs := map[string]string{} // by the tool's name in the ledger
	effects := map[string]loopdv1.Effect{"read-only": readOnly, "idempotent": idempotent, "side-effect": sideEffect, "irreversible": irreversible}
	for word, effect := range effects {
		for _, via := range []string{"http-", "mcp-"} {
			name := via + word
			first.define(name, &loopdv1.AgentSpec{Model: "worker", Tools: []*loopdv1.Tool{tools.tool("act", name, effect)}})
			runs[name] = first.start(name).GetName()
		}
	}
	for _, name := range []string{"http-irreversible", "mcp-irreversible"} {
		first.until(runs[name], "approval_requested", 1)
	}
	for _, a := range first.approvals("") {
		first.approve(a)
	}
	for name := range runs {
		tools.await(t, name, 1)
	}
	first.kill()
	tools.release()

	second := start(t, db, actOnceOrTwice)
	second.checkTold(told, tools)
	for name, run := range runs {
		again := strings.HasSuffix(name, "read-only") || strings.HasSuffix(name, "idempotent")
		deliveries, attempts := 1, int32(1)
		if again {
			deliveries, attempts = 2, 2
		} else {
			call := second.doubted(run)
			if rows := tools.of(name); rows[0].key != call.GetIdempotencyKey() {
				t.Errorf("%s: the key is %q, the ledger has %q", name, call.GetIdempotencyKey(), rows[0].key)
			}
			second.resolve(call.GetName(), "SUCCEEDED")
		}
		got := second.ended(run, succeeded)
		if rows := tools.of(name); !sameKey(rows, deliveries) {
			t.Errorf("%s: the ledger has %v, want %d with one key", name, rows, deliveries)
		}
		if call := second.calls(run)[0]; call.GetAttempt() != attempts || call.GetOutcome() != "ok" {
			t.Errorf("%s: attempt %d, outcome %q", name, call.GetAttempt(), call.GetOutcome())
		}
		effects := got.GetSideEffects()
		if readsOnly := strings.HasSuffix(name, "read-only"); readsOnly != (len(effects) == 0) || !readsOnly && effects[0].GetIdempotencyKey() != tools.of(name)[0].key {
			t.Errorf("%s: side effects %v", name, effects)
		}
	}
}

// checkTold: the model was told of the doubt in place of a person. It goes on, and
// when it asks for the same again, that is not sent.
func (p *process) checkTold(run string, tools *shop) {
	p.t.Helper()
	got := p.ended(run, succeeded)
	if rows := tools.of("pay"); len(rows) != 1 {
		p.t.Errorf("the ledger has %v", rows)
	}
	results := p.results(run)
	if !strings.Contains(results["c1-1"], "outcome of the call is unknown") || !strings.Contains(results["c2-1"], "was not sent: the same call (c1-1)") {
		p.t.Errorf("the model was told %q", results)
	}
	if effects := got.GetSideEffects(); len(effects) != 1 || effects[0].GetState() != loopdv1.ToolCallState_TOOL_CALL_STATE_IN_DOUBT {
		p.t.Errorf("side effects %v, want the one in doubt", effects)
	}
}

const payAndFax = `
models:
  clerk:
    answers:
      - calls: [{name: pay, args: {n: 1}}, {name: fax, args: {n: 2}}]
      - calls: [{name: wire, args: {n: 3}}]
      - text: "done"
`

// The tool that can tell is asked about each call for itself. That it finds a key
// settles the doubt at once. That it does not proves nothing yet: a sender may
// still be under way. Of an IRREVERSIBLE call it is not asked at all, and only a
// person sends that again, under the same key.
func TestVerifyAfterPowerCut(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newShop(t)
	first := start(t, db, payAndFax)
	tools.hold()
	pay, fax, wire := tools.tool("pay", "pay", sideEffect), tools.tool("fax", "fax", sideEffect), tools.tool("wire", "wire", irreversible)
	pay.Verify, fax.Verify, wire.Verify = "check", "check", "check"
	first.define("clerk", &loopdv1.AgentSpec{Tools: []*loopdv1.Tool{pay, fax, wire, tools.tool("check", "check", readOnly)}})
	run := first.start("clerk").GetName()
	paid, faxed := tools.await(t, "pay", 1)[0], tools.await(t, "fax", 1)[0]
	first.kill()
	tools.release()

	second := start(t, db, payAndFax)
	second.until(run, "call_verified", 2)
	got := second.wait(run)
	if wait := time.Until(got.GetWaitUntil().AsTime()); wait < 30*time.Second || wait > time.Minute {
		t.Errorf("the fax is looked for again in %s, want after the quarantine of 60 s", wait)
	}
	call := second.doubted(run)
	if call.GetIdempotencyKey() != faxed.key {
		t.Errorf("in doubt is %s, want the fax alone", call.GetName())
	}
	if receipt := second.results(run)["c1-1"]; !strings.Contains(receipt, paid.key) {
		t.Errorf("the result of the payment is %q, want the receipt", receipt)
	}
	wantArgs := `{"arguments":{"n":1},"key":"` + paid.key + `","tool":"pay"}`
	if asked := tools.of("check"); len(asked) != 2 || !slices.Contains(asked, delivery{"check", paid.key, wantArgs}) {
		t.Errorf("asked %v, want one of each call, one with %s", asked, wantArgs)
	}
	second.resolve(call.GetName(), "NOT_EXECUTED")

	second.until(run, "approval_requested", 1)
	tools.hold()
	second.approve(second.approvals(run)[0])
	tools.await(t, "wire", 1)
	second.kill()
	tools.release()

	third := start(t, db, payAndFax)
	third.until(run, "call_in_doubt", 3)
	wired := third.doubted(run)
	if n := len(tools.of("wire")); n != 1 {
		t.Errorf("the money was wired %d times before anybody said so", n)
	}
	third.resolve(wired.GetName(), "RETRY")
	third.ended(run, succeeded)
	if rows := tools.of("wire"); !sameKey(rows, 2) || rows[0].key != wired.GetIdempotencyKey() {
		t.Errorf("the ledger has %v, want the retry that a person asked for with the first key", rows)
	}
	if len(tools.of("pay")) != 1 || len(tools.of("fax")) != 1 || len(tools.of("check")) != 2 {
		t.Errorf("the ledger has %v %v %v", tools.of("pay"), tools.of("fax"), tools.of("check"))
	}
}

// lockRuns keeps everybody from writing to runs. The first function returns when
// somebody wants to; the second breaks the connections of those who do, and lets go.
func lockRuns(t *testing.T, db string, runs ...string) (blocked func(), unlock func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	pool := connect(t, db)
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(ctx) }) // closing the pool waits for it
	ids := make([]string, len(runs))
	for i, run := range runs {
		ids[i] = strings.TrimPrefix(run, "runs/")
	}
	if _, err := tx.Exec(ctx, `SELECT FROM runs WHERE run_id = ANY($1) FOR UPDATE`, ids); err != nil {
		t.Fatal(err)
	}
	blocked = func() {
		t.Helper()
		for waiting := false; !waiting; {
			const query = `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
			if err := pool.QueryRow(ctx, query).Scan(&waiting); err != nil {
				t.Fatalf("nobody waits for the lock: %v", err)
			}
		}
	}
	unlock = func() {
		t.Helper()
		const query = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
		if _, err := pool.Exec(ctx, query); err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return blocked, unlock
}

// The answer has come, and its commit has not. A worker that dies then leaves a
// doubt; one that lives has the answer and writes it, once it knows that it is not
// written yet.
func TestAnswerIsNotCommitted(t *testing.T) {
	t.Parallel()
	for _, dies := range []bool{true, false} {
		name := map[bool]string{true: "worker dies", false: "connection dies"}[dies]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, tools := pgURL(t), newShop(t)
			p := start(t, db, callThenAnswer)
			tools.hold()
			p.define("payer", &loopdv1.AgentSpec{Model: "worker", Tools: []*loopdv1.Tool{tools.tool("act", "pay", sideEffect)}})
			run := p.start("payer").GetName()
			tools.await(t, "pay", 1)
			blocked, unlock := lockRuns(t, db, run)
			tools.release()
			blocked()
			if dies {
				p.kill()
			}
			unlock()
			if dies {
				p = start(t, db, callThenAnswer)
				p.resolve(p.doubted(run).GetName(), "SUCCEEDED")
			}
			p.ended(run, succeeded)
			doubts := slices.Contains(p.kinds(run), "call_in_doubt")
			if rows := tools.of("pay"); len(rows) != 1 || doubts != dies {
				t.Errorf("the ledger has %v; in doubt: %t, want %t", rows, doubts, dies)
			}
		})
	}
}

// A worker freezes while a call is in flight, and wakes with the answer when others
// have taken over. It may not write it.
func TestFrozenWorkerWritesNothing(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newShop(t)
	first := start(t, db, callThenAnswer)
	tools.hold()
	first.define("payer", &loopdv1.AgentSpec{Model: "worker", Tools: []*loopdv1.Tool{tools.tool("act", "pay", sideEffect)}})
	run := first.start("payer").GetName()
	tools.await(t, "pay", 1)
	_ = first.cmd.Process.Signal(syscall.SIGSTOP)

	second := start(t, db, callThenAnswer)
	call := second.doubted(run)
	before := second.kinds(run)
	tools.release()
	_ = first.cmd.Process.Signal(syscall.SIGCONT)
	if code := first.terminate(); code != 0 { // which waits for what is in flight
		t.Errorf("exit code %d", code)
	}
	if diff := cmp.Diff(before, second.kinds(run)); diff != "" {
		t.Errorf("the worker that had been frozen has written (-before +after):\n%s", diff)
	}
	second.resolve(call.GetName(), "SUCCEEDED")
	second.ended(run, succeeded)
	if rows := tools.of("pay"); len(rows) != 1 {
		t.Errorf("the ledger has %v", rows)
	}
}

const slowThought = `
models:
  worker:
    answers:
      - {text: "never heard", calls: [{name: act, args: {n: 0}}], delay: 60s}
`

// A power cut while the model thinks: its answer is lost, paid for at most, and
// asked for again. Nothing of it was sent.
func TestPowerCutInModelCall(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newShop(t)
	first := start(t, db, slowThought)
	first.define("payer", &loopdv1.AgentSpec{Model: "worker", Tools: []*loopdv1.Tool{tools.tool("act", "pay", sideEffect)}})
	run := first.start("payer").GetName()
	first.until(run, "model_started", 1)
	first.kill()

	second := start(t, db, callThenAnswer)
	got := second.ended(run, succeeded)
	if got.GetModelCalls() != 3 || got.GetIterations() != 2 || got.GetCostEstimatedUsd() == "0" {
		t.Errorf("%d model calls, %d iterations, %s USD estimated", got.GetModelCalls(), got.GetIterations(), got.GetCostEstimatedUsd())
	}
	if rows := tools.of("pay"); len(rows) != 1 || rows[0].args != `{"n":1}` {
		t.Errorf("the ledger has %v", rows)
	}
}

// A cancel lets a side effect end as what it truly is: with an answer it has
// succeeded, without one it is in doubt. The run ends either way, and says which.
func TestCancelInSideEffect(t *testing.T) {
	t.Parallel()
	db, tools := pgURL(t), newShop(t)
	p := start(t, db, callThenAnswer)
	tools.hold()
	patient, hasty := tools.tool("act", "patient", sideEffect), tools.tool("act", "hasty", sideEffect)
	hasty.Timeout = durationpb.New(time.Second)
	runs := map[string]string{}
	for name, tool := range map[string]*loopdv1.Tool{"patient": patient, "hasty": hasty} {
		p.define(name, &loopdv1.AgentSpec{Model: "worker", Tools: []*loopdv1.Tool{tool}})
		runs[name] = p.start(name).GetName()
		tools.await(t, name, 1)
		var run loopdv1.Run
		p.ask(http.MethodPost, "/v1/"+runs[name]+":cancel", `{"reason": "enough"}`, &run)
		if run.GetState() != loopdv1.RunState_RUN_STATE_CANCELLING {
			t.Errorf("%s: the cancel shows as %s", name, run.GetState())
		}
	}
	p.ended(runs["hasty"], cancelled) // nobody has answered it
	tools.release()
	for name, want := range map[string]loopdv1.ToolCallState{
		"hasty":   loopdv1.ToolCallState_TOOL_CALL_STATE_IN_DOUBT,
		"patient": loopdv1.ToolCallState_TOOL_CALL_STATE_SUCCEEDED,
	} {
		got := p.ended(runs[name], cancelled)
		if effects := got.GetSideEffects(); len(effects) != 1 || effects[0].GetState() != want {
			t.Errorf("%s: side effects %v, want one that is %s", name, effects, want)
		}
		if rows := tools.of(name); len(rows) != 1 {
			t.Errorf("%s: the ledger has %v", name, rows)
		}
	}
}
