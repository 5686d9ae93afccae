package postgres

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

func result(id string, attempt int, content string) loop.ResultSubmitted {
	return loop.ResultSubmitted{CallID: id, Attempt: attempt, Outcome: loop.OutcomeOK, Content: content, By: "ann"}
}

func TestSubmitTwice(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	call := offered("c1-1", soon())
	ref := park(t, s, call)
	first := result("c1-1", 1, hostile)
	if replayed, err := s.SubmitResult(t.Context(), ref, first); err != nil || replayed {
		t.Fatalf("first result: replayed %v, %v", replayed, err)
	}
	again := first
	again.By = "bob" // whoever says so, it is the same result
	if replayed, err := s.SubmitResult(t.Context(), ref, again); err != nil || !replayed {
		t.Errorf("same result again: replayed %v, %v", replayed, err)
	}
	for _, other := range []loop.ResultSubmitted{
		result("c1-1", 1, "other"),
		{CallID: "c1-1", Attempt: 1, Outcome: loop.OutcomePermanent, Content: hostile},
	} {
		_, err := s.SubmitResult(t.Context(), ref, other)
		wantErr(t, err, ErrConflict)
	}
	lease := claimOne(t, s, "w2")
	got := signals(t, s, lease)
	if len(got) != 1 {
		t.Fatalf("signals = %+v, want one", got)
	}
	diff(t, "signal", got[0].Body, loop.Body(first))

	// It stays the same result when the run has taken it.
	b := batch(lease, 3, first)
	call.State, call.Outcome, call.Result, call.Until = loop.CallSucceeded, loop.OutcomeOK, hostile, time.Time{}
	b.Calls, b.SignalsSeen = []loop.CallHead{call}, got[0].ID
	mustAppend(t, s, lease, b)
	if replayed, err := s.SubmitResult(t.Context(), ref, first); err != nil || !replayed {
		t.Errorf("same result, after it was taken: replayed %v, %v", replayed, err)
	}
	_, err := s.SubmitResult(t.Context(), ref, result("c1-1", 1, "other"))
	wantErr(t, err, ErrConflict)

	// The next attempt takes a result of its own.
	call.State, call.Outcome, call.Result, call.Attempt, call.Until = loop.CallOffered, "", "", 2, soon()
	b = batch(lease, 4, loop.CallHandedOut{CallID: "c1-1", Attempt: 2})
	b.Calls, b.Head.RequiredActions = []loop.CallHead{call}, actions([]loop.CallHead{call})
	mustAppend(t, s, lease, b)
	_, err = s.SubmitResult(t.Context(), ref, result("c1-1", 3, "x"))
	wantErr(t, err, ErrNotWaiting)
	if replayed, err := s.SubmitResult(t.Context(), ref, result("c1-1", 2, "second")); err != nil || replayed {
		t.Errorf("result of the second attempt: replayed %v, %v", replayed, err)
	}
}

func TestManySubmit(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := park(t, s, offered("c1-1", soon()))
	var mu sync.Mutex
	fresh, replays, conflicts := 0, 0, 0
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			replayed, err := s.SubmitResult(t.Context(), ref, result("c1-1", 1, strings.Repeat("x", i%2)))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && !replayed:
				fresh++
			case err == nil:
				replays++
			case errors.Is(err, ErrConflict):
				conflicts++
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if fresh != 1 || replays != 24 || conflicts != 25 {
		t.Errorf("%d fresh, %d replayed, %d conflicts, want 1, 24 and 25", fresh, replays, conflicts)
	}
	if n := scalar[int](t, s, "SELECT count(*) FROM run_signals"); n != 1 {
		t.Errorf("%d signals, want 1", n)
	}
}

func TestResultsThatAreRefused(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	child := offered("c1-3", soon()) // a child run owes the result, and nobody else
	child.Call.Name, child.ChildID = "researcher", newRef().ID
	started := offered("c1-4", time.Time{})
	started.State = loop.CallStarted
	ref := park(t, s, offered("c1-1", soon()), offered("c1-2", time.Now().Add(-time.Second)), child, started, asked("c1-5", soon()))
	ended := park(t, s, offered("c1-1", soon()))
	finish(t, s, ended)
	for _, test := range []struct {
		name   string
		run    loop.RunRef
		result loop.ResultSubmitted
		want   error
	}{
		{"deadline has passed", ref, result("c1-2", 1, "x"), ErrExpired},
		{"child run", ref, result("c1-3", 1, "x"), ErrNotWaiting},
		{"loopd runs it", ref, result("c1-4", 1, "x"), ErrNotWaiting},
		{"not approved", ref, result("c1-5", 0, "x"), ErrNotWaiting},
		{"other attempt", ref, result("c1-1", 2, "x"), ErrNotWaiting},
		{"no such call", ref, result("c9-9", 1, "x"), loop.ErrNotFound},
		{"other tenant", loop.RunRef{Tenant: "globex", ID: ref.ID}, result("c1-1", 1, "x"), loop.ErrNotFound},
		{"ended run", ended, result("c1-1", 1, "x"), ErrRunFinished},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := s.SubmitResult(t.Context(), test.run, test.result)
			wantErr(t, err, test.want)
		})
	}
	bad := result("c1-1", 1, "x")
	bad.Outcome = loop.OutcomeUnknown
	if _, err := s.SubmitResult(t.Context(), ref, bad); err == nil || !strings.Contains(err.Error(), `outcome "unknown"`) {
		t.Errorf("error = %v, want it to name the outcome", err)
	}
	if n := scalar[int](t, s, "SELECT count(*) FROM run_signals"); n != 0 {
		t.Errorf("refused results left %d signals", n)
	}
}

