package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/loopd/loopd/internal/loop"
)

// hostile is what models and tools write and databases trip over.
const hostile = "nul \x00, escaped \\u0000, emoji 🧨, quote \" backslash \\ newline\n"

// answer is a model answer with one tool call.
func answer(call int, args string) loop.ModelAnswered {
	return loop.ModelAnswered{
		Call: call, Finish: loop.FinishToolCalls, Usage: loop.Usage{InputUncached: 100, Output: 20},
		Cost: loop.Cost{Input: 3 * loop.MilliUSD, Output: 2 * loop.MilliUSD},
		Message: loop.Message{Role: loop.RoleAssistant, Source: loop.SourceModel, Parts: []loop.Part{
			loop.TextPart("I look it up."),
			{Kind: loop.PartToolCall, Call: &loop.ToolCall{ID: fmt.Sprintf("c%d-1", call), ProviderID: "toolu_1", Name: "get_order", Args: args}},
		}},
	}
}

// One run from claim to end, with everything that is stored beside it.
func TestAppendAndRead(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	call := loop.CallHead{
		Call:      loop.ToolCall{ID: "c1-1", ProviderID: "toolu\x00", Name: "get\x00order", Args: hostile},
		Iteration: 1, Effect: loop.ReadOnly, State: loop.CallApproved, ArgsHash: "abc", Key: "loopd:k",
	}

	started := batch(lease, 2, claimed(lease), loop.ModelStarted{Call: 1, Model: "m", Hold: 10 * loop.MilliUSD})
	started.Intent = true
	started.Head.Held = 10 * loop.MilliUSD
	mustAppend(t, s, lease, started)

	answered := batch(lease, 4, answer(1, hostile))
	answered.Calls = []loop.CallHead{call, {
		Call: loop.ToolCall{ID: "c1-2", Name: "other"}, Iteration: 1, State: loop.CallSkipped, Outcome: loop.OutcomeSkipped, Result: "skipped",
	}}
	mustAppend(t, s, lease, answered)

	done := batch(lease, 5,
		loop.CallBegun{CallID: "c1-1", Attempt: 1, Key: "loopd:k"},
		loop.CallFinished{CallID: "c1-1", Attempt: 1, Outcome: loop.OutcomeOK, Content: hostile, ResultHash: "h"},
		loop.Finished{State: loop.StateStopped, Stop: loop.Stop{Reason: loop.IterationCap, Message: hostile}, Answer: hostile, Partial: true})
	call.State, call.Outcome, call.Attempt, call.Result = loop.CallSucceeded, loop.OutcomeOK, 1, hostile
	call.StartedAt, call.FinishedAt, call.Bytes, call.Cut = at(5), at(6), 77, true
	done.Calls = []loop.CallHead{call}
	done.Head = loop.Head{
		State: loop.StateStopped, Iterations: 1, ModelCalls: 1, ToolCalls: 1, Attempts: 1,
		Usage: loop.Usage{InputUncached: 100, Output: 20}, Cost: loop.Cost{Input: 3 * loop.MilliUSD, Output: 2 * loop.MilliUSD},
		Estimated: loop.NanoUSD, Answer: hostile, Partial: true, Unverified: true, StartedAt: at(1), EndedAt: at(7),
		Stop: &loop.Stop{Reason: loop.IterationCap, Message: hostile, Evidence: []loop.Evidence{{Args: hostile}}},
	}
	mustAppend(t, s, lease, done) // Release is implied: the run has ended

	want := Journaled{Signals: []loop.Signal{}}
	want.Events = append(want.Events, loop.Event{Seq: 1, Body: loop.Created{Spec: spec()}})
	want.Events = append(append(append(want.Events, started.Events...), answered.Events...), done.Events...)
	got, err := s.Load(t.Context(), lease)
	if err != nil {
		t.Fatal(err)
	}
	got.Events[0].At = time.Time{} // the database's clock
	diff(t, "journal", got, want)

	run := getRun(t, s, ref)
	diff(t, "head", run.Head, done.Head, cmpopts.EquateEmpty())
	diff(t, "run", run, Run{
		Ref: ref, Agent: "agents/support", AgentVersion: 3, Input: spec().Input, Limits: spec().Limits,
		Labels: spec().Labels, Source: "rest", Priority: loop.PriorityNormal, LastSeq: 7,
	}, cmpopts.IgnoreFields(Run{}, "Head", "CreatedAt"))

	calls, err := s.ToolCalls(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "tool calls", calls, []loop.CallHead{call, answered.Calls[1]})
	wantErr(t, s.Append(t.Context(), lease, batch(lease, 8, loop.AnswerAccepted{})), loop.ErrLeaseLost)
}

