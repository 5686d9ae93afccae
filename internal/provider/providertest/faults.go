package providertest

import (
	"compress/gzip"
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/loopd/loopd/internal/loop"
)

// short is a timeout that a test waits for. Where a model may be thinking, five
// times the timeout of the first byte are waited for.
const short = 50 * time.Millisecond

// statuses checks the class of every status and that none is sent again.
func (s Suite) statuses(t *testing.T) {
	for status, class := range map[int]loop.ErrorClass{
		307: loop.ErrorRequest, 400: loop.ErrorRequest, 401: loop.ErrorAuth, 402: loop.ErrorQuota,
		403: loop.ErrorAuth, 404: loop.ErrorRequest, 408: loop.ErrorNotStarted, 409: loop.ErrorNotStarted,
		413: loop.ErrorRequest, 422: loop.ErrorRequest, 429: loop.ErrorThrottle, 500: loop.ErrorServer,
		502: loop.ErrorServer, 503: loop.ErrorThrottle, 504: loop.ErrorServer, 529: loop.ErrorThrottle,
	} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "/elsewhere")
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(status)
			}))
			_, err := s.New(server.URL, Tuning{}).Generate(t.Context(), Ask())
			checkError(t, err, Want{Class: class, RetryAfter: 7 * time.Second})
			if e := modelError(t, err); e.Status != status {
				t.Errorf("status is %d, want %d", e.Status, status)
			}
			if n := len(server.Requests()); n != 1 {
				t.Errorf("sent %d requests, want exactly 1", n)
			}
		})
	}
}

// faults checks answers that are no answers, and good ones in odd wrapping.
func (s Suite) faults(t *testing.T) {
	good := s.good(t)
	text := good.Response.SSE
	for _, c := range []struct {
		name   string
		tuning Tuning
		status int
		body   string
		class  loop.ErrorClass
	}{
		{"empty body", Tuning{}, 200, "", loop.ErrorMidStream},
		{"a web page", Tuning{}, 200, "<html><body>Welcome to the airport network</body></html>", loop.ErrorRequest},
		{"a web page of a gateway", Tuning{}, 502, "<html><body><h1>502 Bad Gateway</h1></body></html>", loop.ErrorServer},
		{"a wrong path", Tuning{}, 404, "404 page not found", loop.ErrorRequest},
		{"no JSON in an event", Tuning{}, 200, "data: hello\n\n", loop.ErrorMidStream},
		{"null in an event", Tuning{}, 200, "data: null\n\n", loop.ErrorMidStream},
		{"a list in an event", Tuning{}, 200, "data: []\n\n", loop.ErrorMidStream},
		{"a number in an event", Tuning{}, 200, "data: 7\n\n", loop.ErrorMidStream},
		{"an empty object in an event", Tuning{}, 200, "data: {}\n\n", loop.ErrorMidStream},
		{"brackets without end", Tuning{}, 200, "data: " + strings.Repeat("[", 1<<20) + "\n\n", loop.ErrorMidStream},
		{"an unrelated object", Tuning{}, 200, `{"status":"ok"}`, loop.ErrorMidStream},
		{"an empty object", Tuning{}, 200, `{}`, loop.ErrorMidStream},
		{"half an object", Tuning{}, 200, `{"id":"x","choi`, loop.ErrorMidStream},
		{"too large", Tuning{MaxResponseBytes: int64(len(text) / 2)}, 200, text, loop.ErrorInternal},
		{"too large without an event", Tuning{MaxResponseBytes: 1000}, 200, "data: " + strings.Repeat("x", 5000), loop.ErrorInternal},
		{"only comments", Tuning{}, 200, ": keep-alive\n\n: keep-alive\n\n", loop.ErrorMidStream},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				write(w, c.body)
			}))
			_, err := s.New(server.URL, c.tuning).Generate(t.Context(), Ask())
			checkError(t, err, Want{Class: c.class})
			if n := len(server.Requests()); n != 1 {
				t.Errorf("sent %d requests, want exactly 1", n)
			}
		})
	}
	t.Run("odd wrapping", func(t *testing.T) { s.wrappings(t, text) })
	t.Run("connection refused", s.refusedConnection)
	t.Run("connection breaks before the answer", s.brokenConnection)
}

