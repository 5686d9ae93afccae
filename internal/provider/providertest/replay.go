package providertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
	"github.com/loopd/loopd/internal/provider"
)

// pieces is into how many pieces a recording is broken: most are smaller, and come
// byte by byte.
const pieces = 4096

// recordings replays every recording, whole and in small pieces, compares what the
// adapter makes of it, and sends it back.
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
			s.recording(t, Load(t, s.Recordings, name+".json"), want)
		})
	}
}

func (s Suite) recording(t *testing.T, x Exchange, want Want) {
	var size atomic.Int64
	size.Store(int64(len(x.Text())))
	server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { x.serve(w, int(size.Load())) }))
	p := s.New(server.URL, Tuning{})

	w, memo := newWatcher(), &loop.Memo{}
	answer, err := p.Generate(t.Context(), watched(w, memo))
	if n := len(server.Requests()); n != 1 {
		t.Errorf("sent %d requests, want exactly 1", n)
	}
	size.Store(int64(len(x.Text())/pieces) + 1)
	slow, slowErr := p.Generate(t.Context(), Ask())
	if want.Class != "" {
		checkError(t, err, want)
		first, second := modelError(t, err), modelError(t, slowErr)
		checkRate(t, x, first.Rate)
		first.Rate, second.Rate = loop.RateReport{}, loop.RateReport{} // its times are of today
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("the error depends on how the bytes arrive (-whole +pieces):\n%s", diff)
		}
		if first.Status != x.Response.Status {
			t.Errorf("status is %d, want %d", first.Status, x.Response.Status)
		}
		return
	}
	if err != nil || slowErr != nil {
		t.Fatalf("Generate: %v, in pieces: %v", err, slowErr)
	}
	checkAnswer(t, answer, want)
	checkRate(t, x, answer.Rate)
	w.check(t, answer.Message, x.Response.SSE != "")
	answer.Rate, slow.Rate = loop.RateReport{}, loop.RateReport{}
	if diff := cmp.Diff(answer, slow); diff != "" {
		t.Errorf("the answer depends on how the bytes arrive (-whole +pieces):\n%s", diff)
	}
	s.sendBack(t, p, server, answer, memo)
}

// watched is a request of a run that has a memo and somebody who watches.
func watched(w *watcher, memo *loop.Memo) loop.ModelRequest {
	req := Ask()
	req.Emit, req.Memo = w.emit, memo
	req.Messages[0].Seq = 1
	return req
}

// checkRate: what the headers said of the limits is in the answer or the error.
func checkRate(t *testing.T, x Exchange, got loop.RateReport) {
	t.Helper()
	want := provider.RateOf(x.header(), time.Now())
	for _, r := range []*loop.RateReport{&want, &got} {
		r.Requests.Reset, r.Tokens.Reset = time.Time{}, time.Time{}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rate report, without times (-headers +got):\n%s", diff)
	}
}

// sendBack takes the answer through the journal and into the next request, which
// must carry its native form unchanged, with a memo and without.
func (s Suite) sendBack(t *testing.T, p Provider, server *Server, answer loop.ModelAnswer, memo *loop.Memo) {
	t.Helper()
	switch answer.Finish {
	case loop.FinishDone, loop.FinishToolCalls, loop.FinishPaused:
	default:
		return // not kept, or kept as text only
	}
	m := journaled(t, answer.Message)
	if m.Native == nil || !bytes.Equal(m.Native.JSON, answer.Message.Native.JSON) {
		t.Fatalf("the journal changes the native form:\n%s\n%s", answer.Message.Native.JSON, m.Native.JSON)
	}
	bodies := make([][]byte, 0, 2)
	for _, memo := range []*loop.Memo{memo, nil} {
		req := watched(newWatcher(), memo)
		req.Messages = append(req.Messages, follow(m, answer.Finish)...)
		if _, err := p.Generate(t.Context(), req); err != nil {
			t.Fatalf("Generate: %v", err)
		}
		bodies = append(bodies, server.Last(t).Body)
	}
	if diff := cmp.Diff(string(bodies[1]), string(bodies[0])); diff != "" {
		t.Errorf("the memo changes the request (-without +with):\n%s", diff)
	}
	if len(m.Parts) > 0 && s.ownIDs(m.Calls()) && !carries(bodies[0], m.Native.JSON) {
		t.Errorf("the message was not sent back as it came:\n%s\nis not in\n%s", m.Native.JSON, bodies[0])
	}
}

// journaled is the message as a journal gives it back, with the ids that the
// engine gives to its calls.
func journaled(t *testing.T, m loop.Message) loop.Message {
	t.Helper()
	kind, raw, err := loop.EncodeBody(loop.ModelAnswered{Message: m})
	if err != nil {
		t.Fatalf("encode: %v", err)
	}
	body, err := loop.DecodeBody(kind, raw)
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	answered, ok := body.(loop.ModelAnswered)
	if !ok {
		t.Fatalf("decoded a %T", body)
	}
	for i, p := range answered.Message.Parts {
		if p.Kind == loop.PartToolCall {
			p.Call.ID = fmt.Sprintf("c1-%d", i+1)
		}
	}
	return answered.Message
}

