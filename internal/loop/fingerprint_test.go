package loop

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestCallPrint(t *testing.T) {
	t.Parallel()
	spec := ToolSpec{VolatileArgs: []string{"request_id"}}
	call := func(name, args string) string { return callPrint(spec, ToolCall{Name: name, Args: args}) }
	base := call("search", `{"q":"a","n":9007199254740993}`)
	for name, same := range map[string]string{
		"key order":    `{"n":9007199254740993,"q":"a"}`,
		"white space":  " {\n\"q\" : \"a\", \"n\":9007199254740993 } ",
		"escapes":      `{"q":"\u0061","n":9007199254740993}`,
		"volatile arg": `{"q":"a","n":9007199254740993,"request_id":"x1"}`,
	} {
		if call("search", same) != base {
			t.Errorf("%s makes a call look different", name)
		}
	}
	for name, other := range map[string]string{
		"a number beyond 2^53":  `{"q":"a","n":9007199254740992}`,
		"a number's text":       `{"q":"a","n":9007199254740993.0}`,
		"a string for a number": `{"q":"a","n":"9007199254740993"}`,
		"another value":         `{"q":"b","n":9007199254740993}`,
		"a value more":          `{"q":"a","n":9007199254740993,"p":null}`,
		"a nested volatile":     `{"q":"a","n":9007199254740993,"p":{"request_id":1}}`,
		"text after the value":  `{"q":"a","n":9007199254740993} {}`,
		"broken JSON":           `{"q":"a","n":9007199254740993`,
		"nothing":               ``,
	} {
		if call("search", other) == base {
			t.Errorf("%s does not make a call look different", name)
		}
	}
	if call("find", `{"q":"a","n":9007199254740993}`) == base {
		t.Error("another tool looks the same")
	}
	if call("search", `{"q":"a"} x`) == call("search", `{"q":"a"} y`) {
		t.Error("what follows the first JSON value is ignored")
	}
}

func TestResultPrint(t *testing.T) {
	t.Parallel()
	f := NewFingerprinter()
	spec := ToolSpec{VolatileResult: []string{"/meta/at", "/items/0/took", "/a~1b"}}
	for name, c := range map[string]struct {
		a, b string
		o    Outcome
		same bool
	}{
		"times":               {"at 2026-03-01T12:00:00Z", "at 2026-03-02T13:10:59.5+01:00", OutcomeOK, true},
		"uuids":               {"id 6fa459ea-ee8a-3ca4-894e-db77e160355e", "id 16fd2706-8baf-433b-82eb-8c7fada847da", OutcomeOK, true},
		"addresses":           {"at 0xc000123456", "at 0xc000999999", OutcomeOK, true},
		"colours":             {"\x1b[31mred\x1b[0m", "\x1b[32mred\x1b[0m", OutcomeOK, true},
		"white space around":  {" x\n", "x", OutcomeOK, true},
		"progress":            {"34 %", "35 %", OutcomeOK, false},
		"numbers in errors":   {"retry in 7 s", "retry in 16 s", OutcomeRetryable, true},
		"words in errors":     {"not found", "forbidden", OutcomePermanent, false},
		"volatile member":     {`{"n":1,"meta":{"at":5}}`, `{"meta":{"at":6},"n":1}`, OutcomeOK, true},
		"volatile in a list":  {`{"items":[{"took":1,"v":2}]}`, `{"items":[{"took":9,"v":2}]}`, OutcomeOK, true},
		"volatile, escaped":   {`{"a/b":1}`, `{"a/b":2}`, OutcomeOK, true},
		"beside the volatile": {`{"items":[{"took":1,"v":2}]}`, `{"items":[{"took":1,"v":3}]}`, OutcomeOK, false},
		"text after JSON":     {`{"n":1} a`, `{"n":1} b`, OutcomeOK, false},
		"big numbers":         {`{"n":9007199254740993}`, `{"n":9007199254740992}`, OutcomeOK, false},
	} {
		if got := f.Result(spec, c.o, c.a) == f.Result(spec, c.o, c.b); got != c.same {
			t.Errorf("%s: %q and %q count as the same: %v, want %v", name, c.a, c.b, got, c.same)
		}
	}
	if f.Result(spec, OutcomeOK, "x") == f.Result(spec, OutcomePermanent, "x") {
		t.Error("a failure looks like a success")
	}
}

func TestDropPointers(t *testing.T) {
	t.Parallel()
	for pointer, want := range map[string]string{
		"/list/0":     `{"list":[null,2],"m":{"x":1}}`,
		"/list/7":     `{"list":[1,2],"m":{"x":1}}`,
		"/list/-1":    `{"list":[1,2],"m":{"x":1}}`,
		"/list/first": `{"list":[1,2],"m":{"x":1}}`,
		"/m/x/deeper": `{"list":[1,2],"m":{"x":1}}`,
		"/m/none":     `{"list":[1,2],"m":{"x":1}}`,
		"/m/x":        `{"list":[1,2],"m":{}}`,
		"/m":          `{"list":[1,2]}`,
	} {
		if got := dropPointers(`{"m":{"x":1},"list":[1,2]}`, []string{pointer}); got != want {
			t.Errorf("%s: %s, want %s", pointer, got, want)
		}
	}
}

