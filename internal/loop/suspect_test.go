package loop_test

import (
	"strings"
	"testing"
	"time"

	"github.com/loopd/loopd/internal/loop"
)

// brokenRun folds a run of whose attempts nothing came: each of ends says how one ended.
func brokenRun(t *testing.T, ends ...loop.Body) *loop.State {
	t.Helper()
	spec := loop.Spec{Agent: "agents/test", Input: "go", Limits: loop.Defaults(), Definition: loop.AgentSpec{Model: "sim/one"}}
	s, err := loop.Fold(theRun, nil)
	if err != nil {
		t.Fatal(err)
	}
	seq := int64(0)
	apply := func(b loop.Body) {
		seq++
		if err := s.Apply(loop.Event{Seq: seq, At: epoch0.Add(time.Duration(seq) * time.Minute), Epoch: int64(s.Attempts()), Body: b}); err != nil {
			t.Fatal(err)
		}
	}
	apply(loop.Created{Spec: spec})
	apply(loop.Claimed{Attempt: 1, Worker: "w1"})
	for _, end := range ends {
		claimed, ok := end.(loop.Claimed)
		if !ok {
			apply(end)
		}
		claimed.Attempt, claimed.Worker = s.Attempts()+1, "w"+string(rune('1'+s.Attempts()))
		apply(claimed)
	}
	return s
}

// What is counted, and what the end says of it.
func TestRecoveryExhausted(t *testing.T) {
	t.Parallel()
	died, crashed := loop.Claimed{Recovered: true}, loop.Crashed("panic: bad luck")
	cutOff := func(workers ...string) loop.Body { return loop.Claimed{Recovered: true, Returned: workers} }
	drained := loop.Suspended{Reason: loop.WaitDrain}
	for name, test := range map[string]struct {
		ends []loop.Body
		want []string // how the counted attempts ended
	}{
		"five dead":            {[]loop.Body{died, died, died, died, died}, []string{"died", "died", "died", "died", "died"}},
		"four dead":            {[]loop.Body{died, died, died, died}, nil},
		"five crashes":         {[]loop.Body{crashed, crashed, crashed, crashed, crashed}, []string{"bad luck", "bad luck", "bad luck", "bad luck", "bad luck"}},
		"both":                 {[]loop.Body{died, crashed, drained, died, crashed, crashed}, []string{"died", "bad luck", "died", "bad luck", "bad luck"}},
		"drains count nothing": {[]loop.Body{drained, drained, drained, drained, drained, drained}, nil},
		"five times cut off":   {[]loop.Body{cutOff("w1"), cutOff("w2"), cutOff("w3"), cutOff("w4"), cutOff("w5")}, nil},
		"all back at last":     {[]loop.Body{died, died, died, died, cutOff("w1", "w2", "w3", "w4", "w5")}, nil},
		"too late":             {[]loop.Body{died, died, died, died, died, cutOff("w1", "w2", "w3", "w4", "w5")}, []string{"died", "died", "died", "died", "died"}},
		"never more than five": {[]loop.Body{died, crashed, died, died, died, died, crashed, died}, []string{"died", "bad luck", "died", "died", "died"}},
		// A worker that lives is no excuse for what broke down in it.
		"crashes of a living worker": {[]loop.Body{crashed, crashed, crashed, crashed, crashed, cutOff("w1", "w6")}, []string{"bad luck", "bad luck", "bad luck", "bad luck", "bad luck"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := brokenRun(t, test.ends...)
			var stop loop.Stop
			if end, ended := s.Next(epoch0.Add(time.Hour)).(loop.End); ended {
				stop = end.Intent()[len(end.Intent())-1].(loop.Finished).Stop
			}
			if test.want == nil && stop.Reason == loop.RecoveryExhausted {
				t.Fatalf("ended: %+v", stop)
			}
			if test.want == nil {
				return
			}
			if stop.Reason != loop.RecoveryExhausted || stop.Observed != "5" || stop.Limit != "5" || len(stop.Evidence) != len(test.want) {
				t.Fatalf("stop %+v", stop)
			}
			for i, e := range stop.Evidence {
				if !strings.Contains(e.Note, test.want[i]) || !strings.Contains(e.Note, "attempt ") || !strings.Contains(e.Note, "2026-03-01T12:") {
					t.Errorf("evidence %d is %q, want %q in it", i, e.Note, test.want[i])
				}
			}
		})
	}
}

// The journal's clock counts, if the claim said what it is.
func TestSilentGoesByTheJournalsClock(t *testing.T) {
	t.Parallel()
	leased := epoch0.Add(-time.Hour)
	s := brokenRun(t, loop.Claimed{Recovered: true, Leased: leased})
	got := s.Silent()
	want := []loop.Suspect{
		{Attempt: 1, Worker: "w1", Since: epoch0.Add(2 * time.Minute)},
		{Attempt: 2, Worker: "w2", Since: leased},
	}
	if d := diff(want, got); d != "" {
		t.Error(d)
	}
}