// fences have a batch written by each of the two statements, which have a fence each: a
// full result is not for the usual one.
var fences = [][]loop.FullResult{nil, {{CallID: "c1-1", Attempt: 1, Text: "all of it"}}}

func TestFence(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	mustAppend(t, s, lease, batch(lease, 2, claimed(lease)))

	stale, thief, other := lease, lease, lease
	stale.Epoch--
	thief.Owner = "w2"
	other.Run.Tenant = "globex"
	gap := batch(lease, 3, loop.AnswerAccepted{}, loop.AnswerAccepted{})
	gap.Events[1].Seq = 5
	for _, test := range []struct {
		name  string
		lease loop.Lease
		batch Batch
		want  error
	}{
		{"stale epoch", stale, batch(stale, 3, loop.AnswerAccepted{}), loop.ErrLeaseLost},
		{"other owner", thief, batch(thief, 3, loop.AnswerAccepted{}), loop.ErrLeaseLost},
		{"other tenant", other, batch(other, 3, loop.AnswerAccepted{}), loop.ErrLeaseLost},
		{"seq written before", lease, batch(lease, 2, loop.AnswerAccepted{}), ErrWrongSeq},
		{"seq ahead", lease, batch(lease, 4, loop.AnswerAccepted{}), ErrWrongSeq},
		{"gap", lease, gap, ErrWrongSeq},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, results := range fences {
				test.batch.Results = results
				wantErr(t, s.Append(t.Context(), test.lease, test.batch), test.want)
				if seq := lastSeq(t, s, ref); seq != 2 {
					t.Errorf("the journal has %d events, want 2", seq)
				}
			}
		})
	}
	if err := s.Append(t.Context(), lease, Batch{}); err == nil {
		t.Error("a batch without events was taken")
	}
	mustAppend(t, s, lease, batch(lease, 3, loop.AnswerAccepted{}))
}

