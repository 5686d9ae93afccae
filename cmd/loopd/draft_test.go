package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	loopdv1 "github.com/loopd/loopd/api/loopd/v1"
	"github.com/loopd/loopd/internal/loop"
)

// writes is a delta of model call 1. Fragments are "kind:text", a tool's name before
// them as "tool_call/name:text"; "…" first says that something is missing before them.
func writes(fragments ...string) *loopdv1.StreamEventsResponse {
	d := &loopdv1.Delta{ModelCall: 1}
	if len(fragments) > 0 && fragments[0] == "…" {
		d.Gap, fragments = true, fragments[1:]
	}
	for _, f := range fragments {
		kind, text, _ := strings.Cut(f, ":")
		kind, tool, _ := strings.Cut(kind, "/")
		d.Fragments = append(d.Fragments, &loopdv1.Fragment{Kind: kind, Tool: tool, Text: text})
	}
	return &loopdv1.StreamEventsResponse{Kind: &loopdv1.StreamEventsResponse_Delta{Delta: d}}
}

// thinks is an answer with a part of each kind.
func thinks() loop.ModelAnswered {
	a := asks("c1-1")
	a.Message.Parts = append([]loop.Part{
		{Kind: loop.PartReasoning, Text: "I need the order."}, loop.TextPart("Let me look."),
	}, a.Message.Parts...)
	return a
}

// written is a run whose first answer is seen while it is written.
func written(t *testing.T, end loop.Body, deltas ...*loopdv1.StreamEventsResponse) []*loopdv1.StreamEventsResponse {
	t.Helper()
	events := journal(t, loop.Created{}, loop.ModelStarted{Call: 1}, end, loop.Finished{State: loop.StateStopped})
	return append(append(events[:2:2], deltas...), events[2:]...)
}

// whole is all of thinks, in pieces.
func whole() []*loopdv1.StreamEventsResponse {
	return []*loopdv1.StreamEventsResponse{
		writes("reasoning:I need"), writes("reasoning: the order.", "text:Let "), writes("text:me look."),
		writes(`tool_call/get_order_status:{"order":`), writes(`tool_call:"ORD-4892"}`),
	}
}

// progressOf is what watch writes before it shows the run.
func progressOf(output string) string {
	progress, _, _ := strings.Cut(output, "\nRun ")
	return progress
}

const iterationLine = "  1/12  0.006 of 1 USD      2s  get_order_status\n"

const thought = "        I need the order.\n        Let me look.\n        → get_order_status {\"order\":\"ORD-4892\"}\n"

func TestWatchShowsWhatIsWritten(t *testing.T) {
	t.Parallel()
	lost := loop.ModelFailed{Call: 1, Class: loop.ErrorServer, Message: "overloaded"}
	const failed = "        model call failed (server): overloaded\n"
	tests := map[string]struct {
		stream   []*loopdv1.StreamEventsResponse
		terminal bool
		want     string
	}{
		"all of it":                 {written(t, thinks(), whole()...), false, thought + iterationLine},
		"all of it, on a terminal":  {written(t, thinks(), whole()...), true, thought + iterationLine},
		"all but its end":           {written(t, thinks(), whole()[:4]...), false, thought + iterationLine},
		"only its beginning":        {written(t, thinks(), whole()[0]), false, thought + iterationLine},
		"another beginning":         {written(t, thinks(), writes("reasoning:I kneed")), false, "        I kneed\n" + thought + iterationLine},
		"more than it is":           {written(t, thinks(), append(whole(), writes("text:!"))...), true, thought + iterationLine},
		"nothing of it":             {written(t, thinks()), true, iterationLine},
		"with a gap":                {written(t, thinks(), writes("text:Let "), writes("…", "text:look.")), false, "        Let …look.\n" + thought + iterationLine},
		"with a gap, on a terminal": {written(t, thinks(), writes("text:Let "), writes("…", "text:look.")), true, thought + iterationLine},
		"only the end":              {written(t, thinks(), writes("…", "text:look.")), true, thought + iterationLine},
		"nothing comes of it":       {written(t, lost, writes("text:Let me\nlook")), false, "        Let me\n        look\n" + failed},
		"nothing comes of it, on a terminal": {
			written(t, lost, writes("text:Let me\nlook"), writes("…", "text:.")), true, failed,
		},
		"a cancel comes between": {
			append(written(t, thinks(), writes("text:Let "))[:3:3], journal(t, loop.CancelRequested{}, loop.CancelRequested{}, loop.CancelRequested{},
				loop.CancelRequested{Reason: "asked"}, loop.Finished{State: loop.StateCancelled})[2:]...), true,
			"        Let\n        cancel requested\n        cancel requested asked\n",
		},
		"a terminal is not steered": {written(t, lost, writes("text:a\x1b[2Jb")), false, "        a\uFFFD[2Jb\n" + failed},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.client.terminal = func(io.Writer) bool { return test.terminal }
			term.server.run = stoppedRun()
			term.server.streams = []func(sender) error{sends(test.stream, nil)}
			term.wantCode(t, exitStopped, term.loopd("run", "watch", runID, "--deltas"))
			got := progressOf(term.stdout.String())
			if test.terminal {
				got = screen(t, got)
			} else if strings.Contains(got, "\x1b") {
				t.Errorf("escapes, but no terminal: %q", got)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("progress (-want +got):\n%s", diff)
			}
		})
	}
}

