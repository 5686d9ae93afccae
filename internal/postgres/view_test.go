package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/loopd/loopd/internal/loop"
)

// told reads rows of one text column.
func told(t *testing.T, s *Store, query string) []string {
	t.Helper()
	rows, err := s.pool.Query(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestViews(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	create(t, s)
	lease := claimOne(t, s, "w1")
	stop := loop.Stop{Reason: loop.RepeatCall, Guard: "no_progress", Message: "3 identical iterations", Observed: "3", Limit: "3"}
	withNative := answer(1, "{\"id\":\"nul \x00\"}")
	withNative.Message.Native = &loop.Native{Wire: "openai", JSON: []byte(`{"lone":"\ud800","low":"\udc00","pair":"\ud83e\udde8","text":"\\u0000 \\ud800"}`)}
	b := batch(lease, 2, claimed(lease), loop.ModelStarted{Call: 1}, withNative,
		loop.CallBegun{CallID: "c1-1", Attempt: 1},
		loop.CallFinished{CallID: "c1-1", Outcome: loop.OutcomeRetryable, Content: "429 \x00"},
		loop.Tripped{Guard: "no_progress", Verdict: loop.VerdictNudge, Reason: loop.RepeatCall, Say: "Try something else.",
			Message: "same call", Observed: "2", Limit: "3", Iteration: 1, Evidence: []loop.Evidence{{CallID: "c1-1", Tool: "get_order"}}},
		loop.ModelFailed{Call: 2, Class: loop.ErrorThrottle, Message: "slow down"},
		answer(3, `{"id":2}`),
		loop.CallRefused{CallID: "c3-1", Outcome: loop.OutcomeUnknownTool, Content: "no such tool"},
		loop.ApprovalDecided{CallID: "c3-2", Approved: true, Reason: "fine"},
		loop.CallDoubted{CallID: "c3-2", Reason: "timeout"},
		loop.CallResolved{CallID: "c3-2", Resolution: loop.ResolvedSucceeded, Result: "refunded"},
		loop.AnswerRejected{Say: "The answer must be JSON."},
		loop.CancelRequested{Reason: "enough"},
		loop.Finished{State: loop.StateStopped, Stop: stop})
	b.Head = loop.Head{State: loop.StateStopped, Iterations: 2, Stop: &stop, EndedAt: at(9),
		Usage: loop.Usage{InputUncached: 100, CacheRead: 20, Output: 7, Reasoning: 3}, Cost: loop.Cost{Input: loop.USD(21_300_000_000)}}
	mustAppend(t, s, lease, b)

	diff(t, "transcript", told(t, s, "SELECT iteration || ' ' || speaker || ': ' || text FROM transcript"), []string{
		"0 user: Where is order ORD-4892?",
		"1 assistant: I look it up.",
		"1 calls: c1-1: get_order({\"id\":\"nul \ufffd\"})",
		"1 tool: c1-1 retryable: 429 \ufffd",
		"1 guard: no_progress: Try something else.",
		"1 provider: throttle: slow down",
		"2 assistant: I look it up.",
		"2 calls: c3-1: get_order({\"id\":2})",
		"2 tool: c3-1 unknown_tool: no such tool",
		"2 person: c3-2 approved: fine",
		"2 tool: c3-2 in doubt: timeout",
		"2 person: c3-2 resolved as succeeded: refunded",
		"2 guard: output: The answer must be JSON.",
		"2 person: cancel: enough",
		"2 loopd: STOPPED REPEAT_CALL: 3 identical iterations",
	})
	diff(t, "run_summary", told(t, s, `SELECT concat_ws(' ', agent, state, stop_reason, iterations, cost_usd, input_tokens, output_tokens) FROM run_summary`),
		[]string{"agents/support STOPPED REPEAT_CALL 2 0.021300000000 120 10"})
	diff(t, "trips", told(t, s, `SELECT concat_ws(' ', agent, guard, verdict, reason, observed, "limit", message, iteration, evidence->0->>'call_id') FROM trips`),
		[]string{"agents/support no_progress nudge REPEAT_CALL 2 3 same call 1 c1-1"})
	diff(t, "readable", told(t, s, `SELECT readable(body) -> 'message' -> 'native' -> 'json' ->> 'pair' FROM events WHERE seq = 4`),
		[]string{"\U0001f9e8"})
	diff(t, "readable", told(t, s, `SELECT readable(body) -> 'message' -> 'native' -> 'json' ->> 'text' FROM events WHERE seq = 4`),
		[]string{`\u0000 \ud800`})
}

// What comes from outside is part of the transcript.
func TestTranscriptOfOthers(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	create(t, s)
	lease := claimOne(t, s, "w1")
	child := newRef().ID
	mustAppend(t, s, lease, batch(lease, 2,
		loop.CallHandedOut{CallID: "c1-1", Attempt: 1},
		loop.ResultSubmitted{CallID: "c1-1", Attempt: 1, Outcome: loop.OutcomeOK, Content: "blue \x00", By: "ann"},
		loop.CallHandedOut{CallID: "c1-2", Attempt: 1, ChildID: child},
		loop.ChildFinished{CallID: "c1-2", ChildID: child, State: loop.StateSucceeded, Answer: "42"},
		loop.ChildFinished{CallID: "c1-3", ChildID: child, State: loop.StateStopped, Stop: loop.Stop{Message: "too dear"}},
		loop.CallVerified{CallID: "c1-4", Found: true, Result: "refunded"},
		loop.CallVerified{CallID: "c1-5", Settled: true},
		loop.CallVerified{CallID: "c1-6", Message: "503"},
		loop.DoubtTold{CallID: "c1-6", Content: "The outcome is unknown."}))
	diff(t, "transcript", told(t, s, "SELECT speaker || ': ' || text FROM transcript WHERE seq > 1"), []string{
		"tool: c1-1 ok: blue \ufffd (by ann)",
		"loopd: c1-2 started run " + child,
		"child: c1-2 SUCCEEDED: 42",
		"child: c1-3 STOPPED: too dear",
		"loopd: c1-4 took effect: refunded",
		"loopd: c1-5 did not take effect",
		"loopd: c1-6 may have taken effect: 503",
		"tool: c1-6 unknown: The outcome is unknown.",
	})
}

// What is said beside the conversation is no iteration of it, and what was done to the
// run as a whole can be read as well.
func TestTranscriptOfTheWhole(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	create(t, s)
	lease := claimOne(t, s, "w1")
	verdict := answer(3, "")
	verdict.Message.Parts = []loop.Part{loop.TextPart("It holds.")}
	summary := verdict
	summary.Call, summary.Message.Parts = 2, []loop.Part{loop.TextPart("All is well.")}
	mustAppend(t, s, lease, batch(lease, 2, claimed(lease),
		loop.ModelStarted{Call: 1}, answer(1, "{}"),
		loop.Compacted{Method: loop.CompactClear, Cleared: []string{"c1-1", "c1-2"}},
		loop.ModelStarted{Call: 2, Purpose: loop.PurposeSummary}, summary,
		loop.Compacted{Method: loop.CompactSummarize, FromSeq: 4, ToSeq: 5, Summary: "All is well."},
		loop.Compacted{Method: loop.CompactSummarize, Failure: "the summary is empty"},
		loop.ModelStarted{Call: 3, Purpose: loop.PurposeJudge}, verdict, loop.AnswerChecked{},
		loop.ModelStarted{Call: 4, Purpose: loop.PurposeWrapUp}, answer(4, "{}"),
		loop.CheckpointJudged{Checkpoint: "paid", Iteration: 1}, loop.CheckpointJudged{Checkpoint: "paid", Problems: []string{"too much", "too late"}},
		loop.AccountRefused{Budget: "budgets/acme", Needed: loop.OneUSD, Limit: 2 * loop.OneUSD, Committed: loop.OneUSD},
		loop.PauseRequested{Reason: "lunch"}, loop.Resumed{Input: "Go on."}))
	diff(t, "transcript", told(t, s, "SELECT iteration || ' ' || speaker || ': ' || text FROM transcript WHERE seq > 1 AND speaker <> 'calls'"), []string{
		"1 assistant: I look it up.",
		"1 guard: compaction: left out the results of c1-1, c1-2",
		"1 summary: All is well.",
		"1 guard: compaction: All is well.",
		"1 guard: compaction: the summary is empty",
		"1 judge: It holds.",
		"2 assistant: I look it up.",
		"2 guard: paid: holds",
		"2 guard: paid: too much; too late",
		"2 guard: budgets/acme has no room: 1 USD needed, 1 of 2 USD spent or held",
		"2 person: pause: lunch",
		"2 person: resume",
		"2 user: Go on.",
	})
}