func TestJournalIsAppendOnly(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	for _, query := range []string{"UPDATE events SET kind = 'x'", "DELETE FROM events", "TRUNCATE events"} {
		if _, err := s.pool.Exec(t.Context(), query); err == nil {
			t.Errorf("%s was allowed", query)
		}
	}
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	for _, query := range []string{"SET LOCAL loopd.retention = 'on'", "DELETE FROM events"} {
		if _, err := tx.Exec(t.Context(), query); err != nil {
			t.Errorf("%s: %v", query, err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	lastSeq(t, s, ref)
}

func TestEventPages(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	mustAppend(t, s, lease, batch(lease, 2, claimed(lease), loop.AnswerAccepted{}, loop.AnswerAccepted{}))

	var seqs []int64
	var after int64
	for {
		page, err := s.Events(t.Context(), ref, after, 3)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, e := range page {
			seqs = append(seqs, e.Seq)
		}
		after = page[len(page)-1].Seq
	}
	diff(t, "seqs", seqs, []int64{1, 2, 3, 4})
	_, err := s.Events(t.Context(), newRef(), 0, 3)
	wantErr(t, err, loop.ErrNotFound)
	_, err = s.Load(t.Context(), loop.Lease{Run: loop.RunRef{Tenant: "globex", ID: ref.ID}})
	wantErr(t, err, loop.ErrNotFound)
	got, err := s.GetSpec(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "spec", got, spec())
}

// account reads what the database itself says about a run's money.
func account(t *testing.T, s *Store, ref loop.RunRef) (committed, held loop.USD) {
	t.Helper()
	const query = "SELECT committed_pico, held_pico FROM accounts WHERE tenant_id = $1 AND account = 'run:' || $2"
	if err := s.pool.QueryRow(t.Context(), query, ref.Tenant, ref.ID).Scan(&committed, &held); err != nil {
		t.Fatal(err)
	}
	return committed, held
}

func TestMoney(t *testing.T) {
	t.Parallel()
	s := openStore(t) // runs may spend 100 mUSD
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	check := func(committed, held loop.USD) {
		t.Helper()
		gotCommitted, gotHeld := account(t, s, ref)
		if gotCommitted != committed || gotHeld != held {
			t.Errorf("account: committed %s held %s, want %s and %s", gotCommitted, gotHeld, committed, held)
		}
		const open = "SELECT coalesce(sum(amount_pico) FILTER (WHERE state = 'open'), 0)::bigint FROM holds"
		const settled = "SELECT coalesce(sum(settled_pico), 0)::bigint FROM holds"
		if h, c := scalar[loop.USD](t, s, open), scalar[loop.USD](t, s, settled); h != held || c != committed {
			t.Errorf("holds: settled %s open %s, want %s and %s", c, h, committed, held)
		}
	}
	cost := func(m loop.USD) loop.Cost { return loop.Cost{Output: m * loop.MilliUSD} }

	mustAppend(t, s, lease, batch(lease, 2, claimed(lease), loop.ModelStarted{Call: 1, Hold: 60 * loop.MilliUSD}))
	check(0, 60*loop.MilliUSD)

	// A second hold beside the first does not fit.
	err := s.Append(t.Context(), lease, batch(lease, 4, loop.ModelStarted{Call: 2, Hold: 41 * loop.MilliUSD}))
	wantErr(t, err, ErrOverBudget)
	check(0, 60*loop.MilliUSD)

	// One failed, the next started, in one batch.
	mustAppend(t, s, lease, batch(lease, 4, loop.ModelFailed{Call: 1, Class: loop.ErrorServer, Cost: cost(30)},
		loop.ModelStarted{Call: 2, Hold: 70 * loop.MilliUSD}))
	check(30*loop.MilliUSD, 70*loop.MilliUSD)

	// What was spent is recorded even where it passes the limit; nothing starts then.
	mustAppend(t, s, lease, batch(lease, 6, loop.ModelAnswered{Call: 2, Cost: cost(75)}))
	check(105*loop.MilliUSD, 0)
	err = s.Append(t.Context(), lease, batch(lease, 7, loop.ModelStarted{Call: 3, Hold: loop.PicoUSD}))
	wantErr(t, err, ErrOverBudget)
	if seq := lastSeq(t, s, ref); seq != 6 {
		t.Errorf("the journal has %d events, want 6", seq)
	}
}

// Appends of many runs share commits; one that the database refuses fails alone.
func TestAppendsInCompany(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	const runs, rounds, bad = 30, 10, 7
	for range runs {
		create(t, s)
	}
	renew(t, s, "w1", time.Minute)
	leases := claim(t, s, "w1", runs)
	if len(leases) != runs {
		t.Fatalf("claimed %d runs, want %d", len(leases), runs)
	}

	errs := make([]error, runs)
	var wg sync.WaitGroup
	for i, lease := range leases {
		wg.Go(func() {
			for n := range int64(rounds) {
				b := batch(lease, 2+n, loop.AnswerAccepted{})
				if i == bad && n == rounds-1 {
					b.Events[0].Body = loop.ModelStarted{Call: 1, Hold: loop.OneUSD}
				}
				errs[i] = errors.Join(errs[i], s.Append(t.Context(), lease, b))
			}
		})
	}
	wg.Wait()

	for i, lease := range leases {
		want := int64(1 + rounds)
		if i == bad {
			want--
			wantErr(t, errs[i], ErrOverBudget)
		} else if errs[i] != nil {
			t.Errorf("run %d: %v", i, errs[i])
		}
		if seq := lastSeq(t, s, lease.Run); seq != want {
			t.Errorf("run %d has %d events, want %d", i, seq, want)
		}
	}
}