// screen is what a terminal shows of an output, without spaces at ends of rows. It
// knows the controls that a draft uses.
func screen(t *testing.T, output string) string {
	t.Helper()
	rows, row, column := [][]rune{{}}, 0, 0
	for output != "" {
		r, size := utf8.DecodeRuneInString(output)
		output = output[size:]
		switch r {
		case '\r':
			column = 0
		case '\n':
			row, column = row+1, 0
			if row == len(rows) {
				rows = append(rows, nil)
			}
		case '\x1b':
			var n int
			var control string
			end := strings.IndexFunc(output, func(r rune) bool { return r >= 'A' && r <= 'z' && r != '[' })
			control, output = output[1:end+1], output[end+1:]
			for _, digit := range control[:len(control)-1] {
				n = 10*n + int(digit-'0')
			}
			switch control[len(control)-1] {
			case 'A':
				row -= n
			case 'J':
				rows = rows[:row+1]
				rows[row] = rows[row][:column]
			case 'm':
			default:
				t.Errorf("the control %q", control)
			}
		default:
			rows[row] = append(rows[row][:column], r)
			column++
		}
	}
	var b strings.Builder
	for _, row := range rows {
		b.WriteString(strings.TrimRight(string(row), " ") + "\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Rows fit a small terminal, break between words, and are all taken back.
func TestDraftFitsATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	d := draft{w: &out, terminal: true}
	long := strings.Repeat("word ", 40) + strings.Repeat("宽", 100) + " " + strings.Repeat("x", 200) + "\n\tend"
	for _, piece := range strings.SplitAfter(long, " ") {
		d.add(writes("text:" + piece).GetDelta())
	}
	shown := screen(t, out.String())
	for row := range strings.Lines(shown) {
		size := 0
		for _, r := range strings.TrimRight(row, "\n") {
			size += columns(r)
		}
		if size > 79 {
			t.Errorf("a row has %d columns: %s", size, row)
		}
	}
	if words := strings.Count(shown, "word"); words != 40 || strings.Count(shown, "宽") != 100 || !strings.Contains(shown, "\n            end") {
		t.Errorf("%d words:\n%s", words, shown)
	}
	d.drop()
	if left := screen(t, out.String()); left != "" {
		t.Errorf("after it was taken back: %q", left)
	}
}

// A draft that does not fit the screen is left where it is: its first rows are out of
// reach.
func TestLongDraftStays(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	d := draft{w: &out, terminal: true}
	d.add(writes("text:" + strings.Repeat("row\n", draftRows)).GetDelta())
	d.drop()
	if rows := strings.Count(screen(t, out.String()), "row"); rows != draftRows {
		t.Errorf("%d rows are left, want %d", rows, draftRows)
	}
}

func TestReasoningIsDim(t *testing.T) {
	t.Parallel()
	const dimmed = "\x1b[2m        I need\x1b[22m"
	for name, env := range map[string]struct {
		name, value string
		want        bool
	}{"on a terminal": {"TERM", "xterm", true}, "without colours": {"NO_COLOR", "1", false}, "on a dumb one": {"TERM", "dumb", false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			term := setup(t)
			term.client.terminal = func(io.Writer) bool { return true }
			outer := term.client.env.Getenv
			term.client.env.Getenv = func(name string) string {
				if name == env.name {
					return env.value
				}
				return outer(name)
			}
			term.server.run = stoppedRun()
			term.server.streams = []func(sender) error{sends(written(t, thinks(), whole()...), nil)}
			term.wantCode(t, exitStopped, term.loopd("run", "watch", runID))
			if got := strings.Contains(term.stdout.String(), dimmed); got != env.want {
				t.Errorf("dim is %t, want %t: %q", got, env.want, term.stdout.String())
			}
		})
	}
}

// Deltas are asked for where somebody looks, and where they were wished for.
func TestWhoGetsDeltas(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]struct{ terminal, pipe bool }{
		"run watch " + runID:                            {true, false},
		"run watch " + runID + " --deltas":              {true, true},
		"run watch " + runID + " --deltas=false":        {false, false},
		"run watch " + runID + " -o json":               {false, false},
		"run watch " + runID + " -o json --deltas":      {true, true},
		"run start --agent a --input x --wait":          {true, false},
		"run start --agent a --input x --wait --deltas": {true, true},
		"run start --agent a --input x --watch":         {true, false},
		"run start --agent a --input x --watch -o json": {false, false},
		"run start --agent a --input x --wait -o json":  {true, false}, // progress is on standard error
	} {
		for terminal, want := range map[bool]bool{true: want.terminal, false: want.pipe} {
			term := setup(t)
			term.client.terminal = func(io.Writer) bool { return terminal }
			term.server.run = stoppedRun()
			term.server.streams = []func(sender) error{sends(incident(t), nil)}
			term.wantCode(t, exitStopped, term.loopd(strings.Fields(line)...))
			if term.server.deltas != want {
				t.Errorf("%s: terminal %t: asked for deltas: %t, want %t", line, terminal, term.server.deltas, want)
			}
		}
	}
}

