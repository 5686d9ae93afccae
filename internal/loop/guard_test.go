package loop

import (
	"fmt"
	"strings"
	"testing"
)

// TestGuardsOffInOldJournals: a run that was created before a guard existed has
// zero for its limit, and goes on as it began.
func TestGuardsOffInOldJournals(t *testing.T) {
	t.Parallel()
	old := Defaults()
	old.SameCallIters, old.Cycles, old.FrequentRepeats, old.NearDuplicates, old.NoveltyIters = 0, 0, 0, 0, 0
	old.CallFailures, old.ToolFailures, old.Monologue = 0, 0, 0
	prints := NewFingerprinter()
	acts, nudges := map[string]int{}, map[string]int{}
	for _, run := range readTrajectories(t, corpusFile) {
		v := run.replay(t, prints, old)
		for name := range v.acts {
			acts[name]++
		}
		for name := range v.nudges {
			nudges[name]++
		}
	}
	if len(acts) != 2 || acts["repeat"] == 0 || acts["errors"] == 0 {
		t.Errorf("with the limits of old journals these guards end runs: %v", acts)
	}
	if len(nudges) != 1 || nudges["repeat"] == 0 {
		t.Errorf("with the limits of old journals these guards nudge: %v", nudges)
	}
}

// TestNudgeBeforeEveryEnd: whatever the limit, the model is told before it is
// stopped, unless the limit leaves no room for it.
func TestNudgeBeforeEveryEnd(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int]int{1: 2, 2: 2, 3: 2, 4: 2, 5: 3, 6: 4, 8: 5, 9: 6, 50: 33} {
		if got := nudgeAt(limit); got != want {
			t.Errorf("nudgeAt(%d) = %d, want %d", limit, got, want)
		}
		if limit > 2 && nudgeAt(limit) >= limit {
			t.Errorf("with limit %d the nudge comes too late", limit)
		}
	}
}

func TestChants(t *testing.T) {
	t.Parallel()
	words := "and again I look at the order, which I have seen; "
	numbered := &strings.Builder{}
	for i := range 100 {
		fmt.Fprintf(numbered, "Order %d was packed and has been sent to its customer. ", i)
	}
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"the same words":            {strings.Repeat(words, 20), true},
		"after a sane beginning":    {numbered.String() + strings.Repeat(words, 20), true},
		"cut in the middle":         {strings.Repeat(words, 20) + words[:17], true},
		"one syllable":              {strings.Repeat("ha ", 400), true},
		"two bytes a letter":        {strings.Repeat("größer und größer wird es, ", 40), true},
		"nine times":                {strings.Repeat(words+strings.Repeat(" ", 20), 9), false},
		"far apart":                 {strings.Repeat(numbered.String()[:300]+words, 10), false},
		"far apart, without end":    {strings.Repeat(numbered.String()[:300]+words, 20), true},
		"a sane end":                {strings.Repeat(words, 20) + numbered.String()[:300], false},
		"sentences that look alike": {numbered.String(), false},
		"a list":                    {strings.Repeat("- "+words+"\n", 20), false},
		"a table":                   {strings.Repeat("| "+words+"|\n", 20), false},
		"code":                      {"```\n" + strings.Repeat(words+"\n", 20) + "```\n", false},
		"a rule":                    {strings.Repeat("-", 600), false},
		"nothing":                   {"", false},
	} {
		if got := chants(c.text); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestHistory: what is new is new once.
func TestHistory(t *testing.T) {
	t.Parallel()
	read := func(ask, result string) trace { return trace{ask: ask, result: result, ok: true, reads: true} }
	write := func(ask string) trace { return trace{ask: ask, result: "ok", ok: true, wrote: true} }
	for name, c := range map[string]struct {
		iterations [][]trace
		want       history
	}{
		"nothing yet":             {nil, history{-1, 0}},
		"a first result":          {[][]trace{{read("a", "1")}}, history{0, 0}},
		"the same again":          {[][]trace{{read("a", "1")}, {read("a", "1")}}, history{0, 0}},
		"another result":          {[][]trace{{read("a", "1")}, {read("a", "2")}}, history{1, 0}},
		"for another argument":    {[][]trace{{read("a", "1")}, {read("b", "1")}}, history{0, 0}},
		"a change":                {[][]trace{{read("a", "1")}, {write("x")}}, history{1, 2}},
		"another change":          {[][]trace{{write("x")}, {write("y")}}, history{1, 2}},
		"the same change":         {[][]trace{{write("x")}, {write("y")}, {write("x")}}, history{1, 2}},
		"beside something known":  {[][]trace{{read("a", "1")}, {read("a", "1"), read("b", "2")}}, history{1, 0}},
		"what is read afterwards": {[][]trace{{read("a", "1")}, {write("x")}, {read("a", "1")}}, history{1, 2}},
	} {
		s := &State{}
		for i, traces := range c.iterations {
			s.prints = append(s.prints, footprint{iteration: i + 1, traces: traces})
		}
		if got := s.history(); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestHoldsNothing(t *testing.T) {
	t.Parallel()
	for result, want := range map[string]bool{
		"": true, "\n": true, "[]": true, "{}": true, "null": true, `""`: true, `{"items":[],"total":0,"next":null,"page":{}}`: true,
		"nothing": false, "[0]": false, "true": false, `{"items":[],"total":7}`: false, `{"error":"no"}`: false, "[]\n[]": false,
	} {
		if got := holdsNothing(result); got != want {
			t.Errorf("holdsNothing(%q) = %v, want %v", result, got, want)
		}
	}
}
