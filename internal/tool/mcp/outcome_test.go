package mcp

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loopd/loopd/internal/loop"
)

// TestOutcomes tries everything that a server can do to a call, for a tool that
// may be called again and for one that may not, and asks the server's ledger how
// often the call came.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	type want struct {
		Outcome loop.Outcome
		Kind    string
	}
	unknown := want{loop.OutcomeUnknown, "outcome_unknown"}
	ok := want{loop.OutcomeOK, ""}
	cases := map[string]struct {
		call         func(w http.ResponseWriter, r *http.Request, m message)
		resume       func(w http.ResponseWriter, r *http.Request)
		timeout      time.Duration
		readOnly     want
		irreversible want
	}{
		"answers": {
			call:     func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m.text("done")) },
			readOnly: ok, irreversible: ok,
		},
		"answers in a stream, after news": {
			call: func(w http.ResponseWriter, _ *http.Request, m message) {
				stream(w, ": hello", `data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`, "event: message\ndata: "+m.text("done"))
			},
			readOnly: ok, irreversible: ok,
		},
		"says that it failed": {
			call: func(w http.ResponseWriter, _ *http.Request, m message) {
				answer(w, m.result(`{"isError":true,"content":[{"type":"text","text":"no such account"}]}`))
			},
			readOnly: want{loop.OutcomePermanent, "tool_error"}, irreversible: want{loop.OutcomePermanent, "tool_error"},
		},
		"asks for input": {
			call: func(w http.ResponseWriter, _ *http.Request, m message) {
				answer(w, m.result(`{"resultType":"input_required","inputRequests":{},"content":[]}`))
			},
			readOnly: want{loop.OutcomePermanent, "input_required"}, irreversible: want{loop.OutcomePermanent, "input_required"},
		},
		"refuses the arguments": {
			call:     func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m.failure(-32602, "n is missing")) },
			readOnly: want{loop.OutcomeInvalidArgs, "invalid_arguments"}, irreversible: want{loop.OutcomeInvalidArgs, "invalid_arguments"},
		},
		"does not know the method": {
			call:     func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m.failure(-32601, "what?")) },
			readOnly: want{loop.OutcomePermanent, "refused"}, irreversible: want{loop.OutcomePermanent, "refused"},
		},
		"fails inside": {
			call:     func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m.failure(-32603, "oops")) },
			readOnly: want{loop.OutcomePermanent, "server_error"}, irreversible: unknown,
		},
		"hangs": {
			call:     func(_ http.ResponseWriter, r *http.Request, _ message) { <-r.Context().Done() },
			timeout:  200 * time.Millisecond,
			readOnly: want{loop.OutcomeTimeout, "timeout"}, irreversible: unknown,
		},
		"hangs in its stream": {
			call:     func(w http.ResponseWriter, r *http.Request, _ message) { stream(w, ": wait"); <-r.Context().Done() },
			timeout:  200 * time.Millisecond,
			readOnly: want{loop.OutcomeTimeout, "timeout"}, irreversible: unknown,
		},
		"answers garbage": {
			call:     func(w http.ResponseWriter, _ *http.Request, _ message) { answer(w, "{malformed json: <<<chaos>>>") },
			readOnly: want{loop.OutcomePermanent, "bad_answer"}, irreversible: unknown,
		},
		"answers HTML": {
			call: func(w http.ResponseWriter, _ *http.Request, _ message) {
				_, _ = io.WriteString(w, "<html>hello</html>")
			},
			readOnly: want{loop.OutcomePermanent, "bad_answer"}, irreversible: unknown,
		},
		"answers another request": {
			call: func(w http.ResponseWriter, _ *http.Request, _ message) {
				answer(w, `{"jsonrpc":"2.0","id":999999,"result":{"content":[]}}`)
			},
			readOnly: want{loop.OutcomePermanent, "bad_answer"}, irreversible: unknown,
		},
		"answers with something that is no result": {
			call:     func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m.result(`{"content":"text"}`)) },
			readOnly: want{loop.OutcomePermanent, "bad_result"}, irreversible: unknown,
		},
		"takes it and says nothing": {
			call:     func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(http.StatusAccepted) },
			readOnly: want{loop.OutcomePermanent, "bad_answer"}, irreversible: unknown,
		},
		"streams garbage": {
			call:     func(w http.ResponseWriter, _ *http.Request, _ message) { stream(w, "id: 1\ndata: {chaos") },
			readOnly: want{loop.OutcomePermanent, "bad_answer"}, irreversible: unknown,
		},
		"answers far too much": {
			call: func(w http.ResponseWriter, _ *http.Request, m message) {
				answer(w, m.text(strings.Repeat("x", 8<<20)))
			},
			readOnly: want{loop.OutcomePermanent, "answer_too_large"}, irreversible: unknown,
		},
		"answers with a gzip bomb": {
			call: func(w http.ResponseWriter, _ *http.Request, _ message) {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Content-Encoding", "gzip")
				bomb := gzip.NewWriter(w)
				_, _ = io.CopyN(bomb, zeros{}, 8<<20)
				_ = bomb.Close()
			},
			readOnly: want{loop.OutcomePermanent, "answer_too_large"}, irreversible: unknown,
		},
		"streams an event without end": {
			call: func(w http.ResponseWriter, _ *http.Request, _ message) {
				stream(w, "id: 1\ndata: "+strings.Repeat("x", 8<<20))
			},
			readOnly: want{loop.OutcomePermanent, "answer_too_large"}, irreversible: unknown,
		},
		"breaks down": {
			call:     func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(http.StatusInternalServerError) },
			readOnly: want{loop.OutcomePermanent, "server_error"}, irreversible: unknown,
		},
		"is unavailable": {
			call:     func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(http.StatusServiceUnavailable) },
			readOnly: want{loop.OutcomeRetryable, "unavailable"}, irreversible: unknown,
		},
		"has too much to do": {
			call:     func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(http.StatusTooManyRequests) },
			readOnly: want{loop.OutcomeRetryable, "rate_limited"}, irreversible: want{loop.OutcomeRetryable, "rate_limited"},
		},
		"refuses": {
			call:     func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(http.StatusForbidden) },
			readOnly: want{loop.OutcomePermanent, "refused"}, irreversible: want{loop.OutcomePermanent, "refused"},
		},
		"is busy with the key": {
			call:     func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(http.StatusConflict) },
			readOnly: want{loop.OutcomeRetryable, "unavailable"}, irreversible: unknown,
		},
		"resets the connection": {
			call:     func(w http.ResponseWriter, _ *http.Request, _ message) { reset(w) },
			readOnly: want{loop.OutcomeRetryable, "connection"}, irreversible: unknown,
		},
		"ends its stream without an answer": {
			call:     func(w http.ResponseWriter, _ *http.Request, _ message) { stream(w, ": bye") },
			readOnly: want{loop.OutcomeRetryable, "connection"}, irreversible: unknown,
		},
		"cuts its stream, and goes on with it": {
			call: func(w http.ResponseWriter, _ *http.Request, m message) {
				stream(w, "id: "+string(m.ID)+"\nretry: 10\ndata:")
			},
			resume: func(w http.ResponseWriter, r *http.Request) {
				stream(w, "id: last\ndata: "+message{ID: []byte(r.Header.Get("Last-Event-ID"))}.text("done"))
			},
			readOnly: ok, irreversible: ok,
		},
		"cuts its stream, and does not go on with it": {
			call:     func(w http.ResponseWriter, _ *http.Request, _ message) { stream(w, "id: 1\nretry: 10\ndata:") },
			resume:   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
			readOnly: want{loop.OutcomeRetryable, "connection"}, irreversible: unknown,
		},
		"cuts its stream again and again": {
			call:     func(w http.ResponseWriter, _ *http.Request, _ message) { stream(w, "id: 1\nretry: 10\ndata:") },
			resume:   func(w http.ResponseWriter, _ *http.Request) { stream(w, "id: 1\nretry: 10\ndata:") },
			readOnly: want{loop.OutcomeRetryable, "connection"}, irreversible: unknown,
		},
	}
	for name, c := range cases {
		for effect, want := range map[loop.Effect]want{loop.ReadOnly: c.readOnly, loop.Irreversible: c.irreversible} {
			t.Run(name+"/"+string(effect), func(t *testing.T) {
				t.Parallel()
				server := newFake(t, c.call)
				server.resume = c.resume
				req := request(server.URL, effect)
				if c.timeout > 0 {
					req.Spec.Timeout = c.timeout
				}

				reply := newClient(t, nil).Call(t.Context(), req)

				got := want
				got.Outcome, got.Kind = reply.Outcome, ""
				if reply.Outcome != loop.OutcomeOK {
					got.Kind = kindOf(t, reply)
				} else if reply.Content != "done" {
					t.Errorf("content = %q, want what the tool said", reply.Content)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("outcome (-want +got):\n%s\n%s", diff, reply.Content)
				}
				if n := len(server.ledger()); n != 1 {
					t.Errorf("the call came %d times, want once", n)
				}
			})
		}
	}
}

