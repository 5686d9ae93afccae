package postgres

import (
	"strings"
	"testing"

	"github.com/loopd/loopd/internal/loop"
)

// head is a call's head with the result that the model was shown.
func headOf(id, result string, attempt int) loop.CallHead {
	return loop.CallHead{
		Call: loop.ToolCall{ID: id, Name: "search", Args: "{}"}, Iteration: 1, Effect: loop.ReadOnly, State: loop.CallSucceeded,
		Outcome: loop.OutcomeOK, Attempt: attempt, Key: "k", Result: result, Cut: true, StartedAt: at(1), FinishedAt: at(2),
	}
}

// TestFullResults: what a tool answered is there with the event of its result, to the
// byte, and what was short is in the head.
func TestFullResults(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	ref := create(t, s)
	lease := claimOne(t, s, "w1")
	whole := strings.Repeat("line \x00 é \"quoted\"\n", 70_000)
	b := batch(lease, 2, claimed(lease), loop.CallFinished{CallID: "c1-1", Attempt: 2, Outcome: loop.OutcomeOK, Content: "line", Cut: true})
	b.Calls = []loop.CallHead{headOf("c1-1", "line [cut]", 2), headOf("c1-2", "short", 1)}
	b.Results = []loop.FullResult{{CallID: "c1-1", Attempt: 2, Text: whole}, {CallID: "c1-1", Attempt: 1, Text: "of an earlier attempt"}}
	mustAppend(t, s, lease, b)

	for call, want := range map[string]string{"c1-1": whole, "c1-2": "short"} {
		text, head, err := s.FullResult(t.Context(), ref, call)
		if err != nil || text != want || head.Call.ID != call {
			t.Errorf("%s: %d bytes of call %q, %v; want %d bytes", call, len(text), head.Call.ID, err, len(want))
		}
	}
	_, _, err := s.FullResult(t.Context(), ref, "c9-9")
	wantErr(t, err, loop.ErrNotFound)
	_, _, err = s.FullResult(t.Context(), loop.RunRef{Tenant: "other", ID: ref.ID}, "c1-1")
	wantErr(t, err, loop.ErrNotFound)
	for _, statement := range []string{"UPDATE results SET text = '1'", "DELETE FROM results", "TRUNCATE results"} {
		if _, err := s.pool.Exec(t.Context(), statement); sqlState(err) != "23001" {
			t.Errorf("%s: %v, want a refusal", statement, err)
		}
	}
}

// A batch that is refused keeps nothing of its results, and neither does one that is
// fenced.
func TestFullResultsAreFenced(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	create(t, s)
	lease := claimOne(t, s, "w1")
	late := lease
	late.Epoch--
	b := batch(late, 2, claimed(lease))
	b.Results = []loop.FullResult{{CallID: "c1-1", Attempt: 1, Text: "late"}}
	wantErr(t, s.Append(t.Context(), late, b), loop.ErrLeaseLost)
	if n := scalar[int64](t, s, "SELECT count(*) FROM results"); n != 0 {
		t.Errorf("%d results were kept", n)
	}
}
