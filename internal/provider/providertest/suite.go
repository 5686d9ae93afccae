package providertest

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync/atomic"
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

	// Stream names a recorded stream that ends with FinishDone; the tests of what
	// goes wrong build on it.
	Stream string
	Word   string // stands in that stream's text
	// Whole reports whether a stream that stopped after sent is a whole answer.
	Whole func(sent string) bool
}

// Want is what a recording means: an answer, or an error if Class is set.
type Want struct {
	Finish       loop.Finish
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
	t.Run("recordings", s.recordings)
	t.Run("cuts", s.cuts)
	t.Run("statuses", s.statuses)
	t.Run("faults", s.faults)
	t.Run("silence", s.silence)
}

// recordings replays every recording and compares what the adapter makes of it.
func (s Suite) recordings(t *testing.T) {
	names := s.names(t)
	for name := range s.Want {
		if !slices.Contains(names, name) {
			t.Errorf("%s is expected but not recorded", name)
		}
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, ok := s.Want[name]
			if !ok {
				t.Fatalf("no expectation for this recording")
			}
			server := Serve(t, Load(t, s.Recordings, name+".json"))
			answer, err := s.New(server.URL, Tuning{}).Generate(t.Context(), Ask())
			if n := len(server.Requests()); n != 1 {
				t.Errorf("sent %d requests, want exactly 1", n)
			}
			if want.Class != "" {
				checkError(t, err, want)
				return
			}
			if err != nil {
				t.Fatalf("Generate: %v", err)
			}
			checkAnswer(t, answer, want)
		})
	}
}

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

func checkError(t *testing.T, err error, want Want) {
	t.Helper()
	e := modelError(t, err)
	if e.Class != want.Class || want.Code != "" && e.Code != want.Code || e.RetryAfter != want.RetryAfter {
		t.Errorf("got class %q, code %q, retry after %s; want %q, %q, %s", e.Class, e.Code, e.RetryAfter, want.Class, want.Code, want.RetryAfter)
	}
	if e.Message == "" {
		t.Error("the error has no message")
	}
}

func checkAnswer(t *testing.T, a loop.ModelAnswer, want Want) {
	t.Helper()
	got := Want{
		Finish: a.Finish, Text: want.Text, Calls: a.Message.Calls(), Usage: a.Usage, UsageMissing: a.UsageMissing,
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
}

func modelError(t *testing.T, err error) *loop.ModelError {
	t.Helper()
	e, ok := errors.AsType[*loop.ModelError](err)
	if !ok {
		t.Fatalf("error is %T (%v), want *loop.ModelError", err, err)
	}
	return e
}

// maxCuts bounds the places at which one recording is cut.
const maxCuts = 48

// cuts ends every good stream early, in good order and by breaking the
// connection. Nothing that is not whole may pass for an answer.
func (s Suite) cuts(t *testing.T) {
	for _, name := range s.names(t) {
		x := Load(t, s.Recordings, name+".json")
		if x.Response.SSE == "" || s.Want[name].Class != "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var position atomic.Int64
			var abort atomic.Bool
			server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				write(w, x.Response.SSE[:position.Load()])
				if abort.Load() {
					panic(http.ErrAbortHandler)
				}
			}))
			p := s.New(server.URL, Tuning{})
			for _, mode := range []bool{false, true} {
				abort.Store(mode)
				for at := 0; at < len(x.Response.SSE); at += len(x.Response.SSE)/maxCuts + 1 {
					position.Store(int64(at))
					s.cut(t, p, x.Response.SSE[:at], s.Want[name].Finish)
				}
			}
		})
	}
}

// cut checks one call to a server that stops after sent.
func (s Suite) cut(t *testing.T, p Provider, sent string, finish loop.Finish) {
	t.Helper()
	answer, err := p.Generate(t.Context(), Ask())
	switch {
	case err != nil:
		if e := modelError(t, err); e.Class != loop.ErrorMidStream {
			t.Errorf("cut at %d: class %q, want mid_stream", len(sent), e.Class)
		}
	case !s.Whole(sent):
		t.Errorf("cut at %d: finish %q from a stream that ends in %q", len(sent), answer.Finish, tail(sent))
	case answer.Finish != finish:
		t.Errorf("cut at %d: finish %q, want %q", len(sent), answer.Finish, finish)
	}
}

func tail(s string) string { return s[max(0, len(s)-80):] }