func TestDeltasAsJSON(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = stoppedRun()
	term.server.streams = []func(sender) error{sends(written(t, thinks(), writes("…", "text:look."), writes("tool_call/act:{")), nil)}
	term.wantCode(t, exitStopped, term.loopd("run", "watch", runID, "-o", "json", "--deltas"))
	var got []string
	for line := range strings.Lines(term.stdout.String()) {
		if strings.HasPrefix(line, `{"delta":`) {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{
		`{"delta":{"modelCall":1,"fragments":[{"kind":"text","text":"look.","tool":""}],"gap":true}}`,
		`{"delta":{"modelCall":1,"fragments":[{"kind":"tool_call","text":"{","tool":"act"}],"gap":false}}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("deltas (-want +got):\n%s", diff)
	}
	if events := strings.Count(term.stdout.String(), `{"seq":`); events != 4 {
		t.Errorf("%d events, want 4", events)
	}
}

func TestStartWatches(t *testing.T) {
	t.Parallel()
	term := setup(t)
	term.server.run = stoppedRun()
	term.server.streams = []func(sender) error{sends(incident(t), nil)}
	term.wantCode(t, exitStopped, term.loopd("run", "start", "--agent", "support", "--input", "x", "--watch"))
	golden(t, "watch.txt", term.stdout.String())
	if term.stderr.String() != fullRun+"\n" {
		t.Errorf("stderr %q", term.stderr.String())
	}
}

func TestIsTerminal(t *testing.T) {
	t.Parallel()
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	device, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	if isTerminal(file) || isTerminal(&bytes.Buffer{}) || !isTerminal(device) {
		t.Errorf("a file: %t, a buffer: %t, a device: %t", isTerminal(file), isTerminal(&bytes.Buffer{}), isTerminal(device))
	}
}