// wrappings checks that a good answer is taken under any name, compressed unasked,
// with comments in it, and with bytes in it that are no UTF-8.
func (s Suite) wrappings(t *testing.T, text string) {
	begin, delta, end := s.around(t, text)
	for _, c := range []struct {
		name, kind, encoding, body, word string
	}{
		{"no content type", "", "", text, s.Word},
		{"JSON", "application/json", "", text, s.Word},
		{"plain text", "text/plain; charset=utf-8", "", text, s.Word},
		{"bytes", "application/octet-stream", "", text, s.Word},
		{"broken content type", "text/;;", "", text, s.Word},
		{"gzip", "text/event-stream", "gzip", zipped(text), s.Word},
		{"comments", "text/event-stream", "", ": hello\n\n" + begin + ": wait\n\n" + delta + ":\n\n" + end, s.Word},
		{"carriage returns", "text/event-stream", "", strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\n", "\r\n"), s.Word},
		{"invalid UTF-8", "text/event-stream", "", strings.ReplaceAll(text, s.Word, "\xff\xfe"+s.Word), "\uFFFD" + s.Word},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Type"] = nil
				if c.kind != "" {
					w.Header().Set("Content-Type", c.kind)
				}
				if c.encoding != "" {
					w.Header().Set("Content-Encoding", c.encoding)
				}
				write(w, c.body)
			}))
			watch := newWatcher()
			answer, err := s.New(server.URL, Tuning{}).Generate(t.Context(), watched(watch, nil))
			if err != nil {
				t.Fatalf("Generate: %v", err)
			}
			if said := answer.Message.Text(); !utf8.ValidString(said) || !utf8.Valid(answer.Message.Native.JSON) || !strings.Contains(said, c.word) {
				t.Errorf("text is %q, want %q in it", said, c.word)
			}
			watch.check(t, answer.Message, true)
		})
	}
}

// zipped is text as a gzip file.
func zipped(text string) string {
	var b strings.Builder
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text)) // a strings.Builder never fails
	_ = z.Close()
	return b.String()
}

// refusedConnection checks that only a call without a connection counts as free.
func (s Suite) refusedConnection(t *testing.T) {
	t.Parallel()
	_, err := s.New("http://127.0.0.1:1", Tuning{}).Generate(t.Context(), Ask())
	checkError(t, err, Want{Class: loop.ErrorNotStarted})
}

// brokenConnection breaks a connection that was good before. Go's transport
// would repeat some requests then; a POST must not be among them.
func (s Suite) brokenConnection(t *testing.T) {
	t.Parallel()
	good := s.good(t)
	var breaks atomic.Bool
	server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if breaks.Load() {
			panic(http.ErrAbortHandler)
		}
		good.ServeHTTP(w, r)
	}))
	p := s.New(server.URL, Tuning{})
	if _, err := p.Generate(t.Context(), Ask()); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	breaks.Store(true)
	_, err := p.Generate(t.Context(), Ask())
	checkError(t, err, Want{Class: loop.ErrorServer})
	if n := len(server.Requests()); n != 2 {
		t.Errorf("%d requests arrived for 2 calls", n)
	}
}

// silence checks every way in which a call is given up.
func (s Suite) silence(t *testing.T) {
	good := s.good(t).Response.SSE
	t.Run("after the headers", func(t *testing.T) {
		t.Parallel()
		s.waits(t, t.Context(), Tuning{FirstByteTimeout: short}, "\n", nil, loop.ErrorTimeout)
	})
	t.Run("a byte at a time", func(t *testing.T) { s.trickles(t, "") })
	t.Run("a byte at a time in the middle", func(t *testing.T) { s.trickles(t, good[:len(good)/2]) })
	t.Run("before the first byte", func(t *testing.T) {
		t.Parallel()
		s.waits(t, t.Context(), Tuning{FirstByteTimeout: short}, "", nil, loop.ErrorTimeout)
	})
	t.Run("between two bytes", func(t *testing.T) {
		t.Parallel()
		s.waits(t, t.Context(), Tuning{FirstByteTimeout: 4 * short, IdleTimeout: short}, good[:len(good)/2], nil, loop.ErrorTimeout)
	})
	t.Run("deadline of the caller", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), short)
		defer cancel()
		s.waits(t, ctx, Tuning{}, good[:len(good)/2], nil, loop.ErrorTimeout)
	})
	t.Run("cancelled by the caller before the first byte", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		s.waits(t, ctx, Tuning{}, "", cancel, loop.ErrorCancelled)
	})
	t.Run("cancelled by the caller in the middle", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		s.waits(t, ctx, Tuning{}, good[:len(good)/2], cancel, loop.ErrorCancelled)
	})
}

// waits runs a call against a server that sends body, does then, and hangs until
// the client is gone.
func (s Suite) waits(t *testing.T, ctx context.Context, tuning Tuning, body string, then func(), class loop.ErrorClass) {
	t.Helper()
	server := Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body != "" {
			write(w, body)
		}
		if then != nil {
			then()
		}
		<-r.Context().Done()
	}))
	_, err := s.New(server.URL, tuning).Generate(ctx, Ask())
	checkError(t, err, Want{Class: class})
	if n := len(server.Requests()); n != 1 {
		t.Errorf("sent %d requests, want exactly 1", n)
	}
}