// follow is how the transcript goes on after an answer.
func follow(m loop.Message, finish loop.Finish) []loop.Message {
	m.Seq = 2
	if finish == loop.FinishPaused {
		return []loop.Message{m} // goes back as it is, and nothing after it
	}
	next := loop.Message{Role: loop.RoleUser, Seq: 3, Parts: []loop.Part{loop.TextPart("go on")}}
	if calls := m.Calls(); len(calls) > 0 {
		next.Parts = nil
		for _, c := range calls {
			next.Parts = append(next.Parts, loop.Part{Kind: loop.PartToolResult, Result: &loop.ToolResult{
				CallID: c.ID, ProviderID: c.ProviderID, Outcome: loop.OutcomeOK, Content: "noon",
			}})
		}
	}
	return []loop.Message{m, next}
}

// ownIDs reports whether the calls can go back under the ids they came with.
func (s Suite) ownIDs(calls []loop.ToolCall) bool {
	if s.NoCallIDs {
		return true
	}
	seen := map[string]bool{"": true}
	for _, c := range calls {
		if seen[c.ProviderID] {
			return false
		}
		seen[c.ProviderID] = true
	}
	return true
}

// carries reports whether the body has the native form in it: as a whole or, if it
// is a list of items, its items one after another.
func carries(body, native []byte) bool {
	if bytes.Contains(body, native) {
		return true
	}
	var items []json.RawMessage
	if json.Unmarshal(native, &items) != nil || len(items) == 0 {
		return false
	}
	for _, item := range items {
		_, rest, found := bytes.Cut(body, item)
		if !found {
			return false
		}
		body = rest
	}
	return true
}

// maxCuts bounds the places at which one recording is cut.
const maxCuts = 48

// cuts ends every good answer early, in good order and by breaking the connection.
// Nothing that is not whole may pass for an answer.
func (s Suite) cuts(t *testing.T) {
	for _, name := range s.names(t) {
		x, want := Load(t, s.Recordings, name+".json"), s.Want[name]
		if want.Class != "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := x.Text()
			var position atomic.Int64
			var abort atomic.Bool
			server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", x.header().Get("Content-Type"))
				write(w, text[:position.Load()])
				if abort.Load() {
					panic(http.ErrAbortHandler)
				}
			}))
			p := s.New(server.URL, Tuning{})
			position.Store(int64(len(text)))
			w := newWatcher()
			if _, err := p.Generate(t.Context(), watched(w, nil)); err != nil {
				t.Fatalf("Generate: %v", err)
			}
			for _, mode := range []bool{false, true} {
				abort.Store(mode)
				for at := 0; at < len(text); at += len(text)/maxCuts + 1 {
					position.Store(int64(at))
					whole := x.Response.SSE != "" && s.Whole(text[:at])
					s.cut(t, p, text[:at], whole, want.Finish, w.saw(loop.PartText))
				}
			}
		})
	}
}

// cut checks one call to a server that stops after sent. full is the text of the
// whole answer.
func (s Suite) cut(t *testing.T, p Provider, sent string, whole bool, finish loop.Finish, full string) {
	t.Helper()
	w := newWatcher()
	answer, err := p.Generate(t.Context(), watched(w, nil))
	switch {
	case err != nil:
		if e := modelError(t, err); e.Class != loop.ErrorMidStream {
			t.Errorf("cut at %d: class %q, want mid_stream (%v)", len(sent), e.Class, err)
		}
	case !whole:
		t.Errorf("cut at %d: finish %q from an answer that ends in %q", len(sent), answer.Finish, tail(sent))
	case answer.Finish != finish:
		t.Errorf("cut at %d: finish %q, want %q", len(sent), answer.Finish, finish)
	}
	if !strings.HasPrefix(full, w.saw(loop.PartText)) {
		t.Errorf("cut at %d: the deltas say %q, the whole answer %q", len(sent), w.saw(loop.PartText), full)
	}
}

func tail(s string) string { return s[max(0, len(s)-80):] }

// mangled puts wrong bytes into a good stream. Whatever comes of it is an answer
// or a *loop.ModelError, never a panic.
func (s Suite) mangled(t *testing.T) {
	t.Parallel()
	text := s.good(t).Response.SSE
	var body atomic.Value
	server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { write(w, fmt.Sprint(body.Load())) }))
	p := s.New(server.URL, Tuning{})
	for _, wrong := range []string{"", "{", `"`, "[]", "null", "-1", "\n", "\x00", "\xff"} {
		for at := 0; at < len(text); at += len(text)/maxCuts + 1 {
			body.Store(text[:at] + wrong + text[at+1:])
			if _, err := p.Generate(t.Context(), Ask()); err != nil {
				_ = modelError(t, err)
			}
		}
	}
}
