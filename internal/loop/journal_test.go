package loop_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/loopd/loopd/internal/loop"
)

// golden is a journal as some version of loopd wrote it, and what it folds to.
type golden struct {
	Run    loop.RunRef     `json:"run"`
	Events []goldenEvent   `json:"events"`
	Head   json.RawMessage `json:"head"`
	Calls  json.RawMessage `json:"calls"`
	Talk   json.RawMessage `json:"transcript"`
}

type goldenEvent struct {
	Seq   int64           `json:"seq"`
	At    time.Time       `json:"at"`
	Epoch int64           `json:"epoch"`
	Kind  string          `json:"kind"`
	Body  json.RawMessage `json:"body"`
}

// recorded are the journals of this version: the scenario that each comes from,
// and how many of its events are kept (0 = all).
var recorded = map[string]struct {
	scenario string
	events   int
}{
	"succeeded":          {"rich_succeeded", 0},
	"stopped":            {"rich_stopped", 0},
	"failed":             {"rich_failed", 0},
	"cancelled":          {"rich_cancelled", 0},
	"observed":           {"repeat_observed", 0},
	"model_in_flight":    {"rich_stopped", 5},
	"waits_for_approval": {"rich_succeeded", 28},
	"call_in_doubt":      {"doubt", 7},
	"paused":             {"pause_with_input", 0},
	"raised":             {"raise", 0},
	"answer_judged":      {"output_judge_rejects", 0},
	"answer_unverified":  {"output_judge_without_a_verdict", 0},
	"checkpoint_failed":  {"checkpoint_twice", 0},
	"compacted":          {"compact_refund", 0},
}

// TestGoldenJournals makes sure that what was once written can be read for ever:
// files here are added, and never changed. -update writes those that are missing.
func TestGoldenJournals(t *testing.T) {
	t.Parallel()
	if *update {
		writeGoldens(t)
	}
	files, err := filepath.Glob("testdata/journals/*/*.json")
	if err != nil || len(files) < len(recorded) {
		t.Fatalf("%d golden journals: %v", len(files), err)
	}
	kinds := map[string]bool{}
	for _, file := range files {
		g := readGolden(t, file)
		for _, e := range g.Events {
			kinds[e.Kind] = true
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			s, err := loop.Fold(g.Run, g.decode(t))
			if err != nil {
				t.Fatal(err)
			}
			wantMembers(t, "head", g.Head, s.Head())
			wantMembers(t, "calls", g.Calls, s.TakeChangedCalls())
			wantMembers(t, "transcript", g.Talk, s.Transcript())
		})
	}
	for _, b := range bodies() {
		if !kinds[b.Kind()] {
			t.Errorf("no golden journal holds a %s event", b.Kind())
		}
	}
}

func readGolden(t testing.TB, file string) golden {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return g
}

func (g golden) decode(t *testing.T) []loop.Event {
	t.Helper()
	events := make([]loop.Event, 0, len(g.Events))
	for _, e := range g.Events {
		body, err := loop.DecodeBody(e.Kind, e.Body)
		if err != nil {
			t.Fatalf("event %d: %v", e.Seq, err)
		}
		events = append(events, loop.Event{Seq: e.Seq, At: e.At, Epoch: e.Epoch, Body: body})
	}
	return events
}

// wantMembers compares in JSON every member that the golden file has. Later
// versions may add members.
func wantMembers(t *testing.T, what string, want json.RawMessage, got any) {
	t.Helper()
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var w, g any
	if err := errors.Join(json.Unmarshal(want, &w), json.Unmarshal(text, &g)); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(w, onlyMembersOf(w, g)); d != "" {
		t.Errorf("%s (-golden +now):\n%s", what, d)
	}
}

// onlyMembersOf drops from g what w does not have.
func onlyMembersOf(w, g any) any {
	switch w := w.(type) {
	case map[string]any:
		m, ok := g.(map[string]any)
		if !ok {
			return g
		}
		kept := map[string]any{}
		for k, v := range w {
			if _, ok := m[k]; ok {
				kept[k] = onlyMembersOf(v, m[k])
			}
		}
		return kept
	case []any:
		list, ok := g.([]any)
		if !ok || len(list) != len(w) {
			return g
		}
		kept := make([]any, len(w))
		for i := range w {
			kept[i] = onlyMembersOf(w[i], list[i])
		}
		return kept
	}
	return g
}

func writeGoldens(t *testing.T) {
	t.Helper()
	for name, from := range recorded {
		file := filepath.Join("testdata/journals/v1", name+".json")
		if _, err := os.Stat(file); err == nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join("testdata/scenarios", from.scenario+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		events := playScript(t, string(text)).journal
		if from.events > 0 {
			events = events[:from.events]
		}
		writeGolden(t, file, events)
	}
}

func writeGolden(t *testing.T, file string, events []loop.Event) {
	t.Helper()
	g := golden{Run: theRun}
	for _, e := range events {
		kind, body, err := loop.EncodeBody(e.Body)
		if err != nil {
			t.Fatal(err)
		}
		g.Events = append(g.Events, goldenEvent{e.Seq, e.At, e.Epoch, kind, body})
	}
	s, err := loop.Fold(theRun, events)
	if err != nil {
		t.Fatal(err)
	}
	var errs [3]error
	g.Head, errs[0] = json.Marshal(s.Head())
	g.Calls, errs[1] = json.Marshal(s.TakeChangedCalls())
	g.Talk, errs[2] = json.Marshal(s.Transcript())
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	err = errors.Join(append(errs[:], enc.Encode(g), os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, text.Bytes(), 0o600))...)
	if err != nil {
		t.Fatal(err)
	}
}