// A question is in the inbox until it is answered, and shows what became of it.
func TestQuestions(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	failed := question("c1-4", time.Time{})
	ref := park(t, s, question("c1-1", soon()), question("c1-2", soon()), question("c1-3", soon()), question("c1-4", soon()))
	state := func(id string) ApprovalState { t.Helper(); return getApproval(t, s, ref, id).State }
	first := getApproval(t, s, ref, "c1-1")
	if first.Kind != KindAnswer || first.State != ApprovalPending || !first.Call.AskedAt.Equal(at(3)) {
		t.Errorf("question = %+v, want a pending one that was asked when its call began", first)
	}
	refusal := result("c1-2", 1, "I do not know.")
	refusal.Outcome = loop.OutcomePermanent
	for _, r := range []loop.ResultSubmitted{result("c1-1", 1, "ORD-4892"), refusal} {
		if _, err := s.SubmitResult(t.Context(), ref, r); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.Decide(t.Context(), ref, approve("c1-3"))
	wantErr(t, err, ErrNotWaiting) // it is not to be approved
	diff(t, "states", []ApprovalState{state("c1-1"), state("c1-2"), state("c1-3")},
		[]ApprovalState{ApprovalApproved, ApprovalDenied, ApprovalPending})
	rows, _, err := s.ListApprovals(t.Context(), tenant, ApprovalFilter{State: ApprovalPending, PageSize: 9})
	if err != nil || len(rows) != 2 {
		t.Errorf("pending: %+v, %v, want two", rows, err)
	}

	failed.State, failed.Outcome = loop.CallFailed, loop.OutcomeTimeout
	finish(t, s, ref, failed)
	diff(t, "states at the end", []ApprovalState{state("c1-1"), state("c1-3"), state("c1-4")},
		[]ApprovalState{ApprovalApproved, ApprovalCancelled, ApprovalExpired})
	if kind := getApproval(t, s, ref, "c1-4").Kind; kind != KindAnswer {
		t.Errorf("a question that was not answered is a %s", kind)
	}
}

// A result is in the journal, and its call's head says where. Only while a program lives
// that would not look there, the head has a copy. Readers see no difference.
func TestResultsAreStoredOnce(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	exec := func(query string) {
		t.Helper()
		if _, err := s.pool.Exec(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	finish := func(text string) (loop.RunRef, loop.CallHead) {
		t.Helper()
		ref := create(t, s)
		lease := claimOne(t, s, "w1")
		mustAppend(t, s, lease, batch(lease, 2, claimed(lease)))
		call := loop.CallHead{
			Call: loop.ToolCall{ID: "c1-1", Name: "look"}, Iteration: 1, State: loop.CallSucceeded, Outcome: loop.OutcomeOK,
			Attempt: 1, Result: text, AskedAt: at(2), StartedAt: at(3), FinishedAt: at(4),
		}
		b := batch(lease, 3, loop.CallFinished{CallID: "c1-1", Attempt: 1, Outcome: loop.OutcomeOK, Content: text, ResultHash: "h"})
		b.Calls = []loop.CallHead{call}
		mustAppend(t, s, lease, b)
		return ref, call
	}
	for _, test := range []struct {
		workers string
		copied  bool
	}{
		{"INSERT INTO workers (worker_id, expires_at) VALUES ('older', now() + interval '1 hour')", true},
		{"DELETE FROM workers WHERE worker_id = 'older'", false},
	} {
		exec(test.workers)
		ref, want := finish(hostile)
		var copied bool
		var seq *int64
		const head = "SELECT result::text <> '\"\"', result_seq FROM tool_calls WHERE run_id = $1"
		if err := s.pool.QueryRow(t.Context(), head, ref.ID).Scan(&copied, &seq); err != nil {
			t.Fatal(err)
		}
		if copied != test.copied || (seq == nil) != test.copied || seq != nil && *seq != 3 {
			t.Errorf("%s: copied %v, seq %v, want copied %v, or seq 3", test.workers, copied, seq, test.copied)
		}
		calls, err := s.ToolCalls(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		diff(t, "tool calls", calls, []loop.CallHead{want})
		text, _, err := s.FullResult(t.Context(), ref, "c1-1")
		if err != nil || text != hostile {
			t.Errorf("full result %q, %v, want %q", text, err, hostile)
		}
		row, err := s.GetApproval(t.Context(), ref, "c1-1")
		if readable := strings.ReplaceAll(hostile, "\x00", "\ufffd"); err != nil || row.Call.Result != hostile && row.Call.Result != readable {
			t.Errorf("result in the approval %q, %v", row.Call.Result, err)
		}

		// An older program sends the call again, and knows of no other place for its result.
		exec("UPDATE tool_calls SET result = '\"later\"' WHERE run_id = '" + ref.ID + "'")
		calls, err = s.ToolCalls(t.Context(), ref)
		if err != nil || calls[0].Result != "later" {
			t.Errorf("result %q, %v, want the later one", calls[0].Result, err)
		}
		if row, err := s.GetApproval(t.Context(), ref, "c1-1"); err != nil || row.Call.Result != "later" {
			t.Errorf("result in the approval %q, %v, want the later one", row.Call.Result, err)
		}
	}
}