func TestNothingIsSentToAServerThatIsDown(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	reply := newClient(t, nil).Call(t.Context(), request(server.URL, loop.Irreversible))
	if reply.Outcome != loop.OutcomeNotSent {
		t.Errorf("outcome = %s, want not_sent: %s", reply.Outcome, reply.Content)
	}
}

func TestAServerThatDoesNotLetLoopdInIsAConfigurationProblem(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "who are you?", http.StatusUnauthorized)
	}))
	t.Cleanup(server.Close)
	reply := newClient(t, nil).Call(t.Context(), request(server.URL, loop.SideEffect))
	if reply.Outcome != loop.OutcomePermanent || kindOf(t, reply) != "server_refused" || reply.Status != http.StatusUnauthorized {
		t.Errorf("reply = %+v, want a permanent refusal with the status", reply)
	}
}

func TestPrivateAddressesAreRefusedByDefault(t *testing.T) {
	t.Parallel()
	server := newFake(t, func(w http.ResponseWriter, _ *http.Request, m message) { answer(w, m.text("done")) })
	c := New(Config{})
	t.Cleanup(c.Close)
	reply := c.Call(t.Context(), request(server.URL, loop.ReadOnly))
	if reply.Outcome != loop.OutcomePermanent || kindOf(t, reply) != "address_refused" {
		t.Errorf("reply = %+v, want the address refused", reply)
	}
	if n := server.count("initialize"); n != 0 {
		t.Errorf("the server was asked %d times", n)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(elsewhere.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		server := newFake(t, func(w http.ResponseWriter, r *http.Request, _ message) {
			http.Redirect(w, r, elsewhere.URL, status)
		})
		reply := newClient(t, nil).Call(t.Context(), request(server.URL, loop.Irreversible))
		if reply.Outcome != loop.OutcomeUnknown {
			t.Errorf("%d: outcome = %s, want unknown: the server may have acted first", status, reply.Outcome)
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

// TestAResetOnAReusedConnectionIsOneSend warms up a connection first: on one that
// was used before, net/http may send again what it thinks was not read.
func TestAResetOnAReusedConnectionIsOneSend(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		var broken atomic.Bool
		server := newFake(t, func(w http.ResponseWriter, _ *http.Request, m message) {
			if broken.Load() {
				panic(http.ErrAbortHandler) // over HTTP/2: RST_STREAM
			}
			answer(w, m.text("done"))
		})
		url, transport := server.URL, &http.Transport{}
		if h2 {
			tls := httptest.NewUnstartedServer(server)
			tls.EnableHTTP2 = true
			tls.StartTLS()
			t.Cleanup(func() { tls.CloseClientConnections(); tls.Close() })
			url, transport = tls.URL, tls.Client().Transport.(*http.Transport)
		}
		c := newClient(t, func(cfg *Config) { cfg.Transport = transport })
		if reply := c.Call(t.Context(), request(url, loop.ReadOnly)); reply.Outcome != loop.OutcomeOK {
			t.Fatalf("warm-up: %+v", reply)
		}
		broken.Store(true)

		reply := c.Call(t.Context(), request(url, loop.SideEffect))

		if n := len(server.ledger()); n != 2 || reply.Outcome != loop.OutcomeUnknown {
			t.Errorf("HTTP/2 %t: %d calls came, outcome %s; want 2 and unknown", h2, n, reply.Outcome)
		}
	}
}

// zeros reads as zeros for ever.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