// bodies is one of every kind, in the order of the codec.
func bodies() []loop.Body {
	return []loop.Body{
		loop.Created{}, loop.Claimed{}, loop.Suspended{}, loop.ModelStarted{}, loop.ModelAnswered{}, loop.ModelFailed{},
		loop.CallRefused{}, loop.ApprovalRequested{}, loop.ApprovalDecided{}, loop.CallBegun{}, loop.CallFinished{},
		loop.CallDoubted{}, loop.CallResolved{}, loop.Tripped{}, loop.AnswerRejected{}, loop.AnswerAccepted{},
		loop.CancelRequested{}, loop.Finished{}, loop.PauseRequested{}, loop.Resumed{}, loop.AnswerChecked{}, loop.CheckpointJudged{}, loop.Compacted{},
	}
}

// TestCodecKnowsEveryKind: the zero body of every kind survives, members of a
// newer loopd are ignored, and kinds of a newer loopd are left alone.
func TestCodecKnowsEveryKind(t *testing.T) {
	t.Parallel()
	for _, b := range bodies() {
		kind, text, err := loop.EncodeBody(b)
		if err != nil || kind != b.Kind() {
			t.Fatalf("encode %s: kind %q, error %v", b.Kind(), kind, err)
		}
		if bytes.ContainsAny(text, "\n") {
			t.Errorf("%s is more than one line: %q", kind, text)
		}
		newer := strings.Replace(string(text), "{", `{"of_the_future":[1],`, 1)
		newer = strings.Replace(newer, ",}", "}", 1)
		for _, form := range []string{string(text), newer} {
			got, err := loop.DecodeBody(kind, []byte(form))
			if err != nil {
				t.Fatalf("decode %s: %v", form, err)
			}
			if d := diff(b, got); d != "" {
				t.Errorf("%s (-encoded +decoded):\n%s", kind, d)
			}
		}
		if _, err := loop.DecodeBody(kind, []byte(`[`)); err == nil || !strings.Contains(err.Error(), kind) {
			t.Errorf("broken %s: error %v does not name the kind", kind, err)
		}
	}
	_, err := loop.DecodeBody("teleported", []byte("{}"))
	if !errors.Is(err, loop.ErrUnknownKind) || !strings.Contains(err.Error(), "teleported") {
		t.Errorf("unknown kind: %v", err)
	}
}

// TestEncodeBodyKeepsBytes: what a provider signed must come back as it was.
func TestEncodeBodyKeepsBytes(t *testing.T) {
	t.Parallel()
	const native = `{"b":1.0,"a":"<&>\u2028é \u00e9","n":12345678901234567890,"signature":"a+/="}`
	want := loop.ModelAnswered{Message: loop.Message{Native: &loop.Native{Wire: "anthropic", JSON: json.RawMessage(native)}}}
	kind, text, err := loop.EncodeBody(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := loop.DecodeBody(kind, text)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(native, string(got.(loop.ModelAnswered).Message.Native.JSON)); d != "" {
		t.Errorf("native message (-before +after):\n%s", d)
	}
	if strings.Contains(string(text), `\u003c`) {
		t.Errorf("escaped for HTML: %s", text)
	}
}

func TestEncodeBodyFails(t *testing.T) {
	t.Parallel()
	broken := loop.ModelAnswered{Message: loop.Message{Native: &loop.Native{JSON: json.RawMessage("{")}}}
	if _, _, err := loop.EncodeBody(broken); err == nil || !strings.Contains(err.Error(), "model_answered") {
		t.Errorf("error %v does not name the kind", err)
	}
}

// FuzzDecodeBody: whatever decodes can be written again, and then reads the same.
func FuzzDecodeBody(f *testing.F) {
	files, err := filepath.Glob("testdata/journals/*/*.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		for _, e := range readGolden(f, file).Events {
			f.Add(e.Kind, []byte(e.Body))
		}
	}
	f.Add("claimed", []byte(`{"attempt":1e9}`))
	f.Add("suspended", []byte(`{"until":"9999-12-31T23:59:59.999999999-23:59"}`))
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		b, err := loop.DecodeBody(kind, body)
		if err != nil {
			return
		}
		kind2, first, err := loop.EncodeBody(b)
		if err != nil || kind2 != kind {
			t.Fatalf("encode what was decoded: kind %q, error %v", kind2, err)
		}
		again, err := loop.DecodeBody(kind, first)
		if err != nil {
			t.Fatalf("decode what was encoded: %v\n%s", err, first)
		}
		_, second, err := loop.EncodeBody(again)
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("error %v, written differently the second time:\n%s\n%s", err, first, second)
		}
	})
}