// TestDigest: the boundaries between strings are part of what is hashed.
func TestDigest(t *testing.T) {
	t.Parallel()
	if digest("ab", "c") == digest("a", "bc") || digest("a") == digest("a", "") {
		t.Error("different strings have one digest")
	}
	if iterationPrint([]string{"a", "b"}) != iterationPrint([]string{"b", "a"}) {
		t.Error("the order of calls makes an iteration look different")
	}
	if iterationPrint([]string{"a", "a"}) == iterationPrint([]string{"a"}) {
		t.Error("the number of equal calls does not count")
	}
}

func TestArgsHash(t *testing.T) {
	t.Parallel()
	run, call := RunRef{"acme", "r-1"}, ToolCall{ID: "c1-1", Name: "refund", Args: `{"a":1,"b":2}`}
	base := ArgsHash(run, call)
	for name, h := range map[string]string{
		"tenant": ArgsHash(RunRef{"other", "r-1"}, call),
		"run":    ArgsHash(RunRef{"acme", "r-2"}, call),
		"call":   ArgsHash(run, ToolCall{ID: "c1-2", Name: call.Name, Args: call.Args}),
		"tool":   ArgsHash(run, ToolCall{ID: call.ID, Name: "refunds", Args: call.Args}),
		"text":   ArgsHash(run, ToolCall{ID: call.ID, Name: call.Name, Args: `{"b":2,"a":1}`}),
	} {
		if h == base {
			t.Errorf("an approval does not depend on the %s", name)
		}
	}
}

func TestCutResult(t *testing.T) {
	t.Parallel()
	if got, cut := CutResult("short", 256); got != "short" || cut {
		t.Errorf("%q, cut %v", got, cut)
	}
	long := strings.Repeat("é", 500)
	got, cut := CutResult(long, 257)
	if !cut || !strings.HasPrefix(got, "éé") || !strings.Contains(got, "cut by loopd: 1000 bytes in all") {
		t.Errorf("%q, cut %v", got, cut)
	}
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.StringN(0, 600, -1).Draw(t, "content")
		limit := rapid.Int64Range(256, 700).Draw(t, "limit")
		got, cut := CutResult(content, limit)
		switch {
		case int64(len(got)) > limit || !utf8.ValidString(got):
			t.Fatalf("%d bytes of %d, valid UTF-8: %v", len(got), limit, utf8.ValidString(got))
		case cut != (int64(len(content)) > limit) || !cut && got != content:
			t.Fatalf("cut %v, but the content has %d bytes of %d", cut, len(content), limit)
		}
	})
}

func TestExcerpt(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"abc": "abc", "abcd": "abcd", "abcde": "abcd…", "abcé": "abc…"} {
		if got := excerpt(text, 4); got != want {
			t.Errorf("excerpt(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"get_order", "get_order", 0}, {"getOrder", "get_order", 2},
		{"kitten", "sitting", 3}, {strings.Repeat("x", 1000), strings.Repeat("x", 64), 0},
	} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance(%.20q, %.20q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
	if got := unknownTool("x", nil); !strings.Contains(got, "no tools") {
		t.Errorf("an agent without tools: %q", got)
	}
}

// TestGuardCrash: a guard that panics ends the run, it does not let it go on.
func TestGuardCrash(t *testing.T) {
	t.Parallel()
	s := &State{spec: Spec{Limits: Defaults(), Definition: AgentSpec{Tools: []ToolSpec{{Name: "search", Schema: json.RawMessage("{}")}}}}}
	s.prints, s.chain = []footprint{{}}, newChain(s.spec)
	s.talk.anchor, s.talk.anchorAt = 1, 99 // nothing that a fold makes
	end, ok := s.Next(s.createdAt).(End)
	if !ok {
		t.Fatalf("wants %#v", s.Next(s.createdAt))
	}
	f := end.Intent()[len(end.Intent())-1].(Finished)
	if f.State != StateFailed || f.Stop.Reason != GuardInternal || !strings.Contains(f.Stop.Message, "slice bounds out of range") {
		t.Errorf("finished %+v", f)
	}
}

// The cheap look at a result must find whatever the patterns would.
func TestMayHaveNoise(t *testing.T) {
	t.Parallel()
	f := NewFingerprinter()
	random := rand.New(rand.NewPCG(1, 2))
	pieces := []string{
		"\x1b[31m", "0x12ab34cd", "0x", "2026-07-01T10:00:00Z", "2026-07-01 10:00", "2026", "-", "07", "--", "word", " ", "5f0c", "ABCDEF",
		"0190a000-0000-7000-8000-00000000000f", "12345678-1234", "é", "well-known", "[31m", ":", "dead-beef",
	}
	matched, skipped := 0, 0
	for range 50_000 {
		var b strings.Builder
		for range random.IntN(8) {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		noisy, may := f.noise.MatchString(b.String()), mayHaveNoise(b.String())
		if noisy && !may {
			t.Fatalf("%q has noise that is not seen", b.String())
		}
		if noisy {
			matched++
		}
		if !may {
			skipped++
		}
	}
	if matched < 1000 || skipped < 1000 {
		t.Errorf("the test tries %d texts with noise and %d that are skipped", matched, skipped)
	}
}
