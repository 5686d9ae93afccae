package providertest

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

// Provider is what an adapter implements.
type Provider interface {
	Generate(ctx context.Context, req loop.ModelRequest) (loop.ModelAnswer, error)
}

// Tuning is what the suite sets of an adapter's configuration. Zero means the
// adapter's default.
type Tuning struct {
	FirstByteTimeout time.Duration
	IdleTimeout      time.Duration
	MaxResponseBytes int64
}

// Suite describes an adapter.
type Suite struct {
	New        func(baseURL string, tuning Tuning) Provider
	Recordings fs.FS
	Want       map[string]Want // by the recording's path without .json

	Traits map[Trait]string // the recording that shows each trait, by its name in Want
	Absent map[Trait]string // why the wire cannot have a trait

	// NoCallIDs says that the wire can do without ids of calls, so that a message
	// goes back as it came even if its calls have none.
	NoCallIDs bool

	// Stream names a recorded stream that ends with FinishDone; the tests of what
	// goes wrong build on it.
	Stream string
	Word   string // stands in that stream's text; the first event with it must be a text delta
	// Whole reports whether a stream that stopped after sent is a whole answer.
	Whole func(sent string) bool
}

// Want is what a recording means: an answer, or an error if Class is set.
type Want struct {
	Finish       loop.Finish
	NativeFinish string // the provider's own word; "" = any
	Text         string // beginning of the visible text; "-" = none at all
	Reasoning    bool
	Refusal      string
	Calls        []loop.ToolCall
	Usage        loop.Usage
	UsageMissing bool

	Class      loop.ErrorClass
	Code       string
	RetryAfter time.Duration
}

// Key is the API key that Suite.New configures, so that the suite can look for it
// where it must not be.
const Key = "test-key-123"

// Ask is a small request.
func Ask() loop.ModelRequest {
	return loop.ModelRequest{
		Model:           "test-model",
		Messages:        []loop.Message{{Role: loop.RoleUser, Parts: []loop.Part{loop.TextPart("hello")}}},
		MaxOutputTokens: 1024,
		ToolsAllowed:    true,
	}
}

// Run runs the suite.
func Run(t *testing.T, s Suite) {
	t.Run("traits", s.covers)
	t.Run("recordings", s.recordings)
	t.Run("cuts", s.cuts)
	t.Run("mangled", s.mangled)
	t.Run("statuses", s.statuses)
	t.Run("faults", s.faults)
	t.Run("key", s.keys)
	t.Run("resets", s.resets)
	t.Run("silence", s.silence)
	t.Run("floods", s.floods)
	t.Run("compacted", s.compacted)
}

// names lists the recordings. A recording without an expectation, or the other
// way round, is a fault of the table.
func (s Suite) names(t *testing.T) []string {
	t.Helper()
	var names []string
	err := fs.WalkDir(s.Recordings, ".", func(name string, _ fs.DirEntry, err error) error {
		if path.Ext(name) == ".json" {
			names = append(names, strings.TrimSuffix(name, ".json"))
		}
		return err
	})
	if err != nil || len(names) == 0 {
		t.Fatalf("list recordings: %d found, %v", len(names), err)
	}
	return names
}

// good is the recorded stream on which the tests of what goes wrong build.
func (s Suite) good(t *testing.T) Exchange {
	t.Helper()
	x := Load(t, s.Recordings, s.Stream+".json")
	if !strings.Contains(x.Response.SSE, s.Word) || s.Word == "" {
		t.Fatalf("the recording %s does not say %q", s.Stream, s.Word)
	}
	return x
}

func checkError(t *testing.T, err error, want Want) {
	t.Helper()
	e := modelError(t, err)
	if e.Class != want.Class || want.Code != "" && e.Code != want.Code || e.RetryAfter != want.RetryAfter {
		t.Errorf("got class %q, code %q, retry after %s; want %q, %q, %s (%v)", e.Class, e.Code, e.RetryAfter, want.Class, want.Code, want.RetryAfter, err)
	}
	if e.Message == "" {
		t.Error("the error has no message")
	}
	if strings.Contains(e.Error(), Key) || strings.Contains(e.Code, Key) {
		t.Errorf("the key is in the error (return errors through provider.Response.Fail): %v", e)
	}
}

func checkAnswer(t *testing.T, a loop.ModelAnswer, want Want) {
	t.Helper()
	got := Want{
		Finish: a.Finish, Text: want.Text, Calls: a.Message.Calls(), Usage: a.Usage, UsageMissing: a.UsageMissing,
	}
	if want.NativeFinish != "" {
		got.NativeFinish = a.NativeFinish
	}
	for _, p := range a.Message.Parts {
		got.Reasoning = got.Reasoning || p.Kind == loop.PartReasoning && p.Text != ""
		if p.Kind == loop.PartRefusal {
			got.Refusal = p.Text
		}
	}
	if text := a.Message.Text(); text == "" != (want.Text == "-") || want.Text != "-" && !strings.HasPrefix(text, want.Text) {
		t.Errorf("text is %q, want it to begin with %q", text, want.Text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	if a.Message.Role != loop.RoleAssistant || a.Message.Source != loop.SourceModel || a.Message.Native == nil {
		t.Errorf("message is %q from %q with native %v", a.Message.Role, a.Message.Source, a.Message.Native)
	}
	if a.NativeFinish == "" && a.Finish != loop.FinishUnknown {
		t.Errorf("finish %q comes from no word of the provider", a.Finish)
	}
}

func modelError(t *testing.T, err error) *loop.ModelError {
	t.Helper()
	e, ok := errors.AsType[*loop.ModelError](err)
	if !ok {
		t.Fatalf("error is %T (%v), want *loop.ModelError", err, err)
	}
	return e
}
